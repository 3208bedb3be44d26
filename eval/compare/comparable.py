"""What must be said before runs are read side by side: where their conditions differ, and what each of them lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from eval.compare.loading import Run

_CONFIG_KEYS = (
    "answer.prompt",
    "answer.runs",
    "answer.temperature",
    "answer.max_tokens",
    "judge.temperature",
    "judge.max_tokens",
    "judge.attempts",
    "categories",
    "limit",
    "seed",
    "resamples",
)
"""Keys of the configuration that decide what is measured, apart from the system."""

_OF_THE_SYSTEM = ("stores_per_conversation", "k_each_store", "point_found_by")
"""Keys of the protocol that follow from what kind of system is measured."""


def differences(runs: Sequence[Run]) -> list[str]:
    """Where runs of one benchmark differ in something that decides their scores, other than the memory system.

    Args:
        runs: Of one benchmark.

    Returns:
        One sentence for each condition: data, models, prompts, embedder, protocol (top-k, context budget), settings.
    """
    names = list(dict.fromkeys(name for run in runs for name, _ in _conditions(run)))
    conditions = [dict(_conditions(run)) for run in runs]
    notes = []
    for name in names:
        values = [condition.get(name) for condition in conditions]
        if name.startswith("prompt "):  # a system may have prompts of its own; answerers and judges share theirs
            values = [value for value in values if value is not None]
        if len({_shown(value) for value in values}) > 1:
            by_run = "; ".join(
                f"{run.name}: {_shown(condition.get(name))}" for run, condition in zip(runs, conditions, strict=True)
            )
            notes.append(f"{name} differs: {by_run}")
    return notes


def _conditions(run: Run) -> Iterator[tuple[str, Any]]:
    summary = run.summary
    yield "benchmark", summary.benchmark
    yield "data sha256", summary.data.get("sha256")
    audit = summary.data.get("audit") or {}
    yield "audit sha256", audit.get("sha256") if audit.get("applied") else None
    models = summary.making.models
    yield "answer model", models.get("answer")
    yield "judge model", models.get("judge")
    yield "embedder", models.get("embedder")
    for name, value in summary.protocol.items():
        if name not in _OF_THE_SYSTEM:
            yield f"protocol {name}", value
    for name, value in summary.making.prompt_hashes.items():
        yield f"prompt {name}", value
    for key in _CONFIG_KEYS:
        setting: Any = summary.making.config
        for part in key.split("."):
            setting = setting.get(part) if isinstance(setting, dict) else None
        yield key, setting


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text[:12] if len(text) == 64 and text.isalnum() else text


def gaps(run: Run) -> list[str]:
    """What is missing in a run, so that its scores are not those of the whole benchmark."""
    summary, notes = run.summary, []
    counts = summary.questions
    recorded = sum(counts.by_category.values())
    if recorded < counts.total:
        notes.append(f"{run.name}: {recorded:,} of {counts.total:,} questions were chosen")
    if recorded < len(run.questions):
        notes.append(
            f"{run.name}: the folder holds {len(run.questions):,} questions, the scores are of {recorded:,}: "
            "an earlier call asked more"
        )
    if summary.mode == "offline":
        notes.append(
            f"{run.name}: offline, no model answered; lexical scores are those of the answerer that copies a sentence"
        )
    if summary.failures.count:
        stages = ", ".join(f"{count:,} {stage}" for stage, count in summary.failures.by_stage.items())
        counted = ", except in the scores named (all)" if run.family == "halumem" else ""
        notes.append(
            f"{run.name}: {summary.failures.count:,} failures ({stages}); answers and verdicts that are missing are left "
            f"out of the scores, not counted as 0{counted}"
        )
    if summary.sessions.get("unreadable"):
        notes.append(f"{run.name}: {summary.sessions['unreadable']:,} sessions could not be understood by the system")
    if summary.sessions.get("late"):
        notes.append(f"{run.name}: {summary.sessions['late']:,} sessions were taken in after later ones")
    answered = [record for record in run.questions if record.answers]
    cut = sum(record.shown < len(record.retrieved) for record in answered)
    if cut:
        notes.append(
            f"{run.name}: at {cut:,} of {len(answered):,} questions the budget of context tokens left out passages that "
            "were found"
        )
    if lost := summary.cost.get("ingest", {}).get("sessions_lost"):
        notes.append(
            f"{run.name}: what {lost:,.0f} sessions cost is not known, because the run was killed before it was noted"
        )
    return notes
