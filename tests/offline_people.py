"""People of the offline writer, for tests that need labelled sessions and do not care how they were made."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path

import yaml

from deltamem.sessions import LabelledSession
from synth.assembly import labelled_sessions
from synth.config import PersonaSettings, Shape
from synth.names import InventedNames
from synth.offline import OfflineWriter
from synth.person import write_person
from synth.personas import draw_personas
from synth.records import Person

SHAPES = Path(__file__).parents[1] / "configs" / "shape"


@cache
def shape(name: str) -> Shape:
    """A shape of ``configs/shape``."""
    return Shape.model_validate(yaml.safe_load((SHAPES / f"{name}.yaml").read_text(encoding="utf-8")))


def people(count: int, sessions: int, *, seed: int = 1, heldout_share: float = 0.1, sizes: str = "tiny") -> list[Person]:
    """Write people."""

    async def write() -> list[Person]:
        writer, names = OfflineWriter(seed), InventedNames(seed)
        drawn = draw_personas(PersonaSettings(), people=count, heldout_share=heldout_share, seed=seed)
        return [
            await write_person(number, persona, writer, shape(sizes), names, sessions=sessions, seed=seed)
            for number, persona in enumerate(drawn)
        ]

    return asyncio.run(write())


def labelled(count: int, sessions: int, *, seed: int = 1, sizes: str = "tiny") -> list[LabelledSession]:
    """The labelled sessions of people, in order."""
    return [item for person in people(count, sessions, seed=seed, sizes=sizes) for item in labelled_sessions(person)]
