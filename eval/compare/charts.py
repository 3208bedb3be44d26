"""The charts of a comparison. Each run has one mark and one colour on the whole page, which its card shows."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import log10
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator, PercentFormatter

from deltamem.html import BLUE, GREEN, ORANGE, RED, VIOLET, Chart, inline_svg
from eval.compare.conditions import metric_label
from eval.compare.runs import CLOSED_BOOK, FinishedRun
from eval.compare.tables import PARTS
from eval.metrics import Interval
from eval.summary import ALL

_COLOURS = (BLUE, ORANGE, GREEN, VIOLET, RED, "#0d9aa5", "#d946a0", "#9a6a1c", "#7c8794", "#84990f")
_MARKS = "os^DvPX<>*"

_JUDGED = (
    "lenient",
    "strict",
    "accuracy_final",
    "accuracy",
    "score",
    "correct_qa_ratio(all)",
    "strict_correct_qa_ratio(all)",
)
_UNJUDGED = ("set_f1", "locomo_f1", "recall@20", "recall@10", "recall@5", "mrr")

_SPREAD = 0.7
"""How far the points of one category lie apart, in categories."""

_APART = 0.035
"""How far points must lie apart on an axis of costs, as a share of it; closer ones are moved."""

_LEAST_RANGE = 6.0
"""The least factor between both ends of an axis of costs, so that a small difference looks small."""


def charts(prefix: str, runs: Sequence[FinishedRun]) -> list[Chart]:
    """All charts of one benchmark that there are numbers for; withheld scores are in none."""
    drawn: list[tuple[str, Callable[[Axes], None]]] = [
        (f"{metric_label(one)} by category", partial(_by_category, runs=runs, metric=one)) for one in _metrics(runs)
    ]
    broad = len(drawn)
    # The headline of most runs
    headlines = Counter(run.headline.metric for run in runs if run.headline.metric)
    for metric, _ in headlines.most_common(1):
        name = metric_label(metric)
        if any(len(_budget_points(run, metric)) > 1 for run in runs):
            drawn.append((f"{name} at equal budgets of context tokens", partial(_budgets, runs=runs, metric=metric)))
        contexts = [run.headline.context_tokens for run in runs]
        ingest = [run.summary.cost.get("ingest", {}) for run in runs]
        written = [cost.get("prompt_tokens", 0) + cost.get("completion_tokens", 0) for cost in ingest]
        for label, costs in (("context tokens an answer", contexts), ("tokens to ingest the sessions", written)):
            if any(cost and run.summary.score(metric, ALL) for cost, run in zip(costs, runs, strict=True)):
                draw = partial(_against, runs=runs, metric=metric, costs=costs, label=label)
                drawn.append((f"{name} against {label}", draw))
    if any(_cumulative_points(run) for run in runs):
        title = "accuracy of all questions up to a session, mean and spread over users"
        drawn.append((title, partial(_cumulative, runs=runs)))
    if any(run.summary.latency.get(part) for run in runs for part in PARTS):
        drawn.append(("seconds a call: bar p50, line p95", partial(_latency, runs=runs)))
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


def mark_svg(number: int) -> Markup:
    """The mark of a run, as charts draw it, in its colour."""
    style = MarkerStyle(mark(number))
    outline: list[Any] = list(style.get_path().transformed(style.get_transform()).to_polygons())
    size = max(abs(value) for polygon in outline for point in polygon for value in point)
    places = (" L".join(f"{8 + 6.5 * x / size:.1f} {8 - 6.5 * y / size:.1f}" for x, y in polygon) for polygon in outline)
    drawn = "".join(f"M{place}Z" for place in places)
    path = f'<path d="{drawn}" fill="{colour(number)}"/>'
    return Markup(f'<svg class="mark" viewBox="0 0 16 16" aria-hidden="true">{path}</svg>')


def _metrics(runs: Sequence[FinishedRun]) -> list[str]:
    """Both judges, or the score of multiple choice; without any, one lexical score and one of retrieval."""
    there = [name for run in runs for name in run.summary.scores if _categories([run], name)]
    judged: list[str] = [name for name in _JUDGED if name in there]
    return judged or [name for name in dict.fromkeys(there) if name in _UNJUDGED][:2] or there[:1]


def _categories(runs: Sequence[FinishedRun], metric: str) -> list[str]:
    """Categories, at least two, that some run may show a score of."""
    there = [name for run in runs for name in run.summary.scores.get(metric, {}) if run.summary.score(metric, name)]
    names = dict.fromkeys(name for name in there if name != ALL)
    return list(names) if len(names) > 1 else []


def _draw_scores(axes: Axes, number: int, points: Sequence[tuple[float, Interval | None]], *, line: bool = False) -> None:
    """Scores of a run at places of the horizontal axis, with their intervals."""
    known = [(place, score) for place, score in points if score is not None]
    if not known:
        return
    scores = [score for _, score in known]
    below = [max(0.0, score.estimate - score.low) for score in scores]
    above = [max(0.0, score.high - score.estimate) for score in scores]
    axes.errorbar(
        [place for place, _ in known],
        [score.estimate for score in scores],
        yerr=[below, above],
        marker=mark(number),
        markersize=7.5 if mark(number) == "*" else 5.5,
        color=colour(number),
        capsize=2.5,
        elinewidth=1.1,
        linewidth=1.4,
        linestyle="-" if line else "none",
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


def _budget_points(run: FinishedRun, metric: str) -> list[tuple[float, Interval]]:
    """Context tokens and score of a run at each budget, in order."""
    if metric in run.summary.withheld:
        return []
    shown = [point for point in run.summary.budgets if metric not in point.withheld]
    points = [(point.context_tokens, point.scores.get(metric)) for point in shown]
    return sorted((tokens, score) for tokens, score in points if tokens and score is not None)


def _budgets(axes: Axes, runs: Sequence[FinishedRun], metric: str) -> None:
    for number, run in enumerate(runs):
        _draw_scores(axes, number, _budget_points(run, metric), line=True)
    _closed_book(axes, runs, metric)
    _logarithmic(axes, "context tokens an answer")


def _against(axes: Axes, runs: Sequence[FinishedRun], metric: str, costs: Sequence[float | None], label: str) -> None:
    for number, (run, place) in enumerate(zip(runs, spread_apart(costs), strict=True)):
        if place is not None:
            _draw_scores(axes, number, [(place, run.summary.score(metric, ALL))])
    _closed_book(axes, runs, metric)
    _logarithmic(axes, label)


def spread_apart(costs: Sequence[float | None]) -> list[float | None]:
    """Costs on a logarithmic axis, those that would lie on each other moved apart; None for what has no place on it."""
    known = sorted((log10(cost), number) for number, cost in enumerate(costs) if cost)
    if not known:
        return [None] * len(costs)
    step = _APART * max(1.0, known[-1][0] - known[0][0])
    clusters: list[list[tuple[float, int]]] = []
    for place, number in known:
        if clusters and place - clusters[-1][-1][0] < step:
            clusters[-1].append((place, number))
        else:
            clusters.append([(place, number)])
    moved: list[float | None] = [None] * len(costs)
    for cluster in clusters:
        centre = sum(place for place, _ in cluster) / len(cluster)
        for position, (_, number) in enumerate(cluster):
            moved[number] = 10 ** (centre + step * (position - (len(cluster) - 1) / 2))
    return moved


def _closed_book(axes: Axes, runs: Sequence[FinishedRun], metric: str) -> None:
    """A line at what is known without any memory, which has no place on an axis of costs."""
    for number, run in enumerate(runs):
        score = run.summary.score(metric, ALL)
        if run.summary.system == CLOSED_BOOK and score is not None:
            axes.axhline(score.estimate, color=colour(number), linewidth=1.1, linestyle=(0, (4, 3)))
            axes.axhspan(score.low, score.high, color=colour(number), alpha=0.1, linewidth=0)
            axes.annotate("closed book", (1, score.estimate), xycoords=("axes fraction", "data"), ha="right", va="bottom")


def _logarithmic(axes: Axes, label: str) -> None:
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < _LEAST_RANGE * low:
        middle = (low * high) ** 0.5
        low, high = middle / _LEAST_RANGE**0.5, middle * _LEAST_RANGE**0.5
        axes.set_xlim(low, high)
    steps = [digit * 10.0**power for power in range(-1, 10) for digit in (1, 2, 5)]
    ticks = [step for step in steps if low <= step <= high]
    axes.xaxis.set_major_locator(FixedLocator(ticks if len(ticks) < 8 else ticks[::3]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_amount))
    axes.set_xlabel(label)
    _percent(axes)


def _amount(value: float, _: object = None) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _cumulative_points(run: FinishedRun) -> list[dict[str, float]]:
    """What was accurate up to each session; nothing where the headline, which is the last point, is withheld."""
    return [] if run.headline.withheld else run.summary.cumulative or []


def _cumulative(axes: Axes, runs: Sequence[FinishedRun]) -> None:
    for number, run in enumerate(runs):
        if points := _cumulative_points(run):
            sessions = [point["session"] + 1 for point in points]
            means, low, high = ([point[part] for point in points] for part in ("mean", "low", "high"))
            every = max(1, len(points) // 8)
            axes.plot(sessions, means, color=colour(number), marker=mark(number), markevery=every, markersize=5)
            axes.fill_between(sessions, low, high, color=colour(number), alpha=0.12, linewidth=0)
    axes.set_xlabel("sessions")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _percent(axes)


def _latency(axes: Axes, runs: Sequence[FinishedRun]) -> None:
    width = 0.8 / len(runs)
    for number, run in enumerate(runs):
        for part, name in enumerate(PARTS):
            if spread := run.summary.latency.get(name):
                place = part + width * (number - (len(runs) - 1) / 2)
                axes.bar([place], [spread.p50], width * 0.85, color=colour(number), alpha=0.55)
                axes.plot([place, place], [spread.p50, spread.p95], color=colour(number), linewidth=1.6)
                axes.plot([place], [spread.p95], color=colour(number), marker=mark(number), markersize=4)
    axes.set_xticks(range(len(PARTS)), PARTS)
    axes.grid(visible=False, axis="x")
    if any(spread and spread.p95 > 0 for run in runs for spread in run.summary.latency.values()):
        axes.set_yscale("log")  # which cannot show seconds that are all 0
        axes.yaxis.set_major_formatter(FuncFormatter(_amount))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("seconds")


def _percent(axes: Axes) -> None:
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
