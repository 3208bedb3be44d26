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
OUTCOMES = {"C": "correct", "H": "hallucination", "O": "omission"}
UPDATE = [f"{label}_update_memory_ratio" for label in OUTCOMES.values()]
QA = [f"{label}_qa_ratio" for label in OUTCOMES.values()]
STRICT_QA = [f"strict_{name}" for name in QA]
SCOPES = "(all): failed judges count as not achieved; (valid): left out; one row where both are the same."

_Scores = Mapping[str, Mapping[str, Mapping[str, float] | None]]


def extraction_table(summary: Mapping[str, Any]) -> Table:
    """Extraction in percent; - for systems that extract nothing."""
    view = _table(f"{summary['benchmark']}, {summary['system']}: extraction, %", SCOPES + "\nF1 is defined for (all) only.")
    for heading in EXTRACTION:
        view.add_column(heading, justify="right")
    for scope, cells in _scoped(summary["scores"], list(EXTRACTION.values()), "all"):
        view.add_row(scope, *cells)
    return view


def outcomes_table(summary: Mapping[str, Any]) -> Table:
    """Updates and answers that are correct (C), hallucinated (H) or omitted (O), in percent."""
    scores: _Scores = summary["scores"]
    counts: Mapping[str, int] = summary["questions"]["by_category"]
    judges = {name: heading for name, heading in (("qa", ""), ("qa_strict", "strict ")) if name in summary["aggregate"]}
    view = _table(f"{summary['benchmark']}, {summary['system']}: updating and questions, %", SCOPES)
    view.add_column("n", justify="right")
    for heading in judges.values():
        for short in OUTCOMES:
            view.add_column(f"{heading}{short}", justify="right")
    names = [name for judge in judges for name in (QA if judge == "qa" else STRICT_QA)]
    updates = next(iter(summary["aggregate"].values()))["counts"]["update"]["all"]
    for scope, cells in _scoped(scores, UPDATE, "all"):
        view.add_row(f"updating{scope}", f"{updates:,}", *cells)
    view.add_section()
    for category in [*counts, "all"]:
        count = sum(counts.values()) if category == "all" else counts[category]
        label = "all questions" if category == "all" else category
        for scope, cells in _scoped(scores, names, category):
            view.add_row(f"{label}{scope}", f"{count:,}", *cells)
    return view


def retrieval_table(summary: Mapping[str, Any]) -> Table | None:
    """Recall of memory points and lexical scores by type of question, in percent; None if nothing of it was measured."""
    scores: _Scores = summary["scores"]
    counts: Mapping[str, int] = summary["questions"]["by_category"]
    evidence = summary["evidence"]
    names = [name for name in scores if name in ("set_f1", "bleu1", "mrr") or name.startswith("recall@")]
    if not names:
        return None
    view = _table(
        f"{summary['benchmark']}, {summary['system']}: recall of memory points and lexical scores, %",
        f"Questions: {summary['questions']['total']:,} in the file, {sum(counts.values()):,} asked, "
        f"{evidence['questions_with_evidence']:,} with evidence;\n{evidence['linked_to_turns']:,} of their "
        f"{evidence['memory_points']:,} memory points are linked to turns and scored.",
    )
    view.add_column("n", justify="right")
    for name in names:
        view.add_column(name, justify="right")
    for category in [*counts, "all"]:
        count = sum(counts.values()) if category == "all" else counts[category]
        view.add_row(category, f"{count:,}", *(_cell(scores[name], category) for name in names))
    return view


def point_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Where the memory points went, how updates were found, and what was searched in a memory out of order."""
    points = summary["points"]
    parts = [f"{points[name]:,} {name.replace('_', ' ')}" for name in ("judged", "not_judged", "failed", "not_reached")]
    yield f"memory points: {points['total']:,} = {' + '.join(parts)}; extracted memories: {points['extracted_memories']:,}"
    for name, by_category in summary["scores"].items():
        if name.startswith("update_recall@") and (interval := by_category["all"]) is not None:
            yield (
                f"updated points found among the first {name.partition('@')[2]}: {_percent(interval)}% of "
                f"{interval['count']:,} ({points['searched']:,} searched, the others are linked to no turn)"
            )
    late, lacking = (summary["out_of_order"][name] for name in ("after_later_sessions", "without_earlier_sessions"))
    if late:
        yield f"{late:,} searches came after later sessions, because they or their session had failed before"
    if lacking:
        yield f"{lacking:,} searches came without earlier sessions, which had failed; a new folder begins anew"


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
    return f"{100 * interval['estimate']:.1f}\n[dim]{100 * interval['low']:.0f}-{100 * interval['high']:.0f}[/dim]"


def _percent(interval: Mapping[str, float]) -> str:
    return f"{100 * interval['estimate']:.1f} ({100 * interval['low']:.1f}-{100 * interval['high']:.1f})"
