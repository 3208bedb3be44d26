"""The summary of a run as tables for people, in the columns of the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

EXTRACTION = {
    "R": "recall",
    "Weighted R": "weighted_recall",
    "Target P": "target_accuracy",
    "Acc.": "weighted_accuracy",
    "FMR": "interference_accuracy",
    "F1": "memory_extraction_f1",
}
UPDATE = {label[0].upper(): f"{label}_update_memory_ratio" for label in ("correct", "hallucination", "omission")}
QA = {label[0].upper(): f"{label}_qa_ratio" for label in ("correct", "hallucination", "omission")}
LEXICAL = ("set_f1", "bleu1")

_Scores = Mapping[str, Mapping[str, Mapping[str, float] | None]]


def operations_table(summary: Mapping[str, Any]) -> Table:
    """Extraction, updating and question answering in percent; - where nothing was measured."""
    scores: _Scores = summary["scores"]
    view = _table(
        f"{summary['benchmark']}, {summary['system']}, {summary['mode']}: %",
        "95% intervals: bootstrap over users, or of the records of a single one. (all): failed judges count as not\n"
        "achieved; (valid): they are left out; one row where both are the same. F1 is defined for (all) only.",
    )
    for group, columns in (("extraction", EXTRACTION), ("update", UPDATE), ("questions", QA)):
        for name in columns:
            view.add_column(f"{group}\n{name}", justify="right")
    names = [*EXTRACTION.values(), *UPDATE.values(), *QA.values()]
    strict = [*EXTRACTION.values(), *UPDATE.values(), *(f"strict_{name}" for name in QA.values())]
    rows: dict[str, Sequence[str]] = {"qa judge": names}
    if any(name.startswith("strict_") for name in scores):
        rows["strict judge"] = strict
    for label, of in rows.items():
        for scope, cells in _scoped(scores, of, "all"):
            view.add_row(f"{label}{scope}", *cells)
    return view


def questions_table(summary: Mapping[str, Any]) -> Table:
    """Scores of questions by type, in percent, with the number of questions."""
    scores: _Scores = summary["scores"]
    counts: Mapping[str, int] = summary["questions"]["by_category"]
    evidence = summary["evidence"]
    view = _table(
        "questions by type: %",
        f"Questions: {summary['questions']['total']:,} in the file, {sum(counts.values()):,} asked. Recall and MRR: of the "
        f"{evidence['questions_with_evidence']:,} with evidence;\n{evidence['linked_to_turns']:,} of their "
        f"{evidence['memory_points']:,} memory points are linked to turns and scored.",
    )
    view.add_column("questions", justify="right")
    names = [*QA.values(), *(f"strict_{name}" for name in QA.values())]
    shown = [name for name in names if f"{name}(all)" in scores]
    plain = [name for name in scores if name in LEXICAL or name == "mrr" or name.startswith("recall@")]
    for name in [*shown, *plain]:
        strict, bare = name.startswith("strict_"), name.removeprefix("strict_")
        heading = {of: short for short, of in QA.items()}.get(bare, bare)
        view.add_column(f"strict\n{heading}" if strict else heading, justify="right")
    for category in [*counts, "all"]:
        count = sum(counts.values()) if category == "all" else counts[category]
        for number, (scope, cells) in enumerate(_scoped(scores, [*shown, *plain], category)):
            view.add_row(f"{category}{scope}", "" if number else f"{count:,}", *cells)
    return view


def point_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Where the memory points went, and how updates were found."""
    points = summary["points"]
    parts = [f"{points[name]:,} {name.replace('_', ' ')}" for name in ("judged", "not_judged", "failed", "not_reached")]
    yield f"memory points: {points['total']:,} = {' + '.join(parts)}; extracted memories: {points['extracted_memories']:,}"
    for name, by_category in summary["scores"].items():
        if name.startswith("update_recall@") and (interval := by_category["all"]) is not None:
            yield (
                f"updated points found among the first {name.partition('@')[2]}: {_percent(interval)}% of "
                f"{interval['count']:,} ({points['searched']:,} searched, the others are linked to no turn)"
            )


def cost_line(summary: Mapping[str, Any]) -> str:
    """What the run came to: calls and tokens by stage over all runs, and what this one asked for."""
    parts = []
    for stage in ("ingest", "answer", "judge"):
        cost = summary["cost"][stage]
        if cost["calls"]:
            parts.append(
                f"{stage}: {cost['calls']:,} calls ({cost['cached']:,} cached), "
                f"{cost['prompt_tokens']:,} + {cost['completion_tokens']:,} tokens"
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
    accepts, rejects = (
        "an unknown share" if interval is None else f"{_percent(interval)}%"
        for interval in (probe["false_accept"], probe["false_reject"])
    )
    failures = f", fails on {probe['errors']}" if probe["errors"] else ""
    found = f"accepts {accepts} of the wrong answers, rejects {rejects} of the right ones"
    return f"{probe['judge']} judge on probes: {found}{failures}"


def failure_line(summary: Mapping[str, Any]) -> str:
    """What failed, with the first reason."""
    failures = summary["failures"]
    stages = ", ".join(f"{count:,} in {stage}" for stage, count in failures["by_stage"].items())
    return (
        f"{failures['count']:,} failures ({stages}), which the same command tries again; the first: {failures['first'][0]}"
    )


def _table(title: str, caption: str) -> Table:
    view = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, title=title, caption=caption)
    view.add_column("")
    return view


def _scoped(scores: _Scores, names: Sequence[str], category: str) -> Iterator[tuple[str, list[str]]]:
    """One row, or two where failed judges make a difference. Metrics that have no scope stand in the first."""
    every = [_cell(scores.get(f"{name}(all)", scores.get(name)), category) for name in names]
    valid = [_cell(scores.get(f"{name}(valid)"), category) for name in names]
    if all(valid[number] == every[number] for number, name in enumerate(names) if f"{name}(all)" in scores):
        yield "", every
    else:
        yield " (all)", every
        yield " (valid)", valid


def _cell(by_category: Mapping[str, Mapping[str, float] | None] | None, category: str) -> str:
    interval = None if by_category is None else by_category.get(category)
    if interval is None:
        return "-"
    return f"{100 * interval['estimate']:.1f}\n[dim]{100 * interval['low']:.1f}-{100 * interval['high']:.1f}[/dim]"


def _percent(interval: Mapping[str, float]) -> str:
    return f"{100 * interval['estimate']:.1f} ({100 * interval['low']:.1f}-{100 * interval['high']:.1f})"
