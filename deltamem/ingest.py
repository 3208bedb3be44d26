"""Reading one session against an owner's memory: split to the model's window, episodes, checks, one transition."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np

from deltamem.assisted import AssistedConfig, AssistedEpisode, begin_episode
from deltamem.bank.base import Hit, OverlayBank
from deltamem.bank.store import MemoryStore, UserStore
from deltamem.dedup import Corrected, KnownTexts, drop_known, mark_recalled
from deltamem.embedding import Vectors
from deltamem.episode import EpisodeConfig, Trajectory
from deltamem.errors import ContextLengthError
from deltamem.journal.records import Change, ChangeEvent
from deltamem.llm import Usage
from deltamem.memory import NO_METADATA, Event, Memory, MemoryState, Metadata, Operation, apply
from deltamem.own_words import NamedDialogue, OwnWords, keep_supported
from deltamem.policy import MeteredPolicy, Mode, Policy, ScopedPolicy, choose_mode, drive
from deltamem.sessions import Session
from deltamem.text import SourceFinder
from deltamem.window import SMALLEST_PART, SessionPart, divisible, estimate_tokens, halves, split_session


class Outcome(StrEnum):
    """What became of a session that was given to the manager."""

    APPLIED = "applied"
    KNOWN = "known"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Transition:
    """The step from one memory state to the next."""

    owner: str
    session_id: str
    time: datetime
    outcome: Outcome
    """``known``: applied before, which changes nothing. ``unreadable``: no answer of the model could be read; nothing is
    recorded, and the session may be given again."""
    before: MemoryState
    after: MemoryState  # The same as `before` unless applied
    changes: tuple[Change, ...] = ()  # What was recorded, in order
    position: int | None = None  # The journal position of the session; None if it is not in the journal
    violations: Mapping[str, int] = field(default_factory=dict)
    """Departures from the protocol and corrections, counted by name."""
    notes: tuple[str, ...] = ()
    """What the caller should know, as sentences (a split session, other content under a known id)."""
    parts: int = 1  # Into how many episodes the session was split
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0  # Wall time


class AppliedChanges(NamedTuple):
    """The next state, and the changes that lead to it."""

    state: MemoryState
    changes: tuple[Change, ...]


def take_step(
    state: MemoryState,
    operations: Sequence[Operation],
    time: datetime,
    new_ids: Iterator[str],
    turns: Sequence[tuple[int, ...]],
    metadata: Metadata = NO_METADATA,
) -> AppliedChanges:
    """Apply operations, see `deltamem.memory.apply`, and describe what each did to its memory.

    `turns` are for each operation the numbers of its source turns. An UPDATE that repeats the stored text becomes a NONE.

    Raises:
        ValueError: If an operation cannot be applied.
    """
    added = [next(new_ids) for operation in operations if operation.event is Event.ADD]
    after = apply(state, operations, time, new_ids=iter(added), metadata=metadata)
    fresh = iter(added)
    changes = []
    rewritten: dict[str, Memory] = {}  # an answer may both rewrite and repeat one memory
    for operation, sources in zip(operations, turns, strict=True):
        if operation.event is Event.ADD:
            memory_id = next(fresh)
            changes.append(Change(ChangeEvent.ADD, memory_id, None, after[memory_id], sources))
            continue
        target = operation.target_memory_id or ""
        known = rewritten.get(target, state[target])
        if operation.event is Event.UPDATE and known != after[target]:
            rewritten[target] = after[target]
            changes.append(Change(ChangeEvent.UPDATE, target, known, after[target], sources))
        else:
            changes.append(Change(ChangeEvent.NONE, target, known, known, sources))
    return AppliedChanges(after, tuple(changes))


NEIGHBOURS = 3  # Stored memories that an addition is compared with
MOST_DIVISIONS = 2
"""How often a part of a session is divided because an answer was cut, at most: some models never come to an end."""

# Why a session is read in parts
_NO_ROOM = "does not fit the model's window"
_TOO_MUCH = "is too much for one answer of the model"


@dataclass(slots=True)
class SessionReading:
    """The result of reading a session; nothing of it is recorded yet."""

    state: MemoryState
    started_from: int  # The journal position that the session was read against
    changes: list[Change] = field(default_factory=list)
    vectors: dict[str, Vectors] = field(default_factory=dict)  # Of new and changed texts, by memory id
    readable: bool = True  # Whether every part got an answer that could be read
    violations: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    parts: int = 0
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingSettings:
    """How sessions are read."""

    mode: Mode = "auto"  # See `deltamem.policy.choose_mode`
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)  # Of mode ``react``
    assisted: AssistedConfig = field(default_factory=AssistedConfig)  # Of mode ``assisted``
    window_tokens: int | None = None
    """Context window of the model. Longer sessions are split; None: only when the server says that they do not fit."""
    safeguards: bool = True
    """Whether memories quoted in a session are marked, operations that repeat what is known or tell what the person did not
    say are dropped, and answers are read tolerantly and asked for again, those of mode ``react`` that are cut at a token
    limit for each half of what was read. Off: the session is read as in training, so the next state is what the model's own
    operations make of it (paper, section 3.1)."""
    support: float = 0.3
    """Of mode ``react`` with safeguards: share of a memory's words that the person must have said, see
    `deltamem.own_words.keep_supported`; 0 asks for none."""
    attempts: int | None = None
    """How often a session is read when the model's answer cannot be understood; None: twice, without safeguards once."""

    @property
    def tries(self) -> int:
        """The number of attempts that is meant."""
        return self.attempts or (2 if self.safeguards else 1)

    def episode_in(self, mode: Literal["react", "assisted"]) -> EpisodeConfig | AssistedConfig:
        """What shapes the episodes of a mode."""
        return self.assisted if mode == "assisted" else self.episode


@dataclass(slots=True)
class _Course:
    """Where the reading of a session stands."""

    reading: SessionReading
    view: OverlayBank
    known: KnownTexts
    new_ids: Iterator[str]
    reasons: dict[str, None] = field(default_factory=dict)  # Why it was read in parts, in order
    unread: int = 0  # Parts that could not be read


class SessionReader:
    """Reads sessions of one owner."""

    def __init__(self, store: MemoryStore, owned: UserStore, policy: Policy, settings: ReadingSettings) -> None:
        """Bind what a reading needs."""
        self._store = store
        self._owned = owned
        self._policy = policy
        self.mode, self.mode_reason = choose_mode(settings.mode, policy)
        self._episode = settings.episode_in(self.mode)
        self._window_tokens = settings.window_tokens
        self._safeguards, self._support, self._tries = settings.safeguards, settings.support, settings.tries

    @property
    def prompt_hash(self) -> str:
        """sha256 over the hashes of the prompts in use, by their names."""
        hashes = self._episode.prompt_hashes
        return hashlib.sha256("".join(hashes[name] for name in sorted(hashes)).encode("ascii")).hexdigest()

    async def read(self, session: Session) -> SessionReading:
        """Read a session as a whole.

        Raises:
            LLMError: If the model cannot be reached, or the session does not fit however it is split.
        """
        view = OverlayBank(self._owned.bank)
        reading = SessionReading(view.state, view.position)
        course = _Course(reading, view, self._owned.known_texts, self._owned.journal.new_ids())
        parts = self._split(session)
        if len(parts) > 1:
            course.reasons[_NO_ROOM] = None
        for part in parts:
            if not await self._read_part(part, course):
                reading.readable = False
                return reading
        reading.readable = course.unread < reading.parts
        if reading.parts > 1:
            lost = f"; {course.unread} of them could not be read" if course.unread else ""
            reading.notes.append(
                f"the session {' and '.join(course.reasons)} and was read in {reading.parts} parts, all with its time{lost}"
            )
        return reading

    async def _read_part(self, part: SessionPart, course: _Course, divisions: int = 0) -> bool:
        """Read a part, in halves if it does not fit or its answer is cut; `divisions`: how often the latter happened to it.

        Returns:
            Whether to go on. False if it cannot be read, unless it was divided: the rest of what was divided may be read.
        """
        reading = course.reading
        shown, recalled = part.session, 0
        if self._safeguards:
            marked, recalled = mark_recalled(part.session.dialogue, course.known)
            shown = replace(part.session, dialogue=marked)
        may_divide = self._safeguards and divisions < MOST_DIVISIONS and divisible(part)
        fits, trajectory = True, None
        try:
            trajectory = await self._converse(shown, course.view, reading, accept_cut=may_divide)
        except ContextLengthError as error:
            if not divisible(part):
                raise ContextLengthError(
                    f"the model's context window is too small for the prompt and a short session ({error})"
                ) from error.__cause__
            fits = False
        if not fits:  # Out of the handler, so that what fails with a half is not told as a part of this error
            return await self._read_halves(part, course, divisions, _NO_ROOM)
        if trajectory is not None and trajectory.cut and may_divide:
            return await self._read_halves(part, course, divisions + 1, _TOO_MUCH)
        reading.parts += 1
        if recalled:
            reading.violations["recalled_quote"] += recalled
        if trajectory is None:
            course.unread += 1
            return divisions > 0
        await self._follow(trajectory.operations or (), part, course)
        return True

    async def _read_halves(self, part: SessionPart, course: _Course, divisions: int, reason: str) -> bool:
        course.reasons[reason] = None
        for half in halves(part):
            if not await self._read_part(half, course, divisions):
                return False
        return True

    async def _follow(self, answered: tuple[Operation, ...], part: SessionPart, course: _Course) -> None:
        """Take the step that a part was answered with, without what the person did not say and what is known."""
        view, reading = course.view, course.reading
        supported = self._supported(answered, part.session, view.state, course.known)
        vectors, neighbours = await asyncio.to_thread(self._place, supported.operations, view)
        remaining = self._unknown(supported.operations, part.session, course.known, neighbours)
        reading.violations.update({str(name): count for name, count in (supported.notes + remaining.notes).items()})
        finder = SourceFinder(part.session.dialogue, part.session.person_name)
        sources = [_sources(operation, view.state, part, finder) for operation in remaining.operations]
        step = take_step(view.state, remaining.operations, part.session.time, course.new_ids, sources, part.session.metadata)
        fresh = {
            change.memory_id: vectors[change.after.text]
            for change in step.changes
            if change.after is not None and change.after.text in vectors
        }
        view.update(step.state, fresh, view.position)
        course.known = course.known.updated(step.changes)
        reading.state = step.state
        reading.changes += step.changes
        reading.vectors |= fresh

    def _split(self, session: Session) -> list[SessionPart]:
        limits = []
        if isinstance(self._episode, AssistedConfig) and self._episode.part_tokens is not None:
            limits.append(self._episode.part_tokens)
        if self._window_tokens is not None:
            empty = begin_episode(replace(session, dialogue=()), (), self._episode).messages
            room = self._window_tokens - sum(estimate_tokens(message["content"]) for message in empty)
            # Half of what is left belongs to thinking, queries and what the searches return.
            limits.append(room // 2)
        if not limits:
            return [SessionPart(session, tuple(range(1, len(session.dialogue) + 1)))]
        return split_session(session, max(SMALLEST_PART, min(limits)))

    async def _converse(
        self, session: Session, view: OverlayBank, reading: SessionReading, *, accept_cut: bool
    ) -> Trajectory | None:
        """Run the episode; if its answer cannot be read, again, told why. None if none of the answers can be read.

        With `accept_cut` an answer that was cut counts as read: less will be asked for at once.
        """
        problem = ""
        for attempt in range(self._tries):
            asked = self._policy
            if isinstance(asked, ScopedPolicy):
                asked = asked.for_scope(self._owned.owner, attempt)
            policy = MeteredPolicy(asked)
            episode = begin_episode(session, view.state.keys(), self._episode, tolerant=self._safeguards)
            if problem:
                episode.tell(problem)

            async def search(queries: Sequence[str]) -> list[list[Hit]]:
                return await asyncio.to_thread(self._find, queries, view)

            try:
                await drive(episode, policy, search)
            finally:
                reading.usage = reading.usage + policy.usage + Usage(searches=len(episode.trajectory.queries))
            trajectory = episode.trajectory
            reading.violations.update(str(violation) for violation in trajectory.violations)
            if isinstance(episode, AssistedEpisode):
                reading.violations.update({str(reason): times for reason, times in episode.adjustments.items()})
            if trajectory.operations is not None or (trajectory.cut and accept_cut):
                return trajectory
            problem = episode.problem
        return None

    def _supported(
        self, operations: tuple[Operation, ...], said: Session, state: MemoryState, known: KnownTexts
    ) -> Corrected:
        """What the person said; an assisted episode has looked before it compared facts."""
        if not self._safeguards or self.mode == "assisted":
            return Corrected(operations, Counter())

        def stored(text: str) -> bool:
            """Whether a memory has a text, or had it."""
            return bool(known.ids(text)) or self._owned.journal.text_owner(text) is not None

        return keep_supported(operations, OwnWords(NamedDialogue.of(said)), self._support, state, stored)

    def _unknown(
        self, operations: tuple[Operation, ...], said: Session, known: KnownTexts, neighbours: Mapping[int, list[Hit]]
    ) -> Corrected:
        """What is not known yet; `neighbours` are the memories nearest to each addition, by its index."""
        if not self._safeguards:
            return Corrected(operations, Counter())
        return drop_known(
            operations,
            known=known,
            neighbours=neighbours,
            dialogue=said.dialogue,
            person_name=said.person_name,
            earlier_text=self._owned.journal.text_owner,
        )

    # In a thread, both: the embedding model computes, and a bank may ask a server.

    def _find(self, queries: Sequence[str], view: OverlayBank) -> list[list[Hit]]:
        return view.search(self._store.embedder.queries(queries), self._episode.k)

    def _place(self, operations: Sequence[Operation], view: OverlayBank) -> tuple[dict[str, Vectors], dict[int, list[Hit]]]:
        """The vectors of the texts to write, and for `drop_known` by index of each addition the memories nearest to it."""
        texts = [operation.text for operation in operations if operation.event is not Event.NONE]
        if not texts:
            return {}, {}
        vectors = dict(zip(texts, self._store.embedder.documents(texts), strict=True))
        additions = [index for index, operation in enumerate(operations) if operation.event is Event.ADD]
        if not additions or not self._safeguards:
            return vectors, {}
        rows = np.stack([vectors[operations[index].text] for index in additions])
        return vectors, dict(zip(additions, view.search(rows, NEIGHBOURS), strict=True))


def _sources(operation: Operation, state: MemoryState, part: SessionPart, finder: SourceFinder) -> tuple[int, ...]:
    """The source turns of an operation, as numbers of the whole session."""
    stored = state[operation.target_memory_id].text if operation.target_memory_id else ""
    text, before = (stored, "") if operation.event is Event.NONE else (operation.text, stored)
    return tuple(sorted({part.turn_numbers[number - 1] for number in finder.turns(text, before)}))
