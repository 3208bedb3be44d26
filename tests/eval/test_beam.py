"""BEAM: its parquet files, dates and evidence, rubrics judged item by item, and the order of events."""

import json
import random
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from beam_cases import batch, chat, probe, probes, row, rows, small_chat, write
from benchmark_cases import BEAM, Notebook, prepare, records, sent, served
from scripted_server import Reply, completion, failure, serve

from deltamem.errors import DeltaMemError
from eval.beam.__main__ import order_score
from eval.beam.data import BeamData, read_data
from eval.compare.runs import load_runs
from eval.compare.tables import paired_differences, paper_tables


def read(folder: Path, *values: dict[str, Any]) -> BeamData:
    path = write(folder / "b.parquet", list(values) or rows())
    return read_data(BEAM.configured(folder, f"data={path}"))


def test_sessions_are_topics_on_the_days_of_their_batches(tmp_path: Path) -> None:
    (found, _) = read(tmp_path).chats
    assert [(session.id, session.time) for session in found.sessions] == [
        ("1-1", datetime(2024, 3, 15)),
        ("1-2", datetime(2024, 3, 15, 0, 0, 1)),
        ("2-1", datetime(2024, 3, 15)),  # which says no day: that of the batch before it
    ]
    assert [[turn.id for turn in session.turns] for session in found.sessions] == [
        ["0", "1"],
        ["2", "3"],
        ["4", "5", "6", "7"],
    ]
    assert [turn.role for turn in found.sessions[0].turns] == ["user", "assistant"]
    late = [batch(0, None, "*Hello."), batch(1, "soon", "*Well."), batch(2, "May-02-2024", "*Now.")]
    (dated,) = read(tmp_path, row("3", late, {}) | {"probing_questions": repr({"abstention": [probe("?", "x")]})}).chats
    assert {session.time.date() for session in dated.sessions} == {datetime(2024, 5, 2).date()}


def test_evidence_is_what_the_ids_name(tmp_path: Path) -> None:
    found = {one.record.category: one.record for chat in read(tmp_path).chats[:1] for one in chat.questions}
    evidence = {ability: list(record.evidence) for ability, record in found.items()}
    assert evidence == {
        "abstention": [],
        "contradiction_resolution": ["4", "6"],
        "event_ordering": ["0", "4"],
        "information_extraction": ["0"],
        "knowledge_update": ["2", "6"],
        "summarization": [],
    }
    assert found["knowledge_update"].notes == ("evidence 99 names no message",)
    assert found["summarization"].notes == ("evidence '0-4' names no message", "no usable evidence")
    assert (found["event_ordering"].gold, found["summarization"].gold) == ("1) dog 2) boat", "All.")


def test_the_plans_of_ten_million_tokens_are_one_chat_whose_numbers_go_on(tmp_path: Path) -> None:
    plans = [
        {
            "plan-1": [{"batch_number": 1, "time_anchor": "May-01-2024", "turns": [batch(0, None, "*A.", "B.")]}],
            "plan-2": None,
        },
        {
            "plan-1": None,
            "plan-2": [{"batch_number": 1, "time_anchor": None, "turns": [batch(0, "May-09-2024", "*C.", "D.")]}],
        },
    ]
    (found,) = read(tmp_path, row("1", plans, {"information_extraction": [probe("?", "x", source=[3])]})).chats
    assert [(session.time.day, [turn.id for turn in session.turns]) for session in found.sessions] == [
        (1, ["0", "1"]),
        (9, ["2", "3"]),
    ]
    assert found.questions[0].record.evidence == ("3",)
    plans[1]["plan-2"][0]["turns"] = [batch(1, None, "*C.", "D.")]  # type: ignore[index]
    (found,) = read(tmp_path, row("1", plans, {"information_extraction": [probe("?", "x", source=[1, 2])]})).chats
    assert found.questions[0].record.notes == ("evidence 1 names several messages",)


@pytest.mark.parametrize(
    ("value", "message", "questions"),
    [
        (row("2", small_chat(), "{'a': "), "probing_questions: ", 6),
        (row("2", small_chat(), {"riddles": [probe("?", "x")]}), "question 1 of riddles: ability: ", 6),
        (row("2", small_chat(), {"abstention": [probe("?"), probe("!", "x")]}), "question 1 of abstention: rubric", 7),
        (row("..", small_chat(), {}), "conversation_id: '..' cannot be the name of a folder", 6),
        (row("1", small_chat(), {}), "occurs twice", 6),
        (row("2", [], {}), "it has no messages", 6),
        (row("2", [batch(0, None, "*A.")], {}), "it has no dates", 6),
    ],
)
def test_what_is_broken_is_named_and_the_rest_is_read(
    tmp_path: Path, value: dict[str, Any], message: str, questions: int
) -> None:
    found = read(tmp_path, rows()[0], value)
    assert len(found.problems) == found.description()["unreadable"] == 1 and message in found.problems[0]
    assert found.description()["questions"] == questions


def test_what_is_broken_is_counted_and_the_rest_is_asked(monkeypatch, tmp_path: Path) -> None:
    prepare(monkeypatch, BEAM, system := Notebook())
    path = write(tmp_path / "b.parquet", [*rows(), row("3", [], {})])
    summary = BEAM.run(tmp_path, f"data={path}", "answer.kind=none", "conversations=[2]")
    assert system.opened == ["2"] and summary["questions"]["by_category"] == {"instruction_following": 1}
    assert summary["failures"]["by_stage"] == {"data": 1} and "it has no messages" in summary["failures"]["first"][0]
    assert "a sample: 1 of 7 questions (conversations=[2])" in summary["version"]


def test_a_file_that_is_no_such_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no")
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"chat": ["x"]}), tmp_path / "other.parquet")
    (tmp_path / "empty").mkdir()
    for name, message in [
        ("text.parquet", "is not a parquet file"),
        ("other.parquet", "it has no column conversation_id"),
        ("absent.parquet", "No such file"),
        ("empty", "the folder holds no parquet file"),
    ]:
        with pytest.raises(DeltaMemError, match=message):
            read_data(BEAM.configured(tmp_path, f"data={tmp_path / name}"))
    with pytest.raises(DeltaMemError, match="nothing can be asked"):
        read(tmp_path, row("1", chat(), {}))


def tau_b(first: list[int], second: list[int]) -> float:
    """By its definition."""
    sign = lambda a, b: (a > b) - (a < b)  # noqa: E731
    pairs = [(i, j) for j in range(len(first)) for i in range(j)]
    products = [(sign(first[i], first[j]), sign(second[i], second[j])) for i, j in pairs]
    concordance = sum(a * b for a, b in products)
    return concordance / (sum(a != 0 for a, _ in products) * sum(b != 0 for _, b in products)) ** 0.5


def test_the_order_of_events_is_scored_as_the_official_code_scores_it() -> None:
    draw = random.Random(0)
    for _ in range(100):
        events, lines = draw.randint(1, 6), draw.randint(1, 7)
        found = [draw.choice([None, *range(lines)]) for _ in range(events)]
        reference = [f"event {number}" for number in range(events)]
        system, used = [], set()
        for line in range(lines):  # each line takes the name of the first event that is like it and not taken
            like = next((number for number in range(events) if found[number] == line and number not in used), None)
            used.add(like)
            system.append(f"line {line}" if like is None else reference[like])
        union = list(dict.fromkeys(reference + system))
        ranks = [[own.index(one) + 1 if one in own else len(union) + 1 for one in union] for own in (reference, system)]
        expected = 1.0 if len(union) == 1 else (tau_b(*ranks) + 1) / 2
        assert order_score(found, lines) == pytest.approx(expected)
    assert order_score([0, 1, 2], 3) == 1.0 and order_score([2, 1, 0], 3) == 0.0 and order_score([None], 0) == 0.0


def test_rubrics_are_judged_item_by_item(monkeypatch, tmp_path: Path) -> None:
    prepare(monkeypatch, BEAM)
    with serve(BEAM.script) as server:
        summary = BEAM.run(tmp_path, *served(server, "naive_rag"))
        asked = [json.loads(text)[0][0]["content"] for text in sent(server)]
    items = sum(len(one["rubric"]) for of in probes().values() for one in of)
    assert sum(not text.startswith("You are") for text in asked) == items + 1
    assert any("Lines of the answer:\n1: the boat\n2: the dog\n" in text for text in asked), "blank lines are left out"
    scores = {
        metric: {name: of["estimate"] for name, of in rows.items() if of} for metric, rows in summary["scores"].items()
    }
    assert scores["score"] == {
        "information_extraction": 1.0,
        "knowledge_update": 0.5,
        "abstention": 1.0,
        "contradiction_resolution": 0.75,
        "event_ordering": 0.0,  # the other way round
        "instruction_following": 0.5,
        "summarization": 0.5,
        "all": pytest.approx(4.25 / 7),
    }
    assert scores["score_strict"]["contradiction_resolution"] == 0.5 and scores["score_strict"]["summarization"] == 0.0
    assert scores["recall@5"]["event_ordering"] == 1.0 and "abstention" not in scores["recall@5"]
    assert summary["headline"]["metric"] == "score"

    def hard(body: dict[str, Any]) -> Reply:
        checked = body["messages"][0]["content"].startswith("You check")
        return completion('{"reason": "r", "label": "wrong"}') if checked else BEAM.script(body)

    with serve(hard) as server:
        BEAM.run(tmp_path, *served(server, "naive_rag"), f"out={tmp_path / 'other'}")
    runs = load_runs([tmp_path / "out", tmp_path / "other"])
    differences = {one.metric: one.interval for one in paired_differences(runs, resamples=20)}
    assert differences["score"].count == 7 and differences["score"].estimate == pytest.approx(4.25 / 7)
    assert "not the published file" in paper_tables(runs)[0].title


def test_an_item_that_no_judge_could_judge_counts_as_nothing_and_is_mended(monkeypatch, tmp_path: Path) -> None:
    works: list[bool] = []

    def at_first_broken(body: dict[str, Any]) -> Reply:
        if "\nRequirement: asks\n" in body["messages"][0]["content"] and not works:
            return failure(400)
        return BEAM.script(body)

    prepare(monkeypatch, BEAM)
    with serve(at_first_broken) as server:
        scores = BEAM.run(tmp_path, *served(server))["scores"]
        assert records(tmp_path)["1/contradiction_resolution/1"]["answers"][0]["verdicts"]["rubric/2"]["error"]
        assert scores["score"]["contradiction_resolution"]["estimate"] == 0.5
        assert scores["score(valid)"]["contradiction_resolution"]["estimate"] == 1.0
        works.append(True)
        asked = len(sent(server))
        assert BEAM.run(tmp_path, *served(server))["scores"]["score"]["contradiction_resolution"]["estimate"] == 0.75
        assert len(sent(server)) == asked + 1
