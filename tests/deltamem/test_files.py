"""A file is either whole or not there."""

import pytest

from deltamem.runs import atomic_writer


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_the_file_takes_its_name_at_the_end(tmp_path):
    path = tmp_path / "note.txt"
    with atomic_writer(path) as file:
        file.write("Zoë ✓\n")
        assert not path.exists()
    assert path.read_bytes() == "Zoë ✓\n".encode()
    assert names(tmp_path) == ["note.txt"]


def test_an_older_file_stays_until_then(tmp_path):
    path = tmp_path / "note.txt"
    path.write_text("old", encoding="utf-8")
    with atomic_writer(path) as file:
        file.write("new")
        file.flush()
        assert path.read_text("utf-8") == "old"
    assert path.read_text("utf-8") == "new"


@pytest.mark.parametrize("error", [RuntimeError("broke"), KeyboardInterrupt()])
def test_nothing_remains_when_the_block_raises(tmp_path, error):
    path = tmp_path / "note.txt"
    with pytest.raises(type(error)), atomic_writer(path) as file:
        file.write("half")
        raise error
    assert names(tmp_path) == []


def test_an_older_file_survives_when_the_block_raises(tmp_path):
    path = tmp_path / "note.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(RuntimeError), atomic_writer(path) as file:
        file.write("half")
        raise RuntimeError
    assert names(tmp_path) == ["note.txt"] and path.read_text("utf-8") == "old"


def test_nothing_remains_when_the_name_cannot_be_taken(tmp_path):
    (tmp_path / "note.txt").mkdir()
    with pytest.raises(OSError), atomic_writer(tmp_path / "note.txt") as file:
        file.write("text")
    assert names(tmp_path) == ["note.txt"]


def test_a_missing_folder_is_an_error_of_the_operating_system(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_writer(tmp_path / "missing" / "note.txt"):
        pass
    assert names(tmp_path) == []
