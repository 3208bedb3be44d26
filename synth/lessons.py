"""Episodes of a tool-using agent whose lessons are known, so that what a model learns from them has a reward.

Services refuse a request until one preparation was made, which neither the refusal nor a description names. An agent that
obeys what it has learned makes the preparation that helped before, and else tries some that it has not tried yet. What
follows from an attempt is therefore known: which preparation helps, or which ones do not. With prior reflections and target
operations an attempt is a labelled session, and the transition reward applies to it unchanged.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from deltamem.episode import EmbedTexts
from deltamem.memory import Event, MemoryState, Operation, apply
from deltamem.runs import atomic_writer
from deltamem.sessions import LabelledSession, to_json_line
from papers.episodic import AgentTrajectory, Reflection
from papers.episodic.personal import PersonalData
from papers.episodic.reading import read_reflections
from rewards.reward import transition_score

SERVICES: Mapping[str, str] = {
    "schedule_pickup": "a parcel pickup",
    "reserve_room": "a meeting room",
    "issue_invoice": "an invoice",
    "book_inspection": "an inspection",
    "refill_supplies": "a refill of supplies",
    "lend_equipment": "a loan of equipment",
    "hire_van": "a moving van",
    "enrol_course": "a place in a course",
}
"""Tools by name, with what they get for the user."""
PREPARATIONS = ("refresh_quote", "unlock_draft", "set_region", "hold_slot", "attach_form", "warm_cache")
"""Tools of which each service needs one first."""
_START = datetime(2026, 1, 5, 9)
_FIRST = "Alma Bruno Carla Dario Elena Fabio Greta Hugo Irena Jonas".split()  # noqa: SIM905
_LAST = "Abend Bolt Crane Dorn Eberle Falk Grau Holm Iversen Jung".split()  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is known about one service."""

    tool: str
    helps: str | None = None
    in_vain: tuple[str, ...] = ()

    @property
    def reflection(self) -> Reflection:
        """As it is kept."""
        what = SERVICES[self.tool]
        hints = f"{' and '.join(self.in_vain)} did not help {self.tool}; try others." if self.in_vain else ""
        if self.helps:
            hints = f"Call {self.helps} before {self.tool}, which is refused without it."
        return Reflection(
            f"What {self.tool} needs first",
            f"Requests for {what}, where {self.tool} is refused.",
            hints,
            0.8 if self.helps else 0.4,
        )

    @property
    def keywords(self) -> tuple[str, ...]:
        """What a faithful reflection must contain."""
        return (self.tool, self.helps) if self.helps else (self.tool, *self.in_vain)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One episode, and what follows from it."""

    trajectory: AgentTrajectory
    succeeded: bool
    lesson: Lesson
    """All that is known of the service afterwards."""


class World:
    """Which preparation each service needs."""

    def __init__(self, seed: int) -> None:
        """Draw them."""
        self._random = random.Random(f"lessons {seed}")
        self._needs = {tool: self._random.choice(PREPARATIONS) for tool in SERVICES}
        self._count = 0

    def attempt(self, tool: str, known: Lesson, patience: int = 2) -> Attempt:
        """Let an agent that obeys a lesson serve a user.

        Args:
            tool: The service.
            known: What the agent has learned of it.
            patience: How many preparations it tries before it gives up.
        """
        untried = [one for one in PREPARATIONS if one not in known.in_vain]
        tries = [known.helps] if known.helps else self._random.sample(untried, min(patience, len(untried)))
        user = f"{self._random.choice(_FIRST)} {self._random.choice(_LAST)}"
        given = {"user_id": f"u-{self._random.randrange(10_000, 99_999)}"}
        asked = f"Hello, {user} here. I would like {SERVICES[tool]}, please."
        messages: list[dict[str, Any]] = [{"role": "user", "content": asked}]
        if not known.helps:
            messages += _step(tool, given, "refused: not ready")
        for place, preparation in enumerate(tries):
            messages += _step(preparation, given, "done")
            done = preparation == self._needs[tool]
            messages += _step(tool, given, "confirmed" if done else "refused: not ready")
            if done:
                lesson = Lesson(tool, preparation)
                break
            lesson = Lesson(tool, None, (*known.in_vain, *tries[: place + 1]))
        succeeded = lesson.helps is not None
        messages.append({"role": "assistant", "content": "It is arranged." if succeeded else "I am sorry, it was refused."})
        self._count += 1
        time = _START + timedelta(hours=self._count)
        return Attempt(AgentTrajectory.of(f"attempt-{self._count}", time, messages), succeeded, lesson)


def _step(tool: str, arguments: Mapping[str, object], result: str) -> list[dict[str, Any]]:
    call = {"function": {"name": tool, "arguments": json.dumps(arguments)}}
    return [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": json.dumps({"status": result})}]


@dataclass(frozen=True, slots=True)
class LabelledEpisode:
    """An attempt with the reflections before it and the right operations on them."""

    attempt: Attempt
    labelled: LabelledSession
    shown: Mapping[str, Reflection]
    """The reflections before it by id, as a model sees them."""


def labelled_episodes(seed: int, count: int) -> Iterator[LabelledEpisode]:
    """Attempts one after the other, of an agent that has learned all that could be learned from those before."""
    world, known = World(seed), dict[str, Lesson]()
    state, pick = MemoryState(), random.Random(f"order {seed}")
    ids: dict[str, str] = {}
    for index in range(count):
        tool = pick.choice([*SERVICES])
        before = known.get(tool, Lesson(tool))
        attempt = world.attempt(tool, before)
        target: tuple[Operation, ...] = ()
        if attempt.lesson != before:
            event = Event.UPDATE if tool in ids else Event.ADD
            text = attempt.lesson.reflection.text
            target = (Operation(event, text, ids.get(tool), attempt.lesson.keywords),)
        after = apply(state, target, attempt.trajectory.time)
        labelled = LabelledSession(
            replace(attempt.trajectory.session("", "agent:synthetic"), id=""), index, "train", state, target, after
        )
        shown = {ids[one]: replace(lesson.reflection, id=ids[one]) for one, lesson in known.items()}
        yield LabelledEpisode(attempt, labelled, shown)
        if target and tool not in ids:
            ids[tool] = next(memory_id for memory_id in after if memory_id not in state)
        state, known[tool] = after, attempt.lesson


def reward(episode: LabelledEpisode, answer: str, embed: EmbedTexts) -> float:
    """The transition reward of what a model answers to the prompt about reflections; 0 if it cannot be read."""
    read, _ = read_reflections(answer, episode.shown, PersonalData(episode.attempt.trajectory).find)
    operations = None
    if read is not None:
        operations = [Operation(Event.UPDATE if one.target else Event.ADD, one.reflection.text, one.target) for one in read]
    labelled = episode.labelled
    return transition_score(labelled.prior_state, operations, labelled.operations, embed).reward


def write(out: Path, seed: int, count: int) -> int:
    """Write ``sessions.jsonl``; returns how many of its sessions have a target operation."""
    out.mkdir(parents=True, exist_ok=True)
    changed = 0
    with atomic_writer(out / "sessions.jsonl") as file:
        for episode in labelled_episodes(seed, count):
            changed += bool(episode.labelled.operations)
            file.write(to_json_line(episode.labelled) + "\n")
    return changed
