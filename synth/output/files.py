"""The files of a data set, and how people are read back from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deltamem.errors import DeltaMemError
from synth.pipeline.work import PEOPLE_STORE, SHARDS_FOLDER, WORK_FOLDER
from synth.records import Person

PEOPLE_FILE = "people.jsonl"
SESSIONS_FILE = "sessions.jsonl"
REJECTED_FILE = "rejected.jsonl"
TRAIN_FILE = "train.parquet"
HELDOUT_FILE = "heldout.parquet"
CARD_FILE = "README.md"
REPORT_FILE = "report.html"
MANIFEST_FILE = "dataset.json"
"""Written last: where it exists, the other files are whole."""

FILES = (
    MANIFEST_FILE,
    PEOPLE_FILE,
    SESSIONS_FILE,
    REJECTED_FILE,
    TRAIN_FILE,
    HELDOUT_FILE,
    CARD_FILE,
    REPORT_FILE,
)


def read_manifest(out: Path) -> dict[str, Any]:
    """Read ``dataset.json``.

    Raises:
        DeltaMemError: If there is no finished data set in the folder.
    """
    path = out / MANIFEST_FILE
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DeltaMemError(f"{path}: no such file; the data set in this folder is not finished") from None
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or "statistics" not in manifest:
        raise DeltaMemError(f"{path}: not the manifest of a data set that python -m synth wrote")
    return manifest


def read_unfinished(out: Path) -> Iterator[Person]:
    """Read the people who are finished so far, in the order of their ids, while others are still being written.

    The stores of a run and of its shards (`synth.pipeline.store`) are read without their lock; a line that is not whole is
    left out.
    """
    places: dict[str, tuple[Path, int]] = {}
    folders = [out, *(out / SHARDS_FOLDER).glob("*")]
    for path in sorted(found for folder in folders if (found := folder / WORK_FOLDER / PEOPLE_STORE).is_file()):
        with path.open("rb") as lines:
            start = 0
            for line in lines:
                if line.endswith(b"\n"):
                    places[json.loads(line)["key"]] = path, start
                start += len(line)
    for _, (path, start) in sorted(places.items()):
        with path.open("rb") as file:
            file.seek(start)
            yield Person.model_validate(json.loads(file.readline())["value"]["person"])


def read_people(path: Path) -> Iterator[Person]:
    """Read ``people.jsonl`` lazily.

    Raises:
        DeltaMemError: If the file is missing or a line cannot be read; the message names file and line.
    """
    try:
        lines = path.open("rb")
    except FileNotFoundError:
        raise DeltaMemError(f"{path}: no such file; make one with: python -m synth out={path.parent}") from None
    with lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield Person.model_validate_json(line)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"]) or "the line"
                raise DeltaMemError(f"{path}, line {number}: {where}: {first['msg']}") from error
