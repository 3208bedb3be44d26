"""The comparison on the terminal: headlines and the weightiest warnings, or with ``full`` every table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from eval.compare.conditions import Card, bounds, cards, shared_warnings, tokens
from eval.compare.layouts import BASELINES
from eval.compare.runs import FinishedRun
from eval.compare.tables import Cell, Comparison, Row, Table, compare

_STYLES = {"ours": "bold", "missing": "yellow", "published": "dim"}
_WIDE = 8
"""Tables with more columns than this show no intervals; the page does."""

LINES = 36
"""Lines of one benchmark, as long as its table of headlines leaves room for any warnings."""


def print_comparison(runs: Sequence[FinishedRun], console: Console, *, page: Path | None = None, full: bool = False) -> None:
    """Print runs, benchmark by benchmark.

    Args:
        runs: What is compared.
        console: Where it is printed.
        page: Where the page is that has everything; None if there is none.
        full: Whether all warnings and tables are printed, as on the page.
    """
    for section in compare(runs).values():
        console.rule(Text(section.title))
        table = headline_table(section)
        console.print(table)
        lines = LINES - len(console.render_lines(table))
        sentences = list(_sentences(section))
        shown = sentences if full else _fitting(sentences, lines, console.width)
        for sentence in shown:
            console.print(Text(sentence, style="yellow"), soft_wrap=False)
        if len(shown) < len(sentences):
            console.print(Text(f"{len(sentences) - len(shown)} more warnings are on the page and in --full", style="yellow"))
        if full:
            for paper in [*section.papers, *section.tables]:
                console.print(rich_table(paper))
            for sentence in _remarks(section.papers):
                console.print(Text(sentence, style="dim"))
    if page is not None:
        console.print(Text(f"every table, chart and question: {page}"), soft_wrap=True)
    elif not full:
        console.print(Text("--out page.html writes every table, chart and question; --full prints the tables"))


def headline_table(section: Comparison) -> RichTable:
    """A row for each run: the score that stands for it, and what that must not be read without."""
    shown = cards(section.runs)
    metrics = {card.metric for card in shown if card.metric}
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("run", overflow="fold", ratio=1)
    table.add_column(f"{metrics.pop()}, %".replace(" ", "\n", 1) if len(metrics) == 1 else "score, %", justify="right")
    for name in ("95%", "n", "failed", "context\ntokens", "judge\nwrong, %"):
        table.add_column(name, justify="right", no_wrap=True)
    for card in shown:
        table.add_row(*(Text(text) for text in _headline_row(card, several=bool(metrics))), style=_STYLES["ours"])
    there = {run.summary.system for run in section.runs}
    if missing := [system for system in BASELINES if system not in there]:
        table.add_row(Text(f"not run: {', '.join(missing)}"), style=_STYLES["missing"])
    return table


def _headline_row(card: Card, *, several: bool) -> Iterator[str]:
    headline, system = card.run.headline, card.run.summary.system
    yield card.run.title if system in card.run.name else f"{card.run.title}, {system}"
    yield f"{card.percent}\n{card.metric}" if several else card.percent
    yield bounds(card.score)
    yield (
        f"{headline.n:,}"
        if headline.n == headline.of
        else f"{headline.n:,}/{'?' if headline.of is None else f'{headline.of:,}'}"
    )
    yield f"{headline.failures:,}" + (f"\n{headline.silent:,} silent" if headline.silent else "")
    yield tokens(headline)
    error = headline.judge_error
    rates = [] if error is None else [error.get("false_accept"), error.get("false_reject")]
    yield " / ".join("-" if rate is None else f"{100 * rate.estimate:.0f}" for rate in rates)


def _sentences(section: Comparison) -> Iterator[str]:
    """All warnings, what weighs most first: withheld scores, other conditions, what each run lacks."""
    shown = cards(section.runs)
    yield from _by_run((f"withheld: {why}", card) for card in shown if (why := card.run.headline.withheld))
    yield from (f"all runs: {sentence}" for sentence in shared_warnings(section.runs))
    yield from section.differences
    yield from _by_run((sentence, card) for card in shown for sentence in card.warnings)


def _by_run(sentences: Iterable[tuple[str, Card]]) -> Iterator[str]:
    """Each sentence once, after the names of the runs that it is about."""
    names: dict[str, list[str]] = {}
    for sentence, card in sentences:
        names.setdefault(sentence, []).append(card.run.name)
    yield from (f"{', '.join(of)}: {sentence}" for sentence, of in names.items())


def _fitting(sentences: Sequence[str], lines: int, width: int) -> list[str]:
    """The first sentences that fit into so many lines, at least one."""
    shown: list[str] = []
    for sentence in sentences:
        lines -= cell_len(sentence) // max(1, width - 15) + 1  # a broken line is not full
        if lines < 0 and shown:
            break
        shown.append(sentence)
    return shown


def rich_table(table: Table) -> RenderableType:
    """Lay a table out, split by measure where it asks for it; published rows follow a line and are marked."""
    if not table.by_measure:
        return _part(table, list(range(len(table.columns))), table.title)
    parts = []
    for measure in dict.fromkeys(column.measure for column in table.columns):
        columns = [number for number, column in enumerate(table.columns) if column.measure == measure]
        parts.append(_part(table, columns, f"{table.title}: {table.columns[columns[0]].heading}"))
    return Group(*parts)


def _part(table: Table, columns: Sequence[int], title: str) -> RichTable:
    caption = escape(" ".join(text for text in (table.banner, table.note) if text))
    part = RichTable(title=escape(title), caption=caption or None, title_justify="left", caption_justify="left")
    part.add_column("", min_width=24, overflow="fold")
    for number in columns:
        column = table.columns[number]
        heading = "" if table.by_measure else column.heading
        part.add_column(Text(f"{column.title}\n{heading}".strip()), justify="right", overflow="fold")
    compact = len(columns) > _WIDE
    before = ("", "")
    for row in _shown(table, columns):
        if (row.kind, row.source) != before:
            part.add_section()
            if row.source:
                part.add_row(Text(f"published: {row.source.partition(';')[0]}", style="italic"), style=_STYLES[row.kind])
        before = (row.kind, row.source)
        cells = [row.cells[number] for number in columns]
        texts = ["" if cell is None else cell.text if compact else f"{cell.text}\n{cell.small}".strip() for cell in cells]
        part.add_row(_label(row, cells, split=table.by_measure), *(Text(text) for text in texts), style=_STYLES[row.kind])
    return part


def _shown(table: Table, columns: Sequence[int]) -> Iterator[Row]:
    for row in table.rows:
        if row.kind == "missing" or any(row.cells[number] for number in columns):
            yield row


def _label(row: Row, cells: Sequence[Cell | None], *, split: bool) -> Text:
    if row.kind == "missing":
        return Text(f"{row.label}: not run")
    if row.kind == "published":
        return Text(f"{row.label}{' (?)' if row.detail else ''}")
    detail = next((cell.metric for cell in cells if cell is not None), "") if split else row.detail
    return Text(row.label).append(f"\n{detail}" if detail else "", style="dim")


def _remarks(tables: Sequence[Table]) -> Iterator[str]:
    """What is too long for a cell: commands for what was not run, conditions of the sources, doubts."""
    rows = [row for table in tables for row in table.rows]
    yield from dict.fromkeys(f"{row.label} {row.detail}" for row in rows if row.kind == "missing")
    yield from dict.fromkeys(f"published: {row.source}" for row in rows if row.kind == "published")
    yield from dict.fromkeys(
        f"(?) {row.label}, {row.source.partition(';')[0]}, {row.detail}"
        for row in rows
        if row.kind == "published" and row.detail
    )
