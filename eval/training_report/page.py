"""Puts the page together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltamem.html import render_page, write_page
from eval.training_report.charts import machine_charts, training_charts, warm_start_charts
from eval.training_report.data import SHOWN_EVALUATION, RunInputs, comparison, read_run
from eval.training_report.trajectories import choose, histories, view


def write_report(run: Path, *, out: Path | None = None, trajectories: int = 12) -> Path:
    """Write the report of a run folder.

    Args:
        run: The run folder. What it lacks is said on the page.
        out: The page; ``report.html`` in the run folder if None.
        trajectories: How many trajectories to show at most.

    Returns:
        Where the page is.

    Raises:
        DeltaMemError: If the folder does not exist or the page cannot be written.
    """
    target = out if out is not None else run / "report.html"
    write_page(target, render(read_run(run), trajectories=trajectories))
    return target


def render(inputs: RunInputs, *, trajectories: int) -> str:
    """Render the page as one HTML text without outside resources; everything that was read is escaped."""
    return render_page(
        Path(__file__).parent / "report.html.j2",
        name=inputs.name,
        facts=_facts(inputs),
        written=time.strftime("%Y-%m-%d %H:%M %Z"),
        missing=inputs.missing,
        training=training_charts(inputs.metrics),
        machine=machine_charts(inputs.metrics),
        warm_start=warm_start_charts(inputs.warm_start),
        rows=comparison(inputs.summaries),
        summaries=inputs.summaries,
        shown=[view(record, reason) for reason, record in choose(inputs.trajectories, trajectories)],
        histories=histories(inputs.validation, trajectories),
        evaluated=len(inputs.trajectories),
        shown_evaluation=SHOWN_EVALUATION,
        details=_details(inputs),
    )


def _making(inputs: RunInputs) -> Mapping[str, Any]:
    summaries = [inputs.summaries.get(SHOWN_EVALUATION), *inputs.summaries.values()]
    making = next((summary.get("provenance") for summary in summaries if summary), None)
    return making if isinstance(making, dict) else {}


def _facts(inputs: RunInputs) -> list[tuple[str, str]]:
    """What, when, commit, seed: from the summary of the run, else from that of an evaluation."""
    making, run = _making(inputs), inputs.run_summary
    evaluation = inputs.summaries.get(SHOWN_EVALUATION, {})
    seconds = run.get("seconds")
    total = seconds.get("total") if isinstance(seconds, dict) else seconds
    facts = {
        "evaluated policy": evaluation.get("policy"),
        "finished": making.get("finished"),
        "commit": run.get("git_commit") or making.get("git_commit"),
        "seed": run.get("seed", making.get("seed")),
        "embedder": making.get("embedder"),
        "held-out sessions": evaluation.get("sessions"),
        "held-out people": evaluation.get("people"),
        "minutes": f"{total / 60:.1f}" if isinstance(total, int | float) and total else None,
    }
    return [(name, str(value)) for name, value in facts.items() if value is not None]


def _details(inputs: RunInputs) -> dict[str, Any]:
    """What is shown folded: the whole summary of the run and how the evaluation was made."""
    details = {"summary.json": inputs.run_summary, "making of the evaluation": _making(inputs)}
    return {name: value for name, value in details.items() if value}
