"""An agent's episodic memory: trajectories become episodes, episodes become reflections, a task recalls both."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from deltamem.bank.base import Hit, stale_ids
from deltamem.bank.store import MemoryStore, UserStore
from deltamem.embedding import Embedder
from deltamem.episode import Message
from deltamem.errors import ContextLengthError, DeltaMemError
from deltamem.ingest import Outcome
from deltamem.journal.records import Change, ChangeEvent, digest_of
from deltamem.llm import Usage
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.memory import Memory, MemoryState
from deltamem.policy import Policy, ScopedPolicy
from deltamem.prompts import load_prompt
from deltamem.sessions import Turn
from deltamem.text import SourceFinder
from papers.episodic.personal import PersonalData
from papers.episodic.reading import (
    MAX_FIELD,
    PROMPTS,
    REFLECTIONS_PROMPT,
    SUMMARY_PROMPT,
    TURNS_PROMPT,
    EpisodicViolation,
    Operation,
    read_reflections,
    read_summary,
    read_turns,
)
from papers.episodic.records import (
    AgentTrajectory,
    AgentTurn,
    EpisodeSummary,
    Kind,
    Reflection,
    TurnAnalysis,
    agent_owner,
    kind_of,
)

_LEAST_CHARACTERS = 200
"""What is shown of a step even in the smallest window."""

Read = TypeVar("Read")
Reader = Callable[[str], tuple[Read | None, list[EpisodicViolation]]]
"""Reads an answer; what was understood, and what is wrong with it."""
Masked = TypeVar("Masked", TurnAnalysis, EpisodeSummary)


@dataclass(frozen=True, slots=True)
class EpisodicSettings:
    """How an agent's trajectories are read."""

    batch: int = 6
    """Turns that the model reviews at once."""
    before: int = 3
    """Reviewed turns that are shown before them."""
    step_characters: int = 2000
    """What is shown of one message or tool result. Less, and fewer turns at once, where the model's window is too small."""
    similar: int = 3
    """Earlier episodes that are shown when reflections are made."""
    known: int = 5
    """Kept reflections that are shown, and can be updated."""
    attempts: int = 2
    """How often the model is asked when its answer cannot be understood."""
    keep_turns: bool = False
    """Whether the journal keeps what was said, so that `blame` of a reflection quotes it. Not by default: an agent's
    lessons outlive the people whom it served, and hold nothing of them."""
    vocabulary: tuple[str, ...] = ()
    """Names that are part of the agent's work, such as products; they are not taken for names of users."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What became of a trajectory."""

    trajectory: str
    outcome: Outcome
    """``unreadable``: the model's answers could not be understood at some stage. What was read before that is kept, and the
    trajectory may be given again, which goes on there."""
    episodes: tuple[EpisodeSummary, ...] = ()
    changes: tuple[Change, ...] = ()
    """Of the reflections, by this call."""
    violations: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    """Of this call."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """What an agent remembers for a task, the most similar first, each with its similarity."""

    reflections: tuple[tuple[Reflection, float], ...]
    episodes: tuple[tuple[EpisodeSummary, float], ...]

    @property
    def text(self) -> str:
        """For a prompt: the lessons, then how similar episodes went. Empty if there is nothing."""
        lines = [one.line for one, _ in self.reflections] + [one.line for one, _ in self.episodes]
        return "\n".join(f"- {line}" for line in lines)


@dataclass(slots=True)
class _Reading:
    """One call of `ingest`, as far as it is."""

    trajectory: AgentTrajectory
    personal: PersonalData
    violations: Counter[str] = field(default_factory=Counter)
    stage: Counter[str] = field(default_factory=Counter)
    """Violations that are not in the journal yet."""
    episodes: list[EpisodeSummary] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    def note(self, violations: Sequence[EpisodicViolation]) -> None:
        counted = Counter(map(str, violations))
        self.violations += counted
        self.stage += counted

    def masked(self, record: Masked, *names: str) -> Masked:
        """A record without data of the user in some of its fields."""
        clean: dict[str, Any] = {}
        for name in names:
            clean[name], count = self.personal.mask(getattr(record, name))
            self.note([EpisodicViolation.MASKED_DATA] * count)
        return replace(record, **clean)


class EpisodicMemory:
    """What one agent has learned.

    Its journal is that of the owner ``agent:NAME``, and everything that holds for memories holds for its turns, episodes and
    reflections: see `memory`.
    """

    def __init__(self, store: MemoryStore, agent: str, policy: Policy, settings: EpisodicSettings | None = None) -> None:
        """Bind a store, an agent and the model that reviews its work.

        Args:
            store: Holds the journal and the bank.
            agent: The agent's name, with or without ``agent:``.
            policy: The language model.
            settings: How trajectories are read.

        Raises:
            DeltaMemError: If the name is empty or the bank cannot be opened.
        """
        self.owner = agent_owner(agent)
        self.settings = settings or EpisodicSettings()
        self.memory = MemoryManager(store, self.owner, policy, ManagerSettings())
        """For history, blame, diff, rollback, forget, export and edits. Not for `ingest`, which reads people's sessions."""
        self._policy = policy
        self._store = store
        self._owned = store.bank(self.owner)

    async def ingest(self, trajectory: AgentTrajectory) -> Ingested:
        """Review a trajectory: analyse its turns, find its episodes, sum each up, and learn from it.

        Every stage is recorded when it is done: the notes of some turns, the summary of an episode, the reflections of an
        episode. So a call that was interrupted, whatever by, is simply repeated, and no answer of the model is asked for
        twice. A trajectory that is done changes nothing.

        Raises:
            LLMError: If the model cannot be reached; the stages before are recorded.
            DeltaMemError: If the trajectory has begun under this id with other content.
        """
        async with self._owned.turn():
            done = trajectory.session("", self.owner)
            if self._owned.journal.session_position(done.id) is not None:
                other = self._owned.journal.session_digest(done.id) != digest_of(done)
                said = f"trajectory {done.id!r} was ingested before with other content; nothing was changed"
                return Ingested(done.id, Outcome.KNOWN, notes=(said,) * other)
            personal = await asyncio.to_thread(PersonalData, trajectory, self.settings.vocabulary)
            reading = _Reading(trajectory, personal)
            readable = await self._read(reading)
            if readable:
                await self._record(reading, "", [], [])
            return Ingested(
                trajectory.id,
                Outcome.APPLIED if readable else Outcome.UNREADABLE,
                tuple(reading.episodes),
                tuple(reading.changes),
                dict(reading.violations),
                usage=reading.usage,
            )

    async def recall(self, task: str, k: int = 5, episodes: int = 3) -> Recalled:
        """What helps with a task.

        Args:
            task: What is to be done, in any words.
            k: How many reflections at most.
            episodes: How many similar episodes at most.

        Raises:
            DeltaMemError: If the task is empty.
        """
        return await asyncio.to_thread(recall, self._owned, self._store.embedder, task, k, episodes)

    def reflections(self) -> list[Reflection]:
        """All reflections, in the order of their ids."""
        return reflections_of(self.memory.state())

    def episodes(self) -> list[EpisodeSummary]:
        """All episodes, in the order of their ids."""
        return episodes_of(self.memory.state())

    async def _read(self, reading: _Reading) -> bool:
        turns = await self._turns(reading)
        if turns is None:
            return False
        for number, (first, last) in enumerate(boundaries(turns), start=1):
            part = turns[first - 1 : last]
            summary = await self._summary(reading, number, part)
            if summary is None:
                return False
            reading.episodes.append(summary)
            if not await self._reflect(reading, number, summary, part):
                return False
        return True

    async def _turns(self, reading: _Reading) -> list[TurnAnalysis] | None:
        """The notes on every turn: those that are recorded, and the others from the model."""
        trajectory, batch, limit = reading.trajectory, self.settings.batch, self.settings.step_characters
        found: list[TurnAnalysis] = []
        while len(found) < len(trajectory.turns):
            first = len(found) + 1
            if known := self._recorded(reading, f"#turns-{first}", Kind.TURN):
                found += map(TurnAnalysis.of, known)
                continue
            numbers = range(first, min(first + batch, len(trajectory.turns) + 1))
            asked = self._conversation(trajectory, numbers, limit)

            def read(text: str, numbers: range = numbers) -> tuple[list[TurnAnalysis] | None, list[EpisodicViolation]]:
                return read_turns(text, numbers)

            try:
                answered = await self._ask(reading, TURNS_PROMPT, asked, read)
            except ContextLengthError:
                if len(numbers) > 1:
                    batch = len(numbers) // 2
                elif limit > _LEAST_CHARACTERS:
                    limit //= 2
                else:
                    raise
                continue
            if answered is None:
                return None
            names = ("situation", "intent", "action", "thought", "achieved_why", "ended_why")
            clean = [reading.masked(one, *names) for one in answered]
            await self._record(
                reading, f"#turns-{first}", [(one, None) for one in clean], [_dialogue_turns(one.turn) for one in clean]
            )
            found += clean
        return found

    async def _summary(self, reading: _Reading, number: int, turns: Sequence[TurnAnalysis]) -> EpisodeSummary | None:
        stage = f"#episode-{number}"
        if known := self._recorded(reading, stage, Kind.EPISODE):
            return EpisodeSummary.of(known[0])
        first, last = turns[0].turn, turns[-1].turn
        answered = await self._ask_of(turns, reading, SUMMARY_PROMPT, str, lambda text: read_summary(text, first, last))
        if answered is None:
            return None
        clean = reading.masked(answered, "situation", "intent", "justification", "reflection")
        sources = tuple(place for turn in turns for place in _dialogue_turns(turn.turn))
        (change,) = await self._record(reading, stage, [(clean, None)], [sources])
        return EpisodeSummary.of(change.after) if change.after is not None else None

    async def _reflect(self, reading: _Reading, number: int, summary: EpisodeSummary, turns: Sequence[TurnAnalysis]) -> bool:
        """Make the reflections of an episode, if that is not done; whether the answer could be understood."""
        stage = f"#reflections-{number}"
        if self._owned.journal.session_position(reading.trajectory.id + stage) is not None:
            return True
        about = f"{summary.intent} {summary.situation} {summary.reflection}"
        similar = await self._similar(about, Kind.EPISODE, self.settings.similar + 1)
        hits = await self._similar(about, Kind.REFLECTION, self.settings.known)
        shown = {hit.memory.id: Reflection.of(hit.memory) for hit in hits}
        others = [one for one in (EpisodeSummary.of(hit.memory) for hit in similar) if one.id != summary.id]
        beside = (
            _tag("similar_episodes", "".join(_episode(one) for one in others[: self.settings.similar])),
            _tag("kept_reflections", "".join(_kept(one) for one in shown.values())),
        )
        kept = self.reflections()

        def read(text: str) -> tuple[list[Operation] | None, list[EpisodicViolation]]:
            return read_reflections(text, shown, reading.personal.find, kept)

        def asked(notes: str) -> str:
            return "".join((_tag("main_episode", _episode(summary) + notes), *beside))

        answered = await self._ask_of(turns, reading, REFLECTIONS_PROMPT, asked, read)
        if answered is None:
            return False
        # Of the notes and not of what was said: they are in the words that lessons are made of.
        finder = SourceFinder([Turn("assistant", f"{one.action} {one.thought} {one.achieved_why}") for one in turns], "")
        sources = []
        for operation in answered:
            of = finder.turns(operation.reflection.text, shown[operation.target].text if operation.target else "")
            chosen = [turns[place - 1] for place in of] or turns
            sources.append(tuple(place for turn in chosen for place in _dialogue_turns(turn.turn)))
        changes = await self._record(
            reading, stage, [(one.reflection, one.target) for one in answered], sources, keep=self.settings.keep_turns
        )
        reading.changes += changes
        return True

    def _recorded(self, reading: _Reading, stage: str, kind: Kind) -> list[Memory]:
        """What a stage of this trajectory has recorded; empty if it is to be done.

        Raises:
            DeltaMemError: If it was recorded for other content, or somebody has taken away what it recorded.
        """
        journal, session = self._owned.journal, reading.trajectory.session(stage, self.owner)
        position = journal.session_position(session.id)
        if position is None:
            return []
        if journal.session_digest(session.id) != digest_of(session):
            raise DeltaMemError(f"trajectory {reading.trajectory.id!r} has begun with other content; give it another id")
        state = self._owned.bank.state
        ids = [change.memory_id for change in journal.entry(position).changes if change.event is ChangeEvent.ADD]
        kept = [state[one] for one in ids if one in state and kind_of(state[one]) is kind]
        if len(kept) < len(ids) or not kept:
            raise DeltaMemError(
                f"what was noted of trajectory {reading.trajectory.id!r} was taken away before it was finished; roll back to"
                f" before @{position} to read it again"
            )
        return kept

    async def _record(
        self,
        reading: _Reading,
        stage: str,
        records: Sequence[tuple[TurnAnalysis | EpisodeSummary | Reflection, str | None]],
        sources: Sequence[tuple[int, ...]],
        *,
        keep: bool = False,
    ) -> list[Change]:
        """Write what a stage gave as one entry of the journal: new memories, or new versions of those that are named."""

        def write() -> list[Change]:
            with self._owned.writing():
                before, new = self._owned.bank.state, self._owned.journal.new_ids()
                memories = dict(before.items())
                changes = []
                for (record, target), turns in zip(records, sources, strict=True):
                    after = record.memory(target or next(new), reading.trajectory)
                    known = memories.get(after.id) if target else None
                    if target and known is None:  # retracted since it was shown
                        reading.note([EpisodicViolation.UNKNOWN_ID])
                        continue
                    unchanged = known is not None and Reflection.of(known) == record
                    event = ChangeEvent.NONE if unchanged else ChangeEvent.ADD if known is None else ChangeEvent.UPDATE
                    kept = known if unchanged and known is not None else after
                    memories[after.id] = kept
                    changes.append(Change(event, after.id, known, kept, turns))
                state = MemoryState(memories.values())
                stale = stale_ids(before, state)
                vectors = [*self._store.embedder.documents([state[one].text for one in stale])] if stale else []
                violations, reading.stage = dict(reading.stage), Counter()
                self._owned.commit(
                    reading.trajectory.session(stage, self.owner),
                    changes,
                    state,
                    dict(zip(stale, vectors, strict=True)),
                    started_from=self._owned.bank.position,
                    model=self._policy.name,
                    prompt_hash=_PROMPT_HASH,
                    violations=violations,
                    keep_dialogue=keep,
                )
                return changes

        return await asyncio.to_thread(write)

    async def _ask(self, reading: _Reading, prompt: str, asked: str, read: Reader[Read]) -> Read | None:
        """Let the model answer, again if the answer cannot be understood; None if none can."""
        messages = [
            Message(role="system", content=load_prompt(prompt, "papers.episodic.prompts").text),
            Message(role="user", content=asked),
        ]
        for attempt in range(self.settings.attempts):
            policy = self._policy
            if isinstance(policy, ScopedPolicy):
                policy = policy.for_scope(self.owner, attempt)
            completion = await policy.complete(messages)
            reading.usage += completion.usage
            if completion.truncated:  # what is cut off may have been what matters
                reading.note([EpisodicViolation.TOKEN_LIMIT])
                continue
            result, violations = read(completion.text)
            reading.note(violations)
            if result is not None:
                return result
        return None

    async def _ask_of(
        self,
        turns: Sequence[TurnAnalysis],
        reading: _Reading,
        prompt: str,
        asked: Callable[[str], str],
        read: Reader[Read],
    ) -> Read | None:
        """`_ask` about the notes on an episode, with less of them where the model's window is too small."""
        most, limit = len(turns), MAX_FIELD
        while True:
            try:
                return await self._ask(reading, prompt, asked(_notes(turns, most, limit)), read)
            except ContextLengthError:
                if limit > _LEAST_CHARACTERS:
                    limit = _LEAST_CHARACTERS
                elif most > 1:
                    most //= 2
                else:
                    raise

    async def _similar(self, text: str, kind: Kind, k: int) -> list[Hit]:
        return await self.memory.search(text, k, {"kind": str(kind)}) if k > 0 else []

    def _conversation(self, trajectory: AgentTrajectory, numbers: range, limit: int) -> str:
        """The turns as the model reads them, with those before and the message after."""
        earlier = range(max(1, numbers.start - self.settings.before), numbers.start)
        shown = [_turn(number, trajectory.turns[number - 1], limit) for number in (*earlier, *numbers)]
        parts = [_tag("earlier_turns", "".join(shown[: len(earlier)]))] if earlier else []
        parts.append(_tag("turns", "".join(shown[len(earlier) :])))
        if numbers.stop <= len(trajectory.turns):
            parts.append(_tag("next_message", _cut(trajectory.turns[numbers.stop - 1].user, limit)))
        return "".join(parts)


def recall(owned: UserStore, embedder: Embedder, task: str, k: int, episodes: int) -> Recalled:
    """`EpisodicMemory.recall` for who has the agent's bank only."""
    if not task.strip():
        raise DeltaMemError("the task is empty; say what is to be done")
    found = {
        kind: owned.search(embedder.queries, [task], count, {"kind": str(kind)})[0] if count > 0 else []
        for kind, count in ((Kind.REFLECTION, k), (Kind.EPISODE, episodes))
    }
    return Recalled(
        tuple((Reflection.of(hit.memory), float(hit.similarity)) for hit in found[Kind.REFLECTION]),
        tuple((EpisodeSummary.of(hit.memory), float(hit.similarity)) for hit in found[Kind.EPISODE]),
    )


def boundaries(turns: Sequence[TurnAnalysis]) -> list[tuple[int, int]]:
    """The first and last turn of each episode: one ends where the user's matter did, the last one with the trajectory."""
    ends = [turn.turn for turn in turns if turn.ended or turn is turns[-1]]
    return [(begin + 1, end) for begin, end in zip([0, *ends], ends, strict=False)]


def reflections_of(state: MemoryState) -> list[Reflection]:
    """The reflections of a memory state."""
    return [Reflection.of(memory) for memory in state.memories if kind_of(memory) is Kind.REFLECTION]


def episodes_of(state: MemoryState) -> list[EpisodeSummary]:
    """The episodes of a memory state."""
    return [EpisodeSummary.of(memory) for memory in state.memories if kind_of(memory) is Kind.EPISODE]


def turns_of(state: MemoryState, episode: EpisodeSummary) -> list[TurnAnalysis]:
    """The notes on the turns of an episode, as far as a memory state holds them."""
    found = [
        TurnAnalysis.of(memory)
        for memory in state.memories
        if kind_of(memory) is Kind.TURN and memory.metadata.get("trajectory") == episode.trajectory
    ]
    return [turn for turn in found if episode.first <= turn.turn <= episode.last]


_PROMPT_HASH = hashlib.sha256(
    "".join(load_prompt(name, "papers.episodic.prompts").sha256 for name in PROMPTS).encode("ascii")
).hexdigest()


def _dialogue_turns(number: int) -> tuple[int, int]:
    """A turn of a trajectory as turns of its session, see `AgentTrajectory.session`."""
    return 2 * number - 1, 2 * number


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text) - limit} characters left out)"


def _safe(text: str) -> str:
    """A text that cannot pose as a tag of the prompt, or as a control mark of a chat server."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _tag(name: str, body: str) -> str:
    return f"<{name}>\n{body}</{name}>\n"


def _line(name: str, text: str) -> str:
    # Further lines are indented, or a user could write "result: confirmed" on one of their own.
    lines = _safe(text).splitlines()
    return f"{name}: " + "\n  ".join(lines) + "\n"


def _turn(number: int, turn: AgentTurn, limit: int) -> str:
    steps = [_line(step.kind, _cut(step.text, limit)) for step in turn.steps]
    return _tag(f"turn_{number}", _line("user", _cut(turn.user, limit)) + "".join(steps))


def _notes(turns: Sequence[TurnAnalysis], most: int, limit: int) -> str:
    """The notes on an episode: of its first and last turns, if they are more than so many."""
    names = ("situation", "intent", "action", "thought")
    written = [
        _tag(
            f"turn_{turn.turn}",
            "".join(_line(name, _cut(getattr(turn, name), limit)) for name in names)
            + _line("done", f"{'Yes' if turn.achieved else 'No'} {_cut(turn.achieved_why, limit)}"),
        )
        for turn in turns
    ]
    if (left := len(written) - most) > 0:
        written[most // 2 : most // 2 + left] = [f"({left} turns left out)\n"]
    return "".join(written)


def _episode(summary: EpisodeSummary) -> str:
    names = ("situation", "intent", "justification", "reflection")
    lines = "".join(_line(name, getattr(summary, name)) for name in names)
    return _tag("episode", lines + _line("succeeded", "Yes" if summary.achieved else "No"))


def _kept(one: Reflection) -> str:
    names = ("id", "title", "use_cases", "hints")
    return _tag("kept", "".join(_line(name, getattr(one, name)) for name in names) + f"confidence: {one.confidence:.1f}\n")
