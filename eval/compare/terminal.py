"""The comparison on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from eval.compare.runs import FinishedRun
from eval.compare.tables import Cell, Row, Table, compare

_STYLES = {"ours": "bold", "missing": "yellow", "published": "dim"}
_WIDE = 8
"""Tables with more columns than this show no intervals; the page does."""


def print_comparison(runs: Sequence[FinishedRun], console: Console) -> None:
    """Print runs, benchmark by benchmark: warnings, the papers' tables, all scores, differences, cost, judges."""
    for section in compare(runs).values():
        console.rule(Text(section.title))
        for run in section.runs:
            console.print(Text(f"{run.name}: {run.summary.system}, {run.summary.mode}, {run.summary.version}"))
        if section.differences:
            console.print(Text("These runs were not made under the same conditions:", style="bold yellow"))
        for sentence in [*section.differences, *section.warnings]:
            console.print(Text(f"  {sentence}", style="yellow"))
        for table in [*section.papers, *section.tables]:
            console.print(rich_table(table))
        for sentence in _remarks(section.papers):
            console.print(Text(sentence, style="dim"))


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
    part = RichTable(title=escape(title), caption=escape(table.note) or None, title_justify="left", caption_justify="left")
    part.add_column("", min_width=24, overflow="fold")
    for number in columns:
        column = table.columns[number]
        heading = "" if table.by_measure else column.heading
        part.add_column(Text(f"{column.title}\n{heading}".strip()), justify="right", overflow="fold")
    compact = table.compact or len(columns) > _WIDE
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
        if row.kind == "missing" or (not row.page_only and any(row.cells[number] for number in columns)):
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
    rows = [row for table in tables for row in table.rows if not row.page_only]
    yield from dict.fromkeys(f"{row.label} {row.detail}" for row in rows if row.kind == "missing")
    yield from dict.fromkeys(f"published: {row.source}" for row in rows if row.kind == "published")
    yield from dict.fromkeys(
        f"(?) {row.label}, {row.source.partition(';')[0]}, {row.detail}"
        for row in rows
        if row.kind == "published" and row.detail
    )
