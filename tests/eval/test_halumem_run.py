"""Whole runs of the small HaluMem file: where every point goes, what fails, what is never asked twice."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import HALUMEM, Notebook, finish, prepare, records, served
from halumem_cases import ANA, BEN, HALUMEM_USER, ana, ben, kind, models, parts, point, session, turn, write
from rich.console import Console
from scripted_server import Reply, Served, completion, failure, serve

from deltamem.errors import DeltaMemError
from eval.data import find
from eval.halumem.scores import extraction_table, outcomes_table, point_lines, retrieval_table
from eval.summary import Summary
from eval.systems.base import Passage
from eval.systems.baselines import TurnIndex


@pytest.fixture(autouse=True)
def _prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch, HALUMEM)


def asked(server: Served) -> Counter[str]:
    return Counter(map(kind, server.requests))


def shown_rows(summary: dict[str, Any]) -> list[list[str]]:
    """The words of each line that is shown of a run."""
    console, typed = Console(width=160, file=io.StringIO()), Summary.model_validate(summary)
    for shown in (*(table(typed) for table in (extraction_table, outcomes_table, retrieval_table)), *point_lines(typed)):
        console.print(shown)
    return [line.split() for line in console.file.getvalue().splitlines()]


def test_every_point_memory_and_question_is_judged_by_what_it_must_be_shown(tmp_path: Path) -> None:
    with serve(models) as server:
        summary = HALUMEM.run(tmp_path, *served(server, "deltamem"))
    rows = shown_rows(summary)
    heading = rows.index(["R", "Weighted", "R", "Target", "P", "Acc.", "FMR", "F1"])
    assert rows[heading + 2] == ["50.0", "53.8", "100.0", "100.0", "100.0", "66.7"]
    assert ["updating", "1", "100.0", "0.0", "0.0"] in rows
    assert ["all", "questions", "3", "100.0", "0.0", "0.0", "66.7", "0.0", "33.3"] in rows
    wanted = Counter(integrity=4, accuracy=3, update=1, answer=3, qa=3, qa_strict=3)
    assert asked(server) - Counter(check=9, manager=99) == wanted
    found = records(tmp_path, "points")
    assert {key: (record["kind"], record["verdict"]["label"]) for key, record in found.items()} == {
        f"{ANA}/S1/p1": ("integrity", "2"),
        f"{ANA}/S1/p2": ("integrity", "2"),
        f"{ANA}/S1/p3": ("integrity", "0"),  # interference that the memory resisted
        f"{ANA}/S1/m1": ("accuracy", "2"),
        f"{ANA}/S1/m2": ("accuracy", "2"),
        f"{ANA}/S3/p1": ("update", "correct"),
        f"{ANA}/S3/p2": ("integrity", "0"),  # an update without originals is not searched for
        f"{ANA}/S3/m1": ("accuracy", "2"),
        f"{BEN}/S1/p1": ("integrity", "0"),  # no memory, no call
    }
    assert "cost" not in found[f"{BEN}/S1/p1"]["verdict"]
    metrics, strict = summary["aggregate"]["qa"], summary["aggregate"]["qa_strict"]
    assert metrics["memory_integrity"]["recall(all)"] == 0.5
    assert metrics["memory_integrity"]["weighted_recall(all)"] == pytest.approx((1 + 0.75) / (1 + 3 * 0.75))
    assert metrics["memory_accuracy"] == pytest.approx(dict.fromkeys(metrics["memory_accuracy"], 1))
    assert metrics["memory_extraction_f1"] == pytest.approx(2 / 3)
    assert metrics["question_answering"]["correct_qa_ratio(all)"] == 1
    assert strict["question_answering"]["correct_qa_ratio(all)"] == pytest.approx(2 / 3)
    scores = summary["scores"]
    assert scores["recall(all)"]["all"]["estimate"] == 0.5
    assert scores["strict_correct_qa_ratio(valid)"]["Memory Boundary"]["estimate"] == 0
    assert scores["memory_type_accuracy(all)"]["Event Memory"]["estimate"] == 1
    assert summary["points"] == {
        "total": 6,
        "not_reached": 0,
        "failed": 0,
        "judged": 6,
        "not_judged": 0,
        "by_kind": {"integrity": 5, "update": 1},
        "by_source": {"secondary": 4, "system": 1, "interference": 1},
        "searched": 1,
        "searched_and_linked": 1,
        "extracted_memories": 3,
    }
    assert summary["benchmark"] == "HaluMem-Long (part), not the published file"
    assert [each["mean"] for each in summary["cumulative"]] == [1, 1, 1]
    assert summary["cumulative_strict"][-1]["mean"] == pytest.approx(2 / 3)
    assert summary["queries_per_memory"] == pytest.approx(3 / 4)  # the generated session left one too
    assert summary["failures"]["count"] == 0
    assert {"halumem_answer", "halumem_integrity", "halumem_update"} <= set(summary["making"]["prompt_hashes"])
    # What judges and answerer are shown
    shown: dict[str, list[dict[str, str]]] = {}
    for body in server.requests:
        if kind(body) not in ("manager", "check"):
            shown.setdefault(kind(body), []).append(parts(body))
    both = "Ana Lee's city is Boston.\nAna Lee's job is nursing."
    assert {"Memories": both, "Expected fact": "Ana Lee's pet is a parrot."} in [
        {name: text.split("\n\n")[0] for name, text in each.items()} for each in shown["integrity"]
    ]
    of_first = next(each for each in shown["accuracy"] if "nursing" in each["Memory to check"])
    assert of_first["Conversation"].splitlines() == [
        "[Sep 01, 2025, 10:00:00]user: Hello! My city is Boston. My job is nursing.",
        "[Sep 01, 2025, 10:05:00]assistant: So you keep a parrot.",
    ]
    assert of_first["Agreed facts"] == both  # without the interference
    (update,) = shown["update"]
    assert update["As it was"] == "Ana Lee's city is Boston."
    assert update["As it should be now"] == "Ana Lee's city is Denver."
    assert update["What the system finds"].splitlines()[0] == "[3 September 2025] Ana Lee's city is Denver."
    boundary = next(each for each in shown["qa"] if "middle name" in each["Question"])
    assert boundary["Facts behind the reference"] == "(none)"


@pytest.mark.parametrize("system", ["naive_rag", "oracle"])
def test_systems_that_extract_nothing_have_no_extraction_scores(tmp_path: Path, system: str) -> None:
    with serve(models) as server:
        summary = HALUMEM.run(tmp_path, *served(server, system))
    assert set(asked(server)) == {"answer", "update", "qa", "qa_strict", "check"}
    scores = summary["scores"]
    assert not [name for name in scores if name.startswith(("recall(", "weighted", "target", "interference"))]
    assert "memory_extraction_f1" not in scores
    assert "correct_update_memory_ratio(all)" in scores and "correct_qa_ratio(all)" in scores
    assert (summary["points"]["judged"], summary["points"]["not_judged"]) == (1, 5)
    assert len(records(tmp_path, "points")) == 6
    assert ("recall@5" in scores) == (system == "naive_rag")
    assert system != "oracle" or scores["correct_qa_ratio(all)"]["all"]["estimate"] == 1


def test_offline(tmp_path: Path) -> None:
    summary = HALUMEM.run(tmp_path, "cutoffs=[1,2]", "question_k=2")
    assert summary["mode"] == "offline"
    assert {"recall@1", "recall@2", "mrr", "set_f1", "bleu1", "update_recall@10"} <= set(summary["scores"])
    assert summary["evidence"] == {
        "questions_with_evidence": 2,
        "questions_without_evidence": 1,
        "memory_points": 3,
        "linked_to_turns": 2,
    }
    rows = shown_rows(summary)
    assert ["Basic", "Fact", "Recall", "1"] in [row[:4] for row in rows] and not any("FMR" in row for row in rows)
    questions = records(tmp_path)
    assert questions[f"{ANA}/S1/q1"]["ranks"] == [1]
    assert questions[f"{ANA}/S3/q1"]["evidence"] == ["Ana Lee's city is Denver."]
    assert questions[f"{ANA}/S3/q1"]["notes"] == ["evidence that no turn could be found for: Ana Lee's xylophone hums."]
    assert summary["scores"]["recall@2"]["Memory Boundary"] is None
    assert summary["aggregate"] == {}
    passages = records(tmp_path, "passages")
    found = {key: {passages[one["passage"]]["sources"][0] for one in of["retrieved"]} for key, of in questions.items()}
    assert found[f"{ANA}/S1/q1"] == {"S1:1", "S1:2"}, "right after its session"
    HALUMEM.run(tmp_path, f"out={tmp_path / 'whole'}")
    last = records(tmp_path, "retrieved", "whole")[f"{ANA}/S3/q1"]["retrieved"]
    assert len(last) == 5, "the generated session is ingested too"
    summary = HALUMEM.run(tmp_path, "limit=2", "cutoffs=[1,2]", "question_k=2")
    assert (summary["points"]["not_reached"], summary["sessions"]["total"]) == (2, 2), "after the last question"


def test_an_update_that_finds_nothing_is_a_point_of_extraction(tmp_path: Path, monkeypatch) -> None:
    prepare(monkeypatch, HALUMEM, Notebook(finds_nothing={"Ana Lee's city is Denver."}))
    summary = HALUMEM.run(tmp_path, "answer.kind=none")
    assert summary["points"]["by_kind"] == {"integrity": 6}
    assert records(tmp_path, "points")[f"{ANA}/S3/p1"]["searched"]
    assert summary["scores"]["update_recall@10"]["all"]["estimate"] == 0


def test_a_judge_that_answers_prose_fails_and_is_no_zero(tmp_path: Path) -> None:
    def prose(body: dict[str, Any]) -> Reply:
        return completion("Well, it depends.") if kind(body) in ("integrity", "accuracy", "qa") else models(body)

    with serve(prose) as server:
        summary = HALUMEM.run(tmp_path, *served(server, "deltamem"))
    assert asked(server)["integrity"] == 3 * 4  # judge.attempts
    assert summary["failures"]["by_stage"] == {"judge": 4 + 3 + 3}
    quoted = " ".join(summary["failures"]["first"])
    # Which are quoted depends on who was answered first.
    assert re.search(r"aaaa-1/S1/[mpq]\d, (integrity|accuracy|qa): the judge '\1' gave no verdict", quoted)
    assert ["all", "questions", "(all)", "3", *["withheld"] * 3, "66.7", "0.0", "33.3"] in shown_rows(summary)
    metrics = summary["aggregate"]["qa"]
    assert metrics["counts"]["integrity"] == {"all": 5, "valid": 1}
    assert metrics["memory_integrity"]["recall(valid)"] == 0  # of the session without memories
    assert metrics["question_answering"]["correct_qa_ratio(valid)"] is None
    assert "correct_qa_ratio(valid)" not in summary["scores"]
    assert summary["points"]["failed"] == 4
    with serve(models) as mended:
        summary = HALUMEM.run(tmp_path, *served(mended, "deltamem"), "mixed=true")
    assert asked(mended) == Counter(check=1, integrity=4, accuracy=3, qa=3), "only what failed is asked again"
    assert summary["failures"]["count"] == 0
    assert summary["aggregate"]["qa"]["memory_extraction_f1"] == pytest.approx(2 / 3)
    assert len(records(tmp_path, "points")) == 9


def test_a_session_that_fails_is_tried_again_later(tmp_path: Path) -> None:
    def broken(body: dict[str, Any]) -> Reply:
        first = kind(body) == "manager" and "Boston" in body["messages"][1]["content"] and "moved" not in str(body)
        return failure(500) if first else models(body)

    with serve(broken) as server:
        retries = [f"{part}.max_retries=0" for part in ("manager", "answer", "judge")]
        summary = HALUMEM.run(tmp_path, *served(server, "deltamem"), *retries)
    assert summary["sessions"]["failed"] == 1
    # The session, its two questions and three points; the later session goes on.
    assert summary["failures"]["by_stage"] == {"ingest": 1, "search": 5}
    assert summary["points"]["failed"] == 3
    points = records(tmp_path, "points")
    assert "session S1 could not be ingested" in points[f"{ANA}/S1/p3"]["error"]
    assert points[f"{ANA}/S3/p1"]["kind"] == "update"
    assert summary["aggregate"]["qa"]["counts"]["qa"] == {"all": 3, "valid": 1}
    with serve(models) as server:
        summary = HALUMEM.run(tmp_path, *served(server, "deltamem"), "mixed=true")
    assert summary["failures"]["count"] == 0
    assert summary["sessions"]["late"] == 1
    questions, points = records(tmp_path), records(tmp_path, "points")
    assert "searched after later sessions were taken in" in questions[f"{ANA}/S1/q1"]["notes"]
    lacking = ["searched without earlier sessions that failed: S1"]
    assert questions[f"{ANA}/S3/q1"]["notes"][1:] == points[f"{ANA}/S3/p1"]["notes"] == lacking
    # Two questions of the first session; a question and an updated point of the third.
    assert summary["out_of_order"] == {"after_later_sessions": 2, "without_earlier_sessions": 2}
    assert ["2", "searches", "came", "after"] in [row[:4] for row in shown_rows(summary)]
    assert summary["points"]["judged"] == 6


def test_points_that_cannot_be_searched_for_fail_and_are_mended(tmp_path: Path, monkeypatch) -> None:
    system = Notebook(break_search={"Ana Lee's city is Denver.", HALUMEM.question}, break_open={BEN})
    prepare(monkeypatch, HALUMEM, system)
    summary = HALUMEM.run(tmp_path, "answer.kind=none")
    assert summary["failures"]["by_stage"] == {"search": 3}
    points = records(tmp_path, "points")
    assert points[f"{ANA}/S3/p1"]["error"] == "search: RuntimeError: no index"
    assert points[f"{BEN}/S1/p1"]["error"] == "the store cannot be used: the disk is gone"
    assert summary["questions"]["failed"] == 1
    found = {"recall@5", "recall@10", "recall@20", "mrr", "gold_words_shown"}
    kept = {name: of["all"] for name, of in summary["scores"].items() if "(valid)" not in name}
    assert kept.keys() <= found | {"update_recall@10"}, "nothing was judged, so nothing of that is 0"
    assert (kept["update_recall@10"]["estimate"], kept["update_recall@10"]["failed"]) == (0, 1)
    assert summary["withheld"].keys() == {"update_recall@10"}, "the question that failed is linked to no turn"
    system.break_search = system.break_open = ()
    summary = HALUMEM.run(tmp_path, "answer.kind=none")
    assert summary["failures"]["count"] == 0
    assert summary["points"]["not_judged"] == 6


def test_failures_are_no_zeros_of_a_system_that_extracts_nothing(tmp_path: Path, monkeypatch) -> None:
    search = TurnIndex.search

    async def failing(self: TurnIndex, query: str, k: int) -> list[Passage]:
        if "boat" in query:
            raise ValueError("index lost")
        return await search(self, query, k)

    monkeypatch.setattr(TurnIndex, "search", failing)
    two = ben()
    second = [turn("user", "I sold my boat.", "Oct 02, 2025, 09:00:00")]
    points = [point("Ben Ode's boat is sold.", old=["Ben Ode's boat is the Otter."])]
    two["sessions"].append(session("Oct 02, 2025, 09:00:00", second, memory_points=points))
    data = write(tmp_path / "two.jsonl", ana(), two)
    with serve(models) as server:
        summary = HALUMEM.run(tmp_path, *served(server, "naive_rag"), f"data={data}")
    assert summary["points"]["by_kind"]["update"] == 2  # the one that could not be searched for is an update too
    metrics = summary["aggregate"]["qa"]
    assert metrics["memory_update"]["omission_update_memory_ratio(valid)"] == 1
    assert metrics["memory_update"]["omission_update_memory_ratio(all)"] == 0.5
    assert metrics["memory_integrity"]["recall(all)"] is None
    assert "recall(all)" not in summary["scores"]


def test_an_unreadable_session_left_no_memories(tmp_path: Path, monkeypatch) -> None:
    system = Notebook(unreadable=[f"{ANA}/S{number}" for number in range(1, 5)] + [f"{BEN}/S1"])
    prepare(monkeypatch, HALUMEM, system)
    with serve(models) as server:
        metrics = HALUMEM.run(tmp_path, *served(server, "naive_rag"))["aggregate"]["qa"]
    assert asked(server)["integrity"] == 0
    assert metrics["memory_integrity"]["recall(all)"] == 0
    assert metrics["memory_accuracy"]["interference_accuracy(all)"] == 1
    assert metrics["memory_extraction_f1"] is None


def test_a_version_that_is_not_here_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("eval.data.data_folders", lambda *arguments: [tmp_path])
    for version, name in (("medium", "HaluMem-Medium"), ("long", "HaluMem-Long")):
        with pytest.raises(DeltaMemError, match=f"{name} is not here"):
            HALUMEM.run(tmp_path, f"version={version}", "data=null")


@pytest.mark.slow
def test_the_real_user_offline(tmp_path: Path) -> None:
    if (path := find(HALUMEM_USER)) is None:
        pytest.skip("the complete user of HaluMem is not in a data folder")
    done = finish(HALUMEM, tmp_path, f"data={path}", "out=out")
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["sessions"]["applied"] == 62
    assert summary["questions"]["total"] == 161
    assert list(summary["questions"]["by_category"].values()) == [32, 7, 3, 43, 38, 38]
    points = summary["points"]
    assert (points["total"], points["not_judged"], points["searched"]) == (686, 686, 145)
    assert points["by_source"] == {"secondary": 467, "system": 93, "interference": 126}
    assert summary["evidence"]["questions_with_evidence"] == 118
    recall = [summary["scores"][f"recall@{k}"]["all"]["estimate"] for k in (5, 10, 20)]
    assert 0.2 < recall[0] < recall[1] < recall[2] < 0.8
    assert summary["scores"]["recall@20"]["all"]["count"] == 118
    assert summary["scores"]["set_f1"]["all"]["count"] == 161
    assert 0.03 < summary["scores"]["set_f1"]["all"]["estimate"] < 0.3  # the extractive answerer is a floor
