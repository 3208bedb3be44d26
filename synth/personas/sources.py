"""Persona seeds from a file of the user or from PersonaHub."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError
from synth.personas.settings import PERSONAHUB, PersonaSettings

_COLUMNS = ("persona", "input persona")
_CONFIG = "persona"
LONGEST = 400
"""Characters of a seed (`synth.records.Line`)."""


def from_file(settings: PersonaSettings, count: int, seed: int) -> list[str]:
    """Draw seeds from a file of JSON lines or of lines of text, all different.

    Raises:
        DeltaMemError: If the file cannot be read, a line has no persona or one that is too long, or there are too few.
    """
    path = Path(settings.path or "")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise DeltaMemError(f"{path}: {reason}") from error
    personas = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            persona = _from_json(line, settings.column, f"{path}, line {number}") if path.suffix == ".jsonl" else line
            if len(persona.strip()) > LONGEST:
                raise DeltaMemError(
                    f"{path}, line {number}: a persona of {len(persona)} characters; at most {LONGEST} are read"
                )
            personas.append(persona)
    return _draw(personas, count, seed, str(path))


def from_personahub(settings: PersonaSettings, count: int, seed: int) -> list[str]:
    """Draw seeds from PersonaHub, all different, through the package ``datasets``; the only place with network access.

    Raises:
        DeltaMemError: If the data set cannot be loaded; the message names the command that fetches it.
    """
    try:
        import datasets
    except ImportError as error:
        raise DeltaMemError("personas.source=personahub needs the package datasets: pip install datasets") from error
    source = settings.path or PERSONAHUB
    try:
        if settings.path:
            rows = datasets.load_dataset("json", data_files=settings.path, split="train")
        else:
            rows = datasets.load_dataset(PERSONAHUB, _CONFIG, split="train", revision=settings.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DeltaMemError(
            f"{source}: {type(error).__name__}, the personas cannot be loaded; where there is network, fetch them with: "
            f"hf download {PERSONAHUB} persona.jsonl --repo-type dataset --local-dir DIR; then name "
            "personas.path=DIR/persona.jsonl"
        ) from error
    column = _column(dict.fromkeys(rows.column_names, ""), settings.column)
    if column is None:
        raise DeltaMemError(f"{source}: no column {settings.column!r} but {rows.column_names} (personas.column)")
    return _draw(rows[column], count, seed, source)


def _from_json(line: str, column: str | None, where: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DeltaMemError(f"{where}: not JSON") from error
    if isinstance(record, str) and column is None:
        return record
    texts = {key: text for key, text in record.items() if isinstance(text, str)} if isinstance(record, dict) else {}
    found = _column(texts, column)
    if found is None:
        raise DeltaMemError(f"{where}: no text under {column!r}" if column else f"{where}: no text")
    return texts[found]


def _column(texts: Mapping[str, Any], column: str | None) -> str | None:
    """Which of the keys holds the persona."""
    if column is not None:
        return column if column in texts else None
    return next((name for name in (*_COLUMNS, *texts) if name in texts), None)


def _draw(personas: Sequence[str], count: int, seed: int, where: str) -> list[str]:
    """Different ones in random order; which come first does not depend on `count`."""
    order = list(range(len(personas)))
    random.Random(f"{seed}/personas").shuffle(order)
    drawn: dict[str, str] = {}
    for index in order:
        persona = " ".join(personas[index].split())
        if 0 < len(persona) <= LONGEST:
            drawn.setdefault(persona.casefold(), persona)
            if len(drawn) == count:
                break
    if len(drawn) < count:
        raise DeltaMemError(f"{where} has {len(drawn)} different personas, but {count} are asked for")
    return list(drawn.values())
