"""Session files of applications: JSON, JSON lists and JSONL."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deltamem.errors import DeltaMemError
from deltamem.sessions import Session, Turn, read_dialogues

TURNS = [{"role": "user", "content": "I moved to Rome."}, {"role": "assistant", "content": "Nice!"}]
TIME = "2026-04-05T20:01:00"
EXPECTED = Session(
    "owner", "Ana", datetime(2026, 4, 5, 20, 1), (Turn("user", "I moved to Rome."), Turn("assistant", "Nice!")), id="a"
)


def record(**changes: object) -> dict:
    return {"id": "a", "time": TIME, "turns": TURNS} | changes


def read(content: bytes | str) -> list[Session]:
    stream = io.BytesIO(content) if isinstance(content, bytes) else io.StringIO(content)
    return list(read_dialogues(stream, "owner", "Ana"))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(record()),
        json.dumps(record(), indent=2) + "\n",
        json.dumps([record()]),
        "\n\n" + json.dumps([record()], indent=1),
        "\n" + json.dumps(record()) + "\r\n\n",
    ],
)
def test_object_list_and_lines_are_read(text: str) -> None:
    assert read(text) == read(text.encode()) == read(b"\xef\xbb\xbf" + text.encode()) == read("\ufeff" + text) == [EXPECTED]


def test_several_sessions_keep_their_order() -> None:
    records = [record(id=name) for name in "abc"]
    assert [session.id for session in read("\n".join(map(json.dumps, records)))] == ["a", "b", "c"]
    assert [session.id for session in read(json.dumps(records, indent=2))] == ["a", "b", "c"]


def test_lines_are_read_one_by_one() -> None:
    reader = read_dialogues(io.StringIO(json.dumps(record()) + "\nnonsense\n"), "owner", "Ana")
    assert next(reader) == EXPECTED
    with pytest.raises(DeltaMemError, match="line 2: not valid JSON"):
        next(reader)


def test_whole_number_becomes_a_text_and_time_keeps_its_zone() -> None:
    (session,) = read(json.dumps(record(id=7, time="2026-04-05T20:01:00Z")))
    assert session.id == "7" and session.time == datetime(2026, 4, 5, 20, 1, tzinfo=UTC)


def test_path_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(record()))
    assert list(read_dialogues(path, "owner", "Ana")) == list(read_dialogues(str(path), "owner", "Ana")) == [EXPECTED]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert list(read_dialogues("-", "owner", "Ana")) == [EXPECTED]


BAD = [
    (record(id=""), "id: expected a text that is not empty"),
    (record(id="  "), "id: expected a text that is not empty"),
    (record(id=True), "id: expected a text"),
    (record(id=1.5), "id: expected a text"),
    (record(id="\udfff"), "id: not valid Unicode"),
    (record(id=None), "id: expected a text"),
    (record(time="yesterday"), "time: expected an ISO 8601 time"),
    (record(time=1700000000), "time: expected an ISO 8601 time"),
    (record(turns=[]), "turns: expected at least one turn"),
    (record(turns=None), "turns: Input should be a valid list"),
    (record(turns=["hi"]), r"turns\.0: "),
    (record(turns=[{"role": "system", "content": "x"}]), r"turns\.0\.role: .*user or assistant, not \"system\"; leave out"),
    (record(turns=[{"role": "tool", "content": "x"}]), r"turns\.0\.role: .*user or assistant, not \"tool\""),
    (record(turns=[{"role": "user"}]), r"turns\.0\.content: this key is missing"),
    (record(turns=[{"role": "user", "content": None}]), r"turns\.0\.content: Input should be a valid string"),
    (record(turns=[{"role": "user", "content": "\ud800"}]), r"turns\.0\.content: not valid Unicode"),
    (record(turns=[{"role": "user", "content": "x", "name": "y"}]), r"turns\.0\.name: unknown key"),
    (record(note=1), "note: unknown key"),
    ({"id": "a", "turns": TURNS}, "time: this key is missing"),
    ([1], 'expected an object with "id"'),
    ("text", 'expected an object with "id"'),
]


@pytest.mark.parametrize(("value", "message"), BAD)
def test_bad_session_is_named_by_line_or_index(tmp_path: Path, value: object, message: str) -> None:
    lines, listed = tmp_path / "s.jsonl", tmp_path / "s.json"
    lines.write_text(json.dumps(record()) + "\n\n" + json.dumps(value) + "\n")
    listed.write_text(json.dumps([record(), value], indent=1))
    for path, where in ((lines, r"s\.jsonl, line 3"), (listed, r"s\.json, entry 1")):
        with pytest.raises(DeltaMemError, match=f"{where}: {message}") as caught:
            list(read_dialogues(path, "owner", "Ana"))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no session in it"),
        (b"\n \n", "no session in it"),
        (b"[]", "no session in it"),
        (b"hello", "line 1: not valid JSON"),
        (b'{"id": "a",\n "time"}', "line 2: not valid JSON"),
        (b"\xff\xfe", "line 1: not UTF-8"),
        (b"[" * 100_000, "not valid JSON: nested too deeply"),
        (b"42", 'expected an object with "id"'),
    ],
)
def test_file_that_holds_no_session(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(content)
    with pytest.raises(DeltaMemError, match=rf"s\.json.*{message}"):
        list(read_dialogues(path, "owner", "Ana"))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "no.json", tmp_path):
        with pytest.raises(DeltaMemError, match="cannot be read"):
            list(read_dialogues(path, "owner", "Ana"))
