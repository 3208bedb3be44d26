"""Where a store lies on disk."""

from __future__ import annotations

from pathlib import Path

from deltamem.errors import DeltaMemError
from eval.systems.protocol import StoreKey

_LONGEST = 255
"""Bytes that file systems take as a name."""


def store_folder(root: Path, key: StoreKey) -> Path:
    """The folder of a store, which bears its id; not made here.

    Raises:
        DeltaMemError: If the id cannot be the name of a folder.
    """
    name = key.id
    if name in ("", ".", "..") or set(name) & set("/\\\0") or len(name.encode("utf-8", "surrogatepass")) > _LONGEST:
        raise DeltaMemError(f"the id {name!r} of a store cannot be the name of a folder")
    return root / name
