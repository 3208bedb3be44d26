from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltamem.errors import DeltaMemError
from deltamem.runs import RecordFile, read_records
from eval.records import PassageRecord, QuestionRecord

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def passage(number: int, text: str) -> PassageRecord:
    return PassageRecord(id=str(number), store="s", text=text)


def open_file(path: Path) -> RecordFile[PassageRecord]:
    return RecordFile(path, PassageRecord, lambda record: record.id)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(texts=st.lists(TEXTS, max_size=5), data=st.data())
def test_a_file_cut_at_any_byte_keeps_its_whole_lines_and_can_be_continued(
    tmp_path: Path, texts: list[str], data: st.DataObject
) -> None:
    path = tmp_path / "records.jsonl"
    path.unlink(missing_ok=True)
    with open_file(path) as file:
        for number, text in enumerate(texts):
            file.add(passage(number, text))
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")

    assert read_records(path, PassageRecord, lambda record: record.id).keys() == {str(number) for number in range(kept)}
    assert path.read_bytes() == whole[:cut], "reading must not change the file"

    with open_file(path) as file:
        assert [record.text for record in file] == texts[:kept]
        file.add(passage(99, "later\nline\r\u2028"))
    with open_file(path) as file:
        assert [record.text for record in file] == [*texts[:kept], "later\nline\r\u2028"]


def test_a_later_record_replaces_the_earlier_one(tmp_path: Path) -> None:
    with open_file(tmp_path / "records.jsonl") as file:
        file.add(passage(1, "old"))
        file.add(passage(2, "other"))
        file.add(passage(1, "new"))
        assert len(file) == 2
    with open_file(tmp_path / "records.jsonl") as file:
        assert [(record.id, record.text) for record in file] == [("1", "new"), ("2", "other")]
        assert "1" in file and "3" not in file
        assert file.get("3") is None


def test_a_record_is_in_the_file_when_add_returns(tmp_path: Path) -> None:
    file = open_file(tmp_path / "records.jsonl")
    file.add(passage(1, "text"))
    assert (tmp_path / "records.jsonl").read_bytes().endswith(b"\n")
    file.close()


@pytest.mark.parametrize(
    "line",
    [
        '{"id": "1"}',
        '{"id": "1", "store": "s", "text": "t", "colour": "red"}',
        "null",
        "{",
        '{"id": 1, "store": "s", "text": "t"}',
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"id": "0", "store": "s", "text": "t"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(DeltaMemError, match=r"records\.jsonl, line 2: cannot be read as a record of a run"):
        open_file(path)
    with pytest.raises(DeltaMemError, match="line 2"):
        read_records(path, PassageRecord, lambda record: record.id)


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with open_file(path) as file:
        file.add(passage(1, "text"))
        with path.open("a", encoding="utf-8") as unfinished:
            unfinished.write('{"id"')
        before = path.read_bytes()
        with pytest.raises(DeltaMemError, match=r"records\.jsonl: in use by another process"):
            open_file(path)
        assert path.read_bytes() == before, "what the other run is writing must not be cut off"
        assert len(read_records(path, PassageRecord, lambda record: record.id)) == 1
    with open_file(path) as file:
        assert len(file) == 1


def test_defaults_are_not_written_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    record = QuestionRecord(key="a/1", group="a", category="c", question="q")
    with RecordFile(path, QuestionRecord, lambda one: one.key) as file:
        file.add(record)
    assert path.read_text(encoding="utf-8") == '{"key":"a/1","group":"a","category":"c","question":"q"}\n'
    assert read_records(path, QuestionRecord, lambda one: one.key) == {"a/1": record}
