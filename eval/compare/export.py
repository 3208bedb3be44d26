"""A comparison for other programs: every score as CSV, and the tables in the papers' layout as LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer
from eval.compare.conditions import Card, cards, metric_label, questions, tokens
from eval.compare.layouts import LAYOUTS, Column, Layout, Variant, by_category
from eval.compare.runs import FinishedRun, by_family
from eval.compare.tables import OTHER_DATA, WITHHELD, Cell, layout_table
from eval.metrics import Interval
from eval.summary import ALL


def write_csv(runs: Sequence[FinishedRun], path: Path) -> None:
    """Write a line for every score of every run; scores that are withheld have a reason instead of numbers.

    Raises:
        DeltaMemError: If the file cannot be written.
    """
    rows = [row for run in runs for row in _scores(run)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _write(path, text.getvalue())


def _scores(run: FinishedRun) -> Iterator[dict[str, Any]]:
    summary, headline = run.summary, run.headline
    about = {
        "context_tokens": headline.context_tokens,
        "failures": headline.failures,
        "silent": headline.silent,
        "partial": f"{summary.partial['done']} of {summary.partial['questions'] or 'unknown'}" if summary.partial else "",
        "published_data": run.published_data,
        "data_sha256": summary.data.get("sha256"),
        **{f"{part}_model": name for part, name in summary.making.models.items()},
        "without": run.lacks.removeprefix("without "),
        "commit": summary.making.git_commit,
    }
    of_run = {"run": run.name, "benchmark": summary.benchmark, "system": summary.system, "mode": summary.mode}
    for metric, scores in summary.scores.items():
        for category, interval in scores.items():
            named = {"metric": metric, "category": category}
            yield of_run | named | _numbers(run, metric, interval) | {"budget": ""} | about
    for point in summary.budgets:
        for metric, interval in point.scores.items():
            at_budget = {"budget": point.budget} | about | {"context_tokens": point.context_tokens}
            yield of_run | {"metric": metric, "category": ALL} | _numbers(run, metric, interval) | at_budget


def _numbers(run: FinishedRun, metric: str, interval: Interval | None) -> dict[str, Any]:
    reason = run.summary.withheld.get(metric, "")
    shown = None if reason else interval
    return {
        "score": "" if shown is None else shown.estimate,
        "low": "" if shown is None else shown.low,
        "high": "" if shown is None else shown.high,
        "n": 0 if interval is None else interval.count,
        "groups": 0 if interval is None else interval.groups,
        "withheld": reason,
    }


def write_latex(runs: Sequence[FinishedRun], path: Path) -> None:
    """Write a document with a table for each benchmark: the columns of the paper, a row for each run.

    Raises:
        DeltaMemError: If the file cannot be written.
    """
    tables = "\n\n".join(_latex_table(group) for group in by_family(runs).values())
    _write(path, f"{_PREAMBLE}\n\\begin{{document}}\n\n{tables}\n\n\\end{{document}}\n")


_PREAMBLE = r"""% Tables of python -m eval compare --latex; pdflatex compiles this file as it is. For a paper of your own
% take the table environments and the packages.
\documentclass{article}
\usepackage[a4paper, landscape, margin=2cm]{geometry}
\usepackage[T1]{fontenc}
\usepackage{booktabs}
\usepackage{graphicx}"""


def _latex_table(runs: Sequence[FinishedRun]) -> str:
    layout = LAYOUTS[runs[0].family][0] if runs[0].family in LAYOUTS else _plain_layout(runs)
    (variant, *_) = layout.variants
    table = layout_table(replace(layout, variants=(variant,), note=""), runs)
    headings, rules, start = [], [], 2
    for title, width in table.groups():
        headings.append(rf"\multicolumn{{{width}}}{{{'c' if width > 1 else 'r'}}}{{{escape(title)}}}")
        rules += [rf"\cmidrule(lr){{{start}-{start + width - 1}}}"] if width > 1 else []
        start += width
    lines = [["", *headings]]
    if any(column.heading for column in table.columns):
        lines.append([f"{' '.join(rules)}\n", *(escape(column.heading) for column in table.columns)])
    measured = [row for row in table.rows if row.detail == variant.label]
    rows = [[escape(row.label), *map(_latex_cell, table.columns, row.cells)] for row in measured]
    caption = f"{table.title}, in percent ({variant.label or metric_label(runs[0].headline.metric) or 'scores'})."
    if other := [run.name for run in runs if not run.published_data]:
        caption += f" {OTHER_DATA} That is so for: {', '.join(other)}."
    notes = [_note(card) for card in cards(runs)] + ([table.note] if table.note else [])
    return "\n".join(
        [
            r"\begin{table}[p]",
            r"\centering",
            rf"\caption{{{escape(caption)}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
            r"\toprule",
            *(" & ".join(line) + r" \\" for line in lines),
            r"\midrule",
            *(" & ".join(row) + r" \\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}}",
            r"\par\medskip\raggedright\footnotesize",
            *(rf"{escape(note)}\par" for note in notes),
            r"\end{table}",
        ]
    )


def _plain_layout(runs: Sequence[FinishedRun]) -> Layout:
    """For a benchmark that no paper's table is known of: the headline score by category."""
    metric = next((run.headline.metric for run in runs if run.headline.metric), "")
    counts = {name: count for run in runs for name, count in run.summary.questions.by_category.items()}
    columns = by_category("score", counts, {name: name.replace("_", " ") for name in counts})
    overall = Column(ALL, "score", "Overall")
    return Layout(runs[0].family, "by category", (*columns, overall), (Variant("", {"score": metric}),))


def _latex_cell(column: Column, cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.text == WITHHELD:
        return r"\textit{withheld}"
    interval = cell.small.partition("\n")[0] if column.group == ALL else ""
    return escape(cell.text) + (rf" {{\tiny {escape(interval)}}}" if interval else "")


def _note(card: Card) -> str:
    headline = card.run.headline
    parts = [f"n = {questions(headline)}", f"{headline.failures:,} failures", f"{headline.silent:,} silent answers"]
    parts += [f"{tokens(headline)} context tokens an answer"] if tokens(headline) else []
    parts += [f"{name} of the judge {value}" for name, value in card.facts.items() if name.startswith("false ")]
    parts += [f"headline withheld: {headline.withheld}"] if headline.withheld else []
    return f"{card.run.name}: {'; '.join(parts)}."


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "\u2013": "--",
    "\u2026": r"\dots{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}


def escape(text: str) -> str:
    """Text that LaTeX sets as it is; letters that pdflatex's usual fonts lack become question marks."""
    known = re.sub(r"[^\x20-\x7e\u00a1-\u017e\u2013\u2026]", "?", " ".join(text.split()))
    return "".join(_SPECIAL.get(char, char) for char in known)


def _write(path: Path, text: str) -> None:
    try:
        with atomic_writer(path) as file:
            file.write(text)
    except OSError as error:
        raise DeltaMemError(f"{path}: cannot be written: {error.strerror or error}") from error
