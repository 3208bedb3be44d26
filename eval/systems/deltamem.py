"""DeltaMem as a system under test."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deltamem.bank.store import MemoryStore
from deltamem.config import StrictModel
from deltamem.embedding import Embedder
from deltamem.errors import DeltaMemError
from deltamem.ingest import Outcome
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.policy import Policy, choose_mode
from deltamem.runs import RecordFile
from deltamem.sessions import Turn
from eval.config import BenchmarkConfig
from eval.models import find_window
from eval.systems.base import DialogueSession, Ingested, Passage, StoreKey, SystemUnavailableError, store_folder
from eval.systems.kinds import Calls, SystemContext, SystemKind, prompt_tokens, session_tokens


class _Turns(StrictModel):
    """The turn ids of a session by their place in the journal's dialogue; one line of ``turns.jsonl``."""

    session: str
    turns: tuple[tuple[str, ...], ...]


class TurnIds:
    """The ids of turns, which the journal knows by their place, beside it: a later run searches without the sessions."""

    def __init__(self, file: RecordFile[_Turns]) -> None:
        self._file = file

    def add(self, session: str, turns: Iterable[Sequence[str]]) -> None:
        """Note the turns at each place, before the journal holds the session, so that it never holds unknown turns."""
        named = _Turns(session=session, turns=tuple(map(tuple, turns)))
        if self._file.get(session) != named:
            self._file.add(named)

    def of(self, session: str, places: Iterable[int]) -> dict[str, None]:
        """The ids at places of a session, counted from 1, in order; none of a place or session that was never noted."""
        record = self._file.get(session)
        turns = () if record is None else record.turns
        return dict.fromkeys(turn for place in places if place <= len(turns) for turn in turns[place - 1])


@asynccontextmanager
async def open_store(parent: Path, key: StoreKey, embedder: Embedder) -> AsyncIterator[tuple[MemoryStore, TurnIds]]:
    """Open a store of its own for one person in a folder, or make it; fails if it is open already."""
    folder = store_folder(parent, key)
    await asyncio.to_thread(embedder.queries, [])  # a missing model is found before work is half done
    # Not in a thread: if the run were cancelled meanwhile, nobody would close the store.
    with (
        MemoryStore.open(folder, embedder) as store,
        RecordFile(folder / "turns.jsonl", _Turns, lambda record: record.session) as file,
    ):
        yield store, TurnIds(file)


Connect = Callable[[], Awaitable[int | None]]
"""Fails if the model does not answer; returns its context window in tokens, None if that is not known."""


class DeltaMemSystem:
    """Reads every session with `MemoryManager`, one store a person: its owner is the user."""

    name = "deltamem"
    per_speaker = True
    ranked = True

    def __init__(
        self,
        policy: Policy,
        embedder: Embedder,
        folder: Path,
        *,
        settings: ManagerSettings | None = None,
        connect: Connect | None = None,
    ) -> None:
        """Begin with what the `folder` holds, in which each store gets a folder.

        `connect` is called once, before the first session that has to be read, and fills in the window of the `settings`.
        """
        self._policy = policy
        self._embedder = embedder
        self._folder = folder
        self._settings = settings or ManagerSettings()
        self._connect = connect
        self._connecting = asyncio.Lock()

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[ManagedMemory]:
        """See `open_store`."""
        async with open_store(self._folder, key, self._embedder) as (store, turn_ids):
            yield ManagedMemory(self, store, key.owner, turn_ids)

    def facts(self) -> dict[str, Any]:
        """Model, mode, prompts, version, and the window by which long sessions were split (None if nobody knows it)."""
        choice = choose_mode(self._settings.mode, self._policy)
        on = self._settings.safeguards
        warning = ""
        if choice.mode == "react" and on:
            warning = "sessions and operations were corrected (manager.safeguards)"
        elif choice.mode == "react" and self._settings.tries > 1:
            warning = "answers that cannot be read were asked for again (attempts)"
        return ({"warnings": [f"{warning}: this is not the agent as it was trained"]} if warning else {}) | {
            "safeguards": "on" if on else "off",
            "attempts": self._settings.tries,
            "model": self._policy.name,
            "window": self._settings.window_tokens,
            "embedder": self._embedder.name,
            "mode": choice.mode,
            "mode_reason": choice.reason,
            "prompt_hashes": self._settings.episode_in(choice.mode).prompt_hashes,
            "versions": {"deltamem": version("deltamem")},
        }

    async def manager(self, store: MemoryStore, owner: str) -> MemoryManager:
        """A manager that can read sessions; asked for when the first one has to be read."""
        async with self._connecting:
            if self._connect is not None:
                try:
                    self._settings = replace(self._settings, window_tokens=await self._connect())
                except DeltaMemError as error:
                    raise SystemUnavailableError(str(error)) from error
                self._connect = None
        return MemoryManager(store, owner, self._policy, self._settings)


class ManagedMemory:
    """One person's memory in a store of its own.

    The sources of a memory are the turns of its addition and of every update since, as in `MemoryManager.blame`.
    """

    def __init__(self, system: DeltaMemSystem, store: MemoryStore, owner: str, turn_ids: TurnIds) -> None:
        self._system = system
        self._store = store
        self._owner = owner
        self._turn_ids = turn_ids
        self._sources: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._manager: MemoryManager | None = None
        self._known: dict[str, int] = {}
        for entry in store.bank(owner).journal.entries():
            if entry.kind is EntryKind.SESSION and entry.session_id is not None and not entry.undone:
                self._note(entry.session_id, entry.position, entry.changes)

    @property
    def known(self) -> Collection[str]:
        """Ids of the sessions that the journal holds; unreadable ones are not among them."""
        return self._known.keys()

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Read a session. What a known one did comes from the journal, which does not know its cost."""
        if session.id in self._known:
            entry = self._store.bank(self._owner).journal.entry(self._known[session.id])
            return _ingested(entry.changes, entry.violations)
        if not session.turns:
            return _ingested((), {})
        if self._manager is None:
            self._manager = await self._system.manager(self._store, self._owner)
        turns = [Turn(turn.role, turn.spoken) for turn in session.turns]
        self._turn_ids.add(session.id, ((turn.id,) for turn in session.turns))
        transition = await self._manager.ingest(self._manager.session(session.id, session.time, turns))
        if transition.position is not None:
            self._note(session.id, transition.position, transition.changes)
        return replace(
            _ingested(transition.changes, transition.violations),
            usage=transition.usage,
            parts=transition.parts,
            readable=transition.outcome is not Outcome.UNREADABLE,
        )

    async def search(self, query: str, k: int) -> list[Passage]:
        """The `k` memories most similar to a query."""
        if k < 1:
            return []
        bank = self._store.bank(self._owner).bank
        (hits,) = await asyncio.to_thread(lambda: bank.search(self._store.embedder.queries([query]), k))
        found = [(hit.memory, float(hit.similarity)) for hit in hits]
        return [Passage(one.text, one.time, tuple(self._sources.get(one.id, ())), near) for one, near in found]

    async def reset(self) -> None:
        """Erase the memories, their journal and index; answers in a response cache stay."""
        if self._known:
            await asyncio.to_thread(self._store.erase_owner, self._owner)
        self._known.clear()
        self._sources.clear()
        self._manager = None

    def _note(self, session: str, position: int, changes: Sequence[Change]) -> None:
        self._known[session] = position
        for change in changes:
            if change.event in (ChangeEvent.ADD, ChangeEvent.UPDATE):
                self._sources[change.memory_id].update(self._turn_ids.of(session, change.turns))


def _ingested(changes: Sequence[Change], violations: Mapping[str, int]) -> Ingested:
    written = [change.after for change in changes if change.event in (ChangeEvent.ADD, ChangeEvent.UPDATE)]
    return Ingested(
        memories=tuple(memory.text for memory in written if memory is not None),
        operations=Counter(str(change.event) for change in changes),
        violations=dict(violations),
    )


class DeltaMemKind(SystemKind):
    """DeltaMem on the manager's model."""

    name = "deltamem"
    per_speaker = True
    with_model = True
    packages = ("chromadb",)

    def run_config(self, config: BenchmarkConfig) -> dict[str, Any]:
        """How its answers are treated."""
        settings = config.manager_settings()
        asked = {"support": settings.support} if settings.safeguards and config.manager.reading == "react" else {}
        return {"safeguards": settings.safeguards, "attempts": settings.tries} | asked

    def make(self, context: SystemContext) -> DeltaMemSystem:
        """The model is asked whether it is there when the first session is read."""
        policy, manager = context.policy(), context.config.manager

        async def connect() -> int | None:
            """The window as configured or as the endpoint says; where neither tells, sessions are split when refused."""
            await policy.check(manager.reading)
            return await find_window("manager", policy.llm, manager)

        settings = context.config.manager_settings()
        return DeltaMemSystem(policy, context.embedder, context.folder, settings=settings, connect=connect)

    def calls(self, session: DialogueSession, store: StoreKey, config: BenchmarkConfig) -> Iterator[Calls]:
        """Two searches and the operations; each call reads the session again, and what those before it wrote and found.

        In assisted mode the facts, and how they stand to memories.
        """
        if config.manager.reading == "assisted":
            yield Calls(1, (1200 if config.assisted.examples else 300) + session_tokens(session), 150)  # assumed
            yield Calls(1, 700, 60)
            return
        count, written, results = 3, 250, 400  # assumed; of a turn with its thinking, of a search
        prompt = prompt_tokens(config.manager_settings().episode.system_prompt)
        later = count * (count - 1) / 2 * (written + results)
        yield Calls(count, count * (prompt + session_tokens(session)) + later, written)


DELTAMEM = DeltaMemKind()
