"""The tables of a comparison: the papers' layouts and which of our scores stand in them, paired differences, costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, groupby
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from pydantic import Field

from deltamem.config import StrictModel
from deltamem.intervals import RESAMPLES, Interval, bootstrap_interval
from eval.beam import scores as beam
from eval.beam.data import ABILITIES
from eval.compare.runs import CLOSED_BOOK, Card, FinishedRun, bounds, cards, differences
from eval.longmemeval import scores as longmemeval
from eval.longmemeval.data import TYPES
from eval.personamem.data import COUNTS_32K, LABELS
from eval.personamem.scores import CORRECT, FINAL
from eval.summary import ALL, Value, answer_value, retrieval_values, verdict_value


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table with a heading of two lines."""

    group: str  # What is measured: a category, an operation, or `all`
    measure: str  # Which score
    name: str  # Upper line of the heading without the count, the same for neighbours of one group
    heading: str = ""  # Lower line; empty where there is one column of the group
    count: int | None = None  # Questions of the group in the whole benchmark; None where that is not questions

    @property
    def key(self) -> str:
        """Names the column in ``published.yaml``."""
        return f"{self.group}/{self.measure}"

    @property
    def title(self) -> str:
        """Upper line of the heading."""
        return self.name if self.count is None else f"{self.name} {self.count:,}"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to fill a row of a run, where there are several scores for what a paper has one."""

    label: str  # Says which; empty if there is only one
    # Name of the metric by measure, or by group and measure; measures that are not there stay empty
    metrics: Mapping[str, str]
    category: str | None = None  # Category of the metric; None means the group of the column


@dataclass(frozen=True, slots=True)
class Cell:
    """A number as it is shown, what stands under it, and the name of our metric that it is."""

    text: str
    small: str = ""
    metric: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row with one cell for each column; None is empty."""

    # `ours` was measured by a run that is shown; `missing` was not run; `published` is what others reported
    kind: Literal["ours", "missing", "published"]
    label: str  # The run or the system
    detail: str  # More about it: variant, or doubts
    cells: tuple[Cell | None, ...]
    source: str = ""  # Where a published row was printed, and under which conditions
    group: str = ""  # What the row has in its columns, where other rows of the table have other scores


@dataclass(frozen=True, slots=True)
class Table:
    """A table; in `LAYOUTS` without rows, which are ours, then those not run, then published ones."""

    title: str
    columns: Sequence[Column]
    variants: Sequence[Variant] = ()  # Rows of each run
    id: str = ""  # Names the table of a paper in `published.yaml`
    rows: Sequence[Row] = ()
    note: str = ""  # What the reader must know, below the table
    banner: str = ""  # Above it: why it must not be read as what its title says

    def groups(self) -> list[tuple[str, int]]:
        """The upper line of the heading: title and number of columns below it."""
        return [(title, len(list(columns))) for title, columns in groupby(self.columns, lambda column: column.title)]

    def parts(self) -> list[tuple[str, str, list[Row]]]:
        """Rows that can be compared and sorted among themselves: their kind, what stands above them, and the rows."""
        found = groupby(self.rows, lambda row: (row.kind, f"published: {row.source}" if row.source else row.group))
        return [(kind, above, list(rows)) for (kind, above), rows in found]


LOCOMO_COUNTS = {"single-hop": 841, "multi-hop": 282, "open-domain": 96, "temporal": 321, ALL: 1540}
"""Questions by category, in the order of the paper's table; ``all`` leaves out category 5."""


_NAMES = {**LABELS, ALL: "Overall", "update": "Updating", "qa": "QA"}


def columns_of(groups: Mapping[str, int | None], measures: Mapping[str, str]) -> tuple[Column, ...]:
    """A column for each group, by its count, and each measure, by its heading."""
    return tuple(
        Column(group, measure, _NAMES.get(group) or f"{group[:1].upper()}{group[1:].replace('_', ' ')}", heading, count)
        for group, count in groups.items()
        for measure, heading in measures.items()
    )


_OUTCOMES = {"correct": "C", "hallucination": "H", "omission": "O"}
_ANSWERS = columns_of({"update": None, "qa": None}, _OUTCOMES)
_EXTRACTION = {"recall": "R", "weighted_recall": "Weighted R", "target_precision": "Target P", "accuracy": "Acc."}
_EXTRACTION |= {"resistance": "FMR", "f1": "F1"}


def _halumem(scope: str) -> dict[str, str]:
    return {
        "extraction/recall": f"recall({scope})",
        "extraction/weighted_recall": f"weighted_recall({scope})",
        "extraction/target_precision": f"target_accuracy({scope})",
        "extraction/accuracy": f"weighted_accuracy({scope})",
        "extraction/resistance": f"interference_accuracy({scope})",
        **{f"update/{label}": f"{label}_update_memory_ratio({scope})" for label in _OUTCOMES},
        **{f"qa/{label}": f"{label}_qa_ratio({scope})" for label in _OUTCOMES},
    }


_STRICT = {f"qa/{label}": f"strict_{label}_qa_ratio(all)" for label in _OUTCOMES}
_HALUMEM = (
    Variant("failed judges count", {"extraction/f1": "memory_extraction_f1", **_halumem("all")}, ALL),
    Variant("failed judges left out", _halumem("valid"), ALL),
    Variant("strict judge of answers, failed judges count", _STRICT, ALL),
)

LAYOUTS: Mapping[str, tuple[Table, ...]] = {
    "locomo": (
        Table(
            "as in Table 1 of the DeltaMem paper",
            columns_of(LOCOMO_COUNTS, {"bleu1": "B1", "f1": "F1", "judge": "LJ"}),
            (
                Variant("F1 of Mem0 (set_f1), lenient judge", {"bleu1": "bleu1", "f1": "set_f1", "judge": "lenient"}),
                Variant("F1 of LoCoMo (locomo_f1), strict judge", {"f1": "locomo_f1", "judge": "strict"}),
                Variant("F1 of MemOS (token_set_f1)", {"f1": "token_set_f1"}),
            ),
            id="locomo",
            note="Columns are told apart by their counts, because names are swapped between harnesses. Papers do not say "
            "which F1 theirs is. No judge here is the papers' LJ: theirs is a CORRECT/WRONG prompt in Mem0's wording, "
            "mostly with GPT-4o-mini (Mem0: mean of ten judge runs, MemOS: of three, others: one), and it reads answers "
            "to other prompts, mostly by GPT-4o-mini. The lenient judge follows the same practice in our wording; the "
            "table of both judges shows how much a judge alone can change.",
        ),
        Table(
            "category 5: share of questions without an answer at which the run abstained",
            columns_of({"adversarial": 446}, {"abstention": "official rule", "abstention_judge": "judge"}),
            (Variant("", {"abstention": "abstention", "abstention_judge": "abstention_judge"}),),
            id="abstention",
        ),
        Table(
            "searches of the system by memory that it wrote, as in Table 7 of the DeltaMem paper",
            (Column(ALL, "queries_per_memory", "Queries per memory"), Column(ALL, "judge", "LJ", "", LOCOMO_COUNTS[ALL])),
            (Variant("lenient judge", {"judge": "lenient"}),),
            id="queries",
        ),
    ),
    "personamem": (
        Table(
            "as in Table 2 of the DeltaMem paper",
            columns_of(COUNTS_32K | {ALL: sum(COUNTS_32K.values())}, {"accuracy": ""}),
            (
                Variant("official rule", {"accuracy": "accuracy"}),
                Variant("final answer alone", {"accuracy": "accuracy_final"}),
            ),
            id="personamem",
            note="The official rule, which papers use, has two guesses: the letter of the final answer, else the only one "
            "that the text names.",
        ),
    ),
    "longmemeval": (
        Table(
            "as in Table 3 of the Zep paper",
            columns_of(TYPES | {ALL: sum(TYPES.values())}, {"accuracy": ""}),
            (Variant("", {"accuracy": "accuracy"}),),
            id="longmemeval",
            note="Published rows are of the file before its histories were cleaned in September 2025.",
        ),
    ),
    "came": (
        Table(
            "as in Table 1 of the STITCH paper",
            columns_of({ALL: None}, {"precision": "P", "recall": "R", "f1": "F1", "reader": "F1 of a perfect reader"}),
            (Variant("", {name: f"answer_{name}" for name in ("precision", "recall", "f1")} | {"reader": "reader_f1"}),),
            id="came",
            note="Published rows are of the paper's own data: sizes and types of questions are alike; words, "
            "worlds and models are not. Compare rows of one size alone.",
        ),
    ),
    "beam": (
        Table(
            "abilities as in its paper",
            columns_of(dict.fromkeys((*ABILITIES, ALL)), {"score": ""}),
            (Variant("", {"score": "score"}), Variant("partly met counts as not met", {"score": "score_strict"})),
            id="beam",
            note="Sizes are apart from each other: compare rows of one size alone.",
        ),
    ),
    "halumem": (
        Table(
            "as in Tables 3 and 6 of the DeltaMem paper",
            (*columns_of({"extraction": None}, {"f1": "F1"}), *_ANSWERS),
            _HALUMEM,
            id="halumem",
            note="QA: question answering. C: correct, H: hallucination, O: omission. Published rows are of HaluMem-Medium.",
        ),
        Table(
            "as in Table 3 of the HaluMem paper",
            (*columns_of({"extraction": None}, _EXTRACTION), *_ANSWERS),
            _HALUMEM,
            id="operations",
        ),
    ),
}
"""By benchmark."""

BASELINES = (CLOSED_BOOK, "full_context", "naive_rag")
"""Systems without which the score of a memory says nothing: what is known without any memory, what the whole
conversation gives, what plain search gives. Each table has a row for them."""


class PublishedTable(StrictModel):
    """Rows of one source."""

    table: str  # The layout that they belong to, see `LAYOUTS`
    source: str
    note: str = ""  # Conditions that differ from ours
    columns: list[str]  # `<group>/<measure>` of each value
    # Values by name of the system, in percent, or counts; None where nothing is given
    rows: dict[str, list[float | None]]
    doubts: dict[str, str] = Field(default_factory=dict)  # What does not add up, by row

    def values(self, system: str) -> dict[str, float]:
        """What is given of a row, by column."""
        return {name: value for name, value in zip(self.columns, self.rows[system], strict=True) if value is not None}


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Everything in ``published.yaml``."""
    content: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("published.yaml")))
    return tuple(PublishedTable.model_validate(table) for table in content["tables"])


_OWN_VALUES: Mapping[str, Mapping[str, Value]] = {
    "halumem": {
        "correct_qa_ratio(all)": verdict_value("qa"),
        "strict_correct_qa_ratio(all)": verdict_value("qa_strict"),
    },
    "personamem": {"accuracy": answer_value(CORRECT), "accuracy_final": answer_value(FINAL)},
    "longmemeval": longmemeval.VALUES,
    "beam": beam.VALUES,
}
"""By family the scores that records do not have under their name."""


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
    known |= _OWN_VALUES.get(run.family, {})
    return {name: known[name] for name in run.summary.scores if name in known}


def _pooled(run: FinishedRun, metric: str) -> set[str]:
    """The categories whose questions make up ``all``; where it is empty, those that have the score."""
    scored = {name for name, interval in run.summary.scores[metric].items() if interval is not None and name != ALL}
    return scored & set(run.summary.protocol.get("pooled", scored)) or scored


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything about the runs of one benchmark, for the page, the terminal and LaTeX."""

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
    for layout in LAYOUTS.get(runs[0].family, ()) if runs else ():
        for published in (True, False):
            if group := [run for run in runs if run.published_data is published]:
                table = paper_table(layout, group)
                rows = [*table.rows, *_missing_rows(table, group), *(_published_rows(layout) if published else ())]
                tables.append(replace(table, rows=rows))
    return tables


def paper_table(layout: Table, runs: Sequence[FinishedRun]) -> Table:
    """Our rows in the layout of a paper; without the counts of the benchmark if a run is not on the published file."""
    if not all(run.published_data for run in runs):
        uncounted = [replace(column, count=None) for column in layout.columns]
        layout = replace(layout, columns=uncounted, banner=OTHER_DATA, note="")
    return _filled(replace(layout, title=f"{_benchmark(runs)}, {layout.title}"), runs)


def _filled(layout: Table, runs: Sequence[FinishedRun]) -> Table:
    rows = [row for run in runs for row in _our_rows(layout, run)]
    groups = list(dict.fromkeys(row.group for row in rows))
    rows.sort(key=lambda row: groups.index(row.group))
    return replace(layout, rows=rows, note=" ".join(filter(None, (layout.note, _withheld_note(runs, rows)))))


def _published_rows(layout: Table) -> Iterator[Row]:
    for table in published_tables():
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
    if layout.id == "locomo" and (ceiling := run.summary.ceiling):
        shares = (ceiling.get(column.group) if column.measure == "judge" else None for column in layout.columns)
        cells = tuple(None if share is None else Cell(f"{100 * share:.2f}") for share in shares)
        label = "ceiling: share of gold answers that the audit found right"
        yield Row("ours", run.title, label, cells, group=label)


def _our_cell(column: Column, variant: Variant, run: FinishedRun) -> Cell | None:
    if column.measure == "queries_per_memory":
        value = run.summary.queries_per_memory
        return None if value is None else Cell(f"{value:.2f}")
    metric = variant.metrics.get(column.key) or variant.metrics.get(column.measure)
    return None if metric is None else _score_cell(run, metric, variant.category or column.group, column.count)


WITHHELD = "withheld"


def _score_cell(run: FinishedRun, metric: str, group: str, count: int | None) -> Cell | None:
    """A score in percent over its interval, with its count where that is not the expected one; `WITHHELD` if it is."""
    interval = run.summary.scores.get(metric, {}).get(group)
    if interval is None:
        return None
    if metric in run.summary.withheld:
        return Cell(WITHHELD, f"n={interval.count:,}", metric)
    small = bounds(interval)
    if interval.count != count:
        small += f"\nn={interval.count:,}"
    return Cell(f"{100 * interval.estimate:.2f}", small, metric)


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
    columns = columns_of(categories, {judge: judge for judge in pair})
    both = Variant("", {judge: judge for judge in pair})
    return _filled(Table("Both judges on the same answers", columns, (both,)), judged)


def score_table(runs: Sequence[FinishedRun]) -> Table:
    """Every score of every run, by category."""
    metrics = dict.fromkeys(metric for run in runs for metric in run.summary.scores)
    return _filled(layout_of_scores("All scores by category", runs, list(metrics)), runs)


def layout_of_scores(title: str, runs: Sequence[FinishedRun], metrics: Sequence[str]) -> Table:
    """Scores by category, for what no paper has a table of."""
    counts: dict[str, int | None] = {}
    for run in runs:
        for name, count in run.summary.questions.by_category.items():
            counts[name] = max(count, counts.get(name) or 0)
    groups = dict.fromkeys(group for run in runs for metric in metrics for group in run.summary.scores.get(metric, ()))
    counts |= {group: None for group in (ALL, *groups) if group not in counts}
    return Table(title, columns_of(counts, {"": ""}), [Variant(name, {"": name}) for name in metrics])


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
    counts, sessions, stages = summary.questions, summary.sessions, summary.failures.get("by_stage", {})
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
