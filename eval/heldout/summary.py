"""The figures over all evaluated sessions, each with an interval over people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from deltamem.protocol import Violation
from eval.metrics.intervals import RESAMPLES, bootstrap_interval
from rewards.diagnostics import RATES, VIOLATION_PREFIX, total_counts

Record = Mapping[str, Any]

SCORES = ("reward", "format", "retrieval", "transition", "precision", "recall")
"""Means over sessions."""

VIOLATIONS_PER_EPISODE = "violations_per_episode/"
"""Prefix of the metrics that tell how often each kind of violation occurs."""


def summarise(records: Sequence[Record], *, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """Summarise the records of an evaluation.

    Sessions that broke in our own machinery say nothing about the policy: they are counted and left out of everything
    but ``failure_rate``.

    Args:
        records: What `eval.heldout.record.to_record` made.
        resamples: Bootstrap draws of people.
        seed: Seed of the draws.

    Returns:
        ``sessions, people, answered, failed``, ``failures`` (how often each reason occurred), ``metrics`` (name to
        estimate, 95% interval by person, number of sessions and people; null where there is nothing to divide by),
        ``counts`` (sums over sessions) and ``tokens``.
    """
    answered = [record for record in records if record["failure"] is None]
    people = [record["person_id"] for record in answered]

    def ratio(values: Sequence[float], denominators: Sequence[float] | None = None) -> dict[str, float | int] | None:
        interval = bootstrap_interval(values, people, denominators=denominators, resamples=resamples, seed=seed)
        return None if interval is None else interval.as_dict()

    metrics = {name: ratio([_score(record, name) for record in answered]) for name in SCORES}
    for name, (top, bottom) in _ratios().items():
        metrics[name] = ratio(
            [record["counts"][top] for record in answered], [_denominator(record, bottom) for record in answered]
        )
    failure_rate = bootstrap_interval(
        [float(record["failure"] is not None) for record in records],
        [record["person_id"] for record in records],
        resamples=resamples,
        seed=seed,
    )
    metrics["failure_rate"] = None if failure_rate is None else failure_rate.as_dict()
    return {
        "sessions": len(records),
        "people": len({record["person_id"] for record in records}),
        "answered": len(answered),
        "failed": len(records) - len(answered),
        "failures": dict(Counter(record["failure"] for record in records if record["failure"] is not None)),
        "metrics": metrics,
        "counts": total_counts(record["counts"] for record in records),
        "tokens": sum(record["tokens"] for record in records),
    }


def _score(record: Record, name: str) -> float:
    score = record["score"]
    if name == "transition":
        return float(score["transition"]["reward"])
    return float(score[name] if name in score else score["transition"][name])


def _ratios() -> dict[str, tuple[str, str]]:
    """Numerator and denominator of every rate over the answered sessions."""
    violations = {f"{VIOLATIONS_PER_EPISODE}{kind}": (f"{VIOLATION_PREFIX}{kind}", "answered") for kind in Violation}
    return {name: pair for name, pair in (RATES | violations).items() if name != "failure_rate"}


def _denominator(record: Record, name: str) -> float:
    return 1.0 if name == "answered" else float(record["counts"][name])
