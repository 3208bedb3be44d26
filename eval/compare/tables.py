"""The tables of a comparison: scores in the papers' layouts, paired differences, costs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

from deltamem.config import CONFIGS
from eval.compare.runs import Run, Spread, Summary, published_rows
from eval.metrics import Interval, bootstrap_interval
from eval.personamem.data import COUNTS_32K, LABELS
from eval.records import QuestionRecord
from eval.summary import Value, answer_value, recall_value, reciprocal_rank_value, verdict_value

_READ_FROM = {"accuracy": "correct", "correct_qa_ratio(valid)": "qa", "strict_correct_qa_ratio(valid)": "qa_strict"}
"""Scores that have another name in the records, and the name there."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better one run is than another.

    Attributes:
        metric: Name of the score.
        first: Name of the run.
        second: Name of the run that is taken from it.
        interval: First minus second, over the questions for which both have a value.
        apart: Whether the interval leaves out 0; False where there is one group only, which has no interval.
    """

    metric: str
    first: str
    second: str
    interval: Interval
    apart: bool


def paired_differences(runs: Sequence[Run], *, resamples: int = 2000, seed: int = 0) -> list[Difference]:
    """Compare every two runs of a benchmark on every score that both have.

    Args:
        runs: Of one benchmark. Two runs of other data, or that gave a key to other questions, are not compared.
        resamples: Bootstrap draws of groups; the same in all comparisons.
        seed: Seed of the draws.

    Returns:
        By pair and score. Questions that count for no ``all`` in the summary (LoCoMo's category 5) count here only for the
        scores that they alone have.
    """
    found = []
    for first, second in combinations(runs, 2):
        if first.summary.data.get("sha256") != second.summary.data.get("sha256"):
            continue
        others = {record.key: record for record in second.questions}
        pairs = [(record, others[record.key]) for record in first.questions if record.key in others]
        pairs = [(one, two) for one, two in pairs if one.question == two.question]
        for metric in first.summary.scores:
            if metric in second.summary.scores and (value := _value(metric, first.questions)) is not None:
                pooled = _pooled(first, metric)
                kept = [pair for pair in pairs if pair[0].category in pooled]
                interval = _difference(kept, value, resamples, seed)
                if interval is not None:
                    apart = interval.groups > 1 and (interval.low > 0 or interval.high < 0)
                    found.append(Difference(metric, first.name, second.name, interval, apart))
    return found


def _value(metric: str, questions: Sequence[QuestionRecord]) -> Value | None:
    """How a question's value is read from its record; None for scores that are not of questions."""
    if metric == "mrr":
        return reciprocal_rank_value
    name, _, k = metric.partition("@")
    if name == "recall" and k.isdecimal() and int(k) > 0:
        return recall_value(int(k))
    noted = _READ_FROM.get(metric, metric)
    answers = [answer for record in questions for answer in record.answers]
    if any(noted in answer.verdicts for answer in answers):
        return verdict_value(noted)
    return answer_value(noted) if any(noted in answer.scores for answer in answers) else None


def _pooled(run: Run, metric: str) -> set[str]:
    """The categories whose questions make up ``all``; where it is empty, those that have the score."""
    scores = run.summary.scores[metric]
    counts = {name: interval.count for name, interval in scores.items() if interval is not None and name != "all"}
    everything = scores.get("all")
    if everything is None or everything.count == sum(counts.values()):
        return set(counts)
    pooled = run.summary.protocol.get("pooled")
    return set(pooled) if isinstance(pooled, list) else {name for name in counts if name != "adversarial"}


def _difference(
    pairs: Sequence[tuple[QuestionRecord, QuestionRecord]], value: Value, resamples: int, seed: int
) -> Interval | None:
    differences, groups = [], []
    for one, two in pairs:
        worth, other = value(one), value(two)
        if worth is not None and other is not None:
            differences.append(worth - other)
            groups.append(one.group)
    return bootstrap_interval(differences, groups, resamples=resamples, seed=seed)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table with a heading of two lines.

    Attributes:
        group: What is measured: a category, an operation, or ``all``.
        measure: Which score.
        title: Upper line, the same for neighbours of one group.
        heading: Lower line; empty where there is one column of the group.
        count: Questions of the group in the whole benchmark; None where that is not questions.
    """

    group: str
    measure: str
    title: str
    heading: str = ""
    count: int | None = None

    @property
    def key(self) -> str:
        """Names the column in ``published.yaml``."""
        return f"{self.group}/{self.measure}"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to fill a row of a run, where there are several scores for what a paper has one.

    Attributes:
        label: Says which; empty if there is only one.
        metrics: Name of the metric by measure, or by group and measure; measures that are not there stay empty.
        category: Category of the metric; None means the group of the column.
    """

    label: str
    metrics: Mapping[str, str]
    category: str | None = None

    def metric(self, column: Column) -> str | None:
        """The metric that stands in a column."""
        return self.metrics.get(column.key) or self.metrics.get(column.measure)


@dataclass(frozen=True, slots=True)
class Layout:
    """One table.

    Attributes:
        id: Names it in ``published.yaml``.
        title: Above the table.
        columns: In order.
        variants: Rows of each run.
        by_measure: Whether the terminal shows one table for each measure, because there are too many columns.
        note: What the reader must know.
    """

    id: str
    title: str
    columns: tuple[Column, ...]
    variants: tuple[Variant, ...]
    by_measure: bool = False
    note: str = ""


LOCOMO_COUNTS = {"single-hop": 841, "multi-hop": 282, "open-domain": 96, "temporal": 321, "all": 1540}
"""Questions by category, in the order of the paper's table; ``all`` leaves out category 5."""

_LOCOMO_TITLES = {
    "single-hop": "Single-hop",
    "multi-hop": "Multi-hop",
    "open-domain": "Open-domain",
    "temporal": "Temporal",
    "all": "Overall",
}


def _locomo(measures: Mapping[str, str]) -> tuple[Column, ...]:
    return tuple(
        Column(group, measure, f"{_LOCOMO_TITLES[group]} {count:,}", heading, count)
        for group, count in LOCOMO_COUNTS.items()
        for measure, heading in measures.items()
    )


def _halumem(group: str, title: str, headings: Mapping[str, str]) -> tuple[Column, ...]:
    return tuple(Column(group, measure, title, heading) for measure, heading in headings.items())


_OUTCOMES = {"correct": "C", "hallucination": "H", "omission": "O"}
_UPDATE = _halumem("update", "Updating", _OUTCOMES)
_QA = _halumem("qa", "QA", _OUTCOMES)


def _halumem_variants() -> tuple[Variant, ...]:
    def metrics(scope: str) -> dict[str, str]:
        return {
            "extraction/recall": f"recall({scope})",
            "extraction/weighted_recall": f"weighted_recall({scope})",
            "extraction/target_precision": f"target_accuracy({scope})",
            "extraction/accuracy": f"weighted_accuracy({scope})",
            "extraction/resistance": f"interference_accuracy({scope})",
            **{f"update/{label}": f"{label}_update_memory_ratio({scope})" for label in _OUTCOMES},
            **{f"qa/{label}": f"{label}_qa_ratio({scope})" for label in _OUTCOMES},
        }

    return (
        Variant("failed judges count", {"extraction/f1": "memory_extraction_f1", **metrics("all")}, "all"),
        Variant("failed judges left out", metrics("valid"), "all"),
        Variant(
            "strict judge of answers, failed judges count",
            {f"qa/{label}": f"strict_{label}_qa_ratio(all)" for label in _OUTCOMES},
            "all",
        ),
    )


LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    "locomo": (
        Layout(
            "locomo",
            "LoCoMo, as in Table 1 of the DeltaMem paper",
            _locomo({"bleu1": "B1", "f1": "F1", "judge": "LJ"}),
            (
                Variant("F1 of Mem0 (set_f1), lenient judge", {"bleu1": "bleu1", "f1": "set_f1", "judge": "lenient"}),
                Variant("F1 of LoCoMo (locomo_f1), strict judge", {"f1": "locomo_f1", "judge": "strict"}),
                Variant("F1 of MemOS (token_set_f1)", {"f1": "token_set_f1"}),
            ),
            by_measure=True,
            note="Papers do not say which F1 theirs is. Columns are told apart by their counts, because names are swapped "
            "between harnesses. The lenient judge is the one to compare with the papers' LJ.",
        ),
        Layout(
            "abstention",
            "LoCoMo category 5: share of questions without an answer at which the run abstained",
            (
                Column("adversarial", "abstention", "Adversarial 446", "official rule", 446),
                Column("adversarial", "abstention_judge", "Adversarial 446", "judge", 446),
            ),
            (Variant("", {"abstention": "abstention", "abstention_judge": "abstention_judge"}),),
        ),
        Layout(
            "queries",
            "LoCoMo, searches of the system by memory that it wrote, as in Table 7 of the DeltaMem paper",
            (
                Column("all", "queries_per_memory", "Queries per memory"),
                Column("all", "judge", "LJ", "", LOCOMO_COUNTS["all"]),
            ),
            (Variant("lenient judge", {"judge": "lenient"}),),
        ),
    ),
    "personamem": (
        Layout(
            "personamem",
            "PersonaMem 32k, as in Table 2 of the DeltaMem paper",
            (
                *(Column(name, "accuracy", f"{LABELS[name]} {count}", "", count) for name, count in COUNTS_32K.items()),
                Column("all", "accuracy", f"Overall {sum(COUNTS_32K.values())}", "", sum(COUNTS_32K.values())),
            ),
            (Variant("", {"accuracy": "accuracy"}),),
        ),
    ),
    "halumem": (
        Layout(
            "halumem",
            "HaluMem, as in Tables 3 and 6 of the DeltaMem paper",
            (Column("extraction", "f1", "Extraction", "F1"), *_UPDATE, *_QA),
            _halumem_variants(),
            note="QA: question answering. C: correct, H: hallucination, O: omission. Published rows are of HaluMem-Medium.",
        ),
        Layout(
            "operations",
            "HaluMem, as in Table 3 of the HaluMem paper",
            (
                *_halumem(
                    "extraction",
                    "Extraction",
                    {
                        "recall": "R",
                        "weighted_recall": "Weighted R",
                        "target_precision": "Target P",
                        "accuracy": "Acc.",
                        "resistance": "FMR",
                        "f1": "F1",
                    },
                ),
                *_UPDATE,
                *_QA,
            ),
            _halumem_variants(),
        ),
    ),
}
"""By benchmark."""

_PARTS = ("ingest", "search", "answer", "judge")


def cost_table(runs: Sequence[Run]) -> Table:
    """Tokens, calls, seconds, context, latency and failures of each run; over all invocations, cached answers included."""
    rows = [
        _row("questions answered, of those in the file", map(_answered, runs)),
        _row("failures", map(_failures, runs)),
        _row("sessions taken in", map(_sessions, runs)),
        _row("memories written", map(_memories, runs)),
        _row("searches of the system by memory", map(_queries, runs)),
        _row("context tokens by answer, estimated", map(_context, runs)),
    ]
    for part in _PARTS:
        if part != "search":
            rows.append(_row(f"{part}: tokens read", (_cost(run, part, "prompt_tokens") for run in runs)))
            rows.append(_row(f"{part}: tokens written", (_cost(run, part, "completion_tokens") for run in runs)))
            rows.append(_row(f"{part}: calls", (_calls(run, part) for run in runs)))
        rows.append(_row(f"{part}: seconds, summed over calls", (_cost(run, part, "seconds", digits=1) for run in runs)))
        rows.append(_row(f"{part}: seconds, p50 / p95", (_spread(run.summary.latency.get(part)) for run in runs)))
    for name, label in (("prompt_tokens", "tokens read"), ("completion_tokens", "tokens written"), ("calls", "calls")):
        rows.append(_row(f"probes: {label}", (_probing(run, name) for run in runs)))
    for stage in dict.fromkeys(stage for run in runs for stage in run.summary.seconds):
        rows.append(_row(f"wall seconds of the last invocation, {stage}", (_wall(run, stage) for run in runs)))
    return Table("Cost", _columns(runs), [row for row in rows if any(row.cells)])


def probe_table(runs: Sequence[Run]) -> Table:
    """How often each judge accepts what is known to be wrong, and rejects what is known to be right."""
    rows = []
    for judge in dict.fromkeys(str(probe.get("judge")) for run in runs for probe in run.summary.probes):
        for rate, label in (("false_accept", "calls wrong answers right"), ("false_reject", "calls right answers wrong")):
            cells = tuple(_probe(run, judge, rate) for run in runs)
            rows.append(Row("ours", f"{judge} judge", label, cells))
    return Table("Judges on probe answers that are known to be right or wrong, in percent", _columns(runs), rows)


def difference_table(differences: Sequence[Difference]) -> Table:
    """Paired differences, with the intervals that leave out 0 marked."""
    columns = (Column("difference", "", "difference"), Column("questions", "", "questions"), Column("groups", "", "groups"))
    rows = []
    for one in differences:
        interval = one.interval
        small = (
            f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}" if interval.groups > 1 else "one group: no interval"
        )
        cells = (
            Cell(f"{100 * interval.estimate:+.2f}{' *' if one.apart else ''}", small),
            Cell(f"{interval.count:,}"),
            Cell(f"{interval.groups:,}"),
        )
        rows.append(Row("ours", one.metric, f"{one.first} minus {one.second}", cells))
    return Table(
        "Differences on the same questions, in percentage points",
        columns,
        rows,
        note="Paired bootstrap by group with a 95% interval; * where it leaves out 0. The number of comparisons is not "
        "corrected for.",
    )


def _row(label: str, cells: Iterable[Cell | None]) -> Row:
    return Row("ours", label, "", tuple(cells))


def _columns(runs: Sequence[Run]) -> tuple[Column, ...]:
    return tuple(Column(run.name, "", run.name) for run in runs)


def _answered(run: Run) -> Cell:
    counts = run.summary.questions
    return Cell(f"{counts.answered:,} of {counts.total:,}", f"{counts.failed:,} failed" if counts.failed else "")


def _by_stage(stages: Mapping[str, int]) -> str:
    return ", ".join(f"{stage} {count:,}" for stage, count in stages.items())


def _sessions(run: Run) -> Cell | None:
    sessions = run.summary.sessions
    if not sessions.get("total"):
        return None
    broken = {name: sessions.get(name, 0) for name in ("unreadable", "failed", "late") if sessions.get(name)}
    return Cell(f"{sessions.get('applied', 0):,} of {sessions['total']:,}", _by_stage(broken))


def _context(run: Run) -> Cell | None:
    context = run.summary.context_tokens
    return None if context is None else Cell(f"{context.mean:,.0f}", f"p50 {context.p50:,.0f}, p95 {context.p95:,.0f}")


def _failures(run: Run) -> Cell:
    return Cell(f"{run.summary.failures.count:,}", _by_stage(run.summary.failures.by_stage))


def _memories(run: Run) -> Cell | None:
    memories = run.summary.memories
    return None if memories is None else Cell(f"{memories['written']:,}")


def _queries(run: Run) -> Cell | None:
    value = run.summary.queries_per_memory
    return None if value is None else Cell(f"{value:.2f}")


def _cost(run: Run, part: str, name: str, digits: int = 0) -> Cell | None:
    value = run.summary.cost.get(part, {}).get(name)
    return None if not value else Cell(f"{value:,.{digits}f}")


def _calls(run: Run, part: str) -> Cell | None:
    cost = run.summary.cost.get(part, {})
    if not cost.get("calls"):
        return None
    cached = f"{cost['cached']:,.0f} from the cache" if cost.get("cached") else ""
    return Cell(f"{cost['calls']:,.0f}", cached)


def _probing(run: Run, name: str) -> Cell | None:
    """What it came to to measure all judges; not part of the cost of judging."""
    value = sum(probe.get("cost", {}).get(name, 0) for probe in run.summary.probes)
    return Cell(f"{value:,.0f}") if value else None


def _spread(spread: Spread | None) -> Cell | None:
    return None if spread is None else Cell(f"{spread.p50:.3g} / {spread.p95:.3g}")


def _wall(run: Run, stage: str) -> Cell | None:
    value = run.summary.seconds.get(stage)
    return None if value is None else Cell(f"{value:,.1f}")


def _probe(run: Run, judge: str, rate: str) -> Cell | None:
    for probe in run.summary.probes:
        if probe.get("judge") == judge and isinstance(measured := probe.get(rate), Mapping):
            small = f"{100 * measured['low']:.0f} to {100 * measured['high']:.0f}, n={measured['count']}"
            return Cell(f"{100 * measured['estimate']:.1f}", small)
    return None


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
        by_measure: See `eval.compare.tables.Layout`.
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
