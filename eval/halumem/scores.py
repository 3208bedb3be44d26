"""HaluMem's scores: extraction, updates, questions, by the official formulas; tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from rich.table import Table

from deltamem.intervals import Interval, group_interval, percent_text, with_width
from eval.compare.layout import ALL, Variant, columns_of
from eval.compare.layout import Table as PaperTable
from eval.halumem.data import QUESTION_TYPES, HalumemConfig
from eval.metrics import cumulative_accuracy
from eval.records import MemoryType, PointRecord, QuestionRecord
from eval.scores import GOLD_WORDS, Value, answer_value, judge_runs, metric_scores, retrieval_values, verdict_value
from eval.summary import Summary, counted, score_cells, score_table

JudgedKind = Literal["integrity", "accuracy", "update", "qa"]

LABELS: Mapping[str, tuple[str, ...]] = {
    "integrity": ("2", "1", "0"),
    "accuracy": ("2", "1", "0"),
    "update": ("correct", "hallucination", "omission", "other"),
    "qa": ("correct", "hallucination", "omission"),
}
"""What the judge of each kind may say."""


@dataclass(frozen=True, slots=True)
class JudgeRecord:
    """What one judge said about one thing."""

    kind: JudgedKind  # Which judge; see `LABELS` for what it may say
    label: str | None  # The verdict; None if the judge failed, or if what it should have judged failed
    memory_type: str | None = None  # Of a point (`integrity`, `update`)
    source: str | None = None  # Of a point; `interference` is set apart
    importance: float | None = None  # Weight of a point in weighted recall
    # Of an extracted memory (`accuracy`): whether the gold points have all its fields; None if unknown
    included: bool | None = None
    silent: bool = False  # Whether there is no label because the answerer gave no answer (`qa`): no failure of the judge

    @property
    def score(self) -> int:
        """The points of an ``integrity`` or ``accuracy`` verdict: 0, 1 or 2; 0 if it failed."""
        return int(self.label or 0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A ratio of sums."""

    belongs: Callable[[JudgeRecord], bool]  # Which records it is about
    value: Callable[[JudgeRecord], float]  # What a record adds to the numerator; only asked of records with a label
    weight: Callable[[JudgeRecord], float] = lambda record: 1.0  # What a record adds to the denominator

    def terms(self, records: Iterable[JudgeRecord], *, valid: bool) -> Iterator[tuple[int, float, float]]:
        """Position, numerator and denominator of each record that counts."""
        for position, record in enumerate(records):
            if self.belongs(record) and not (valid and record.label is None):
                yield position, 0.0 if record.label is None else self.value(record), self.weight(record)

    def ratio(self, records: Iterable[JudgeRecord], *, valid: bool) -> float | None:
        """The metric; None if the denominator is 0."""
        terms = list(self.terms(records, valid=valid))
        total = sum(weight for _, _, weight in terms)
        return sum(value for _, value, _ in terms) / total if total else None


def _expected(record: JudgeRecord) -> bool:
    return record.kind == "integrity" and record.source != "interference"


def _importance(record: JudgeRecord) -> float:
    return 1.0 if record.importance is None else record.importance


def _share(kind: JudgedKind, label: str) -> Metric:
    return Metric(lambda record: record.kind == kind, lambda record: float(record.label == label))


def _of_type(memory_type: str) -> Metric:
    return Metric(
        lambda record: record.kind in ("integrity", "update") and record.memory_type == memory_type,
        lambda record: float(record.label in ("2", "correct")),
    )


RECALL = Metric(_expected, lambda record: float(record.score == 2))
TARGET_ACCURACY = Metric(
    lambda record: record.kind == "accuracy" and record.included is True, lambda record: 0.5 * record.score
)

METRICS: Mapping[str, Mapping[str, Metric]] = {
    "memory_integrity": {
        "recall": RECALL,
        "weighted_recall": Metric(_expected, lambda record: 0.5 * record.score * _importance(record), _importance),
    },
    "memory_accuracy": {
        "target_accuracy": TARGET_ACCURACY,
        "weighted_accuracy": Metric(lambda record: record.kind == "accuracy", lambda record: 0.5 * record.score),
        "interference_accuracy": Metric(
            lambda record: record.kind == "integrity" and record.source == "interference",
            lambda record: float(record.score == 0),
        ),
    },
    "memory_update": {f"{label}_update_memory_ratio": _share("update", label) for label in LABELS["update"]},
    "question_answering": {f"{label}_qa_ratio": _share("qa", label) for label in LABELS["qa"]},
    "memory_type_accuracy": {name: _of_type(name) for name in get_args(MemoryType)},
}
"""All ratios under the names of the benchmark's own toolkit. Interference records count in ``memory_type_accuracy``."""


def aggregate(records: Iterable[JudgeRecord]) -> dict[str, Any]:
    """All metrics of the benchmark, of the records of one run.

    Returns:
        By group of metrics, each ``<name>(all)`` and ``<name>(valid)`` from 0 to 1, or None; ``memory_extraction_f1``, the
        harmonic mean of ``target_accuracy(all)`` and ``recall(all)``; and ``counts`` of records, all and valid, by kind.
    """
    known = list(records)
    result: dict[str, Any] = {
        group: {
            f"{name}({scope})": metric.ratio(known, valid=scope == "valid")
            for name, metric in metrics.items()
            for scope in ("all", "valid")
        }
        for group, metrics in METRICS.items()
    }
    result["memory_extraction_f1"] = f1(
        result["memory_accuracy"]["target_accuracy(all)"], result["memory_integrity"]["recall(all)"]
    )
    result["counts"] = {kind: _counts([record for record in known if record.kind == kind]) for kind in LABELS}
    interference = [record for record in known if record.kind == "integrity" and record.source == "interference"]
    result["counts"]["interference"] = _counts(interference)
    result["counts"]["target"] = _counts([record for record in known if TARGET_ACCURACY.belongs(record)])
    return result


def f1(precision: float | None, recall: float | None) -> float | None:
    """Harmonic mean; 0 if both are 0, None if one is unknown."""
    if precision is None or recall is None:
        return None
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def point_judgement(record: PointRecord) -> JudgeRecord | None:
    """What a line of ``points.jsonl`` says; None where no judge was to be asked."""
    if record.verdict is None and record.error is None:
        return None
    verdict = record.verdict
    included = None if verdict is None else verdict.flags.get("included")
    return JudgeRecord(
        kind=record.kind,
        label=None if verdict is None else verdict.label,
        memory_type=record.memory_type,
        source=record.source,
        importance=record.importance,
        included=None if included is None else included == "true",
    )


def point_judgements(records: Iterable[PointRecord]) -> list[tuple[PointRecord, JudgeRecord]]:
    """All that the lines of ``points.jsonl`` say.

    A failure counts only beside something that was judged. So an offline run has no judgements, and a system that extracts
    nothing none of extraction, whatever failed: neither gets a zero for what was never measured.
    """
    known = list(records)
    measured = {record.kind == "update" for record in known if record.verdict is not None}
    found = ((record, point_judgement(record)) for record in known if (record.kind == "update") in measured)
    return [(record, judgement) for record, judgement in found if judgement is not None]


def question_judgements(record: QuestionRecord, judge: str) -> list[JudgeRecord]:
    """What a judge said about the answers to a question, in all runs; a question that could not be asked has one."""
    said = [
        JudgeRecord("qa", label, silent=answer.silent)
        for answer in record.answers
        for label in [verdict.label for verdict in judge_runs(answer.verdicts, judge)] or [None]
    ]
    return said or [JudgeRecord("qa", None)]


def _counts(records: Sequence[JudgeRecord]) -> dict[str, int]:
    return {"all": len(records), "valid": sum(record.label is not None for record in records)}


CURVE_SESSIONS = 25
"""As many sessions as Figures 4 and 5 of the paper show."""

Scores = dict[str, dict[str, Any]]
Row = tuple[str, str, JudgeRecord]
"""The user, the category, and what was judged."""


def question_metric(judge: str, name: str) -> str:
    """The name of a metric of answers as a judge gives it; the labels of the judge ``qa`` stand for those of the papers."""
    return name if judge == "qa" else f"strict_{name}"


def run_scores(
    questions: Sequence[QuestionRecord], points: Sequence[PointRecord], config: HalumemConfig, *, ranked: bool
) -> Scores:
    """All scores of a run, by metric and category.

    Only metrics that something has a value of: no recall where the system does not order by relevance (`ranked`), none of
    questions whose evidence is not linked to turns.
    """
    draws: dict[str, Any] = {"resamples": config.resamples, "seed": config.seed}

    def interval(metric: Metric, rows: Sequence[Row], scope: str) -> dict[str, float | int] | None:
        terms = list(metric.terms((record for _, _, record in rows), valid=scope == "valid"))
        values, weights = [value for _, value, _ in terms], [weight for _, _, weight in terms]
        users = [rows[position][0] for position, _, _ in terms]
        failed = sum(_lost(rows[position][2]) for position, _, _ in terms)
        return _with_failed(group_interval(values, users, weights, **draws), failed)

    def scored(metrics: Mapping[str, Metric], rows: Sequence[Row], categories: Sequence[str] = ()) -> Scores:
        chosen = [*(name for name in categories if any(name == row[1] for row in rows)), ALL]
        members = {name: [row for row in rows if name in (ALL, row[1])] for name in chosen}
        return {
            f"{name}({scope})": {category: interval(metric, own, scope) for category, own in members.items()}
            for name, metric in metrics.items()
            for scope in ("all", "valid")
        }

    judged = [(record.user, record.memory_type or "", judgement) for record, judgement in point_judgements(points)]
    scores: Scores = {}
    for group in ("memory_integrity", "memory_accuracy", "memory_update"):
        scores |= scored(METRICS[group], judged)
    scores["memory_extraction_f1"] = {ALL: _f1_interval(judged, **draws)}
    for scope in ("all", "valid"):
        types = METRICS["memory_type_accuracy"].items()
        scores[f"memory_type_accuracy({scope})"] = {name: interval(metric, judged, scope) for name, metric in types}
    for judge in config.asked_judges:
        answers = [(one.group, one.category, said) for one in questions for said in question_judgements(one, judge)]
        named = {question_metric(judge, name): metric for name, metric in METRICS["question_answering"].items()}
        scores |= scored(named, answers, QUESTION_TYPES)
    values: dict[str, Value] = {name: answer_value(name) for name in ("set_f1", "bleu1")}
    if ranked:
        values |= retrieval_values(config.cutoffs)
    scores |= metric_scores(questions, values, order=QUESTION_TYPES, **draws)
    if ranked:  # Updated points that are linked to turns, of which one of the first passages holds one
        k, linked = config.update_k, [record for record in points if record.turns]
        found = [float(record.rank is not None and record.rank <= k) for record in linked]
        failed = sum(record.error is not None for record in linked)
        within = group_interval(found, [record.user for record in linked], **draws)
        scores[f"update_recall@{k}"] = {ALL: _with_failed(within, failed)}
    return {name: rows for name, rows in scores.items() if any(rows.values())}


def _with_failed(interval: Interval | None, failed: int) -> dict[str, float | int] | None:
    return None if interval is None else interval.as_dict() | {"failed": failed}


def _lost(record: JudgeRecord) -> bool:
    return record.label is None and not record.silent


def _f1_interval(rows: Sequence[Row], *, resamples: int, seed: int) -> dict[str, float | int] | None:
    """F1 of extraction, by bootstrap of users, or of the records of a single user."""
    single = len({user for user, _, _ in rows}) == 1
    sums: dict[Any, list[float]] = {}  # By user or record: numerator and denominator of precision, then of recall
    used = []
    for column, metric in ((0, TARGET_ACCURACY), (2, RECALL)):
        for position, value, weight in metric.terms((record for _, _, record in rows), valid=False):
            own = sums.setdefault(position if single else rows[position][0], [0.0] * 4)
            own[column] += value
            own[column + 1] += weight
            used.append(rows[position][2])
    terms = np.array(list(sums.values())).reshape(-1, 4)
    if (estimate := _f1_of(terms.sum(axis=0))) is None:
        return None
    draws = np.random.default_rng(seed).integers(len(terms), size=(resamples, len(terms)))
    drawn = [one for draw in draws if (one := _f1_of(terms[draw].sum(axis=0))) is not None]
    low, high = np.quantile(drawn or [estimate], [0.025, 0.975])
    return with_width(Interval(estimate, float(low), float(high), len(used), len(terms), sum(map(_lost, used)))).as_dict()


def _f1_of(sums: Any) -> float | None:
    precision, targets, recall, expected = map(float, sums)
    return f1(precision / targets if targets else None, recall / expected if expected else None)


def curve(questions: Sequence[QuestionRecord], judge: str) -> list[dict[str, float | int]]:
    """Cumulative accuracy by session of the answers, mean over users; empty if nothing is judged."""
    value = verdict_value(judge)
    by_user: dict[str, list[tuple[int, float]]] = {}
    for record in questions:
        if record.session is not None and (worth := value(record)) is not None:
            by_user.setdefault(record.group, []).append((record.session, worth))
    return [asdict(point) for point in cumulative_accuracy(list(by_user.values()), sessions=CURVE_SESSIONS)]


EXTRACTION = {
    "recall": ("R", "recall"),
    "weighted_recall": ("Weighted R", "weighted_recall"),
    "target_precision": ("Target P", "target_accuracy"),
    "accuracy": ("Acc.", "weighted_accuracy"),
    "resistance": ("FMR", "interference_accuracy"),
    "f1": ("F1", "memory_extraction_f1"),
}
"""By the name in papers its heading and our metric."""

OUTCOMES = {"C": "correct", "H": "hallucination", "O": "omission"}
UPDATE = [f"{label}_update_memory_ratio" for label in OUTCOMES.values()]
QA = [f"{label}_qa_ratio" for label in OUTCOMES.values()]
SCOPES = "(all): what failed counts as not achieved; (valid): left out; one row where both are the same."


def extraction_table(summary: Summary) -> Table | None:
    """Extraction in percent, - for systems that extract nothing; None if nothing is judged."""
    if summary.mode != "judged":
        return None
    title = f"{summary.benchmark}, {summary.label()}: extraction, %"
    headings, metrics = zip(*EXTRACTION.values(), strict=True)
    view = score_table(title, SCOPES + "\nF1 is defined for (all) only.", headings)
    for scope, _, cells in _scoped(summary, metrics, ALL):
        view.add_row(scope, *cells)
    return view


def outcomes_table(summary: Summary) -> Table | None:
    """Updates and answers that are correct (C), hallucinated (H) or omitted (O), in percent; None if nothing is judged."""
    if summary.mode != "judged":
        return None
    judges = {name: heading for name, heading in (("qa", ""), ("qa_strict", "strict ")) if name in summary.more["aggregate"]}
    headings = [f"{heading}{short}" for heading in judges.values() for short in OUTCOMES]
    title = f"{summary.benchmark}, {summary.label()}: updating and questions, %"
    view = score_table(title, SCOPES, ["n", *headings])
    names = [question_metric(judge, name) for judge in judges for name in QA]
    for scope, count, cells in _scoped(summary, UPDATE, ALL):
        view.add_row(f"updating{scope}", f"{count:,}", *cells)
    view.add_section()
    for category in counted(summary):
        label = "all questions" if category == ALL else category
        for scope, count, cells in _scoped(summary, names, category):
            view.add_row(f"{label}{scope}", f"{count:,}", *cells)
    return view


def retrieval_table(summary: Summary) -> Table | None:
    """Recall of memory points and lexical scores by type of question, in percent; None if nothing of it was measured."""
    counts, evidence = counted(summary), summary.more["evidence"]
    names = [name for name in summary.scores if name in ("set_f1", "bleu1", "mrr", GOLD_WORDS) or name.startswith("recall@")]
    if not names:
        return None
    view = score_table(
        f"{summary.benchmark}, {summary.label()}: recall of memory points and lexical scores, %",
        f"Questions: {summary.questions.total:,} in the file, {counts[ALL]:,} asked, "
        f"{evidence['questions_with_evidence']:,} with evidence;\n{evidence['linked_to_turns']:,} of their "
        f"{evidence['memory_points']:,} memory points are linked to turns and scored.",
        ["n", *names],
    )
    for category, count in counts.items():
        view.add_row(category, f"{count:,}", *(score_cells(summary, name, {category: count})[0] for name in names))
    return view


def point_lines(summary: Summary) -> Iterator[str]:
    """Where the memory points went, how updates were found, and what was searched in a memory out of order."""
    points = summary.more["points"]
    parts = [f"{points[name]:,} {name.replace('_', ' ')}" for name in ("judged", "not_judged", "failed", "not_reached")]
    yield f"memory points: {points['total']:,} = {' + '.join(parts)}; extracted memories: {points['extracted_memories']:,}"
    for name, by_category in summary.scores.items():
        if name.startswith("update_recall@") and (interval := by_category["all"]) is not None:
            yield (
                f"updated points found among the first {name.partition('@')[2]}: {percent_text(interval.bounds())}% of "
                f"{interval.count:,} ({points['searched']:,} searched, the others are linked to no turn)"
            )
    late, lacking = (summary.more["out_of_order"][name] for name in ("after_later_sessions", "without_earlier_sessions"))
    if late:
        yield f"{late:,} searches came after later sessions, because they or their session had failed before"
    if lacking:
        yield f"{lacking:,} searches came without earlier sessions, which had failed; another out=... starts afresh"


def _scoped(summary: Summary, names: Sequence[str], category: str) -> Iterator[tuple[str, int, list[str]]]:
    """One row, or two where what failed makes a difference, with their numbers of values.

    Metrics that have no scope stand in the first.
    """
    scores = summary.scores
    every = [name if name in scores else f"{name}(all)" for name in names]
    valid = [f"{name}(valid)" for name in names]
    # A judge that failed everywhere has no valid scores.
    pairs = [(scores[f"{name}(all)"], scores.get(f"{name}(valid)", {})) for name in names if f"{name}(all)" in scores]
    same = all(one.get(category) == other.get(category) for one, other in pairs)
    for scope, metrics in (("", every),) if same else ((" (all)", every), (" (valid)", valid)):
        found = (scores[metric].get(category) for metric in metrics if metric in scores)
        count = max((int(interval.count) for interval in found if interval is not None), default=0)
        yield scope, count, [score_cells(summary, metric, {category: count})[0] for metric in metrics]


_LABELS = {label: heading for heading, label in OUTCOMES.items()}
_ANSWERS = columns_of({"update": None, "qa": None}, _LABELS, {"update": "Updating", "qa": "QA"})
_EXTRACTED = columns_of({"extraction": None}, {name: heading for name, (heading, _) in EXTRACTION.items()})


def _halumem(scope: str) -> dict[str, str]:
    metrics = {f"extraction/{name}": metric for name, (_, metric) in EXTRACTION.items() if name != "f1"}
    for label in _LABELS:
        metrics |= {f"update/{label}": f"{label}_update_memory_ratio", f"qa/{label}": f"{label}_qa_ratio"}
    return {key: f"{metric}({scope})" for key, metric in metrics.items()}


_STRICT = {f"qa/{label}": f"strict_{label}_qa_ratio(all)" for label in _LABELS}
_HALUMEM = (
    Variant("failed judges count", {"extraction/f1": "memory_extraction_f1", **_halumem("all")}, ALL),
    Variant("failed judges left out", _halumem("valid"), ALL),
    Variant("strict judge of answers, failed judges count", _STRICT, ALL),
)

LAYOUTS = (
    PaperTable(
        "as in Tables 3 and 6 of the DeltaMem paper",
        (_EXTRACTED[-1], *_ANSWERS),
        _HALUMEM,
        id="halumem",
        note="QA: question answering. C: correct, H: hallucination, O: omission. Published rows are of HaluMem-Medium.",
    ),
    PaperTable(
        "as in Table 3 of the HaluMem paper",
        (*_EXTRACTED, *_ANSWERS),
        _HALUMEM,
        id="operations",
    ),
)
"""As papers have them."""

VALUES: Mapping[str, Value] = {
    "correct_qa_ratio(all)": verdict_value("qa"),
    "strict_correct_qa_ratio(all)": verdict_value("qa_strict"),
}
"""What a question is worth by the scores of the judges."""
