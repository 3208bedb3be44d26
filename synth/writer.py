"""What a writer is: something that answers tasks, whether a language model or pools of words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from synth.tasks import AnswerT, Task, Unit
from synth.validators.base import Verdict


@dataclass(frozen=True, slots=True)
class UnitId:
    """Where in the data set a unit belongs.

    Attributes:
        person: Number of the person; the lower, the earlier its units are asked for.
        step: How far the unit is in the person's life; the higher, the earlier, so that people get finished.
        name: Unique in the data set, for example ``p000012/dialogue/7``; draws depend on it.
    """

    person: int
    step: int
    name: str


@dataclass(frozen=True, slots=True)
class UnitResult(Generic[AnswerT]):
    """What became of a unit.

    Attributes:
        answer: None if every attempt broke rules.
        verdicts: Of each attempt, the last one's violations being empty if there is an answer.
        prompt_tokens: Of all attempts, now or in an earlier run.
        completion_tokens: Likewise.
        spent_tokens: Completion tokens that were paid for in this run; 0 if every attempt was found on disk.
    """

    answer: AnswerT | None
    verdicts: tuple[Verdict, ...]
    prompt_tokens: int = 0
    completion_tokens: int = 0
    spent_tokens: int = 0


Observer = Callable[[Unit, UnitResult[Any]], None]
"""Told of each unit when it is done."""


class Writer(Protocol):
    """Answers tasks. The same task at the same place gets the same answer from the same writer."""

    @property
    def making(self) -> Mapping[str, Any]:
        """What answers depend on besides the task: kind of writer, prompt hashes, model, sampling, seed. Plain JSON."""
        ...

    async def write(self, task: Task[AnswerT], place: UnitId) -> UnitResult[AnswerT]:
        """Answer a task.

        Raises:
            DeltaMemError: If no answer can be got at all, for example because the endpoint does not answer.
        """
        ...
