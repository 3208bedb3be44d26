"""What reading the sessions of a benchmark came to and cost, over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from eval.locomo.session_log import SessionRecord


def session_report(records: Sequence[SessionRecord]) -> dict[str, Any]:
    """Add up session records.

    Args:
        records: One for each session and speaker.

    Returns:
        ``sessions`` (how many by outcome, and how many were ``split``, ``late`` or of unknown cost), ``windows`` (the
        context windows in tokens by which they were split), ``calls``, ``cached``, ``searches``, ``tokens``,
        ``seconds_per_session`` (p50 and p95 over the sessions that were read; None without any), ``operations`` by kind,
        ``violations`` by name, and ``failures`` with their reasons.
    """
    operations: Counter[str] = Counter()
    violations: Counter[str] = Counter()
    for record in records:
        operations.update(record.operations)
        violations.update(record.violations)
    outcomes = Counter(record.outcome for record in records)
    read = [record for record in records if record.outcome != "failed"]
    seconds = [record.seconds for record in read if record.seconds is not None]
    return {
        "sessions": {
            "total": len(records),
            "applied": outcomes["applied"],
            "unreadable": outcomes["unreadable"],
            "failed": outcomes["failed"],
            "split": sum(record.parts > 1 for record in records),
            "late": sum(record.late for record in records),
            "cost_unknown": len(read) - len(seconds),
        },
        "windows": sorted({record.window for record in records if record.window is not None}),
        "calls": sum(record.calls for record in records),
        "cached": sum(record.cached for record in records),
        "searches": sum(record.searches for record in records),
        "tokens": {
            "prompt": sum(record.prompt_tokens for record in records),
            "completion": sum(record.completion_tokens for record in records),
        },
        "seconds_per_session": _percentiles(seconds),
        "operations": dict(sorted(operations.items())),
        "violations": dict(sorted(violations.items())),
        "failures": [
            {"session": record.session, "owner": record.owner, "reason": record.reason}
            for record in records
            if record.outcome == "failed"
        ],
    }


def _percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    p50, p95 = np.percentile(seconds, (50, 95))
    return {"p50": round(float(p50), 3), "p95": round(float(p95), 3)}
