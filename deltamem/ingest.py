"""Reading one session against an owner's memory: split to the model's window, episodes, checks, one transition."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from deltamem.bank.base import Hit, OverlayBank, merge_hits
from deltamem.bank.store import MemoryStore, UserStore
from deltamem.dedup import drop_known, mark_recalled
from deltamem.embedding import Vectors
from deltamem.episode import Episode, EpisodeConfig, Trajectory, opening_messages
from deltamem.errors import ContextLengthError
from deltamem.journal.records import Change, ChangeEvent
from deltamem.memory import NO_METADATA, Event, Memory, MemoryState, Metadata, Operation, apply
from deltamem.policy import Completion, MeteredPolicy, Policy, ScopedPolicy, drive
from deltamem.sessions import Session, Turn, format_dialogue
from deltamem.text import SourceFinder

BYTES_PER_TOKEN = 3
LEAST_LIMIT = 32
"""Smallest limit, in tokens: a turn's role and at least some words of it must fit."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")  # noqa: RUF001 - full-width marks are meant
_WORD_END = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class SessionPart:
    """One part of a session: some of its turns, with their numbers in the whole session, from 1."""

    session: Session
    turn_numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A turn or a part of one, with its number in the session and its size in tokens."""

    turn: Turn
    number: int
    tokens: int


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens a text has: its UTF-8 bytes divided by 3, rounded up.

    No tokenizer is asked: behind an endpoint it is not known which one counts, and loading one would cost seconds and a
    heavy dependency. English has about 4 bytes a token, so the estimate is on the safe side; Chinese, Japanese and Korean
    characters have 3 bytes and about one token.
    """
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN)


def split_session(session: Session, limit_tokens: int) -> list[SessionPart]:
    """Split a session into as few parts as possible, of about equal size, that fit a limit.

    Parts follow each other without overlap. A user turn stays with the answer that follows it unless both together are
    above the limit. A turn that is longer than the limit is cut at the end of a sentence, else between words, else
    anywhere, into several turns of the same role.

    Args:
        session: The session.
        limit_tokens: What the dialogue of a part may have at most, by `estimate_tokens` of `format_dialogue`.

    Returns:
        The parts, each with the session's own id, time and person; the session itself if it fits.

    Raises:
        ValueError: If the limit is below `LEAST_LIMIT`.
    """
    if limit_tokens < LEAST_LIMIT:
        raise ValueError(f"limit_tokens must be at least {LEAST_LIMIT}, not {limit_tokens}")
    if estimate_tokens(format_dialogue(session.dialogue)) <= limit_tokens:
        return [SessionPart(session, tuple(range(1, len(session.dialogue) + 1)))]
    pieces = [
        _Piece(turn, number, _tokens(turn))
        for number, whole in enumerate(session.dialogue, start=1)
        for turn in _cut(whole, limit_tokens)
    ]
    return [
        SessionPart(
            replace(session, dialogue=tuple(piece.turn for group in part for piece in group)),
            tuple(piece.number for group in part for piece in group),
        )
        for part in _balanced(_groups(pieces, limit_tokens), limit_tokens)
    ]


def _tokens(turn: Turn) -> int:
    """Size of a turn within a dialogue, with its line end. Rounded up for each turn, so that sums are never too small."""
    return estimate_tokens(format_dialogue([turn]) + "\n")


_Group = list[_Piece]


def _groups(pieces: Sequence[_Piece], limit: int) -> list[_Group]:
    """Join each user turn with the answer that directly follows it, where both fit."""
    groups: list[_Group] = []
    for piece in pieces:
        previous = groups[-1][-1] if groups else None
        if (
            previous is not None
            and (previous.turn.role, piece.turn.role) == ("user", "assistant")
            and previous.tokens + piece.tokens <= limit
        ):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups


def _balanced(groups: Sequence[_Group], limit: int) -> list[list[_Group]]:
    """Put consecutive groups into the fewest parts and, among those ways, the one whose parts are most equal in size."""
    sizes = [sum(piece.tokens for piece in group) for group in groups]
    # For each number of leading groups: parts, sum of their squared sizes, and where the last part begins.
    best: list[tuple[int, int, int]] = [(0, 0, 0)]
    for end in range(1, len(sizes) + 1):
        options = []
        total = 0
        for start in range(end - 1, -1, -1):
            total += sizes[start]
            if total > limit:
                break
            options.append((best[start][0] + 1, best[start][1] + total * total, start))
        best.append(min(options))
    parts: list[list[_Group]] = []
    end = len(sizes)
    while end:
        start = best[end][2]
        parts.append(list(groups[start:end]))
        end = start
    return parts[::-1]


def _cut(turn: Turn, limit: int) -> list[Turn]:
    """Cut a turn into turns that fit, of about equal size."""
    total = _tokens(turn)
    if total <= limit:
        return [turn]
    best = list(_cut_within(turn, limit))
    # Smaller pieces of more equal size, as long as there are not more of them.
    overhead = _tokens(replace(turn, content="")) + 1
    smallest = math.ceil(total / len(best)) + overhead
    for target in range(smallest, limit, max(1, (limit - smallest) // 4)):
        pieces = list(_cut_within(turn, max(target, LEAST_LIMIT)))
        if len(pieces) <= len(best):
            return pieces
    return best


def _cut_within(turn: Turn, limit: int) -> Iterator[Turn]:
    rest = turn.content
    while rest:
        # At least one byte a character, so no more characters than bytes can fit.
        window = rest[: limit * BYTES_PER_TOKEN]
        fits = _longest_prefix(replace(turn, content=window), limit)
        end = fits if fits == len(rest) else _boundary(window[:fits])
        yield replace(turn, content=rest[:end])
        rest = rest[end:]


def _longest_prefix(turn: Turn, limit: int) -> int:
    """How many characters of a turn fit, by bisection: a longer prefix never has fewer tokens."""
    low, high = 1, len(turn.content)
    while low < high:
        middle = (low + high + 1) // 2
        if _tokens(replace(turn, content=turn.content[:middle])) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _boundary(text: str) -> int:
    """Where to cut a text that goes on: the last end of a sentence or else of a word in its second half, else its end."""
    for pattern in (_SENTENCE_END, _WORD_END):
        ends = [match.end() for match in pattern.finditer(text, len(text) // 2)]
        if ends:
            return ends[-1]
    return len(text)


class Outcome(StrEnum):
    """What became of a session that was given to the manager."""

    APPLIED = "applied"
    KNOWN = "known"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a session cost. Tokens are counted by the server; 0 if it reports none."""

    calls: int = 0
    cached: int = 0
    """Calls that the response cache answered."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    searches: int = 0


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
    after: MemoryState
    """The same as `before` unless applied."""
    changes: tuple[Change, ...] = ()
    """What was recorded, in order."""
    position: int | None = None
    """The journal position of the session; None if it is not in the journal."""
    violations: Mapping[str, int] = field(default_factory=dict)
    """Departures from the protocol and corrections, counted by name."""
    notes: tuple[str, ...] = ()
    """What the caller should know, as sentences (a split session, other content under a known id)."""
    parts: int = 1
    """Into how many episodes the session was split."""
    usage: Usage = Usage()
    seconds: float = 0.0
    """Wall time."""


class Step(NamedTuple):
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
) -> Step:
    """Apply operations and describe what they did to each memory.

    Args:
        state: The prior state.
        operations: Valid operations (see `deltamem.memory.check`).
        time: The session's time.
        new_ids: Ids for the added memories.
        turns: For each operation the numbers of its source turns.
        metadata: Of the session, see `deltamem.memory.apply`.

    Returns:
        The next state, and one change an operation. An UPDATE that repeats the stored text is recorded as NONE.

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
    return Step(after, tuple(changes))


SMALLEST_PART = 128
"""Tokens. A part this small that still does not fit means that the window is too small for the prompt itself."""
NEIGHBOURS = 3
"""Stored memories that an addition is compared with."""


@dataclass(slots=True)
class Reading:
    """The result of reading a session; nothing of it is recorded yet."""

    state: MemoryState
    started_from: int
    """The journal position that the session was read against."""
    changes: list[Change] = field(default_factory=list)
    vectors: dict[str, Vectors] = field(default_factory=dict)
    """Of new and changed texts, by memory id."""
    readable: bool = True
    """Whether every part got an answer that could be read."""
    violations: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    parts: int = 0
    usage: Usage = field(default_factory=Usage)


class SessionReader:
    """Reads sessions of one owner."""

    def __init__(
        self,
        store: MemoryStore,
        owned: UserStore,
        policy: Policy,
        episode: EpisodeConfig,
        *,
        window_tokens: int | None,
        attempts: int,
    ) -> None:
        """Bind what a reading needs; see `deltamem.manager.ManagerSettings` for the numbers."""
        self._store = store
        self._owned = owned
        self._policy = policy
        self._episode = episode
        self._window_tokens = window_tokens
        self._attempts = attempts

    async def read(self, session: Session) -> Reading:
        """Read a session as a whole.

        Raises:
            LLMError: If the model cannot be reached, or the session does not fit however it is split.
        """
        view = OverlayBank(self._owned.bank)
        reading = Reading(view.state, view.position)
        known = self._owned.known_texts
        new_ids = self._owned.journal.new_ids()
        waiting = deque(self._split(session))
        while waiting:
            part = waiting.popleft()
            marked, recalled = mark_recalled(part.session.dialogue, known)
            if recalled:
                reading.violations["recalled_quote"] += recalled
            try:
                trajectory = await self._converse(replace(part.session, dialogue=marked), view, reading)
            except ContextLengthError:
                waiting.extendleft(reversed(_halves(part)))
                continue
            reading.parts += 1
            if trajectory is None:
                reading.readable = False
                return reading
            operations = trajectory.operations or ()
            vectors, neighbours = await asyncio.to_thread(self._place, operations, view)
            remaining = drop_known(
                operations,
                known=known,
                neighbours=neighbours,
                dialogue=part.session.dialogue,
                person_name=session.person_name,
                earlier_text=self._owned.journal.text_owner,
            )
            reading.violations.update({str(name): count for name, count in remaining.notes.items()})
            finder = SourceFinder(part.session.dialogue, session.person_name)
            sources = [_sources(operation, view.state, part, finder) for operation in remaining.operations]
            step = take_step(view.state, remaining.operations, session.time, new_ids, sources, session.metadata)
            fresh = {
                change.memory_id: vectors[change.after.text]
                for change in step.changes
                if change.after is not None and change.after.text in vectors
            }
            view.update(step.state, fresh, view.position)
            known = known.updated(step.changes)
            reading.state = step.state
            reading.changes += step.changes
            reading.vectors |= fresh
        if reading.parts > 1:
            reading.notes.append(
                f"the session does not fit the model's window and was read in {reading.parts} parts, all with its time"
            )
        return reading

    def _split(self, session: Session) -> list[SessionPart]:
        if self._window_tokens is None:
            return [SessionPart(session, tuple(range(1, len(session.dialogue) + 1)))]
        empty = opening_messages(replace(session, dialogue=()), self._episode)
        room = self._window_tokens - sum(estimate_tokens(message["content"]) for message in empty)
        # Half of what is left belongs to thinking, queries and what the searches return.
        return split_session(session, max(SMALLEST_PART, room // 2))

    async def _converse(self, session: Session, view: OverlayBank, reading: Reading) -> Trajectory | None:
        """Run the episode; again if its answer cannot be read. None if none of the answers can."""
        for attempt in range(self._attempts):
            policy = MeteredPolicy(self._for_attempt(attempt))
            episode = Episode(session, view.state.keys(), self._episode)

            async def search(queries: Sequence[str]) -> list[Memory]:
                return await asyncio.to_thread(self._find, queries, view)

            try:
                await drive(episode, policy, search)
            finally:
                reading.usage = _added(reading.usage, policy.completions, len(episode.trajectory.queries))
            trajectory = episode.trajectory
            reading.violations.update(str(violation) for violation in trajectory.violations)
            if trajectory.operations is not None:
                return trajectory
        return None

    def _for_attempt(self, attempt: int) -> Policy:
        if isinstance(self._policy, ScopedPolicy):
            return self._policy.for_scope(self._owned.owner, attempt)
        return self._policy

    # In a thread, both: the embedding model computes, and a bank may ask a server.

    def _find(self, queries: Sequence[str], view: OverlayBank) -> list[Memory]:
        return merge_hits(view.search(self._store.embedder.queries(queries), self._episode.k))

    def _place(self, operations: Sequence[Operation], view: OverlayBank) -> tuple[dict[str, Vectors], dict[int, list[Hit]]]:
        """The vectors of the texts to write, and by index of each addition the stored memories nearest to it."""
        texts = [operation.text for operation in operations if operation.event is not Event.NONE]
        if not texts:
            return {}, {}
        vectors = dict(zip(texts, self._store.embedder.documents(texts), strict=True))
        additions = [index for index, operation in enumerate(operations) if operation.event is Event.ADD]
        if not additions:
            return vectors, {}
        rows = np.stack([vectors[operations[index].text] for index in additions])
        return vectors, dict(zip(additions, view.search(rows, NEIGHBOURS), strict=True))


def _added(usage: Usage, completions: Sequence[Completion], searches: int) -> Usage:
    return Usage(
        calls=usage.calls + len(completions),
        cached=usage.cached + sum(completion.cached for completion in completions),
        prompt_tokens=usage.prompt_tokens + sum(completion.prompt_tokens for completion in completions),
        completion_tokens=usage.completion_tokens + sum(completion.tokens for completion in completions),
        searches=usage.searches + searches,
    )


def _sources(operation: Operation, state: MemoryState, part: SessionPart, finder: SourceFinder) -> tuple[int, ...]:
    """The source turns of an operation, as numbers of the whole session."""
    stored = state[operation.target_memory_id].text if operation.target_memory_id else ""
    text, before = (stored, "") if operation.event is Event.NONE else (operation.text, stored)
    return tuple(sorted({part.turn_numbers[number - 1] for number in finder.turns(text, before)}))


def _halves(part: SessionPart) -> list[SessionPart]:
    """Split a part that did not fit in two.

    Raises:
        ContextLengthError: If it is too small to be the reason.
    """
    size = sum(estimate_tokens(turn.content) for turn in part.session.dialogue)
    if size <= SMALLEST_PART:
        raise ContextLengthError("the model's context window is too small for the prompt and a short session")
    return [
        SessionPart(half.session, tuple(part.turn_numbers[number - 1] for number in half.turn_numbers))
        for half in split_session(part.session, max(SMALLEST_PART // 2, -(-size // 2)))
    ]
