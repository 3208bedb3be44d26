"""Closed worlds: invented names that no other world has, and quotes that hold in one context only."""

from __future__ import annotations

import hashlib
import random
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from deltamem.config import StrictModel
from papers.stitch.came.records import ClosedWorld, Domain, QuestionType, WorldEntity
from synth.names import invent_name, invent_place
from synth.pools import Words, load

Forms = Annotated[tuple[str, ...], Field(min_length=1)]


class Slot(StrictModel):
    """Something of a day that is planned."""

    name: str
    kind: str  # Of the entities that fill it
    noun: str  # For one of them
    phrase: str  # After `for`
    attributes: tuple[str, ...]


class Motion(StrictModel):
    """A motion."""

    motion: str


class Ask(StrictModel):
    """A form of question."""

    type: QuestionType
    wordings: Forms


class Sentences(StrictModel):
    """What is said (``came.yaml``)."""

    heads: dict[str, Words]  # Last words of names by kind of entity
    features: Words
    manners: Words
    owners: Words
    uses: Words
    outlets: Words
    groups: Words
    slots: tuple[Slot, ...]
    topics: tuple[Motion, ...]
    aspects: Words
    methods: Words
    ordinals: Words
    anaphors: dict[Domain, Words]
    listed: dict[Domain, Forms]
    listed_here: dict[Domain, Forms]
    said: dict[Domain, dict[str, Forms]]
    elaborations: dict[Domain, dict[str, Forms]]
    questions: dict[Domain, dict[str, Ask]]


@cache
def sentences() -> Sentences:
    """What is said."""
    return load(Path(__file__).with_name("came.yaml"), Sentences)


_BUCKETS = 64
KINDS = ("accommodation", "restaurant", "attraction")


def _owned(name: str, world: int) -> bool:
    """Whether a name may occur in this world: the spelling decides, so that no two worlds share one."""
    return hashlib.sha256(name.casefold().encode()).digest()[1] % _BUCKETS == world


@lru_cache(maxsize=8)  # trips of a seed share theirs, and most names that are invented belong to other worlds
def build_world(domain: Domain, seed: int, number: int, count: int) -> ClosedWorld:
    """The world of a seed.

    Args:
        domain: Of travel there is one world, and one for each topic of debate.
        seed: The same seed gives the same world.
        number: Number of the topic.
        count: Entities of each kind.
    """
    rng = random.Random(f"{seed}/came/{domain}/{number}")
    said, bucket = sentences(), 0 if domain == "travel" else number + 1
    taken: set[str] = set()

    def fresh() -> str:
        while True:
            name = invent_name(rng, "heldout")  # no person of the training data is called so
            if _owned(name, bucket) and name not in taken and len(name) > 3:
                taken.add(name)
                return name

    if domain == "travel":
        areas = [invent_place(rng, "heldout") for _ in range(12)]
        made = [
            WorldEntity(
                name=f"{fresh()} {rng.choice(said.heads[kind])}",
                kind=kind,
                details={
                    "area": rng.choice(areas),
                    "feature": rng.choice(said.features),
                    "manner": rng.choice(said.manners),
                    "owner": rng.choice(said.owners),
                    "use": rng.choice(said.uses),
                },
            )
            for kind in KINDS
            for _ in range(count)
        ]
        return ClosedWorld(id=f"travel-{seed}", domain=domain, topic=invent_place(rng, "heldout"), entities=tuple(made))
    homes = [invent_place(rng, "heldout") for _ in range(12)]
    motions = random.Random(f"{seed}/came/motions").sample(said.topics, len(said.topics))
    made = [
        WorldEntity(
            name=f"{fresh()} ({rng.randint(1991, 2024)})",
            kind="source",
            details={
                "method": rng.choice(said.methods),
                "home": rng.choice(homes),
                "outlet": rng.choice(said.outlets),
                "group": rng.choice(said.groups),
            },
        )
        for _ in range(count)
    ]
    topic = motions[number % len(motions)].motion
    return ClosedWorld(id=f"debate-{seed}-{number + 1}", domain=domain, topic=topic, entities=tuple(made))


def quote(world: ClosedWorld, entity: str, attribute: str, goal: str, slot: str = "") -> str:
    """What holds of an entity in one context: the price of a hotel for one day is not that for another."""
    rng = random.Random(f"{world.id}/{entity}/{attribute}/{goal}/{slot}")
    match attribute:
        case "price":
            return f"${rng.randint(18, 399)}"
        case "time":
            return f"{rng.randint(7, 21):02}:{rng.choice(range(0, 60, 5)):02}"
        case "deposit":
            return f"{rng.randint(3, 60)}%"
        case _:
            return f"{rng.randint(2, 88)}.{rng.randint(1, 9)}%"
