"""From a number of people to files: runs the stages, checks every session, writes the data set."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError
from deltamem.files import atomic_writer
from deltamem.memory import Memory, MemoryState, apply
from deltamem.sessions import LabelledSession, Session, Split, to_json_line
from synth.invariants import chain_violations
from synth.records import Person, Persona
from synth.stages import Writer

PEOPLE_FILE = "people.jsonl"
SESSIONS_FILE = "sessions.jsonl"
MANIFEST_FILE = "dataset.json"
"""Written after the JSONL files: where it exists, they are whole. The parquet files are made from them afterwards."""


def personas(count: int, heldout_share: float) -> Iterator[Persona]:
    """Number the people and spread the held-out ones evenly among them.

    Of two or more people, at least one is held out and at least one is trained on.
    """
    heldout = 0
    for index in range(count):
        wanted = min(index, max(round((index + 1) * heldout_share), int(index == count - 1)))
        split: Split = "heldout" if wanted > heldout else "train"
        heldout += split == "heldout"
        yield Persona(person_id=f"p{index:06d}", seed="somebody with a job, friends and habits", split=split)


def write_person(persona: Persona, writer: Writer, sessions: int) -> Person:
    """Run the four stages for one person.

    Raises:
        DeltaMemError: If a session violates an invariant.
    """
    profile = writer.profile.write_profile(persona)
    state = MemoryState(
        Memory(f"m{number}", fact.text, profile.start) for number, fact in enumerate(profile.initial_facts, start=1)
    )
    events = writer.events.write_events(profile, sessions)
    labelled = []
    for event in events:
        operations = writer.memories.write_operations(profile, event, state)
        dialogue = writer.dialogue.write_dialogue(profile, event, operations)
        next_state = apply(state, operations, event.time)
        session = Session(persona.person_id, profile.name, event.time, dialogue)
        labelled.append(LabelledSession(session, event.index, persona.split, state, operations, next_state))
        state = next_state
    if found := chain_violations(labelled):
        raise DeltaMemError(f"{persona.person_id}: {found[0]} ({len(found)} violations in all)")
    return Person(profile, events, tuple(labelled))


def write_dataset(
    folder: Path,
    writer: Writer,
    *,
    people: int,
    sessions: int,
    heldout_share: float,
    config: dict[str, Any],
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Write ``people.jsonl``, ``sessions.jsonl`` and, last, ``dataset.json``.

    Args:
        folder: Where to; made if missing.
        writer: The four stages.
        people: How many people.
        sessions: Sessions a person.
        heldout_share: Share of people that are held out.
        config: Recorded in the manifest.
        progress: Called with the number of finished people.

    Returns:
        The manifest: counts, hashes of the files, config.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    counts: Counter[str] = Counter()
    with atomic_writer(folder / PEOPLE_FILE) as people_file, atomic_writer(folder / SESSIONS_FILE) as sessions_file:
        for done, persona in enumerate(personas(people, heldout_share), start=1):
            person = write_person(persona, writer, sessions)
            people_file.write(_person_line(person) + "\n")
            for labelled in person.sessions:
                sessions_file.write(to_json_line(labelled) + "\n")
            _count(counts, person)
            progress(done)
    manifest = {
        "synthetic": True,
        "config": config,
        "counts": dict(sorted(counts.items())),
        "sha256": {name: _sha256(folder / name) for name in (PEOPLE_FILE, SESSIONS_FILE)},
    }
    with atomic_writer(folder / MANIFEST_FILE) as manifest_file:
        manifest_file.write(json.dumps(manifest, indent=2) + "\n")
    return manifest


def _person_line(person: Person) -> str:
    profile = person.profile
    record = {
        "person_id": profile.persona.person_id,
        "name": profile.name,
        "split": profile.persona.split,
        "persona": profile.persona.seed,
        "start": profile.start.isoformat(),
        "initial_facts": [asdict(fact) for fact in profile.initial_facts],
        "events": [
            {"index": event.index, "time": event.time.isoformat(), "deltas": [asdict(delta) for delta in event.deltas]}
            for event in person.events
        ],
    }
    return json.dumps(record, ensure_ascii=False)


def _count(counts: Counter[str], person: Person) -> None:
    split = person.profile.persona.split
    counts[f"{split}/people"] += 1
    counts[f"{split}/sessions"] += len(person.sessions)
    for labelled in person.sessions:
        for operation in labelled.operations:
            counts[f"{split}/{operation.event}"] += 1


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
