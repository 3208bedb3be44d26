"""Sessions: the labelled records of synth, and the session files of applications."""

import io
import json
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.errors import DeltaMemError
from deltamem.memory import Event, Memory, MemoryState, Operation
from deltamem.sessions import (
    AXES,
    Difficulty,
    FactKind,
    LabelledSession,
    OperationDifficulty,
    Session,
    Turn,
    format_dialogue,
    from_json_line,
    read_dialogues,
    read_sessions,
    to_json_line,
)

texts = st.text(max_size=12)
times = st.datetimes(
    min_value=datetime(1900, 1, 1),
    max_value=datetime(2200, 1, 1),
    timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30))]),
)
states = st.lists(st.builds(Memory, texts, texts, times), unique_by=lambda m: m.id, max_size=4).map(MemoryState)
values = st.lists(texts, max_size=3).map(tuple)
keywords = st.lists(texts | st.lists(texts, min_size=2, max_size=3, unique=True).map(tuple), max_size=3).map(tuple)
operations = st.builds(Operation, st.sampled_from(Event), texts, st.none() | texts, keywords, values)
kinds = st.none() | st.sampled_from(FactKind)
operation_difficulties = st.builds(OperationDifficulty, rivals=st.integers(0, 9), chain=st.integers(0, 9), kind=kinds)
difficulties = st.builds(
    Difficulty,
    st.lists(operation_difficulties, max_size=3).map(tuple),
    st.floats(0, 99),
    st.integers(0, 999),
)
sessions = st.builds(
    Session,
    texts,
    texts,
    times,
    st.lists(st.builds(Turn, st.sampled_from(["user", "assistant"]), texts), max_size=4).map(tuple),
)
labelled_sessions = st.builds(
    LabelledSession,
    session=sessions,
    session_index=st.integers(0, 10_000),
    split=st.sampled_from(["train", "heldout"]),
    prior_state=states,
    operations=st.lists(operations, max_size=4).map(tuple),
    next_state=states,
    difficulty=st.none() | difficulties,
)


RECORD = {
    "person_id": "p1",
    "person_name": "Ana",
    "session_index": 3,
    "time": "2026-04-05T20:01:00",
    "split": "heldout",
    "dialogue": [{"role": "user", "content": "I moved to Rome."}],
    "prior_state": {"m1": {"text": "Ana lives in Oslo.", "time": "2026-01-01T08:00:00"}},
    "operations": [{"event": "UPDATE", "text": "Ana lives in Rome.", "target_memory_id": "m1", "keywords": ["Rome"]}],
    "next_state": {"m1": {"text": "Ana lives in Rome.", "time": "2026-04-05T20:01:00"}},
}
LINE = json.dumps(RECORD)


@given(labelled_sessions)
def test_round_trip_is_exact_and_stays_one_line(labelled: LabelledSession) -> None:
    line = to_json_line(labelled)
    assert "\n" not in line
    again = from_json_line(line)
    assert again == labelled
    assert list(again.prior_state) == list(labelled.prior_state)
    assert to_json_line(again) == line


def test_the_documented_record_is_read_and_what_an_older_one_lacks_is_nothing_and_not_written() -> None:
    labelled = from_json_line(LINE)
    assert labelled.key == "p1/3" and labelled.difficulty is None
    assert labelled.session.time == datetime(2026, 4, 5, 20, 1)
    assert labelled.operations == (Operation(Event.UPDATE, "Ana lives in Rome.", "m1", ("Rome",)),)
    assert labelled.prior_state["m1"] == Memory("m1", "Ana lives in Oslo.", datetime(2026, 1, 1, 8))
    assert json.loads(to_json_line(labelled)) == RECORD


def test_a_keyword_is_a_text_or_a_list_of_alternatives_of_which_one_is_the_text() -> None:
    written = RECORD | {
        "operations": [RECORD["operations"][0] | {"keywords": [["Rome", "capital"], ["a"], "b", ["c", "c"]]}]
    }
    labelled = from_json_line(json.dumps(written))
    assert labelled.operations[0].keywords == (("Rome", "capital"), "a", "b", "c")
    assert '"keywords":[["Rome","capital"],"a","b","c"]' in to_json_line(labelled)


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ([], "operations.0.keywords.1: Tuple should have at least 1 item after validation, not 0"),
        (["a", 3], "operations.0.keywords.1.1: Input should be a valid string"),
        (None, "operations.0.keywords.1: Input should be a valid string"),
        ([["a"]], "operations.0.keywords.1.0: Input should be a valid string"),
    ],
)
def test_what_is_no_keyword_is_named(keyword: object, message: str) -> None:
    written = RECORD | {"operations": [RECORD["operations"][0] | {"keywords": ["a", keyword]}]}
    with pytest.raises(DeltaMemError, match=re.escape(message)):
        from_json_line(json.dumps(written))


def test_cells_name_each_bin_of_a_session_once() -> None:
    plain = OperationDifficulty(signal="value", rivals=0, provenance="said", time="same_day", chain=0)
    hard = OperationDifficulty(signal="implied", rivals=7, provenance="hearsay", time="relative", chain=2)
    assert Difficulty((), 4.0, 0).cells() == ("bank=0", "noise=high")
    assert Difficulty((plain, hard, plain), 0.5, 80).cells() == (
        "bank=21-80", "chain=0", "chain=2", "noise=medium", "provenance=hearsay", "provenance=said", "rivals=0", "rivals=3+",
        "signal=implied", "signal=value", "time=relative", "time=same_day",
    )  # fmt: skip
    assert Difficulty((plain,), 0.25, 81).cells()[0] == "bank=81+"
    assert set(hard.cells()) < set(Difficulty((plain, hard), 0.5, 80).cells())


@given(difficulties)
def test_every_cell_is_a_value_of_an_axis(difficulty: Difficulty) -> None:
    cells = [cell.split("=") for cell in difficulty.cells()]
    assert all(value in AXES[axis] for axis, value in cells)
    kinds = {"kind"} if any(operation.kind for operation in difficulty.operations) else set()
    assert {axis for axis, _ in cells} == (set(AXES) - {"kind"} | kinds if difficulty.operations else {"noise", "bank"})


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (LINE.replace('"UPDATE"', '"DELETE"'), r"operations\.0\.event"),
        (LINE.replace('"split"', '"note": 1, "split"'), "note"),
        (json.dumps({key: value for key, value in RECORD.items() if key != "time"}), "time"),
        (LINE.replace('"role": "user"', '"role": "system"'), r"dialogue\.0\.role"),
        ('{"person_id": "p1"', "the line: Invalid JSON"),
        ("", "the line: Invalid JSON"),
        ("[]", "the line"),
        (LINE.replace('"Ana"', '"\\ud800"'), "the line"),
        (b"\xff\xfe", "not UTF-8 text"),
    ],
)
def test_malformed_line_names_file_line_and_field(tmp_path: Path, line: str | bytes, where: str) -> None:
    path = tmp_path / "sessions.jsonl"
    bad = line if isinstance(line, bytes) else line.encode("utf-8", "surrogatepass")
    path.write_bytes(b"\n".join([LINE.encode(), bad, LINE.encode(), b""]))
    reader = read_sessions(path)
    assert next(reader).key == "p1/3"
    with pytest.raises(DeltaMemError, match=rf"sessions\.jsonl, line 2: {where}") as caught:
        next(reader)
    assert "\n" not in str(caught.value)


def test_split_is_selected_and_a_missing_file_says_how_to_make_it(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    with pytest.raises(DeltaMemError, match=r"sessions\.jsonl: no such file; make one with: python -m synth"):
        next(read_sessions(path))
    path.write_text(LINE + "\r\n" + json.dumps(RECORD | {"split": "train", "session_index": 4}) + "\n")
    assert [labelled.session_index for labelled in read_sessions(path)] == [3, 4]
    assert [labelled.session_index for labelled in read_sessions(path, split="train")] == [4]


def test_an_utterance_is_one_line_and_a_line_within_it_cannot_pose_as_another() -> None:
    assert format_dialogue([Turn("user", "Hi."), Turn("assistant", "Hello.")]) == "user: Hi.\nassistant: Hello."
    quoting = Turn("assistant", "I quote:\nuser: I live in Rome.\n  assistant : yes\nThe user: nobody")
    assert format_dialogue([quoting, Turn("user", "user: no")]).splitlines() == [
        "assistant: I quote:",
        "> user: I live in Rome.",
        ">   assistant : yes",
        "The user: nobody",
        "user: user: no",
    ]


TURNS = [{"role": "user", "content": "I moved to Rome."}, {"role": "assistant", "content": "Nice!"}]
TIME = "2026-04-05T20:01:00"
SAID = (Turn("user", "I moved to Rome."), Turn("assistant", "Nice!"))
EXPECTED = Session("owner", "Ana", datetime(2026, 4, 5, 20, 1), SAID, id="a")


def in_file(**changes: object) -> dict:
    return {"id": "a", "time": TIME, "turns": TURNS} | changes


def read(content: bytes | str) -> list[Session]:
    stream = io.BytesIO(content) if isinstance(content, bytes) else io.StringIO(content)
    return list(read_dialogues(stream, "owner", "Ana"))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(in_file()),
        json.dumps(in_file(), indent=2) + "\n",
        json.dumps([in_file()]),
        "\n\n" + json.dumps([in_file()], indent=1),
        "\n" + json.dumps(in_file()) + "\r\n\n",
        json.dumps(in_file(metadata=None)),
    ],
)
def test_object_list_and_lines_are_read(text: str) -> None:
    assert read(text) == read(text.encode()) == read(b"\xef\xbb\xbf" + text.encode()) == read("\ufeff" + text) == [EXPECTED]


def test_several_sessions_keep_their_order_and_lines_are_read_one_by_one() -> None:
    records = [in_file(id=name) for name in "abc"]
    assert [session.id for session in read("\n".join(map(json.dumps, records)))] == ["a", "b", "c"]
    assert [session.id for session in read(json.dumps(records, indent=2))] == ["a", "b", "c"]
    reader = read_dialogues(io.StringIO(json.dumps(in_file()) + "\nnonsense\n"), "owner", "Ana")
    assert next(reader) == EXPECTED
    with pytest.raises(DeltaMemError, match="line 2: not valid JSON"):
        next(reader)


def test_path_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(in_file()))
    assert list(read_dialogues(path, "owner", "Ana")) == list(read_dialogues(str(path), "owner", "Ana")) == [EXPECTED]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert list(read_dialogues("-", "owner", "Ana")) == [EXPECTED]


BAD = [
    (in_file(id=""), "id: expected a text that is not empty"),
    (in_file(id=True), "id: expected a text"),
    (in_file(id="\udfff"), "id: not valid Unicode"),
    (in_file(id=None), "id: expected a text"),
    (in_file(time="yesterday"), "time: expected an ISO 8601 time"),
    (in_file(time=1700000000), "time: expected an ISO 8601 time"),
    (in_file(turns=[]), "turns: expected at least one turn"),
    (in_file(turns=None), "turns: Input should be a valid list"),
    (in_file(turns=["hi"]), r"turns\.0: "),
    (in_file(turns=[{"role": "tool", "content": "x"}]), r"turns\.0\.role: .*user or assistant, not \"tool\""),
    (in_file(turns=[{"role": "user"}]), r"turns\.0\.content: this key is missing"),
    (in_file(turns=[{"role": "user", "content": None}]), r"turns\.0\.content: Input should be a valid string"),
    (in_file(turns=[{"role": "user", "content": "\ud800"}]), r"turns\.0\.content: not valid Unicode"),
    (in_file(turns=[{"role": "user", "content": "x", "name": "y"}]), r"turns\.0\.name: unknown key"),
    (in_file(note=1), "note: unknown key"),
    ({"id": "a", "turns": TURNS}, "time: this key is missing"),
    ([1], 'expected an object with "id"'),
]


@pytest.mark.parametrize(("value", "message"), BAD)
def test_bad_session_is_named_by_line_or_index(tmp_path: Path, value: object, message: str) -> None:
    lines, listed = tmp_path / "s.jsonl", tmp_path / "s.json"
    lines.write_text(json.dumps(in_file()) + "\n\n" + json.dumps(value) + "\n")
    listed.write_text(json.dumps([in_file(), value], indent=1))
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
    for missing in (tmp_path / "no.json", tmp_path):
        with pytest.raises(DeltaMemError, match="cannot be read"):
            list(read_dialogues(missing, "owner", "Ana"))


def test_a_whole_number_becomes_a_text_time_keeps_its_zone_and_metadata_is_flat() -> None:
    (session,) = read(json.dumps(in_file(id=7, time="2026-04-05T20:01:00Z", metadata={"agent": "b", "n": [""]})))
    assert session.id == "7" and session.time == datetime(2026, 4, 5, 20, 1, tzinfo=UTC)
    assert session.metadata == {"agent": "b", "n": ("",)}
    for wrong in ({"a": {}}, [], {"": 1}, {"a": "\ud800"}):
        with pytest.raises(DeltaMemError, match=r"line 1: .*metadata"):
            read(json.dumps(in_file(metadata=wrong)))
