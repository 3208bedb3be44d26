from __future__ import annotations

import json
from pathlib import Path

import pytest
from compare_cases import benchmark_config, ingest, locomo_summary, question

from deltamem.llm import Usage
from eval.records import AnswerRecord, Cost, PointRecord, Verdict
from eval.summary import cost_line, write_summary

KEYS = {
    "benchmark",
    "version",
    "system",
    "mode",
    "questions",
    "scores",
    "cost",
    "this_run",
    "latency",
    "context_tokens",
    "memories",
    "queries_per_memory",
    "sessions",
    "failures",
    "probes",
    "protocol",
    "data",
    "system_facts",
    "making",
    "seconds",
}


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
    summary = locomo_summary(config, questions, sessions, usage={"answer": Usage(requests=3)}, problems=["line 7: not JSON"])

    assert summary.keys() == KEYS
    assert summary["mode"] == "judged"
    assert summary["questions"] == {
        "total": 4,
        "asked": 4,
        "answered": 3,
        "failed": 2,
        "by_category": {"single-hop": 1, "temporal": 2, "adversarial": 1},
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
    assert cost["answer"]["calls"] == 5 and cost["answer"]["prompt_tokens"] == 200
    assert cost["judge"]["calls"] == 4 and cost["judge"]["completion_tokens"] == 20
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
            "answer: b/1: the answerer returned nothing",
            "judge: a/2, lenient: the judge wrote prose",
        ],
    }
    assert summary["scores"]["lenient"]["temporal"]["count"] == 1
    assert summary["scores"]["lenient"]["single-hop"] is None
    assert summary["this_run"]["answer"]["requests"] == 3
    assert summary["making"]["models"] == {"embedder": "all-MiniLM-L6-v2", "manager": None, "answer": "m", "judge": "m"}
    assert summary["making"]["config"]["answer"]["model"] == "m"
    assert len(summary["making"]["config_sha256"]) == 64
    assert json.loads(write_summary(tmp_path, summary).read_text(encoding="utf-8")) == summary


def test_the_folder_does_not_change_the_hash_of_the_configuration(tmp_path: Path) -> None:
    one, two = (locomo_summary(benchmark_config(tmp_path / name), [], []) for name in ("one", "two"))
    assert one["making"]["config_sha256"] == two["making"]["config_sha256"]


def test_nothing_at_all(tmp_path: Path) -> None:
    summary = locomo_summary(benchmark_config(tmp_path), [], [])
    assert summary["mode"] == "offline"
    assert summary["making"]["models"]["answer"] == "extractive"
    assert summary["making"]["models"]["judge"] is None
    assert summary["context_tokens"] is None
    assert summary["memories"] is None and summary["queries_per_memory"] is None
    assert set(summary["latency"].values()) == {None}
    assert summary["failures"] == {"count": 0, "by_stage": {}, "first": []}


def test_answers_of_the_cache_say_nothing_of_latency(tmp_path: Path) -> None:
    fast = AnswerRecord(text="x", cost=Cost(calls=1, cached=1, seconds=0.001))
    slow = AnswerRecord(text="x", cost=Cost(calls=1, seconds=3.0))
    copied = AnswerRecord(text="x", cost=Cost(seconds=0.5))
    record = question("a/1", "temporal").model_copy(update={"answers": (fast, slow, copied)})
    latency = locomo_summary(benchmark_config(tmp_path), [record], [])["latency"]["answer"]
    assert latency == {"p50": 1.75, "p95": pytest.approx(2.875), "count": 2}


def test_a_session_whose_cost_is_lost_is_counted_and_spoils_no_mean(tmp_path: Path) -> None:
    noted = ingest("a", 0)
    lost = ingest("a", 1).model_copy(update={"cost": Cost(), "cost_lost": True})
    summary = locomo_summary(benchmark_config(tmp_path), [], [noted, lost])
    assert summary["cost"]["ingest"]["sessions_lost"] == 1
    assert summary["latency"]["ingest"] == {"p50": 2.0, "p95": 2.0, "count": 1}
    assert summary["memories"]["written"] == 4
    assert summary["queries_per_memory"] == 0.5, "one search for the two memories of the session that was noted"
    assert locomo_summary(benchmark_config(tmp_path), [], [lost])["queries_per_memory"] is None


def test_only_the_first_failures_of_a_stage_are_quoted_and_all_are_counted(tmp_path: Path) -> None:
    questions = [question(f"a/{number}", "temporal").model_copy(update={"error": "gone"}) for number in range(9)]
    points = [
        PointRecord(key="p7", kind="update", user="u", session=0, text="x", verdict=Verdict(label=None, error="prose")),
        PointRecord(key="p8", kind="update", user="u", session=0, text="x", error="gone"),
        PointRecord(key="p9", kind="integrity", user="u", session=0, text="x", verdict=Verdict(label="2")),
    ]
    failures = locomo_summary(benchmark_config(tmp_path), questions, [], points=points)["failures"]
    assert failures["by_stage"] == {"search": 10, "judge": 1}
    assert failures["count"] == 11
    assert failures["first"] == [*(f"search: a/{number}: gone" for number in range(5)), "judge: p7, update: prose"]


def test_a_score_that_is_no_number_is_refused(tmp_path: Path) -> None:
    summary = locomo_summary(benchmark_config(tmp_path), [], []) | {"scores": {"x": float("nan")}}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_summary(tmp_path, summary)
    assert not (tmp_path / "summary.json").exists()


def test_further_keys_and_other_classes_become_json(tmp_path: Path) -> None:
    summary = locomo_summary(benchmark_config(tmp_path), [], [], more={"cumulative": [(1, 2)], "usage": Usage()})
    assert summary["cumulative"] == [[1, 2]]
    assert summary["usage"]["requests"] == 0


def test_sessions_that_the_manager_did_not_understand_are_counted(tmp_path: Path) -> None:
    config, questions = benchmark_config(tmp_path), [question("a/1", "temporal")]
    sessions = [ingest("a", 0, outcome="unreadable", memories=()), ingest("a", 1), ingest("a", 2)]
    assert "1 of 3 sessions brought no readable answer" in cost_line(locomo_summary(config, questions, sessions))
    assert "no readable answer" not in cost_line(locomo_summary(config, questions, sessions[1:]))
