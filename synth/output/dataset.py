"""The files of a data set: sessions, people, statistics and the data card."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer, file_sha256
from deltamem.sessions import to_json_line
from deltamem.training.data import open_parquet
from synth.assembly import labelled_sessions
from synth.config import LICENCES
from synth.output.files import (
    CARD_FILE,
    FILES,
    HELDOUT_FILE,
    MANIFEST_FILE,
    PEOPLE_FILE,
    PROBE_FILE,
    REJECTED_FILE,
    SESSIONS_FILE,
    TRAIN_FILE,
    Statistics,
    cell_rows,
    rule_rows,
    usage_total,
)
from synth.output.probe import CardSample, Findings, figure_rows, write_findings
from synth.records import Person
from synth.tasks import Unit
from synth.validators.session import SplitCheck, judge_chain

_LICENCE_IDS = {"generated": "apache-2.0", "file": "unknown", "personahub": "cc-by-nc-sa-4.0"}
"""As the hub writes them."""

_LENGTHS = {
    "turns": "turns of a session",
    "operations": "operations of a session",
    "words": "words of a session",
    "user_words": "words of the user in a session",
}
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


class _Origin(NamedTuple):
    """What the card says of who wrote: in which way, how it went, what that limits, and what a session is."""

    wrote: str
    made: str
    limit: str
    session: str


_STAGES = """Stages: profile, events, memories, dialogue. A program draws what quotas demand, the writer writes, and rules
judge every answer. An answer that breaks rules is sent back with what is wrong, and rejected if that does not help."""
_ONE_EVENT = "one user and one assistant; every session is about one event"
_BY_MODEL = _Origin(
    "A language model wrote",
    _STAGES,
    "What the model believes about people, places and jobs, stereotypes included, is in the text.",
    _ONE_EVENT,
)
_BY_TEMPLATES = _Origin(
    "A program wrote, from templates and pools of words,",
    _STAGES,
    "The sentences come from a few templates: good for tests and for small models, too uniform to train a large one.",
    _ONE_EVENT,
)
_BY_SCENES = _Origin(
    "A program put together, from scenes that language models have written for this project,",
    """A program draws scenes by the quotas of the shape, fills them with the people of a life and with real titles and
places, and tells them session by session with the memories at hand. Rules judge every session; one that breaks a rule is
left out.""",
    "Scenes come again from person to person, with other people and titles: a model can learn their sentences by heart.",
    "one user, and one assistant or friend",
)


def _origin(making: Mapping[str, Any]) -> _Origin:
    if making.get("writer") == "llm":
        return _BY_MODEL
    return _BY_SCENES if making.get("shape", {}).get("everyday") else _BY_TEMPLATES


def render_card(manifest: Mapping[str, Any], findings: Findings, *, parquet: bool) -> str:
    """Render the card as Markdown."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda value: "-" if value is None else f"{value:,}"
    environment.filters["cell"] = _cell
    making, counts, statistics = manifest["making"], manifest["counts"], manifest["statistics"]
    writer = making.get("making", {})
    rules = rule_rows(manifest)
    source = making.get("personas", {}).get("source", "file")
    sessions = counts["train/sessions"] + counts["heldout/sessions"]
    return environment.get_template("card.md.j2").render(
        making=making,
        origin=_origin(making),
        licence=_LICENCE_IDS[source],
        terms=LICENCES[source],
        facts=_facts(manifest),
        prompts=sorted(writer.get("prompts", {}).items()),
        size=next((name for limit, name in _SIZES if sessions < limit), "n>1M"),
        counts=counts,
        statistics=statistics,
        lengths=[(label, statistics["lengths"][name]) for name, label in _LENGTHS.items()],
        grids=[(title, sorted(rows.items())) for title, rows in _grids(statistics).items() if rows],
        cells=cell_rows(manifest),
        said=_said(statistics),
        probed=findings["sessions"],
        probes=figure_rows(findings),
        checked=[row for row in rules if row.checked],
        broken=[row for row in rules if row.violated],
        never=[row for row in rules if not row.checked],
        total=usage_total(manifest),
        parquet=parquet,
        train_file=TRAIN_FILE,
        heldout_file=HELDOUT_FILE,
    )


def _facts(manifest: Mapping[str, Any]) -> list[tuple[str, object]]:
    making = manifest["making"]
    writer = making.get("making", {})
    found = {
        "writer": making.get("writer"),
        "model": writer.get("model"),
        **{f"sampling: {name}": value for name, value in writer.get("sampling", {}).items()},
        "structured output": writer.get("structured"),
        "repairs at most": writer.get("repairs"),
        "seed": manifest["seed"],
        "people": making.get("people"),
        "sessions a person": making.get("sessions"),
        "share held out": making.get("heldout_share"),
        "persona seeds": making.get("personas", {}).get("source"),
        "similarity model of the rules": making.get("embedder"),
    }
    return [(name, value) for name, value in found.items() if value is not None]


def _grids(statistics: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    origins, changes = statistics["operations_by_origin"], statistics["changes_by_track"]
    return {
        "operations by origin": {origin: sum(kinds.values()) for origin, kinds in origins.items()},
        "changes by track": {track: sum(kinds.values()) for track, kinds in changes.items()},
        "changes by operator": dict(sum((Counter(kinds) for kinds in changes.values()), Counter())),
        "events by domain": statistics["events_by_domain"],
        "memory threads by method": statistics["memory_threads_by_method"],
    }


def _said(statistics: Mapping[str, Any]) -> str:
    counts = statistics["keywords"].values()
    every = sum(item["keywords"] for item in counts)
    return f"{sum(item['said'] for item in counts) / every:.1%}" if every else "none"


def _cell(text: object) -> str:
    """A text on one line in which nothing ends a table cell or begins markup."""
    flat = " ".join(str(text).split())
    return "".join("\\" + char if char in "\\`*_|<>[]" else char for char in flat)


def write_dataset(
    out: Path, people: Iterable[Person], *, making: Mapping[str, Any], episode: EpisodeConfig, seed: int
) -> dict[str, Any]:
    """Write people, sessions and rejections as JSON lines, parquet, probe, data card and, last, ``dataset.json``.

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
    sample = CardSample()
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
            verdict, persona = judge_chain(sessions), person.persona
            violations = [*verdict.violations, *splits.person(persona.person_id, persona.seed, persona.split)]
            violations += [violation for labelled in sessions for violation in splits.session(labelled)]
            if violations:
                rule, message = violations[0]
                others = f", and {len(violations) - 1} more violations" if len(violations) > 1 else ""
                raise DeltaMemError(f"{persona.person_id}: {message} (rule {rule}{others}); nothing was written")
            people_file.write(person.model_dump_json() + "\n")
            for labelled in sessions:
                line = to_json_line(labelled)
                sessions_file.write(line + "\n")
                rows[labelled.split].add(labelled, line)
            rejected_file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in _rejections(person))
            statistics.add(person, sessions, verdict)
            sample.add(person, sessions)
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
    findings = sample.findings()
    write_findings(out, findings)
    _write(out / CARD_FILE, render_card(manifest, findings, parquet=parquet))
    # The probe finds more with an embedding model.
    views = (MANIFEST_FILE, PROBE_FILE)
    hashed = [name for name in FILES if name not in views and (out / name).exists()]
    manifest["sha256"] = {name: file_sha256(out / name) for name in hashed}
    _write(out / MANIFEST_FILE, json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")
    return manifest


def _write(path: Path, text: str) -> None:
    with atomic_writer(path) as file:
        file.write(text)


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
