"""LangGraph's `BaseStore` over a `MemoryStore`.

Whose memory is meant follows from a namespace, whose labels joined by periods are the owner's name: ``("memories", "ann")``
is the owner ``memories.ann``. No label may hold a period (LangGraph's own rule), so two namespaces are never one owner.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from deltamem.bank.base import Hit
from deltamem.bank.store import MemoryStore, UserStore
from deltamem.edits import Add, Edit, Retract, Update
from deltamem.errors import DeltaMemError
from deltamem.filters import check_queries, read_filter
from deltamem.journal.records import ChangeEvent
from deltamem.memory import FILTER_WORDS, Memory, Metadata, Value
from deltamem.policy import Policy, ScopedPolicy
from deltamem.text import shortened

KEY = "langgraph_key"
"""Metadata in which a memory keeps the key that `DeltaMemStore.put` was given; no part of the item's value."""
CONTENT = "content"


class ItemError(DeltaMemError, ValueError):
    """An operation that the store cannot carry out as it was given, in one sentence."""


def owner_of(namespace: tuple[str, ...]) -> str:
    """The owner that a namespace stands for."""
    if not namespace:
        raise ItemError("the namespace is empty: it names the owner of the memories")
    return ".".join(namespace)


def namespace_of(owner: str) -> tuple[str, ...] | None:
    """The namespace that stands for an owner; None if none does, because the name has an empty part or a NUL."""
    labels = tuple(owner.split("."))
    return labels if all(labels) and "\x00" not in owner else None


class _Keys(NamedTuple):
    """The keys of an owner's memories at a position of the journal."""

    position: int
    of: Mapping[str, str]
    """Keys by id."""
    ids: Mapping[str, str]
    """Ids by key."""


class DeltaMemStore(BaseStore):
    """A LangGraph store whose items are memories: values are ``{"content": str, **metadata}``.

    All memories of an owner are items, whoever wrote them. What came through this store has the key that it was put with;
    other memories have their UUID. As in LangGraph's own stores, a batch reads first and then writes, the last put of a key
    counts, and a namespace that is searched stands for all that begin with it. What one batch writes for one owner is one
    entry of the journal; nothing is written if any operation of the batch is refused.
    """

    supports_ttl = False

    def __init__(
        self,
        memory: MemoryStore,
        *,
        delete: Literal["retract", "erase"] = "retract",
        actor: str = "langgraph",
        policy: Policy | None = None,
    ) -> None:
        """Bind a store; it stays the caller's to close.

        Args:
            memory: Where the memories are.
            delete: Whether what is deleted keeps its history, so that a rollback brings it back, or is erased for good.
            actor: Whom the journal names as the writer.
            policy: The policy of those who read sessions for the same owners, if its answers are cached: what is erased is
                erased there too.
        """
        self._memory = memory
        self._erases = delete == "erase"
        self._actor = actor
        self._policy = policy
        self._keys: WeakKeyDictionary[UserStore, _Keys] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations; `abatch` in an event loop."""
        reads, puts = self._sorted(ops)
        results = self._read(reads)
        for owner, by_key in puts.items():
            owned = self._memory.bank(owner)
            with owned.blocking_turn():
                self._write(owned, by_key)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations."""
        reads, puts = self._sorted(ops)
        results = await asyncio.to_thread(self._read, reads)
        for owner, by_key in puts.items():
            owned = await asyncio.to_thread(self._memory.bank, owner)
            async with owned.turn():
                await asyncio.to_thread(self._write, owned, by_key)
        return results

    def bank(self, owner: str) -> UserStore | None:
        """The bank of an owner; None if nothing was ever recorded for this name, which leaves it so."""
        return self._memory.bank(owner) if self._memory.journal.owner(owner).head else None

    def find(self, owned: UserStore, query: str, k: int) -> list[Hit]:
        """The `k` memories of an owner that are most similar to a query."""
        return owned.search(self._memory.embedder.queries, [query], k)[0]

    @staticmethod
    def _sorted(ops: Iterable[Op]) -> tuple[list[Op | None], dict[str, dict[str, PutOp]]]:
        """The operations with None for each put, and the last put of each key by owner."""
        reads: list[Op | None] = []
        puts: dict[str, dict[str, PutOp]] = {}
        for op in ops:
            if not isinstance(op, GetOp | SearchOp | ListNamespacesOp | PutOp):
                raise ItemError(f"there is no operation {type(op).__name__}")
            validate_op_namespace(op)
            if not isinstance(op, PutOp):
                reads.append(op)
                continue
            reads.append(None)
            _check_put(op)
            puts.setdefault(owner_of(op.namespace), {})[op.key] = op
        return reads, puts

    def _read(self, ops: Sequence[Op | None]) -> list[Result]:
        results: list[Result] = []
        for op in ops:
            if isinstance(op, GetOp):
                results.append(self._get(op))
            elif isinstance(op, SearchOp):
                results.append(list(self._search(op)))
            elif isinstance(op, ListNamespacesOp):
                results.append(self._namespaces(op))
            else:
                results.append(None)
        return results

    def _get(self, op: GetOp) -> Item | None:
        owned = self.bank(owner_of(op.namespace))
        if owned is None:
            return None
        memory_id = self._keys_of(owned).ids.get(op.key)
        memory = None if memory_id is None else owned.bank.state.get(memory_id)
        if memory is None:
            return None
        created, updated = _times(owned, memory)
        return Item(value=_item_value(memory), key=op.key, namespace=op.namespace, created_at=created, updated_at=updated)

    def _search(self, op: SearchOp) -> list[SearchItem]:
        owner_of(op.namespace_prefix)  # raises
        _check_page(op.limit, op.offset)
        holds = read_filter(_as_filter(op.filter or {}))
        until = op.offset + op.limit
        if op.query is not None:
            check_queries([op.query])
        if not until:
            return []
        vectors = None if op.query is None else self._memory.embedder.queries([op.query])
        found: list[tuple[tuple[str, ...], UserStore, Memory, float | None]] = []
        for namespace in self._spaces():
            if namespace[: len(op.namespace_prefix)] != op.namespace_prefix:
                continue
            owned = self._memory.bank(owner_of(namespace))
            fitting = [memory for memory in owned.bank.state.memories if holds(_fields(memory))]
            if vectors is None:
                found += [(namespace, owned, memory, None) for memory in fitting]
            elif fitting:
                among = {memory.id for memory in fitting} if op.filter else None
                hits = owned.bank.search(vectors, until, among)[0]
                found += [(namespace, owned, hit.memory, hit.similarity) for hit in hits]
        found.sort(key=lambda one: -(one[3] or 0.0))  # stable: without a query as it is
        items = []
        for namespace, owned, memory, score in found[op.offset : until]:
            key = self._keys_of(owned).of.get(memory.id)
            if key is not None:  # else it was retracted meanwhile
                items.append(SearchItem(namespace, key, _item_value(memory), *_times(owned, memory), score))
        return items

    def _spaces(self) -> list[tuple[str, ...]]:
        known = map(namespace_of, self._memory.journal.remembered_owners())
        return sorted(namespace for namespace in known if namespace is not None)

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        _check_page(op.limit, op.offset)
        conditions = op.match_conditions or ()
        found = (namespace for namespace in self._spaces() if all(_matches(one, namespace) for one in conditions))
        shown = found if op.max_depth is None else {namespace[: op.max_depth] for namespace in found}
        return sorted(shown)[op.offset : op.offset + op.limit]

    def _keys_of(self, owned: UserStore) -> _Keys:
        with self._lock:
            known = self._keys.get(owned)
        position, state = owned.bank.position, owned.bank.state  # in this order: at worst the state is newer
        if known is not None and known.position == position:
            return known
        uuids: Mapping[str, UUID] | None = None
        ids: dict[str, str] = {}
        for memory in state.memories:
            key = memory.metadata.get(KEY)
            # Whoever wrote the metadata without this store may have given a key twice: the first one has it.
            if not isinstance(key, str) or key in ids:
                uuids = owned.journal.uuids(position) if uuids is None else uuids
                if memory.id not in uuids:
                    continue  # added since the position was read: the next look has it
                key = str(uuids[memory.id])
            ids[key] = memory.id
        keys = _Keys(position, {memory_id: key for key, memory_id in ids.items()}, ids)
        with self._lock:
            self._keys[owned] = keys
        return keys

    def _write(self, owned: UserStore, puts: Mapping[str, PutOp]) -> None:
        now = owned.now().time
        edits: list[Edit] = []
        erased: list[str] = []
        with owned.writing():
            ids, state = self._keys_of(owned).ids, owned.bank.state
            for key, op in puts.items():
                known = state.get(ids.get(key, ""))
                if op.value is None:
                    if known is not None and self._erases:
                        erased.append(known.id)
                    elif known is not None:
                        edits.append(Retract(known.id))
                elif known is None:
                    edits.append(Add(op.value[CONTENT], now, {**_metadata(op.value), KEY: key}))
                else:
                    kept = {KEY: key} if KEY in known.metadata else {}
                    metadata = Metadata({**_metadata(op.value), **kept})
                    if (known.text, known.metadata) != (op.value[CONTENT], metadata):
                        edits.append(Update(known.id, op.value[CONTENT], now, metadata))
            if edits:
                owned.edit(edits, self._actor)
            for memory_id in erased:
                owned.forget(memory_id)
        if erased and isinstance(self._policy, ScopedPolicy):
            self._policy.forget_scope(owned.owner)


def _fields(memory: Memory) -> dict[str, Value]:
    """The value of a memory's item as filters see it."""
    return {**{key: value for key, value in memory.metadata.items() if key != KEY}, CONTENT: memory.text}


def _item_value(memory: Memory) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in _fields(memory).items()}


def _metadata(value: Mapping[str, object]) -> dict[str, object]:
    return {name: one for name, one in value.items() if name != CONTENT}


def _check_put(op: PutOp) -> None:
    """Refuse what cannot be a memory."""
    if op.ttl is not None:
        raise ItemError(f"key {op.key!r}: memories do not expire, so a ttl cannot be set")
    if op.value is None:
        return
    if op.index not in (None, [CONTENT]):
        raise ItemError(f'key {op.key!r}: every memory is searched by its content; leave index out, or pass ["{CONTENT}"]')
    if not isinstance(op.value, Mapping) or not isinstance(op.value.get(CONTENT), str) or not op.value[CONTENT].strip():
        raise ItemError(
            f'key {op.key!r}: a value must be {{"{CONTENT}": str, **metadata}} with a content that is not empty, which'
            f" {shortened(repr(op.value), 80)} is not"
        )
    if KEY in op.value:
        raise ItemError(f"key {op.key!r}: {KEY!r} cannot be part of a value, since the store keeps the key there")
    try:
        op.value[CONTENT].encode()
        Metadata({**_metadata(op.value), KEY: op.key})
    except UnicodeEncodeError:
        raise ItemError(f"key {op.key!r}: the content is not valid Unicode") from None
    except ValueError as error:
        raise ItemError(f"key {op.key!r}: {error}") from error


def _check_page(limit: int, offset: int) -> None:
    if limit < 0 or offset < 0:
        raise ItemError(f"limit and offset must not be negative, as {min(limit, offset)} is")


def _times(owned: UserStore, memory: Memory) -> tuple[datetime, datetime]:
    """When a memory was first and last written."""
    written = [
        entry.recorded_at
        for entry, change in owned.journal.history(memory.id)
        if not entry.undone and change.event is not ChangeEvent.NONE
    ]
    return (written[0], written[-1]) if written else (memory.time, memory.time)


def _as_filter(given: Mapping[str, Any]) -> dict[str, Any]:
    """A filter of LangGraph as one of `deltamem.filters`: the same, but for the dollar signs of the operators."""

    def inner(key: str, condition: Any) -> Any:
        if key in FILTER_WORDS:
            parts = condition if isinstance(condition, list) else [condition]
            return [_as_filter(part) if isinstance(part, Mapping) else part for part in parts]
        if not isinstance(condition, Mapping):
            return condition
        plain = [name for name in condition if not str(name).startswith("$")]
        if plain:
            raise ItemError(f"filter: {plain[0]!r} of {key!r} is no operator such as $eq, and the values of items are flat")
        return {name[1:]: operand for name, operand in condition.items()}

    return {key: inner(key, condition) for key, condition in given.items()}


def _matches(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = condition.path
    if condition.match_type not in ("prefix", "suffix"):
        raise ItemError(f"namespaces match by prefix or suffix, not by {condition.match_type!r}")
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))
