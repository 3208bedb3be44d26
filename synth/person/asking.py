"""How the units of one person are asked for, one or several at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

from synth.person.account import Account
from synth.records import Persona
from synth.shape import Shape
from synth.tasks import AnswerT, Task, Unit
from synth.writing import Observer, Place, Writer

_PARALLEL = (Unit.EVOLUTION, Unit.FILLING, Unit.DIALOGUE)
_STEPS = 1_000
"""More than a person has units of one kind."""


class Author:
    """Asks a writer for the units of one person, and keeps account.

    Attributes:
        number: Of the person; the lower, the earlier its units are asked for.
        persona: The person's seed.
        shape: All sizes.
        seed: What the program draws from, with the person's id.
        account: What became of the units so far.
    """

    def __init__(
        self,
        number: int,
        persona: Persona,
        writer: Writer,
        shape: Shape,
        *,
        seed: int,
        observer: Observer | None = None,
    ) -> None:
        """Start an empty account.

        Args:
            number: See the attributes, like the others.
            persona: See there.
            writer: Answers the units.
            shape: See there.
            seed: See there.
            observer: Told of each unit when it is done.
        """
        self.number = number
        self.persona = persona
        self.shape = shape
        self.seed = seed
        self.account = Account()
        self._writer = writer
        self._observer = observer

    def rng(self, what: str) -> random.Random:
        """A generator of its own for each thing that the program draws, so that none depends on how often another drew."""
        return random.Random(f"{self.seed}/{self.persona.person_id}/{what}")

    async def ask(self, task: Task[AnswerT], place: int | None = None) -> AnswerT | None:
        """Have a unit written.

        Args:
            task: What the writer is told.
            place: Which one of its kind; None where the person has only one.

        Returns:
            None if it is rejected; it then stands among the account's rejections.

        Raises:
            DeltaMemError: If no answer can be got at all.
        """
        unit, index = task.unit, place or 0
        # Of units that run at the same time, those of earlier sessions come first.
        step = _STEPS * tuple(Unit).index(unit) + (_STEPS - 1 - index if unit in _PARALLEL else index)
        written = await self._writer.write(task, Place(self.number, step, f"{self.persona.person_id}/{unit}/{index}"))
        self.account.take(unit, written, place)
        if self._observer is not None:
            self._observer(unit, written)
        return written.answer

    async def ask_all(self, tasks: Iterable[tuple[int, Task[AnswerT]]]) -> dict[int, AnswerT | None]:
        """Have several units written at the same time.

        Args:
            tasks: Each with its place.

        Returns:
            The answers by place, in the order of the tasks.

        Raises:
            DeltaMemError: If no answer can be got for one of them; the others are cancelled.
        """
        try:
            async with asyncio.TaskGroup() as group:
                running = {place: group.create_task(self.ask(task, place)) for place, task in tasks}
        except BaseExceptionGroup as errors:
            # One person's failure is one error: the first.
            raise errors.exceptions[0] from None
        return {place: task.result() for place, task in running.items()}
