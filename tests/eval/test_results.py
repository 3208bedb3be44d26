"""Records, what they were made with, scores by category, and the summary of a run."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from compare_cases import ORDER, POOLED, benchmark_config, ingest, locomo_summary, question
from hypothesis import given
from hypothesis import strategies as st

from deltamem.errors import DeltaMemError
from deltamem.llm import RequestCounts
from eval.fingerprint import MANIFEST_FILE, RunManifest
from eval.records import (
    AnswerRecord,
    Cost,
    PassageRecord,
    PointRecord,
    QuestionRecord,
    Verdict,
)
from eval.scores import answer_value, category_scores, metric_scores, recall_value, reciprocal_rank_value, verdict_value
from eval.summary import Summary, cost_line, write_summary
from eval.systems.base import Passage


def test_passages_have_the_same_id_only_if_they_are_the_same() -> None:
    passage = Passage("text", datetime(2023, 5, 8), ("D1:1",), 0.9)
    same = Passage("text", datetime(2023, 5, 8), ("D1:1",), 0.1)
    others = [
        Passage("text.", passage.time, passage.sources),
        Passage("text", None, passage.sources),
        Passage("text", passage.time, ("D1:2",)),
    ]
    ids = {PassageRecord.of(one, "store").id for one in (passage, same)}
    assert len(ids) == 1, "how similar it was to one question does not matter"
    assert len(ids | {PassageRecord.of(one, "store").id for one in others}) == 4
    assert PassageRecord.of(passage, "another").id not in ids


def test_the_same_settings_go_on_and_others_are_refused(tmp_path: Path) -> None:
    same = {"answer": {"x": None}, "benchmark": "LoCoMo", "models": ["a", "b"], "system": "a"}
    RunManifest(tmp_path, same | {"models": ("a", "b")}).write()
    RunManifest(tmp_path, same)
    for changes, said in (
        ({"answer": {"x": 0}}, "answer = "),
        ({"new": 1}, "new = None, not 1"),
        ({"answer": 2, "system": "b"}, "system = 'a', not 'b'"),
        ({"answer": 2, "benchmark": "HaluMem", "system": "b"}, "benchmark = 'LoCoMo', not 'HaluMem'"),
    ):
        with pytest.raises(DeltaMemError, match=f"made with {said}"):
            RunManifest(tmp_path, same | changes)
    with pytest.raises(DeltaMemError, match=r"made with models = .*, not None"):
        RunManifest(tmp_path, {name: value for name, value in same.items() if name != "models"})
    (tmp_path / MANIFEST_FILE).write_text("{", encoding="utf-8")
    with pytest.raises(DeltaMemError, match=r"manifest\.json: not valid JSON"):
        RunManifest(tmp_path, {})


def test_a_failure_is_wrong_and_left_out_only_where_the_name_says_so() -> None:
    records = [
        question("a/1", "temporal", lenient="correct"),
        question("a/2", "temporal", lenient=None),
        question("b/1", "temporal", text=None),
        question("b/2", "temporal", lenient="wrong"),
        question("b/3", "temporal", lenient="correct"),
        question("c/1", "multi-hop", text=None),
    ]
    (answer,) = records[2].answers
    records[2] = records[2].model_copy(update={"answers": (answer.model_copy(update={"silent": True}),)})
    scores = metric_scores(records, {"lenient": verdict_value("lenient"), "set_f1": answer_value("set_f1")}, resamples=50)
    found = {name: of["temporal"] for name, of in scores.items()}
    assert {name: (one["estimate"], one["count"], one["failed"]) for name, one in found.items()} == {
        "lenient": (2 / 5, 5, 1),  # the judge failed once; that the answerer said nothing once is its own doing
        "lenient(valid)": (pytest.approx(2 / 3), 3, 0),
        "set_f1": (4 * 0.5 / 5, 5, 0),
        "set_f1(valid)": (0.5, 4, 0),
    }
    assert scores["lenient"]["multi-hop"]["estimate"] == 0 and scores["lenient"]["multi-hop"]["failed"] == 1
    assert scores["lenient(valid)"]["multi-hop"] is None
    whole = metric_scores(records[3:5], {"lenient": verdict_value("lenient")}, resamples=50)
    assert list(whole) == ["lenient"], "nothing failed"


def test_order_and_pooling() -> None:
    records = [question("a/1", "adversarial", f1=1.0), question("a/2", "other"), question("b/1", "temporal", f1=0.25)]
    records.append(question("b/2", "single-hop", f1=0.75))
    scores = category_scores(records, answer_value("set_f1"), pooled=POOLED, order=ORDER, resamples=50)
    assert list(scores) == ["single-hop", "temporal", "adversarial", "other", "all"]
    assert scores["adversarial"] is None, "it has no lexical score"
    assert scores["all"] is not None and (scores["all"]["estimate"], scores["all"]["count"]) == (0.5, 2)


def test_one_group_has_wilsons_interval_for_verdicts_and_a_bootstrap_of_questions_for_scores() -> None:
    records = [
        question(f"a/{number}", "temporal", lenient="correct" if number < 8 else "wrong", f1=number / 10)
        for number in range(10)
    ]
    score = category_scores(records, verdict_value("lenient"))["all"]
    assert score is not None
    assert (score["low"], score["high"]) == pytest.approx((0.4902, 0.9433), abs=1e-4)  # Wilson, 8 of 10
    score = category_scores(records, answer_value("set_f1"))["all"]
    assert score is not None and score["low"] < score["estimate"] < score["high"]


def test_runs_are_averaged_over_those_with_a_value() -> None:
    answers = (
        AnswerRecord(text="x", scores={"correct": 1.0}, verdicts={"j": Verdict(label="Correct")}),
        AnswerRecord(text="y", scores={"correct": 0.0}, verdicts={"j": Verdict(label="omission")}),
        AnswerRecord(text=None, error="nothing"),
    )
    record = QuestionRecord(key="a/1", group="a", category="c", question="q", answers=answers)
    assert answer_value("correct")(record) == verdict_value("j")(record) == 0.5
    assert verdict_value("another")(record) is None
    verdicts = {"j": Verdict(label="correct"), "j#2": Verdict(label="wrong"), "j#3": Verdict(label=None, error="prose")}
    record = record.model_copy(update={"answers": (AnswerRecord(text="x", verdicts=verdicts),)})
    assert verdict_value("j")(record) == pytest.approx(1 / 3) and verdict_value("j").valid(record) == 0.5


def test_ranks() -> None:
    record = question("a/1", "temporal").model_copy(update={"ranks": (3, None, 7, 12), "evidence": ("a", "b", "c", "d")})
    assert (recall_value(5)(record), recall_value(10)(record)) == (0.25, 0.5)
    assert reciprocal_rank_value(record) == pytest.approx(1 / 3)
    without, failed = (record.model_copy(update=one) for one in ({"ranks": ()}, {"error": "no memory"}))
    assert recall_value(5)(without) is reciprocal_rank_value(without) is None
    assert recall_value(5)(failed) == reciprocal_rank_value(failed) == 0
    assert recall_value(5).valid(failed) is None and recall_value(5).lost(failed)


ROWS = st.tuples(st.sampled_from("abc"), st.sampled_from(ORDER), st.sampled_from(["correct", "wrong", None]))


@given(st.lists(ROWS, min_size=1))
def test_valid_is_the_mean_of_what_has_a_verdict(rows: list[tuple[str, str, str | None]]) -> None:
    answer = {label: AnswerRecord(text="x", verdicts={"j": Verdict(label=label)}) for label in ("correct", "wrong", None)}
    records = [
        QuestionRecord(key=str(number), group=group, category=category, question="q", answers=(answer[label],))
        for number, (group, category, label) in enumerate(rows)
    ]
    scores = category_scores(records, verdict_value("j").valid, resamples=20)
    labels = [label for _, _, label in rows if label is not None]
    if not labels:
        assert set(scores.values()) == {None}
        return
    overall = scores.pop("all")
    assert overall is not None
    assert overall["estimate"] == pytest.approx(labels.count("correct") / len(labels))
    assert overall["low"] <= overall["estimate"] + 1e-9 and overall["estimate"] <= overall["high"] + 1e-9
    assert overall["count"] == sum(score["count"] for score in scores.values() if score is not None)


def test_golden_numbers(tmp_path: Path) -> None:
    questions = [
        question("a/1", "temporal"),
        question("a/2", "temporal", lenient=None),
        question("b/1", "single-hop", text=None),
        question("b/2", "adversarial", f1=1.0),
    ]
    sessions = [
        ingest("a", 0),
        ingest("a", 1, memories=()),
        ingest("b", 0, outcome="unreadable", memories=()),
        ingest("b", 1, outcome="failed"),
    ]
    config = benchmark_config(tmp_path, **{"answer.model": "m", "base_url": "http://localhost:1/v1"})
    usage = {"answer": RequestCounts(requests=3)}
    arguments = {"usage": usage, "problems": ["line 7: not JSON"], "headline": ("strict", "lenient")}
    summary = locomo_summary(config, questions, sessions, **arguments)

    assert " ".join(summary) == (
        "benchmark version system mode questions headline scores withheld warnings partial budgets cost this_run latency "
        "context_tokens passages memories queries_per_memory sessions failures probes swapped protocol data "
        "system_facts making seconds"
    )
    assert summary["mode"] == "judged"
    assert summary["questions"] == {
        "total": 4,
        "asked": 4,
        "answered": 3,
        "failed": 2,
        "groups": 2,
        "by_category": {"single-hop": 1, "temporal": 2, "adversarial": 1},
        "keys": None,
    }
    assert summary["version"] == "LoCoMo: 4 questions; sha256 abababababab"
    cost = summary["cost"]
    assert cost["ingest"] == {
        "calls": 6,
        "cached": 0,
        "prompt_tokens": 900,
        "completion_tokens": 90,
        "searches": 3,
        "seconds": 6.0,
        "sessions_lost": 0,
    }
    assert (cost["answer"]["calls"], cost["answer"]["prompt_tokens"]) == (5, 200)
    assert (cost["judge"]["calls"], cost["judge"]["completion_tokens"]) == (4, 20)
    assert cost["search"] == {"searches": 4, "seconds": 0.04}
    assert summary["latency"]["answer"] == {"p50": 1.0, "p95": 1.0, "count": 3}, "a failed answer has no latency"
    assert summary["latency"]["judge"]["count"] == 3
    assert summary["context_tokens"] == {"mean": 1000.0, "p50": 1000.0, "p95": 1000.0}
    assert summary["memories"]["written"] == 2
    assert summary["memories"]["per_store"] == {"mean": 1.0, "min": 0, "max": 2}
    assert summary["queries_per_memory"] == 1.5
    assert summary["sessions"] == {"total": 4, "applied": 2, "unreadable": 1, "failed": 1, "late": 0}
    assert summary["failures"] == {
        "count": 4,
        "by_stage": {"data": 1, "ingest": 1, "answer": 1, "judge": 1},
        "first": [
            "data: line 7: not JSON",
            "ingest: b/S1: broke",
            "answer: b/1: the endpoint is down",
            "judge: a/2, lenient: the judge wrote prose",
        ],
    }
    lenient = summary["scores"]["lenient"]["all"]
    assert (lenient["estimate"], lenient["count"], lenient["failed"]) == (pytest.approx(1 / 3), 3, 2)
    assert summary["headline"] == {
        "metric": "strict",
        "score": summary["scores"]["strict"]["all"],
        "withheld": "1 of 4 sessions could not be ingested",
        "n": 3,
        "of": 4,
        "failures": 1,
        "silent": 0,
        "context_tokens": 1000.0,
        "judge_error": None,
        "judge_runs": None,
    }
    assert summary["withheld"].keys() == summary["scores"].keys(), "a fourth of the sessions failed"
    assert summary["warnings"] == ["the judge is the answerer (m): it grades itself; name another with judge.model=..."]
    assert summary["this_run"]["answer"]["requests"] == 3
    assert summary["making"]["models"] == {"embedder": "all-MiniLM-L6-v2", "manager": None, "answer": "m", "judge": "m"}
    assert summary["making"]["config"]["answer"]["model"] == "m"
    assert len(summary["making"]["config_sha256"]) == 64
    assert "1 of 4 sessions brought no readable answer" in cost_line(Summary.model_validate(summary))
    assert json.loads(write_summary(tmp_path, summary).read_text(encoding="utf-8")) == summary


def test_what_cost_nothing_now_spoils_no_latency_and_no_mean(tmp_path: Path) -> None:
    """Answers of the cache, and sessions whose cost was lost in a kill."""
    costs = (Cost(calls=1, cached=1, seconds=0.001), Cost(calls=1, seconds=3.0), Cost(seconds=0.5))
    answers = tuple(AnswerRecord(text="x", cost=cost) for cost in costs)
    record = question("a/1", "temporal").model_copy(update={"answers": answers})
    lost = ingest("a", 1).model_copy(update={"cost": Cost(), "cost_lost": True})
    summary = locomo_summary(benchmark_config(tmp_path), [record], [ingest("a", 0), lost])
    assert summary["latency"]["answer"] == {"p50": 1.75, "p95": pytest.approx(2.875), "count": 2}
    assert summary["latency"]["ingest"] == {"p50": 2.0, "p95": 2.0, "count": 1}
    assert (summary["cost"]["ingest"]["sessions_lost"], summary["memories"]["written"]) == (1, 4)
    assert summary["queries_per_memory"] == 0.5, "one search for the two memories of the session that was noted"
    assert locomo_summary(benchmark_config(tmp_path), [], [lost])["queries_per_memory"] is None


def test_only_the_first_failures_of_a_stage_are_quoted_and_all_are_counted(tmp_path: Path) -> None:
    questions = [question(f"a/{number}", "temporal").model_copy(update={"error": "gone"}) for number in range(9)]
    fields = {"user": "u", "session": 0, "text": "x"}
    points = [
        PointRecord(key="p7", kind="update", verdict=Verdict(label=None, error="prose"), **fields),
        PointRecord(key="p8", kind="update", error="gone", **fields),
        PointRecord(key="p9", kind="integrity", verdict=Verdict(label="2"), **fields),
    ]
    failures = locomo_summary(benchmark_config(tmp_path), questions, [], points=points)["failures"]
    assert failures["by_stage"] == {"search": 10, "judge": 1}
    assert failures["count"] == 11
    assert failures["first"] == [*(f"search: a/{number}: gone" for number in range(5)), "judge: p7, update: prose"]


def test_what_a_benchmark_adds_becomes_json_and_what_is_no_number_is_refused(tmp_path: Path) -> None:
    more = {"cumulative": [(1, 2)], "usage": RequestCounts()}
    summary, other = (locomo_summary(benchmark_config(tmp_path / name), [], [], more=more) for name in ("one", "two"))
    assert summary["making"]["config_sha256"] == other["making"]["config_sha256"], "whatever the folder"
    assert summary["mode"] == "offline" and summary["making"]["models"]["answer"] == "extractive"
    assert [summary[name] for name in ("context_tokens", "memories", "queries_per_memory")] == [None] * 3
    assert summary["failures"] == {"count": 0, "by_stage": {}, "first": []} and set(summary["latency"].values()) == {None}
    assert summary["cumulative"] == [[1, 2]]
    assert summary["usage"]["requests"] == 0
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_summary(tmp_path, summary | {"scores": {"x": float("nan")}})
    assert not (tmp_path / "summary.json").exists()


def test_what_a_system_lacks_and_who_judges_are_told(tmp_path: Path) -> None:
    questions = [question("a/1", "temporal")]
    facts = {"package": "mem0ai 2", "keyword_search": False, "warnings": ["mem0 works without its keyword search"]}
    changes = {"answer.model": "m", "base_url": "http://localhost:1/v1", "judge.model": "other", "system": "mem0"}
    summary = locomo_summary(benchmark_config(tmp_path, **changes), questions, [], system_facts=facts)
    assert summary["warnings"] == ["mem0 works without its keyword search"]
    changes |= {
        "judge.probes": False,
        "judge.max_false_accept": 0.9,
        "judge.base_url": "http://localhost:2/v1",
        "judge.model": "m",
    }
    data = {"file": "f", "sha256": "x", "questions": 9, "published": False}
    summary = locomo_summary(benchmark_config(tmp_path, **changes), questions, [], data=data)
    assert [sentence.partition(":")[0].partition(";")[0] for sentence in summary["warnings"]] == [
        "a sample",
        "the data is not the published file",
        "the judge was not calibrated (judge.probes=false)",
        "judge.max_false_accept=0.9 is above the usual 0.4",
    ], "the same name at another endpoint is another model"
    assert summary["benchmark"] == "LoCoMo, not the published file"
