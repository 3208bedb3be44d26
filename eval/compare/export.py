"""A comparison elsewhere than on its page: headlines on the terminal, all scores as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from eval.compare.layout import ALL
from eval.compare.runs import Card, FinishedRun, bounds
from eval.compare.tables import BASELINES, Comparison, compare
from eval.html import write_page

_LINES = 36  # Of one benchmark, as long as its table of headlines leaves room for any warnings


def print_comparison(runs: Sequence[FinishedRun], console: Console, *, page: Path | None = None) -> None:
    """Print runs, benchmark by benchmark; `page` is where everything is."""
    for section in compare(runs).values():
        console.rule(Text(section.title))
        headlines = _headline_table(section)
        console.print(headlines)
        sentences, room = list(_sentences(section)), _LINES - len(console.render_lines(headlines))
        for number, sentence in enumerate(sentences):
            room -= cell_len(sentence) // max(1, console.width - 15) + 1  # a broken line is not full
            if room < 0 and number:
                console.print(Text(f"{len(sentences) - number} more warnings are on the page", style="yellow"))
                break
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


def write_csv(runs: Sequence[FinishedRun], path: Path) -> None:
    """Write a line for every score of every run; scores that are withheld have a reason instead of numbers."""
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
                "without": run.lacks,
                "commit": summary.making.git_commit,
            }
