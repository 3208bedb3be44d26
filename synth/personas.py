"""Persona seeds: one sentence from which each synthetic person is made, and the split by person."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer
from deltamem.sessions import Split
from synth.config import PERSONAHUB, PersonaSettings
from synth.pools import CITIES
from synth.records import Persona


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


OCCUPATIONS = _split(
    "night-shift nurse|primary school teacher|train driver|pastry chef|bicycle mechanic|landscape gardener|tax adviser|"
    "museum guide|software tester|dental hygienist|fishmonger|court interpreter|roofer|wedding photographer|bus driver|"
    "goat farmer|piano tuner|optician|air traffic controller|bookseller|furniture restorer|midwife|mail carrier|"
    "crane operator|speech therapist|sound engineer|insurance clerk|veterinary assistant|tram conductor|beekeeper|"
    "textile designer|game developer|hotel receptionist|physiotherapist|civil engineer|social worker|baker|notary clerk|"
    "swimming instructor|bank teller|chimney sweep|data analyst|florist|forest ranger|locksmith|paralegal|pharmacist|"
    "radio host|ship's cook|street musician|tailor|translator|watchmaker|wind turbine technician|yoga teacher|zookeeper|"
    "archivist|barber|call centre agent|carpenter|cheese maker|choir director|city planner|dietitian|electrician|"
    "emergency dispatcher|event organiser|factory supervisor|ferry captain|food inspector|glassblower|graphic designer|"
    "grocer|history teacher|janitor|journalist|kindergarten teacher|laboratory technician|librarian|logistics planner|"
    "market trader|mathematics tutor|metalworker|network administrator|office manager|orchestra violinist|paramedic|"
    "plumber|potter|prison officer|receptionist at a clinic|seamstress|security guard|stage technician|surveyor|"
    "taxi driver|tour guide|vintner|warehouse worker|web designer"
)

INTERESTS = _split(
    "restores old radios|sings in an amateur choir|grows tomatoes on the balcony|collects railway timetables|"
    "bakes sourdough bread|runs along the river before dawn|plays chess by mail|learns a new language every year|"
    "builds model ships|reads crime novels in one sitting|watches birds with a borrowed telescope|brews ginger beer|"
    "dances tango on Thursdays|paints small watercolours|repairs bicycles for the neighbours|keeps a diary of dreams|"
    "photographs doorways|solves crosswords in ink|plays the double bass|knits for every newborn around|"
    "hikes alone in the hills|volunteers at an animal shelter|writes letters to distant cousins|swims in cold lakes|"
    "collects recipes from elderly people|follows local football with passion|makes puppets out of scrap wood|"
    "plays board games that last a whole weekend|tends a shared garden|films short documentaries|studies the stars|"
    "rebuilds vintage computers|practises calligraphy|forages for mushrooms|coaches a youth volleyball team|"
    "bakes elaborate birthday cakes|reads poetry aloud|restores a wooden rowing boat|plays table tennis in the park|"
    "maps forgotten footpaths|collects vinyl records|sews historical costumes|tries a new soup every week|"
    "climbs at the indoor wall|makes ceramics|plays in a brass band|keeps bees on a roof|writes science fiction stories|"
    "goes to every film festival within reach|trains for a first triathlon|draws comic strips|cooks with spices from home|"
    "breeds canaries|organises flea markets|plays the accordion|explores abandoned factories|studies family trees|"
    "presses flowers|takes part in pub quizzes|carves wooden spoons|learns magic tricks|goes fishing at sunrise|"
    "translates old songs|rides long distances by bicycle|cultivates bonsai trees|plays badminton in a mixed team|"
    "writes restaurant reviews|builds kites|records the sounds of the city|teaches grandparents to use telephones|"
    "keeps tropical fish|plays improvised theatre|sketches strangers on trains|mends clothes for fun|"
    "hosts dinners for newcomers|skates on weekends|reads about ancient trade routes|makes jam for half the street|"
    "programs small robots|practises judo"
)

CIRCUMSTANCES = _split(
    "has just moved into a first flat of their own|shares a house with two siblings|is saving for a year abroad|"
    "looks after an ageing parent|is expecting a first child|recently went back to evening classes|"
    "is recovering from a knee operation|lives with a stubborn old cat|dreams of opening a small shop|"
    "has broken off a long engagement|is paying back a student loan|works two jobs for the time being|"
    "is getting used to life after a divorce|has adopted a rescue dog|is learning to live with diabetes|"
    "raises twins|has inherited a house that needs repairs|wants to change careers within two years|"
    "has stopped drinking coffee for good|is the first of the family to have a degree|"
    "is planning a wedding on a small budget|moved across the country for love|is trying to sleep better|"
    "sends money home every month|lost a close friend last year|is preparing for a driving test|"
    "has been elected to the residents' council|cannot stand noisy open-plan offices|is renovating a caravan|"
    "is getting over a burnout|commutes ninety minutes each way|has rediscovered an old friendship|"
    "is teaching a niece to read|is determined to buy no new clothes this year|has a long-distance relationship|"
    "is waiting for a residence permit|has switched to a four-day week|takes care of foster children|"
    "is saving up for hearing aids|wants to run for the town council|has become a vegetarian lately|"
    "is back in the home town after ten years|rents a room to exchange students|is writing a will for the first time|"
    "keeps postponing a visit to the dentist|is mending a quarrel with a brother|has won a small scholarship|"
    "is tired of moving every year|hopes to be promoted before summer|is learning to say no"
)

SENTENCES = (
    "{A} {occupation} in {place} who {interest} and {circumstance}.",
    "{A} {occupation} who {circumstance}, lives in {place} and {interest}.",
    "From {place}: {a} {occupation} who {interest} and {circumstance}.",
)

TOTAL = len(OCCUPATIONS) * len(CITIES) * len(INTERESTS) * len(CIRCUMSTANCES) * len(SENTENCES)
"""How many different seeds there are."""


def sentence(number: int) -> str:
    """The seed of a number from 0 to `TOTAL` - 1; different numbers have different seeds."""
    number, occupation = divmod(number, len(OCCUPATIONS))
    number, place = divmod(number, len(CITIES))
    number, interest = divmod(number, len(INTERESTS))
    form, circumstance = divmod(number, len(CIRCUMSTANCES))
    article = "an" if OCCUPATIONS[occupation][0] in "aeio" else "a"
    return SENTENCES[form].format(
        A=article.capitalize(),
        a=article,
        occupation=OCCUPATIONS[occupation],
        place=CITIES[place],
        interest=INTERESTS[interest],
        circumstance=CIRCUMSTANCES[circumstance],
    )


def generate(count: int, seed: int) -> Iterator[str]:
    """Seeds in an order that depends on `seed`, all different; a larger count only appends.

    Raises:
        DeltaMemError: If there are not so many.
    """
    if count > TOTAL:
        raise DeltaMemError(f"{count} persona seeds are asked for, but only {TOTAL} different ones can be generated")
    rng = random.Random(f"{seed}/personas")
    # i -> factor * i + offset (modulo the total) meets every number once, since factor and total share no divisor.
    factor = offset = rng.randrange(TOTAL)
    while math.gcd(factor, TOTAL) != 1:
        factor = rng.randrange(TOTAL)
    return (sentence((factor * index + offset) % TOTAL) for index in range(count))


_COLUMNS = ("persona", "input persona")
_CONFIG = "persona"
LONGEST = 400
"""Characters of a seed (`synth.records.Line`)."""


def from_file(settings: PersonaSettings, count: int, seed: int) -> list[str]:
    """Draw seeds from a file of JSON lines or of lines of text, all different.

    Raises:
        DeltaMemError: If the file cannot be read, a line has no persona or one that is too long, or there are too few.
    """
    path = Path(settings.path or "")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise DeltaMemError(f"{path}: {reason}") from error
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


def from_personahub(settings: PersonaSettings, count: int, seed: int) -> list[str]:
    """Draw seeds from PersonaHub, all different, through the package ``datasets``; the only place with network access.

    Raises:
        DeltaMemError: If the data set cannot be loaded; the message names the command that fetches it.
    """
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
            "personas.path=DIR/persona.jsonl"
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
    """Which of the keys holds the persona."""
    if column is not None:
        return column if column in texts else None
    return next((name for name in (*_COLUMNS, *texts) if name in texts), None)


def _draw(personas: Sequence[str], count: int, seed: int, where: str) -> list[str]:
    """Different ones in random order; which come first does not depend on `count`."""
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

    Of two or more people, at least one is held out and at least one is trained on.

    Args:
        settings: Where the seeds come from.
        people: How many people.
        heldout_share: Share of people that are held out.
        seed: Decides which seeds are drawn, and their order.

    Raises:
        DeltaMemError: If the source cannot be read or has too few different personas.
    """
    if settings.source == "generated":
        texts = list(generate(people, seed))
    elif settings.source == "file":
        texts = from_file(settings, people, seed)
    else:
        texts = from_personahub(settings, people, seed)
    personas = []
    heldout = 0
    for number, text in enumerate(texts):
        wanted = min(number, max(round((number + 1) * heldout_share), int(number == people - 1)))
        split: Split = "heldout" if wanted > heldout else "train"
        heldout += split == "heldout"
        personas.append(Persona(person_id=f"p{number:06d}", seed=text, source=settings.source, split=split))
    return personas


def write_generated(count: int, seed: int, path: Path) -> None:
    """Write generated seeds as JSON lines with the key ``persona``; the file is whole or not there.

    Raises:
        DeltaMemError: If there are not so many.
    """
    texts = generate(count, seed)
    with atomic_writer(path) as file:
        file.writelines(json.dumps({"persona": text}, ensure_ascii=False) + "\n" for text in texts)
