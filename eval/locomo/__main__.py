"""``python -m eval.locomo system=naive_rag`` or ``system=deltamem``: evidence recall of a memory system on LoCoMo.

Exit code 0; 1 if sessions could not be taken in (they are counted, the others are kept); 2 for bad input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from deltamem.cli import run_hydra, validated
from eval.locomo.evaluate import evaluate
from eval.locomo.settings import LocomoConfig

if TYPE_CHECKING:
    from omegaconf import DictConfig


def table(summary: dict[str, Any]) -> Table:
    """Recall by category as a table for people."""
    groups: dict[str, dict[str, Any]] = summary["groups"]
    cutoffs = list(groups["all"]["recall_per_question"])
    view = Table(
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        title=f"{summary['benchmark']}, {summary['system']}: evidence recall@k in %",
        caption=(
            "Mean over questions, below it the 95% interval (bootstrap over conversations).\n"
            "Questions: scored/asked; those without usable evidence are not scored."
        ),
    )
    view.add_column("category", no_wrap=True)
    view.add_column("questions", justify="right")
    for k in cutoffs:
        view.add_column(f"@{k}", justify="right")
    for name, group in groups.items():
        cells = [_cell(group["recall_per_question"][k]) for k in cutoffs]
        view.add_row(name, f"{group['scored']}/{group['questions']}", *cells, end_section=name == "all")
    micro = [_cell(groups["all"]["recall_micro"][k]) for k in cutoffs]
    view.add_section()
    view.add_row("all, micro", f"{groups['all']['evidence_turns']} turns", *micro)
    return view


def _cell(interval: dict[str, float] | None) -> str:
    if interval is None:
        return "-"
    return f"{100 * interval['estimate']:.1f}\n[dim]{100 * interval['low']:.1f}-{100 * interval['high']:.1f}[/dim]"


def ingest_line(ingest: dict[str, Any]) -> str:
    """What reading the sessions came to, in one line for people."""
    sessions, tokens = ingest["sessions"], ingest["tokens"]
    counts = ", ".join(f"{sessions[outcome]} {outcome}" for outcome in ("applied", "unreadable", "failed"))
    cost = f"{ingest['calls']} calls ({ingest['cached']} cached), {tokens['prompt']:,} + {tokens['completion']:,} tokens"
    return f"{ingest['model']}: {sessions['total']} sessions, {counts}; {cost}"


def main(config: DictConfig) -> int:
    """Entry of the command; returns its exit code."""
    options = validated(config, LocomoConfig)
    console = Console()
    summary = evaluate(options, console)
    console.print(table(summary))
    ingest = summary["ingest"]
    if ingest:
        console.print(ingest_line(ingest), markup=False, highlight=False)
    console.print(f"{sum(summary['seconds'].values()):.0f} s; records and summary in {options.out}")
    if not summary["failed_sessions"]:
        return 0
    first = ingest["failures"][0]
    Console(stderr=True).print(
        f"{summary['failed_sessions']} sessions failed and are tried again by the same command; the first, "
        f"{first['session']} for {first['owner']}: {first['reason']}",
        markup=False,
        highlight=False,
    )
    return 1


if __name__ == "__main__":
    run_hydra(main, "locomo")
