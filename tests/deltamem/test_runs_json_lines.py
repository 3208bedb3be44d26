"""The store of finished work: nothing that was put is lost, whatever happens to the process."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.errors import DeltaMemError
from deltamem.runs import JsonLinesStore

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
        store.put("a", {"text": "Grüße\n"})
        store.put("b", {"n": [1, None]})
        store.put("a", {"text": "later"})
        assert store.get("a") == {"text": "later"}
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


def test_a_killed_process_loses_at_most_the_value_it_was_writing(tmp_path):
    path = tmp_path / "store.jsonl"
    script = (
        "import sys; from pathlib import Path; from deltamem.runs import JsonLinesStore\n"
        "store = JsonLinesStore(Path(sys.argv[1])); number = 0\n"
        "while True:\n"
        "    store.put(str(number), {'text': 'x' * 50_000}); print(number, flush=True); number += 1\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(40)]
    process.send_signal(signal.SIGKILL)
    told += [int(line) for line in process.stdout.read().split()]
    process.wait()
    with JsonLinesStore(path) as store:
        assert len(told) <= len(store) <= len(told) + 1
        assert [store.get(str(number)) for number in told] == [{"text": "x" * 50_000}] * len(told)


def test_a_second_opening_is_told_and_changes_nothing(tmp_path):
    path = tmp_path / "store.jsonl"
    with JsonLinesStore(path) as store:
        store.put("a", {})
        with pytest.raises(DeltaMemError, match=f"^{re.escape(str(path))}: in use by another process"):
            JsonLinesStore(path)
        store.put("b", {})
    with JsonLinesStore(path) as store:
        assert store.keys() == ("a", "b")


def test_another_process_is_told_too(tmp_path):
    path = tmp_path / "store.jsonl"
    store = "from deltamem.runs import JsonLinesStore"
    script = f"import sys; from pathlib import Path; {store}; JsonLinesStore(Path(sys.argv[1]))"
    with JsonLinesStore(path):
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert "in use by another process" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        '{"key": "a", "value": {}}\n{"other": 1}\n',
        '{"key": "a", "value": {}}\n{"key": "b", "val\n',
        '{"key": "a", "value": {}}\n{"key": 7, "value": {}}\n',
        '{"key": "a", "value": {}}\nmy notes',
    ],
)
def test_a_foreign_file_is_refused_and_left_as_it_is(tmp_path, text):
    path = tmp_path / "store.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(DeltaMemError, match="line 2 is not a line of such a store"):
        JsonLinesStore(path)
    assert path.read_text("utf-8") == text


def test_a_full_disk_loses_only_the_value_that_did_not_fit(tmp_path, monkeypatch):
    path = tmp_path / "store.jsonl"
    write = os.write

    def half(file, data):
        write(file, bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with JsonLinesStore(path) as store:
        store.put("a", {"n": 1})
        monkeypatch.setattr(os, "write", half)
        with pytest.raises(OSError, match=re.escape(f"'{path}'")):
            store.put("b", {"n": 2})
        monkeypatch.undo()
        assert contents(store) == {"a": {"n": 1}}
        store.put("c", {"n": 3})
    with JsonLinesStore(path) as store:
        assert contents(store) == {"a": {"n": 1}, "c": {"n": 3}}


def test_values_stay_on_disk(tmp_path):
    # The index of a value is two numbers, whatever its size.
    with JsonLinesStore(Path(tmp_path / "store.jsonl")) as store:
        store.put("a", {"text": "x" * 3_000_000})
        assert not any(isinstance(value, bytes | str) for spans in store._spans.values() for value in spans)
