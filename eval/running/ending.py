"""How the command of a benchmark ends: tables on the screen, the page, what failed, the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from eval.compare.page import write_report

REPORT_FILE = "report.html"
FAILED = 1
"""Exit code of a run in which something broke."""


def end_run(
    out: Path,
    summary: Mapping[str, Any],
    tables: Iterable[RenderableType | None],
    lines: Iterable[str],
    failures: Sequence[str],
    console: Console,
) -> int:
    """Show the result, write the page and say what failed.

    Args:
        out: The output folder, with its summary written.
        summary: The summary.
        tables: Shown first; None is left out.
        lines: Shown after them.
        failures: What failed, in sentences, for stderr.
        console: Where the result is shown.

    Returns:
        The exit code: 0, or 1 if something failed.

    Raises:
        DeltaMemError: If the page cannot be written; the records are there all the same.
    """
    for table in tables:
        if table is not None:
            console.print(table)
    page = write_report([out], out / REPORT_FILE)
    for line in [*lines, f"{summary['version']}; every question: {page}; all records: {out}"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not summary["failures"]["count"]:
        return 0
    errors = Console(stderr=True)
    for failure in failures:
        errors.print(failure, markup=False, highlight=False, soft_wrap=True)
    return FAILED
