"""Where benchmark data is looked for."""

from pathlib import Path

import pytest

from deltamem.errors import DeltaMemError
from eval.data import LOCOMO, data_folders, find, require


def put(folder: Path) -> Path:
    path = folder / LOCOMO.path
    path.parent.mkdir(parents=True)
    path.write_text("[]")
    return path


def test_order_of_the_folders(tmp_path: Path) -> None:
    root, named = tmp_path / "checkout", tmp_path / "named"
    named.mkdir()
    folders = data_folders({"DELTAMEM_DATA": str(named)}, root)
    assert folders == [named, root / "data", tmp_path / "shared" / "data"]
    assert find(LOCOMO, folders) is None
    shared = put(tmp_path / "shared" / "data")
    assert find(LOCOMO, folders) == shared
    local = put(root / "data")
    assert find(LOCOMO, folders) == local
    own = put(named)
    assert find(LOCOMO, folders) == own
    assert require(LOCOMO, data_folders({}, root)) == local


def test_missing_data_says_what_to_fetch_and_its_licence(tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match=r"snap-research/locomo.*CC BY-NC 4\.0.*data/locomo/locomo10\.json"):
        require(LOCOMO, [tmp_path])


def test_variable_that_names_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match=r"DELTAMEM_DATA.*not a folder"):
        data_folders({"DELTAMEM_DATA": str(tmp_path / "absent")}, tmp_path)
