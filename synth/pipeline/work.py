"""What a work folder holds: the recipe of the data set, who belongs into this part of it, and who is finished.

A finished person is kept in ``work/people.jsonl`` with a fingerprint: a hash of everything that the record follows from,
that is the persona, the settings, what the writer says of itself (`Writer.making`: prompts, model, sampling) and the source
code that plans, judges and puts together. A person whose fingerprint is still the same is not touched. All others are
written from the start; that is cheap, because a language model's answers are kept on their own (``work/answers.jsonl``), by
a hash of the request: a unit is asked for again only if what the model would be sent has changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deltamem.errors import DeltaMemError
from deltamem.files import atomic_writer
from deltamem.provenance import config_hash
from synth.pipeline.store import JsonLinesStore
from synth.records import Person, Persona
from synth.settings import SynthSettings

WORK_FOLDER = "work"
SHARDS_FOLDER = "shards"
PEOPLE_STORE = "people.jsonl"
ANSWERS_STORE = "answers.jsonl"
ERRORS_FILE = "errors.jsonl"
RUN_FILE = "run.json"
"""What a work folder is for: the recipe, and the fingerprint of every person who belongs into it."""

_NOT_IN_FINGERPRINTS = {
    "__main__.py",
    "commands.py",
    "contamination.py",
    "estimate.py",
    "output",
    "personas",
    "pipeline",
    "settings.py",
}
"""Parts of this package that records do not follow from; of `personas`, they follow from the result alone."""


class Run(NamedTuple):
    """What a work folder is for.

    Attributes:
        shard: ``i/n``.
        recipe: Everything that the data set follows from; the same in all shards.
        everybody: Ids of all people of the data set, in order.
        people: Fingerprints of the people of this shard.
    """

    shard: str
    recipe: dict[str, Any]
    everybody: list[str]
    people: dict[str, str]


class Work(NamedTuple):
    """What is to do: the persona, the number in the whole data set, and the fingerprint."""

    number: int
    persona: Persona
    fingerprint: str


def work_folder(settings: SynthSettings) -> Path:
    """Where a run keeps what is finished."""
    if settings.shard.of == 1:
        return settings.out / WORK_FOLDER
    return settings.out / SHARDS_FOLDER / settings.shard.folder / WORK_FOLDER


def code_hash(package: Path = Path(__file__).parents[1]) -> str:
    """Hash of the source files that records follow from."""
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] not in _NOT_IN_FINGERPRINTS:
            found.update(f"{name.as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def plan(settings: SynthSettings, personas: Sequence[Persona], making: Mapping[str, Any]) -> tuple[Run, list[Work]]:
    """What this run's shard has to do.

    Args:
        settings: The configuration.
        personas: Of the whole data set.
        making: What the writer says of itself.
    """
    # As it is read back from the run's file, so that a merge writes the same bytes.
    recipe = json.loads(json.dumps({**settings.recipe(), "making": dict(making), "code": code_hash()}))
    of_a_person = {
        key: value for key, value in recipe.items() if key not in {"people", "heldout_share", "personas", "episode"}
    }
    base = config_hash(of_a_person)
    shard = settings.shard
    work = [
        Work(number, persona, hashlib.sha256(f"{base} {number} {persona.model_dump_json()}".encode()).hexdigest())
        for number, persona in enumerate(personas)
        if number % shard.of == shard.number
    ]
    everybody = [persona.person_id for persona in personas]
    return Run(str(shard), recipe, everybody, {item.persona.person_id: item.fingerprint for item in work}), work


def write_run(folder: Path, run: Run) -> None:
    """Say what a work folder is for."""
    with atomic_writer(folder / RUN_FILE) as file:
        json.dump(run._asdict(), file, ensure_ascii=False)


def read_run(folder: Path) -> Run:
    """What a work folder is for.

    Raises:
        DeltaMemError: If it does not say so.
    """
    path = folder / RUN_FILE
    try:
        return Run(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        raise DeltaMemError(f"{path}: no such file; python -m synth writes it when it starts") from None
    except (ValueError, TypeError):
        raise DeltaMemError(f"{path}: not a run description of python -m synth; run it again to renew it") from None


def is_finished(store: JsonLinesStore, person_id: str, fingerprint: str) -> bool:
    """Whether a person is there, written from what the fingerprint stands for."""
    value = store.get(person_id)
    return value is not None and value["fingerprint"] == fingerprint


def read_people(store: JsonLinesStore, person_ids: Iterable[str]) -> Iterator[Person]:
    """Finished people, one at a time, in the order given."""
    for person_id in person_ids:
        value = store.get(person_id)
        if value is not None:
            yield Person.model_validate(value["person"])
