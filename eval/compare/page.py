"""The comparison as one HTML page that needs nothing else: tables, charts, and every question to browse."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from deltamem.errors import DeltaMemError
from deltamem.files import atomic_writer
from deltamem.report.page import page_templates
from eval.compare.browse import OUTCOMES, browse_data
from eval.compare.charts import Chart, charts
from eval.compare.comparable import differences, gaps
from eval.compare.costs import cost_table, difference_table, probe_table
from eval.compare.loading import Run, by_family, load_runs
from eval.compare.paired import paired_differences
from eval.compare.tables import Table, judge_table, paper_tables, score_table


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark on the page.

    Attributes:
        title: Its name.
        runs: Its runs.
        warnings: Where their conditions differ.
        gaps: What they lack.
        papers: Tables in the layout of the papers.
        tables: The others.
        charts: Charts.
    """

    title: str
    runs: list[Run]
    warnings: list[str]
    gaps: list[str]
    papers: list[Table]
    tables: list[Table]
    charts: list[Chart]


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write ``report.html`` for finished runs.

    Args:
        runs: Output folders, of any benchmarks.
        out: The page; its folder must exist.

    Returns:
        Where the page is.

    Raises:
        DeltaMemError: If a folder is not that of a finished run, or the page cannot be written.
    """
    page = render(load_runs(runs))
    try:
        with atomic_writer(out) as file:
            file.write(page)
    except OSError as error:
        raise DeltaMemError(f"{out}: the report cannot be written: {error.strerror or error}") from error
    return out


def render(runs: Sequence[Run]) -> str:
    """Render the page as one text without outside resources; everything that was read is escaped."""
    folder = Path(__file__).parent
    return (
        page_templates(folder)
        .get_template("page.html.j2")
        .render(
            names=[run.name for run in runs],
            written=time.strftime("%Y-%m-%d %H:%M %Z"),
            sections=[_section(name, group) for name, group in by_family(runs).items()],
            facts=[(run, _facts(run)) for run in runs],
            outcomes=OUTCOMES,
            data=browse_data(runs),
            script=Markup((folder / "browse.js").read_text(encoding="utf-8")),
        )
    )


def _section(name: str, runs: list[Run]) -> Section:
    tables = [
        judge_table(runs),
        score_table(runs),
        difference_table(paired_differences(runs)),
        cost_table(runs),
        probe_table(runs),
    ]
    return Section(
        title=runs[0].summary.benchmark,
        runs=runs,
        warnings=differences(runs),
        gaps=[note for run in runs for note in gaps(run)],
        papers=paper_tables(runs),
        tables=[table for table in tables if table.rows],
        charts=charts(name, runs),
    )


def _facts(run: Run) -> dict[str, Any]:
    """What a run is and what it was made with."""
    summary = run.summary
    return {
        "version": summary.version,
        "mode": summary.mode,
        "commit": summary.making.git_commit,
        **{f"{part} model": name for part, name in summary.making.models.items()},
        "protocol": summary.protocol,
        "data": summary.data,
        "failures": summary.failures.model_dump(),
        "making": summary.making.model_dump(),
    }
