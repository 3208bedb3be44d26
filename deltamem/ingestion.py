"""Reading one session against an owner's memory: episodes, checks, and the step they add up to. Writes nothing.

A session that does not fit the model's window is read in parts. Later parts see what earlier ones decided, because all of
them work on one overlay of the bank; the journal still gets the session as a whole.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from deltamem.bank.overlay import OverlayBank
from deltamem.bank.owned import OwnedBank
from deltamem.bank.protocol import Hit, merge_hits
from deltamem.bank.store import MemoryStore
from deltamem.embedding import Vectors
from deltamem.episode import Episode, EpisodeConfig, Message, Trajectory, opening_messages
from deltamem.journal.records import Change
from deltamem.llm import ContextLengthError
from deltamem.memory import Event, Memory, MemoryState, Operation, fresh_ids
from deltamem.policy import Completion, Policy, ScopedPolicy
from deltamem.rollout import drive
from deltamem.sessions import Session
from deltamem.text.recall import mark_recalled, settle
from deltamem.text.sources import SourceFinder
from deltamem.text.splitting import Part, estimate_tokens, split_session
from deltamem.transition import Usage, take_step

SMALLEST_PART = 128
"""Tokens. A part this small that still does not fit means that the window is too small for the prompt itself."""
NEIGHBOURS = 3
"""Stored memories that an addition is compared with."""


@dataclass(slots=True)
class Reading:
    """What reading a session came to.

    Attributes:
        state: The state after it.
        changes: What leads there.
        vectors: Vectors of new and changed texts, by memory id.
        started_from: The journal position that it was read against.
        readable: Whether every part got an answer that could be read.
        violations: Departures from the protocol and corrections, by name.
        notes: What the caller should know.
        parts: Episodes that the session was split into.
        usage: What it cost.
    """

    state: MemoryState
    started_from: int
    changes: list[Change] = field(default_factory=list)
    vectors: dict[str, Vectors] = field(default_factory=dict)
    readable: bool = True
    violations: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    parts: int = 0
    usage: Usage = field(default_factory=Usage)


class SessionReader:
    """Reads sessions of one owner."""

    def __init__(
        self,
        store: MemoryStore,
        owned: OwnedBank,
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
        new_ids = fresh_ids([f"m{self._owned.journal.next_id_number() - 1}"])
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
            settled = settle(
                operations,
                known=known,
                neighbours=neighbours,
                dialogue=part.session.dialogue,
                person_name=session.person_name,
                earlier_text=self._owned.journal.text_owner,
            )
            reading.violations.update({str(name): count for name, count in settled.notes.items()})
            finder = SourceFinder(part.session.dialogue, session.person_name)
            sources = [_sources(operation, view.state, part, finder) for operation in settled.operations]
            step = take_step(view.state, settled.operations, session.time, new_ids, sources)
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

    def _split(self, session: Session) -> list[Part]:
        if self._window_tokens is None:
            return [Part(session, tuple(range(1, len(session.dialogue) + 1)))]
        empty = opening_messages(replace(session, dialogue=()), self._episode)
        room = self._window_tokens - sum(estimate_tokens(message["content"]) for message in empty)
        # Half of what is left belongs to thinking, queries and what the searches return.
        return split_session(session, max(SMALLEST_PART, room // 2))

    async def _converse(self, session: Session, view: OverlayBank, reading: Reading) -> Trajectory | None:
        """Run the episode; again if its answer cannot be read. None if none of the answers can."""
        for attempt in range(self._attempts):
            policy = _Metered(self._for_attempt(attempt))
            episode = Episode(session, view.state.keys(), self._episode)

            async def search(queries: Sequence[str]) -> list[Memory]:
                return await asyncio.to_thread(self._find, queries, view)

            try:
                await drive(episode, policy, search)
            finally:
                reading.usage = policy.added_to(reading.usage, len(episode.trajectory.queries))
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
        return merge_hits(view.search(self._store.queries(queries), self._episode.k))

    def _place(self, operations: Sequence[Operation], view: OverlayBank) -> tuple[dict[str, Vectors], dict[int, list[Hit]]]:
        """The vectors of the texts to write, and by index of each addition the stored memories nearest to it."""
        texts = [operation.text for operation in operations if operation.event is not Event.NONE]
        if not texts:
            return {}, {}
        vectors = dict(zip(texts, self._store.documents(texts), strict=True))
        additions = [index for index, operation in enumerate(operations) if operation.event is Event.ADD]
        if not additions:
            return vectors, {}
        rows = np.stack([vectors[operations[index].text] for index in additions])
        return vectors, dict(zip(additions, view.search(rows, NEIGHBOURS), strict=True))


class _Metered:
    """Passes requests on and counts what they cost."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self._policy = policy
        self._completions: list[Completion] = []

    async def complete(self, messages: Sequence[Message]) -> Completion:
        completion = await self._policy.complete(messages)
        self._completions.append(completion)
        return completion

    def added_to(self, usage: Usage, searches: int) -> Usage:
        done = self._completions
        return Usage(
            calls=usage.calls + len(done),
            cached=usage.cached + sum(completion.cached for completion in done),
            prompt_tokens=usage.prompt_tokens + sum(completion.prompt_tokens for completion in done),
            completion_tokens=usage.completion_tokens + sum(completion.tokens for completion in done),
            searches=usage.searches + searches,
        )


def _sources(operation: Operation, state: MemoryState, part: Part, finder: SourceFinder) -> tuple[int, ...]:
    """The source turns of an operation, as numbers of the whole session."""
    stored = state[operation.target_memory_id].text if operation.target_memory_id else ""
    text, before = (stored, "") if operation.event is Event.NONE else (operation.text, stored)
    return tuple(sorted({part.turn_numbers[number - 1] for number in finder.turns(text, before)}))


def _halves(part: Part) -> list[Part]:
    """Split a part that did not fit in two.

    Raises:
        ContextLengthError: If it is too small to be the reason.
    """
    size = sum(estimate_tokens(turn.content) for turn in part.session.dialogue)
    if size <= SMALLEST_PART:
        raise ContextLengthError("the model's context window is too small for the prompt and a short session")
    return [
        Part(half.session, tuple(part.turn_numbers[number - 1] for number in half.turn_numbers))
        for half in split_session(part.session, max(SMALLEST_PART // 2, -(-size // 2)))
    ]
