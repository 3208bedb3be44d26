"""Prompt texts as files; every result records the hash of the prompt it was made with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template

from deltamem.errors import DeltaMemError


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt file.

    Attributes:
        name: File name without ``.txt``.
        text: The whole text; ``$name`` marks what is filled in.
        sha256: Hash of the text.
    """

    name: str
    text: str
    sha256: str

    def fill(self, **values: str) -> str:
        """Fill in the marked places.

        Raises:
            KeyError: If a marked place has no value.
        """
        return Template(self.text).substitute(values)


@cache
def load_prompt(name: str) -> Prompt:
    """Load ``deltamem/prompts/<name>.txt``.

    Raises:
        DeltaMemError: If there is no such prompt.
    """
    folder = resources.files(__name__)
    available = sorted(entry.name.removesuffix(".txt") for entry in folder.iterdir() if entry.name.endswith(".txt"))
    if name not in available:
        raise DeltaMemError(f"prompt {name!r} does not exist; there are: {', '.join(available)}")
    text = folder.joinpath(f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")
    return Prompt(name, text, hashlib.sha256(text.encode("utf-8")).hexdigest())
