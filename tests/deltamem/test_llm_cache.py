"""The response cache: what it keeps, erases and refuses, and who may share it."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deltamem.errors import DeltaMemError
from deltamem.llm import ResponseCache

ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0.5, "sample": 0}
PEERS = 4
EACH = 10


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def fill(path: Path, peer: int, start: object) -> None:
    """Open the cache at the same time as others, write, and read back."""
    start.wait()  # type: ignore[attr-defined]
    cache = ResponseCache(path)
    for number in range(EACH):
        cache.put("ann", {"asked": [peer, number]}, {"text": f"{peer} {number}"})
        assert cache.get("ann", {"asked": [peer, number]}) == {"text": f"{peer} {number}"}
    cache.close()


def test_an_answer_comes_back_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    value = {"text": "na\u00efve \u0000 \U0001f600\n", "prompt_tokens": 3}
    cache = ResponseCache(path)
    assert cache.get("ann", ASKED) is None
    cache.put("ann", ASKED, value)
    cache.close()
    assert ResponseCache(path).get("ann", dict(reversed(ASKED.items()))) == value


def test_scopes_share_nothing(tmp_path: Path) -> None:
    cache = ResponseCache(tmp_path / "cache.sqlite")
    cache.put("ann", ASKED, {"text": "for ann"})
    assert cache.get("bob", ASKED) is None
    cache.put("bob", ASKED, {"text": "for bob"})
    assert cache.forget("ann") == 1
    assert cache.get("ann", ASKED) is None and cache.get("bob", ASKED) == {"text": "for bob"}


@pytest.mark.parametrize("reopened", [False, True])
def test_what_is_forgotten_is_in_no_file(reopened: bool, tmp_path: Path) -> None:
    """Also long answers, which lie in pages of their own, and while another connection is open."""
    path = tmp_path / "cache.sqlite"
    cache, other = ResponseCache(path), ResponseCache(path)
    for number in range(300):
        for scope in ("Canary Owner", "bob"):
            text = f"{scope} secret {number} " * (1 if number % 10 else 2000)
            cache.put(scope, {"asked": number}, {"text": text})
            cache.put(scope, {"asked": number}, {"text": text + "again"})
    assert other.get("Canary Owner", {"asked": 7}) is not None
    if reopened:
        cache.close()
        cache = ResponseCache(path)
    assert bytes_on_disk(tmp_path).count(b"Canary Owner") >= 300
    assert cache.forget("Canary Owner") == 300
    kept = bytes_on_disk(tmp_path)
    assert b"Canary Owner" not in kept and b"bob secret 299" in kept
    assert other.get("Canary Owner", {"asked": 7}) is None and other.get("bob", {"asked": 7}) is not None
    assert cache.forget("nobody") == 0


def test_a_reader_that_keeps_the_wal_from_being_emptied_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltamem.llm._BUSY_SECONDS", 0.1)
    path = tmp_path / "cache.sqlite"
    cache = ResponseCache(path)
    cache.put("ann", ASKED, {"text": "secret"})
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM answers").fetchall()
    with pytest.raises(DeltaMemError, match=r"in use by another process.*try again"):
        cache.forget("ann")
    reader.execute("COMMIT")
    cache.forget("ann")
    assert b"secret" not in bytes_on_disk(tmp_path)
    reader.close()


def test_processes_may_share_a_file_that_none_has_made(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    context = multiprocessing.get_context("fork")
    start = context.Event()
    peers = [context.Process(target=fill, args=(path, peer, start)) for peer in range(PEERS)]
    for peer in peers:
        peer.start()
    start.set()
    for peer in peers:
        peer.join()
    assert [peer.exitcode for peer in peers] == [0] * PEERS
    cache = ResponseCache(path)
    assert all(cache.get("ann", {"asked": [peer, number]}) for peer in range(PEERS) for number in range(EACH))


def test_threads_may_open_a_file_that_none_has_made(tmp_path: Path) -> None:
    for attempt in range(8):
        start = threading.Event()
        with ThreadPoolExecutor(PEERS) as pool:
            done = [pool.submit(fill, tmp_path / f"{attempt}.sqlite", peer, start) for peer in range(PEERS)]
            start.set()
            assert [future.result() for future in done] == [None] * PEERS


def test_a_file_that_is_no_cache_is_told(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be read as one" * 100)
    with pytest.raises(DeltaMemError, match=r"notes\.txt: the response cache cannot be used: file is not a database"):
        ResponseCache(path)
    with pytest.raises(DeltaMemError, match="unable to open"):
        ResponseCache(tmp_path / "missing" / "cache.sqlite")
