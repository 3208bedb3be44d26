"""Whole runs of the small file against a scripted server: where every point goes, what fails, what is never asked twice."""

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from halumem_cases import (
    ANA,
    BEN,
    ana,
    ben,
    configured,
    evaluate,
    kind,
    lines,
    models,
    parts,
    point,
    served,
    session,
    turn,
    verdict,
)
from rich.console import Console
from scripted_server import Reply, Served, completion, failure, serve

import eval.runner as evaluation
from deltamem.errors import DeltaMemError
from eval.halumem.__main__ import Halumem
from eval.halumem.scores import point_lines
from eval.systems.base import DialogueSession, Ingested, Passage
from eval.systems.baselines import NaiveRag, TurnIndex


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(*overrides: str, data: tuple[object, ...] = ()) -> dict[str, Any]:
        return evaluate(monkeypatch, tmp_path, *overrides, data=data)

    return run


def asked(server: Served) -> Counter[str]:
    return Counter(map(kind, server.requests))


def test_every_point_memory_and_question_is_judged(run, tmp_path: Path) -> None:
    with serve(models) as server:
        summary = run(*served(server))
        assert asked(server) - Counter(check=9, manager=99) == Counter(
            integrity=4, accuracy=3, update=1, answer=3, qa=3, qa_strict=3
        )
        records = lines(tmp_path, "points")
        assert {key: (record["kind"], record["verdict"]["label"]) for key, record in records.items()} == {
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
        assert "cost" not in records[f"{BEN}/S1/p1"]["verdict"]
        metrics = summary["aggregate"]["qa"]
        assert metrics["memory_integrity"]["recall(all)"] == 0.5
        assert metrics["memory_integrity"]["weighted_recall(all)"] == pytest.approx((1 + 0.75) / (1 + 3 * 0.75))
        assert metrics["memory_accuracy"] == pytest.approx(dict.fromkeys(metrics["memory_accuracy"], 1))
        assert metrics["memory_extraction_f1"] == pytest.approx(2 / 3)
        assert metrics["question_answering"]["correct_qa_ratio(all)"] == 1
        assert summary["aggregate"]["qa_strict"]["question_answering"]["correct_qa_ratio(all)"] == pytest.approx(2 / 3)
        assert summary["scores"]["recall(all)"]["all"]["estimate"] == 0.5
        assert summary["scores"]["strict_correct_qa_ratio(valid)"]["Memory Boundary"]["estimate"] == 0
        assert summary["scores"]["memory_type_accuracy(all)"]["Event Memory"]["estimate"] == 1
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
        assert summary["benchmark"] == "HaluMem-Long (part)"
        assert [point["mean"] for point in summary["cumulative"]] == [1, 1, 1]
        assert summary["cumulative_strict"][-1]["mean"] == pytest.approx(2 / 3)
        assert summary["queries_per_memory"] == pytest.approx(3 / 4)  # the generated session left one too
        assert summary["failures"]["count"] == 0
        assert {"halumem_answer", "halumem_integrity", "halumem_update"} <= set(summary["making"]["prompt_hashes"])
        # A second run of the same asks for nothing, not even whether the server is there.
        before = len(server.requests)
        assert run(*served(server))["scores"] == summary["scores"]
        assert len(server.requests) == before


def test_what_judges_and_answerer_are_shown(run) -> None:
    with serve(models) as server:
        run(*served(server))
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


def test_questions_are_asked_right_after_their_session(run, tmp_path: Path) -> None:
    with serve(models) as server:
        run(*served(server, "naive_rag"))
    passages = {}
    for line in (tmp_path / "out" / "passages.jsonl").read_text().splitlines():
        passages[json.loads(line)["id"]] = json.loads(line)["sources"][0]
    found = {
        key: {passages[found["passage"]] for found in record["retrieved"]}
        for key, record in lines(tmp_path, "retrieved").items()
    }
    assert found[f"{ANA}/S1/q1"] == {"S1:1", "S1:2"}
    assert found[f"{ANA}/S3/q1"] == {"S1:1", "S1:2", "S2:1", "S3:1", "S3:2"}  # the generated session is taken in


@pytest.mark.parametrize("system", ["naive_rag", "full_context", "oracle"])
def test_systems_that_extract_nothing_have_no_extraction_scores(run, tmp_path: Path, system: str) -> None:
    with serve(models) as server:
        summary = run(*served(server, system))
        assert set(asked(server)) == {"answer", "update", "qa", "qa_strict", "check"}
    scores = summary["scores"]
    assert not [name for name in scores if name.startswith(("recall(", "weighted", "target", "interference"))]
    assert "memory_extraction_f1" not in scores
    assert "correct_update_memory_ratio(all)" in scores and "correct_qa_ratio(all)" in scores
    assert summary["points"]["judged"] == 1
    assert summary["points"]["not_judged"] == 5
    assert len(lines(tmp_path, "points")) == 6
    assert ("recall@5" in scores) == (system == "naive_rag")
    if system == "oracle":
        assert scores["correct_qa_ratio(all)"]["all"]["estimate"] == 1


def test_offline(run, tmp_path: Path) -> None:
    summary = run("cutoffs=[1,2]", "question_k=2")
    assert summary["mode"] == "offline"
    assert {"recall@1", "recall@2", "mrr", "set_f1", "bleu1", "update_recall@10"} <= set(summary["scores"])
    assert summary["evidence"] == {
        "questions_with_evidence": 2,
        "questions_without_evidence": 1,
        "memory_points": 3,
        "linked_to_turns": 2,
    }
    questions = lines(tmp_path, "questions")
    assert questions[f"{ANA}/S1/q1"]["ranks"] == [1]
    assert questions[f"{ANA}/S3/q1"]["evidence"] == ["Ana Lee's city is Denver."]
    assert questions[f"{ANA}/S3/q1"]["notes"] == ["evidence that no turn could be found for: Ana Lee's xylophone hums."]
    assert summary["scores"]["recall@2"]["Memory Boundary"] is None
    assert summary["aggregate"] == {}


def test_points_by_words_where_passages_have_no_sources(run, monkeypatch: pytest.MonkeyPatch) -> None:
    search = TurnIndex.search

    async def unsourced(self: TurnIndex, query: str, k: int) -> list[Passage]:
        return [Passage(found.text, found.time) for found in await search(self, query, k)]

    monkeypatch.setattr(TurnIndex, "search", unsourced)
    summary = run("answer.kind=none")
    assert summary["protocol"]["point_found_by"] == ["words"]
    assert summary["scores"]["recall@5"]["all"]["estimate"] == 1


def test_an_update_that_finds_nothing_is_a_point_of_extraction(run, tmp_path: Path, monkeypatch) -> None:
    async def nothing(self: TurnIndex, query: str, k: int) -> list[Passage]:
        return []

    monkeypatch.setattr(TurnIndex, "search", nothing)
    summary = run("answer.kind=none")
    assert summary["points"]["by_kind"] == {"integrity": 6}
    assert lines(tmp_path, "points")[f"{ANA}/S3/p1"]["searched"]
    assert summary["scores"]["update_recall@10"]["all"]["estimate"] == 0


def test_a_judge_that_answers_prose_fails_and_is_no_zero(run, tmp_path: Path) -> None:
    def prose(body: dict[str, Any]) -> Reply:
        return completion("Well, it depends.") if kind(body) in ("integrity", "accuracy", "qa") else models(body)

    with serve(prose) as server:
        summary = run(*served(server))
        assert asked(server)["integrity"] == 3 * 4  # judge.attempts
        assert summary["failures"]["by_stage"] == {"judge": 4 + 3 + 3}
        assert re.search(
            r"aaaa-1/S1/p\d, integrity: the judge 'integrity' gave no verdict", " ".join(summary["failures"]["first"])
        )
        metrics = summary["aggregate"]["qa"]
        assert metrics["counts"]["integrity"] == {"all": 5, "valid": 1}
        assert metrics["memory_integrity"]["recall(valid)"] == 0  # of the session without memories
        assert metrics["question_answering"]["correct_qa_ratio(valid)"] is None
        assert "correct_qa_ratio(valid)" not in summary["scores"]
        assert summary["points"]["failed"] == 4

    with serve(models) as mended:
        summary = run(*served(mended))
        # Only what failed is asked again.
        assert asked(mended) == Counter(check=1, integrity=4, accuracy=3, qa=3)
        assert summary["failures"]["count"] == 0
        assert summary["aggregate"]["qa"]["memory_extraction_f1"] == pytest.approx(2 / 3)
    assert len(lines(tmp_path, "points")) == 9


def test_a_session_that_fails_is_tried_again_later(run, tmp_path: Path) -> None:
    def broken(body: dict[str, Any]) -> Reply:
        first = kind(body) == "manager" and "Boston" in body["messages"][1]["content"] and "moved" not in str(body)
        return failure(500) if first else models(body)

    with serve(broken) as server:
        summary = run(*served(server), "manager.max_retries=0", "answer.max_retries=0", "judge.max_retries=0")
        assert summary["sessions"]["failed"] == 1
        # The session, its two questions and three points; the later session goes on.
        assert summary["failures"]["by_stage"] == {"ingest": 1, "search": 5}
        assert summary["points"]["failed"] == 3
        assert "session S1 could not be ingested" in lines(tmp_path, "points")[f"{ANA}/S1/p3"]["error"]
        assert lines(tmp_path, "points")[f"{ANA}/S3/p1"]["kind"] == "update"
        assert summary["aggregate"]["qa"]["counts"]["qa"] == {"all": 3, "valid": 1}
    with serve(models) as server:
        summary = run(*served(server))
    assert summary["failures"]["count"] == 0
    assert summary["sessions"]["late"] == 1
    assert "searched after later sessions were taken in" in lines(tmp_path, "questions")[f"{ANA}/S1/q1"]["notes"]
    assert lines(tmp_path, "questions")[f"{ANA}/S3/q1"]["notes"][1:] == ["searched without earlier sessions that failed: S1"]
    assert lines(tmp_path, "points")[f"{ANA}/S3/p1"]["notes"] == ["searched without earlier sessions that failed: S1"]
    # Two questions of the first session; a question and an updated point of the third.
    assert summary["out_of_order"] == {"after_later_sessions": 2, "without_earlier_sessions": 2}
    assert "2 searches came after later sessions" in " ".join(point_lines(summary))
    assert summary["points"]["judged"] == 6


def test_a_search_that_fails_and_a_store_that_breaks(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, opened = TurnIndex.search, NaiveRag.open

    async def failing(self: TurnIndex, query: str, k: int) -> list[Passage]:
        if "Denver" in query or "middle" in query:
            raise ValueError("index lost")
        return await search(self, query, k)

    @asynccontextmanager
    async def closed(self: NaiveRag, key: Any) -> Any:
        if key.id == BEN:
            raise DeltaMemError("no room")
        async with opened(self, key) as memory:
            yield memory

    monkeypatch.setattr(TurnIndex, "search", failing)
    monkeypatch.setattr(NaiveRag, "open", closed)
    summary = run("answer.kind=none")
    assert summary["failures"]["by_stage"] == {"search": 3}
    assert lines(tmp_path, "points")[f"{ANA}/S3/p1"]["error"] == "search: ValueError: index lost"
    assert lines(tmp_path, "points")[f"{BEN}/S1/p1"]["error"] == "the store cannot be used: no room"
    assert summary["questions"]["failed"] == 1
    assert summary["scores"].keys() <= {"recall@5", "recall@10", "recall@20", "mrr"}  # nothing was judged, so nothing is 0
    monkeypatch.undo()
    summary = run("answer.kind=none")
    assert summary["failures"]["count"] == 0
    assert summary["points"]["not_judged"] == 6


def test_failures_are_no_zeros_of_a_system_that_extracts_nothing(run, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with serve(models) as server:
        summary = run(*served(server, "naive_rag"), data=(ana(), two))
    assert summary["points"]["by_kind"]["update"] == 2  # the one that could not be searched for is an update too
    metrics = summary["aggregate"]["qa"]
    assert metrics["memory_update"]["omission_update_memory_ratio(valid)"] == 1
    assert metrics["memory_update"]["omission_update_memory_ratio(all)"] == 0.5
    assert metrics["memory_integrity"]["recall(all)"] is None
    assert "recall(all)" not in summary["scores"]


def test_an_unreadable_session_left_no_memories(run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreadable(self: TurnIndex, session: DialogueSession) -> Ingested:
        self.sessions.setdefault(session.id, session)
        return Ingested(readable=False)

    monkeypatch.setattr(TurnIndex, "ingest", unreadable)
    with serve(models) as server:
        summary = run(*served(server, "naive_rag"))
        assert asked(server)["integrity"] == 0
    assert summary["aggregate"]["qa"]["memory_integrity"]["recall(all)"] == 0
    assert summary["aggregate"]["qa"]["memory_accuracy"]["interference_accuracy(all)"] == 1
    assert summary["aggregate"]["qa"]["memory_extraction_f1"] is None


def test_limit_and_then_the_rest(run, tmp_path: Path) -> None:
    with serve(models) as server:
        summary = run(*served(server), "limit=2")
        assert summary["points"]["not_reached"] == 2
        assert summary["sessions"]["total"] == 2
        assert asked(server)["answer"] == 2
        whole = run(*served(server))
        assert asked(server)["answer"] == 3
        assert (whole["points"]["judged"], whole["points"]["not_reached"]) == (6, 0)
        assert asked(server)["integrity"] == 4


def test_probes_measure_the_judges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    labels = {"qa": "correct", "qa_strict": "omission"}

    def extreme(body: dict[str, Any]) -> Reply:
        return verdict(labels[kind(body)]) if kind(body) in labels else models(body)

    with serve(extreme) as server:
        summary = evaluate(monkeypatch, tmp_path, *served(server, "full_context"), "judge.probes=true")
    lenient, strict = summary["probes"]
    assert (lenient["judge"], lenient["false_accept"]["estimate"], lenient["false_reject"]["estimate"]) == ("qa", 1, 0)
    assert (strict["judge"], strict["false_accept"]["estimate"], strict["false_reject"]["estimate"]) == ("qa_strict", 0, 1)


def test_many_points_of_one_text(run, tmp_path: Path) -> None:
    user = ana()
    user["sessions"][0]["memory_points"] += [point("Ana Lee's job is nursing.")] * 3
    summary = run("answer.kind=none", data=(user,))
    assert summary["points"]["total"] == summary["points"]["not_judged"] == 8


def test_evaluation_needs_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval.data.data_folders", lambda *arguments: [tmp_path])
    for version, name in (("medium", "HaluMem-Medium"), ("long", "HaluMem-Long")):
        with pytest.raises(DeltaMemError, match=f"{name} is not here"):
            evaluation.evaluate(Halumem, configured(f"version={version}", f"out={tmp_path / 'out'}"), Console(quiet=True))
