"""Curves as inline SVG that follow the colours of the page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

_INK = "#010203"
"""Stands for the text colour of the page: matplotlib knows no ``currentColor``."""

_STYLE = {
    "svg.fonttype": "none",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.color": _INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
}

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
        style: ``measured`` curves are seldom and exact and get markers; ``running`` ones are noisy and get smoothed.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    style: Literal["running", "measured"] = "running"


def line_chart(name: str, curves: Sequence[Curve], *, y_label: str, y_range: tuple[float, float] | None = None) -> Markup:
    """Draw curves over the training step.

    Args:
        name: Unique on the page; keeps the ids inside the SVGs apart.
        curves: What to draw.
        y_label: Title of the vertical axis.
        y_range: Its limits; chosen by the data if None.

    Returns:
        An ``<svg>`` element.
    """
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(5.6, 3.1), layout="constrained")
        axes = figure.add_subplot()
        for curve in curves:
            _draw(axes, curve)
        axes.set_xlabel("step")
        axes.set_ylabel(y_label)
        if y_range is not None:
            axes.set_ylim(*y_range)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.18))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor").replace('id="', f'id="{name}-')
    svg = svg.replace('"#', f'"#{name}-').replace("url(#", f"url(#{name}-")
    return Markup(svg)


def _draw(axes: Axes, curve: Curve) -> None:
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
