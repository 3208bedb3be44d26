"""What must be said before runs are read side by side: where their conditions differ, and what each of them lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from eval.compare.loading import Run

_CONFIG_KEYS = (
    "answer.kind",
    "answer.prompt",
    "answer.runs",
    "answer.temperature",
    "answer.max_tokens",
    "judge.temperature",
    "judge.attempts",
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
    if summary.mode == "offline":
        notes.append(
            f"{run.name}: offline, no model answered; lexical scores are those of the answerer that copies a sentence"
        )
    if summary.failures.count:
        stages = ", ".join(f"{count:,} {stage}" for stage, count in summary.failures.by_stage.items())
        notes.append(
            f"{run.name}: {summary.failures.count:,} failures ({stages}) are left out of the scores, not counted as 0"
        )
    if summary.sessions.get("unreadable"):
        notes.append(f"{run.name}: {summary.sessions['unreadable']:,} sessions could not be understood by the system")
    if summary.sessions.get("late"):
        notes.append(f"{run.name}: {summary.sessions['late']:,} sessions were taken in after later ones")
    return notes
