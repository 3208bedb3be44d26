"""verl's checkpoints: which are complete, which may go, and how much room they need."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from deltamem.errors import DeltaMemError
from deltamem.training.run.manifest import is_whole, step_of

_BYTES_A_PARAMETER = 12
"""A float32 weight and Adam's two moments."""


def latest_complete(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end; None if there is none.

    verl notes its last step in a file of its own. It is not relied upon: it may be cut off, or name a folder whose files
    are.
    """
    return next((path for path in _found(folder) if is_whole(path)), None)


def remove_incomplete(folder: Path) -> None:
    """Remove what an interrupted write or removal left of checkpoints."""
    for path in _found(folder):
        if not is_whole(path):
            shutil.rmtree(path)


def remove_old(folder: Path, *, keep: int | None) -> None:
    """Remove all whole checkpoints but the newest.

    verl's own rotation would remove the last one before the next is whole.

    Args:
        folder: Where the checkpoints are.
        keep: How many remain; None keeps all.
    """
    if keep is not None:
        for path in [path for path in _found(folder) if is_whole(path)][keep:]:
            shutil.rmtree(path)


def _found(folder: Path) -> list[Path]:
    """All checkpoint folders, the newest first."""
    found = [path for path in folder.glob("global_step_*") if path.name.removeprefix("global_step_").isdigit()]
    return sorted(found, key=step_of, reverse=True)


def parameter_count(model: Path) -> int | None:
    """Parameters of a Hugging Face folder, from the headers of its safetensors files; None without such files."""
    files = list(model.glob("*.safetensors"))
    return sum(_parameters(path) for path in files) if files else None


def _parameters(path: Path) -> int:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(_product(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _product(numbers: Iterable[int]) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product


def check_space(folder: Path, model: Path, *, keep: int) -> None:
    """Refuse to begin a run whose checkpoints will not fit.

    Args:
        folder: Where the checkpoints go; exists.
        model: The starting model; nothing is checked if it is not a local folder.
        keep: Checkpoints kept; one more is there while the next is written.

    Raises:
        DeltaMemError: If there is too little room.
    """
    parameters = parameter_count(model)
    if parameters is None:
        return
    have = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    need = parameters * (_BYTES_A_PARAMETER * (keep + 1) + 4)
    free = shutil.disk_usage(folder).free
    if need - have > free:
        raise DeltaMemError(
            f"{folder}: the checkpoints and the exported policy need about {_size(need - have)}, but only {_size(free)} are "
            "free; make room or choose another deltamem.out"
        )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
