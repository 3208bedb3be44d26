"""Prompts of answerers and judges: texts in files, filled in one pass, hashed into every result."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

from deltamem.errors import DeltaMemError

_SUFFIX = ".md"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt with marked places.

    Attributes:
        name: Of the file, without folder and ``.md``.
        text: The whole text; ``$field`` or ``${field}`` marks what is filled in, ``$$`` is a dollar sign.
        sha256: Hash of the text.
    """

    name: str
    text: str
    sha256: str

    def fill(self, **fields: str) -> str:
        """Fill in the marked places; what is filled in is never expanded itself, and unused fields do not matter.

        Raises:
            KeyError: If a marked place has no field.
        """
        return Template(self.text).substitute(fields)


def load_prompt(name_or_path: str, fields: Collection[str]) -> Prompt:
    """Load a prompt of this package by its name, or any file.

    Args:
        name_or_path: A name such as ``answer_locomo``, or the path of a file: what ends in ``.md`` or has a folder in it.
        fields: What the prompt must leave room for, all of it and nothing else.

    Raises:
        DeltaMemError: If there is no such prompt, or its marked places are not the fields.
    """
    own = resources.files(__package__).joinpath("prompts")
    path = Path(name_or_path)
    if path.suffix == _SUFFIX or path.name != name_or_path:
        source, name = str(path), path.name.removesuffix(_SUFFIX)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DeltaMemError(f"prompt {path} cannot be read: {error}") from error
    else:
        names = sorted(entry.name.removesuffix(_SUFFIX) for entry in own.iterdir() if entry.name.endswith(_SUFFIX))
        if name_or_path not in names:
            raise DeltaMemError(f"prompt {name_or_path!r} does not exist; there are: {', '.join(names)}, and files")
        source, name = f"prompt {name_or_path!r}", name_or_path
        text = own.joinpath(name + _SUFFIX).read_text(encoding="utf-8")
    text = text.strip("\n")
    template = Template(text)
    if not template.is_valid():
        raise DeltaMemError(f"{source}: a $ that begins no field; write $$ for a dollar sign")
    found = set(template.get_identifiers())
    if found != set(fields):
        expected = ", ".join(f"${field}" for field in sorted(fields))
        has = ", ".join(f"${field}" for field in sorted(found)) or "no fields"
        raise DeltaMemError(f"{source} has {has}; expected exactly {expected}")
    return Prompt(name, text, hashlib.sha256(text.encode("utf-8")).hexdigest())
