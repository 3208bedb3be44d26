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
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from bank_cases import HashEmbedder, check_ranking, lettered, move, open_bank, state_of, vectors_of
from lazy_module import Lazy

from deltamem.errors import DeltaMemError, EmbedderUnavailableError

chroma = Lazy("deltamem.bank.chroma")
chromadb = Lazy("chromadb")

QUERIES = vectors_of([f"{letter} query" for letter in "abcdefgh"])
TEXTS = lettered(range(1, 31))


def opened(
    index: chroma.ChromaIndex, texts: dict[int, str], position: int, *changed: str, **options: Any
) -> chroma.ChromaBank:
    return open_bank(index, "Ana", state_of(texts), position, *changed, **{"exact_up_to": 0, **options})


def check(bank: chroma.ChromaBank, texts: dict[int, str], position: int) -> None:
    state = state_of(texts)
    assert (bank.state, bank.position) == (state, position)
    check_ranking(bank.search(QUERIES, 5), state, QUERIES, 5, may_miss=1)
    np.testing.assert_array_equal(bank.vectors(list(state)), vectors_of([m.text for m in state.memories]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An index that was closed in good order at position 5."""
    path = tmp_path / "index"
    index = chroma.ChromaIndex.open(path)
    opened(index, TEXTS, 5)
    index.close()
    return path


def reopen(folder: Path, texts: dict[int, str], position: int, *changed: str, name: str = "hash") -> list[str]:
    """Open, check, close; returns what was embedded, each text once."""
    embedder = HashEmbedder()
    index = chroma.ChromaIndex.open(folder)
    check(opened(index, texts, position, *changed, embed=embedder.documents, embedder_name=name), texts, position)
    status = index.status("Ana")
    index.close()
    assert status == chroma.IndexStatus(position, name, len(texts))
    return list(dict.fromkeys(embedder.embedded))


def test_an_index_in_step_is_used_as_it_is(folder: Path) -> None:
    assert reopen(folder, TEXTS, 5) == []


def test_what_it_missed_is_all_that_is_embedded(folder: Path) -> None:
    texts = {**TEXTS, 3: "h changed", 40: "a new"}
    del texts[7]
    assert reopen(folder, texts, 9, "m3", "m7", "m40", "m41") == ["h changed", "a new"]
    assert reopen(folder, texts, 9) == []


def test_only_the_position_moved(folder: Path) -> None:
    assert reopen(folder, TEXTS, 8) == []


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
    client = chromadb.PersistentClient(str(folder), settings=chroma.client_settings())
    client.get_collection(chroma.collection_name("Ana"), embedding_function=None).delete(ids=["m4"])
    client.close()
    assert set(reopen(folder, TEXTS, 5)) == set(TEXTS.values())


def test_an_interrupted_building_is_noticed_and_progress_is_told(tmp_path: Path) -> None:
    texts = lettered(range(1, 1101))
    told: list[tuple[int, int]] = []

    def fails_late(batch: list[str]) -> np.ndarray:
        if "e 1100" in batch:
            raise RuntimeError("power cut")
        return vectors_of(batch)

    index = chroma.ChromaIndex.open(tmp_path)
    with pytest.raises(RuntimeError, match="power cut"):
        opened(index, texts, 1, embed=fails_late)
    status = index.status("Ana")
    assert status is None, "nothing is written before all is embedded"
    index.close()
    index = chroma.ChromaIndex.open(tmp_path)
    check(opened(index, texts, 1, progress=lambda done, total: told.append((done, total))), texts, 1)
    index.close()
    assert told == [(0, 1100), (512, 1100), (1024, 1100), (1100, 1100)]


def test_an_embedder_that_cannot_be_had_does_not_cost_the_index(folder: Path) -> None:
    def missing(texts: Sequence[str]) -> np.ndarray:
        raise EmbedderUnavailableError("not installed")

    index = chroma.ChromaIndex.open(folder)
    with pytest.raises(EmbedderUnavailableError):
        opened(index, TEXTS, 5, embed=missing, embedder_name="mistyped")
    index.close()
    assert reopen(folder, TEXTS, 5) == []


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
        check_ranking(bank.search(QUERIES, 5), state_of(texts), QUERIES, 5, may_miss=1)
        shutil.copytree(folder, folder.parent / "killed")
        assert not bank.flush()
        texts[41] = "a late"
        move(bank, texts, 7)
        check_ranking(bank.search(QUERIES, 5), state_of(texts), QUERIES, 5, may_miss=1)
    assert bank.flush()
    assert bank.pending == 0
    check(bank, texts, 7)
    index.close()
    assert reopen(folder, texts, 7) == []
    # Killed between the steps of a write: the fingerprint announced before them still vouches for the vectors.
    killed = folder.parent / "killed"
    assert reopen(killed, texts, 7, "m1", "m40", "m9", "m41") == ["b first", "d third", "a late"]
    (killed / chroma.chroma_files.CLEAN_SHUTDOWN_FILE).unlink()
    assert reopen(killed, texts, 7) == []


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
            open_bank(index, "Ben", state_of(TEXTS), 3)
    connections.refuse = False
    check(open_bank(index, "Ben", state_of(TEXTS), 3, exact_up_to=0), TEXTS, 3)
    open_bank(index, "Cem", state_of(TEXTS), 3)
    assert connections.made == 2
    assert bank.flush()  # the bank that failed uses the new client too
    check(bank, {**TEXTS, 1: "b first"}, 6)
    index.close()


@pytest.mark.parametrize("method", ["create_collection", "delete_collection"])
def test_a_collection_that_cannot_be_made_or_deleted_is_a_failed_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    connections = Connections(folder)
    with monkeypatch.context() as patch:
        patch.setattr(chromadb.api.client.Client, method, _fails)
        with pytest.raises(chroma.IndexUnavailableError, match="disk full"):
            open_bank(connections.index, "Ben", state_of(TEXTS), 3)
    check(open_bank(connections.index, "Ben", state_of(TEXTS), 3, exact_up_to=0), TEXTS, 3)
    assert connections.made == 2
    connections.index.close()


@pytest.mark.parametrize("method", ["query", "get", "count"])
def test_what_cannot_be_read_leaves_the_client_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    connections = Connections(folder)
    index = connections.index
    bank = opened(index, TEXTS, 5)
    with monkeypatch.context() as patch:
        patch.setattr(chromadb.Collection, method, _fails)
        with suppress(chroma.IndexUnavailableError):
            bank.search(QUERIES, 5)  # HNSW may refuse; then the vectors are read
        with pytest.raises(chroma.IndexUnavailableError), index.use(chroma.collection_name("Ana")) as collection:
            getattr(collection, method)()
    with pytest.raises(chroma.IndexUnavailableError), index.use("absent"):
        pass
    check(open_bank(index, "Ben", state_of(TEXTS), 3, exact_up_to=0), TEXTS, 3)
    assert connections.made == 1
    index.close()


def _fails(*_: Any, **__: Any) -> Any:
    raise OSError("disk full")


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


def test_copies_restored_from_a_backup(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "older")
    later = {**TEXTS, 3: "h changed", 40: "a new"}
    assert reopen(folder, later, 9, "m3", "m40") == ["h changed", "a new"]
    assert reopen(tmp_path / "older", later, 9, "m3", "m40") == ["h changed", "a new"]
    # A newer index with an older journal.
    assert set(reopen(folder, TEXTS, 5)) == set(TEXTS.values())


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So many memories that Chroma writes its HNSW files."""
    path = tmp_path_factory.mktemp("large") / "index"
    index = chroma.ChromaIndex.open(path)
    opened(index, lettered(range(1, 1301)), 5)
    open_bank(index, "Ben", state_of(TEXTS), 3)
    index.close()
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
    ("name", "damage"),
    [
        ("data_level0.bin", _garbage),  # a segmentation fault, were it read here
        ("data_level0.bin", _half),
        ("data_level0.bin", Path.unlink),
        ("header.bin", _garbage),  # likewise
        ("index_metadata.pickle", Path.unlink),  # gives wrong results in silence
        ("link_lists.bin", _half),
        ("chroma.sqlite3", _garbage),
        ("chroma.sqlite3", _half),
        ("chroma.sqlite3", Path.unlink),
    ],
)
def test_damaged_files_end_in_a_correct_bank(large: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    folder = tmp_path / "index"
    shutil.copytree(large, folder)
    damage(_largest(folder, name))
    reopen(folder, lettered(range(1, 1301)), 5)
    assert reopen(folder, lettered(range(1, 1301)), 5) == []


@pytest.mark.parametrize("damage", [_half, Path.unlink])
@pytest.mark.parametrize("name", ["data_level0.bin", "link_lists.bin", "index_metadata.pickle"])
def test_files_that_were_cut_are_never_read_to_find_out(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "index"
    shutil.copytree(large, folder)
    damage(_largest(folder, name))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: CompletedProcess((), 0))  # the child, by luck, finds nothing
    assert len(reopen(folder, lettered(range(1, 1301)), 5)) == 1300


def test_lost_folders_end_in_a_correct_bank(large: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    shutil.copytree(large, folder)
    shutil.rmtree(_largest(folder, "data_level0.bin").parent)
    assert len(reopen(folder, lettered(range(1, 1301)), 5)) == 1300
    shutil.rmtree(folder)
    assert len(reopen(folder, lettered(range(1, 1301)), 5)) == 1300


def test_a_folder_that_vanishes_while_it_is_open_is_closed_and_built_anew(folder: Path) -> None:
    index = chroma.ChromaIndex.open(folder)
    opened(index, TEXTS, 5)
    shutil.rmtree(folder)
    index.close()
    assert set(reopen(folder, TEXTS, 5)) == set(TEXTS.values())


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
    problems: list[Exception] = []

    def search() -> None:
        try:
            while not stop.is_set():
                for query, ranking in zip(QUERIES, bank.search(QUERIES, 5), strict=True):
                    expected = vectors_of([hit.memory.text for hit in ranking]) @ query
                    assert len(ranking) == 5
                    np.testing.assert_allclose([hit.similarity for hit in ranking], expected, atol=1e-5)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    texts = dict(TEXTS)
    for position in range(6, 40):
        texts |= {position % 30 + 1: f"{'abcdefgh'[position % 8]} at {position}", 30 + position: f"a new {position}"}
        texts.pop(20 + position, None)
        move(bank, texts, position)
    bank.purge()
    stop.set()
    for thread in threads:
        thread.join()
    check(bank, texts, 39)
    index.close()
    assert problems == []
    assert reopen(folder, texts, 39) == []


def test_searches_of_two_owners_run_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = chroma.ChromaIndex.open(folder)
    banks = [open_bank(index, owner, state_of(TEXTS), 5, exact_up_to=0) for owner in ("Ana", "Ben")]
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
            while not lock._waiting:
                time.sleep(0.001)
            late = threads.submit(enter, lock.shared, "late")
            time.sleep(0.05)
            assert order == []
        for entered in (alone, late):
            entered.result(120)
    assert order == ["alone", "late"]
