"""The summary of a run as a table for people, in the order of columns that papers use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from eval.locomo.benchmark import ADVERSARIAL, COLUMNS
from eval.locomo.scoring import ABSTENTION, ABSTENTION_JUDGE

ABSTENTIONS = {ABSTENTION: "abstention\nby phrase", ABSTENTION_JUDGE: "abstention\njudged"}


def table(summary: Mapping[str, Any]) -> Table:
    """Scores by category in percent, each with its interval. Category 5 is not in it.

    With an audit the ceiling is beside the judges' scores: the share of questions whose answer in the file is right.
    """
    counts: dict[str, int] = summary["questions"]["by_category"]
    accounting = summary["accounting"]
    pooled = sum(counts.get(name, 0) for name in COLUMNS)
    view = Table(
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        title=f"{summary['version']}, {summary['system']}, gold {summary['protocol']['gold']}: %",
        caption=_caption(accounting, audited=summary["ceiling"] is not None),
    )
    view.add_column("")
    for name in COLUMNS:
        view.add_column(f"{name}\n{counts.get(name, 0)}", justify="right")
    view.add_column(f"overall\n{pooled}", justify="right")
    judges = set(summary["protocol"]["judges"])
    rows = {name: of for name, of in summary["scores"].items() if of["all"] is not None and name not in ABSTENTIONS}
    last_judge = max((number for number, name in enumerate(rows) if name in judges), default=-1)
    ceiling = summary["ceiling"] or {}
    if ceiling and last_judge < 0:
        view.add_row(*_ceiling(ceiling), end_section=True)
    for number, (name, of) in enumerate(rows.items()):
        view.add_row(name, *(_cell(of.get(category)) for category in (*COLUMNS, "all")))
        if ceiling and number == last_judge:
            view.add_row(*_ceiling(ceiling), end_section=True)
    return view


def adversarial_table(summary: Mapping[str, Any]) -> Table | None:
    """The row of category 5, in percent; None if nothing of it was asked or scored."""
    scores = {name: of[ADVERSARIAL] for name, of in summary["scores"].items() if of.get(ADVERSARIAL) is not None}
    if not scores:
        return None
    view = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    view.add_column("")
    names = sorted(scores, key=lambda name: name not in ABSTENTIONS)
    for name in names:
        view.add_column(ABSTENTIONS.get(name, name), justify="right")
    view.add_row(
        f"{ADVERSARIAL} {summary['questions']['by_category'][ADVERSARIAL]}", *(_cell(scores[name]) for name in names)
    )
    return view


def _caption(accounting: Mapping[str, Any], *, audited: bool) -> str:
    left_out = [f"{count:,} not asked ({reason})" for reason, count in accounting["not_asked"].items() if count]
    parts = [f"{accounting['asked']:,} asked", *left_out, f"{accounting['failed']:,} failed"]
    ceiling = " Ceiling: questions whose answer in the file is right." if audited else ""
    return f"95% intervals: bootstrap over conversations. Questions: {accounting['total']:,} = {' + '.join(parts)}.{ceiling}"


def _cell(interval: Mapping[str, float] | None) -> str:
    if interval is None:
        return "-"
    return f"{100 * interval['estimate']:.1f}\n[dim]{100 * interval['low']:.1f}-{100 * interval['high']:.1f}[/dim]"


def _ceiling(ceiling: Mapping[str, float]) -> list[str]:
    shares = [ceiling.get(category) for category in (*COLUMNS, "all")]
    return ["ceiling", *("-" if share is None else f"{100 * share:.1f}" for share in shares)]
