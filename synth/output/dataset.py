"""The files of a data set, written from one pass over its people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError
from deltamem.files import atomic_writer
from deltamem.provenance import file_sha256
from deltamem.sessions import LabelledSession, to_json_line
from deltamem.training.dataset import open_parquet
from synth.output.card import render_card
from synth.output.files import (
    CARD_FILE,
    FILES,
    HELDOUT_FILE,
    MANIFEST_FILE,
    PEOPLE_FILE,
    REJECTED_FILE,
    REPORT_FILE,
    SESSIONS_FILE,
    TRAIN_FILE,
    read_people,
)
from synth.output.report import render, shown_person
from synth.output.statistics import Statistics
from synth.person.assembly import labelled_sessions
from synth.records import Person
from synth.rules import Violation
from synth.rules.session import SplitCheck, judge_chain
from synth.tasks import Unit


def write_dataset(
    out: Path, people: Iterable[Person], *, making: Mapping[str, Any], episode: EpisodeConfig, seed: int
) -> dict[str, Any]:
    """Write people, sessions and rejections as JSON lines, parquet, data card, report and, last, ``dataset.json``.

    One person is in memory at a time. The same people and the same `making` give the same bytes. A data set whose sessions
    are all of one split has no parquet files.

    Args:
        out: Where to; made if missing. Files of an earlier data set in it are removed first.
        people: In the order in which they are written.
        making: What the data set was made with, as plain JSON; nothing in it may depend on when it was made.
        episode: Prompts of the opening messages in the parquet rows.
        seed: Of the data set, for the manifest.

    Returns:
        The manifest: making, counts, statistics, hashes of the data files.

    Raises:
        DeltaMemError: If a session violates an invariant or a text is in both splits, which is a defect of the writer.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (out / name).unlink(missing_ok=True)
    statistics = Statistics()
    splits = SplitCheck()
    with ExitStack() as stack:
        people_file, sessions_file, rejected_file = (
            stack.enter_context(atomic_writer(out / name)) for name in (PEOPLE_FILE, SESSIONS_FILE, REJECTED_FILE)
        )
        rows = {
            "train": stack.enter_context(open_parquet(out / TRAIN_FILE, episode)),
            "heldout": stack.enter_context(open_parquet(out / HELDOUT_FILE, episode)),
        }
        for person in people:
            sessions = list(labelled_sessions(person))
            verdict = judge_chain(sessions)
            _demand_none(person, [*verdict.violations, *_split_violations(splits, person, sessions)])
            people_file.write(person.model_dump_json() + "\n")
            for labelled in sessions:
                line = to_json_line(labelled)
                sessions_file.write(line + "\n")
                rows[labelled.split].add(labelled, line)
            rejected_file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in _rejections(person))
            statistics.add(person, sessions, verdict)
    parquet = all(writer.rows for writer in rows.values())
    if not parquet:
        for name in (TRAIN_FILE, HELDOUT_FILE):
            (out / name).unlink()
    manifest: dict[str, Any] = {
        "synthetic": True,
        "seed": seed,
        "making": dict(making),
        "counts": statistics.counts,
        "statistics": statistics.record(),
    }
    _write(out / CARD_FILE, render_card(manifest, parquet=parquet))
    _write(out / REPORT_FILE, render(manifest, shown_person(read_people(out / PEOPLE_FILE))))
    # The report is a view of the other files and can be drawn again.
    hashed = [name for name in FILES if name not in (MANIFEST_FILE, REPORT_FILE) and (out / name).exists()]
    manifest["sha256"] = {name: file_sha256(out / name) for name in hashed}
    _write(out / MANIFEST_FILE, json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")
    return manifest


def _write(path: Path, text: str) -> None:
    with atomic_writer(path) as file:
        file.write(text)


def _split_violations(splits: SplitCheck, person: Person, sessions: Sequence[LabelledSession]) -> Iterator[Violation]:
    persona = person.persona
    yield from splits.person(persona.person_id, persona.seed, persona.split)
    for labelled in sessions:
        yield from splits.session(labelled)


def _demand_none(person: Person, violations: Sequence[Violation]) -> None:
    if violations:
        rule, message = violations[0]
        others = f", and {len(violations) - 1} more violations" if len(violations) > 1 else ""
        raise DeltaMemError(f"{person.persona.person_id}: {message} (rule {rule}{others}); nothing was written")


def _rejections(person: Person) -> Iterator[dict[str, Any]]:
    for rejection in person.rejections:
        of_session = rejection.unit in (Unit.FILLING, Unit.DIALOGUE)
        yield {
            "person_id": person.persona.person_id,
            "session_index": int(rejection.where) if of_session else None,
            "unit": rejection.unit,
            "where": rejection.where,
            "rules": rejection.rules,
            "reasons": rejection.reasons,
        }
