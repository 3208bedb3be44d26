"""What a log file is told of a run."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import datetime
from pathlib import Path

from benchmark_cases import LOCOMO, Notebook, prepare
from rich.console import Console

from eval import progress as module
from eval.benchmark import Timeline, TimelineStep
from eval.progress import ProgressBars
from eval.records import Cost, IngestRecord, QuestionRecord
from eval.systems.base import DialogueSession


class Told:
    """Progress of some sessions and 40 questions at times that the test chooses, without a terminal."""

    def __init__(self, sessions: int = 0) -> None:
        self.now, self.file = 0.0, io.StringIO()
        questions = tuple(question(number) for number in range(40))
        read = tuple(DialogueSession(str(number), datetime(2024, 1, 1), ()) for number in range(sessions))
        console = Console(file=self.file, width=20)
        self.bars = ProgressBars(
            console, [Timeline((), (TimelineStep((read,), questions),))], points=False, clock=lambda: self.now
        )

    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


def question(number: int, error: str | None = None) -> QuestionRecord:
    return QuestionRecord(key=str(number), group="g", category="c", question="q?", error=error)


def session(cost: Cost) -> IngestRecord:
    return IngestRecord(store="s", owner="o", session="1", number=0, outcome="applied", cost=cost)


def test_a_line_comes_at_every_twentieth_of_the_work_and_no_more_than_every_few_seconds() -> None:
    told = Told()
    with told.bars:
        for number in range(4):
            told.bars.question(question(number, "lost" if number == 3 else None))
        assert told.lines() == []
        told.now = 10.0
        told.bars.question(question(4))
        assert told.lines() == ["sessions 0/0, questions 5/40, 0 tokens, 1 failed, about 1 min left"]
        told.now = 14.0
        told.bars.question(question(5))
        assert len(told.lines()) == 1, "that is less than a twentieth"
        told.now = 15.0
        told.bars.question(question(6))
        assert told.lines()[1:] == ["sessions 0/0, questions 7/40, 0 tokens, 1 failed, about 1 min left"]


def test_a_line_comes_though_nothing_is_done() -> None:
    told = Told(sessions=1)
    told.bars.session(session(Cost(prompt_tokens=1200)))
    for told.now, lines in ((29.0, []), (31.0, ["sessions 1/1, questions 0/40, 1,200 tokens"])):
        told.bars.tick()
        assert told.lines() == lines


def test_what_is_left_counts_a_question_as_a_question_and_not_as_a_session() -> None:
    told = Told(sessions=10)
    for _ in range(5):
        told.bars.session(session(Cost(seconds=240.0)))  # two at once, so that five take 10 minutes
    told.now = 600.0
    told.bars.tick()
    assert told.lines() == ["sessions 5/10, questions 0/40, 0 tokens, about 10 min left without questions"]
    told.bars.question(question(0).model_copy(update={"search_seconds": 6.0}))
    told.now = 603.0
    told.bars.session(session(Cost(seconds=240.0)))
    told.now = 720.0
    told.bars.tick()
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
