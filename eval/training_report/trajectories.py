"""Which trajectories are shown, and each of them taken apart for the page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from deltamem.episode import Message, read_turn
from deltamem.memory import Event

Record = Mapping[str, Any]


class Piece(NamedTuple):
    """A stretch of a target's text; of a keyword, whether the matched prediction contains it, else None."""

    text: str
    found: bool | None


class Target(NamedTuple):
    """A target operation, and what became of it."""

    operation: Record
    pieces: list[Piece]  # The new text, split at its keywords
    keywords: list[Piece]
    remark: str  # Where the policy did not match it


class TurnView(NamedTuple):
    """One message after the opening: an assistant's thinking and action, or what a search returned."""

    role: str
    think: str = ""
    queries: Sequence[str] = ()
    memories: Sequence[Record] = ()
    rest: str = ""


class TrajectoryView(NamedTuple):
    """A record with the reason for showing it and its parts taken apart."""

    record: Record
    reason: str
    turns: list[TurnView]
    targets: list[Target]


def choose(records: Sequence[Record], count: int) -> list[tuple[str, Record]]:
    """Choose at most `count`: the best, the worst, those with due updates, the rest evenly between; none that failed.

    Returns:
        Reason and record, best reward first, equal rewards in the order of the records.
    """
    answered = sorted(
        (record for record in records if record.get("failure") is None),
        key=lambda record: -float(record["score"]["reward"]),
    )
    share = max(1, count // 4)
    chosen: dict[int, str] = {}

    def take(indices: Iterable[int], reason: str, limit: int) -> None:
        free = [index for index in indices if index not in chosen]
        limit = min(limit, count - len(chosen))
        chosen.update(dict.fromkeys((free[position] for position in _spread(len(free), limit)), reason))

    every = range(len(answered))
    take(every[:share], "one of the best", share)
    take(every[-share:], "one of the worst", share)
    take((index for index in every if answered[index].get("counts", {}).get("due_updates")), "with a due update", share)
    take(every, "in between", count)
    return [(chosen[index], answered[index]) for index in sorted(chosen)]


_SHOWN_STEPS = 5


def histories(validation: Mapping[int, Sequence[Record]], count: int) -> dict[str, list[tuple[int, TrajectoryView]]]:
    """What became of the same sessions, at most `count`, in the course of training; records come by training step.

    Returns:
        The sessions by their keys in order, each with at most five steps: the first, the last and some between. Of several
        rollouts of a session the first is shown.
    """
    by_key: dict[str, dict[int, Record]] = {}
    for step, records in validation.items():
        for record in records:
            by_key.setdefault(str(record["key"]), {}).setdefault(step, record)
    return {key: _between(by_key[key]) for key in sorted(by_key)[:count]}


def _between(records: Mapping[int, Record]) -> list[tuple[int, TrajectoryView]]:
    steps = sorted(records)
    places = np.linspace(0, len(steps) - 1, min(len(steps), _SHOWN_STEPS)).round().astype(int)
    return [(steps[place], view(records[steps[place]])) for place in places]


def _spread(length: int, count: int) -> list[int]:
    """At most `count` positions, evenly over a sequence, away from its ends."""
    return sorted({int((position + 0.5) * length / count) for position in range(count)} & set(range(length)))


def view(record: Record, reason: str = "") -> TrajectoryView:
    """Take a record apart for the page."""
    turns = [_turn(message) for message in record["turns"]]
    return TrajectoryView(record, reason, turns, [_target(operation, record) for operation in record["target_operations"]])


_THINK = re.compile(r"\s*<think>(.*?)</think>\s*(.*)", re.DOTALL)


def _turn(message: Message) -> TurnView:
    content = message["content"]
    if message["role"] == "tool":
        try:
            memories = json.loads(content)
        except ValueError:
            memories = None
        readable = isinstance(memories, list) and all(isinstance(memory, dict) for memory in memories)
        return TurnView("tool", memories=memories) if readable else TurnView("tool", rest=content)
    match = _THINK.fullmatch(content)
    think, rest = (match[1].strip(), match[2].strip()) if match else ("", content)
    read = read_turn(rest, (), thinking=False)
    # A call that departs from the protocol is shown as it was written.
    queries = [] if read.violations else list(read.queries or ())
    return TurnView("assistant", think, queries, rest="" if queries else rest)


def _target(operation: Record, record: Record) -> Target:
    """With the keywords that the matched prediction contains, or what became of the operation otherwise."""
    written = _matched_text(operation, record["score"]["transition"]["pairs"])
    keywords = [Piece(text, _normalise(text) in _normalise(written or "")) for text in operation["keywords"]]
    remark = _remark(operation, record) if written is None else ""
    return Target(operation, _pieces(operation["text"], keywords), keywords, remark)


def _matched_text(operation: Record, pairs: Sequence[Record]) -> str | None:
    """Of the pair whose target entry this operation wrote; additions have no id in pairs, so their text decides."""
    entry = operation["target_memory_id"], operation["text"]
    matched = (pair["predicted"]["text"] for pair in pairs if (pair["target"]["id"], pair["target"]["text"]) == entry)
    return None if operation["event"] == Event.NONE else next(matched, None)


def _remark(operation: Record, record: Record) -> str:
    if operation["event"] != Event.NONE:
        return "no counterpart"
    target_id = operation["target_memory_id"]
    nones = [made["target_memory_id"] for made in record["operations"] or () if made["event"] == Event.NONE]
    seen = any(target_id in ids for ids in record["retrieved_ids"])
    named = "named" if target_id in nones else "not named"
    return f"{named} by a NONE, {'found' if seen else 'not found'} by a search"


def _pieces(text: str, keywords: Sequence[Piece]) -> list[Piece]:
    """Split a text at its keywords, without regard to case and the kind of whitespace; longer keywords win."""
    longest_first = sorted((one for one in keywords if one.text.strip()), key=lambda keyword: -len(keyword.text))
    if not longest_first:
        return [Piece(text, None)]
    found = {_normalise(keyword.text): keyword.found for keyword in longest_first}
    pattern = "|".join(r"\s+".join(map(re.escape, keyword.text.split())) for keyword in longest_first)
    parts = re.split(f"({pattern})", text, flags=re.IGNORECASE)  # every second one is a keyword
    return [Piece(part, found.get(_normalise(part)) if at % 2 else None) for at, part in enumerate(parts) if part]


def _normalise(text: str) -> str:
    return " ".join(text.casefold().split())
