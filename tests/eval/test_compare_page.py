from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest
from compare_cases import ingest, question, records, write_run
from page_cases import Page

from deltamem.runs import RecordFile
from eval.compare import page as page_module
from eval.compare.page import outcome, point_outcome, render, viewer_data, write_report
from eval.compare.runs import load_runs
from eval.compare.tables import compare
from eval.records import AnswerRecord, PassageRecord, PointRecord, QuestionRecord, Verdict
from eval.systems.base import Passage

EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)> & <!-- \u2028"


def test_everything_that_was_read_is_escaped(tmp_path: Path) -> None:
    passage = Passage(EVIL, datetime(2023, 5, 8, 13, 56), (EVIL,))
    name = PassageRecord.of(passage, "store").id
    asked = question("conv-1/1", "temporal", text=EVIL, passages=[name], asked=EVIL)
    verdicts = {"lenient": Verdict(label="correct", reason=EVIL), EVIL: Verdict(label=EVIL)}
    answer = asked.answers[0].model_copy(update={"verdicts": verdicts})
    asked = asked.model_copy(update={"answers": (answer,), "gold": EVIL, "notes": (EVIL,), "evidence": (EVIL,)})
    other = question("conv-2/1", EVIL.replace("/", "|"))
    folder = tmp_path / "<q>$^$ & _run"
    run = write_run(folder, [asked, other], passages=[passage], problems=[EVIL], config={"answer.model": EVIL})

    page = Page(render(load_runs([run])))
    page.check_self_contained()
    assert len(page.scripts) == 2 and page.count("q") == 0
    (data,) = json.loads(page.scripts[0])
    item = data["items"][0]
    assert item["question"] == EVIL and item["gold"] == EVIL
    assert item["answers"][0]["verdicts"]["lenient"]["reason"] == EVIL
    assert data["passages"] == [[EVIL, "2023-05-08 13:56", "store", EVIL]]
    assert item["found"] == [[0, 0.5]]
    assert "innerHTML" not in page.scripts[1]


def test_tables_charts_and_warnings_are_on_the_page(tmp_path: Path) -> None:
    points = [{"session": number, "mean": 0.5, "low": 0.4, "high": 0.6, "users": 2} for number in range(3)]
    sessions = [ingest("conv-0", 0), ingest("conv-1", 0, outcome="unreadable")]
    first = write_run(tmp_path / "first", records(), sessions=sessions, more={"cumulative": points})
    second = write_run(tmp_path / "second", records(), sessions=sessions[:1], config={"judge.model": "other"})
    runs = load_runs([first, second])
    page = Page(render(runs))
    page.check_self_contained()
    assert page.count("figure") == 5  # both judges, by session, two costs
    (section,) = compare(runs).values()
    for sentence in (
        *section.differences,
        *(sentence for card in section.cards for sentence in card.warnings),
        *(row.detail for table in section.papers for row in table.rows),
    ):
        assert " ".join(sentence.split()) in page.text


def test_outcomes_of_questions_and_of_points() -> None:
    record = QuestionRecord(key="a/1", group="a", category="c", question="q")
    for labels, expected in (
        (["correct", "Correct"], "right"),
        (["wrong", "fooled"], "wrong"),
        (["correct", "wrong"], "disagreement"),
        (["correct", None], "failed"),
        ([], "not judged"),
    ):
        verdicts = [Verdict(label=label, error=None if label else "prose") for label in labels]
        answers = tuple(AnswerRecord(text="x", verdicts={"j": verdict}) for verdict in verdicts)
        assert outcome(record.model_copy(update={"answers": answers})) == expected, labels
    choice = AnswerRecord(text="(a)", scores={"correct": 0.0})
    assert outcome(record.model_copy(update={"answers": (choice,)})) == "wrong"
    fields = {"key": "u/S1/p1", "user": "u", "session": 0, "text": "t"}
    for kind, source, label, expected in (
        ("integrity", "system", "2", "right"),
        ("integrity", "system", "1", "wrong"),
        ("integrity", "interference", "0", "right"),
        ("integrity", "interference", "2", "wrong"),
        ("update", "secondary", "correct", "right"),
        ("update", "secondary", "omission", "wrong"),
        ("update", "secondary", None, "not judged"),
    ):
        point = fields | {"kind": kind, "source": source, "verdict": label and {"label": label}}
        assert point_outcome(PointRecord.model_validate(point)) == expected, point
        assert point_outcome(PointRecord.model_validate(point | {"verdict": None, "error": "gone"})) == "failed"


def test_points_are_browsable_wrong_ones_first_and_long_passages_are_cut(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(page_module, "TEXT_BUDGET", 1_000)
    passages = [Passage("x" * 900), Passage("y" * 900), Passage("short")]
    kept = [PassageRecord.of(passage, "store").id for passage in passages]
    asked = question("u/1", "Basic Fact Recall", passages=[*kept, "gone"])
    folder = write_run(tmp_path / "run", [asked], passages=passages, benchmark="HaluMem-Medium")
    with RecordFile(folder / "points.jsonl", PointRecord, lambda record: record.key) as file:
        for number, label in enumerate(("2", "0", "2")):
            fields = {"key": f"u/S0/p{number}", "user": "u", "session": 0, "text": f"point {number}"}
            file.add(PointRecord(kind="integrity", source="system", verdict=Verdict(label=label), **fields))
    monkeypatch.setattr(page_module, "POINTS_SHOWN", 2)
    (data,) = json.loads(viewer_data(load_runs([folder])))
    assert data["points"] == [2, 3]
    assert [item["question"] for item in data["items"]] == ["What?", "point 1", "point 0"]
    assert data["items"][1]["answers"][0]["verdicts"]["integrity"]["label"] == "0"
    assert data["cut"] == 333
    assert [len(passage[0]) for passage in data["passages"]] == [334, 334, 5]
    assert len(data["items"][0]["found"]) == 3, "a passage that is not in the file is left out"


def test_neither_a_name_that_is_no_text_nor_a_run_without_answers_breaks_the_page(tmp_path: Path, recwarn) -> None:
    run = tmp_path / os.fsdecode(b"run\xff")
    unanswered = question("a/1", "temporal").model_copy(update={"search_seconds": 0.0, "answers": ()})
    try:
        write_run(run, [unanswered])
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    write_report(load_runs([run]), tmp_path / "report.html")
    assert "run?" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [str(warning.message) for warning in recwarn] == [], "it took no time"
