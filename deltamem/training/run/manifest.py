"""The list of a checkpoint's files, written last: a checkpoint without it, or that differs from it, is not whole."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError
from deltamem.files import atomic_writer

MANIFEST_FILE = "manifest.json"

_CONTENTS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}
"""verl's name of a part of a checkpoint -> how its files are named."""
_LOOK_AGAIN_SECONDS = 1.0


def step_of(checkpoint: Path) -> int:
    """The training step of a checkpoint folder."""
    return int(checkpoint.name.removeprefix("global_step_"))


def write_manifest(
    checkpoint: Path, contents: Sequence[str], metrics: Mapping[str, float], *, patience: float = 120.0
) -> None:
    """List all files of a checkpoint with their sizes, after they have reached the disk.

    Args:
        checkpoint: A folder ``global_step_N`` that all ranks have finished.
        contents: What each rank has saved, ``actor.checkpoint.save_contents`` of verl.
        metrics: What is known of the step; a process that ends before it has logged them would lose them.
        patience: Seconds to wait for files of other nodes to appear in a shared file system.

    Raises:
        DeltaMemError: If a rank's file is missing.
    """
    actor = checkpoint / "actor"
    deadline = time.monotonic() + patience
    while missing := _missing(actor, contents):
        if time.monotonic() >= deadline:
            raise DeltaMemError(
                f"{missing}: not there after all ranks have saved; checkpoints of several nodes need a shared file system"
            )
        time.sleep(_LOOK_AGAIN_SECONDS)
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)
    sizes = {str(path.relative_to(checkpoint)): _flushed_size(path) for path in files}
    for folder in {path.parent for path in files}:
        _flush(folder)
    with atomic_writer(checkpoint / MANIFEST_FILE) as file:
        json.dump({"step": step_of(checkpoint), "files": sizes, "metrics": dict(metrics)}, file, indent=1)
    _flush(checkpoint)
    _flush(checkpoint.parent)


def _missing(actor: Path, contents: Sequence[str]) -> Path | None:
    description = actor / "fsdp_config.json"
    try:
        ranks = int(json.loads(description.read_text(encoding="utf-8"))["world_size"])
    except (OSError, ValueError, KeyError):
        return description
    kinds = [_CONTENTS[name] for name in contents if name in _CONTENTS]
    files = (actor / f"{kind}_world_size_{ranks}_rank_{rank}.pt" for kind in kinds for rank in range(ranks))
    return next((path for path in files if not path.is_file()), None)


def _flushed_size(path: Path) -> int:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        # Of the open file: what a shared file system remembers of a name may be old.
        return os.fstat(file.fileno()).st_size


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint was written to its end, and nothing of it was removed since."""
    manifest = _read(checkpoint)
    if manifest is None or manifest["step"] != step_of(checkpoint):
        return False
    try:
        return all((checkpoint / name).stat().st_size == size for name, size in manifest["files"].items())
    except FileNotFoundError:  # what cannot be looked at is an error, not a reason to throw a checkpoint away
        return False


def metrics_of(checkpoint: Path) -> dict[str, float]:
    """What the manifest says of the checkpoint's last step; empty without a manifest."""
    manifest = _read(checkpoint)
    return {} if manifest is None else dict(manifest["metrics"])


def _read(checkpoint: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((checkpoint / MANIFEST_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    whole = isinstance(manifest, dict) and {"step", "files", "metrics"} <= manifest.keys()
    return manifest if whole else None
