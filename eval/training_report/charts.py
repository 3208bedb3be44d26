"""The charts of the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from deltamem.html import BLUE, GREEN, ORANGE, RED, VIOLET, Chart, inline_svg, legend_below

SMOOTHED_FROM = 20
"""Curves with at least this many points are shown as a running mean over the faint points."""


class Curve(NamedTuple):
    """One line of a chart over the training step."""

    label: str  # In the legend
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    # Measured curves are rare and exact and get markers; running ones are noisy and get smoothed; target ones are where
    # another curve should go, dotted
    style: Literal["running", "measured", "target"] = "running"


def line_chart(
    title: str, name: str, curves: Sequence[Curve], y_label: str, y_range: tuple[float, float | None] | None = None
) -> Chart:
    """Draw curves; `name` must be unique on the page, and the data choose the limits where `y_range` is None."""

    def draw(axes: Axes) -> None:
        for curve in curves:
            _draw(axes, curve)
        if y_range is not None:
            axes.set_ylim(*y_range)
        _finish(axes, y_label, columns=2)

    return Chart(title, inline_svg(name, draw))


def stacked_chart(title: str, name: str, layers: Sequence[Curve], y_label: str) -> Chart:
    """Draw layers on top of each other, from the bottom up; all over the same steps."""

    def draw(axes: Axes) -> None:
        axes.stackplot(
            layers[0].x,
            *(layer.y for layer in layers),
            labels=[layer.label for layer in layers],
            colors=[layer.colour for layer in layers],
            step="mid",
            linewidth=0,
        )
        _finish(axes, y_label, columns=3)

    return Chart(title, inline_svg(name, draw))


def _finish(axes: Axes, y_label: str, columns: int) -> None:
    axes.set_xlabel("step")
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(axes, columns)


def _draw(axes: Axes, curve: Curve) -> None:
    smoothed = len(curve.y) >= SMOOTHED_FROM
    if curve.style == "target":
        values = running_mean(curve.y) if smoothed else curve.y
        axes.plot(curve.x, values, ":", color=curve.colour, linewidth=1.4, label=curve.label)
    elif curve.style == "measured":
        axes.plot(curve.x, curve.y, "o--", color=curve.colour, markersize=4, linewidth=1.3, label=curve.label)
    elif smoothed:
        axes.plot(curve.x, curve.y, color=curve.colour, linewidth=0.8, alpha=0.3)
        axes.plot(curve.x, running_mean(curve.y), color=curve.colour, linewidth=1.8, label=curve.label)
    else:
        axes.plot(curve.x, curve.y, color=curve.colour, linewidth=1.6, marker=".", label=curve.label)


def running_mean(values: Sequence[float]) -> list[float]:
    """Mean of each value and its neighbours, a tenth of the curve wide; narrower at the ends."""
    half = max(1, len(values) // 20)
    return [float(np.mean(values[max(0, i - half) : i + half + 1])) for i in range(len(values))]


Record = Mapping[str, Any]

TRAIN, HELDOUT = "train/", "heldout/"
GREY, TEAL = "#64748b", "#0d9488"
_VIOLATIONS = "count/violations/"
_SHARE = (-0.02, 1.02)
_AMOUNT = (0.0, None)


class _Plan(NamedTuple):
    """A chart of metrics; without `prefixes` the metrics are named in full."""

    name: str
    title: str
    y_label: str
    colours: Mapping[str, str]
    prefixes: tuple[str, ...] = (TRAIN, HELDOUT)
    y_range: tuple[float, float | None] | None = _SHARE

    def charts(self, metrics: Sequence[Record]) -> Iterator[Chart]:
        curves = []
        for metric, colour in self.colours.items():
            for prefix in self.prefixes or ("",):
                where = "" if len(self.prefixes) < 2 else ", held out" if prefix == HELDOUT else ", training"
                label = _words(metric if self.prefixes else metric.rpartition("/")[2])
                curves += _curve(metrics, prefix + metric, label + where, colour, measured=prefix == HELDOUT)
        if curves:
            yield line_chart(self.title, self.name, curves, self.y_label, self.y_range)


_KINDS = {"add_recall": BLUE, "add_precision": TEAL, "update_recall": GREEN, "update_precision": ORANGE}
_KINDS |= {"none_recall": VIOLET, "none_precision": GREY}
_UPDATES = {"update_recall": GREEN, "wrong_target": RED, "add_for_update": ORANGE}
_SEARCHES = {"queries_per_memory": BLUE, "retrieved_per_query": GREEN}
_POLICY = (
    _Plan("total", "Total reward", "reward", {"reward": BLUE}),
    _Plan("parts", "Parts of the reward", "share", {"transition": VIOLET, "retrieval": ORANGE, "format": GREEN}),
    _Plan("match", "Soft precision and recall", "share", {"precision": ORANGE, "recall": BLUE}),
    _Plan("updates", "Updates: right target, wrong target, and ADD in their place", "share", _UPDATES),
    _Plan("kinds", "Held out, by kind of operation", "share", _KINDS, (HELDOUT,)),
    _Plan("searches", "Searches", "number", _SEARCHES, (TRAIN,), _AMOUNT),
    _Plan("signal", "Signal of the groups", "reward, share", {"group_std": BLUE, "no_signal": RED}, (TRAIN,)),
    _Plan("cut", "Cut off and broken", "share of rollouts", {"truncated": ORANGE, "failure": RED}, (TRAIN,)),
)
_LENGTHS = {"mean": BLUE, "p50": TEAL, "p95": ORANGE, "max": RED}
_ROLLOUT = {"generate": BLUE, "search": GREEN, "reward": ORANGE}
_MEMORY = {"rss": BLUE, "pss": TEAL, "gpu_allocated": GREEN, "gpu_reserved": ORANGE}
_machine = partial(_Plan, prefixes=(), y_range=_AMOUNT)
_MACHINE = (
    _machine(
        "lengths",
        "Tokens of an episode",
        "tokens",
        {f"train/model_tokens_{part}": colour for part, colour in _LENGTHS.items()} | {"train/tool_tokens": GREY},
    ),
    _machine(
        "rollout-time",
        "Time of a rollout",
        "seconds, mean",
        {f"seconds/rollout_{part}_mean": colour for part, colour in _ROLLOUT.items()},
    ),
    _machine("speed", "Speed", "tokens/s on each GPU", {"speed/tokens_per_second_per_gpu": BLUE}),
    _machine("mfu", "Model FLOP/s utilisation of the update", "share", {"speed/mfu": VIOLET}),
    _machine("memory", "Memory", "GB, most in use", {f"memory/{part}_gb": colour for part, colour in _MEMORY.items()}),
)
_WARM_START = (
    _Plan("loss", "Loss", "cross entropy", {"loss": BLUE}, (), None),
    _Plan("accuracy", "Accuracy", "share of tokens", {"accuracy": GREEN}, ()),
)
_OPERATIONS = {
    "ADD": ("adds", "target_adds", BLUE),
    "UPDATE": ("updates", "due_updates", GREEN),
    "NONE": ("nones", "due_nones", VIOLET),
}
_PHASES = {
    "gen": ("rollouts", BLUE),
    "old_log_prob": ("log-probs", VIOLET),
    "ref": ("reference", TEAL),
    "update_actor": ("update", GREEN),
    "update_weights": ("weight sync", ORANGE),
    "save_checkpoint": ("checkpoint", RED),
}


def training_charts(metrics: Sequence[Record]) -> list[Chart]:
    """Draw what is known of the policy; a metric without values is left out, and a chart without curves too."""
    drawn = [chart for plan in _POLICY for chart in plan.charts(metrics)]
    if operations := [curve for event in _OPERATIONS for curve in _of_kind(metrics, event)]:
        title = "Operations of a session, and how many are due"
        drawn.append(line_chart(title, "operations", operations, "number", _AMOUNT))
    if violations := _violations(metrics):
        drawn.append(line_chart("Violations of a session", "violations", violations, "number", _AMOUNT))
    return drawn


def machine_charts(metrics: Sequence[Record]) -> list[Chart]:
    """Draw where the time goes, speed and memory."""
    charts = [chart for plan in _MACHINE for chart in plan.charts(metrics)]
    if layers := _time_split(metrics):
        charts.insert(0, stacked_chart("Time of a step", "time", layers, "seconds"))
    return charts


def warm_start_charts(records: Sequence[Record]) -> list[Chart]:
    """Draw loss and accuracy of the warm start."""
    return [chart for plan in _WARM_START for chart in plan.charts(records)]


def _of_kind(metrics: Sequence[Record], event: str) -> list[Curve]:
    kind, due, colour = _OPERATIONS[event]
    done = _curve(metrics, f"{TRAIN}count/predicted_{kind}", event, colour)
    wanted = _curve(metrics, f"{TRAIN}count/{due}", f"{event} due", colour)
    return done + [Curve(curve.label, curve.x, curve.y, colour, "target") for curve in wanted]


def _violations(metrics: Sequence[Record]) -> list[Curve]:
    """The kinds of violations that occurred most, at most five."""
    prefix = TRAIN + _VIOLATIONS
    names = {name for record in metrics for name in record if name.startswith(prefix)}
    curves = [curve for name in sorted(names) for curve in _curve(metrics, name, _words(name.removeprefix(prefix)), GREY)]
    often = sorted((curve for curve in curves if any(curve.y)), key=lambda curve: -sum(curve.y) / len(curve.y))
    colours = (RED, ORANGE, VIOLET, BLUE, GREEN)
    return [Curve(curve.label, curve.x, curve.y, colour) for curve, colour in zip(often, colours, strict=False)]


def _time_split(metrics: Sequence[Record]) -> list[Curve]:
    """Phases of the steps from the bottom up; what no phase explains is on top."""
    steps = [record for record in metrics if _number(record, "step") and _number(record, "seconds/step")]
    if len(steps) < 2:
        return []
    x = [float(record["step"]) for record in steps]
    spent = {
        phase: [float(record[key]) if _number(record, key) else 0.0 for record in steps]
        for phase, key in ((phase, f"seconds/{phase}") for phase in _PHASES)
    }
    explained = [sum(values) for values in zip(*spent.values(), strict=True)]
    rest = [max(0.0, float(record["seconds/step"]) - known) for record, known in zip(steps, explained, strict=True)]
    layers = [Curve(_PHASES[phase][0], x, values, _PHASES[phase][1]) for phase, values in spent.items() if any(values)]
    return [*layers, Curve("other", x, rest, GREY)]


def _curve(records: Sequence[Record], metric: str, label: str, colour: str, *, measured: bool = False) -> list[Curve]:
    points = [(record["step"], record[metric]) for record in records if _number(record, "step") and _number(record, metric)]
    if not points:
        return []
    steps, values = zip(*points, strict=True)
    return [Curve(label, steps, values, colour, "measured" if measured else "running")]


def _number(record: Record, key: str) -> bool:
    value = record.get(key)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _words(metric: str) -> str:
    return metric.replace("_", " ")
