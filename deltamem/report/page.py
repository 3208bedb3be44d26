"""Templates of self-contained HTML pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


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
