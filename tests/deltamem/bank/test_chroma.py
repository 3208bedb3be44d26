"""The index is derived: whatever happened to it, an opened bank is right, and no more is embedded than must be."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from bank_cases import HashEmbedder, check_ranking, lettered, move, open_bank, state_of, vectors_of
from lazy import Lazy

from deltamem.errors import DeltaMemError, EmbedderUnavailableError

chroma = Lazy("deltamem.bank.chroma")
chromadb = Lazy("chromadb")

QUERIES = vectors_of([f"{letter} query" for letter in "abcdefgh"])
TEXTS = lettered(range(1, 31))
LARGE = lettered(range(1, 1051))


def opened(
    index: chroma.ChromaIndex, texts: dict[int, str], position: int, *changed: str, owner: str = "Ana", **options: Any
) -> chroma.ChromaBank:
    return open_bank(index, owner, state_of(texts), position, *changed, **{"exact_up_to": 0, **options})


def check_search(bank: chroma.ChromaBank, texts: dict[int, str]) -> None:
    check_ranking(bank.search(QUERIES, 5), state_of(texts), QUERIES, 5, may_miss=1)


def check(bank: chroma.ChromaBank, texts: dict[int, str], position: int) -> None:
    state = state_of(texts)
    assert (bank.state, bank.position) == (state, position)
    check_search(bank, texts)
    np.testing.assert_array_equal(bank.vectors(list(state)), vectors_of([m.text for m in state.memories]))


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that was closed in good order at position 5."""
    path = tmp_path_factory.mktemp("closed") / "index"
    index = chroma.ChromaIndex.open(path)
    opened(index, TEXTS, 5)
    index.close()
    return path


@pytest.fixture
def folder(closed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(closed, tmp_path / "index")


def reopen(folder: Path, texts: dict[int, str], position: int, *changed: str, name: str = "hash") -> list[str]:
    """Open, check, close; returns what was embedded, each text once."""
    embedder = HashEmbedder(name)
    index = chroma.ChromaIndex.open(folder)
    check(opened(index, texts, position, *changed, embedder=embedder), texts, position)
    status = index.status("Ana")
    index.close()
    assert status == chroma.IndexStatus(position, name, len(texts))
    return list(dict.fromkeys(embedder.embedded))


def test_what_it_missed_is_all_that_is_embedded(folder: Path, tmp_path: Path) -> None:
    assert reopen(folder, TEXTS, 5) == [], "it is in step"
    assert reopen(folder, TEXTS, 8) == [], "only the position moved"
    backup = shutil.copytree(folder, tmp_path / "backup")
    texts = {**TEXTS, 3: "h changed", 40: "a new"}
    del texts[7]
    for copy in (folder, backup):
        assert reopen(copy, texts, 9, "m3", "m7", "m40", "m41") == ["h changed", "a new"]
    assert reopen(folder, texts, 9) == []


@pytest.mark.parametrize(
    ("texts", "position", "changed", "name"),
    [
        pytest.param(TEXTS, 4, (), "hash", id="ahead of the journal"),
        pytest.param({**TEXTS, 2: "a otherwise"}, 5, (), "hash", id="other texts at the same position"),
        pytest.param({**TEXTS, 31: "a more"}, 7, (), "hash", id="a memory that no change explains"),
        pytest.param({n: TEXTS[n] for n in range(1, 20)}, 7, (), "hash", id="a loss that no change explains"),
        pytest.param(TEXTS, 5, (), "another model", id="another embedder"),
    ],
)
def test_what_does_not_fit_is_built_anew(
    folder: Path, texts: dict[int, str], position: int, changed: tuple[str, ...], name: str
) -> None:
    assert reopen(folder, texts, position, *changed, name=name) == [texts[number] for number in sorted(texts)]
    assert reopen(folder, texts, position, name=name) == []


def test_lost_rows_are_noticed(folder: Path) -> None:
    index = chroma.ChromaIndex.open(folder)
    with index.use(index.name_of("Ana"), writing=True) as collection:
        collection.delete(ids=["m4"])
    index.close()
    assert set(reopen(folder, TEXTS, 5)) == set(TEXTS.values())


class Failing(HashEmbedder):
    """Fails with an error at a text, or at once."""

    def __init__(self, error: Exception, at: str = "") -> None:
        super().__init__("mistyped")
        self.error, self.at = error, at

    def documents(self, texts: Sequence[str]) -> np.ndarray:
        if not self.at or self.at in texts:
            raise self.error
        return super().documents(texts)


def test_an_interrupted_building_leaves_what_there_was_and_progress_is_told(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    index = chroma.ChromaIndex.open(folder)
    before = index.status("Ana")
    with pytest.raises(EmbedderUnavailableError):
        opened(index, TEXTS, 5, embedder=Failing(EmbedderUnavailableError("not installed")))
    with pytest.raises(RuntimeError, match="power cut"):
        opened(index, LARGE, 1, embedder=Failing(RuntimeError("power cut"), at="b 1049"))
    assert index.status("Ana") == before, "nothing is written before all is embedded"
    opened(index, LARGE, 1, progress=lambda done, total: told.append((done, total)))
    index.close()
    assert told == [(0, 1050), (512, 1050), (1024, 1050), (1050, 1050)]


def test_a_process_that_ends_without_closing_loses_only_what_was_pending(tmp_path: Path) -> None:
    index = chroma.ChromaIndex.open(tmp_path / "index")
    bank = opened(index, TEXTS, 5, flush_every=3)
    texts = {**TEXTS, 1: "b first", 2: "c second", 40: "d third"}
    move(bank, texts, 6)
    assert bank.pending == 0
    texts |= {41: "e fourth", 42: "f fifth"}
    move(bank, texts, 7)
    assert bank.pending == 2
    # What a killed process leaves: the files as they are now, not closed.
    shutil.copytree(tmp_path / "index", tmp_path / "killed")
    check(bank, texts, 7)
    index.close()
    assert reopen(tmp_path / "killed", texts, 7, "m41", "m42") == ["e fourth", "f fifth"]
    assert reopen(tmp_path / "index", texts, 7) == []


def test_failing_writes_stay_in_memory_and_are_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    index = chroma.ChromaIndex.open(folder)
    bank = opened(index, TEXTS, 5, flush_every=2)
    texts = {**TEXTS, 1: "b first", 40: "d third"}
    del texts[9]
    with monkeypatch.context() as patch:
        # Chroma does what it is told, but the answer is lost, so the position is not written.
        upsert = chromadb.Collection.upsert

        def fails_afterwards(collection: chromadb.Collection, **rows: Any) -> None:
            upsert(collection, **rows)
            raise OSError("disk full")

        patch.setattr(chromadb.Collection, "upsert", fails_afterwards)
        with caplog.at_level(logging.WARNING):
            move(bank, texts, 6)
        assert "disk full" in caplog.text
        assert bank.pending == 3
        check_search(bank, texts)
        shutil.copytree(folder, folder.parent / "killed")
        assert not bank.flush()
        texts[41] = "a late"
        move(bank, texts, 7)
        check_search(bank, texts)
    assert bank.flush()
    assert bank.pending == 0
    check(bank, texts, 7)
    index.close()
    assert reopen(folder, texts, 7) == []
    # Killed between the steps of a write: the fingerprint announced before them still vouches for the vectors.
    monkeypatch.setattr(chroma.chroma_files, "is_sound", lambda folder: True)
    assert reopen(folder.parent / "killed", texts, 7, "m1", "m40", "m9", "m41") == ["b first", "d third", "a late"]
    assert reopen(folder.parent / "killed", texts, 7) == []


class Connections:
    """An index whose clients are counted, and refused while `refuse` is set."""

    def __init__(self, folder: Path) -> None:
        self.made = 0
        self.refuse = False
        self.folder = folder
        self.index = chroma.ChromaIndex(self._connect, str(folder), folder)

    def _connect(self) -> Any:
        if self.refuse:
            raise OSError("disk full")
        self.made += 1
        return chromadb.PersistentClient(str(self.folder), settings=chroma.client_settings())


def _fails(*_: Any, **__: Any) -> Any:
    raise OSError("disk full")


def test_after_a_failed_write_the_client_is_begun_again_as_often_as_it_takes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = Connections(folder)
    index = connections.index
    bank = opened(index, TEXTS, 5, flush_every=1)
    with monkeypatch.context() as patch:
        patch.setattr(chromadb.Collection, "modify", _fails)
        move(bank, {**TEXTS, 1: "b first"}, 6)
    assert (bank.pending, connections.made) == (1, 1)
    connections.refuse = True
    for _ in range(2):
        with pytest.raises(chroma.IndexUnavailableError, match="disk full"):
            opened(index, TEXTS, 3, owner="Ben")
    connections.refuse = False
    check(opened(index, TEXTS, 3, owner="Ben"), TEXTS, 3)
    opened(index, TEXTS, 3, owner="Cem")
    assert connections.made == 2
    assert bank.flush()  # the bank that failed uses the new client too
    check(bank, {**TEXTS, 1: "b first"}, 6)
    for method, owner in (("create_collection", "Dan"), ("delete_collection", "Eve")):
        with monkeypatch.context() as patch:
            patch.setattr(chromadb.api.client.Client, method, _fails)
            with pytest.raises(chroma.IndexUnavailableError, match="disk full"):
                opened(index, TEXTS, 3, owner=owner)
        check(opened(index, TEXTS, 3, owner=owner), TEXTS, 3)
    assert connections.made == 4
    index.close()


def test_a_search_that_hnsw_refuses_is_done_exactly(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = chroma.ChromaIndex.open(folder)
    bank = opened(index, TEXTS, 5)
    query = chromadb.Collection.query

    def refuses(collection: chromadb.Collection, **asked: Any) -> Any:
        raise RuntimeError("Cannot return the results in a contiguous 2D array. Probably ef or M is too small")

    def gives_too_few(collection: chromadb.Collection, **asked: Any) -> Any:
        return query(collection, **{**asked, "n_results": 2})

    move(bank, {**TEXTS, 1: "b first"}, 6)
    for behaviour in (refuses, gives_too_few):
        monkeypatch.setattr(chromadb.Collection, "query", behaviour)
        check_ranking(bank.search(QUERIES, 5), state_of({**TEXTS, 1: "b first"}), QUERIES, 5)
    index.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So many memories that Chroma writes its HNSW files."""
    path = tmp_path_factory.mktemp("large") / "index"
    index = chroma.ChromaIndex.open(path)
    opened(index, LARGE, 5)
    index.close()
    assert list(path.rglob("index_metadata.pickle"))
    return path


def _largest(folder: Path, name: str) -> Path:
    return max(folder.rglob(name), key=lambda path: path.stat().st_size)


def _garbage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle, length = len(content) // 2, min(4096, len(content) // 4)
    content[middle : middle + length] = np.random.default_rng(0).bytes(length)
    path.write_bytes(content)


def _half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    "name",
    [
        "data_level0.bin",  # a segmentation fault, were it read here
        pytest.param("header.bin", marks=pytest.mark.slow),  # likewise
        pytest.param("chroma.sqlite3", marks=pytest.mark.slow),
    ],
)
def test_damaged_files_end_in_a_correct_bank(large: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(large, tmp_path / "index")
    _garbage(_largest(folder, name))
    # Garbage that lies where SQLite holds nothing of ours costs nothing.
    assert len(reopen(folder, LARGE, 5)) in ((0, len(LARGE)) if name == "chroma.sqlite3" else (len(LARGE),))
    assert reopen(folder, LARGE, 5) == []


@pytest.mark.parametrize("damage", [_half, Path.unlink, lambda path: shutil.rmtree(path.parent)])
@pytest.mark.parametrize("name", ["data_level0.bin", "link_lists.bin", "index_metadata.pickle", "chroma.sqlite3"])
def test_files_that_were_cut_are_never_read_to_find_out(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: Callable[[Path], None]
) -> None:
    folder = shutil.copytree(large, tmp_path / "index")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: CompletedProcess((), 1))
    assert chroma.chroma_files.is_sound(folder), "as the last orderly closing left it"
    damage(_largest(folder, name))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: CompletedProcess((), 0))  # the child, by luck, finds nothing
    assert chroma.chroma_files.is_sound(folder) == (not folder.exists())


def test_a_folder_that_vanishes_is_built_anew(folder: Path) -> None:
    index = chroma.ChromaIndex.open(folder)
    opened(index, TEXTS, 5)
    shutil.rmtree(folder)
    index.close()
    for _ in range(2):
        assert set(reopen(folder, TEXTS, 5)) == set(TEXTS.values())
        shutil.rmtree(folder)


def test_what_cannot_be_opened_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DeltaMemError, match="cannot be opened"):
        chroma.ChromaIndex.open(tmp_path / "file")
    for address in ("localhost:8000", "http://localhost:port", "http://[::1", ""):
        with pytest.raises(DeltaMemError, match="not the address of a Chroma server"):
            chroma.ChromaIndex.open(None, address)
    with pytest.raises(DeltaMemError, match="does not answer"):
        chroma.ChromaIndex.open(None, "http://127.0.0.1:1")


def test_a_closed_index_says_so(folder: Path) -> None:
    index = chroma.ChromaIndex.open(folder)
    bank = opened(index, TEXTS, 5)
    with pytest.raises(ValueError, match="open already"):
        opened(index, TEXTS, 5)
    index.close()
    index.close()
    with pytest.raises(DeltaMemError, match="closed"):
        bank.search(QUERIES, 5)


def test_searches_of_many_threads_see_whole_states(folder: Path) -> None:
    index = chroma.ChromaIndex.open(folder)
    bank = opened(index, TEXTS, 5, flush_every=5)
    stop = threading.Event()

    def search() -> None:
        while not stop.wait(0.001):
            for query, ranking in zip(QUERIES[:2], bank.search(QUERIES[:2], 5), strict=True):
                expected = vectors_of([hit.memory.text for hit in ranking]) @ query
                assert len(ranking) == 5
                np.testing.assert_allclose([hit.similarity for hit in ranking], expected, atol=1e-5)

    texts = dict(TEXTS)
    with ThreadPoolExecutor(3) as threads:
        searches = [threads.submit(search) for _ in range(3)]
        for position in range(6, 25):
            texts |= {position % 30 + 1: f"{'abcdefgh'[position % 8]} at {position}", 30 + position: f"a new {position}"}
            texts.pop(20 + position, None)
            move(bank, texts, position)
        bank.purge()
        stop.set()
        for one in searches:
            one.result(120)
    check(bank, texts, 24)
    index.close()
    assert reopen(folder, texts, 24) == []


def test_searches_of_two_owners_run_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = chroma.ChromaIndex.open(folder)
    banks = [opened(index, TEXTS, 5, owner=owner) for owner in ("Ana", "Ben")]
    query, both = chromadb.Collection.query, threading.Barrier(2, timeout=120)

    def meets_the_other(collection: chromadb.Collection, **asked: Any) -> Any:
        both.wait()  # breaks if one search waits for the other to end
        return query(collection, **asked)

    monkeypatch.setattr(chromadb.Collection, "query", meets_the_other)
    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(lambda bank: bank.search(QUERIES, 5), banks):
            check_ranking(found, state_of(TEXTS), QUERIES, 5, may_miss=1)
    index.close()
    assert not both.broken


def test_who_waits_to_be_alone_goes_before_new_sharers() -> None:
    lock, order = chroma.SharedLock(), []

    def enter(how: Callable[[], AbstractContextManager[None]], name: str) -> None:
        with how():
            order.append(name)

    with ThreadPoolExecutor(2) as threads:
        with lock.shared():
            alone = threads.submit(enter, lock.alone, "alone")
            while not lock._entry.locked():
                time.sleep(0.001)
            late = threads.submit(enter, lock.shared, "late")
            time.sleep(0.05)
            assert order == []
        for entered in (alone, late):
            entered.result(120)
    assert order == ["alone", "late"]
