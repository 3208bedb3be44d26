"""What a log file is told of a run."""

from __future__ import annotations

import io
import json
from pathlib import Path

from benchmark_cases import LOCOMO, Notebook, prepare
from rich.console import Console

from eval import progress as module
from eval.benchmark import Step, Timeline
from eval.progress import ProgressBars
from eval.records import Cost, IngestRecord, QuestionRecord


class Told:
    """Progress of 40 questions at times that the test chooses, without a terminal."""

    def __init__(self) -> None:
        self.now, self.file = 0.0, io.StringIO()
        questions = tuple(question(number) for number in range(40))
        console = Console(file=self.file, width=20)
        self.bars = ProgressBars(console, [Timeline((), (Step((), questions),))], points=False, clock=lambda: self.now)

    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


def question(number: int, error: str | None = None) -> QuestionRecord:
    return QuestionRecord(key=str(number), group="g", category="c", question="q?", error=error)


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
    told = Told()
    cost = Cost(prompt_tokens=1200)
    told.bars.session(IngestRecord(store="s", owner="o", session="1", number=0, outcome="applied", cost=cost))
    for told.now, lines in ((29.0, []), (31.0, ["sessions 1/0, questions 0/40, 1,200 tokens, about 20 min left"])):
        told.bars.tick()
        assert told.lines() == lines


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

    real = module.asyncio.sleep
    monkeypatch.setattr(module.asyncio, "sleep", at_once)
    summary = LOCOMO.run(tmp_path, "answer.kind=none")
    assert summary["partial"] is None and json.loads(path.read_text())["partial"] is None
    assert all(one is None or one["questions"] == 9 for one in seen) and any(seen)
