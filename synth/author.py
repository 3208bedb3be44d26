"""Asks a writer for the units of one person, and keeps account of what became of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from synth.cards import Cards
from synth.config import Shape
from synth.records import Persona, Rejection, UnitUsage
from synth.tasks import AnswerT, Observer, RuleVerdict, RuleViolation, Task, Unit, UnitId, UnitResult, Writer


class Account:
    """Counts units as they are done; what it tells does not depend on the order in which they were."""

    def __init__(self) -> None:
        self._checked: Counter[str] = Counter()
        self._violations: Counter[str] = Counter()
        self._usage: defaultdict[Unit, Counter[str]] = defaultdict(Counter)
        self._rejected: list[tuple[int, int, Rejection]] = []

    def take(self, unit: Unit, written: UnitResult[Any]) -> None:
        """Count a unit and the reviews of it."""
        for review, result in written.reviews:
            self.take(review, result)
        for verdict in written.verdicts:
            self.judged(verdict)
        self._usage[unit].update(
            units=1,
            attempts=len(written.verdicts),
            rejected=int(written.answer is None),
            prompt_tokens=written.prompt_tokens,
            completion_tokens=written.completion_tokens,
            reasoning_tokens=written.reasoning_tokens,
        )

    def judged(self, verdict: RuleVerdict) -> None:
        """Count what one answer, or one finished whole, was checked for and has broken."""
        self._checked.update(set(verdict.checked))
        self._violations.update({violation.rule for violation in verdict.violations})

    def reject(self, unit: Unit, violations: Sequence[RuleViolation], place: int | None = None) -> None:
        """Name something that is given up, with the rules that it breaks."""
        rules = tuple(dict.fromkeys(violation.rule for violation in violations))
        reasons = tuple(violation.message for violation in violations)
        where = "" if place is None else str(place)
        order = (tuple(Unit).index(unit), -1 if place is None else place)
        self._rejected.append((*order, Rejection(unit=unit, where=where, rules=rules, reasons=reasons)))

    def record(self) -> dict[str, Any]:
        """The account as fields of a `Person`: rules by name, units and rejections in the order of a person's life."""
        return {
            "rejections": tuple(rejection for *_, rejection in sorted(self._rejected, key=lambda item: item[:2])),
            "checked": dict(sorted(self._checked.items())),
            "violations": dict(sorted(self._violations.items())),
            "usage": {unit.value: UnitUsage(**self._usage[unit]) for unit in Unit if unit in self._usage},
        }


_PARALLEL = (Unit.EVOLUTION, Unit.FILLING, Unit.REVISION, Unit.DIALOGUE)
_STEPS = 1_000
"""More than a person has units of one kind."""


class Author:
    """Asks a writer for the units of one person, and keeps account of what became of them."""

    def __init__(
        self,
        number: int,
        persona: Persona,
        writer: Writer,
        shape: Shape,
        *,
        seed: int,
        observer: Observer | None = None,
        cards: Cards | None = None,
    ) -> None:
        self.number = number
        self.persona = persona
        self.shape = shape
        self.seed = seed
        self.cards = cards
        self.account = Account()
        self._writer = writer
        self._observer = observer

    def rng(self, what: str) -> random.Random:
        """A generator of its own for each thing that the program draws, so that none depends on how often another drew."""
        return random.Random(f"{self.seed}/{self.persona.person_id}/{what}")

    async def ask(self, task: Task[AnswerT], place: int | None = None) -> AnswerT | None:
        """Have a unit written, at a place if there are several of its kind; None if it is rejected, which is then named."""
        written = await self.attempt(task, place)
        if written.answer is None:
            self.account.reject(task.unit, last_violations(written), place)
        return written.answer

    async def attempt(self, task: Task[AnswerT], place: int | None = None) -> UnitResult[AnswerT]:
        """As `ask`, but what becomes of a unit without an answer is up to the caller."""
        unit, index = task.unit, place or 0
        # Of units that run at the same time, those of earlier sessions come first.
        step = _STEPS * tuple(Unit).index(unit) + (_STEPS - 1 - index if unit in _PARALLEL else index)
        written = await self._writer.write(task, UnitId(self.number, step, f"{self.persona.person_id}/{unit}/{index}"))
        self.account.take(unit, written)
        if self._observer is not None:
            for done in (*written.reviews, (unit, written)):
                self._observer(*done)
        return written

    async def ask_all(self, tasks: Iterable[tuple[int, Task[AnswerT]]]) -> dict[int, AnswerT | None]:
        """Have several units written at the same time; the answers come by place, in the order of the tasks.

        Raises `DeltaMemError` if no answer can be got for one of them; the others are cancelled.
        """
        try:
            async with asyncio.TaskGroup() as group:
                running = {place: group.create_task(self.ask(task, place)) for place, task in tasks}
        except BaseExceptionGroup as errors:
            # One person's failure is one error: the first.
            raise errors.exceptions[0] from None
        return {place: task.result() for place, task in running.items()}


def last_violations(written: UnitResult[Any]) -> tuple[RuleViolation, ...]:
    """What was wrong with the last answer of a unit."""
    return written.verdicts[-1].violations if written.verdicts else ()
