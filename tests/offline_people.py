"""People of the offline writer, for tests that need labelled sessions and do not care how they were made."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from deltamem.sessions import LabelledSession, Split
from synth.assembly import labelled_sessions
from synth.config import PersonaSettings, Shape
from synth.names import InventedNames, RealNames
from synth.offline import OfflineWriter
from synth.person import write_person
from synth.personas import draw_personas
from synth.records import Person, Persona, Record
from synth.tasks import AnswerT, Task, Unit, UnitId, UnitResult, Writer

SHAPES = Path(__file__).parents[1] / "configs" / "shape"


@cache
def shape(name: str) -> Shape:
    """A shape of ``configs/shape``."""
    return Shape.model_validate(yaml.safe_load((SHAPES / f"{name}.yaml").read_text(encoding="utf-8")))


def people(
    count: int, sessions: int, *, seed: int = 1, heldout_share: float = 0.1, sizes: str = "demanding_tiny"
) -> list[Person]:
    """Write people of a shape, as far as templates can tell it."""

    async def write() -> list[Person]:
        writer, told = OfflineWriter(seed), shape(sizes).scripted
        names = InventedNames(seed, told.profile.name_syllables)
        drawn = draw_personas(PersonaSettings(), people=count, heldout_share=heldout_share, seed=seed)
        return [
            await write_person(number, persona, writer, told, names, sessions=sessions, seed=seed)
            for number, persona in enumerate(drawn)
        ]

    return asyncio.run(write())


def life(
    number: int, sizes: Shape, writer: Writer, *, sessions: int, seed: int = 1, real: bool = False, split: Split = "train"
) -> Person:
    """One person by a writer, with a name that occurs or an invented one."""
    persona = Persona(person_id=f"p{number:06d}", seed="somebody", source="generated", split=split)
    names = RealNames(seed) if real else InventedNames(seed, sizes.profile.name_syllables)
    return asyncio.run(write_person(number, persona, writer, sizes, names, sessions=sessions, seed=seed))


class Recorder(OfflineWriter):
    """Keeps the tasks with their answers and places."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.asked: list[tuple[Task[Any], Record | None, UnitId]] = []

    async def write(self, task: Task[AnswerT], place: UnitId) -> UnitResult[AnswerT]:
        written = await super().write(task, place)
        self.asked.append((task, written.answer, place))
        return written

    def of(self, unit: Unit) -> tuple[Task[Any], UnitId]:
        """The first task of a unit, and where it was asked."""
        return next((task, place) for task, _, place in self.asked if task.unit is unit)


def labelled(count: int, sessions: int, *, seed: int = 1, sizes: str = "demanding_tiny") -> list[LabelledSession]:
    """The labelled sessions of people, in order."""
    return [item for person in people(count, sessions, seed=seed, sizes=sizes) for item in labelled_sessions(person)]
