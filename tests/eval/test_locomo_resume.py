"""Runs in which stores or sessions are missing, and what the same command makes of it later."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from locomo_cases import evaluate, models, prompts, questions, script
from scripted_server import completion, failure, serve

import eval.runner as evaluation
from deltamem.errors import DeltaMemError
from eval.systems.base import DialogueSession, Ingested, Passage
from eval.systems.baselines import FullContext, Transcript


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(*overrides: str, data: object = None) -> dict[str, Any]:
        return evaluate(monkeypatch, tmp_path, *overrides, data=data)

    return run


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


def test_a_store_that_does_not_open_costs_its_own_questions_only(run, flaky: Flaky) -> None:
    flaky._broken.add("conv-1.Bo")
    summary = run()
    assert summary["failures"]["by_stage"] == {"search": 8}
    assert "conv-1/0: the store cannot be used: the disk is gone" in summary["failures"]["first"][0]
    assert (summary["accounting"]["asked"], summary["accounting"]["failed"]) == (1, 8)
    flaky._broken.clear()
    assert run()["failures"]["count"] == 0


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


def test_a_broken_answer_is_asked_again_by_the_same_command(run) -> None:
    with serve(lambda body: failure(500)) as server, pytest.raises(DeltaMemError):
        run(*models(server, "answer.max_retries=0", "judge.max_retries=0"))
    with serve(lambda body: completion("red") if body.get("max_tokens") == 1 else failure(400)) as server:
        summary = run(*models(server))
        assert summary["failures"]["by_stage"] == {"answer": 9}
        assert summary["scores"].keys() <= {"recall@5", "recall@10", "recall@20", "mrr"}
