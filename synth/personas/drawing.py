"""Personas of a data set: a seed, a number and a split each."""

from __future__ import annotations

import json
from pathlib import Path

from deltamem.files import atomic_writer
from deltamem.sessions import Split
from synth.personas.generator import generate
from synth.personas.settings import PersonaSettings
from synth.personas.sources import from_file, from_personahub
from synth.records import Persona


def draw_personas(settings: PersonaSettings, *, people: int, heldout_share: float, seed: int) -> list[Persona]:
    """Number the people, give each a seed of their own and spread the held-out ones evenly among them.

    Of two or more people, at least one is held out and at least one is trained on.

    Args:
        settings: Where the seeds come from.
        people: How many people.
        heldout_share: Share of people that are held out.
        seed: Decides which seeds are drawn, and their order.

    Raises:
        DeltaMemError: If the source cannot be read or has too few different personas.
    """
    if settings.source == "generated":
        texts = list(generate(people, seed))
    elif settings.source == "file":
        texts = from_file(settings, people, seed)
    else:
        texts = from_personahub(settings, people, seed)
    personas = []
    heldout = 0
    for number, text in enumerate(texts):
        wanted = min(number, max(round((number + 1) * heldout_share), int(number == people - 1)))
        split: Split = "heldout" if wanted > heldout else "train"
        heldout += split == "heldout"
        personas.append(Persona(person_id=f"p{number:06d}", seed=text, source=settings.source, split=split))
    return personas


def write_generated(count: int, seed: int, path: Path) -> None:
    """Write generated seeds as JSON lines with the key ``persona``; the file is whole or not there.

    Raises:
        DeltaMemError: If there are not so many.
    """
    texts = generate(count, seed)
    with atomic_writer(path) as file:
        file.writelines(json.dumps({"persona": text}, ensure_ascii=False) + "\n" for text in texts)
