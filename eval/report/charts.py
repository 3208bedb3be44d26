"""Curves over training steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from deltamem.report.charts import inline_svg, legend_below

SMOOTHED_FROM = 20
"""Curves with at least this many points are shown as a running mean over the faint points."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart.

    Attributes:
        label: Its entry in the legend.
        x: Steps.
        y: Values, as many as steps.
        colour: Any CSS hex colour that is readable on light and on dark.
        style: ``measured`` curves are seldom and exact and get markers; ``running`` ones are noisy and get smoothed;
            ``target`` ones are where another curve should go, dotted.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    style: Literal["running", "measured", "target"] = "running"


def line_chart(
    name: str, curves: Sequence[Curve], *, y_label: str, y_range: tuple[float, float | None] | None = None
) -> Markup:
    """Draw curves over the training step.

    Args:
        name: Unique on the page; keeps the ids inside the SVGs apart.
        curves: What to draw.
        y_label: Title of the vertical axis.
        y_range: Its limits; chosen by the data where None.

    Returns:
        An ``<svg>`` element.
    """

    def draw(axes: Axes) -> None:
        for curve in curves:
            _draw(axes, curve)
        axes.set_xlabel("step")
        axes.set_ylabel(y_label)
        if y_range is not None:
            axes.set_ylim(*y_range)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(axes, 2)

    return inline_svg(name, draw)


def stacked_chart(name: str, layers: Sequence[Curve], *, y_label: str) -> Markup:
    """Draw layers on top of each other over the training step.

    Args:
        name: Unique on the page.
        layers: From the bottom up, all over the same steps.
        y_label: Title of the vertical axis.

    Returns:
        An ``<svg>`` element.
    """

    def draw(axes: Axes) -> None:
        axes.stackplot(
            layers[0].x,
            *(layer.y for layer in layers),
            labels=[layer.label for layer in layers],
            colors=[layer.colour for layer in layers],
            step="mid",
            linewidth=0,
        )
        axes.set_xlabel("step")
        axes.set_ylabel(y_label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(axes, 3)

    return inline_svg(name, draw)


def _draw(axes: Axes, curve: Curve) -> None:
    if curve.style == "target":
        values = running_mean(curve.y) if len(curve.y) >= SMOOTHED_FROM else curve.y
        axes.plot(curve.x, values, ":", color=curve.colour, linewidth=1.4, label=curve.label)
        return
    if curve.style == "measured":
        axes.plot(curve.x, curve.y, "o--", color=curve.colour, markersize=4, linewidth=1.3, label=curve.label)
        return
    if len(curve.y) < SMOOTHED_FROM:
        axes.plot(curve.x, curve.y, color=curve.colour, linewidth=1.6, marker=".", label=curve.label)
        return
    axes.plot(curve.x, curve.y, color=curve.colour, linewidth=0.8, alpha=0.3)
    axes.plot(curve.x, running_mean(curve.y), color=curve.colour, linewidth=1.8, label=curve.label)


def running_mean(values: Sequence[float]) -> list[float]:
    """Mean of each value and its neighbours, a tenth of the curve wide; narrower at the ends."""
    half = max(1, len(values) // 20)
    return [float(np.mean(values[max(0, i - half) : i + half + 1])) for i in range(len(values))]
