"""How the command of a benchmark ends: tables on the screen, the page, what it cost, what failed, the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    console: Console,
    *,
    lines: Iterable[str] = (),
    failures: Iterable[str] = (),
) -> int:
    """Show the result, write the page and say what failed.

    Args:
        out: The output folder, with its summary written.
        summary: The summary.
        tables: Shown first; None is left out.
        console: Where the result is shown.
        lines: What the benchmark says besides, after the tables.
        failures: What it says of its failures besides, on stderr.

    Returns:
        The exit code: 0, or 1 if something failed.

    Raises:
        DeltaMemError: If the page cannot be written; the records are there all the same.
    """
    for table in tables:
        if table is not None:
            console.print(table)
    page = write_report([out], out / REPORT_FILE)
    said = [*lines, *(probe_line(probe) for probe in summary["probes"]), cost_line(summary)]
    _say(console, [*said, f"{summary['version']}; every question: {page}"])
    if not summary["failures"]["count"]:
        return 0
    _say(Console(stderr=True), [*failures, *failure_lines(summary)])
    return FAILED


def cost_line(summary: Mapping[str, Any]) -> str:
    """What the run came to: calls and tokens by stage over all runs, and what this one asked for."""
    stages = {stage: [summary["cost"][stage]] for stage in ("ingest", "answer", "judge")}
    stages["probes"] = [probe["cost"] for probe in summary["probes"]]
    parts = []
    for stage, costs in stages.items():
        calls, cached, read, written = (
            sum(cost[name] for cost in costs) for name in ("calls", "cached", "prompt_tokens", "completion_tokens")
        )
        if calls:
            parts.append(f"{stage}: {calls:,} calls ({cached:,} cached), {read:,} + {written:,} tokens")
    if unreadable := summary["sessions"]["unreadable"]:
        parts.append(
            f"{unreadable:,} of {summary['sessions']['total']:,} sessions brought no readable answer of the manager"
        )
    if summary["queries_per_memory"] is not None:
        parts.append(f"{summary['queries_per_memory']:.2f} queries per memory")
    if shown := summary["context_tokens"]:
        parts.append(f"context: {shown['mean']:,.0f} tokens an answer")
    requests = sum(usage["requests"] for usage in summary["this_run"].values())
    parts.append(f"this run: {requests:,} requests, {sum(summary['seconds'].values()):.0f} s")
    return "; ".join(parts)


def probe_line(probe: Mapping[str, Any]) -> str:
    """How often a judge is wrong on answers that are known to be right or wrong."""
    failures = f", fails on {probe['errors']}" if probe["errors"] else ""
    return (
        f"{probe['judge']} judge on probes: accepts {_share(probe['false_accept'])} of the wrong answers, "
        f"rejects {_share(probe['false_reject'])} of the right ones{failures}"
    )


def failure_lines(summary: Mapping[str, Any]) -> list[str]:
    """What failed: how much of it in which stage, and the first of each kind."""
    failures = summary["failures"]
    stages = ", ".join(f"{count:,} in {stage}" for stage, count in failures["by_stage"].items())
    firsts: dict[str, str] = {}
    for reason in failures["first"]:
        firsts.setdefault(reason.partition(":")[0], reason)
    head = f"{failures['count']:,} failures ({stages}); the same command tries again what can be tried; the first:"
    return [head, *firsts.values()]


def _share(interval: Mapping[str, float] | None) -> str:
    if interval is None:
        return "an unknown share"
    return f"{100 * interval['estimate']:.0f}% ({100 * interval['low']:.0f}-{100 * interval['high']:.0f})"


def _say(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
