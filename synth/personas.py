"""Persona seeds: one sentence from which each synthetic person is made, and the split by person."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from deltamem.config import StrictModel
from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer
from deltamem.sessions import Split
from deltamem.text_files import read_lines
from synth.config import PERSONAHUB, PersonaSettings
from synth.pools import Texts, Words, packaged, permutation, pools, slots
from synth.records import Persona


class Parts(StrictModel):
    """What generated persona seeds are made of (``personas.yaml``), with the cities of `synth.pools`."""

    sentences: Annotated[Texts, slots("A", "a", "occupation", "place", "interest", "circumstance")]
    occupations: Words
    interests: Words
    circumstances: Words

    @property
    def total(self) -> int:
        """How many different seeds there are."""
        sizes = map(len, (self.occupations, pools().cities, self.interests, self.circumstances, self.sentences))
        return math.prod(sizes)

    def sentence(self, number: int) -> str:
        """The seed of a number from 0 to `total` - 1; different numbers have different seeds."""
        cities = pools().cities
        number, occupation = divmod(number, len(self.occupations))
        number, place = divmod(number, len(cities))
        number, interest = divmod(number, len(self.interests))
        form, circumstance = divmod(number, len(self.circumstances))
        article = "an" if self.occupations[occupation][0] in "aeio" else "a"
        return self.sentences[form].format(
            A=article.capitalize(),
            a=article,
            occupation=self.occupations[occupation],
            place=cities[place],
            interest=self.interests[interest],
            circumstance=self.circumstances[circumstance],
        )


parts = packaged(Path(__file__).with_name("personas.yaml"), Parts)


def generate(count: int, seed: int) -> Iterator[str]:
    """Seeds in an order that depends on `seed`, all different; a larger count only appends.

    Raises `DeltaMemError` if there are not so many.
    """
    made_of = parts()
    total = made_of.total
    if count > total:
        raise DeltaMemError(f"{count} persona seeds are asked for, but only {total} different ones can be generated")
    number_at = permutation(total, random.Random(f"{seed}/personas"))
    return (made_of.sentence(number_at(position)) for position in range(count))


_COLUMNS = ("persona", "input persona")
_CONFIG = "persona"
LONGEST = 400
"""Characters of a seed (`synth.records.Line`)."""


def _from_file(settings: PersonaSettings, count: int, seed: int) -> list[str]:
    """Draw seeds from a file of JSON lines or of lines of text, all different."""
    path = Path(settings.path or "")
    try:
        lines = list(read_lines(path))
    except OSError as error:
        raise DeltaMemError(f"{path}: {error.strerror}") from error
    personas = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            persona = _from_json(line, settings.column, f"{path}, line {number}") if path.suffix == ".jsonl" else line
            if len(persona.strip()) > LONGEST:
                raise DeltaMemError(
                    f"{path}, line {number}: a persona of {len(persona)} characters; at most {LONGEST} are read"
                )
            personas.append(persona)
    return _draw(personas, count, seed, str(path))


def _from_personahub(settings: PersonaSettings, count: int, seed: int) -> list[str]:
    """Draw seeds from PersonaHub, all different, through the package ``datasets``; the only place with network access."""
    try:
        import datasets
    except ImportError as error:
        raise DeltaMemError("personas.source=personahub needs the package datasets: pip install datasets") from error
    source = settings.path or PERSONAHUB
    try:
        if settings.path:
            rows = datasets.load_dataset("json", data_files=settings.path, split="train")
        else:
            rows = datasets.load_dataset(PERSONAHUB, _CONFIG, split="train", revision=settings.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DeltaMemError(
            f"{source}: {type(error).__name__}, the personas cannot be loaded; where there is network, fetch them with: "
            f"hf download {PERSONAHUB} persona.jsonl --repo-type dataset --local-dir DIR; then name "
            "personas.path=DIR/persona.jsonl. Seeds of our own, which are not the paper's: personas.source=generated"
        ) from error
    column = _column(dict.fromkeys(rows.column_names, ""), settings.column)
    if column is None:
        raise DeltaMemError(f"{source}: no column {settings.column!r} but {rows.column_names} (personas.column)")
    return _draw(rows[column], count, seed, source)


def _from_json(line: str, column: str | None, where: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DeltaMemError(f"{where}: not JSON") from error
    if isinstance(record, str) and column is None:
        return record
    texts = {key: text for key, text in record.items() if isinstance(text, str)} if isinstance(record, dict) else {}
    found = _column(texts, column)
    if found is None:
        raise DeltaMemError(f"{where}: no text under {column!r}" if column else f"{where}: no text")
    return texts[found]


def _column(texts: Mapping[str, Any], column: str | None) -> str | None:
    if column is not None:
        return column if column in texts else None
    return next((name for name in (*_COLUMNS, *texts) if name in texts), None)


def _draw(personas: Sequence[str], count: int, seed: int, where: str) -> list[str]:
    order = list(range(len(personas)))
    random.Random(f"{seed}/personas").shuffle(order)
    drawn: dict[str, str] = {}
    for index in order:
        persona = " ".join(personas[index].split())
        if 0 < len(persona) <= LONGEST:
            drawn.setdefault(persona.casefold(), persona)
            if len(drawn) == count:
                break
    if len(drawn) < count:
        raise DeltaMemError(f"{where} has {len(drawn)} different personas, but {count} are asked for")
    return list(drawn.values())


def draw_personas(settings: PersonaSettings, *, people: int, heldout_share: float, seed: int) -> list[Persona]:
    """Number the people, give each a seed of their own and spread the held-out ones evenly among them.

    Of two or more people, at least one is held out and at least one is trained on. Raises `DeltaMemError` if the source
    cannot be read, names no persona where one is expected, or has too few different ones.
    """
    if settings.source == "generated":
        texts = list(generate(people, seed))
    elif settings.source == "file":
        texts = _from_file(settings, people, seed)
    else:
        texts = _from_personahub(settings, people, seed)
    personas, heldout = [], 0
    for number, text in enumerate(texts):
        wanted = min(number, max(round((number + 1) * heldout_share), int(number == people - 1)))
        split: Split = "heldout" if wanted > heldout else "train"
        heldout += split == "heldout"
        personas.append(Persona(person_id=f"p{number:06d}", seed=text, source=settings.source, split=split))
    return personas


def write_generated(count: int, seed: int, path: Path) -> None:
    """Write generated seeds as JSON lines with the key ``persona``; the file is whole or not there.

    Raises `DeltaMemError` if there are not so many.
    """
    texts = generate(count, seed)
    with atomic_writer(path) as file:
        file.writelines(json.dumps({"persona": text}, ensure_ascii=False) + "\n" for text in texts)
