"""Every question of the runs as data for the page: embedded once as JSON, drawn when it is looked at."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from eval.compare.loading import Run
from eval.halumem.records import PointRecord
from eval.results.records import AnswerRecord, Found, PassageRecord, QuestionRecord, Verdict
from eval.results.scores import GOOD_LABELS

TEXT_BUDGET = 6_000_000
"""Characters of passages that the page holds for one run. Longer passages are cut so that all of them fit."""

_LENGTHS = (20_000, 8_000, 4_000, 2_000, 1_000, 500, 250, 120)

POINTS_SHOWN = 5_000
"""Memory points of one run that the page holds; those that were not found right come first."""

OUTCOMES = ("right", "wrong", "disagreement", "failed", "not judged")


def browse_data(runs: Sequence[Run]) -> Markup:
    """The JSON text for a ``<script type="application/json">``; no text that was read can end the element."""
    text = json.dumps([_run(run) for run in runs], ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _run(run: Run) -> dict[str, Any]:
    points = _points_shown(run.points)
    retrieved = [*(record.retrieved for record in run.questions), *(record.retrieved for record in points)]
    found = dict.fromkeys(one.passage for passages in retrieved for one in passages)
    passages = [run.passages[name] for name in found if name in run.passages]
    numbers = {record.id: number for number, record in enumerate(passages)}
    length = text_length(passages)
    return {
        "name": run.name,
        "system": run.summary.system,
        "judges": list(_judges(run)),
        "cut": length,
        "points": [len(points), len(run.points)],
        "passages": [_passage(record, length) for record in passages],
        "items": [_question(record, numbers) for record in run.questions] + [_point(record, numbers) for record in points],
    }


def text_length(passages: Iterable[PassageRecord]) -> int | None:
    """At how many characters passages are cut; None if all of them fit whole."""
    lengths = [len(record.text) for record in passages]
    if sum(lengths) <= TEXT_BUDGET:
        return None
    for length in _LENGTHS:
        if sum(min(length, one) for one in lengths) <= TEXT_BUDGET:
            return length
    return _LENGTHS[-1]


def _passage(record: PassageRecord, length: int | None) -> list[Any]:
    text = record.text if length is None or len(record.text) <= length else f"{record.text[:length]}…"
    return [text, None if record.time is None else f"{record.time:%Y-%m-%d %H:%M}", record.store, " ".join(record.sources)]


def _found(retrieved: Iterable[Found], numbers: Mapping[str, int]) -> list[Any]:
    return [
        [numbers[one.passage], *([] if one.similarity is None else [round(one.similarity, 3)])]
        for one in retrieved
        if one.passage in numbers
    ]


def _question(record: QuestionRecord, numbers: Mapping[str, int]) -> dict[str, Any]:
    item = {
        "key": record.key,
        "category": record.category,
        "outcome": outcome(record),
        "question": record.question,
        "gold": record.gold,
        "evidence": record.evidence,
        "ranks": record.ranks,
        "found": _found(record.retrieved, numbers),
        "shown": record.shown,
        "tokens": record.context_tokens,
        "session": record.session,
        "answers": [_answer(answer) for answer in record.answers],
        "notes": record.notes,
        "error": record.error,
    }
    return _without_empty(item)


def _answer(answer: AnswerRecord) -> dict[str, Any]:
    return _without_empty(
        {
            "text": answer.text,
            "error": answer.error,
            "scores": {name: round(score, 4) for name, score in answer.scores.items()},
            "verdicts": {judge: _verdict(verdict) for judge, verdict in answer.verdicts.items()},
        }
    )


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return _without_empty({"label": verdict.label, "reason": verdict.reason, "error": verdict.error, "flags": verdict.flags})


def _point(record: PointRecord, numbers: Mapping[str, int]) -> dict[str, Any]:
    notes = [f"{record.memory_type}, {record.source}"] if record.memory_type is not None else []
    verdicts = {} if record.verdict is None else {record.kind: _verdict(record.verdict)}
    item = {
        "key": record.key,
        "category": f"memory points: {record.kind}",
        "outcome": point_outcome(record),
        "question": record.text,
        "found": _found(record.retrieved, numbers),
        "ranks": [record.rank] if record.searched else [],
        "session": record.session,
        "answers": [{"verdicts": verdicts}] if verdicts else [],
        "notes": [*notes, *record.notes],
        "error": record.error,
    }
    return _without_empty(item)


def outcome(record: QuestionRecord) -> str:
    """One of `OUTCOMES`: what all judges and all answer runs together say; of multiple choice, whether it was right."""
    if not record.complete:
        return "failed"
    said = {
        verdict.label.lower() in GOOD_LABELS
        for answer in record.answers
        for verdict in answer.verdicts.values()
        if verdict.label is not None
    }
    said |= {answer.scores["correct"] == 1 for answer in record.answers if "correct" in answer.scores}
    return _outcome(said)


def point_outcome(record: PointRecord) -> str:
    """One of `OUTCOMES`; a false fact is right if nothing of it was remembered."""
    if not record.complete:
        return "failed"
    if record.verdict is None or record.verdict.label is None:
        return "not judged"
    resisted = record.source == "interference" and record.kind == "integrity"
    return _outcome({record.verdict.label.lower() in ({"0"} if resisted else {"2", "correct"})})


def _outcome(said: set[bool]) -> str:
    if not said:
        return "not judged"
    return "disagreement" if len(said) > 1 else "right" if True in said else "wrong"


def _points_shown(points: Sequence[PointRecord]) -> list[PointRecord]:
    order = {name: place for place, name in enumerate(("failed", "wrong", "right", "not judged"))}
    return sorted(points, key=lambda record: order[point_outcome(record)])[:POINTS_SHOWN]


def _judges(run: Run) -> dict[str, None]:
    return dict.fromkeys(judge for record in run.questions for answer in record.answers for judge in answer.verdicts)


def _without_empty(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if value not in (None, "", [], (), {})}
