"""Invented proper names whose spelling tells the split, so that held-out people share no name with training people."""

from __future__ import annotations

import hashlib
import random

from deltamem.sessions import Split

_ONSETS = [
    "b", "br", "c", "ch", "cl", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl",
    "l", "m", "n", "p", "pr", "qu", "r", "s", "sh", "st", "t", "tr", "v", "w", "z",
]  # fmt: skip
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "io"]
_CODAS = ["", "n", "r", "l", "s", "m", "x", "nd", "rt", "ck"]
_HELDOUT_SHARE = 51 / 256
"""Share of all spellings that belongs to held-out people."""


def name_split(name: str) -> Split:
    """The only split in which a name may occur."""
    first_byte = hashlib.sha256(name.encode("utf-8")).digest()[0]
    return "heldout" if first_byte / 256 < _HELDOUT_SHARE else "train"


def invent_name(rng: random.Random, split: Split) -> str:
    """Invent a name of two syllables (about 150,000 spellings) that belongs to the split."""
    while True:
        syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(2))
        name = ("".join(syllables) + rng.choice(_CODAS)).capitalize()
        if name_split(name) == split:
            return name
