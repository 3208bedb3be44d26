from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import get_args

from eval.judge import CalibrationItem, RightKind, WrongKind, load_calibration, measure
from eval.records import Cost, Verdict


class RuleJudge:
    """Judges by a rule; None is a failure."""

    name = "rule"

    def __init__(self, rule: Callable[[Mapping[str, str]], bool | None]) -> None:
        self.rule = rule

    async def judge(self, fields: Mapping[str, str], scope: str) -> Verdict:
        assert scope
        accepted = self.rule(fields)
        if accepted is None:
            return Verdict(label=None, error="no verdict", cost=Cost(calls=3))
        return Verdict(label="correct" if accepted else "wrong", reason="rule", cost=Cost(calls=1))


def test_the_probes_are_well_formed_and_balanced() -> None:
    probes = load_calibration()
    right = [probe for probe in probes if probe.right]
    assert len(probes) >= 60 and 0.4 <= len(right) / len(probes) <= 0.6
    kinds = {True: get_args(RightKind), False: get_args(WrongKind)}
    assert all(probe.kind in kinds[probe.right] for probe in probes)
    assert min(Counter(probe.kind for probe in probes).values()) >= 2
    assert {probe.kind for probe in probes} == {*kinds[True], *kinds[False]}
    assert len({(probe.question, probe.answer.casefold()) for probe in probes}) == len(probes)
    assert len({(probe.question, probe.gold) for probe in probes}) == len({probe.question for probe in probes})
    assert not any(probe.answer == probe.gold for probe in probes if not probe.right)
    assert {probe.question for probe in probes if probe.right} == {probe.question for probe in probes if not probe.right}


async def test_a_judge_that_always_says_yes_accepts_all_that_is_wrong() -> None:
    probes = load_calibration()
    result = await measure(RuleJudge(lambda fields: True), probes)
    wrong = [probe for probe in probes if not probe.right]
    assert result.false_accept is not None and result.false_reject is not None
    assert (result.false_accept.estimate, result.false_accept.count) == (1.0, len(wrong))
    assert result.false_reject.estimate == 0.0 and result.false_reject.high > 0.0
    assert [one.item for one in result.wrong] == wrong and result.errors == 0
    assert result.by_kind["vague"] == (10, 10) and result.by_kind["reworded"][0] == 0
    assert result.cost.calls == len(probes)


async def test_a_judge_of_equal_words_rejects_as_counted() -> None:
    probes = load_calibration()
    result = await measure(RuleJudge(lambda fields: fields["gold"].casefold() == fields["answer"].casefold()), probes)
    other = [probe for probe in probes if probe.right and probe.gold.casefold() != probe.answer.casefold()]
    right = [probe for probe in probes if probe.right]
    assert 0 < len(other) < len(right)
    assert result.false_reject is not None and result.false_accept is not None
    assert result.false_reject.estimate == len(other) / len(right)
    assert result.false_accept.estimate == 0.0


async def test_failures_are_in_neither_share() -> None:
    probes = [
        CalibrationItem(question="Q", gold="g", answer=answer, right=right, kind="same" if right else "vague")
        for answer, right in (("1", True), ("2", True), ("3", False), ("4", False))
    ]
    said = {"1": True, "2": None, "3": None, "4": None}
    result = await measure(RuleJudge(lambda fields: said[fields["answer"]]), probes)
    assert (result.false_accept, result.errors, result.first_error) == (None, 3, "no verdict")
    assert result.false_reject is not None and (result.false_reject.estimate, result.false_reject.count) == (0.0, 1)
    assert result.cost.calls == 10
    assert json.loads(json.dumps(result.as_dict()))["by_kind"] == {"same": [0, 1]}
