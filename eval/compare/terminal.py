"""The comparison on the terminal: headlines and the weightiest warnings, or with ``full`` every table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
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
        headlines = _headline_table(section)
        console.print(headlines)
        lines = LINES - len(console.render_lines(headlines))
        sentences = list(_sentences(section))
        shown = sentences if full else _fitting(sentences, lines, console.width)
        for sentence in shown:
            console.print(Text(sentence, style="yellow"), soft_wrap=False)
        if len(shown) < len(sentences):
            console.print(Text(f"{len(sentences) - len(shown)} more warnings are on the page and in --full", style="yellow"))
        if full:
            for table in [*section.papers, *section.tables]:
                console.print(Group(*_rich_tables(table)))
            for sentence in _remarks(section.papers):
                console.print(Text(sentence, style="dim"))
    if page is not None:
        console.print(Text(f"every table, chart and question: {page}"), soft_wrap=True)
    elif not full:
        console.print(Text("--out page.html writes every table, chart and question; --full prints the tables"))


def _headline_table(section: Comparison) -> RichTable:
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
    of = "?" if headline.of is None else f"{headline.of:,}"
    yield f"{headline.n:,}" if headline.n == headline.of else f"{headline.n:,}/{of}"
    yield f"{headline.failures:,}" + (f"\n{headline.silent:,} silent" if headline.silent else "")
    yield tokens(headline)
    rates = [rate and f"{100 * rate.estimate:.0f}" for rate in (headline.judge_error or {}).values()]
    yield " / ".join(rate or "-" for rate in rates)


def _sentences(section: Comparison) -> Iterator[str]:
    """All warnings, what weighs most first: withheld scores, other conditions, what each run lacks."""
    shown = cards(section.runs)
    withheld = [(f"withheld: {why}", card) for card in shown if (why := card.run.headline.withheld)]
    lacking = [(sentence, card) for card in shown for sentence in card.warnings]
    said = [*withheld, *((f"all runs: {sentence}", None) for sentence in shared_warnings(section.runs))]
    said += [*((sentence, None) for sentence in section.differences), *lacking]
    names: dict[str, list[str]] = {}
    for sentence, card in said:
        names.setdefault(sentence, []).extend([card.run.name] if card else [])
    yield from (f"{', '.join(of)}: {sentence}" if of else sentence for sentence, of in names.items())


def _fitting(sentences: Sequence[str], lines: int, width: int) -> list[str]:
    """The first sentences that fit into so many lines, at least one."""
    shown: list[str] = []
    for sentence in sentences:
        lines -= cell_len(sentence) // max(1, width - 15) + 1  # a broken line is not full
        if lines < 0 and shown:
            break
        shown.append(sentence)
    return shown


def _rich_tables(table: Table) -> Iterator[RichTable]:
    """Lay a table out, split by measure where it asks for it; published rows follow a line and are marked."""
    for measure in dict.fromkeys(column.measure for column in table.columns) if table.by_measure else [None]:
        numbers = [number for number, column in enumerate(table.columns) if measure in (None, column.measure)]
        columns = [table.columns[number] for number in numbers]
        title = escape(table.title if measure is None else f"{table.title}: {columns[0].heading}")
        caption = escape(" ".join(text for text in (table.banner, table.note) if text))
        laid = RichTable(title=title, caption=caption or None, title_justify="left", caption_justify="left")
        laid.add_column("", min_width=24, overflow="fold")
        for column in columns:
            heading = column.title if measure else f"{column.title}\n{column.heading}".strip()
            laid.add_column(Text(heading), justify="right", overflow="fold")
        before = ("", "")
        for row in table.rows:
            cells = [row.cells[number] or Cell("") for number in numbers]
            if row.kind != "missing" and not any(cell.text for cell in cells):
                continue
            style = _STYLES[row.kind]
            if (row.kind, row.source) != before:
                laid.add_section()
                if row.source:
                    laid.add_row(Text(f"published: {row.source.partition(';')[0]}", style="italic"), style=style)
            before = (row.kind, row.source)
            texts = [cell.text if len(cells) > _WIDE else f"{cell.text}\n{cell.small}".strip() for cell in cells]
            metric = next((cell.metric for cell in cells if cell.text), "")
            laid.add_row(_label(row, metric if measure else row.detail), *map(Text, texts), style=style)
        yield laid


def _label(row: Row, detail: str) -> Text:
    if row.kind == "missing":
        return Text(f"{row.label}: not run")
    if row.kind == "published":
        return Text(f"{row.label}{' (?)' if row.detail else ''}")
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
