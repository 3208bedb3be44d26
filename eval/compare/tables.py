"""Tables as data, for the terminal and the page alike: our runs, what was not run, and published rows set apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from deltamem.cli import CONFIGS
from eval.compare.layouts import LAYOUTS, Column, Layout, Variant
from eval.compare.loading import Run, Summary
from eval.compare.published import published_rows
from eval.metrics.intervals import Interval
from eval.personamem.question_types import LABELS

_CONDITIONS = (
    "embedder.name",
    "with_time",
    "answer.prompt",
    "answer.runs",
    "answer.temperature",
    "answer.max_tokens",
    "answer.context_tokens",
    "categories",
    "update_k",
    "question_k",
    "system_messages",
    "version",
    "seed",
)
"""Keys that a command for another system names where they are not the usual ones: they decide what is measured."""

BASELINES = ("full_context", "naive_rag")
"""Systems without which the score of a memory says nothing; each table has a row for them."""

JUDGES = (("lenient", "strict"), ("correct_qa_ratio(all)", "strict_correct_qa_ratio(all)"))
"""The scores of both judges, in the benchmarks that have two."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A number as it is shown, what stands under it, and the name of our metric that it is."""

    text: str
    small: str = ""
    metric: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row.

    Attributes:
        kind: ``ours`` was measured by a run that is shown; ``missing`` was not run; ``published`` is what others reported.
        label: The run or the system.
        detail: More about it: variant, doubts, or the command that makes the run.
        cells: One for each column; None is empty.
        source: Where a published row was printed, and under which conditions.
        page_only: Whether the terminal leaves the row out.
    """

    kind: Literal["ours", "missing", "published"]
    label: str
    detail: str
    cells: tuple[Cell | None, ...]
    source: str = ""
    page_only: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        title: Above it.
        columns: In order.
        rows: Ours, then those not run, then published ones.
        by_measure: See `eval.compare.layouts.Layout`.
        note: Below it.
        compact: Whether the terminal leaves out what stands under the numbers.
    """

    title: str
    columns: tuple[Column, ...]
    rows: list[Row] = field(default_factory=list)
    by_measure: bool = False
    note: str = ""
    compact: bool = False

    def groups(self) -> list[tuple[str, int]]:
        """The upper line of the heading: title and number of columns below it."""
        groups: list[tuple[str, int]] = []
        for column in self.columns:
            if groups and groups[-1][0] == column.title:
                groups[-1] = (column.title, groups[-1][1] + 1)
            else:
                groups.append((column.title, 1))
        return groups


def paper_tables(runs: Sequence[Run]) -> list[Table]:
    """The tables of the papers with our rows and theirs.

    Args:
        runs: Of one benchmark.

    Returns:
        None for benchmarks that the papers do not have.
    """
    return [_paper_table(layout, runs) for layout in LAYOUTS.get(runs[0].family, ())]


def _paper_table(layout: Layout, runs: Sequence[Run]) -> Table:
    rows = [row for run in runs for row in _our_rows(layout, run)]
    rows += _missing_rows(layout, runs)
    for published in published_rows(layout.id):
        values = [published.values.get(column.key) for column in layout.columns]
        cells = tuple(None if value is None else Cell(f"{value:.2f}") for value in values)
        detail = f"in doubt: {published.doubt}" if published.doubt else ""
        source = "; ".join(part for part in (published.source, published.note) if part)
        rows.append(Row("published", published.system, detail, cells, source, published.page_only))
    return Table(layout.title, layout.columns, rows, layout.by_measure, layout.note)


def _our_rows(layout: Layout, run: Run) -> Iterator[Row]:
    for number, variant in enumerate(layout.variants):
        cells = tuple(_our_cell(column, variant, run.summary) for column in layout.columns)
        if number == 0 or any(cells):
            yield Row("ours", run.name, variant.label, cells)
    if layout.id == "locomo" and run.summary.ceiling:
        ceiling = run.summary.ceiling
        shares = (ceiling.get(column.group) if column.measure == "judge" else None for column in layout.columns)
        cells = tuple(None if share is None else Cell(f"{100 * share:.2f}", metric="ceiling") for share in shares)
        yield Row("ours", run.name, "ceiling: share of gold answers that the audit found right", cells)


def _our_cell(column: Column, variant: Variant, summary: Summary) -> Cell | None:
    if column.measure == "queries_per_memory":
        value = summary.queries_per_memory
        return None if value is None else Cell(f"{value:.2f}")
    metric = variant.metric(column)
    if metric is None:
        return None
    interval = summary.scores.get(metric, {}).get(variant.category or column.group)
    return None if interval is None else score_cell(interval, column.count, metric)


def score_cell(interval: Interval, count: int | None = None, metric: str = "") -> Cell:
    """A score in percent over its interval, with its count where that is not the expected one."""
    small = f"{100 * interval.low:.1f}\u2013{100 * interval.high:.1f}"
    if interval.count != count:
        small += f"\nn={interval.count:,}"
    return Cell(f"{100 * interval.estimate:.2f}", small, metric)


def _missing_rows(layout: Layout, runs: Sequence[Run]) -> Iterator[Row]:
    there = {run.summary.system for run in runs}
    like = next((run for run in runs if run.summary.mode == "judged"), runs[0])
    for system in BASELINES:
        if system not in there:
            yield Row("missing", system, f"not run: {command_for(system, like)}", (None,) * len(layout.columns))


def _title(category: str) -> str:
    return LABELS.get(category, category.replace("_", " "))


def judge_table(runs: Sequence[Run]) -> Table:
    """What two judges say of the same answers: a row for each category, and for each run both judges beside each other."""
    lenient, strict = next(
        (pair for pair in JUDGES if any(set(pair) <= run.summary.scores.keys() for run in runs)), JUDGES[0]
    )
    judged = [run for run in runs if {lenient, strict} <= run.summary.scores.keys()]
    columns = tuple(Column(run.name, judge, run.name, judge) for run in judged for judge in (lenient, strict))
    table = Table("Both judges on the same answers", columns)
    for category in dict.fromkeys(name for run in judged for name in run.summary.scores[lenient]):
        intervals = [run.summary.scores[judge].get(category) for run in judged for judge in (lenient, strict)]
        if any(intervals):
            cells = tuple(None if interval is None else score_cell(interval) for interval in intervals)
            table.rows.append(Row("ours", category, "", cells))
    return table


def command_for(system: str, run: Run) -> str:
    """The command that measures another system under the conditions of a run."""
    config = run.summary.making.config
    given = {"system": system, "out": f"runs/{run.family}_{system}"}
    for key in ("base_url", "answer.base_url", "judge.base_url", "answer.model", "judge.model"):
        group, _, name = key.rpartition(".")
        settings = config.get(group) if group else config
        value = settings.get(name) if isinstance(settings, Mapping) else None
        inherited = config.get("base_url") if key.endswith("base_url") and group else None
        if value is not None and value != inherited:
            given[key] = str(value)
    for key in ("k", "limit", "gold", "captions"):
        if config.get(key) is not None:
            given[key] = str(config[key])
    usual = _usual_config(run.family)
    for key in _CONDITIONS:
        value = _setting(config, key)
        if value is not None and value != _setting(usual, key):
            given[key] = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return f"python -m eval.{run.family} {' '.join(f'{key}={value}' for key, value in given.items())}"


def _usual_config(family: str) -> dict[str, Any]:
    """What the command of a benchmark does unless told otherwise."""
    from omegaconf import OmegaConf

    files = (CONFIGS / "base" / "benchmark.yaml", CONFIGS / f"{family}.yaml")
    usual: Any = OmegaConf.to_container(OmegaConf.merge(*map(OmegaConf.load, files)))
    return dict(usual)


def _setting(config: Mapping[str, Any], key: str) -> Any:
    """The value of a key with dots; None if there is none."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def score_table(runs: Sequence[Run]) -> Table:
    """Every score of every run, by category."""
    categories = list(dict.fromkeys(name for run in runs for name in run.summary.questions.by_category))
    counts = {name: max(run.summary.questions.by_category.get(name, 0) for run in runs) for name in categories}
    columns = [Column(name, "", f"{_title(name)} {counts[name]:,}", "", counts[name]) for name in categories]
    columns.append(Column("all", "", "all"))
    metrics = list(dict.fromkeys(metric for run in runs for metric in run.summary.scores))
    groups = dict.fromkeys(group for run in runs for scores in run.summary.scores.values() for group in scores)
    columns += [Column(group, "", _title(group)) for group in groups if group not in (*categories, "all")]
    table = Table("All scores by category", tuple(columns), compact=True)
    for metric in metrics:
        for run in runs:
            scores = run.summary.scores.get(metric)
            if scores and any(scores.get(column.group) for column in columns):
                intervals = [scores.get(column.group) for column in columns]
                cells = tuple(
                    None if interval is None else score_cell(interval, column.count)
                    for interval, column in zip(intervals, columns, strict=True)
                )
                table.rows.append(Row("ours", metric, run.name, cells))
    return table
