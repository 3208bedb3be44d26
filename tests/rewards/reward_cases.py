"""Small random cases for the reward tests; texts lie in a plane, so that their similarities straddle tau."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np

from deltamem.memory import Event, Keyword, Memory, MemoryState, Operation

TIME = datetime(2026, 4, 5, 20, 1)
WORDS = ("Ash", "birch", "cedar", "dogwood", "elm")
IDS = ("m1", "m2", "m3", "p1", "t1")  # two of them look like the ids that additions get inside


@dataclass
class PlaneEmbedder:
    """A direction in the plane for each text, drawn from a seed; records its calls."""

    seed: int = 0
    fixed: dict[str, tuple[float, ...]] = field(default_factory=dict)
    calls: list[list[str]] = field(default_factory=list)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        self.calls.append(list(texts))
        return np.array([self.vector(text) for text in texts])

    def vector(self, text: str) -> tuple[float, ...]:
        if text in self.fixed:
            return self.fixed[text]
        digest = hashlib.sha256(f"{self.seed}/{text}".encode()).digest()
        angle = int.from_bytes(digest[:6], "big") / 2**48 * np.pi  # half a turn: about half of all pairs pass 0.75
        return (float(np.cos(angle)), float(np.sin(angle)), 0.0)


@dataclass
class Case:
    prior: MemoryState
    predicted: list[Operation]
    target: list[Operation]
    embed: PlaneEmbedder


def state(texts: dict[str, str]) -> MemoryState:
    return MemoryState(Memory(key, text, TIME) for key, text in texts.items())


def add(text: str, *keywords: Keyword) -> Operation:
    return Operation(Event.ADD, text, None, keywords)


def update(memory_id: str, text: str, *keywords: Keyword) -> Operation:
    return Operation(Event.UPDATE, text, memory_id, keywords)


def none(memory_id: str, text: str = "") -> Operation:
    return Operation(Event.NONE, text, memory_id)


def random_text(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(3))


def random_case(seed: int, *, faithful_keywords: bool = False) -> Case:
    """A prior state, valid target operations and predicted operations, some of them not valid."""
    rng = random.Random(seed)
    texts = {key: random_text(rng) for key in IDS[: rng.randint(0, len(IDS))]}
    target: list[Operation] = []
    for key in texts:
        kind = rng.random()
        if kind < 0.4:
            text = texts[key] if kind < 0.05 else random_text(rng)
            target.append(update(key, text, *random_keywords(rng, text, faithful_keywords)))
        elif kind < 0.5:
            target.append(none(key, random_text(rng)))
    for text in {random_text(rng) for _ in range(rng.randint(0, 2))}:
        target.append(add(text, *random_keywords(rng, text, faithful_keywords)))
    target = [replace(op, outdated=tuple(rng.sample(WORDS, rng.choice((0, 0, 1, 2))))) for op in target]
    predicted: list[Operation] = []
    due = [op for op in target if op.event is not Event.NONE]
    for _ in range(rng.randint(0, 4)):
        text = rng.choice([random_text(rng), *(op.text for op in due), *texts.values()])
        kind = rng.random()
        if kind < 0.45:
            predicted.append(add(text))
        elif kind < 0.9:
            predicted.append(update(rng.choice([*texts, "unknown"]), text))
        else:
            predicted.append(none(rng.choice([*texts, "unknown"]), text))
    if due and rng.random() < 0.3:
        op = rng.choice(due)
        predicted.append(Operation(op.event, op.text, op.target_memory_id))
    rng.shuffle(target)
    return Case(state(texts), predicted, target, PlaneEmbedder(seed))


def random_keywords(rng: random.Random, text: str, faithful: bool) -> tuple[Keyword, ...]:
    pool = text.split() if faithful else [*(word.upper() for word in text.split()), *WORDS, "ash  birch"]
    keywords: list[Keyword] = list(rng.sample(pool, rng.randint(0, 3)))
    for place, word in enumerate(keywords):
        if rng.random() < 0.4:
            wordings = [word, *rng.choices([*WORDS, "dogwood elm", "yew", ""], k=rng.randint(1, 2))]
            keywords[place] = tuple(rng.sample(wordings, len(wordings)))
    return tuple(keywords)
