"""From judge records to the benchmark's numbers (PROTOCOLS 2.6), pooled over all users.

Every metric is a ratio of two sums over some of the records. ``(all)`` keeps records whose judge failed in the denominator,
``(valid)`` leaves them out. A ratio over nothing is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from deltamem.errors import DeltaMemError
from eval.halumem.lines import MemoryType
from eval.halumem.records import PointRecord
from eval.results.records import QuestionRecord

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
    """What one judge said about one thing.

    Attributes:
        kind: Which judge; see `LABELS` for what it may say.
        label: The verdict; None if the judge failed, or if what it should have judged failed.
        memory_type: Of a point (``integrity``, ``update``).
        source: Of a point; ``interference`` is set apart.
        importance: Weight of a point in weighted recall.
        included: Of an extracted memory (``accuracy``): whether the gold points have all its fields; None if unknown.
    """

    kind: JudgedKind
    label: str | None
    memory_type: str | None = None
    source: str | None = None
    importance: float | None = None
    included: bool | None = None

    @property
    def score(self) -> int:
        """The points of an ``integrity`` or ``accuracy`` verdict: 0, 1 or 2; 0 if it failed."""
        return int(self.label or 0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A ratio of sums.

    Attributes:
        belongs: Which records it is about.
        value: What a record adds to the numerator; only asked of records with a label.
        weight: What a record adds to the denominator.
    """

    belongs: Callable[[JudgeRecord], bool]
    value: Callable[[JudgeRecord], float]
    weight: Callable[[JudgeRecord], float] = lambda record: 1.0

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


def aggregate(records: Iterable[JudgeRecord | Mapping[str, Any]]) -> dict[str, Any]:
    """All metrics of the benchmark.

    Args:
        records: Of one run: `JudgeRecord`, or dictionaries with its fields.

    Returns:
        By group of metrics, each ``<name>(all)`` and ``<name>(valid)`` from 0 to 1, or None; ``memory_extraction_f1``, the
        harmonic mean of ``target_accuracy(all)`` and ``recall(all)``; and ``counts`` of records, all and valid, by kind.

    Raises:
        DeltaMemError: If a record has unknown fields or a label that its judge cannot give.
    """
    known = [record if isinstance(record, JudgeRecord) else _record(record) for record in records]
    for record in known:
        _check(record)
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
    """What a judge said about the answers to a question, one for each answer run; a question that failed has one."""
    labels = [answer.verdicts[judge].label if judge in answer.verdicts else None for answer in record.answers]
    return [JudgeRecord("qa", label) for label in labels or [None]]


def _record(fields: Mapping[str, Any]) -> JudgeRecord:
    try:
        return JudgeRecord(**fields)
    except TypeError as error:
        raise DeltaMemError(f"not a judge record: {dict(fields)}") from error


def _check(record: JudgeRecord) -> None:
    labels = LABELS.get(record.kind)
    if labels is None:
        raise DeltaMemError(f"judge record of kind {record.kind!r}; there are: {', '.join(LABELS)}")
    if record.label is not None and record.label not in labels:
        raise DeltaMemError(f"judge record of kind {record.kind!r} with label {record.label!r}; it has {', '.join(labels)}")


def _counts(records: Sequence[JudgeRecord]) -> dict[str, int]:
    return {"all": len(records), "valid": sum(record.label is not None for record in records)}
