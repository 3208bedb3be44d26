"""Memories, sessions and queries about one invented person, the same for all that is compared. Standard library only."""

from __future__ import annotations

import itertools
import random
from dataclasses import asdict, dataclass
from typing import Any

OWNER = "ann"
REMEMBER, CORRECT = "Please remember that ", "Please correct this: "
"""How the sentences begin that the scripted model takes facts from: new ones, and new versions of stored ones."""

_KEEPS = ("keeps", "owns", "repairs", "collects", "sells", "paints")
_THINGS = (
    "goats bicycles clocks kites violins lanterns canoes teapots maps looms anvils beehives globes harps kilns ladders "
    "mirrors orchids puppets quilts radios saddles tents urns wagons yachts zithers barrels candles drums"
)
_SYLLABLES = "bel dor fen gar hul kip lom mar nov pra quis rul sev tan vor wil yar zem"
_CHATTER = (
    "It has been a long week and I finally have an hour to sit down and talk.",
    "The weather was mild, so most of the morning went by outside.",
    "My neighbour came by and we had tea, as on most days.",
    "I have been thinking about what to do next month, but nothing is decided.",
)
_REPLIES = (
    "Thank you for telling me, I will keep that in mind.",
    "That sounds good; is there anything else I should know?",
    "I understand. Let me know when something changes.",
)


@dataclass(frozen=True)
class Workload:
    """What is measured.

    Attributes:
        memories: Texts stored beforehand.
        sessions: Dialogues; each states some new facts and corrects one stored memory.
        queries: Questions, each with the memory that answers it.
    """

    memories: list[str]
    sessions: list[list[dict[str, str]]]
    queries: list[tuple[str, str]]

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def make_workload(memories: int, sessions: int, facts: int, queries: int, *, seed: int) -> Workload:
    """Make a workload.

    Args:
        memories: How many are stored beforehand.
        sessions: How many dialogues.
        facts: How many a dialogue states. All are new but the last, which corrects a memory that no other one corrects.
        queries: How many questions.
        seed: Of the draw.

    Raises:
        ValueError: If there are not enough memories to correct or to ask for.
    """
    if sessions > memories or queries > memories:
        raise ValueError(f"{sessions} sessions and {queries} queries need at least as many memories, not {memories}")
    rng = random.Random(seed)
    places = ["".join(parts).capitalize() for parts in itertools.product(_SYLLABLES.split(), repeat=3)]
    pairs = [(thing, place) for thing in _THINGS.split() for place in places]
    drawn = iter(rng.sample(pairs, memories + sessions * (facts - 1)))
    stored = [(rng.choice(_KEEPS), rng.randrange(2, 60), *next(drawn)) for _ in range(memories)]
    # Corrected memories come from the front and queried ones from the back, so that the answers still stand.
    corrected = iter(stored[:sessions])
    dialogues = []
    for _ in range(sessions):
        fresh = [(rng.choice(_KEEPS), rng.randrange(2, 60), *next(drawn)) for _ in range(facts - 1)]
        keeps, count, thing, place = next(corrected)
        said = [REMEMBER + _sentence(*fact) for fact in fresh]
        said.append(CORRECT + _sentence(keeps, count + 60, thing, place))
        dialogues.append(_dialogue(said, rng))
    asked = [(f"How many {fact[2]} does Ann have in {fact[3]}?", _sentence(*fact)) for fact in stored[-queries:]]
    return Workload([_sentence(*fact) for fact in stored], dialogues, asked)


_WORDS = [
    f"{first}{second}" for first in ("bar", "lom", "ket", "sor", "vin", "dul", "pra") for second in ("ton", "rik", "mas")
]


def random_sentence(rng: random.Random) -> str:
    """A sentence that no other one equals, of words that many share."""
    return f"Ann {' '.join(rng.choices(_WORDS, k=9))} {rng.randrange(10**9)}."


def _sentence(keeps: str, count: int, thing: str, place: str) -> str:
    return f"Ann {keeps} {count} {thing} in {place}."


def _dialogue(said: list[str], rng: random.Random) -> list[dict[str, str]]:
    turns = []
    for sentence in said:
        turns.append({"role": "user", "content": f"{rng.choice(_CHATTER)} {sentence}"})
        turns.append({"role": "assistant", "content": rng.choice(_REPLIES)})
    return turns
