"""A comparison elsewhere than on its page: headlines on the terminal, all scores as CSV, the papers' tables as LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from deltamem.html import page_templates, write_page
from eval.compare.runs import Card, FinishedRun, bounds, metric_label
from eval.compare.tables import (
    BASELINES,
    LAYOUTS,
    OTHER_DATA,
    WITHHELD,
    Cell,
    Column,
    Comparison,
    Table,
    compare,
    layout_of_scores,
    paper_table,
)
from eval.summary import ALL

_LINES = 36  # Of one benchmark, as long as its table of headlines leaves room for any warnings


def print_comparison(runs: Sequence[FinishedRun], console: Console, *, page: Path | None = None) -> None:
    """Print runs, benchmark by benchmark; `page` is where everything is."""
    for section in compare(runs).values():
        console.rule(Text(section.title))
        headlines = _headline_table(section)
        console.print(headlines)
        sentences = list(_sentences(section))
        shown = _fitting(sentences, _LINES - len(console.render_lines(headlines)), console.width)
        if len(shown) < len(sentences):
            shown.append(f"{len(sentences) - len(shown)} more warnings are on the page")
        for sentence in shown:
            console.print(Text(sentence, style="yellow"), soft_wrap=False)
    where = f"every table, chart and question: {page}" if page else "--out page.html writes every table, chart and question"
    console.print(Text(where), soft_wrap=True)


def _headline_table(section: Comparison) -> TerminalTable:
    """A row for each run: the score that stands for it, and what that must not be read without."""
    metrics = {card.metric for card in section.cards if card.metric}
    table = TerminalTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("run", overflow="fold", ratio=1)
    score = f"{metrics.pop()}, %".replace(" ", "\n", 1) if len(metrics) == 1 else "score, %"
    for name in (score, "95%", "n", "failed", "context\ntokens", "judge\nwrong, %"):
        table.add_column(name, justify="right", no_wrap=name != score)
    for card in section.cards:
        table.add_row(*(Text(text) for text in _headline_row(card, several=bool(metrics))), style="bold")
    there = {run.summary.system for run in section.runs}
    if missing := [system for system in BASELINES if system not in there]:
        table.add_row(Text(f"not run: {', '.join(missing)}"), style="yellow")
    return table


def _headline_row(card: Card, *, several: bool) -> Iterator[str]:
    headline, system = card.run.headline, card.run.summary.system
    yield card.run.title if system in card.run.name else f"{card.run.title}, {system}"
    yield f"{card.percent}\n{card.metric}" if several else card.percent
    yield bounds(headline.shown)
    yield f"{headline.n:,}" if headline.n == headline.of else f"{headline.n:,}/{headline.of:,}"
    yield f"{headline.failures:,}" + (f"\n{headline.silent:,} silent" if headline.silent else "")
    yield card.facts.get("context tokens", "")
    rates = [rate and f"{100 * rate.estimate:.0f}" for rate in (headline.judge_error or {}).values()]
    yield " / ".join(rate or "-" for rate in rates)


def _sentences(section: Comparison) -> Iterator[str]:
    """All warnings, what weighs most first: withheld scores, other conditions, what each run lacks."""
    of_runs: dict[str, list[str]] = {}
    for card in section.cards:
        if why := card.run.headline.withheld:
            of_runs.setdefault(f"withheld: {why}", []).append(card.run.name)
    of_runs |= {f"all runs: {sentence}": [] for sentence in section.shared_warnings}
    of_runs |= {sentence: [] for sentence in section.differences}
    for card in section.cards:
        for sentence in card.warnings:
            of_runs.setdefault(sentence, []).append(card.run.name)
    yield from (f"{', '.join(names)}: {sentence}" if names else sentence for sentence, names in of_runs.items())


def _fitting(sentences: Sequence[str], lines: int, width: int) -> list[str]:
    """The first sentences that fit into so many lines, at least one."""
    shown: list[str] = []
    for sentence in sentences:
        lines -= cell_len(sentence) // max(1, width - 15) + 1  # a broken line is not full
        if lines < 0 and shown:
            break
        shown.append(sentence)
    return shown


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
    # Braces are TeX's
    environment = page_templates(Path(__file__).parent).overlay(
        "<%", "%>", "<<", ">>", lstrip_blocks=False, keep_trailing_newline=True, autoescape=False
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
