"""Where benchmark data lies. Nothing is downloaded; what is missing is named with its source and licence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deltamem.errors import DeltaMemError

ROOT = Path(__file__).resolve().parents[1]
DATA_VARIABLE = "DELTAMEM_DATA"


@dataclass(frozen=True, slots=True)
class Dataset:
    """A benchmark file that the user fetches.

    Attributes:
        name: What people call it.
        path: Where the file lies inside a data folder.
        source: Public project and file that it comes from.
        licence: Licence of the data.
    """

    name: str
    path: str
    source: str
    licence: str


LOCOMO = Dataset(
    name="LoCoMo",
    path="locomo/locomo10.json",
    source="the GitHub repository snap-research/locomo, file data/locomo10.json",
    licence="CC BY-NC 4.0: research use, no redistribution with this project",
)


def data_folders(environment: Mapping[str, str] = os.environ, root: Path = ROOT) -> list[Path]:
    """The folders that are looked through, first match first: ``$DELTAMEM_DATA``, ``data/``, ``../shared/data``.

    Args:
        environment: Environment variables.
        root: The checkout.

    Raises:
        DeltaMemError: If ``$DELTAMEM_DATA`` is set to something that is not a folder.
    """
    folders = [root / "data", root.parent / "shared" / "data"]
    if named := environment.get(DATA_VARIABLE):
        if not Path(named).is_dir():
            raise DeltaMemError(f"${DATA_VARIABLE} is {named!r}, which is not a folder")
        folders.insert(0, Path(named))
    return folders


def find(dataset: Dataset, folders: list[Path] | None = None) -> Path | None:
    """Look for a dataset.

    Args:
        dataset: What to look for.
        folders: Where to look; None means `data_folders`.

    Returns:
        The file, or None if no folder holds it.
    """
    for folder in data_folders() if folders is None else folders:
        if (folder / dataset.path).is_file():
            return folder / dataset.path
    return None


def require(dataset: Dataset, folders: list[Path] | None = None) -> Path:
    """Like `find`, for commands that cannot do without.

    Raises:
        DeltaMemError: If no folder holds the file; says what to fetch, from where and under which licence.
    """
    if (path := find(dataset, folders)) is None:
        raise DeltaMemError(missing(dataset))
    return path


def missing(dataset: Dataset) -> str:
    """One sentence on how to get a dataset."""
    return (
        f"{dataset.name} is not here: fetch it from {dataset.source} (licence {dataset.licence}) and put it at "
        f"data/{dataset.path} or ${DATA_VARIABLE}/{dataset.path}"
    )
