"""Where benchmark data is looked for."""

import re
from pathlib import Path

import pytest

from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256
from eval.data import (
    FETCHABLE,
    HALUMEM_USER,
    LOCOMO,
    LOCOMO_AUDIT,
    PERSONAMEM_CONTEXTS,
    PERSONAMEM_EXCERPT,
    Dataset,
    data_folders,
    find,
    missing,
    require,
)


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


@pytest.mark.parametrize(
    ("name", "dataset"), [(name, dataset) for name, datasets in FETCHABLE.items() for dataset in datasets]
)
def test_missing_data_names_the_command_that_fetches_it(name: str, dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match=f"python -m eval fetch {name} --accept-licence") as error:
        require(dataset, [tmp_path])
    assert dataset.licence in str(error.value)
    assert "\n" not in str(error.value)


def test_what_no_command_fetches_names_none() -> None:
    assert "python -m eval fetch" not in missing(HALUMEM_USER)
    assert "IAAR-Shanghai/HaluMem" in missing(HALUMEM_USER)


def test_files_have_places_of_their_own_and_origins_that_stay() -> None:
    datasets = [dataset for group in FETCHABLE.values() for dataset in group] + [HALUMEM_USER, PERSONAMEM_EXCERPT]
    assert len({dataset.path for dataset in datasets}) == len(datasets)
    for dataset in datasets:
        assert not Path(dataset.path).is_absolute()
        assert dataset.sha256 is None or re.fullmatch("[0-9a-f]{64}", dataset.sha256)
        if isinstance(dataset.origin, str):  # a commit, not a branch, wherever a sum is checked
            assert re.search("/[0-9a-f]{40}/", dataset.origin)
            assert dataset.sha256


@pytest.mark.parametrize("dataset", [LOCOMO, LOCOMO_AUDIT, HALUMEM_USER, PERSONAMEM_CONTEXTS, PERSONAMEM_EXCERPT])
def test_the_files_here_are_the_published_ones(dataset: Dataset) -> None:
    if (path := find(dataset)) is None:
        pytest.skip(missing(dataset))
    assert file_sha256(path) == dataset.sha256
