"""The comparison as one HTML page: cards, charts, tables, and a viewer of every question.

Each run has one mark and one colour on the whole page, which its card shows.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from deltamem.intervals import Interval
from eval.compare.layout import ALL
from eval.compare.runs import FinishedRun, bounds, load_runs, metric_label
from eval.compare.tables import compare
from eval.html import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    VIOLET,
    Chart,
    inline_svg,
    percent,
    render_page,
    whole_numbers,
    write_page,
)
from eval.records import Found, PassageRecord, PointRecord, QuestionRecord
from eval.summary import CLOSED_BOOK

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_report(runs: Sequence[FinishedRun], out: Path) -> None:
    """Write the page, or fail with a `DeltaMemError`."""
    write_page(out, render(runs))


def report_folders(folders: Sequence[Path], out: Path) -> None:
    """Write the page of the runs in some folders, or fail with a `DeltaMemError`."""
    write_report(load_runs(folders), out)


def render(runs: Sequence[FinishedRun]) -> str:
    """Render the page as one text without outside resources; everything that was read is escaped."""
    folder = Path(__file__).parent
    return render_page(
        folder / "compare.html.j2",
        runs=runs,
        written=time.strftime("%Y-%m-%d %H:%M %Z"),
        sections=[(section, charts(name, section.runs)) for name, section in compare(runs).items()],
        mark=mark_sign,
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
    order = ("failed", "wrong", "right", "not judged")
    points = sorted(run.points, key=lambda record: order.index(point_outcome(record)))[:POINTS_SHOWN]
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


_COLOURS = (BLUE, ORANGE, GREEN, VIOLET, RED, "#0d9aa5", "#d946a0", "#9a6a1c", "#7c8794", "#84990f")
_MARKS, _SIGNS = "os^DvPX<>*", "●■▲◆▼✚✖◀▶★"

# Scores whose charts by category are of most worth: of judges, then one lexical and one of retrieval
_CHARTED = (
    *("lenient", "strict", "accuracy_final", "accuracy", "score", "correct_qa_ratio(all)", "strict_correct_qa_ratio(all)"),
    *("set_f1", "recall@20", "recall@10", "recall@5", "mrr"),
)

_SPREAD = 0.7  # How far the points of one category lie apart, in categories
_APART = 0.035  # How far points must lie apart on an axis of costs, as a share of it; closer ones are moved
_LEAST_RANGE = 6.0  # Factor between the ends of an axis of costs, so that a small difference looks small

Points = Sequence[tuple[float, Interval | None]]
"""Scores of a run at places of the horizontal axis."""


def charts(prefix: str, runs: Sequence[FinishedRun]) -> list[Chart]:
    """All charts of one benchmark that there are numbers for; withheld scores are in none."""
    drawn: list[tuple[str, Callable[[Axes], None]]] = [
        (f"{metric_label(one)} by category", partial(_by_category, runs=runs, metric=one)) for one in _metrics(runs)
    ]
    broad = len(drawn)
    # The headline of most runs
    headlines = Counter(run.headline.metric for run in runs if run.headline.metric)
    for metric, _ in headlines.most_common(1):
        ingest = [run.summary.cost.get("ingest", {}) for run in runs]
        written = [cost.get("prompt_tokens", 0) + cost.get("completion_tokens", 0) for cost in ingest]
        budgets = [_budgets(run, metric) for run in runs]
        contexts = _at([run.headline.context_tokens for run in runs], runs, metric)
        plots = (
            ("at equal budgets of", "context tokens", budgets if any(len(points) > 1 for points in budgets) else []),
            ("against", "context tokens an answer", contexts),
            ("against", "tokens to ingest the sessions", _at(written, runs, metric)),
        )
        for how, label, points in plots:
            if any(points):
                draw = partial(_against, runs=runs, metric=metric, points=points, label=label)
                drawn.append((f"{metric_label(metric)} {how} {label}", draw))
    # The last point of a curve is the headline
    curves = [None if run.headline.withheld else run.summary.more.get("cumulative") for run in runs]
    if any(curves):
        title = "accuracy of all questions up to a session, mean and spread over users"
        drawn.append((title, partial(cumulative_chart, curves=curves)))
    return [
        Chart(title, inline_svg(f"{prefix}-{n}", draw, size=(11.6, 3.4) if n < broad else (5.6, 3.2)), broad=n < broad)
        for n, (title, draw) in enumerate(drawn)
    ]


def colour(number: int) -> str:
    """Of a run by its position."""
    return _COLOURS[number % len(_COLOURS)]


def mark(number: int) -> str:
    """Of a run by its position, as matplotlib calls it; no two of a hundred runs have the same mark and colour."""
    return _MARKS[(number + number // len(_COLOURS)) % len(_MARKS)]


def mark_sign(number: int) -> Markup:
    """The mark of a run as a sign of text in its colour."""
    sign = _SIGNS[_MARKS.index(mark(number))]
    return Markup('<span class="mark" style="color: {}" aria-hidden="true">{}</span>').format(colour(number), sign)


def _metrics(runs: Sequence[FinishedRun]) -> list[str]:
    """Both judges, or what comes closest."""
    there = [name for run in runs for name in run.summary.scores if _categories([run], name)]
    return [name for name in _CHARTED if name in there][:2] or there[:1]


def _categories(runs: Sequence[FinishedRun], metric: str) -> list[str]:
    """Categories, at least two, that some run may show a score of."""
    there = [name for run in runs for name in run.summary.scores.get(metric, {}) if run.summary.score(metric, name)]
    names = dict.fromkeys(name for name in there if name != ALL)
    return list(names) if len(names) > 1 else []


def _draw_scores(axes: Axes, number: int, points: Points, joined: str = "none") -> None:
    """The scores of a run with their intervals; `joined` is the style of a line through them."""
    known = [(place, score) for place, score in points if score is not None]
    if known:
        scores = np.array([(score.estimate, score.low, score.high) for _, score in known])
        axes.errorbar(
            [place for place, _ in known],
            scores[:, 0],
            yerr=np.maximum(0.0, [scores[:, 0] - scores[:, 1], scores[:, 2] - scores[:, 0]]),
            marker=mark(number),
            markersize=7.5 if mark(number) == "*" else 5.5,
            color=colour(number),
            capsize=2.5,
            elinewidth=1.1,
            linewidth=1.4,
            linestyle=joined,
        )


def _by_category(axes: Axes, runs: Sequence[FinishedRun], metric: str) -> None:
    categories = _categories(runs, metric)
    for number, run in enumerate(runs):
        shift = _SPREAD * ((number + 0.5) / len(runs) - 0.5)
        _draw_scores(axes, number, [(place + shift, run.summary.score(metric, one)) for place, one in enumerate(categories)])
    for place in range(1, len(categories)):
        axes.axvline(place - 0.5, color="#8a929a", linewidth=0.5, alpha=0.5)
    axes.set_xlim(-0.5, len(categories) - 0.5)
    axes.grid(visible=False, axis="x")
    names = ["\n".join(textwrap.wrap(one.replace("_", " "), 18)) for one in categories]
    axes.set_xticks(range(len(categories)), [name.replace("$", r"\$") for name in names])  # no formulas
    axes.tick_params(axis="x", length=0)
    _percent(axes)


def _budgets(run: FinishedRun, metric: str) -> Points:
    """The score at the context tokens of each budget, in order."""
    shown = [point for point in run.summary.budgets if metric not in {**run.summary.withheld, **point.withheld}]
    shown.sort(key=lambda point: point.context_tokens)
    return [(at.context_tokens, at.scores[metric]) for at in shown if at.context_tokens and at.scores.get(metric)]


def _at(costs: Sequence[float | None], runs: Sequence[FinishedRun], metric: str) -> list[Points]:
    """The score of each run at its cost."""
    scores = [run.summary.score(metric, ALL) for run in runs]
    return [[(place, score)] if place and score else [] for place, score in zip(spread_apart(costs), scores, strict=True)]


def spread_apart(costs: Sequence[float | None]) -> list[float | None]:
    """Costs on a logarithmic axis, those that would lie on each other moved apart; None for what has no place on it."""
    known = sorted((log10(cost), number) for number, cost in enumerate(costs) if cost)
    if not known:
        return [None] * len(costs)
    places = np.array([place for place, _ in known])
    steps = _APART * max(1.0, places[-1] - places[0]) * np.arange(len(known))
    # Moved to the right as far as it takes, and to the left; the mean leaves the middle of a cluster where it is.
    right = np.maximum.accumulate(places - steps) + steps
    left = np.minimum.accumulate((places - steps)[::-1])[::-1] + steps
    moved = {number: float(place) for (_, number), place in zip(known, 10 ** ((left + right) / 2), strict=True)}
    return [moved.get(number) for number in range(len(costs))]


def _against(axes: Axes, runs: Sequence[FinishedRun], metric: str, points: Sequence[Points], label: str) -> None:
    """Scores over tokens, on a logarithmic axis."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullLocator  # see `inline_svg`

    for number, run in enumerate(runs):
        _draw_scores(axes, number, points[number], joined="-")
        score = run.summary.score(metric, ALL)
        # What is known without any memory has no place on an axis of costs
        if run.summary.system == CLOSED_BOOK and score is not None:
            axes.axhline(score.estimate, color=colour(number), linewidth=1.1, linestyle=(0, (4, 3)))
            axes.axhspan(score.low, score.high, color=colour(number), alpha=0.1, linewidth=0)
            axes.annotate("closed book", (1, score.estimate), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < _LEAST_RANGE * low:
        middle = (low * high) ** 0.5
        axes.set_xlim(middle / _LEAST_RANGE**0.5, middle * _LEAST_RANGE**0.5)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(label)
    _percent(axes)


def cumulative_chart(axes: Axes, curves: Sequence[Sequence[Mapping[str, float]] | None], spread: bool = True) -> None:
    """Draw the accuracy by session of each run that has it, and its `spread` over users."""
    for number, points in enumerate(curves):
        if points:
            sessions = [point["session"] + 1 for point in points]
            means, low, high = ([point[part] for point in points] for part in ("mean", "low", "high"))
            every = max(1, len(points) // 8)
            axes.plot(sessions, means, color=colour(number), marker=mark(number), markevery=every, markersize=5)
            if spread:
                axes.fill_between(sessions, low, high, color=colour(number), alpha=0.12, linewidth=0)
    axes.set_xlabel("sessions")
    whole_numbers(axes.xaxis)
    _percent(axes)


def _percent(axes: Axes) -> None:
    axes.set_ylim(0, 1.02)
    percent(axes.yaxis)
