"""The comparison as one HTML page with charts and a viewer of every question."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from deltamem.html import BLUE, GREEN, ORANGE, RED, VIOLET, Chart, inline_svg, legend_below, render_page, write_page
from eval.compare.runs import FinishedRun, load_runs
from eval.compare.tables import PARTS, compare
from eval.records import AnswerRecord, Found, PassageRecord, PointRecord, QuestionRecord, Verdict
from eval.summary import ALL, GOOD_LABELS

_COLOURS = (BLUE, ORANGE, GREEN, VIOLET, RED)
_HEADLINES = ("lenient", "accuracy", "correct_qa_ratio(all)", "set_f1", "recall@20", "recall@10", "recall@5", "mrr")
_JUDGED = ("lenient", "strict", "accuracy", "correct_qa_ratio(all)", "strict_correct_qa_ratio(all)")
_SPREAD = 0.6
"""How far the points of one category lie apart, in categories."""


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write ``report.html`` for finished runs.

    Raises:
        DeltaMemError: If a folder is not that of a finished run, or the page cannot be written.
    """
    write_page(out, render(load_runs(runs)))
    return out


def render(runs: Sequence[FinishedRun]) -> str:
    """Render the page as one text without outside resources; everything that was read is escaped."""
    folder = Path(__file__).parent
    return render_page(
        folder / "compare.html.j2",
        names=[run.name for run in runs],
        written=time.strftime("%Y-%m-%d %H:%M %Z"),
        sections=[(section, charts(name, section.runs)) for name, section in compare(runs).items()],
        facts=[(run, _facts(run)) for run in runs],
        outcomes=OUTCOMES,
        data=viewer_data(runs),
        script=Markup((folder / "viewer.js").read_text(encoding="utf-8")),
    )


def _facts(run: FinishedRun) -> dict[str, Any]:
    """What a run is and what it was made with."""
    summary = run.summary
    return {
        "version": summary.version,
        "mode": summary.mode,
        "commit": summary.making.git_commit,
        **{f"{part} model": name for part, name in summary.making.models.items()},
        "protocol": summary.protocol,
        "data": summary.data,
        "failures": summary.failures.model_dump(),
        "making": summary.making.model_dump(),
    }


def charts(prefix: str, runs: Sequence[FinishedRun]) -> list[Chart]:
    """All charts of one benchmark that there are numbers for."""
    drawn = [
        Chart(f"{metric} by category, with 95% intervals", _by_category(f"{prefix}-{number}", runs, metric))
        for number, metric in enumerate(_metrics_by_category(runs))
    ]
    if any(run.summary.cumulative for run in runs):
        drawn.append(
            Chart("Accuracy of all questions up to a session, mean over users", _cumulative(f"{prefix}-time", runs))
        )
    metric = headline_metric(runs)
    if metric is not None:
        contexts = [run.summary.context_tokens for run in runs]
        ingest = [run.summary.cost.get("ingest", {}) for run in runs]
        for name, label, costs in (
            ("context", "context tokens by answer", [None if tokens is None else tokens.mean for tokens in contexts]),
            (
                "ingest",
                "tokens to ingest the sessions",
                [cost.get("prompt_tokens", 0) + cost.get("completion_tokens", 0) for cost in ingest],
            ),
        ):
            if any(costs):
                svg = _against(f"{prefix}-{name}", runs, metric, costs, label)
                drawn.append(Chart(f"{metric} against {label}", svg))
    if any(run.summary.latency.get(part) for run in runs for part in PARTS):
        drawn.append(Chart("Seconds a call: bar p50, line p95", _latency(f"{prefix}-latency", runs)))
    return drawn


def headline_metric(runs: Sequence[FinishedRun]) -> str | None:
    """The score that stands for a benchmark: the first of the usual ones that every run has."""
    return next((name for name in _HEADLINES if all(_overall(run, name) is not None for run in runs)), None)


def _overall(run: FinishedRun, metric: str) -> float | None:
    interval = run.summary.score(metric, ALL)
    return None if interval is None else interval.estimate


def _metrics_by_category(runs: Sequence[FinishedRun]) -> list[str]:
    """Both judges, or the score of multiple choice; without any, one lexical score and one of retrieval."""
    there = [name for run in runs for name, scores in run.summary.scores.items() if _categories([run], name)]
    judged: list[str] = [name for name in _JUDGED if name in there]
    return judged or [name for name in dict.fromkeys(there) if name in (*_HEADLINES, "locomo_f1")][:2] or there[:1]


def _categories(runs: Sequence[FinishedRun], metric: str) -> list[str]:
    """Categories, at least two, that some run has a score for."""
    names = dict.fromkeys(
        name
        for run in runs
        for name, score in run.summary.scores.get(metric, {}).items()
        if score is not None and name != ALL
    )
    return list(names) if len(names) > 1 else []


def _by_category(name: str, runs: Sequence[FinishedRun], metric: str) -> Markup:
    categories = _categories(runs, metric)

    def draw(axes: Axes) -> None:
        for number, run in enumerate(runs):
            scores = run.summary.scores.get(metric, {})
            shift = _SPREAD * ((number + 0.5) / len(runs) - 0.5)
            points = [
                (place + shift, score) for place, one in enumerate(categories) if (score := scores.get(one)) is not None
            ]
            if not points:
                continue
            axes.errorbar(
                [place for place, _ in points],
                [score.estimate for _, score in points],
                yerr=[
                    [max(0.0, score.estimate - score.low) for _, score in points],
                    [max(0.0, score.high - score.estimate) for _, score in points],
                ],
                fmt="o",
                markersize=4,
                capsize=3,
                color=_colour(number),
                label=_plain(run.name),
            )
        axes.set_xticks(range(len(categories)), [_plain(one.replace("_", "\n").replace(" ", "\n")) for one in categories])
        axes.tick_params(axis="x", labelsize=7 if len(categories) > 5 else 9)
        _percent(axes)
        axes.legend()

    return inline_svg(name, draw, size=(6.4, 3.6))


def _cumulative(name: str, runs: Sequence[FinishedRun]) -> Markup:
    def draw(axes: Axes) -> None:
        for number, run in enumerate(runs):
            points = run.summary.cumulative or []
            if points:
                sessions = [point["session"] + 1 for point in points]
                axes.plot(sessions, [point["mean"] for point in points], color=_colour(number), label=_plain(run.name))
                low, high = ([point[end] for point in points] for end in ("low", "high"))
                axes.fill_between(sessions, low, high, color=_colour(number), alpha=0.15, linewidth=0)
        axes.set_xlabel("sessions")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _percent(axes)
        axes.legend()

    return inline_svg(name, draw)


def _against(name: str, runs: Sequence[FinishedRun], metric: str, costs: Sequence[float | None], label: str) -> Markup:
    def draw(axes: Axes) -> None:
        for number, (run, cost) in enumerate(zip(runs, costs, strict=True)):
            score = _overall(run, metric)
            if cost and score is not None:
                axes.plot([cost], [score], "o", color=_colour(number), label=_plain(run.name))
        axes.set_xscale("log")
        axes.set_xlabel(label)
        _percent(axes)
        axes.legend()

    return inline_svg(name, draw)


def _latency(name: str, runs: Sequence[FinishedRun]) -> Markup:
    def draw(axes: Axes) -> None:
        width = 0.8 / len(runs)
        for number, run in enumerate(runs):
            spreads = [(place, spread) for place, part in enumerate(PARTS) if (spread := run.summary.latency.get(part))]
            places = [place + width * (number - (len(runs) - 1) / 2) for place, _ in spreads]
            heights = [spread.p50 for _, spread in spreads]
            axes.bar(places, heights, width * 0.9, color=_colour(number), label=_plain(run.name))
            for place, (_, spread) in zip(places, spreads, strict=True):
                axes.plot([place, place], [spread.p50, spread.p95], color=_colour(number), linewidth=1.5)
        axes.set_xticks(range(len(PARTS)), PARTS)
        if any(spread and spread.p95 > 0 for run in runs for spread in run.summary.latency.values()):
            axes.set_yscale("log")  # which cannot show seconds that are all 0
        axes.set_ylabel("seconds")
        legend_below(axes, 2)

    return inline_svg(name, draw)


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _percent(axes: Axes) -> None:
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _plain(text: str) -> str:
    """Text that matplotlib does not read as a formula, and shows in a legend even if it begins with an underscore."""
    shown = text.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


TEXT_BUDGET = 6_000_000
"""Characters of passages that the page holds for one run. Longer passages are cut so that all of them fit."""

_LENGTHS = (20_000, 8_000, 4_000, 2_000, 1_000, 500, 250, 120)

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
    length = text_length(passages)
    judges = dict.fromkeys(judge for record in run.questions for answer in record.answers for judge in answer.verdicts)
    return {
        "name": run.name,
        "system": run.summary.system,
        "judges": list(judges),
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


def _without_empty(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if value not in (None, "", [], (), {})}
