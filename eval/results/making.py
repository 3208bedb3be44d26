"""What the records of a folder were made with, so that a later run continues the same thing or is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError
from deltamem.files import atomic_writer

MAKING_FILE = "making.json"

_SAID_FIRST = ("benchmark", "system")
"""Where these differ, so does much else, which would say less."""


def check_making(folder: Path, making: Mapping[str, Any]) -> None:
    """Make sure that a folder holds records that were made with the same settings, or none yet; then note the settings.

    Args:
        folder: The output folder; made if it does not exist.
        making: All that decides the records; JSON values.

    Raises:
        DeltaMemError: If other settings were noted; names the first that differs.
        OSError: If the folder cannot be written.
    """
    path = folder / MAKING_FILE
    now = json.loads(json.dumps(making))
    if path.exists():
        try:
            before = json.loads(path.read_bytes())
        except ValueError as error:
            raise DeltaMemError(f"{path}: not valid JSON") from error
        for key in sorted({*now, *before}, key=lambda key: (key not in _SAID_FIRST, key)):
            if now.get(key) != before.get(key):
                raise DeltaMemError(
                    f"{folder} holds results that were made with {key} = {before.get(key)!r}, not {now.get(key)!r}; "
                    "choose another out=... or remove the folder"
                )
        return
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path) as file:
        json.dump(now, file, indent=2)
