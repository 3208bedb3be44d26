"""What a policy does right and wrong: counts of one episode that can be summed, and rates from the sums.

The reward alone hides how it was earned. Most of all, ``add_for_update_rate`` shows a policy that adds a second memory
where it should have found and rewritten the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deltamem.episode import Trajectory, Violation
from deltamem.memory import Event, MemoryState, Operation
from deltamem.sessions import LabelledSession
from rewards.fidelity import bare_words, says
from rewards.reward import EntryOrigin, TransitionScore

VIOLATION_PREFIX = "violations/"

COUNTS = {
    "episodes": "episodes",
    "failures": "episodes that broke in our own machinery; everything below leaves them out",
    "unreadable": "episodes without outputs that could be read",
    "idle_sessions": "episodes in which nothing is to be added or rewritten",
    "idle_left_alone": "of these, those whose answer could be read and neither adds nor rewrites",
    "due_sessions": "episodes in which something is to be added or rewritten",
    "due_left_alone": "of these, those whose answer could be read and neither adds nor rewrites",
    "target_operations": "operations of the target",
    "predicted_operations": "valid operations of the manager",
    "queries": "search queries",
    "due_updates": "target UPDATEs that change a memory",
    "right_target_updates": "due UPDATEs whose memory the manager rewrote, with any text",
    "matched_updates": "due UPDATEs whose memory the manager rewrote, with a text that matches the target's",
    "add_for_update": "due UPDATEs whose text was matched by an added memory while the old text stayed",
    "predicted_updates": "UPDATEs of the manager",
    "wrong_target_updates": "UPDATEs of the manager on a memory that is not due an UPDATE",
    "restored_overwrites": "wrongly overwritten memories whose old text an added memory matched (credit nobody deserves)",
    "target_adds": "target ADDs",
    "matched_adds": "target ADDs matched by an added memory",
    "predicted_adds": "ADDs of the manager",
    "duplicate_adds": "ADDs of the manager that repeat a prior memory or another ADD, but for case, spacing and punctuation",
    "due_nones": "target NONEs",
    "predicted_nones": "NONEs of the manager",
    "outdated_values": "values that the session makes wrong or corrects, less those that a target text has",
    "said_outdated": "of these, those that stand in a text of the manager",
    "right_nones": "target NONEs whose memory the manager named in a NONE",
}
"""Every count and its meaning; besides them there is ``violations/<kind>`` for each kind of `Violation`."""

_NOTHING = dict.fromkeys((*COUNTS, *(f"{VIOLATION_PREFIX}{kind}" for kind in Violation)), 0)


def count(labelled: LabelledSession, trajectory: Trajectory, transition: TransitionScore) -> dict[str, int]:
    """Count what happened in a finished episode: all keys of `COUNTS` and one for each kind of violation, always."""
    counts = dict(_NOTHING)
    counts["episodes"] = 1
    if trajectory.failure is not None:
        counts["failures"] = 1
        return counts
    counts["unreadable"] = int(trajectory.operations is None)
    counts["queries"] = sum(len(queries) for queries in trajectory.queries)
    for violation in trajectory.violations:
        counts[f"{VIOLATION_PREFIX}{violation}"] += 1
    part = "due" if _writes(labelled.operations) else "idle"
    counts[f"{part}_sessions"] = 1
    counts[f"{part}_left_alone"] = int(trajectory.operations is not None and not _writes(trajectory.operations))
    return counts | _count_operations(labelled, trajectory.operations or (), transition)


def due_memories(labelled: LabelledSession, transition: TransitionScore) -> list[dict[str, Any]]:
    """The memories that the target adds or rewrites, of a session with a difficulty.

    Returns:
        Of each ``cells`` of its difficulty, and ``score`` of the predicted memory that stands for it, 0 without one.
    """
    if labelled.difficulty is None:
        return []
    scores = {(pair.target.id, pair.target.text): pair.score for pair in transition.pairs}
    return [
        {"cells": list(difficulty.cells()), "score": scores.get((operation.target_memory_id, operation.text), 0.0)}
        for operation, difficulty in zip(labelled.operations, labelled.difficulty.operations, strict=True)
        if operation.event is not Event.NONE
    ]


def _count_operations(
    labelled: LabelledSession, predicted: Sequence[Operation], transition: TransitionScore
) -> dict[str, int]:
    prior, target = labelled.prior_state, labelled.operations
    due = _changed(prior, target)
    rewritten = _changed(prior, predicted)
    ours, theirs = _by_event(predicted), _by_event(target)
    named = {op.target_memory_id for op in ours[Event.NONE]}
    links = [(pair.predicted, pair.target) for pair in transition.pairs]
    return {
        "target_operations": len(target),
        "predicted_operations": len(predicted),
        "due_updates": len(due),
        "right_target_updates": len(due & rewritten),
        "matched_updates": sum(a.origin is b.origin is EntryOrigin.UPDATED and a.id == b.id for a, b in links),
        "add_for_update": sum(
            a.origin is EntryOrigin.ADDED and b.origin is EntryOrigin.UPDATED and b.id not in rewritten for a, b in links
        ),
        "predicted_updates": len(ours[Event.UPDATE]),
        "wrong_target_updates": sum(op.target_memory_id not in due for op in ours[Event.UPDATE]),
        "restored_overwrites": sum(b.origin is EntryOrigin.OVERWRITTEN and a.origin is EntryOrigin.ADDED for a, b in links),
        "target_adds": len(theirs[Event.ADD]),
        "matched_adds": sum(a.origin is b.origin is EntryOrigin.ADDED for a, b in links),
        "predicted_adds": len(ours[Event.ADD]),
        "duplicate_adds": _duplicates(prior, [op.text for op in ours[Event.ADD]]),
        "due_nones": len(theirs[Event.NONE]),
        "predicted_nones": len(ours[Event.NONE]),
        **_outdated(target, predicted),
        "right_nones": sum(op.target_memory_id in named for op in theirs[Event.NONE]),
    }


def _writes(operations: Sequence[Operation]) -> bool:
    return any(op.event is not Event.NONE for op in operations)


def _by_event(operations: Sequence[Operation]) -> dict[Event, list[Operation]]:
    return {event: [op for op in operations if op.event is event] for event in Event}


def _changed(prior: MemoryState, operations: Sequence[Operation]) -> set[str]:
    """Ids of the memories whose text the operations change."""
    texts = {op.target_memory_id: op.text for op in operations if op.event is Event.UPDATE}
    return {key for key, text in texts.items() if key is not None and key in prior and prior[key].text != text}


def _outdated(target: Sequence[Operation], predicted: Sequence[Operation]) -> dict[str, int]:
    """Values that are wrong now, and how many of them the manager writes all the same; whole words count."""
    right = [bare_words(op.text) for op in target]
    values = {bare_words(value) for op in target for value in op.outdated}
    wrong = [value for value in values if value and not any(says(text, value) for text in right)]
    written = [bare_words(op.text) for op in predicted if op.event is not Event.NONE] if wrong else []
    return {
        "outdated_values": len(wrong),
        "said_outdated": sum(any(says(text, value) for text in written) for value in wrong),
    }


def _duplicates(prior: MemoryState, added: Sequence[str]) -> int:
    """Added texts that a prior memory or an earlier addition already holds, compared by their words alone.

    Embeddings would not do here: a due update is close to the old text by nature, and is no duplicate of it.
    """
    if not added:
        return 0
    known = {bare_words(memory.text) for memory in prior.values()}
    duplicates = 0
    for text in added:
        duplicates += bare_words(text) in known
        known.add(bare_words(text))
    return duplicates


def total_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum the counts of many episodes key by key."""
    total: Counter[str] = Counter()
    for episode in counts:
        total.update(episode)
    return dict(total)


RATES = {
    "add_precision": ("matched_adds", "predicted_adds"),
    "add_recall": ("matched_adds", "target_adds"),
    "update_precision": ("right_target_updates", "predicted_updates"),
    "update_recall": ("right_target_updates", "due_updates"),
    "update_matched_recall": ("matched_updates", "due_updates"),
    "none_precision": ("right_nones", "predicted_nones"),
    "none_recall": ("right_nones", "due_nones"),
    "wrong_target_rate": ("wrong_target_updates", "predicted_updates"),
    "add_for_update_rate": ("add_for_update", "due_updates"),
    "outdated_rate": ("said_outdated", "outdated_values"),
    "duplicates_per_episode": ("duplicate_adds", "answered"),
    "restored_overwrites_per_episode": ("restored_overwrites", "answered"),
    "queries_per_episode": ("queries", "answered"),
    "queries_per_memory": ("queries", "target_operations"),
    "operations_per_target_operation": ("predicted_operations", "target_operations"),
    "idle_left_alone_rate": ("idle_left_alone", "idle_sessions"),
    "due_left_alone_rate": ("due_left_alone", "due_sessions"),
    "unreadable_rate": ("unreadable", "answered"),
    "failure_rate": ("failures", "episodes"),
}
"""Numerator and denominator of every rate; ``answered`` are the episodes without a failure."""


def rates(counts: Mapping[str, float]) -> dict[str, float | None]:
    """Turn sums or means of the counts into `RATES` and ``violations_per_episode/<kind>``; None if the denominator is 0.

    Rates per episode leave failed episodes out. A memory of ``queries_per_memory`` is one operation of the target.
    """
    values = dict(counts) | {"answered": counts["episodes"] - counts["failures"]}
    pairs = RATES | {f"violations_per_episode/{kind}": (f"{VIOLATION_PREFIX}{kind}", "answered") for kind in Violation}
    return {name: values[top] / values[bottom] if values[bottom] else None for name, (top, bottom) in pairs.items()}
