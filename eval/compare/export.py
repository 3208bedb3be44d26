"""A comparison for other programs: every score as CSV, and the tables in the papers' layout as LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from deltamem.html import write_page
from eval.compare.conditions import metric_label
from eval.compare.layouts import LAYOUTS, Cell, Column, Table
from eval.compare.runs import FinishedRun
from eval.compare.tables import OTHER_DATA, WITHHELD, Comparison, compare, layout_of_scores, paper_table
from eval.summary import ALL


def write_csv(runs: Sequence[FinishedRun], path: Path) -> None:
    """Write a line for every score of every run; scores that are withheld have a reason instead of numbers.

    Raises:
        DeltaMemError: If the file cannot be written.
    """
    rows = [row for run in runs for row in _scores(run)]
    text = io.StringIO()
    writer = csv.DictWriter(text, dict.fromkeys(name for row in rows for name in row), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_page(path, text.getvalue())


def _scores(run: FinishedRun) -> Iterator[dict[str, Any]]:
    summary, headline = run.summary, run.headline
    at_budgets = [
        (point.budget, point.context_tokens, {name: {ALL: score} for name, score in point.scores.items()}, point.withheld)
        for point in summary.budgets
    ]
    for budget, tokens, scores, withheld in [("", headline.context_tokens, summary.scores, {}), *at_budgets]:
        for metric, category in [(metric, category) for metric, of in scores.items() for category in of]:
            interval = scores[metric][category]
            reason = summary.withheld.get(metric) or withheld.get(metric)
            shown = None if reason else interval
            yield {
                "run": run.name,
                "benchmark": summary.benchmark,
                "system": summary.system,
                "mode": summary.mode,
                "metric": metric,
                "category": category,
                "score": shown and shown.estimate,
                "low": shown and shown.low,
                "high": shown and shown.high,
                "n": interval.count if interval else 0,
                "groups": interval.groups if interval else 0,
                "withheld": reason,
                "budget": budget,
                "context_tokens": tokens,
                "failures": headline.failures,
                "silent": headline.silent,
                "partial": summary.partial and f"{summary.partial['done']} of {summary.partial['questions']}",
                "published_data": run.published_data,
                "data_sha256": summary.data.get("sha256"),
                **{f"{part}_model": name for part, name in summary.making.models.items()},
                "without": run.lacks.removeprefix("without "),
                "commit": summary.making.git_commit,
            }


def write_latex(runs: Sequence[FinishedRun], path: Path) -> None:
    """Write a document with a table for each benchmark: the columns of the paper, a row for each run.

    Raises:
        DeltaMemError: If the file cannot be written.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        block_start_string="<%",  # braces are TeX's
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
    )
    environment.filters["tex"] = escape
    tables = [_latex_table(section) for section in compare(runs).values()]
    write_page(path, environment.get_template("tables.tex.j2").render(tables=tables))


def _latex_table(section: Comparison) -> tuple[str, Table, list[list[str]], list[str]]:
    """What `tables.tex.j2` shows of a benchmark: caption, table, cells of each row as LaTeX, notes."""
    runs, family = section.runs, section.runs[0].family
    metric = next((run.headline.metric for run in runs if run.headline.metric), "")
    layout = LAYOUTS[family][0] if family in LAYOUTS else layout_of_scores("by category", runs, [metric])
    (variant, *_) = layout.variants
    table = paper_table(replace(layout, variants=(variant,), note=""), runs)
    measured = [row for row in table.rows if row.detail == variant.label]  # not what an audit found
    rows = [[escape(row.label), *map(_latex_cell, table.columns, row.cells)] for row in measured]
    caption = f"{table.title}, in percent ({metric_label(variant.label) or metric_label(metric) or 'scores'})."
    if other := [run.name for run in runs if not run.published_data]:
        caption += f" {OTHER_DATA} That is so for: {', '.join(other)}."
    notes = [table.note] if table.note else []
    for card in section.cards:
        facts = [f"{name}: {value}" for name, value in card.facts.items()]
        facts += [f"headline withheld: {card.run.headline.withheld}"] if card.run.headline.withheld else []
        notes.append(f"{card.run.name}. {'; '.join(facts)}.")
    return caption, table, rows, notes


def _latex_cell(column: Column, cell: Cell | None) -> str:
    if cell is None or cell.text == WITHHELD:
        return r"\textit{withheld}" if cell else ""
    interval = cell.small.partition("\n")[0] if column.group == ALL else ""
    return escape(cell.text) + (rf" {{\tiny {escape(interval)}}}" if interval else "")


_SPECIAL: dict[str, str | int | None] = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {char: f"\\{char}" for char in "&%$#_{}"}


def escape(text: str) -> str:
    """Text that LaTeX sets as it is in T1; letters that its usual fonts lack become question marks."""
    known = re.sub(r"[^\x20-\x7e\u00a1-\u017e\u2013\u2026]", "?", " ".join(text.split()))
    return known.translate(str.maketrans(_SPECIAL))
