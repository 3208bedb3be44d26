"""Reviewing one trajectory: its turns are analysed, its episodes found and summed up, and lessons made, stage by stage."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from deltamem.bank.base import Hit, stale_ids
from deltamem.bank.store import UserStore
from deltamem.embedding import Embedder
from deltamem.episode import Message
from deltamem.errors import ContextLengthError, DeltaMemError
from deltamem.journal.records import Change, ChangeEvent, digest_of
from deltamem.llm import Usage
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
    read_reflections,
    read_summary,
    read_turns,
)
from papers.episodic.records import (
    AgentTrajectory,
    AgentTurn,
    EpisodeSummary,
    RecordKind,
    Reflection,
    TurnAnalysis,
    kind_of,
    reflections_of,
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


class Review:
    """One call of `papers.episodic.memory.EpisodicMemory.ingest`, as far as it is."""

    def __init__(
        self,
        trajectory: AgentTrajectory,
        personal: PersonalData,
        owned: UserStore,
        embedder: Embedder,
        policy: Policy,
        settings: EpisodicSettings,
    ) -> None:
        """Begin; nothing is asked yet."""
        self.trajectory = trajectory
        self.personal = personal
        self.violations = Counter[str]()
        self.episodes: list[EpisodeSummary] = []
        self.changes: list[Change] = []
        self.usage = Usage()
        self._stage = Counter[str]()  # Violations that are not in the journal yet
        self._owned = owned
        self._embedder = embedder
        self._policy = policy
        self._settings = settings

    def _note(self, violations: Sequence[EpisodicViolation]) -> None:
        counted = Counter(map(str, violations))
        self.violations += counted
        self._stage += counted

    def _masked(self, record: Masked, *names: str) -> Masked:
        """A record without data of the user in some of its fields."""
        clean: dict[str, Any] = {}
        for name in names:
            clean[name], count = self.personal.mask(getattr(record, name))
            self._note([EpisodicViolation.MASKED_DATA] * count)
        return replace(record, **clean)

    async def run(self) -> bool:
        """Go through all stages that are not done; whether the answers could be understood to the end."""
        turns = await self._turns()
        if turns is None:
            return False
        for number, (first, last) in enumerate(boundaries(turns), start=1):
            part = turns[first - 1 : last]
            summary = await self._summary(number, part)
            if summary is None:
                return False
            self.episodes.append(summary)
            if not await self._reflect(number, summary, part):
                return False
        await self._record("", [], [])
        return True

    async def _turns(self) -> list[TurnAnalysis] | None:
        """The notes on every turn: those that are recorded, and the others from the model."""
        trajectory, batch, limit = self.trajectory, self._settings.batch, self._settings.step_characters
        found: list[TurnAnalysis] = []
        while len(found) < len(trajectory.turns):
            first = len(found) + 1
            if known := self._recorded(f"#turns-{first}", RecordKind.TURN):
                found += map(TurnAnalysis.of, known)
                continue
            numbers = range(first, min(first + batch, len(trajectory.turns) + 1))
            asked = self._conversation(trajectory, numbers, limit)
            try:
                answered = await self._ask(TURNS_PROMPT, asked, partial(read_turns, turns=numbers))
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
            clean = [self._masked(one, *names) for one in answered]
            await self._record(
                f"#turns-{first}", [(one, None) for one in clean], [_dialogue_turns(one.turn) for one in clean]
            )
            found += clean
        return found

    async def _summary(self, number: int, turns: Sequence[TurnAnalysis]) -> EpisodeSummary | None:
        stage = f"#episode-{number}"
        if known := self._recorded(stage, RecordKind.EPISODE):
            return EpisodeSummary.of(known[0])
        first, last = turns[0].turn, turns[-1].turn
        said = list(enumerate(self.trajectory.turns[first - 1 : last], start=first))
        answered = await self._ask_of(
            SUMMARY_PROMPT,
            lambda most, limit: _tag("conversation_turns", _ends([_turn(place, one, limit) for place, one in said], most)),
            len(said),
            self._settings.step_characters,
            lambda text: read_summary(text, first, last),
        )
        if answered is None:
            return None
        clean = self._masked(answered, "situation", "intent", "justification", "reflection")
        sources = tuple(place for turn in turns for place in _dialogue_turns(turn.turn))
        (change,) = await self._record(stage, [(clean, None)], [sources])
        return EpisodeSummary.of(change.after) if change.after is not None else None

    async def _reflect(self, number: int, summary: EpisodeSummary, turns: Sequence[TurnAnalysis]) -> bool:
        """Make the reflections of an episode, if that is not done; whether the answer could be understood."""
        stage = f"#reflections-{number}"
        if self._owned.journal.session_position(self.trajectory.id + stage) is not None:
            return True
        about = f"{summary.intent} {summary.situation} {summary.reflection}"
        similar = await self._similar(about, RecordKind.EPISODE, self._settings.similar + 1)
        hits = await self._similar(about, RecordKind.REFLECTION, self._settings.known)
        shown = {hit.memory.id: Reflection.of(hit.memory) for hit in hits}
        others = [one for one in (EpisodeSummary.of(hit.memory) for hit in similar) if one.id != summary.id]
        beside = (
            _tag("similar_episodes", "".join(_episode(one) for one in others[: self._settings.similar])),
            _tag("kept_reflections", "".join(_kept(one) for one in shown.values())),
        )
        kept = reflections_of(self._owned.bank.state)
        answered = await self._ask_of(
            REFLECTIONS_PROMPT,
            lambda most, limit: "".join((_tag("main_episode", _episode(summary) + _notes(turns, most, limit)), *beside)),
            len(turns),
            MAX_FIELD,
            lambda text: read_reflections(text, shown, self.personal.find, kept),
        )
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
            stage, [(one.reflection, one.target) for one in answered], sources, keep=self._settings.keep_turns
        )
        self.changes += changes
        return True

    def _recorded(self, stage: str, kind: RecordKind) -> list[Memory]:
        """What a stage of this trajectory has recorded; empty if it is to be done.

        Raises:
            DeltaMemError: If it was recorded for other content, or somebody has taken away what it recorded.
        """
        journal, session = self._owned.journal, self.trajectory.session(stage, self._owned.owner)
        position = journal.session_position(session.id)
        if position is None:
            return []
        if journal.session_digest(session.id) != digest_of(session):
            raise DeltaMemError(f"trajectory {self.trajectory.id!r} has begun with other content; give it another id")
        state = self._owned.bank.state
        ids = [change.memory_id for change in journal.entry(position).changes if change.event is ChangeEvent.ADD]
        kept = [state[one] for one in ids if one in state and kind_of(state[one]) is kind]
        if len(kept) < len(ids) or not kept:
            raise DeltaMemError(
                f"what was noted of trajectory {self.trajectory.id!r} was taken away before it was finished; roll back to"
                f" before @{position} to read it again"
            )
        return kept

    async def _record(
        self,
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
                    after = record.memory(target or next(new), self.trajectory)
                    known = memories.get(after.id) if target else None
                    if target and known is None:  # retracted since it was shown
                        self._note([EpisodicViolation.UNKNOWN_ID])
                        continue
                    unchanged = known is not None and Reflection.of(known) == record
                    event = ChangeEvent.NONE if unchanged else ChangeEvent.ADD if known is None else ChangeEvent.UPDATE
                    kept = known if unchanged and known is not None else after
                    memories[after.id] = kept
                    changes.append(Change(event, after.id, known, kept, turns))
                state = MemoryState(memories.values())
                stale = stale_ids(before, state)
                vectors = [*self._embedder.documents([state[one].text for one in stale])] if stale else []
                violations, self._stage = dict(self._stage), Counter()
                self._owned.commit(
                    self.trajectory.session(stage, self._owned.owner),
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

    async def _ask(self, prompt: str, asked: str, read: Reader[Read]) -> Read | None:
        """Let the model answer, again if the answer cannot be understood; None if none can."""
        messages = [
            Message(role="system", content=load_prompt(prompt, "papers.episodic.prompts").text),
            Message(role="user", content=asked),
        ]
        for attempt in range(self._settings.attempts):
            policy = self._policy
            if isinstance(policy, ScopedPolicy):
                policy = policy.for_scope(self._owned.owner, attempt)
            completion = await policy.complete(messages)
            self.usage += completion.usage
            if completion.truncated:  # what is cut off may have been what matters
                self._note([EpisodicViolation.TOKEN_LIMIT])
                continue
            result, violations = read(completion.text)
            self._note(violations)
            if result is not None:
                return result
        return None

    async def _ask_of(
        self, prompt: str, asked: Callable[[int, int], str], most: int, limit: int, read: Reader[Read]
    ) -> Read | None:
        """`_ask` about at most so many turns of an episode, each text within a limit; less where the window is too small."""
        while True:
            try:
                return await self._ask(prompt, asked(most, limit), read)
            except ContextLengthError:
                if limit > _LEAST_CHARACTERS:
                    limit = max(limit // 2, _LEAST_CHARACTERS)
                elif most > 1:
                    most //= 2
                else:
                    raise

    async def _similar(self, text: str, kind: RecordKind, k: int) -> list[Hit]:
        if k < 1:
            return []
        (hits,) = await asyncio.to_thread(self._owned.search, self._embedder.queries, [text], k, {"kind": str(kind)})
        return hits

    def _conversation(self, trajectory: AgentTrajectory, numbers: range, limit: int) -> str:
        """The turns as the model reads them, with those before and the message after."""
        earlier = range(max(1, numbers.start - self._settings.before), numbers.start)
        shown = [_turn(number, trajectory.turns[number - 1], limit) for number in (*earlier, *numbers)]
        parts = [_tag("earlier_turns", "".join(shown[: len(earlier)]))] if earlier else []
        parts.append(_tag("turns", "".join(shown[len(earlier) :])))
        if numbers.stop <= len(trajectory.turns):
            parts.append(_tag("next_message", _cut(trajectory.turns[numbers.stop - 1].user, limit)))
        return "".join(parts)


def boundaries(turns: Sequence[TurnAnalysis]) -> list[tuple[int, int]]:
    """The first and last turn of each episode: one ends where the user's matter did, the last one with the trajectory."""
    ends = [turn.turn for turn in turns if turn.ended or turn is turns[-1]]
    return [(begin + 1, end) for begin, end in zip([0, *ends], ends, strict=False)]


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
    """The notes on the turns of an episode."""
    names = ("situation", "intent", "action", "thought")
    written = [
        _tag(
            f"turn_{turn.turn}",
            "".join(_line(name, _cut(getattr(turn, name), limit)) for name in names)
            + _line("done", f"{'Yes' if turn.achieved else 'No'} {_cut(turn.achieved_why, limit)}"),
        )
        for turn in turns
    ]
    return _ends(written, most)


def _ends(written: list[str], most: int) -> str:
    """Turns one after the other: the first and the last, if they are more than so many."""
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
