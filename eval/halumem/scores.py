"""HaluMem's scores: extraction, updates, questions, by the official formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from deltamem.errors import DeltaMemError
from eval.answer import ContextBlock, Judge, Prompt, load_prompt, render_all
from eval.halumem.data import (
    DATE_FORMAT,
    QUESTION_TYPES,
    HalumemConfig,
    HalumemSession,
    MemoryPoint,
    Question,
    User,
)
from eval.judge import CORRECT, QUESTION_LABELS, LLMJudge
from eval.metrics import Interval, bleu1, bootstrap_interval, cumulative_accuracy, set_f1, wilson_interval
from eval.models import Models, answer_prompt, make_judge
from eval.records import MemoryType, PointRecord, QuestionRecord, Verdict
from eval.summary import ALL, answer_value, category_scores, recall_value, reciprocal_rank_value, verdict_value
from eval.systems.base import StoreKey

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


@dataclass(frozen=True)
class Part:
    """What is done of one user.

    Attributes:
        user: The user.
        sessions: The sessions that are taken in, in order from the first.
        asked: Keys of the questions that are asked.
    """

    user: User
    sessions: tuple[HalumemSession, ...]
    asked: frozenset[str]

    @classmethod
    def of(cls, user: User, limit: int | None) -> Part:
        """All of a user; with a limit the first so many questions and the sessions up to the last of them."""
        asked = frozenset(question.key for question in user.questions[:limit])
        if limit is None or len(asked) == len(user.questions):
            return cls(user, user.sessions, asked)
        last = max(session.number for session in user.sessions for question in session.questions if question.key in asked)
        return cls(user, user.sessions[: last + 1], asked)

    @property
    def key(self) -> StoreKey:
        """The user's one store; whole sessions are handed over."""
        return StoreKey(self.user.id, self.user.name)

    @property
    def evaluated(self) -> tuple[HalumemSession, ...]:
        """The sessions whose points count; generated ones are only taken in."""
        return tuple(session for session in self.sessions if not session.generated)

    @property
    def points(self) -> int:
        """How many memory points are evaluated."""
        return sum(len(session.points) for session in self.evaluated)

    def questions(self, session: HalumemSession) -> Iterator[Question]:
        """The questions of a session that are asked."""
        return (question for question in session.questions if question.key in self.asked)


MAIN_JUDGE = "qa"
"""The judge whose labels stand for those of the papers."""

STRICT = "strict_"
"""What the names of the metrics of the other judge begin with."""

CURVE_SESSIONS = 25
"""As many sessions as Figures 4 and 5 of the paper show."""

Scores = dict[str, dict[str, Any]]
Row = tuple[str, str, JudgeRecord]
"""The user, the category, and what was judged."""


def lexical_scores(gold: str, text: str) -> dict[str, float]:
    """The lexical scores of an answer."""
    return {"set_f1": set_f1(text, gold), "bleu1": bleu1(text, gold)}


def run_scores(
    questions: Sequence[QuestionRecord],
    points: Sequence[PointRecord],
    *,
    judges: Sequence[str],
    cutoffs: Sequence[int],
    update_k: int,
    ranked: bool,
    resamples: int,
    seed: int,
) -> Scores:
    """All scores of a run, by metric and category.

    Args:
        questions: Those that are asked.
        points: Memory points and extracted memories.
        judges: Names of the judges of answers.
        cutoffs: The k of recall@k for questions.
        update_k: The k of recall for updated points.
        ranked: Whether the system orders by relevance; else there is no recall.
        resamples: Bootstrap draws of users.
        seed: Seed of the draws.

    Returns:
        Only metrics that something has a value of. Questions without evidence that is linked to turns have no recall.
    """
    judged = [(record.user, record.memory_type or "", judgement) for record, judgement in point_judgements(points)]
    draws = {"resamples": resamples, "seed": seed}
    scores: Scores = {}
    for group in ("memory_integrity", "memory_accuracy", "memory_update"):
        scores |= _metric_scores(METRICS[group], judged, (), **draws)
    scores["memory_extraction_f1"] = {ALL: _f1_interval(judged, **draws)}
    for scope in ("all", "valid"):
        scores[f"memory_type_accuracy({scope})"] = {
            name: _interval(metric, judged, scope == "valid", **draws)
            for name, metric in METRICS["memory_type_accuracy"].items()
        }
    for judge in judges:
        answers = [
            (record.group, record.category, judgement)
            for record in questions
            for judgement in question_judgements(record, judge)
        ]
        prefix = "" if judge == MAIN_JUDGE else STRICT
        named = {f"{prefix}{name}": metric for name, metric in METRICS["question_answering"].items()}
        scores |= _metric_scores(named, answers, QUESTION_TYPES, **draws)
    values = {name: answer_value(name) for name in ("set_f1", "bleu1")}
    if ranked:
        values |= {f"recall@{k}": recall_value(k) for k in sorted(set(cutoffs))} | {"mrr": reciprocal_rank_value}
    scores |= {
        name: category_scores(questions, value, order=QUESTION_TYPES, resamples=resamples, seed=seed)
        for name, value in values.items()
    }
    if ranked:
        scores[f"update_recall@{update_k}"] = {ALL: _update_recall(points, update_k, **draws)}
    return {name: rows for name, rows in scores.items() if any(rows.values())}


def curve(questions: Sequence[QuestionRecord], judge: str) -> list[dict[str, float | int]]:
    """Cumulative accuracy by session of the answers, mean over users; empty if nothing is judged."""
    value = verdict_value(judge)
    by_user: dict[str, list[tuple[int, float]]] = {}
    for record in questions:
        if record.session is not None and (worth := value(record)) is not None:
            by_user.setdefault(record.group, []).append((record.session, worth))
    return [point.as_dict() for point in cumulative_accuracy(list(by_user.values()), sessions=CURVE_SESSIONS)]


def _metric_scores(
    metrics: Mapping[str, Metric], rows: Sequence[Row], categories: Sequence[str], *, resamples: int, seed: int
) -> Scores:
    present = {category for _, category, _ in rows}
    chosen = [name for name in categories if name in present]
    scores: Scores = {}
    for name, metric in metrics.items():
        for scope in ("all", "valid"):
            valid = scope == "valid"
            by_category = {
                category: _interval(
                    metric, [row for row in rows if row[1] == category], valid, resamples=resamples, seed=seed
                )
                for category in chosen
            }
            by_category[ALL] = _interval(metric, rows, valid, resamples=resamples, seed=seed)
            scores[f"{name}({scope})"] = by_category
    return scores


def _interval(
    metric: Metric, rows: Sequence[Row], valid: bool, *, resamples: int, seed: int
) -> dict[str, float | int] | None:
    """By bootstrap of users; for a single user Wilson's for shares and a bootstrap of records for other ratios."""
    terms = list(metric.terms((record for _, _, record in rows), valid=valid))
    values = [value for _, value, _ in terms]
    weights = [weight for _, _, weight in terms]
    groups: list[Any] = [rows[position][0] for position, _, _ in terms]
    interval: Interval | None
    if len(set(groups)) == 1 and set(values) <= {0.0, 1.0} and set(weights) == {1.0}:
        interval = wilson_interval(round(sum(values)), len(values))
    else:
        groups = groups if len(set(groups)) > 1 else list(range(len(groups)))
        interval = bootstrap_interval(values, groups, denominators=weights, resamples=resamples, seed=seed)
    return None if interval is None else interval.as_dict()


def _f1_interval(rows: Sequence[Row], *, resamples: int, seed: int) -> dict[str, float | int] | None:
    """F1 of extraction, by bootstrap of users, or of the records of a single user."""
    records = [record for _, _, record in rows]
    estimate = f1(TARGET_ACCURACY.ratio(records, valid=False), RECALL.ratio(records, valid=False))
    if estimate is None:
        return None
    terms = {0: list(TARGET_ACCURACY.terms(records, valid=False)), 2: list(RECALL.terms(records, valid=False))}
    users = {row[0] for row in rows}
    used = [position for kind in terms.values() for position, _, _ in kind]
    unit: dict[Any, int] = {}
    name: Callable[[int], Any] = (lambda position: rows[position][0]) if len(users) > 1 else (lambda position: position)
    for position in used:
        unit.setdefault(name(position), len(unit))
    sums = np.zeros((len(unit), 4))
    for column, kind in terms.items():
        for position, value, weight in kind:
            sums[unit[name(position)], column : column + 2] += value, weight
    draws = np.random.default_rng(seed).integers(len(unit), size=(resamples, len(unit)))
    drawn = [_f1_of(sums[draw].sum(axis=0)) for draw in draws]
    low, high = np.quantile([value for value in drawn if value is not None] or [estimate], [0.025, 0.975])
    return Interval(estimate, float(low), float(high), len(used), len(unit)).as_dict()


def _f1_of(sums: Any) -> float | None:
    precision, targets, recall, expected = sums
    return f1(precision / targets if targets else None, recall / expected if expected else None)


def _update_recall(points: Iterable[PointRecord], k: int, *, resamples: int, seed: int) -> dict[str, float | int] | None:
    """Share of the searched points that are linked to turns for which one of the first `k` passages holds them."""
    scored = [record for record in points if record.searched and record.turns]
    found = [float(record.rank is not None and record.rank <= k) for record in scored]
    users = [record.user for record in scored]
    if len(set(users)) == 1:
        interval = wilson_interval(round(sum(found)), len(found))
    else:
        interval = bootstrap_interval(found, users, resamples=resamples, seed=seed)
    return None if interval is None else interval.as_dict()


ANSWER_PROMPT = "halumem_answer"
ANSWER_FIELDS = ("context", "question")

POINT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "integrity": ("memories", "point"),
    "accuracy": ("dialogue", "golden", "memory"),
    "update": ("memories", "target", "originals"),
}
"""Fields of the prompts of the judges of points and memories, by the kind of record."""

QA_FIELDS = ("question", "gold", "evidence", "answer")

_FLAGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {"accuracy": {"included": ("true", "false")}}
_NONE = "(none)"


@dataclass(frozen=True)
class Prompts:
    """All prompts of a run.

    Attributes:
        answer: Of the answering model; None if none answers.
        points: By kind of record; empty if nothing is judged.
        answers: Of the judges of answers, by their names; empty if nothing is judged.
    """

    answer: Prompt | None
    points: dict[str, Prompt]
    answers: dict[str, Prompt]

    @property
    def hashes(self) -> dict[str, str]:
        """sha256 by name of the prompt."""
        own = [self.answer, *self.points.values(), *self.answers.values()]
        return {prompt.name: prompt.sha256 for prompt in own if prompt is not None}


@dataclass(frozen=True)
class Judges:
    """The judges of a run, by kind of record and by name; empty if nothing is judged."""

    points: Mapping[str, LLMJudge]
    answers: Mapping[str, LLMJudge]


def load_prompts(config: HalumemConfig) -> Prompts:
    """Load what the run will need, before anything expensive happens.

    Raises:
        DeltaMemError: If a prompt does not exist or does not fit.
    """
    kinds = POINT_FIELDS if config.judged else {}
    names = dict.fromkeys(config.judges) if config.judged else ()
    return Prompts(
        answer=answer_prompt(config, ANSWER_PROMPT, ANSWER_FIELDS),
        points={kind: load_prompt(f"halumem_{kind}", fields) for kind, fields in kinds.items()},
        answers={name: load_prompt(f"halumem_{name}", QA_FIELDS) for name in names},
    )


def make_judges(config: HalumemConfig, models: Models, prompts: Prompts) -> Judges:
    """The judges on the judging model; none if nothing is judged."""
    return Judges(
        points={
            kind: make_judge(config, models, kind, prompt, LABELS[kind], _FLAGS.get(kind))
            for kind, prompt in prompts.points.items()
        },
        answers={name: make_judge(config, models, name, prompt, LABELS["qa"]) for name, prompt in prompts.answers.items()},
    )


def integrity_fields(memories: Sequence[str], point: str) -> dict[str, str]:
    """What the judge of extraction sees: all memories of the session, and one expected point."""
    return {"memories": "\n".join(memories) or _NONE, "point": point}


def accuracy_fields(session: HalumemSession, memory: str) -> dict[str, str]:
    """What the judge of an extracted memory sees: the dialogue, and the session's points without interference."""
    lines = [
        f"[{(turn.time or session.dialogue.time).strftime(DATE_FORMAT)}]{turn.role}: {turn.text}"
        for turn in session.dialogue.turns
    ]
    golden = [point.text for point in session.points if point.source != "interference"]
    return {"dialogue": "\n".join(lines), "golden": "\n".join(golden) or _NONE, "memory": memory}


def update_fields(blocks: Sequence[ContextBlock], point: MemoryPoint, *, with_time: bool) -> dict[str, str]:
    """What the judge of an update sees: what was found, the new text, and the ones that it replaces."""
    return {
        "memories": render_all(blocks, with_time=with_time) or _NONE,
        "target": point.text,
        "originals": "\n".join(point.originals) or _NONE,
    }


def qa_fields(question: Question, answer: str) -> dict[str, str]:
    """What the judges of an answer see."""
    return {
        "question": question.text,
        "gold": question.answer,
        "evidence": "\n".join(question.evidence) or _NONE,
        "answer": answer,
    }


class ProbedJudge:
    """A judge of answers as the probes ask it: they know right and wrong only, and give no facts but the reference.

    Attributes:
        name: Of the judge.
    """

    def __init__(self, judge: Judge) -> None:
        """Wrap a judge."""
        self.name = judge.name
        self._judge = judge

    async def judge(self, fields: Mapping[str, str], scope: str) -> Verdict:
        """Judge a probe; hallucination and omission are both wrong. See `Judge`."""
        verdict = await self._judge.judge({**fields, "evidence": fields["gold"]}, scope)
        if verdict.label is None:
            return verdict
        right, wrong = QUESTION_LABELS
        return verdict.model_copy(update={"label": right if verdict.label == CORRECT else wrong})
