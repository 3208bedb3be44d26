"""The summary of a run: the type that is written and read, and what of it is shown on the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich import box
from rich.markup import escape
from rich.table import Table

from deltamem.intervals import Interval, percent_text
from deltamem.runs import atomic_writer
from eval.compare.layout import ALL
from eval.protocols import DEFAULT

CLOSED_BOOK = "none"
"""The system without a memory: what the answerer knows by itself."""


class QuestionCounts(BaseModel):
    """How many questions the file has, and what became of them."""

    total: int
    asked: int
    answered: int
    failed: int
    by_category: dict[str, int]
    groups: int
    # Those that the scores are of, where the folder may hold more of them, of an earlier and larger sample; None: all
    keys: list[str] | None = None


class Headline(BaseModel):
    """The score that stands for a run, and what it must not be read without."""

    metric: str | None = None
    score: Interval | None = None
    withheld: str | None = None  # Why the score must not be shown
    n: int  # Questions that it is of
    of: int  # Questions of the file
    failures: int = 0
    silent: int = 0  # Answers without a word
    context_tokens: float | None = None
    judge_error: dict[str, Interval | None] | None = None  # Of false accepts and false rejects on the calibration answers
    judge_runs: list[float] | None = None  # Share of answers that each run of the judge found right, if there are several

    @property
    def shown(self) -> Interval | None:
        """The score, unless it is withheld."""
        return None if self.withheld else self.score


class BudgetScores(BaseModel):
    """Scores at one budget of context tokens."""

    budget: int
    context_tokens: float
    scores: dict[str, Interval | None]
    withheld: dict[str, str] = {}


class Failures(BaseModel):
    """What broke. Sessions that were read but not understood are the system's own doing and not among it."""

    count: int = 0
    by_stage: dict[str, int] = {}
    first: list[str] = []  # Some of each stage


class Provenance(BaseModel):
    """What the numbers were made with; the key ``making`` of the summary."""

    git_commit: str | None = None
    config: dict[str, Any] = {}
    config_sha256: str = ""
    prompt_hashes: dict[str, str]
    models: dict[str, str | None]
    seeds: dict[str, int] = {}
    versions: dict[str, str | None] = {}
    # What answered, beyond names: commit, versions, endpoints, what the servers say that they serve
    fingerprint: dict[str, Any] = {}
    made: list[str] = []  # Hashes of the fingerprints that records bear


class Summary(BaseModel, extra="allow"):
    """``summary.json``: what the runner writes, and comparisons and model cards read. Benchmarks add keys of their own."""

    benchmark: str
    version: str
    system: str
    mode: str  # `judged`, `answered` by a model, or `offline`
    questions: QuestionCounts
    headline: Headline
    scores: dict[str, dict[str, Interval | None]]  # By metric and category, or `all`
    withheld: dict[str, str] = {}  # By metric why it must not be shown
    warnings: list[str] = []
    partial: dict[str, int] | None = None  # How many questions of an interrupted run are done, and of how many
    budgets: list[BudgetScores] = []
    cost: dict[str, dict[str, int | float]]  # By part, over all runs
    this_run: dict[str, dict[str, Any]] = {}  # What each client did in this run
    latency: dict[str, dict[str, int | float] | None] = {}  # Seconds by part: p50, p95
    context_tokens: dict[str, float] | None = None  # Mean, p50, p95
    passages: dict[str, float | None] | None = None  # What a search returns, on average
    memories: dict[str, Any] | None = None
    queries_per_memory: float | None = None  # Searches of the system by memory that it wrote (Table 7 of the paper)
    sessions: dict[str, int] = {}
    failures: Failures = Failures()
    probes: list[dict[str, Any]] = []  # How often each judge errs, see `eval.judge.measure`
    swapped: list[dict[str, Any]] = []  # The same on answers to other questions of the run
    protocol: dict[str, Any] = {}
    data: dict[str, Any]
    system_facts: dict[str, Any] = {}
    making: Provenance
    seconds: dict[str, float] = {}

    @property
    def more(self) -> dict[str, Any]:
        """The keys of the benchmark."""
        return self.model_extra or {}

    def score(self, metric: str, group: str) -> Interval | None:
        """A score of a category or of ``all``; None if the run has none, or if it is withheld."""
        return None if metric in self.withheld else self.scores.get(metric, {}).get(group)

    def label(self, name: str | None = None) -> str:
        """The `system_label` of the run under a name, its system's if there is no other."""
        closed = "closed book: known without any memory" if self.system == CLOSED_BOOK else ""
        return system_label(name or self.system, self.system_facts, "partial" if self.partial else "", closed)


def system_label(name: str, facts: Mapping[str, Any], *remarks: str) -> str:
    """A name with what its numbers must not be read without, in all tables; the name alone where nothing is known.

    After the `remarks` come what `System.facts` says: mode, package, and which optional parts are there or missing.
    """
    known = (*remarks, *(str(facts.get(fact, "")) for fact in ("mode", "package")))
    parts = ((word, ", ".join(optional_parts(facts, there=there))) for word, there in (("with", True), ("without", False)))
    said = ", ".join([*filter(None, known), *(f"{word} {names}" for word, names in parts if names)])
    return f"{name} ({said})" if said else name


def optional_parts(facts: Mapping[str, Any], *, there: bool) -> list[str]:
    """The parts of a system, such as mem0's keyword search, that `System.facts` says were there, or were not."""
    return [name.replace("_", " ") for name, value in facts.items() if value is there]


SUMMARY_FILE = "summary.json"


def write_summary(folder: Path, summary: Mapping[str, Any] | BaseModel) -> Path:
    """Write ``summary.json`` into an output folder."""
    plain = summary.model_dump(mode="json") if isinstance(summary, BaseModel) else summary
    path = folder / SUMMARY_FILE
    with atomic_writer(path) as file:
        file.write(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def headline_line(summary: Summary) -> str:
    """The headline as one line of text."""
    head = summary.headline
    if head.score is None:
        return f"{summary.benchmark}, {summary.system}: no score"
    low, high, estimate = (100 * getattr(head.score, name) for name in ("low", "high", "estimate"))
    said = f"{estimate:.1f} ({low:.1f}-{high:.1f})" if head.withheld is None else f"withheld, {head.withheld}"
    parts = [f"{head.metric} {said}", f"n {head.n:,} of {head.of:,}"]
    parts.append(f"{head.failures:,} failed, {head.silent:,} silent")
    if head.context_tokens is not None:
        parts.append(f"{head.context_tokens:,.0f} context tokens")
    if head.judge_error is not None:
        known = {kind: share for kind, share in head.judge_error.items() if share is not None}
        parts += [f"judge's {kind.replace('_', ' ')}s {100 * share.estimate:.0f}%" for kind, share in known.items()]
    if head.judge_runs is not None and head.withheld is None:
        shares = head.judge_runs
        parts.append(f"{len(shares)} runs of the judge: {100 * min(shares):.1f} to {100 * max(shares):.1f}")
    return f"{summary.benchmark}, {summary.system}: {'; '.join(parts)}"


def budget_lines(summary: Summary) -> Iterator[str]:
    """The scores at each further budget of context tokens."""
    for at in summary.budgets:
        shares = [
            f"{name} withheld" if name in at.withheld else f"{name} {100 * score.estimate:.1f}"
            for name, score in at.scores.items()
            if score is not None
        ]
        yield f"with {at.budget:,} context tokens ({at.context_tokens:,.0f} shown): {', '.join(shares)}"


def cost_line(summary: Summary) -> str:
    """What the run came to: calls and tokens by stage over all runs, and what this one asked for."""
    named = dict.fromkeys(("ingest", "answer", "judge", "budgets", *summary.cost))
    stages = {stage: [summary.cost[stage]] for stage in named if stage != "search"}
    stages["probes"] = [probe["cost"] for probe in (*summary.probes, *summary.swapped)]
    parts = []
    for stage, costs in stages.items():
        calls, cached, read, written = (
            sum(cost[name] for cost in costs) for name in ("calls", "cached", "prompt_tokens", "completion_tokens")
        )
        if calls:
            parts.append(f"{stage}: {calls:,} calls ({cached:,} cached), {read:,} + {written:,} tokens")
    if unreadable := summary.sessions["unreadable"]:
        total = summary.sessions["total"]
        parts.append(f"{unreadable:,} of {total:,} sessions brought no readable answer of the manager")
    if summary.queries_per_memory is not None:
        parts.append(f"{summary.queries_per_memory:.2f} queries per memory")
    if shown := summary.context_tokens:
        parts.append(f"context: {shown['mean']:,.0f} tokens an answer")
    requests = sum(usage["requests"] for usage in summary.this_run.values())
    parts.append(f"this run: {requests:,} requests, {sum(summary.seconds.values()):.0f} s")
    return "; ".join(parts)


def closing_lines(summary: Summary, own: Iterable[str]) -> Iterator[str]:
    """What stands below the tables: departures from the protocol, lines of the benchmark's `own`, judges, cost, warnings."""
    protocol = summary.protocol
    if protocol["name"] != DEFAULT:
        yield f"protocol {protocol['name']}, from which this run departs: {'; '.join(protocol['divergences'])}"
    yield from own
    for probe in summary.probes:
        accepts, rejects = (
            "an unknown share" if share is None else percent_text(share, 0, unit="%")
            for share in (probe["false_accept"], probe["false_reject"])
        )
        failures = f", fails on {probe['errors']}" if probe["errors"] else ""
        yield (
            f"{probe['judge']} judge on probes: accepts {accepts} of the wrong answers, "
            f"rejects {rejects} of the right ones{failures}"
        )
    yield cost_line(summary)
    for why in dict.fromkeys(summary.withheld.values()):
        yield f"withheld: {', '.join(metric for metric, reason in summary.withheld.items() if reason == why)}: {why}"
    yield from (f"warning: {warning}" for warning in summary.warnings)


def failure_lines(summary: Summary) -> list[str]:
    """What failed: how much of it in which stage, and the first of each kind."""
    failures = summary.failures
    named = {stage: f"in {stage}" for stage in failures.by_stage} | {"silent": "silent answers"}
    stages = ", ".join(f"{count:,} {named[stage]}" for stage, count in failures.by_stage.items())
    firsts: dict[str, str] = {}
    for reason in failures.first:
        firsts.setdefault(reason.partition(":")[0], reason)
    head = f"{failures.count:,} failures ({stages}); the same command tries again what can be tried; the first:"
    return [head, *firsts.values()]


def score_table(
    title: str | None = None, caption: str | None = None, columns: Iterable[str] = (), *, corner: str = ""
) -> Table:
    """A table of scores with its first column and columns of numbers, in the style of all benchmarks."""
    shown = title and escape(title)  # the name of a sample holds brackets: conversations=[conv-26]
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, title=shown, caption=caption)
    table.add_column(corner)
    for heading in columns:
        table.add_column(heading, justify="right")
    return table


def counted(summary: Summary) -> dict[str, int]:
    """How many questions each category has, and all of them."""
    counts = summary.questions.by_category
    return {**counts, ALL: sum(counts.values())}


def score_cells(summary: Summary, metric: str, counts: Mapping[str, int], digits: int = 0) -> list[str]:
    """The `percent_cell` of a metric in each category, whose number of values the table gives elsewhere."""
    of, withheld = summary.scores.get(metric, {}), metric in summary.withheld
    return [percent_cell(of.get(name), digits, count=count, withheld=withheld) for name, count in counts.items()]


def category_table(summary: Summary, caption: str, label: Callable[[str], str] = str) -> Table:
    """Every score in percent with its interval, a column for each category, whose name the `label` breaks into lines."""
    counts = counted(summary)
    headings = [f"{'overall' if name == ALL else label(name)}\n{count}" for name, count in counts.items()]
    view = score_table(f"{summary.version.partition(':')[0]}, {summary.label()}: %", caption, headings)
    for metric in summary.scores:
        view.add_row(metric, *score_cells(summary, metric, counts))
    return view


def percent_cell(interval: Interval | None, digits: int = 0, *, count: int | None = None, withheld: bool = False) -> str:
    """A score in percent above its interval, whose bounds have so many digits.

    Below them is its number of values where that is not the `count` that the table gives elsewhere. A score that is
    `withheld` is not shown.
    """
    if interval is None:
        return "-"
    low, high = (f"{100 * bound:.{digits}f}" for bound in (interval.low, interval.high))
    shown = "withheld" if withheld else f"{100 * interval.estimate:.1f}\n[dim]{low}-{high}[/dim]"
    return shown if count in (None, interval.count) else f"{shown}\n[dim]n={interval.count:,}[/dim]"


def brief_table(table: Table) -> Table:
    """The same table with one line a row: without intervals and caption, which the page has.

    Counts stay where failures are left out, because they are not those of the heading.
    """

    def brief(cell: Any, *, counted: bool) -> Any:
        if not isinstance(cell, str):
            return cell
        first, *small = cell.split("\n")
        return " ".join([first, *(line for line in small if counted and "n=" in line)])

    shown = Table(box=table.box, collapse_padding=True, pad_edge=False, show_edge=False, title=table.title)
    for column in table.columns:
        shown.add_column(column.header, justify=column.justify)
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        counted = any("(valid)" in str(cell) for cell in cells)
        shown.add_row(*(brief(cell, counted=counted) for cell in cells))
    return shown
