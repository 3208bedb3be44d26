"""Gates: what ends a run whose hours would be wasted."""

from __future__ import annotations

from typing import Any

import pytest
from preflight_cases import whole

from deltamem.config import validated
from deltamem.training.config import GateSettings
from deltamem.training.gates import Gates

TRUNCATED, CUT = "train/truncated", "heldout/count/violations/token_limit"


def settings(**changes: Any) -> GateSettings:
    """The gates of a run of the paper."""
    return validated(whole("+experiment=qwen8b").deltamem.gates, GateSettings).model_copy(update=changes)


def lines(metric: str, *values: float | None) -> list[dict[str, Any]]:
    """Steps from 1 on that report a metric, or None of it."""
    return [{"step": step} | ({} if value is None else {metric: value}) for step, value in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("records", "found"),
    [
        # One validation counts, training for some steps in a row; steps without the figure count for nothing.
        ([{"step": 0, CUT: 0.6}], "step 0: a token limit ended 60% of the held-out episodes (deltamem.gates.truncated=0.5)"),
        ([{"step": 0, CUT: 0.5}], None),
        ([{"step": 15, "heldout/count/unreadable": 0.95}], "step 15: 95% of the held-out episodes have no readable answer"),
        (lines(TRUNCATED, 0.6, None, 0.7, 0.6), "step 4: a token limit ended 60% of the episodes for 3 steps"),
        (lines(TRUNCATED, 0.6, 0.6, 0.4, 0.6, 0.6), None),
        (lines("train/count/unreadable", 1.0, 1.0, 1.0), "step 3: 100% of the episodes have no readable answer for 3"),
        (lines("train/no_signal", 1.0, 1.0, 1.0), "step 3: the rollouts earn the same in 100% of the groups"),
        (lines("train/no_signal", 0.97, 0.97, 0.97), None),
        # The best so far is what a drop is measured by.
        (lines("heldout/reward", 0.2, 0.6, 0.31), None),
        (lines("heldout/reward", 0.2, 0.6, 0.4, 0.29), "step 4: the held-out reward fell from 0.600 to 0.290"),
        (lines("heldout/reward", 0.0, 0.0), None),
    ],
)
def test_conditions(records: list[dict[str, Any]], found: str | None) -> None:
    gates = Gates(settings(steps=3), {})
    answers = [gates.check(record) for record in records]
    assert answers[:-1] == [None] * (len(records) - 1)
    assert (answers[-1] or "").startswith(found or "") and (found is None) == (answers[-1] is None)


def test_a_gate_may_be_opened_and_a_resumed_run_remembers_its_best() -> None:
    opened = Gates(settings(truncated=None, heldout_drop=None), {0: 1.0})
    assert [opened.check(record) for record in ({"step": 0, CUT: 1.0}, {"step": 15, "heldout/reward": 0.1})] == [None, None]
    sentence = Gates(settings(), {0: 0.3, 15: 0.8}).check({"step": 30, "heldout/reward": 0.35})
    assert sentence is not None and "from 0.800 to 0.350" in sentence
