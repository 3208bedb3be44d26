"""Self-contained HTML pages: templates, style and inline SVG charts. Needs the extra ``report``."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, GREEN, ORANGE, VIOLET, RED = "#3b82f6", "#16a34a", "#ea8a0c", "#a855f7", "#e5484d"
"""Colours that are readable on light and on dark."""

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
    "axes.axisbelow": True,
    "grid.color": _INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def inline_svg(name: str, draw: Callable[[Axes], None], *, size: tuple[float, float] = (5.6, 3.1)) -> Markup:
    """Draw a chart.

    Args:
        name: Unique on the page; keeps the ids inside the SVGs apart.
        draw: Draws on the axes.
        size: Width and height in inches.

    Returns:
        An ``<svg>`` element; the same bytes for the same drawing.
    """
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor").replace('id="', f'id="{name}-')
    svg = svg.replace('"#', f'"#{name}-').replace("url(#", f"url(#{name}-")
    return Markup(svg)


def legend_below(axes: Axes, columns: int) -> None:
    """Put the legend under the chart."""
    axes.legend(ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.18))


def page_templates(folder: Path) -> Environment:
    """Open the HTML templates of a folder; everything that they fill in is escaped.

    ``{% include "page.css" %}`` gives the style that all pages share, light and dark; the filter ``pretty`` writes JSON.

    Args:
        folder: Where the templates are.
    """
    environment = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pretty"] = _pretty
    return environment


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
