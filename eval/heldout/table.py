"""The summary as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from eval.heldout.summary import VIOLATIONS_PER_EPISODE

LABELS = {
    "reward": "reward",
    "format": "  format",
    "retrieval": "  retrieval",
    "transition": "  transition",
    "precision": "    soft precision",
    "recall": "    soft recall",
    "add_precision": "ADD precision",
    "add_recall": "ADD recall",
    "update_precision": "UPDATE precision (right target)",
    "update_recall": "UPDATE recall (right target)",
    "update_matched_recall": "UPDATE recall (right target and text)",
    "none_precision": "NONE precision",
    "none_recall": "NONE recall",
    "wrong_target_rate": "UPDATEs with a wrong target",
    "add_for_update_rate": "due UPDATEs done as ADD",
    "duplicates_per_episode": "duplicates added per session",
    "queries_per_memory": "queries per memory",
    "queries_per_episode": "queries per session",
    "unreadable_rate": "answers that could not be read",
    "failure_rate": "sessions failed",
}
"""What is shown of the metrics, and how it is called; violations follow."""


def label(name: str) -> str:
    """How a metric is called on the terminal and in the report."""
    return LABELS.get(name) or name.replace(VIOLATIONS_PER_EPISODE, "violations per session: ").replace("_", " ")


def shown_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Names of the metrics to show, in order: those with a label, then the violations that occurred."""
    violations = [
        name for name, value in metrics.items() if name.startswith(VIOLATIONS_PER_EPISODE) and value and value["estimate"]
    ]
    return [name for name in LABELS if name in metrics] + violations


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Lay the summary out for the terminal."""
    table = Table(
        title=f"{summary['policy']}: {summary['answered']} sessions of {summary['people']} people",
        caption=f"{summary['failed']} failed, {summary['tokens']} tokens, {summary['seconds']:.0f} s",
    )
    table.add_column("metric", no_wrap=True)
    table.add_column("estimate", justify="right")
    table.add_column("95% interval by person", justify="right")
    for name in shown_metrics(summary["metrics"]):
        value = summary["metrics"][name]
        if value is None:
            table.add_row(label(name), "-", "nothing to count")
        else:
            table.add_row(label(name), f"{value['estimate']:.3f}", f"{value['low']:.3f} to {value['high']:.3f}")
    return table
