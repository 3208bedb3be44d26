"""The offline writer: people from templates and pools of words. No model, no network, deterministic."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, cast

from synth.config import FactLimits
from synth.offline import paper, talk, tiny
from synth.records import Record
from synth.tasks import AnswerT, DialogueTask, EventsTask, FillingTask, InitialTask, Task, Unit, UnitId, UnitResult
from synth.validators import judge_answer


def answer(task: Task[AnswerT], rng: random.Random) -> AnswerT:
    """Answer a task; nothing but the task and the draws counts.

    Raises `DeltaMemError` if the task asks for what templates cannot do, for example to change facts of other writers.
    """
    return cast(AnswerT, _ANSWERS[task.unit](task, rng))


class OfflineWriter:
    """Writes without a model and without a network; a `synth.tasks.Writer`."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @property
    def making(self) -> Mapping[str, Any]:
        """What answers depend on besides the task."""
        return {"writer": "offline", "seed": self._seed}

    async def write(self, task: Task[AnswerT], place: UnitId) -> UnitResult[AnswerT]:
        """Answer a task, once, and judge the answer. Raises `DeltaMemError` as `answer` does."""
        written = answer(task, random.Random(f"{self._seed}/{place.name}"))
        verdict = judge_answer(cast(Task[Record], task), written)
        return UnitResult(None if verdict.violations else written, (verdict,))


def _initial(task: InitialTask, rng: random.Random) -> Record:
    return (tiny.write_initial if task.plans else paper.write_initial)(task, rng)


def _events(task: EventsTask, rng: random.Random) -> Record:
    demands = task.limits.memory or _is_tiny(task.fact_limits)
    return (tiny.write_events if demands else paper.write_events)(task, rng)


def _filling(task: FillingTask, rng: random.Random) -> Record:
    demands = task.plans or _is_tiny(task.limits)
    return (tiny.write_filling if demands else paper.write_filling)(task, rng)


def _is_tiny(limits: FactLimits) -> bool:
    """Whether facts of these sizes are those of the tiny form, which may be planned to have none."""
    return limits.keyword_words.max == 1


def _dialogue(task: DialogueTask, rng: random.Random) -> Record:
    if task.asides or not task.facts or task.facts[0].difficulty is not None:
        return talk.write_dialogue(task, rng)
    return paper.write_dialogue(task, rng)


_ANSWERS: dict[Unit, Callable[[Any, random.Random], Record]] = {
    Unit.FIXED: paper.write_fixed,
    Unit.DYNAMIC: paper.write_dynamic,
    Unit.PREFERENCES: paper.write_preferences,
    Unit.INITIAL: _initial,
    Unit.EVENTS: _events,
    Unit.LINKS: paper.write_links,
    Unit.EVOLUTION: paper.write_evolution,
    Unit.FILLING: _filling,
    Unit.REVISION: tiny.write_revision,
    Unit.DIALOGUE: _dialogue,
}
