"""What a log file is told of long work, and what is written of a run that is not done."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

from benchmark_cases import LOCOMO, Notebook, prepare
from rich.console import Console

from deltamem.progress import ProgressDisplay
from eval import run as module


class Told(ProgressDisplay):
    """Progress at times that the test chooses, without a terminal."""

    def __init__(self, **totals: int) -> None:
        self.now, self.file = 0.0, io.StringIO()
        super().__init__(Console(file=self.file, width=20), totals, clock=lambda: self.now)

    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


def test_a_line_comes_at_every_twentieth_of_the_work_and_no_more_than_every_few_seconds() -> None:
    with Told(questions=40) as told:
        for number in range(4):
            told.advance("questions", tokens=300, failed=number == 3)
        assert told.lines() == []
        told.now = 10.0
        told.advance("questions")
        assert told.lines() == ["questions 5/40, 1,200 tokens, 1 failed, about 1 min left"]
        told.now = 14.0
        told.advance("questions")
        assert len(told.lines()) == 1, "that is less than a twentieth"
        told.now = 15.0
        told.advance("questions")
        assert told.lines()[1:] == ["questions 7/40, 1,200 tokens, 1 failed, about 1 min left"]


def test_a_line_comes_though_nothing_is_done() -> None:
    told = Told(sessions=1, questions=40)
    told.advance("sessions", tokens=1200)
    for told.now, lines in ((29.0, []), (31.0, ["sessions 1/1, questions 0/40, 1,200 tokens"])):
        told.tick()
        assert told.lines() == lines


def test_what_is_left_counts_a_question_as_a_question_and_not_as_a_session() -> None:
    told = Told(sessions=10, questions=40)
    for _ in range(5):
        told.advance("sessions", seconds=240.0)  # two at once, so that five take 10 minutes
    told.now = 600.0
    told.tick()
    assert told.lines() == ["sessions 5/10, questions 0/40, 0 tokens, about 10 min left without questions"]
    told.advance("questions", seconds=6.0)
    told.now = 603.0
    told.advance("sessions", seconds=240.0)
    told.now = 720.0
    told.tick()
    # 4 sessions of 240 s and 39 questions of 6 s, at 1,446 s in 720
    assert told.lines()[1:] == ["sessions 6/10, questions 1/40, 0 tokens, about 10 min left"]


def test_what_there_is_so_far_is_written_now_and_then(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_PARTIAL_SECONDS", 0.0)
    seen = []

    class Slow(Notebook):
        def facts(self) -> dict[str, object]:
            seen.append(json.loads(path.read_text())["partial"] if path.exists() else None)
            return {}

    path = tmp_path / "out" / "summary.json"
    prepare(monkeypatch, LOCOMO, Slow())

    async def at_once(seconds: float) -> None:
        await real(0)

    real = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", at_once)
    summary = LOCOMO.run(tmp_path, "answer.kind=none")
    assert summary["partial"] is None and json.loads(path.read_text())["partial"] is None
    assert all(one is None or one["questions"] == 9 for one in seen) and any(seen)
