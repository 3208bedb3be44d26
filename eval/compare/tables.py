"""The tables of a comparison: rows of runs in the layouts of papers, paired differences, costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from deltamem.intervals import RESAMPLES, Interval, bootstrap_interval
from eval.benchmark import Benchmark
from eval.compare.layout import ALL, Cell, Column, Row, Table, Variant, columns_of, published_tables
from eval.compare.runs import Card, FinishedRun, bounds, cards, differences
from eval.scores import Value, answer_value, retrieval_values, verdict_value
from eval.summary import CLOSED_BOOK

BASELINES = (CLOSED_BOOK, "full_context", "naive_rag")
"""Systems without which the score of a memory says nothing: what is known without any memory, what the whole
conversation gives, what plain search gives. Each table has a row for them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better one run is than another: the value of `first` minus that of `second`, both names of runs."""

    metric: str
    first: str
    second: str
    interval: Interval  # Over the questions for which both have a value

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out 0; False where there is one group only, which has no interval."""
        return self.interval.groups > 1 and (self.interval.low > 0 or self.interval.high < 0)


def paired_differences(runs: Sequence[FinishedRun], *, resamples: int = RESAMPLES) -> list[Difference]:
    """Compare every two runs of a benchmark on every score that both have.

    Failures count as wrong, as in the scores, and withheld scores are left out. Two runs on other data are not compared, nor
    questions that are not the same under their key, nor runs whose scores are of other questions than their records.
    Questions that count for no ``all`` in the summary (LoCoMo's category 5) count here only for the scores that they alone
    have.
    """
    found = []
    for first, second in combinations([run for run in runs if run.paired], 2):
        if first.summary.data.get("sha256") != second.summary.data.get("sha256"):
            continue
        others = {record.key: record for record in second.questions}
        pairs = [(record, others[record.key]) for record in first.questions if record.key in others]
        pairs = [(one, two) for one, two in pairs if one.question == two.question]
        for metric, value in _values(first).items():
            if any(metric not in run.summary.scores or metric in run.summary.withheld for run in (first, second)):
                continue
            pooled = _pooled(first, metric)
            values = [(value(one), value(two), one.group) for one, two in pairs if one.category in pooled]
            both = [(one - two, group) for one, two, group in values if one is not None and two is not None]
            gains, groups = [gain for gain, _ in both], [group for _, group in both]
            interval = bootstrap_interval(gains, groups, resamples=resamples)
            if interval is not None:
                found.append(Difference(metric, first.name, second.name, interval))
    return found


def _values(run: FinishedRun) -> dict[str, Value]:
    """How the value of a question is read from its record, by score; those that are not of questions are not there."""
    answers = [answer for record in run.questions for answer in record.answers]
    known: dict[str, Value] = {judge: verdict_value(judge) for judge in {name for one in answers for name in one.verdicts}}
    known |= {score: answer_value(score) for score in {name for one in answers for name in one.scores}}
    known |= retrieval_values(int(name.removeprefix("recall@")) for name in run.summary.scores if name.startswith("recall@"))
    known |= run.kind.values
    return {name: known[name] for name in run.summary.scores if name in known}


def _pooled(run: FinishedRun, metric: str) -> set[str]:
    """The categories whose questions make up ``all``; where it is empty, those that have the score."""
    scored = {name for name, interval in run.summary.scores[metric].items() if interval is not None and name != ALL}
    return scored & set(run.summary.protocol.get("pooled", scored)) or scored


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything about the runs of one benchmark, for the page and the terminal."""

    title: str  # The benchmark, or that the data is not its own
    runs: list[FinishedRun]
    cards: list[Card]  # Of the runs
    shared_warnings: list[str]  # What must be known of all runs
    differences: list[str]  # Where their conditions differ
    papers: list[Table]  # In the layouts of the papers

    def tables(self) -> list[Table]:
        """The tables that are in no paper: all scores, what two judges say, differences, costs, errors of the judges."""
        runs = [run for run in self.runs if run.summary.scores]
        costs = _table_of_facts("Cost", runs, _costs)
        probes = _table_of_facts("Judges on probe answers that are known to be right or wrong, in percent", runs, _probes)
        tables = (judge_table(runs), score_table(runs), difference_table(runs), costs, probes)
        return [table for table in tables if table.rows]


def compare(runs: Sequence[FinishedRun]) -> dict[str, Comparison]:
    """Compare runs benchmark by benchmark.

    Returns:
        By the name of the benchmark's command, in the order in which benchmarks first occur.
    """
    found = {}
    for family in dict.fromkeys(run.family for run in runs):
        group = [run for run in runs if run.family == family]
        scored = [run for run in group if run.summary.scores]
        title = _benchmark(scored or group)
        found[family] = Comparison(title, group, *cards(group), differences(scored), paper_tables(scored))
    return found


def _benchmark(runs: Sequence[FinishedRun]) -> str:
    name = next((run for run in runs if run.published_data), runs[0]).summary.benchmark
    unknown = any(run.summary.scores for run in runs) and not any(run.published_data for run in runs)
    return f"{name}, not known to be the published file" if unknown and "published file" not in name else name


OTHER_DATA = (
    "This data is not known to be the published file: invented, changed, or of another version. These numbers are not those "
    "of the benchmark and are not comparable with any that were published."
)


def paper_tables(runs: Sequence[FinishedRun]) -> list[Table]:
    """The tables of the papers with our rows and theirs, for runs of one benchmark; none if no paper has the benchmark.

    Runs on other data than the published file have tables of their own.
    """
    tables = []
    for layout in runs[0].kind.layouts if runs else ():
        uncounted = [replace(column, count=None) for column in layout.columns]
        for published in (True, False):
            if group := [run for run in runs if run.published_data is published]:
                own = layout if published else replace(layout, columns=uncounted, banner=OTHER_DATA, note="")
                table = _filled(replace(own, title=f"{_benchmark(group)}, {layout.title}"), group)
                others = _published_rows(layout, runs[0].kind) if published else ()
                rows = [*table.rows, *_missing_rows(table, group), *others]
                tables.append(replace(table, rows=rows))
    return tables


def _filled(layout: Table, runs: Sequence[FinishedRun]) -> Table:
    rows = [row for run in runs for row in _our_rows(layout, run)]
    groups = list(dict.fromkeys(row.group for row in rows))
    rows.sort(key=lambda row: groups.index(row.group))
    return replace(layout, rows=rows, note=" ".join(filter(None, (layout.note, _withheld_note(runs, rows)))))


def _published_rows(layout: Table, kind: type[Benchmark[Any]]) -> Iterator[Row]:
    for table in published_tables(kind.published_file()):
        if table.table == layout.id:
            source = "; ".join(part for part in (table.source, table.note) if part)
            for system in table.rows:
                values = [table.values(system).get(column.key) for column in layout.columns]
                cells = tuple(None if value is None else Cell(f"{value:.2f}") for value in values)
                detail = f"in doubt: {table.doubts[system]}" if system in table.doubts else ""
                yield Row("published", system, detail, cells, source)


def _missing_rows(table: Table, runs: Sequence[FinishedRun]) -> Iterator[Row]:
    systems, offline = {run.summary.system for run in runs}, all(run.summary.mode == "offline" for run in runs)
    for system in BASELINES:
        if system not in systems and not (system == CLOSED_BOOK and offline):
            command = f"python -m eval.{runs[0].family} system={system}"
            yield Row("missing", system, f"not run: {command} and the keys of these runs", (None,) * len(table.columns))


def _our_rows(layout: Table, run: FinishedRun) -> Iterator[Row]:
    """A row for each variant that the run has a score of, but at least one."""
    rows = []
    for variant in layout.variants:
        cells = tuple(_our_cell(column, variant, run) for column in layout.columns)
        rows.append(Row("ours", run.title, variant.label, cells, group=variant.label))
    yield from [row for row in rows if any(row.cells)] or rows[:1]
    if layout.ceiling and (ceiling := run.summary.more.get("ceiling")):
        shares = (ceiling.get(column.group) if column.measure == layout.ceiling else None for column in layout.columns)
        cells = tuple(None if share is None else Cell(f"{100 * share:.2f}") for share in shares)
        label = "ceiling: share of gold answers that the audit found right"
        yield Row("ours", run.title, label, cells, group=label)


def _our_cell(column: Column, variant: Variant, run: FinishedRun) -> Cell | None:
    """A score in percent over its interval, with its count where that is not the expected one; `WITHHELD` if it is."""
    if column.measure == "queries_per_memory":
        value = run.summary.queries_per_memory
        return None if value is None else Cell(f"{value:.2f}")
    metric = variant.metrics.get(column.key) or variant.metrics.get(column.measure, "")
    interval = run.summary.scores.get(metric, {}).get(variant.category or column.group)
    if interval is None:
        return None
    if metric in run.summary.withheld:
        return Cell(WITHHELD, f"n={interval.count:,}", metric)
    unexpected = "" if interval.count == column.count else f"\nn={interval.count:,}"
    return Cell(f"{100 * interval.estimate:.2f}", bounds(interval) + unexpected, metric)


WITHHELD = "withheld"


def _withheld_note(runs: Sequence[FinishedRun], rows: Iterable[Row]) -> str:
    """Why scores of a table are withheld, a sentence for each reason."""
    shown = {cell.metric for row in rows for cell in row.cells if cell is not None and cell.text == WITHHELD}
    by_reason: dict[str, dict[str, None]] = {}
    for run in runs:
        for metric in run.summary.scores:
            if metric in shown and (reason := run.summary.withheld.get(metric)):
                by_reason.setdefault(reason, {})[run.name] = None
    return " ".join(f"Withheld ({', '.join(names)}): {reason.rstrip('.')}." for reason, names in by_reason.items())


_JUDGES = (("lenient", "strict"), ("correct_qa_ratio(all)", "strict_correct_qa_ratio(all)"))
"""The scores of both judges, in the benchmarks that have two."""


def judge_table(runs: Sequence[FinishedRun]) -> Table:
    """What two judges say of the same answers, beside each other in each category."""
    pair = next((pair for pair in _JUDGES if any(set(pair) <= run.summary.scores.keys() for run in runs)), _JUDGES[0])
    judged = [run for run in runs if set(pair) <= run.summary.scores.keys()]
    categories = dict.fromkeys(name for run in judged for name in run.summary.scores[pair[0]])
    columns = columns_of(categories, {judge: judge for judge in pair}, runs[0].kind.labels if runs else {})
    both = Variant("", {judge: judge for judge in pair})
    return _filled(Table("Both judges on the same answers", columns, (both,)), judged)


def score_table(runs: Sequence[FinishedRun]) -> Table:
    """Every score of every run, by category."""
    counts: dict[str, int | None] = {}
    for run in runs:
        for name, count in run.summary.questions.by_category.items():
            counts[name] = max(count, counts.get(name) or 0)
    groups = dict.fromkeys(group for run in runs for of in run.summary.scores.values() for group in of)
    counts |= {group: None for group in (ALL, *groups) if group not in counts}
    columns = columns_of(counts, {"": ""}, runs[0].kind.labels if runs else {})
    variants = [Variant(name, {"": name}) for name in dict.fromkeys(name for run in runs for name in run.summary.scores)]
    return _filled(Table("All scores by category", columns, variants), runs)


def difference_table(runs: Sequence[FinishedRun]) -> Table:
    """Paired differences, with the intervals that leave out 0 marked."""
    titles, rows = {run.name: run.title for run in runs}, []
    for one in paired_differences(runs):
        interval = one.interval
        between = f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}"
        shown = f"{100 * interval.estimate:+.2f}{' *' if one.significant else ''}"
        difference = Cell(shown, between if interval.groups > 1 else "one group: no interval")
        cells = (difference, Cell(f"{interval.count:,}"), Cell(f"{interval.groups:,}"))
        rows.append(Row("ours", one.metric, f"{titles[one.first]} minus {titles[one.second]}", cells, group=one.metric))
    return Table(
        "Differences on the same questions, in percentage points",
        [Column(name, "", name) for name in ("difference", "questions", "groups")],
        rows=rows,
        note="Paired bootstrap by group with a 95% interval; * where it leaves out 0. The number of comparisons is not "
        "corrected for.",
    )


def _table_of_facts(
    title: str, runs: Sequence[FinishedRun], facts: Callable[[FinishedRun], Iterable[tuple[str, Cell | None]]]
) -> Table:
    """A column for each run, and a row for each fact that some run has."""
    of_runs = [dict(facts(run)) for run in runs]
    labels = dict.fromkeys(label for of_run in of_runs for label in of_run)
    rows = [Row("ours", label, "", tuple(of_run.get(label) for of_run in of_runs)) for label in labels]
    columns = [Column(run.name, "", run.title) for run in runs]
    return Table(title, columns, rows=[row for row in rows if any(row.cells)])


def _costs(run: FinishedRun) -> Iterator[tuple[str, Cell | None]]:
    """Tokens, calls, seconds, context, latency and failures; over all invocations, cached answers included."""
    summary = run.summary
    counts, sessions, stages = summary.questions, summary.sessions, summary.failures.by_stage
    failed = f"{counts.failed:,} failed" if counts.failed else ""
    yield "questions answered, of those in the file", Cell(f"{counts.answered:,} of {counts.total:,}", failed)
    yield "failures", Cell(f"{sum(stages.values()):,}", _by_stage(stages))
    broken = {name: sessions[name] for name in ("unreadable", "failed", "late") if sessions.get(name)}
    ingested = f"{sessions.get('applied', 0):,} of {sessions.get('total', 0):,}"
    yield "sessions ingested", Cell(ingested, _by_stage(broken)) if sessions.get("total") else None
    yield "memories written", None if summary.memories is None else Cell(f"{summary.memories['written']:,}")
    queries, context = summary.queries_per_memory, summary.context_tokens
    yield "searches of the system by memory", None if queries is None else Cell(f"{queries:.2f}")
    if context is not None:
        spread = f"p50 {context['p50']:,.0f}, p95 {context['p95']:,.0f}"
        yield "context tokens by answer, estimated", Cell(f"{context['mean']:,.0f}", spread)
    labels = {"prompt_tokens": "tokens read", "completion_tokens": "tokens written", "calls": "calls"}
    # What it came to to measure all judges is not part of the cost of judging.
    probed = {name: sum(probe.get("cost", {}).get(name, 0) for probe in summary.probes) for name in labels}
    for part, cost in (summary.cost | {"probes": probed}).items():
        cached = f"{cost['cached']:,.0f} from the cache" if cost.get("cached") else ""
        for name, label in labels.items():
            yield f"{part}: {label}", _amount(cost.get(name), small=cached if name == "calls" else "")
        yield f"{part}: seconds, summed over calls", _amount(cost.get("seconds"), digits=1)
        if latency := summary.latency.get(part):
            yield f"{part}: seconds, p50 / p95", Cell(f"{latency['p50']:.3g} / {latency['p95']:.3g}")
    for stage, seconds in summary.seconds.items():
        yield f"wall seconds of the last invocation, {stage}", Cell(f"{seconds:,.1f}")


def _amount(value: float | None, digits: int = 0, small: str = "") -> Cell | None:
    return Cell(f"{value:,.{digits}f}", small) if value else None


def _by_stage(stages: Mapping[str, int]) -> str:
    return ", ".join(f"{stage} {count:,}" for stage, count in stages.items())


def _probes(run: FinishedRun) -> Iterator[tuple[str, Cell]]:
    """How often each judge accepts what is known to be wrong, and rejects what is known to be right."""
    for probe in run.summary.probes:
        for name, label in (("false_accept", "calls wrong answers right"), ("false_reject", "calls right answers wrong")):
            if rate := probe.get(name):
                small = f"{100 * rate['low']:.0f} to {100 * rate['high']:.0f}, n={rate['count']}"
                yield f"{probe.get('judge')} judge {label}", Cell(f"{100 * rate['estimate']:.1f}", small)
