"""The LangGraph store beside LangGraph's own: one suite for both, then what only memories have."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from job_cases import Gate
from rule_model import RulePolicy

pytest.importorskip("langgraph")

from langgraph.store.base import GetOp, InvalidNamespaceError, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from deltamem.bank.store import MemoryStore
from deltamem.edits import Add
from deltamem.errors import DeltaMemError
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.sessions import Turn
from integrations.langgraph import DeltaMemStore, ItemError, namespace_of, owner_of

START = datetime(2026, 4, 5, 20, 1)
ANN, BOB = ("memories", "ann"), ("memories", "bob")
DOG, CAT, JOB = "Ann has a dog named Rex.", "Ann has a grey cat.", "Ann works as a nurse."


def theirs() -> InMemoryStore:
    embedder = WordEmbedder()
    embed: Callable[[Any], Any] = lambda texts: embedder.documents(list(texts)).tolist()  # noqa: E731
    return InMemoryStore(index={"dims": embedder.dim, "embed": embed, "fields": ["content"]})


def ours() -> DeltaMemStore:
    return DeltaMemStore(MemoryStore.in_memory(WordEmbedder()))


@pytest.fixture(params=[theirs, ours])
def store(request: pytest.FixtureRequest) -> Any:
    return request.param()


def keys(items: Any) -> list[str]:
    return [item.key for item in items]


class TestBoth:
    def test_what_is_put_is_got_replaced_and_deleted(self, store: Any) -> None:
        assert store.get(ANN, "k") is None
        store.put(ANN, "k", {"content": DOG, "year": 2026, "tags": ["pet"], "sure": True, "weight": 1.5, "gone": None})
        item = store.get(ANN, "k")
        assert (item.key, item.namespace) == ("k", ANN)
        assert item.value == {"content": DOG, "year": 2026, "tags": ["pet"], "sure": True, "weight": 1.5, "gone": None}
        assert item.created_at <= item.updated_at and item.created_at.utcoffset() is not None
        store.put(ANN, "k", {"content": CAT})
        assert store.get(ANN, "k").value == {"content": CAT}
        assert store.get(ANN, "k").updated_at >= item.updated_at
        assert store.get(BOB, "k") is None
        store.delete(ANN, "k")
        store.delete(ANN, "k")
        assert store.get(ANN, "k") is None and store.search(ANN) == []

    async def test_the_asynchronous_methods_are_the_same(self, store: Any) -> None:
        await store.aput(ANN, "k", {"content": DOG})
        assert (await store.aget(ANN, "k")).value == {"content": DOG}
        assert keys(await store.asearch(ANN, query="dog")) == ["k"]
        assert await store.alist_namespaces() == [ANN]
        await store.adelete(ANN, "k")
        assert await store.aget(ANN, "k") is None

    def test_search_ranks_filters_and_pages(self, store: Any) -> None:
        for key, text, year in (("d", DOG, 2024), ("c", CAT, 2025), ("j", JOB, 2026)):
            store.put(ANN, key, {"content": text, "year": year})
        found = store.search(ANN, query="Ann works as a nurse.")
        assert keys(found)[0] == "j" and found[0].score == pytest.approx(1.0)
        assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)
        assert keys(store.search(ANN)) == ["d", "c", "j"] and store.search(ANN)[0].score is None
        assert keys(store.search(ANN, limit=1, offset=1)) == ["c"]
        assert keys(store.search(ANN, query="Ann works as a nurse.", limit=1, offset=1)) != ["j"]
        for condition, expected in (
            ({"$eq": 2025}, ["c"]),
            ({"$ne": 2025}, ["d", "j"]),
            ({"$gt": 2024}, ["c", "j"]),
            ({"$gte": 2025}, ["c", "j"]),
            ({"$lt": 2025}, ["d"]),
            ({"$lte": 2025, "$gt": 2024}, ["c"]),
            (2026, ["j"]),
            (None, []),
        ):
            assert keys(store.search(ANN, filter={"year": condition})) == expected, condition
            assert sorted(keys(store.search(ANN, query="Ann", filter={"year": condition}))) == sorted(expected)
        assert keys(store.search(ANN, filter={"content": CAT, "year": {"$lt": 2026}})) == ["c"]

    def test_a_namespace_stands_for_all_that_begin_with_it(self, store: Any) -> None:
        store.put(ANN, "a", {"content": DOG})
        store.put((*ANN, "work"), "b", {"content": JOB})
        store.put(BOB, "c", {"content": "Bob has a dog."})
        store.put(("memories2", "ann"), "d", {"content": "A dog of somebody else."})
        assert sorted(keys(store.search(ANN))) == ["a", "b"]
        assert sorted(keys(store.search(("memories",), query="dog"))) == ["a", "b", "c"]
        assert keys(store.search(("memories",), query=DOG, limit=1)) == ["a"]
        assert store.search(("mem",)) == [] and store.search(("nobody",), query="dog") == []
        assert store.list_namespaces() == [ANN, (*ANN, "work"), BOB, ("memories2", "ann")]
        assert store.list_namespaces(prefix=("memories", "*")) == [ANN, (*ANN, "work"), BOB]
        assert store.list_namespaces(suffix=("ann",)) == [ANN, ("memories2", "ann")]
        assert store.list_namespaces(prefix=("memories",), suffix=("*", "ann", "work")) == [(*ANN, "work")]
        assert store.list_namespaces(max_depth=1, limit=1, offset=1) == [("memories2",)]

    def test_a_batch_reads_before_it_writes_and_the_last_put_counts(self, store: Any) -> None:
        store.put(ANN, "a", {"content": DOG})
        results = store.batch(
            [
                PutOp(ANN, "a", {"content": CAT}),
                GetOp(ANN, "a"),
                PutOp(ANN, "b", {"content": CAT}),
                PutOp(ANN, "b", {"content": JOB}),
                SearchOp(ANN, None),
                PutOp(BOB, "c", {"content": DOG}),
                PutOp(BOB, "c", None),
                ListNamespacesOp((MatchCondition("prefix", ("memories",)),)),
            ]
        )
        assert results[1].value == {"content": DOG} and keys(results[4]) == ["a"] and results[7] == [ANN]
        assert [results[place] for place in (0, 2, 3, 5, 6)] == [None] * 5
        assert [item.value["content"] for item in store.search(ANN)] == [CAT, JOB] and store.search(BOB) == []

    def test_what_langgraph_itself_refuses(self, store: Any) -> None:
        for namespace in ((), ("a.b",), ("",), ("langgraph", "x"), ("a", 3), ("a\x00",)):
            with pytest.raises(InvalidNamespaceError):
                store.put(namespace, "k", {"content": DOG})
        with pytest.raises(NotImplementedError, match="TTL"):
            store.put(ANN, "k", {"content": DOG}, ttl=5)
        with pytest.raises(ValueError, match="operation"):
            store.batch(["no operation"])
        assert not store.supports_ttl and store.list_namespaces() == []


labels = st.sampled_from(["a", "b", "ü*", "x y"])
namespaces = st.lists(labels, min_size=1, max_size=3).map(tuple)
item_keys = st.one_of(st.sampled_from(["k1", "k2", "m1"]), st.text(st.characters(exclude_categories=["Cs"]), max_size=3))
# With a word, so that no vector is zero.
contents = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).map(lambda text: f"w {text}")
numbers = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, 2.0]))
values = st.one_of(st.none(), st.sampled_from(["x", "y", ""]), numbers, st.lists(st.sampled_from(["x", "y"]), max_size=2))
metadata = st.dictionaries(st.sampled_from(["p", "q"]), values, max_size=2)
conditions = st.one_of(
    values,
    st.dictionaries(st.sampled_from(["$eq", "$ne"]), values, min_size=1),
    st.dictionaries(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), numbers, min_size=1),
)
filters = st.one_of(st.none(), st.dictionaries(st.sampled_from(["p", "q", "content"]), conditions, max_size=2))


class Twins(RuleBasedStateMachine):
    """The same operations on both stores; where both answer, they answer alike."""

    @initialize()
    def begin(self) -> None:
        self.one, self.other = theirs(), ours()
        self.filled: dict[tuple[str, ...], set[str]] = {}

    @rule(namespace=namespaces, key=item_keys, content=contents, noted=metadata)
    def put(self, namespace: tuple[str, ...], key: str, content: str, noted: dict[str, Any]) -> None:
        for store in (self.one, self.other):
            store.put(namespace, key, {"content": content, **noted})
        self.filled.setdefault(namespace, set()).add(key)

    @rule(namespace=namespaces, key=item_keys)
    def delete(self, namespace: tuple[str, ...], key: str) -> None:
        for store in (self.one, self.other):
            store.delete(namespace, key)
        self.filled.get(namespace, set()).discard(key)

    @rule(changes=st.lists(st.tuples(namespaces, item_keys, st.none() | contents), max_size=5))
    def batch(self, changes: list[tuple[tuple[str, ...], str, str | None]]) -> None:
        # Numbered: LangGraph's store cannot embed one text for two keys of a batch.
        texts = [None if text is None else {"content": f"{number} {text}"} for number, (_, _, text) in enumerate(changes)]
        ops = [PutOp(space, key, text) for (space, key, _), text in zip(changes, texts, strict=True)]
        for store in (self.one, self.other):
            assert store.batch(ops) == [None] * len(ops)
        for space, key, text in changes:
            known = self.filled.setdefault(space, set())
            known.discard(key) if text is None else known.add(key)

    @rule(prefix=namespaces, wanted=filters, limit=st.integers(0, 4), offset=st.integers(0, 3))
    def search(self, prefix: tuple[str, ...], wanted: dict[str, Any] | None, limit: int, offset: int) -> None:
        try:
            expected = self.one.search(prefix, filter=wanted, limit=1000)
        except (TypeError, ValueError):
            return  # it compares only what float() takes
        found = self.other.search(prefix, filter=wanted, limit=1000)
        shown = [(item.namespace, item.key, item.value) for item in expected]
        # Namespaces come in another order, the items of each in the same.
        assert [(item.namespace, item.key, item.value) for item in found] == sorted(shown, key=lambda one: one[0])
        page = self.other.search(prefix, filter=wanted, limit=limit, offset=offset)
        assert page == found[offset : offset + limit]

    @rule(prefix=namespaces, wanted=filters, query=contents)
    def ranking(self, prefix: tuple[str, ...], wanted: dict[str, Any] | None, query: str) -> None:
        try:
            expected = self.one.search(prefix, filter=wanted, query=query, limit=1000)
        except (TypeError, ValueError):
            return
        found = self.other.search(prefix, filter=wanted, query=query, limit=1000)
        assert {(item.namespace, item.key) for item in found} == {(item.namespace, item.key) for item in expected}
        scores = {(item.namespace, item.key): item.score for item in expected}
        for item in found:
            assert item.score == pytest.approx(scores[item.namespace, item.key], abs=1e-5)
        assert [item.score for item in found] == sorted((item.score or 0 for item in found), reverse=True)

    @rule(prefix=st.none() | namespaces, suffix=st.none() | namespaces, depth=st.none() | st.integers(1, 3))
    def list(self, prefix: Any, suffix: Any, depth: int | None) -> None:
        found = self.other.list_namespaces(prefix=prefix, suffix=suffix, max_depth=depth)
        # LangGraph's store also lists namespaces that are empty by now: so only against those that are filled.
        expected = self.one.list_namespaces(prefix=prefix, suffix=suffix, limit=1000)
        filled = [space for space in expected if self.filled.get(space)]
        assert found == sorted({space[:depth] for space in filled})

    @invariant()
    def same_items(self) -> None:
        for namespace, known in getattr(self, "filled", {}).items():
            for key in {*known, "k1", "k2", "m1"}:
                one, other = self.one.get(namespace, key), self.other.get(namespace, key)
                assert (one is None) == (other is None)
                assert one is None or other is None or (one.value, one.key) == (other.value, other.key)


TestTwins = Twins.TestCase
TestTwins.settings = settings(max_examples=settings.default.max_examples // 2, stateful_step_count=25)


@pytest.fixture
def memory() -> Iterator[MemoryStore]:
    with MemoryStore.in_memory(WordEmbedder()) as store:
        yield store


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"text": DOG}, "a value must be"),
        ({"content": {"content": DOG}}, "a value must be"),
        ({"content": 3}, "a value must be"),
        ({"content": "  "}, "a value must be"),
        ({"content": DOG, "nested": {"a": 1}}, "'nested' must be a text"),
        ({"content": DOG, "OR": 1}, "'OR' cannot be a key"),
        ({"content": DOG, "many": 2**70}, "64 bits"),
        ({"content": DOG, "nan": float("nan")}, "finite"),
        ({"content": DOG, "langgraph_key": "x"}, "keeps the key there"),
        ({"content": "\ud800"}, "Unicode"),
        ({"content": DOG, "x": "\ud800"}, "Unicode"),
        ("a text", "a value must be"),
    ],
)
def test_other_values_are_refused_in_one_sentence_and_nothing_is_written(memory: MemoryStore, value: Any, said: str) -> None:
    store = DeltaMemStore(memory)
    with pytest.raises(ValueError, match=said) as caught:
        store.batch([PutOp(ANN, "good", {"content": DOG}), PutOp(BOB, "bad", value)])
    assert isinstance(caught.value, DeltaMemError) and "\n" not in str(caught.value) and "'bad'" in str(caught.value)
    assert memory.owners() == []


def test_operations_that_would_be_ignored_elsewhere_are_refused(memory: MemoryStore) -> None:
    store = DeltaMemStore(memory)
    refused: list[Any] = [
        PutOp(ANN, "k", {"content": DOG}, index=False),
        PutOp(ANN, "k", {"content": DOG}, index=["title"]),
        PutOp(ANN, "k", {"content": DOG}, ttl=1.0),
        PutOp((), "k", {"content": DOG}),
        GetOp((), "k"),
        SearchOp((), None),
        SearchOp(ANN, None, limit=-1),
        SearchOp(ANN, {"a": {"$near": 1}}),
        SearchOp(ANN, {"a": {"b": 1}}),
        ListNamespacesOp(offset=-1),
        ListNamespacesOp((MatchCondition("infix", ("a",)),)),  # type: ignore[arg-type]
        GetOp(("a.b",), "k"),
    ]
    store.put(("a",), "k", {"content": DOG})
    for op in refused:
        with pytest.raises(ValueError):
            store.batch([op])
    assert memory.owners() == ["a"]
    store.put(ANN, "k", {"content": DOG, "tags": ["pet", "Rex"]}, index=["content"])
    assert keys(store.search(ANN, filter={"tags": {"$icontains": "rex"}, "OR": [{"x": 1}, {"tags": {"$ne": 1}}]})) == ["k"]


def test_namespaces_and_owners_are_one_to_one() -> None:
    assert owner_of(("memories", "ann")) == "memories.ann" and namespace_of("memories.ann") == ("memories", "ann")
    assert namespace_of("ann") == ("ann",)
    for name in ("", "a..b", ".a", "a.", "a\x00"):
        assert namespace_of(name) is None
    with pytest.raises(ItemError, match="namespace is empty"):
        owner_of(())


async def test_what_a_session_wrote_is_an_item_by_its_uuid_and_keeps_a_key(memory: MemoryStore) -> None:
    store = DeltaMemStore(memory)
    manager = MemoryManager(memory, "memories.ann", RulePolicy(), ManagerSettings(person_name="Ann"))
    await store.aput(ANN, "job", {"content": "Ann's job is nurse.", "source": "form"})
    await manager.ingest(manager.session("s1", START, [Turn("user", "My city is Boston. My job is pilot.")]))
    city = next(item for item in store.search(ANN) if item.key != "job")
    assert (city.value, city.key) == ({"content": "Ann's city is Boston."}, str(manager.journal.uuids()["m2"]))
    assert store.get(ANN, "job").value == {"content": "Ann's job is pilot.", "source": "form"}  # type: ignore[union-attr]
    await store.aput(ANN, city.key, {"content": "Ann's city is Reno."})
    assert store.get(ANN, city.key).value == {"content": "Ann's city is Reno."}  # type: ignore[union-attr]
    assert [origin.actor or origin.session_id for origin in manager.blame("m2")] == ["s1", "langgraph"]
    before = memory.journal.owner("memories.ann").head
    store.put(ANN, "job", {"content": "Ann's job is pilot.", "source": "form"})
    assert memory.journal.owner("memories.ann").head == before, "an equal value is no news"
    store.delete(ANN, city.key)
    assert store.get(ANN, city.key) is None
    await manager.rollback(before)
    assert store.get(ANN, city.key).value == {"content": "Ann's city is Reno."}  # type: ignore[union-attr]


async def test_a_key_that_was_given_twice_by_others_is_the_first_ones(memory: MemoryStore) -> None:
    manager = MemoryManager(memory, "ann", RulePolicy())
    await manager.write([Add(DOG, START, {"langgraph_key": "k"}), Add(CAT, START, {"langgraph_key": "k"})], "test")
    store = DeltaMemStore(memory)
    assert keys(store.search(("ann",))) == ["k", str(manager.journal.uuids()["m2"])]
    assert store.get(("ann",), "k").value == {"content": DOG}  # type: ignore[union-attr]


@pytest.mark.parametrize("query", ["", " ", "\u200b"])
def test_a_blank_query_is_refused_as_by_all_ways_in(memory: MemoryStore, query: str) -> None:
    with pytest.raises(DeltaMemError, match="the query is blank; say what to look for"):
        DeltaMemStore(memory).search(ANN, query=query)


def test_reading_leaves_no_trace_of_who_is_not_there(tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path / "bank", WordEmbedder()) as memory:
        store = DeltaMemStore(memory)
        store.put(BOB, "k", {"content": DOG})
        assert store.get(ANN, "k") is None and store.search(ANN, query="dog") == [] and memory.owners() == ["memories.bob"]
    assert not any(b"memories.ann" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_keys_and_items_outlast_a_restart_and_an_erased_one_is_in_no_file(tmp_path: Path) -> None:
    secret, key = "Ann's passphrase is xyzzyplugh.", "key-of-xyzzy"
    with MemoryStore.open(tmp_path / "bank", WordEmbedder()) as memory:
        store = DeltaMemStore(memory)
        store.put(ANN, key, {"content": secret, "label": "mark-qqq"})
        store.put(ANN, "kept", {"content": DOG})
        first = store.get(ANN, key)
    with MemoryStore.open(tmp_path / "bank", WordEmbedder()) as memory:
        store = DeltaMemStore(memory, delete="erase")
        assert store.get(ANN, key) == first and keys(store.search(ANN, query=secret)) == [key, "kept"]
        store.put(ANN, key, {"content": secret + " Or was.", "label": "mark-qqq"})
        assert store.get(ANN, key).created_at == first.created_at  # type: ignore[union-attr]
        store.delete(ANN, key)
        assert store.get(ANN, key) is None and keys(store.search(ANN)) == ["kept"]
    data = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for word in (b"xyzzy", b"mark-qqq"):
        assert [path for path, found in data.items() if word in found] == []
    assert any(b"Rex" in found for found in data.values())


async def test_a_write_waits_for_a_session_that_is_being_read_and_never_for_its_own_loop(memory: MemoryStore) -> None:
    policy = Gate()
    store = DeltaMemStore(memory)
    manager = MemoryManager(memory, "memories.ann", policy, ManagerSettings(person_name="Ann"))
    reading = asyncio.create_task(manager.ingest(manager.session("s1", START, [Turn("user", "My city is Boston.")])))
    while not policy.inside:
        await asyncio.sleep(0.01)
    with pytest.raises(DeltaMemError, match="asynchronous"):
        store.put(ANN, "k", {"content": DOG})
    begun = threading.Event()

    def put() -> None:
        begun.set()
        store.put(ANN, "sync", {"content": DOG})

    writes = asyncio.gather(asyncio.to_thread(put), store.aput(ANN, "async", {"content": CAT}))
    await asyncio.to_thread(begun.wait)
    assert store.search(ANN) == [] and not writes.done()
    policy.open.set()
    await asyncio.gather(reading, writes)
    assert {"async", "sync"} < set(keys(store.search(ANN))) and len(store.search(ANN)) == 3


async def test_puts_from_many_threads_and_tasks_are_all_there(memory: MemoryStore) -> None:
    store = DeltaMemStore(memory)
    values = {f"k{number}": {"content": f"Ann counts to {number}."} for number in range(24)}
    given = list(values.items())
    await asyncio.gather(
        *(asyncio.to_thread(store.put, ANN, key, value) for key, value in given[::2]),
        *(store.aput(ANN, key, value) for key, value in given[1::2]),
    )
    assert {item.key: item.value for item in store.search(ANN, limit=100)} == values
