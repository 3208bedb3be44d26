"""The comparison as one HTML page: cards, charts, tables, and a viewer of every question."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from deltamem.html import render_page, write_page
from eval.compare.charts import charts, colour, mark_svg
from eval.compare.conditions import bounds
from eval.compare.runs import FinishedRun, load_runs
from eval.compare.tables import compare
from eval.records import Found, PassageRecord, PointRecord, QuestionRecord


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write ``report.html`` for runs.

    Raises:
        DeltaMemError: If a folder is not that of a run, or the page cannot be written.
    """
    write_page(out, render(load_runs(runs)))
    return out


def render(runs: Sequence[FinishedRun]) -> str:
    """Render the page as one text without outside resources; everything that was read is escaped."""
    folder = Path(__file__).parent
    return render_page(
        folder / "compare.html.j2",
        runs=runs,
        written=time.strftime("%Y-%m-%d %H:%M %Z"),
        sections=[(section, charts(name, section.runs)) for name, section in compare(runs).items()],
        mark=mark_svg,
        colour=colour,
        bounds=bounds,
        outcomes=OUTCOMES,
        data=viewer_data(runs),
        script=Markup((folder / "viewer.js").read_text(encoding="utf-8")),
    )


TEXT_BUDGET = 6_000_000
"""Characters of passages that the page holds for one run; where there are more, long passages are cut."""

POINTS_SHOWN = 5_000
"""Memory points of one run that the page holds; those that were not found right come first."""

OUTCOMES = ("right", "wrong", "disagreement", "failed", "not judged")


def viewer_data(runs: Sequence[FinishedRun]) -> Markup:
    """The JSON text for a ``<script type="application/json">``; no text that was read can end the element."""
    text = json.dumps([_run(run) for run in runs], ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _run(run: FinishedRun) -> dict[str, Any]:
    points = _points_shown(run.points)
    retrieved = [*(record.retrieved for record in run.questions), *(record.retrieved for record in points)]
    found = dict.fromkeys(one.passage for passages in retrieved for one in passages)
    passages = [run.passages[name] for name in found if name in run.passages]
    numbers = {record.id: number for number, record in enumerate(passages)}
    fits = sum(len(record.text) for record in passages) <= TEXT_BUDGET
    length = None if fits else TEXT_BUDGET // len(passages)
    return {
        "name": run.name,
        "system": run.summary.system,
        "cut": length,
        "points": [len(points), len(run.points)],
        "passages": [_passage(record, length) for record in passages],
        "items": [_question(record, numbers) for record in run.questions] + [_point(record, numbers) for record in points],
    }


def _passage(record: PassageRecord, length: int | None) -> list[Any]:
    text = record.text if length is None or len(record.text) <= length else f"{record.text[:length]}…"
    return [text, None if record.time is None else f"{record.time:%Y-%m-%d %H:%M}", record.store, " ".join(record.sources)]


def _found(retrieved: Iterable[Found], numbers: Mapping[str, int]) -> list[Any]:
    shown = [one for one in retrieved if one.passage in numbers]
    return [[numbers[one.passage], one.similarity and round(one.similarity, 3)] for one in shown]


_OF_VERDICTS = {"label", "reason", "error", "flags"}
_OF_ANSWERS = {"text": True, "error": True, "scores": True, "verdicts": {"__all__": _OF_VERDICTS}}
_OF_RECORDS = ("key", "category", "question", "gold", "evidence", "ranks", "notes", "error")
_SHOWN: Any = {**dict.fromkeys(_OF_RECORDS, True), "answers": {"__all__": _OF_ANSWERS}}
"""What the page has of a question; what is empty is left out."""


def _question(record: QuestionRecord, numbers: Mapping[str, int]) -> dict[str, Any]:
    return record.model_dump(include=_SHOWN, exclude_defaults=True) | {
        "outcome": outcome(record),
        "found": _found(record.retrieved, numbers),
        "shown": record.shown,
        "context_tokens": record.context_tokens,
    }


def _point(record: PointRecord, numbers: Mapping[str, int]) -> dict[str, Any]:
    verdict = record.verdict and record.verdict.model_dump(include=_OF_VERDICTS, exclude_defaults=True)
    kind = [f"{record.memory_type}, {record.source}"] if record.memory_type is not None else []
    return {
        "key": record.key,
        "category": f"memory points: {record.kind}",
        "outcome": point_outcome(record),
        "question": record.text,
        "found": _found(record.retrieved, numbers),
        "ranks": [record.rank] if record.searched else [],
        "answers": [{"verdicts": {record.kind: verdict}}] if verdict else [],
        "notes": [*kind, *record.notes],
        "error": record.error,
    }


def outcome(record: QuestionRecord) -> str:
    """One of `OUTCOMES`: what all judges and all answer runs together say; of multiple choice, whether it was right."""
    verdicts = [verdict for answer in record.answers for verdict in answer.verdicts.values()]
    said = {verdict.worth == 1 for verdict in verdicts if verdict.label is not None}
    said |= {answer.scores["correct"] == 1 for answer in record.answers if "correct" in answer.scores}
    return _outcome(said, record.complete)


def point_outcome(record: PointRecord) -> str:
    """One of `OUTCOMES`; a false fact is right if nothing of it was remembered."""
    right = {"0"} if record.source == "interference" and record.kind == "integrity" else {"2", "correct"}
    label = record.verdict and record.verdict.label
    return _outcome({label.lower() in right} if label else set(), record.complete)


def _outcome(said: set[bool], complete: bool) -> str:
    if not complete or not said:
        return "not judged" if complete else "failed"
    return "disagreement" if len(said) > 1 else "right" if True in said else "wrong"


def _points_shown(points: Sequence[PointRecord]) -> list[PointRecord]:
    order = {name: place for place, name in enumerate(("failed", "wrong", "right", "not judged"))}
    return sorted(points, key=lambda record: order[point_outcome(record)])[:POINTS_SHOWN]
