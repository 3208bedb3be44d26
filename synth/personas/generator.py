"""Our own persona seeds: an occupation, a place, an interest and a circumstance, put into a sentence.

The sentences are numbered, and no two numbers have the same one, so that any number of people are told apart without
remembering who came before.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from deltamem.errors import DeltaMemError
from synth.personas.pools import CIRCUMSTANCES, INTERESTS, OCCUPATIONS, SENTENCES
from synth.planning.pools import CITIES

TOTAL = len(OCCUPATIONS) * len(CITIES) * len(INTERESTS) * len(CIRCUMSTANCES) * len(SENTENCES)
"""How many different seeds there are."""


def sentence(number: int) -> str:
    """The seed of a number from 0 to `TOTAL` - 1; different numbers have different seeds."""
    number, occupation = divmod(number, len(OCCUPATIONS))
    number, place = divmod(number, len(CITIES))
    number, interest = divmod(number, len(INTERESTS))
    form, circumstance = divmod(number, len(CIRCUMSTANCES))
    article = "an" if OCCUPATIONS[occupation][0] in "aeio" else "a"
    return SENTENCES[form].format(
        A=article.capitalize(),
        a=article,
        occupation=OCCUPATIONS[occupation],
        place=CITIES[place],
        interest=INTERESTS[interest],
        circumstance=CIRCUMSTANCES[circumstance],
    )


def generate(count: int, seed: int) -> Iterator[str]:
    """Seeds in an order that depends on `seed`, all different; a larger count only appends.

    Raises:
        DeltaMemError: If there are not so many.
    """
    if count > TOTAL:
        raise DeltaMemError(f"{count} persona seeds are asked for, but only {TOTAL} different ones can be generated")
    rng = random.Random(f"{seed}/personas")
    # i -> factor * i + offset (modulo the total) meets every number once, since factor and total share no divisor.
    factor = offset = rng.randrange(TOTAL)
    while math.gcd(factor, TOTAL) != 1:
        factor = rng.randrange(TOTAL)
    return (sentence((factor * index + offset) % TOTAL) for index in range(count))
