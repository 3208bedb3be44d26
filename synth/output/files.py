"""The files of a data set, how people are read back from them, and what they hold, counted."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from deltamem.config import first_error
from deltamem.errors import DeltaMemError
from deltamem.sessions import AXES, LabelledSession
from deltamem.text_files import read_lines
from rewards.fidelity import folded, folded_keyword, found_in
from synth.records import Person, SynthSession, UnitUsage
from synth.tasks import RuleVerdict, Unit
from synth.validators import RULES

WORK_FOLDER, SHARDS_FOLDER, PEOPLE_STORE = "work", "shards", "people.jsonl"
"""What is kept between runs."""

PEOPLE_FILE = "people.jsonl"
SESSIONS_FILE = "sessions.jsonl"
REJECTED_FILE = "rejected.jsonl"
TRAIN_FILE = "train.parquet"
HELDOUT_FILE = "heldout.parquet"
CARD_FILE = "README.md"
PROBE_FILE = "probe.json"
MANIFEST_FILE = "dataset.json"
"""Written last: where it exists, the other files are whole."""

FILES = (MANIFEST_FILE, PEOPLE_FILE, SESSIONS_FILE, REJECTED_FILE, TRAIN_FILE, HELDOUT_FILE, CARD_FILE, PROBE_FILE)


def read_unfinished(out: Path) -> Iterator[Person]:
    """Read the people who are finished so far, in the order of their ids, while others are still being written.

    The stores of a run and of its shards are read without their lock; a line that is not whole is left out.
    """
    places: dict[str, tuple[Path, int]] = {}
    folders = [out, *(out / SHARDS_FOLDER).glob("*")]
    for path in sorted(found for folder in folders if (found := folder / WORK_FOLDER / PEOPLE_STORE).is_file()):
        with path.open("rb") as lines:
            start = 0
            for line in lines:
                if line.endswith(b"\n"):
                    places[json.loads(line)["key"]] = path, start
                start += len(line)
    for _, (path, start) in sorted(places.items()):
        with path.open("rb") as file:
            file.seek(start)
            yield Person.model_validate(json.loads(file.readline())["value"]["person"])


def read_people(path: Path) -> Iterator[Person]:
    """Read ``people.jsonl`` lazily.

    Raises `DeltaMemError` if the file is missing or a line cannot be read; the message names file and line.
    """
    try:
        for number, line in enumerate(read_lines(path), start=1):
            try:
                yield Person.model_validate_json(line)
            except ValidationError as error:
                raise DeltaMemError(f"{path}, line {number}: {first_error(error, 'the line')}") from error
    except FileNotFoundError:
        raise DeltaMemError(f"{path}: no such file; make one with: python -m synth out={path.parent}") from None


WORDS_PER_BIN = 50
"""Width of the bins of the distributions of words."""


@dataclass(slots=True)
class Histogram:
    """A distribution of whole numbers; a bin of `width` is named by its smallest value."""

    width: int = 1
    count: int = 0
    total: int = 0
    least: int = 0
    most: int = 0
    bins: Counter[int] = field(default_factory=Counter)

    def add(self, value: int) -> None:
        """Count a value."""
        self.least = min(self.least, value) if self.count else value
        self.most = max(self.most, value) if self.count else value
        self.count += 1
        self.total += value
        self.bins[value - value % self.width] += 1

    def record(self) -> dict[str, Any]:
        """As plain JSON; the mean of nothing is None."""
        return {
            "count": self.count,
            "mean": _mean(self.total, self.count),
            "min": self.least,
            "max": self.most,
            "width": self.width,
            "bins": {str(value): self.bins[value] for value in sorted(self.bins)},
        }


@dataclass(slots=True)
class _Place:
    operations: Counter[str] = field(default_factory=Counter)
    memories: Histogram = field(default_factory=Histogram)
    turns: int = 0


class Statistics:
    """Counts of a data set. Texts are counted, not kept, so the size does not depend on the number of people."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._places: defaultdict[int, _Place] = defaultdict(_Place)
        self._origins: Counter[tuple[str, str]] = Counter()
        self._changes: Counter[tuple[str, str]] = Counter()
        self._domains: Counter[str] = Counter()
        self._methods: Counter[str] = Counter()
        self._lengths = {
            "turns": Histogram(),
            "words": Histogram(WORDS_PER_BIN),
            "user_words": Histogram(WORDS_PER_BIN),
            "operations": Histogram(),
        }
        self._keywords: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._said_at: Counter[int] = Counter()
        self._checked: Counter[str] = Counter()
        self._violated: Counter[str] = Counter()
        self._rejected: Counter[tuple[str, str]] = Counter()
        self._rejected_units: Counter[str] = Counter()
        self._usage: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._cells: dict[str, Counter[str]] = {"operations": Counter(), "sessions": Counter()}

    def add(self, person: Person, sessions: Sequence[LabelledSession], verdict: RuleVerdict) -> None:
        """Count a person."""
        split = person.persona.split
        self._counts[f"{split}/people" if person.profile and person.events else "rejected/people"] += 1
        self._counts["rejected/sessions"] += len(person.sessions) - len(sessions)
        written = {session.index: session for session in person.sessions}
        for labelled in sessions:
            self._counts[f"{split}/sessions"] += 1
            for operation in labelled.operations:
                self._counts[f"{split}/{operation.event}"] += 1
            self._add_session(labelled, written[labelled.session_index])
        for event in person.events:
            self._domains[event.domain] += 1
            self._changes.update((change.track, change.change) for change in event.changes)
        self._methods.update(evolution.method for evolution in person.evolutions)
        self._checked.update(person.checked)
        for rule in verdict.checked:
            # The rules of a chain judge pairs of neighbours.
            self._checked[rule] += len(sessions) - ("chain_" in rule)
        self._checked.update({"split.people": 1, "split.seeds": 1, "split.session_texts": len(sessions)})
        self._violated.update(person.violations)
        for rejection in person.rejections:
            self._rejected_units[rejection.unit] += 1
            self._rejected.update((rejection.unit, rule) for rule in sorted(set(rejection.rules)))
        for unit, usage in person.usage.items():
            self._usage[unit].update(usage.model_dump())

    def _add_session(self, labelled: LabelledSession, session: SynthSession) -> None:
        place = self._places[labelled.session_index]
        place.operations.update(operation.event for operation in labelled.operations)
        place.memories.add(len(labelled.next_state))
        place.turns += len(labelled.session.dialogue)
        self._origins.update((fact.origin, fact.event) for fact in session.facts)
        words = {"user": 0, "assistant": 0}
        for turn in labelled.session.dialogue:
            words[turn.role] += len(turn.content.split())
        self._lengths["turns"].add(sum(turn.role == "user" for turn in labelled.session.dialogue))
        self._lengths["words"].add(sum(words.values()))
        self._lengths["user_words"].add(words["user"])
        self._lengths["operations"].add(len(labelled.operations))
        if labelled.difficulty is not None:
            self._cells["sessions"].update(labelled.difficulty.cells())
            for operation in labelled.difficulty.operations:
                self._cells["operations"].update(operation.cells())
        if session.dialogue is None:
            return
        said = [folded(exchange.user) for exchange in session.dialogue.turns]
        turns = {entry.fact_id: entry.turn for entry in session.dialogue.plan}
        for fact in session.facts:
            planned = turns.get(fact.id, 0)
            if planned:
                self._said_at[4 * (2 * planned - 1) // (2 * len(said))] += 1
            counts = self._keywords[fact.event]
            for keyword in map(folded_keyword, fact.keywords):
                counts["keywords"] += 1
                counts["said"] += any(found_in(keyword, text) for text in said)
                counts["said_in_turn"] += bool(planned) and found_in(keyword, said[planned - 1])

    @property
    def counts(self) -> dict[str, int]:
        """People, sessions and operations by split, and what was rejected: ``train/people``, ``heldout/ADD``..."""
        names = ("people", "sessions", "ADD", "UPDATE", "NONE")
        keys = [f"{split}/{name}" for split in ("train", "heldout") for name in names]
        return {key: self._counts[key] for key in (*keys, "rejected/people", "rejected/sessions")}

    def record(self) -> dict[str, Any]:
        """Everything as plain JSON, in an order that depends on the counts alone.

        ``cells`` counts operations and sessions by cell of difficulty; it is empty where no difficulty was planned.
        """
        return {
            "by_session": [
                {
                    "index": index,
                    "sessions": place.memories.count,
                    "turns": _mean(place.turns // 2, place.memories.count),
                    "memories": {"mean": _mean(place.memories.total, place.memories.count)}
                    | {"min": place.memories.least, "max": place.memories.most},
                    "operations": {kind: place.operations[kind] for kind in ("ADD", "UPDATE", "NONE")},
                }
                for index, place in sorted(self._places.items())
            ],
            "operations_by_origin": _nested(self._origins),
            "changes_by_track": _nested(self._changes),
            "events_by_domain": dict(sorted(self._domains.items())),
            "memory_threads_by_method": dict(sorted(self._methods.items())),
            "lengths": {name: histogram.record() for name, histogram in self._lengths.items()},
            "keywords": {kind: dict(counts) for kind, counts in sorted(self._keywords.items())},
            "cells": {
                kind: {cell: counts[cell] for cell in _CELLS if cell in counts}
                for kind, counts in self._cells.items()
                if counts
            },
            "facts_said_in_quarter": [self._said_at[quarter] for quarter in range(4)],
            "rules": {
                name: {
                    "checked": self._checked[name],
                    "violated": self._violated[name],
                    "rejected": sum(count for (_, rule), count in self._rejected.items() if rule == name),
                }
                for name in sorted({*self._checked, *self._violated, *(rule for _, rule in self._rejected)})
            },
            "rejected": {
                unit: {"units": count, "rules": _nested(self._rejected).get(unit, {})}
                for unit, count in sorted(self._rejected_units.items())
            },
            "usage": {
                unit: UnitUsage.model_validate(self._usage[unit]).model_dump() for unit in Unit if unit in self._usage
            },
        }


def _nested(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (outer, inner), count in sorted(counts.items()):
        found.setdefault(outer, {})[inner] = count
    return found


_CELLS = tuple(f"{axis}={value}" for axis, values in AXES.items() for value in values)


def _mean(total: int, count: int) -> float | None:
    return round(total / count, 3) if count else None


Manifest = Mapping[str, Any]

_OTHERS = {
    "format.truncated": "An answer ends before the token limit.",
    "format.json": "An answer is JSON.",
    "format.schema": "An answer has the fields that it was asked for.",
    "format.length": "No text and no list of an answer is longer than its schema allows.",
    "split.people": "No person is in both splits.",
    "split.seeds": "No persona seed is in both splits.",
    "split.session_texts": "Nothing that a user says in a session is the whole of what one says in the other split.",
}
"""What is checked besides the rules: answers of a language model as they are read, and the splits as they are written."""


_REASONS = {
    "evolution.new_in_life": "A memory thread repeats no fact of the life and no other thread.",
    "session.some_fact": "A session has something to tell.",
}
"""Why the program gives something up while it puts a life together; nothing counts how often it looked."""


class RuleRow(NamedTuple):
    """A rule, and how many answers and sessions it has judged, broke it, were sent back, were rejected for it."""

    name: str
    description: str
    checked: int
    violated: int
    sent_back: int
    rejected: int


def rule_rows(manifest: Manifest) -> list[RuleRow]:
    """All rules in their order, those that were never checked included, then names that are not rules of ours."""
    found = manifest["statistics"]["rules"]
    descriptions = {rule.name: rule.description for rule in RULES} | _OTHERS
    rows = []
    for name in dict.fromkeys([*descriptions, *found]):
        counts = found.get(name, {"checked": 0, "violated": 0, "rejected": 0})
        sent_back = max(0, counts["violated"] - counts["rejected"])
        rows.append(RuleRow(name, descriptions.get(name) or _REASONS.get(name, ""), sent_back=sent_back, **counts))
    return rows


class CellRow(NamedTuple):
    """A cell of difficulty: how many operations (None on an axis of sessions) and sessions it has, with their shares."""

    value: str
    operations: tuple[int, float] | None
    sessions: tuple[int, float]


def cell_rows(manifest: Manifest) -> dict[str, list[CellRow]]:
    """The cells that occur, by axis; empty where no difficulty was planned."""
    found = manifest["statistics"]["cells"]
    if not found:
        return {}
    operations, sessions = found.get("operations", {}), found["sessions"]
    # Every session has one value on the axis of the bank, and every operation one signal.
    all_sessions, all_operations = (
        sum(counts.get(f"{axis}={value}", 0) for value in AXES[axis])
        for axis, counts in (("bank", sessions), ("signal", operations))
    )
    rows = {}
    for axis, values in AXES.items():
        counted = [(value, f"{axis}={value}") for value in values if f"{axis}={value}" in sessions]
        rows[axis] = [
            CellRow(
                value.replace("_", " "),
                (operations[cell], operations[cell] / all_operations) if cell in operations else None,
                (sessions[cell], sessions[cell] / all_sessions),
            )
            for value, cell in counted
        ]
    return {axis: of_axis for axis, of_axis in rows.items() if of_axis}


def usage_total(manifest: Manifest) -> dict[str, int]:
    """What all units together took."""
    rows = manifest["statistics"]["usage"].values()
    names = ("units", "attempts", "rejected", "prompt_tokens", "completion_tokens", "reasoning_tokens")
    return {name: sum(row.get(name, 0) for row in rows) for name in names}
