"""What runs share: whole files, two stores of finished work that survive a kill, provenance, the event loop."""

import asyncio
import errno
import hashlib
import itertools
import multiprocessing
import os
import re
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.errors import DeltaMemError
from deltamem.runs import (
    JsonLinesStore,
    RecordFile,
    atomic_writer,
    config_hash,
    faster_loop,
    file_sha256,
    git_commit,
    read_records,
    remove_partial,
    run_tasks,
    versions,
)
from eval.records import PassageRecord


@pytest.mark.parametrize("old", [None, "old"])
def test_a_file_takes_its_name_at_the_end(tmp_path, old):
    path = tmp_path / "note.txt"
    if old:
        path.write_text(old)
    with atomic_writer(path) as file:
        file.write("Zoë ✓\n")
        file.flush()
        assert (path.read_text() if path.exists() else None) == old
    assert path.read_bytes() == "Zoë ✓\n".encode()
    for error in (RuntimeError("broke"), KeyboardInterrupt()):
        with pytest.raises(type(error)), atomic_writer(path) as file:
            file.write("half")
            raise error
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == "Zoë ✓\n".encode()


def test_nothing_remains_of_a_file_whose_name_cannot_be_taken(tmp_path):
    (tmp_path / "note.txt").mkdir()
    with pytest.raises(OSError), atomic_writer(tmp_path / "note.txt") as file:
        file.write("text")
    with pytest.raises(FileNotFoundError), atomic_writer(tmp_path / "missing" / "note.txt"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


SPAWN = multiprocessing.get_context("spawn")  # a fork of a process with threads may wait for ever for a lock of theirs


def write_half(path: Path) -> None:
    with atomic_writer(path) as file:
        file.write("x" * 99_999)
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def killed_writer(path: Path) -> None:
    """A process that is killed in the middle of a file."""
    process = SPAWN.Process(target=write_half, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_what_killed_writers_left_is_used_by_the_next_one_or_removed(tmp_path):
    path = tmp_path / "note.txt"
    for _ in range(2):
        killed_writer(path)
    assert len(list(tmp_path.iterdir())) == 1 and not path.exists()
    with atomic_writer(path) as file:
        file.write("text")
    assert list(tmp_path.iterdir()) == [path] and path.read_text() == "text"
    killed_writer(tmp_path / "other.txt")
    remove_partial(tmp_path)
    remove_partial(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == [path]


def test_writers_of_one_file_take_turns(tmp_path):
    path = tmp_path / "note.txt"
    texts = [letter * 50_000 for letter in "abcd"]

    def write(text):
        for _ in range(5):
            with atomic_writer(path) as file:
                file.write(text)
                file.flush()
                assert path.with_name(".note.txt.partial").read_text() == text
        with pytest.raises(RuntimeError), atomic_writer(path):
            raise RuntimeError("broke")

    with ThreadPoolExecutor(len(texts)) as threads:
        list(threads.map(write, texts))
    assert list(tmp_path.iterdir()) == [path] and path.read_text() in texts


TEXTS = st.text(st.characters(), max_size=12)
VALUES = st.dictionaries(TEXTS, st.one_of(st.none(), st.integers(), TEXTS, st.lists(TEXTS, max_size=3)), max_size=3)
PUTS = st.lists(st.tuples(st.sampled_from(["a", 'quo"te', "ü\n", "\ud800", "b", "c"]), VALUES), max_size=8)


def contents(store):
    keys = store.keys()
    return {key: store.get(key) for key in keys}


def test_what_was_put_is_there_after_opening_again(tmp_path):
    path = tmp_path / "new" / "store.jsonl"
    with JsonLinesStore(path) as store:
        assert store.get("a") is None and "a" not in store and len(store) == 0
        store.put("a", {"text": "x" * 3_000_000})
        store.put("b", {"n": [1, None]})
        store.put("a", {"text": "later"})
        assert store.get("a") == {"text": "later"}
        # Values stay on disk: the index of one is two numbers, whatever its size.
        assert not any(isinstance(value, bytes | str) for spans in store._spans.values() for value in spans)
    with JsonLinesStore(path) as store:
        assert contents(store) == {"a": {"text": "later"}, "b": {"n": [1, None]}}
        assert store.keys() == ("a", "b") and "b" in store and len(store) == 2
    assert len(path.read_bytes().splitlines()) == 3


@given(puts=PUTS, data=st.data())
def test_any_prefix_of_the_bytes_opens_to_a_prefix_of_the_puts(tmp_path_factory, puts, data):
    folder = tmp_path_factory.mktemp("store")
    with JsonLinesStore(folder / "whole.jsonl") as store:
        for key, value in puts:
            store.put(key, value)
        assert contents(store) == dict(puts)
    whole = (folder / "whole.jsonl").read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    torn = folder / "torn.jsonl"
    torn.write_bytes(whole[:cut])
    survivors = whole[:cut].count(b"\n")
    with JsonLinesStore(torn) as store:
        assert contents(store) == dict(puts[:survivors])
        store.put("again", {"n": 1})
    with JsonLinesStore(torn) as store:
        assert contents(store) == dict(puts[:survivors]) | {"again": {"n": 1}}


def put_for_ever(path: Path, there: Connection) -> None:
    with JsonLinesStore(path) as store:
        for number in itertools.count():
            store.put(str(number), {"text": "x" * 50_000})
            there.send(number)


def test_a_killed_process_loses_at_most_the_value_it_was_writing(tmp_path):
    path = tmp_path / "store.jsonl"
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=put_for_ever, args=(path, there))
    process.start()
    put = [here.recv() for _ in range(40)]
    with pytest.raises(DeltaMemError, match=f"^{re.escape(str(path))}: in use by another process"):
        JsonLinesStore(path)
    process.kill()
    process.join()
    while here.poll():
        put.append(here.recv())
    with JsonLinesStore(path) as store:
        assert len(put) <= len(store) <= len(put) + 1
        assert [store.get(str(number)) for number in put] == [{"text": "x" * 50_000}] * len(put)


@pytest.mark.parametrize("second", ['{"other": 1}\n', '{"key": "b", "val\n', '{"key": 7, "value": {}}\n', "my notes"])
def test_a_foreign_file_is_refused_and_left_as_it_is(tmp_path, second):
    path = tmp_path / "store.jsonl"
    text = '{"key": "a", "value": {}}\n' + second
    path.write_text(text)
    with pytest.raises(DeltaMemError, match="line 2 is not a line of such a store"):
        JsonLinesStore(path)
    assert path.read_text() == text


def test_a_full_disk_loses_only_the_value_that_did_not_fit(tmp_path, monkeypatch):
    path = tmp_path / "store.jsonl"
    write = os.write

    def half(file, data):
        write(file, bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with JsonLinesStore(path) as store:
        store.put("a", {"n": 1})
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            with pytest.raises(OSError, match=re.escape(f"'{path}'")):
                store.put("b", {"n": 2})
        assert contents(store) == {"a": {"n": 1}}
        store.put("c", {"n": 3})
    with JsonLinesStore(path) as store:
        assert contents(store) == {"a": {"n": 1}, "c": {"n": 3}}


def passage(number: int, text: str) -> PassageRecord:
    return PassageRecord(id=str(number), store="s", text=text)


def open_file(path: Path) -> RecordFile[PassageRecord]:
    return RecordFile(path, PassageRecord, lambda record: record.id)


def read_file(path: Path) -> dict[str, PassageRecord]:
    return dict(read_records(path, PassageRecord, lambda record: record.id))


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=5), data=st.data())
def test_a_record_file_cut_at_any_byte_keeps_its_whole_lines_and_can_be_continued(tmp_path_factory, texts, data):
    path = tmp_path_factory.mktemp("records") / "records.jsonl"
    with open_file(path) as file:
        for number, text in enumerate(texts):
            file.add(passage(number, text))
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    assert read_file(path).keys() == {str(number) for number in range(kept)}
    assert path.read_bytes() == whole[:cut], "reading must not change the file"
    with open_file(path) as file:
        assert [record.text for record in file] == texts[:kept]
        file.add(passage(99, "later\nline\r\u2028"))
    with open_file(path) as file:
        assert [record.text for record in file] == [*texts[:kept], "later\nline\r\u2028"]


def test_a_later_record_replaces_the_earlier_one_and_is_in_the_file_when_add_returns(tmp_path):
    path = tmp_path / "records.jsonl"
    with open_file(path) as file:
        for number, text in ((1, "old"), (2, "other"), (1, "new")):
            file.add(passage(number, text))
            # Defaults are not written.
            assert path.read_text().endswith(f'{{"id":"{number}","store":"s","text":"{text}"}}\n')
    with open_file(path) as file:
        assert [(record.id, record.text) for record in file] == [("1", "new"), ("2", "other")]
        assert "1" in file and "3" not in file and file.get("3") is None


@pytest.mark.parametrize("line", ['{"id": "1"}', '{"id": 1, "store": "s", "text": "t"}', "null", "{"])
@pytest.mark.parametrize("reader", [open_file, read_file])
def test_a_line_that_is_no_record_is_named(tmp_path, line: str, reader: Callable[[Path], object]) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"id": "0", "store": "s", "text": "t"}\n' + line + "\n")
    with pytest.raises(DeltaMemError, match=r"records\.jsonl, line 2: cannot be read as a record of a run"):
        reader(path)


def test_what_another_run_is_writing_is_not_cut_off(tmp_path):
    path = tmp_path / "records.jsonl"
    with open_file(path) as file:
        file.add(passage(1, "text"))
        with path.open("a") as unfinished:
            unfinished.write('{"id"')
        before = path.read_bytes()
        with pytest.raises(DeltaMemError, match=r"records\.jsonl: in use by another process"):
            open_file(path)
        assert path.read_bytes() == before and len(read_file(path)) == 1
    with open_file(path) as file:
        assert len(file) == 1


def test_commit_is_named_and_changes_are_not_hidden(tmp_path):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert git_commit(tmp_path) is None
    git("init")
    assert git_commit(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    git("tag", "v1")
    commit = git("rev-parse", "HEAD")
    assert git_commit(tmp_path) == commit
    (tmp_path / "a").write_text("2")
    assert git_commit(tmp_path) == f"{commit}-dirty"


def test_versions_and_hashes_depend_on_content_only(tmp_path):
    assert set(versions(["numpy", "no-such-package-at-all"])) == {"python", "platform", "deltamem", "numpy"}
    assert config_hash({"a": 1, "b": {"c": 2}}) == config_hash({"b": {"c": 2}, "a": 1}) != config_hash({"a": 1})
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()


def test_tasks_run_on_the_faster_loop_and_what_failed_first_comes_out_of_its_groups():
    async def fails(after: float, message: str) -> None:
        await asyncio.sleep(after)
        raise DeltaMemError(message)

    async def both() -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(fails(10, "late"))
            async with asyncio.TaskGroup() as inner:
                inner.create_task(fails(0, "first"))

    async def module() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run_tasks(module) == ("uvloop" if faster_loop() else "asyncio.unix_events")
    with pytest.raises(DeltaMemError, match="first"):
        run_tasks(both)
