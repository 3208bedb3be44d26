"""Whole runs of the small file: what is counted, shown to whom, and never asked for twice."""

import re
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from locomo_cases import TRICK, audit, benchmark, evaluate, models, prompts, questions, script, write
from scripted_server import Reply, completion, serve
from system_scripts import manager_of

import eval.runner as evaluation
from deltamem.errors import DeltaMemError
from eval.systems.base import DialogueSession, Ingested, Passage
from eval.systems.baselines import FullContext, Transcript


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(*overrides: str, data: object = None) -> dict[str, Any]:
        return evaluate(monkeypatch, tmp_path, *overrides, data=data)

    return run


def test_offline_recall_by_hand(run, tmp_path: Path) -> None:
    summary = run("k=2", "cutoffs=[2,1]", "answer.kind=none")
    ranks = {key: record.get("ranks") for key, record in questions(tmp_path).items()}
    assert ranks == {
        "conv-1/0": [1],
        # "sister dog?" is equally close to D2:1 and D10:1; the earlier one comes first. One store, so 2 k are searched.
        "conv-1/1": [1, 2, 3],
        "conv-1/2": None,
        "conv-1/3": None,
        "conv-1/4": [1],
        "conv-1/5": [1],
        "conv-1/6": [1],
        "conv-1/7": [1],
        "conv-2/0": [1],
    }
    assert list(summary["scores"]) == ["recall@1", "recall@2", "mrr"]
    at_one = summary["scores"]["recall@1"]
    assert at_one["all"]["estimate"] == pytest.approx((1 + 1 / 3 + 1 + 1 + 1) / 5)
    assert (at_one["all"]["count"], at_one["all"]["groups"]) == (5, 2)
    assert at_one["multi-hop"]["estimate"] == pytest.approx(1 / 3)
    assert at_one["open-domain"] is None
    assert at_one["adversarial"]["estimate"] == 1.0
    assert summary["mode"] == "offline"


def test_every_question_of_the_file_is_accounted_for(run, tmp_path: Path) -> None:
    summary = run("categories=[1,4]", "limit=2", "answer.kind=none")
    assert summary["accounting"] == {
        "total": 9,
        "asked": 3,
        "failed": 0,
        "not_asked": {"category": 4, "limit": 2},
    }
    assert summary["questions"]["by_category"] == {"single-hop": 2, "multi-hop": 1}
    # The same folder goes on with the rest, and asks for nothing that is there.
    before = (tmp_path / "out" / "retrieved.jsonl").read_text()
    summary = run("answer.kind=none")
    assert summary["accounting"]["asked"] == summary["accounting"]["total"] == 9
    assert (tmp_path / "out" / "retrieved.jsonl").read_text().startswith(before)
    assert len((tmp_path / "out" / "retrieved.jsonl").read_text().splitlines()) == 9
    assert summary["data"]["questions_that_occur_again"] == 1
    assert questions(tmp_path)["conv-1/6"]["notes"] == ["suggests the wrong answer 'a cat'"]
    assert questions(tmp_path)["conv-1/3"]["notes"] == [
        "evidence 'D' names no turn",
        "evidence 'D9:9' names no turn",
        "no usable evidence",
    ]


def test_answers_are_judged_by_both_and_category_5_stands_apart(run, tmp_path: Path) -> None:
    with serve(script) as server:
        summary = run(*models(server))
        scores = summary["scores"]
        assert summary["mode"] == "judged"
        assert scores["lenient"]["all"]["estimate"] == 1.0
        assert scores["strict"]["all"]["estimate"] == pytest.approx(2 / 7)  # both bicycles
        assert scores["strict"]["single-hop"]["estimate"] == pytest.approx(2 / 4)
        assert scores["strict"]["all"]["count"] == scores["locomo_f1"]["all"]["count"] == 7
        assert scores["locomo_f1"]["all"]["estimate"] == pytest.approx(2 / 7)
        assert scores["abstention"]["adversarial"]["estimate"] == 0.0
        assert scores["abstention_judge"]["adversarial"]["estimate"] == 0.0
        assert scores["abstention"]["all"] is None and scores["abstention_judge"]["all"] is None
        assert scores["lenient"]["adversarial"] is None
        asked = prompts(server)
        # 9 answers, 2 judges on 7, 1 judge on 2; one question occurs twice, and the cache has the answers of the first.
        assert len(asked) == len(set(asked)) == 9 + 2 * 7 + 2 - 3
        assert sum(text.startswith(TRICK) for text in asked) == 2
        assert (summary["cost"]["answer"]["calls"], summary["cost"]["answer"]["cached"]) == (9, 1)
        assert (summary["cost"]["judge"]["calls"], summary["cost"]["judge"]["cached"]) == (16, 2)
        assert summary["cost"]["answer"]["prompt_tokens"] == 9000
        assert summary["cost"]["judge"]["prompt_tokens"] == 14 * 100 + 2 * 10
        requests = sum(usage["requests"] for usage in summary["this_run"].values())
        assert requests == len(server.requests)
    # The server is gone: a second run costs nothing and says the same.
    again = run(*models(server))
    assert again["scores"] == scores
    assert sum(usage["requests"] for usage in again["this_run"].values()) == 0


def test_the_trap_is_shown_to_the_judge_of_category_5_alone(run) -> None:
    with serve(script) as server:
        run(*models(server))
        trick = [text for text in prompts(server) if text.startswith(TRICK)]
        assert sorted(re.findall(r"Suggested answer \(wrong\): (.*)", "\n".join(trick))) == ["a cat", "yes"]
        assert not any("a cat" in text for text in prompts(server) if not text.startswith(TRICK))


def test_a_judge_that_answers_prose_is_an_error_and_never_a_zero(run, tmp_path: Path) -> None:
    def prose(body: dict[str, Any]) -> Reply:
        strict = "fact by fact" in body["messages"][0]["content"]
        return completion("I rather like this answer.") if strict else script(body)

    with serve(prose) as server:
        summary = run(*models(server, "judge.attempts=2"))
        assert summary["scores"]["lenient"]["all"]["count"] == 7
        assert "strict" not in summary["scores"]
        assert summary["failures"]["by_stage"] == {"judge": 7}
        assert "the judge 'strict' gave no verdict in 2 replies" in summary["failures"]["first"][0]
        assert (summary["accounting"]["asked"], summary["accounting"]["failed"]) == (2, 7)
    with serve(script) as repaired:
        summary = run(*models(repaired, "judge.attempts=2"))
        # Another server, so nothing is cached: only the strict judge is asked.
        assert all("fact by fact" in text for text in prompts(repaired))
        assert summary["scores"]["strict"]["all"]["count"] == 7
        assert summary["failures"]["count"] == 0


def test_audited_gold_is_what_judges_see(run, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", audit())
    with serve(script) as server:
        summary = run(*models(server, f"audit={path}", "gold=audited"))
        assert any("Reference answer: 2023\n" in text for text in prompts(server))
        assert not any("Reference answer: 2022\n" in text for text in prompts(server))
        assert summary["ceiling"]["all"] == pytest.approx(6 / 7)
        with pytest.raises(DeltaMemError, match="made with audit_sha256 = "):
            run(*models(server))


def test_the_oracle_is_shown_the_evidence_and_has_no_recall(run, tmp_path: Path) -> None:
    data = benchmark()
    data[0]["qa"][5]["evidence"] = ["D2:1"]  # of a question that occurs twice: both are shown what either names
    summary = run("system=oracle", data=data)
    assert not any(name.startswith("recall") for name in summary["scores"])
    assert [len(record.get("retrieved", [])) for _, record in sorted(questions(tmp_path).items())] == [
        1,
        3,
        0,
        0,
        2,
        2,
        1,
        1,
        1,
    ]


def test_deltamem_keeps_two_memories_that_last(run, tmp_path: Path) -> None:
    data = benchmark()
    data[0]["conversation"]["session_10"][0]["text"] = "My sister is Mia."
    with serve(manager_of) as server:
        overrides = [f"base_url={server.url}", "manager.model=tiny", "system=deltamem", "k=5", "cutoffs=[1,5]"]
        summary = run(*overrides, data=data)
        assert summary["failures"]["count"] == 0
        assert summary["sessions"]["applied"] == 6
        assert summary["memories"]["stores"] == 4
        assert summary["protocol"]["k_each_store"] == 5
        found = questions(tmp_path)["conv-1/1"]
        # The sister is in the tenth session, as both memories know.
        assert found["evidence"] == ["D2:1", "D10:1", "D2:2"]
        assert found["ranks"][1] == 1
        assert summary["cost"]["ingest"]["calls"] > 0
        asked = len(server.requests)
        again = run(*overrides)
        assert len(server.requests) == asked
        assert again["scores"] == summary["scores"]
    assert sorted(path.name for path in (tmp_path / "out" / "memory").iterdir() if path.is_dir()) == [
        "conv-1.Ana",
        "conv-1.Bo",
        "conv-2.Cy",
        "conv-2.Di",
    ]


class Flaky(FullContext):
    """Two stores, of which one does not open while `broken` has its id, and sessions that fail while `broken` has theirs."""

    per_speaker = True

    def __init__(self, broken: set[str]) -> None:
        self._broken = broken
        self.opened: list[str] = []

    @asynccontextmanager
    async def open(self, key):
        if key.id in self._broken:
            raise DeltaMemError("the disk is gone")
        self.opened.append(key.id)
        yield FlakyStore(self._broken)


class FlakyStore(Transcript):
    def __init__(self, broken: set[str]) -> None:
        super().__init__()
        self._broken = broken

    async def ingest(self, session: DialogueSession) -> Ingested:
        if session.id in self._broken:
            raise DeltaMemError("unreadable today")
        return await super().ingest(session)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Flaky:
    system = Flaky(set())

    @asynccontextmanager
    async def open_system(*args, **kwargs):
        yield system

    monkeypatch.setattr(evaluation, "open_system", open_system)
    return system


def test_questions_are_searched_again_once_a_missing_session_came_in(run, flaky: Flaky, tmp_path: Path) -> None:
    flaky._broken.add("session_10")
    with serve(script) as server:
        overrides = models(server, "cache=null")
        summary = run(*overrides)
        assert summary["sessions"] == {"total": 6, "applied": 4, "unreadable": 0, "failed": 2, "late": 0}
        assert summary["failures"]["by_stage"] == {"ingest": 2}
        assert len(questions(tmp_path)["conv-1/0"]["retrieved"]) == 2
        asked = len(prompts(server))
        summary = run(*overrides)  # still missing: what was found stays, and is not answered again
        assert len(prompts(server)) == asked
        assert summary["failures"]["count"] == 2
        flaky._broken.clear()
        summary = run(*overrides)
        assert summary["failures"]["count"] == 0
        assert len(questions(tmp_path)["conv-1/0"]["retrieved"]) == 4
        # All of conv-1 is answered and judged anew, conv-2 is not: 6 with two judges, 2 with one.
        assert len(prompts(server)) == asked + 6 * 3 + 2 * 2
        flaky.opened.clear()
        run(*overrides)
        assert flaky.opened == []


def test_passages_of_unknown_origin_have_no_recall(run, flaky: Flaky, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flaky, "ranked", True)

    async def search(self, query: str, k: int):
        return [Passage("a memory")]

    monkeypatch.setattr(FlakyStore, "search", search)
    assert not any(name.startswith("recall") for name in run()["scores"])
