"""The charts of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from eval.html import BLUE, GREEN, ORANGE, RED, VIOLET, Chart, inline_svg, legend_below, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMOOTHED_FROM = 20
"""Curves with at least this many points are shown as a running mean over the faint points."""


Style = Literal["running", "measured", "target", "layer"]


class Curve(NamedTuple):
    """One line of a chart over the training step."""

    label: str  # In the legend
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    # Measured curves are rare and exact and get markers; running ones are noisy and get smoothed; target ones are where
    # another curve should go, dotted; layers are stacked from the bottom up, all over the same steps
    style: Style = "running"


def line_chart(
    title: str, name: str, curves: Sequence[Curve], y_label: str, y_range: tuple[float, float | None] | None = None
) -> list[Chart]:
    """Draw curves if there are any; `name` is unique on the page, and the data choose the limits where `y_range` is None."""
    layers = [curve for curve in curves if curve.style == "layer"]

    def draw(axes: Axes) -> None:
        if layers:
            labels, colours = [one.label for one in layers], [one.colour for one in layers]
            heights = [one.y for one in layers]
            axes.stackplot(layers[0].x, *heights, labels=labels, colors=colours, step="mid", linewidth=0)
        for curve in curves:
            _draw(axes, curve)
        if y_range is not None:
            axes.set_ylim(*y_range)
        axes.set_xlabel("step")
        axes.set_ylabel(y_label)
        whole_numbers(axes.xaxis)
        legend_below(axes, columns=3 if layers else 2)

    return [Chart(title, inline_svg(name, draw))] if curves else []


def _draw(axes: Axes, curve: Curve) -> None:
    draw = partial(axes.plot, curve.x, color=curve.colour)
    smoothed = running_mean(curve.y) if len(curve.y) >= SMOOTHED_FROM else None
    match curve.style:
        case "target":
            draw(smoothed or curve.y, linestyle=":", linewidth=1.4, label=curve.label)
        case "measured":
            draw(curve.y, marker="o", linestyle="--", markersize=4, linewidth=1.3, label=curve.label)
        case "running" if smoothed:
            draw(curve.y, linewidth=0.8, alpha=0.3)
            draw(smoothed, linewidth=1.8, label=curve.label)
        case "running":
            draw(curve.y, linewidth=1.6, marker=".", label=curve.label)


def running_mean(values: Sequence[float]) -> list[float]:
    """Mean of each value and its neighbours, a tenth of the curve wide; narrower at the ends."""
    half = max(1, len(values) // 20)
    return [float(np.mean(values[max(0, i - half) : i + half + 1])) for i in range(len(values))]


Record = Mapping[str, Any]

TRAIN, HELDOUT = "train/", "heldout/"
GREY, TEAL = "#64748b", "#0d9488"
_VIOLATIONS = (RED, ORANGE, VIOLET, BLUE, GREEN)
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

    def charts(self, metrics: Sequence[Record]) -> list[Chart]:
        """The chart, if any of its metrics is known."""
        curves = []
        for metric, colour in self.colours.items():
            for prefix in self.prefixes or ("",):
                where = "" if len(self.prefixes) < 2 else ", held out" if prefix == HELDOUT else ", training"
                label = _words(metric if self.prefixes else metric.rpartition("/")[2])
                style: Style = "measured" if prefix == HELDOUT else "running"
                curves += _curve(metrics, prefix + metric, label + where, colour, style)
        return line_chart(self.title, self.name, curves, self.y_label, self.y_range)


_KINDS = {"add_recall": BLUE, "add_precision": TEAL, "update_recall": GREEN, "update_precision": ORANGE}
_KINDS |= {"none_recall": VIOLET, "none_precision": GREY}
_UPDATES = {"update_recall": GREEN, "wrong_target": RED, "add_for_update": ORANGE}
_SILENCE = {"idle_left_alone": GREEN, "due_left_alone": RED}
_SEARCHES = {"queries_per_memory": BLUE, "retrieved_per_query": GREEN}
_POLICY = (
    _Plan("total", "Total reward", "reward", {"reward": BLUE}),
    _Plan("parts", "Parts of the reward", "share", {"transition": VIOLET, "retrieval": ORANGE, "format": GREEN}),
    _Plan("match", "Soft precision and recall", "share", {"precision": ORANGE, "recall": BLUE}),
    _Plan("updates", "Updates: right target, wrong target, and ADD in their place", "share", _UPDATES),
    _Plan("kinds", "Held out, by kind of operation", "share", _KINDS, (HELDOUT,)),
    _Plan("silence", "Sessions left alone: with nothing to note, and the others", "share", _SILENCE),
    _Plan("searches", "Searches", "number", _SEARCHES, (TRAIN,), _AMOUNT),
    _Plan("signal", "Signal of the groups", "reward, share", {"group_std": BLUE, "no_signal": RED}, (TRAIN,)),
    _Plan("cut", "Cut off and broken", "share of rollouts", {"truncated": ORANGE, "failure": RED}, (TRAIN,)),
)


def _named(pattern: str, **colours: str) -> dict[str, str]:
    return {pattern.format(part): colour for part, colour in colours.items()}


_LENGTHS = _named("train/model_tokens_{}", mean=BLUE, p50=TEAL, p95=ORANGE, max=RED) | {"train/tool_tokens": GREY}
_ROLLOUT = _named("seconds/rollout_{}_mean", generate=BLUE, search=GREEN, reward=ORANGE)
_MEMORY = _named("memory/{}_gb", rss=BLUE, pss=TEAL, gpu_allocated=GREEN, gpu_reserved=ORANGE)
_machine = partial(_Plan, prefixes=(), y_range=_AMOUNT)
_MACHINE = (
    _machine("lengths", "Tokens of an episode", "tokens", _LENGTHS),
    _machine("rollout-time", "Time of a rollout", "seconds, mean", _ROLLOUT),
    _machine("speed", "Speed", "tokens/s on each GPU", {"speed/tokens_per_second_per_gpu": BLUE}),
    _machine("mfu", "Model FLOP/s utilisation of the update", "share", {"speed/mfu": VIOLET}),
    _machine("memory", "Memory", "GB, most in use", _MEMORY),
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
    operations = []
    for event, (made, due, colour) in _OPERATIONS.items():
        operations += _curve(metrics, f"train/count/predicted_{made}", event, colour)
        operations += _curve(metrics, f"train/count/{due}", f"{event} due", colour, "target")
    drawn = [chart for plan in _POLICY for chart in plan.charts(metrics)]
    drawn += line_chart("Operations of a session, and how many are due", "operations", operations, "number", _AMOUNT)
    return drawn + line_chart("Violations of a session", "violations", _violations(metrics), "number", _AMOUNT)


def machine_charts(metrics: Sequence[Record]) -> list[Chart]:
    """Draw where the time goes, speed and memory."""
    split = line_chart("Time of a step", "time", _time_split(metrics), "seconds")
    return split + [chart for plan in _MACHINE for chart in plan.charts(metrics)]


def warm_start_charts(records: Sequence[Record]) -> list[Chart]:
    """Draw loss and accuracy of the warm start."""
    return [chart for plan in _WARM_START for chart in plan.charts(records)]


def _violations(metrics: Sequence[Record]) -> list[Curve]:
    """The kinds of violations that occurred most, at most five."""
    prefix = "train/count/violations/"
    names = sorted({name for record in metrics for name in record if name.startswith(prefix)})
    curves = [curve for name in names for curve in _curve(metrics, name, _words(name.removeprefix(prefix)), GREY)]
    often = sorted((curve for curve in curves if any(curve.y)), key=lambda curve: -np.mean(curve.y))
    return [curve._replace(colour=colour) for curve, colour in zip(often, _VIOLATIONS, strict=False)]


def _time_split(metrics: Sequence[Record]) -> list[Curve]:
    """Phases of the steps from the bottom up; what no phase explains is on top."""
    steps = [record for record in metrics if _number(record, "step") and _number(record, "seconds/step")]
    if len(steps) < 2:
        return []
    layers, rest = [], np.array([record["seconds/step"] for record in steps], float)
    for phase, (label, colour) in _PHASES.items():
        key = f"seconds/{phase}"
        spent = np.array([record[key] if _number(record, key) else 0 for record in steps], float)
        layers += [(label, spent, colour)] if spent.any() else []
        rest -= spent
    layers.append(("other", rest.clip(min=0), GREY))
    x = [record["step"] for record in steps]
    return [Curve(label, x, values.tolist(), colour, "layer") for label, values, colour in layers]


def _curve(records: Sequence[Record], metric: str, label: str, colour: str, style: Style = "running") -> list[Curve]:
    points = [(record["step"], record[metric]) for record in records if _number(record, "step") and _number(record, metric)]
    if not points:
        return []
    steps, values = zip(*points, strict=True)
    return [Curve(label, steps, values, colour, style)]


def _number(record: Record, key: str) -> bool:
    value = record.get(key)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _words(metric: str) -> str:
    return metric.replace("_", " ")
