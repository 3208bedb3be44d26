"""What is forgotten is gone from every file of the index."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from bank_cases import check_ranking, lettered, move, open_bank, state_of, vectors_of
from lazy import Lazy

from deltamem.errors import DeltaMemError
from deltamem.memory import MemoryState

chroma = Lazy("deltamem.bank.chroma")
chromadb = Lazy("chromadb")

VICTIM = 987_654
QUERIES = vectors_of(["a query", "e query"])


def files_with(folder: Path, content: bytes) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and content in path.read_bytes()]


def bytes_of(text: str) -> bytes:
    return vectors_of([text])[0].tobytes()


# Above 1,000 rows Chroma writes the HNSW files, below it keeps vectors in its queue only.
@pytest.mark.parametrize("memories", [50, 1150])
def test_a_forgotten_memory_leaves_no_bytes(tmp_path: Path, memories: int) -> None:
    index = chroma.ChromaIndex.open(tmp_path)
    texts = {VICTIM: "a secret", 2: "b former", **{n: t for n, t in lettered(range(1, memories)).items() if n != 2}}
    bank = open_bank(index, "Ana", state_of(texts))
    other = open_bank(index, "Ben", state_of({1: "c of Ben"}))
    texts[2] = "b present"
    move(bank, texts, 2)
    assert bank.flush()
    assert files_with(tmp_path, bytes_of("a secret"))
    assert files_with(tmp_path, f"m{VICTIM}".encode())
    del texts[VICTIM]
    move(bank, texts, 3)
    bank.purge()
    assert files_with(tmp_path, bytes_of("a secret")) == []
    assert files_with(tmp_path, f"m{VICTIM}".encode()) == []
    assert files_with(tmp_path, bytes_of("b former")) == []
    check_ranking(bank.search(QUERIES, 5), state_of(texts), QUERIES, 5)
    np.testing.assert_array_equal(bank.vectors(list(bank.state)), vectors_of([m.text for m in bank.state.memories]))
    check_ranking(other.search(QUERIES, 5), state_of({1: "c of Ben"}), QUERIES, 5)
    move(bank, {**texts, 5: "a further"}, 4)
    index.close()
    assert files_with(tmp_path, bytes_of("a secret")) == []
    assert files_with(tmp_path, bytes_of("a further"))


def test_a_forgotten_owner_leaves_no_bytes(tmp_path: Path) -> None:
    index = chroma.ChromaIndex.open(tmp_path)
    bank = open_bank(index, "Ana", state_of({VICTIM: "a secret", **lettered(range(1, 1100))}))
    other = open_bank(index, "Ben", state_of({1: "c of Ben"}))
    move(bank, {VICTIM: "a secret", 1: "d pending"}, 2)
    assert files_with(tmp_path, index.name_of("Ana").encode())
    index.drop("Ana")
    for content in (bytes_of("a secret"), f"m{VICTIM}".encode(), bytes_of("d pending"), index.name_of("Ana").encode()):
        assert files_with(tmp_path, content) == []
    assert index.status("Ana") is None
    check_ranking(other.search(QUERIES, 5), state_of({1: "c of Ben"}), QUERIES, 5)
    with pytest.raises(DeltaMemError):
        bank.search(QUERIES, 5)
    assert open_bank(index, "Ana", MemoryState(), 0).search(QUERIES, 5) == [[], []]
    index.close()
    assert files_with(tmp_path, bytes_of("a secret")) == []


def test_erasing_that_was_interrupted_is_completed_on_opening(tmp_path: Path) -> None:
    index = chroma.ChromaIndex.open(tmp_path / "index")
    texts = {VICTIM: "a secret", **lettered(range(1, 1100))}
    open_bank(index, "Ana", state_of(texts))
    index.close()
    # The journal has forgotten, the process ended before the index did.
    del texts[VICTIM]
    index = chroma.ChromaIndex.open(tmp_path / "index")
    bank = open_bank(index, "Ana", state_of(texts), 2, f"m{VICTIM}")
    check_ranking(bank.search(QUERIES, 5), state_of(texts), QUERIES, 5)
    index.close()
    assert files_with(tmp_path, bytes_of("a secret")) == []


def test_a_purge_cut_short_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = chroma.ChromaIndex.open(tmp_path / "index")
    texts = lettered(range(1, 50))
    bank = open_bank(index, "Ana", state_of(texts))
    copies: list[Path] = []
    delete = chromadb.api.client.Client.delete_collection

    def copy() -> None:
        copies.append(tmp_path / f"killed {len(copies)}")
        shutil.copytree(tmp_path / "index", copies[-1])

    def copying(client: chromadb.api.client.Client, name: str) -> None:
        copy()
        delete(client, name)
        copy()

    monkeypatch.setattr(chromadb.api.client.Client, "delete_collection", copying)
    bank.purge()
    monkeypatch.undo()
    index.close()
    assert len(copies) >= 3
    # What a kill leaves is examined in `test_a_process_that_ends_without_closing_loses_only_what_was_pending`.
    monkeypatch.setattr(chroma.chroma_files, "is_sound", lambda folder: True)
    for killed in copies:
        index = chroma.ChromaIndex.open(killed)
        check_ranking(open_bank(index, "Ana", state_of(texts)).search(QUERIES, 5), state_of(texts), QUERIES, 5)
        assert index.collections() == [index.name_of("Ana")]
        index.close()


def test_space_that_chroma_only_reserves_is_empty(tmp_path: Path) -> None:
    # Chroma fills it with whatever the process had in memory before.
    texts = lettered(range(1, 60))
    index = chroma.ChromaIndex.open(tmp_path)
    open_bank(index, "Ana", state_of(texts))
    index.close()
    reserved = list(tmp_path.rglob("data_level0.bin"))
    assert reserved
    assert not any(any(path.read_bytes()) for path in reserved)
    index = chroma.ChromaIndex.open(tmp_path)
    check_ranking(open_bank(index, "Ana", state_of(texts)).search(QUERIES, 5), state_of(texts), QUERIES, 5)
    index.close()
