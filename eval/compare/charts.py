"""The charts of a comparison. Each run has one mark and one colour on the whole page, which its card shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log10
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator, PercentFormatter

from deltamem.html import BLUE, GREEN, ORANGE, RED, VIOLET, Chart, inline_svg
from eval.compare.cards import metric_label
from eval.compare.runs import CLOSED_BOOK, FinishedRun
from eval.compare.tables import PARTS
from eval.metrics import Interval
from eval.summary import ALL

_COLOURS = (BLUE, ORANGE, GREEN, VIOLET, RED, "#0d9aa5", "#d946a0", "#9a6a1c", "#7c8794", "#84990f")
_MARKS = "os^DvPX<>*"

_HEADLINES = (
    "lenient",
    "accuracy_final",
    "accuracy",
    "score",
    "correct_qa_ratio(all)",
    "set_f1",
    "recall@20",
    "recall@10",
    "recall@5",
    "mrr",
)
_JUDGED = (
    "lenient",
    "strict",
    "accuracy_final",
    "accuracy",
    "score",
    "correct_qa_ratio(all)",
    "strict_correct_qa_ratio(all)",
)
_SPREAD = 0.7
"""How far the points of one category lie apart, in categories."""

_APART = 0.035
"""How far points must lie apart on an axis of costs, as a share of it; closer ones are moved."""

_LEAST_RANGE = 6.0
"""The least factor between both ends of an axis of costs, so that a small difference looks small."""

_NARROW, _BROAD = (5.6, 3.2), (11.6, 3.4)


def charts(prefix: str, runs: Sequence[FinishedRun]) -> list[Chart]:
    """All charts of one benchmark that there are numbers for; withheld scores are in none."""
    metrics = _metrics_by_category(runs)
    titles = [f"{metric_label(metric)} by category" for metric in metrics]
    drawn = [
        Chart(title, _by_category(f"{prefix}-{number}", runs, metric), broad=True)
        for number, (metric, title) in enumerate(zip(metrics, titles, strict=True))
    ]
    metric = headline_metric(runs)
    if metric is not None:
        name = metric_label(metric)
        if any(len(_budget_points(run, metric)) > 1 for run in runs):
            drawn.append(Chart(f"{name} at equal budgets of context tokens", _budgets(f"{prefix}-budgets", runs, metric)))
        contexts = [run.headline.context_tokens for run in runs]
        ingest = [run.summary.cost.get("ingest", {}) for run in runs]
        written = [cost.get("prompt_tokens", 0) + cost.get("completion_tokens", 0) for cost in ingest]
        shown = [run.summary.score(metric, ALL) is not None for run in runs]
        for kind, label, costs in (
            ("context", "context tokens an answer", contexts),
            ("ingest", "tokens to ingest the sessions", written),
        ):
            if any(cost and there for cost, there in zip(costs, shown, strict=True)):
                drawn.append(Chart(f"{name} against {label}", _against(f"{prefix}-{kind}", runs, metric, costs, label)))
    if any(_cumulative_points(run) for run in runs):
        title = "accuracy of all questions up to a session, mean and spread over users"
        drawn.append(Chart(title, _cumulative(f"{prefix}-time", runs)))
    if any(run.summary.latency.get(part) for run in runs for part in PARTS):
        drawn.append(Chart("seconds a call: bar p50, line p95", _latency(f"{prefix}-latency", runs)))
    return drawn


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


def headline_metric(runs: Sequence[FinishedRun]) -> str | None:
    """The headline of most runs; else the first of the usual scores that every run may show."""
    headlines = Counter(run.headline.metric for run in runs if run.headline.metric)
    if headlines:
        return headlines.most_common(1)[0][0]
    return next((name for name in _HEADLINES if all(run.summary.score(name, ALL) for run in runs)), None)


def _metrics_by_category(runs: Sequence[FinishedRun]) -> list[str]:
    """Both judges, or the score of multiple choice; without any, one lexical score and one of retrieval."""
    there = [name for run in runs for name in run.summary.scores if _categories([run], name)]
    judged: list[str] = [name for name in _JUDGED if name in there]
    return judged or [name for name in dict.fromkeys(there) if name in (*_HEADLINES, "locomo_f1")][:2] or there[:1]


def _categories(runs: Sequence[FinishedRun], metric: str) -> list[str]:
    """Categories, at least two, that some run may show a score of."""
    names = dict.fromkeys(
        name
        for run in runs
        for name in run.summary.scores.get(metric, {})
        if run.summary.score(metric, name) is not None and name != ALL
    )
    return list(names) if len(names) > 1 else []


def _draw_scores(axes: Axes, number: int, points: Sequence[tuple[float, Interval]], *, line: bool = False) -> None:
    """Scores of a run at places of the horizontal axis, with their intervals."""
    if not points:
        return
    scores = [score for _, score in points]
    low = [max(0.0, score.estimate - score.low) for score in scores]
    high = [max(0.0, score.high - score.estimate) for score in scores]
    shape = mark(number)
    axes.errorbar(
        [place for place, _ in points],
        [score.estimate for score in scores],
        yerr=[low, high],
        marker=shape,
        markersize=7.5 if shape == "*" else 5.5,
        color=colour(number),
        capsize=2.5,
        elinewidth=1.1,
        linewidth=1.4,
        linestyle="-" if line else "none",
    )


def _by_category(name: str, runs: Sequence[FinishedRun], metric: str) -> Markup:
    categories = _categories(runs, metric)

    def draw(axes: Axes) -> None:
        for number, run in enumerate(runs):
            shift = _SPREAD * ((number + 0.5) / len(runs) - 0.5)
            scores = [(place + shift, run.summary.score(metric, category)) for place, category in enumerate(categories)]
            _draw_scores(axes, number, [(place, score) for place, score in scores if score is not None])
        for place in range(1, len(categories)):
            axes.axvline(place - 0.5, color="#8a929a", linewidth=0.5, alpha=0.5)
        axes.set_xlim(-0.5, len(categories) - 0.5)
        axes.grid(visible=False, axis="x")
        axes.set_xticks(range(len(categories)), [_plain(_lines(one)) for one in categories])
        axes.tick_params(axis="x", length=0)
        _percent(axes)

    return inline_svg(name, draw, size=_BROAD)


def _lines(category: str) -> str:
    """The name of a category in lines of about 18 letters."""
    lines = [""]
    for word in category.replace("_", " ").split():
        if lines[-1] and len(lines[-1]) + len(word) > 17:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _budget_points(run: FinishedRun, metric: str) -> list[tuple[float, Interval]]:
    """Context tokens and score of a run at each budget, in order."""
    if run.summary.why_withheld(metric):
        return []
    shown = [point for point in run.summary.budgets if metric not in point.withheld]
    points = [(point.context_tokens, point.scores.get(metric)) for point in shown]
    return sorted((tokens, score) for tokens, score in points if tokens and score is not None)


def _budgets(name: str, runs: Sequence[FinishedRun], metric: str) -> Markup:
    def draw(axes: Axes) -> None:
        for number, run in enumerate(runs):
            _draw_scores(axes, number, _budget_points(run, metric), line=True)
        _closed_book(axes, runs, metric)
        _logarithmic(axes, "context tokens an answer")

    return inline_svg(name, draw, size=_NARROW)


def _against(name: str, runs: Sequence[FinishedRun], metric: str, costs: Sequence[float | None], label: str) -> Markup:
    def draw(axes: Axes) -> None:
        places = spread_apart(costs)
        for number, (run, place) in enumerate(zip(runs, places, strict=True)):
            score = run.summary.score(metric, ALL)
            if place is not None and score is not None:
                _draw_scores(axes, number, [(place, score)])
        _closed_book(axes, runs, metric)
        _logarithmic(axes, label)

    return inline_svg(name, draw, size=_NARROW)


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
        for position, (place, number) in enumerate(cluster):
            alone = len(cluster) == 1
            moved[number] = 10 ** (place if alone else centre + step * (position - (len(cluster) - 1) / 2))
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
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _amount(value)))
    axes.set_xlabel(label)
    _percent(axes)


def _amount(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _cumulative_points(run: FinishedRun) -> list[dict[str, float]]:
    """What was accurate up to each session; nothing where the headline, which is the last point, is withheld."""
    return [] if run.headline.withheld else run.summary.cumulative or []


def _cumulative(name: str, runs: Sequence[FinishedRun]) -> Markup:
    def draw(axes: Axes) -> None:
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

    return inline_svg(name, draw, size=_NARROW)


def _latency(name: str, runs: Sequence[FinishedRun]) -> Markup:
    def draw(axes: Axes) -> None:
        width = 0.8 / len(runs)
        for number, run in enumerate(runs):
            spreads = [(place, spread) for place, part in enumerate(PARTS) if (spread := run.summary.latency.get(part))]
            places = [place + width * (number - (len(runs) - 1) / 2) for place, _ in spreads]
            axes.bar(places, [spread.p50 for _, spread in spreads], width * 0.85, color=colour(number), alpha=0.55)
            for place, (_, spread) in zip(places, spreads, strict=True):
                axes.plot([place, place], [spread.p50, spread.p95], color=colour(number), linewidth=1.6)
                axes.plot([place], [spread.p95], color=colour(number), marker=mark(number), markersize=4)
        axes.set_xticks(range(len(PARTS)), PARTS)
        axes.grid(visible=False, axis="x")
        if any(spread and spread.p95 > 0 for run in runs for spread in run.summary.latency.values()):
            axes.set_yscale("log")  # which cannot show seconds that are all 0
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _amount(value)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel("seconds")

    return inline_svg(name, draw, size=_NARROW)


def _percent(axes: Axes) -> None:
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _plain(text: str) -> str:
    """Text that matplotlib does not read as a formula."""
    return text.replace("$", r"\$")
