"""Prompt texts as files; every result records the hash of the prompt it was made with."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template
from typing import Self

from deltamem.errors import DeltaMemError


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt: ``$name`` or ``${name}`` in its text marks what is filled in, ``$$`` is a dollar sign."""

    name: str
    """Of the file, without folder and suffix."""
    text: str
    sha256: str

    @classmethod
    def of(cls, name: str, text: str) -> Self:
        """The prompt that a file holds; line ends around the text do not count."""
        text = text.strip("\n")
        return cls(name, text, hashlib.sha256(text.encode("utf-8")).hexdigest())

    def fill(self, **values: str) -> str:
        """Fill in the marked places in one pass: what is filled in is never expanded itself, unused values do not matter.

        Raises:
            KeyError: If a marked place has no value.
        """
        return Template(self.text).substitute(values)

    def check_fields(self, fields: Collection[str], source: str) -> None:
        """Make sure that the marked places are these.

        Raises:
            DeltaMemError: If there are others or fewer; the sentence begins with `source`.
        """
        template = Template(self.text)
        if not template.is_valid():
            raise DeltaMemError(f"{source}: a $ that begins no field; write $$ for a dollar sign")
        found = set(template.get_identifiers())
        if found != set(fields):
            expected = ", ".join(f"${field}" for field in sorted(fields))
            has = ", ".join(f"${field}" for field in sorted(found)) or "no fields"
            raise DeltaMemError(f"{source} has {has}; expected exactly {expected}")


@cache
def load_prompt(name: str, package: str = __name__) -> Prompt:
    """Load a prompt by the name of its file.

    Args:
        name: Without the suffix.
        package: The folder, for example ``synth.prompts``.

    Raises:
        DeltaMemError: If there is no such prompt.
    """
    suffixes = (".txt", ".md")
    files = {
        entry.name.rpartition(".")[0]: entry for entry in resources.files(package).iterdir() if entry.name.endswith(suffixes)
    }
    if name not in files:
        raise DeltaMemError(f"prompt {name!r} does not exist; there are: {', '.join(sorted(files))}")
    return Prompt.of(name, files[name].read_text(encoding="utf-8"))
