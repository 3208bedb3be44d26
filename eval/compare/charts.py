"""The charts of the page; every number in them stands in a table too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from deltamem.report.charts import BLUE, GREEN, ORANGE, RED, VIOLET, inline_svg, legend_below
from eval.compare.loading import Run
from eval.results.scores import ALL

_COLOURS = (BLUE, ORANGE, GREEN, VIOLET, RED)
_HEADLINES = ("lenient", "accuracy", "correct_qa_ratio(all)", "set_f1", "recall@20", "recall@10", "recall@5", "mrr")
_JUDGED = ("lenient", "strict", "accuracy", "correct_qa_ratio(all)", "strict_correct_qa_ratio(all)")
_PARTS = ("ingest", "search", "answer", "judge")
_SPREAD = 0.6
"""How far the points of one category lie apart, in categories."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with the line above it."""

    title: str
    svg: Markup


def charts(prefix: str, runs: Sequence[Run]) -> list[Chart]:
    """All charts of one benchmark that there are numbers for.

    Args:
        prefix: Makes the ids on the page unique.
        runs: Of one benchmark.
    """
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
        context = [None if tokens is None else tokens.mean for tokens in contexts]
        ingest = [
            sum(run.summary.cost.get("ingest", {}).get(name, 0) for name in ("prompt_tokens", "completion_tokens"))
            for run in runs
        ]
        if any(context):
            label = "context tokens by answer"
            drawn.append(Chart(f"{metric} against {label}", _against(f"{prefix}-context", runs, metric, context, label)))
        if any(ingest):
            label = "tokens to take the sessions in"
            drawn.append(Chart(f"{metric} against {label}", _against(f"{prefix}-ingest", runs, metric, ingest, label)))
    if any(run.summary.latency.get(part) for run in runs for part in _PARTS):
        drawn.append(Chart("Seconds a call: bar p50, line p95", _latency(f"{prefix}-latency", runs)))
    return drawn


def headline_metric(runs: Sequence[Run]) -> str | None:
    """The score that stands for a benchmark: the first of the usual ones that every run has."""
    return next((name for name in _HEADLINES if all(_overall(run, name) is not None for run in runs)), None)


def _overall(run: Run, metric: str) -> float | None:
    interval = run.summary.scores.get(metric, {}).get(ALL)
    return None if interval is None else interval.estimate


def _metrics_by_category(runs: Sequence[Run]) -> list[str]:
    """Both judges, or the score of multiple choice; without any, one lexical score and one of retrieval."""
    there = [name for run in runs for name, scores in run.summary.scores.items() if _categories([run], name)]
    judged: list[str] = [name for name in _JUDGED if name in there]
    return judged or [name for name in dict.fromkeys(there) if name in (*_HEADLINES, "locomo_f1")][:2] or there[:1]


def _categories(runs: Sequence[Run], metric: str) -> list[str]:
    """Categories, at least two, that some run has a score for."""
    names = dict.fromkeys(
        name
        for run in runs
        for name, score in run.summary.scores.get(metric, {}).items()
        if score is not None and name != ALL
    )
    return list(names) if len(names) > 1 else []


def _by_category(name: str, runs: Sequence[Run], metric: str) -> Markup:
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


def _cumulative(name: str, runs: Sequence[Run]) -> Markup:
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


def _against(name: str, runs: Sequence[Run], metric: str, costs: Sequence[float | None], label: str) -> Markup:
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


def _latency(name: str, runs: Sequence[Run]) -> Markup:
    def draw(axes: Axes) -> None:
        width = 0.8 / len(runs)
        for number, run in enumerate(runs):
            spreads = [(place, spread) for place, part in enumerate(_PARTS) if (spread := run.summary.latency.get(part))]
            places = [place + width * (number - (len(runs) - 1) / 2) for place, _ in spreads]
            heights = [spread.p50 for _, spread in spreads]
            axes.bar(places, heights, width * 0.9, color=_colour(number), label=_plain(run.name))
            for place, (_, spread) in zip(places, spreads, strict=True):
                axes.plot([place, place], [spread.p50, spread.p95], color=_colour(number), linewidth=1.5)
        axes.set_xticks(range(len(_PARTS)), _PARTS)
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
