"""An agent's episodic memory (`papers.episodic`) as a system under test, with the person as its agent.

It is made for an agent that learns from its work for many users, and keeps no data of a user. Here the store belongs to one
person, so its lessons are about how to serve that person; facts about them that the rule against users' data finds
(names, dates, long numbers) are refused, by design. What a benchmark knows to be no data of a user, such as the names
of its restaurants, it hands over as a vocabulary.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any

from deltamem.bank.store import MemoryStore
from deltamem.embedding import Embedder
from deltamem.ingest import Outcome
from deltamem.journal.records import ChangeEvent, Entry, EntryKind
from deltamem.memory import Memory
from deltamem.policy import Policy
from deltamem.prompts import load_prompt
from deltamem.window import estimate_tokens
from eval.config import BenchmarkConfig
from eval.systems.base import DialogueSession, Ingested, Passage, StoreKey
from eval.systems.deltamem import TurnIds, open_store
from eval.systems.kinds import Calls, SystemContext, SystemKind, session_tokens
from papers.episodic import AgentTrajectory, EpisodeSummary, EpisodicMemory, EpisodicSettings, Reflection
from papers.episodic.reading import PROMPTS, REFLECTIONS_PROMPT, SUMMARY_PROMPT, TURNS_PROMPT
from papers.episodic.records import RecordKind, kind_of, split_stage

_ONE_TURN = 2
"""Places of one turn of a trajectory: the user's and the agent's."""

NO_REPLY = "[no reply]"
"""What the agent said in a session in which only the user speaks."""


class EpisodicSystem:
    """Reads every session as a trajectory of an agent with `EpisodicMemory`, one store a person."""

    name = "episodic"
    per_speaker = True
    ranked = True

    def __init__(
        self, policy: Policy, embedder: Embedder, folder: Path, *, settings: EpisodicSettings | None = None
    ) -> None:
        """Begin with what the `folder` holds, in which each store gets a folder."""
        self.policy = policy
        self.settings = settings or EpisodicSettings()
        self._embedder = embedder
        self._folder = folder

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[AgentMemory]:
        """See `eval.systems.deltamem.open_store`."""
        async with open_store(self._folder, key, self._embedder) as (store, turn_ids):
            yield AgentMemory(self, store, key.owner, turn_ids)

    def facts(self) -> dict[str, Any]:
        """Model, prompts, version, and how many names may be kept."""
        return {
            "model": self.policy.name,
            "embedder": self._embedder.name,
            "vocabulary": len(self.settings.vocabulary),
            "prompt_hashes": {name: load_prompt(name, "papers.episodic.prompts").sha256 for name in PROMPTS},
            "versions": {"deltamem": version("deltamem")},
        }


class AgentMemory:
    """The lessons and episodes of serving one person, in a store of its own.

    The sources of a lesson are the turns that its addition and every update since come from, as far as they are told from
    the others of their episode. An episode names none: it comes from many turns and says little of each, so that naming them
    all would pass for having found them. What was rolled back is no source, and its sessions are not known.
    """

    def __init__(self, system: EpisodicSystem, store: MemoryStore, person: str, turn_ids: TurnIds) -> None:
        """Bind an open store."""
        self._system = system
        self._store = store
        self._person = person
        self._turn_ids = turn_ids
        self._begin()

    def _begin(self) -> None:
        self._agent = EpisodicMemory(self._store, self._person, self._system.policy, self._system.settings)
        self._sources: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._entries: defaultdict[str, list[int]] = defaultdict(list)  # Positions by session
        self._whole: dict[str, frozenset[int]] = {}  # By session and number of an episode the places of its turns
        self._known: dict[str, None] = {}
        self._read = 0
        self._note()

    @property
    def known(self) -> Collection[str]:
        """Ids of the sessions that were read to their end; what of another one was read before a kill is not read again."""
        return self._known.keys()

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Read a session. What a known one did comes from the journal, which does not know its cost.

        Raises:
            DeltaMemError: If this session could not be read or written down.
        """
        if session.id in self._known:
            return await asyncio.to_thread(self._ingested, session.id)
        if not session.turns:
            return Ingested(memories=())
        trajectory, places = as_trajectory(session)
        self._turn_ids.add(session.id, places)
        try:
            done = await self._agent.ingest(trajectory)
        finally:  # stages that were recorded before a failure can be found
            await asyncio.to_thread(self._note)
        usage = done.usage
        if done.outcome is Outcome.UNREADABLE:
            return Ingested(memories=(), violations=dict(done.violations), usage=usage, readable=False)
        ingested = await asyncio.to_thread(self._ingested, session.id)
        return Ingested(ingested.memories, ingested.operations, ingested.violations, usage)

    async def search(self, query: str, k: int) -> list[Passage]:
        """The `k` lessons and episodes most similar to a query."""
        if k < 1 or not query.strip():
            return []
        recalled = await self._agent.recall(query, k, k)
        found = [(one.id, one.line, near) for one, near in recalled.reflections]
        found += [(one.id, one.line, near) for one, near in recalled.episodes]
        state = self._agent.memory.state()
        return [
            Passage(line, state[name].time, tuple(self._sources.get(name, ())), near)
            for name, line, near in sorted(found, key=lambda one: -one[2])[:k]
        ]

    async def reset(self) -> None:
        """Erase the lessons, their journal and index; answers in a response cache stay."""
        if self._read:
            await asyncio.to_thread(self._store.erase_owner, self._agent.owner)
        self._begin()

    def _note(self) -> None:
        """Take note of the entries that the journal got since the last time."""
        for entry in self._journal(self._read):
            self._read = entry.position
            session, stage = split_stage(entry.session_id or "")
            if entry.kind is not EntryKind.SESSION or entry.undone:
                continue
            self._entries[session].append(entry.position)
            if not stage:
                self._known[session] = None
            kind, _, number = stage.partition("-")
            episode = f"{session}#{number}"
            for change in entry.changes:
                if kind == "#episode":
                    self._whole[episode] = frozenset(change.turns)
                elif kind == "#reflections" and change.event in (ChangeEvent.ADD, ChangeEvent.UPDATE):
                    if len(change.turns) > _ONE_TURN and self._whole.get(episode) == frozenset(change.turns):
                        continue
                    self._sources[change.memory_id].update(self._turn_ids.of(session, change.turns))

    def _journal(self, after: int) -> Iterable[Entry]:
        return self._store.bank(self._agent.owner).journal.entries(after)

    def _ingested(self, session: str) -> Ingested:
        """What a session did by all entries about it, those from before an interruption too."""
        journal = self._store.bank(self._agent.owner).journal
        memories, operations, violations = [], Counter[str](), Counter[str]()
        for position in self._entries[session]:
            entry = journal.entry(position)
            violations.update(entry.violations)
            for change in entry.changes:
                line = None if change.after is None else _line(change.after)
                if line is not None:
                    operations[str(change.event)] += 1
                    memories += [line] if change.event in (ChangeEvent.ADD, ChangeEvent.UPDATE) else []
        return Ingested(tuple(memories), operations, violations)


def as_trajectory(session: DialogueSession) -> tuple[AgentTrajectory, tuple[tuple[str, ...], ...]]:
    """A session as the work of an agent, and the ids of the turns at each place of `AgentTrajectory.session`.

    The owner of the memory is the user and the other speaker the agent, also where two people talk. Their names are not
    shown: the roles tell them apart, and no lesson may name them. What the agent says before the user does is a turn
    with an empty message of the user; where it says nothing at all, it gives `NO_REPLY`.

    Raises:
        DeltaMemError: If the id of the session cannot be that of a trajectory.
    """
    messages = [{"role": turn.role, "content": turn.text} for turn in session.turns]
    if not any(turn.role == "assistant" and turn.text.strip() for turn in session.turns):
        messages.append({"role": "assistant", "content": NO_REPLY})
    places: list[list[str]] = []
    for turn in session.turns:
        if turn.role == "user" or not places:
            places += [[], []]
        places[-2 if turn.role == "user" else -1].append(turn.id)
    trajectory = AgentTrajectory.of(session.id, session.time, messages)
    return trajectory, tuple(map(tuple, places))


def _line(memory: Memory) -> str | None:
    """A lesson or an episode as it is shown; None for notes on turns, which are not searched."""
    match kind_of(memory):
        case RecordKind.REFLECTION:
            return Reflection.of(memory).line
        case RecordKind.EPISODE:
            return EpisodeSummary.of(memory).line
    return None


class EpisodicKind(SystemKind):
    """Episodic memory on the manager's model."""

    name = "episodic"
    per_speaker = True
    with_model = True
    packages = ("chromadb",)

    def run_config(self, config: BenchmarkConfig) -> dict[str, Any]:
        """The prompts."""
        return {"episodic_prompts": {name: load_prompt(name, "papers.episodic.prompts").sha256 for name in PROMPTS}}

    def make(self, context: SystemContext) -> EpisodicSystem:
        """It may keep the benchmark's vocabulary: names that are data of no user."""
        names = tuple(dict.fromkeys(context.extra("vocabulary") or ()))
        settings = EpisodicSettings(attempts=context.config.attempts or 2, vocabulary=names)
        return EpisodicSystem(context.policy(), context.embedder, context.folder, settings=settings)

    def calls(self, session: DialogueSession, store: StoreKey, config: BenchmarkConfig) -> Iterator[Calls]:
        """Notes on some turns at a time; for each episode a summary of its turns, and lessons of it and its notes."""
        # Assumed: episodes a session, tokens of a note, of a summary or the lessons, and of what earlier ones are shown.
        most, note, written, earlier = 1.5, 150, 250, 1_200
        prompts = {name: estimate_tokens(load_prompt(name, "papers.episodic.prompts").text) for name in PROMPTS}
        turns = max(1, sum(turn.role == "user" for turn in session.turns))
        batches, episodes, notes = ceil(turns / EpisodicSettings().batch), min(most, turns), turns * note
        yield Calls(batches, batches * prompts[TURNS_PROMPT] + session_tokens(session), notes / batches)
        yield Calls(episodes, episodes * prompts[SUMMARY_PROMPT] + session_tokens(session), written)
        yield Calls(episodes, episodes * (prompts[REFLECTIONS_PROMPT] + written + earlier) + notes, written)


EPISODIC = EpisodicKind()
