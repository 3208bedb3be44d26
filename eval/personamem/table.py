"""The results for people, with the types of question in the order of the paper's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from eval.personamem.question_types import label
from eval.results.scores import ALL


def table(summary: Mapping[str, Any]) -> Table:
    """Accuracy and recall by type of question, and over all questions."""
    scores, spread = summary["scores"], summary["accuracy_over_runs"]
    counts = summary["questions"]["by_category"]
    view = Table(
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        title=f"{summary['benchmark']}, {summary['system']} ({summary['mode']}): in %",
        caption=_caption(summary),
    )
    view.add_column("questions")
    for name, count in counts.items():
        view.add_column(f"{label(name).replace('-', '-' + chr(10))}\n{count}", justify="right")
    view.add_column(f"Over-\nall\n{sum(counts.values())}", justify="right")
    columns = [*counts, ALL]
    for metric in _metrics(scores):
        view.add_row(_title(metric), *(_cell(scores[metric].get(name)) for name in columns))
        if metric == "accuracy" and len(spread.get(ALL, {}).get("per_run", ())) > 1:
            view.add_row("std over runs", *(_std(spread.get(name)) for name in columns))
    return view


def _metrics(scores: Mapping[str, Any]) -> list[str]:
    """Accuracy first, then retrieval, what chance would give right below; the rest is left to the summary."""
    precisions = [name for name in scores if name.startswith("precision@")]
    hidden = {"pass@1", *precisions[:-1]}
    return [name for name in scores if not name.startswith("accuracy_run") and name not in hidden]


def _title(metric: str) -> str:
    return {"mrr": "MRR"}.get(metric, metric.replace("random_", " at random: "))


def _cell(interval: Mapping[str, float] | None) -> str:
    if interval is None:
        return "-"
    return f"{100 * interval['estimate']:.1f}\n[dim]{100 * interval['low']:.0f}-{100 * interval['high']:.0f}[/dim]"


def _std(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{100 * spread['std']:.1f}"


def _caption(summary: Mapping[str, Any]) -> str:
    protocol, letters = summary["protocol"], summary["letters_named"]
    blocks = summary["referenced_block"]
    runs = "mean of {} answers".format(protocol["runs"]) if protocol["runs"] > 1 else "one answer"
    lines = [
        f"Top {protocol['k']}; accuracy: {runs} a question, guessing gives 25.",
        "Below each figure its 95% interval (bootstrap over personas).",
    ]
    if "mrr" in summary["scores"]:
        lines.insert(1, "Recall and precision: passages of the session that the question refers to.")
        if unsure := blocks["they_do_not"] + blocks["none"]:
            lines.insert(2, f"Which session that is, is not sure for {unsure} questions.")
    if letters["several"] or letters["none"]:
        lines.append(f"{letters['several']} answers name several letters, {letters['none']} none: they count as wrong.")
    return "\n".join(lines)
