"""Probe answers that are known to be right or wrong: they measure a judge before its verdicts are believed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from eval.answering.protocol import Judge
from eval.metrics.intervals import Interval, wilson_interval
from eval.results.records import Cost

_FILE = "probes.jsonl"
_SCOPE = "probes"

RightKind = Literal["same", "reworded", "date_form", "extra_detail", "full_list"]
"""The same words; other words; a date or number in another form; more than was asked; all of a list, in another order."""

WrongKind = Literal[
    "vague", "other_entity", "near_date", "negated", "topic", "incomplete", "contradictory", "refusal", "plea"
]
"""Less definite; another person, thing or place; another date close by; the opposite; the subject without the fact; part of
a list; the right fact and another that excludes it or puts it in doubt; no answer; words meant for the judge."""


class Probe(BaseModel):
    """An answer of which it is known whether it is right, about invented people.

    Attributes:
        question: As it was asked.
        gold: The reference answer.
        answer: The answer to judge.
        right: Whether it is right, all facts of the reference required (the strict judge's rules).
        kind: In what way; a `RightKind` or a `WrongKind`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: str = Field(min_length=1)
    gold: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    right: bool
    kind: RightKind | WrongKind


@dataclass(frozen=True, slots=True)
class Misjudged:
    """A probe that a judge got wrong, with the judge's own words."""

    probe: Probe
    reason: str


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How a judge did on the probes.

    Attributes:
        judge: Its name.
        false_accept: Share of the wrong answers that it called correct, with the Wilson interval; None if it judged none.
        false_reject: Share of the right answers that it called wrong, likewise.
        errors: Probes without a verdict; they are in neither share.
        by_kind: For each kind how many were misjudged, out of how many.
        wrong: What it got wrong.
        first_error: Why there was no verdict, of the first error.
        cost: All verdicts together.
    """

    judge: str
    false_accept: Interval | None
    false_reject: Interval | None
    errors: int
    by_kind: dict[str, tuple[int, int]]
    wrong: tuple[Misjudged, ...]
    first_error: str | None
    cost: Cost

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON values, for the summary."""
        return {
            "judge": self.judge,
            "false_accept": self.false_accept and self.false_accept.as_dict(),
            "false_reject": self.false_reject and self.false_reject.as_dict(),
            "errors": self.errors,
            "by_kind": {kind: list(counts) for kind, counts in self.by_kind.items()},
            "wrong": [one.probe.model_dump(mode="json") | {"reason": one.reason} for one in self.wrong],
            "first_error": self.first_error,
            "cost": self.cost.model_dump(mode="json"),
        }


def load_probes() -> list[Probe]:
    """The probe answers of this package, right and wrong ones in turn of their questions."""
    text = resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    return [Probe.model_validate_json(line) for line in text.splitlines()]


async def measure(judge: Judge, probes: Sequence[Probe]) -> ProbeResult:
    """Let a judge of answers (fields question, gold, answer; labels correct, wrong) judge the probes.

    Args:
        judge: The judge; failures are counted, not raised.
        probes: What it judges, all at once.
    """
    verdicts = await asyncio.gather(
        *(judge.judge({"question": one.question, "gold": one.gold, "answer": one.answer}, _SCOPE) for one in probes)
    )
    judged = [(probe, verdict) for probe, verdict in zip(probes, verdicts, strict=True) if verdict.label is not None]
    accepted = {right: [v.label == "correct" for p, v in judged if p.right is right] for right in (True, False)}
    misjudged = [(probe, verdict) for probe, verdict in judged if (verdict.label == "correct") is not probe.right]
    kinds = dict.fromkeys(probe.kind for probe, _ in judged)
    return ProbeResult(
        judge=judge.name,
        false_accept=wilson_interval(sum(accepted[False]), len(accepted[False])),
        false_reject=wilson_interval(accepted[True].count(False), len(accepted[True])),
        errors=len(verdicts) - len(judged),
        by_kind={
            kind: (sum(p.kind == kind for p, _ in misjudged), sum(p.kind == kind for p, _ in judged)) for kind in kinds
        },
        wrong=tuple(Misjudged(probe, verdict.reason) for probe, verdict in misjudged),
        first_error=next((verdict.error for verdict in verdicts if verdict.label is None), None),
        cost=sum((verdict.cost for verdict in verdicts), Cost()),
    )
