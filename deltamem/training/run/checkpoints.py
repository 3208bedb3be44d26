"""verl's checkpoints: which are complete, and which may go."""

from __future__ import annotations

import shutil
from pathlib import Path

from deltamem.training.run.manifest import is_whole, step_of


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
