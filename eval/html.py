"""Self-contained HTML pages: templates, style and inline SVG charts. Needs the extra ``report``.

Templates extend ``base.html.j2`` (head, style, body) and import the macro ``charts`` from ``macros.html.j2``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

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


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart and the line above it; the macro ``charts`` shows a list of them."""

    title: str
    svg: Markup
    broad: bool = False  # Whether it takes the whole width, and is scrolled where that is narrow


def inline_svg(name: str, draw: Callable[[Axes], None], *, size: tuple[float, float] = (5.6, 3.1)) -> Markup:
    """Draw a chart, by a function that is given the axes; `size` is in inches.

    The ids inside the ``<svg>`` begin with the `name`, which is unique on the page. The same drawing gives the same bytes.
    """
    # Here and below, as it takes most of a second to import, and every command that can write a page would wait for it.
    import matplotlib
    from matplotlib.figure import Figure

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


def whole_numbers(axis: Axis) -> None:
    """Label whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def percent(axis: Axis) -> None:
    """Label shares in percent."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0))


def render_page(template: Path, **values: Any) -> str:
    """Fill in a template, whose folder may hold others; the page needs nothing from outside.

    Everything that is filled in is escaped. The filter ``pretty`` writes JSON.
    """
    return _templates(template.parent).get_template(template.name).render(**values)


@cache
def _templates(folder: Path) -> Environment:
    """Those of a folder, which are compiled once: runs write a page whenever some questions are done."""
    environment = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pretty"] = partial(json.dumps, ensure_ascii=False, indent=2)
    return environment


def write_page(path: Path, page: str) -> None:
    """Write a page whole or not at all.

    Raises:
        DeltaMemError: If it cannot be written.
    """
    try:
        with atomic_writer(path) as file:
            file.write(page)
    except OSError as error:
        raise DeltaMemError(f"{path}: the report cannot be written: {error.strerror or error}") from error
