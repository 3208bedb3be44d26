"""The before/after table: every metric with its interval, sampled and greedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eval.heldout.summary import VIOLATIONS_PER_EPISODE
from eval.heldout.table import label, shown_metrics
from eval.report.inputs import MODES

Summary = Mapping[str, Any]

LESS_IS_BETTER = {
    "wrong_target_rate",
    "add_for_update_rate",
    "duplicates_per_episode",
    "unreadable_rate",
    "failure_rate",
}
NEITHER_IS_BETTER = {"queries_per_memory", "queries_per_episode"}


@dataclass(frozen=True, slots=True)
class Change:
    """A metric before and after.

    Attributes:
        before: Estimate with interval; None if it was not measured.
        after: The same.
        difference: After minus before; None if one is missing.
        verdict: ``better`` or ``worse`` where the intervals do not overlap, else empty.
    """

    before: Summary | None
    after: Summary | None
    difference: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Row:
    """One metric, with a change for each mode."""

    label: str
    changes: list[Change]


def comparison(summaries: Mapping[str, Summary]) -> list[Row]:
    """Build the table.

    Args:
        summaries: Summaries by ``<phase>_<mode>``; any may be missing.

    Returns:
        One row a metric; each row has a change for every mode of `eval.report.inputs.MODES`.
    """
    metrics = {name: summary.get("metrics", {}) for name, summary in summaries.items()}
    names = list(dict.fromkeys(name for measured in metrics.values() for name in shown_metrics(measured)))
    return [
        Row(
            label(name).strip(),
            [
                _change(name, metrics.get(f"before_{mode}", {}).get(name), metrics.get(f"after_{mode}", {}).get(name))
                for mode in MODES
            ],
        )
        for name in names
    ]


def _change(name: str, before: Summary | None, after: Summary | None) -> Change:
    if before is None or after is None:
        return Change(before, after, None, "")
    difference = after["estimate"] - before["estimate"]
    apart = after["low"] > before["high"] or after["high"] < before["low"]
    less_is_better = name in LESS_IS_BETTER or name.startswith(VIOLATIONS_PER_EPISODE)
    verdict = ""
    if apart and name not in NEITHER_IS_BETTER:
        verdict = "better" if (difference > 0) != less_is_better else "worse"
    return Change(before, after, difference, verdict)
