"""``python -m synth inspect``: one person in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from deltamem.cli.output import visible
from deltamem.errors import DeltaMemError
from deltamem.memory import Event, alternatives
from synth.assembly import replay
from synth.output.files import PEOPLE_FILE, read_people, read_unfinished
from synth.records import Dialogue, LifeEvent, Person, Profile, Rejection, SessionFact, SynthSession
from synth.tasks import Unit
from synth.validators.base import occurs

_MARKS = {Event.ADD: ("+", "green"), Event.UPDATE: ("~", "yellow"), Event.NONE: ("=", "cyan")}


class _Seen(NamedTuple):
    """A session with its event, the memory of each of its facts, and how many memories there are after it."""

    session: SynthSession
    event: LifeEvent
    memory_ids: list[str]
    memories: int
    rejections: list[Rejection]


def _lived(person: Person) -> Iterator[_Seen]:
    """The sessions of a person; none if the person was rejected."""
    events = {event.index: event for event in person.events}
    for session, before, operations, after in replay(person):
        added = iter([memory_id for memory_id in after if memory_id not in before])
        ids = [operation.target_memory_id or next(added) for operation in operations]
        rejections = [item for item in person.rejections if _of_session(item) and item.where == str(session.index)]
        yield _Seen(session, events[session.index], ids, len(after), rejections)


def _of_session(rejection: Rejection) -> bool:
    return rejection.unit in (Unit.FILLING, Unit.DIALOGUE)


def _shown_person(people: Iterable[Person]) -> Person | None:
    """The first person of whom nothing was rejected, else the first with sessions, else the first."""
    best: Person | None = None
    for person in people:
        if person.sessions and not person.rejections:
            return person
        if best is None or (person.sessions and not best.sessions):
            best = person
    return best


def _find_person(people: Iterable[Person], person_id: str) -> Person:
    ids = []
    for person in people:
        if person.persona.person_id == person_id:
            return person
        ids.append(person.persona.person_id)
    there = f"there are {len(ids)}, {ids[0]} to {ids[-1]}" if ids else "there are none yet"
    raise DeltaMemError(f"no person {person_id!r}; {there}")


def inspect(out: Path, person: str | None, session: int | None, console: Console) -> None:
    """Show a person of a data set, finished or not: profile, events, operations, keywords, rejections.

    Without an id it is the first person of whom nothing was rejected. `session`, counted from 1, shows that one alone with
    its dialogue, and where in it each fact is said. A `DeltaMemError` if there is no such person or session.
    """
    people = read_people(out / PEOPLE_FILE) if (out / PEOPLE_FILE).exists() else read_unfinished(out)
    found = _shown_person(people) if person is None else _find_person(people, person)
    if found is None:
        raise DeltaMemError(f"{out}: there are no people yet")
    if session is None:
        shown = _life(found)
    else:
        lived = {seen.session.index + 1: seen for seen in _lived(found)}
        if session not in lived:
            there = f"there are {min(lived)} to {max(lived)}" if lived else "there are none"
            raise DeltaMemError(f"{found.persona.person_id}: no session {session}; {there}")
        shown = _session(lived[session], dialogue=True)
    for part in shown:
        console.print(part)


def _life(person: Person) -> Iterable[RenderableType]:
    persona, profile = person.persona, person.profile
    yield Rule(_text(profile.name if profile else persona.person_id, "bold"))
    yield _text(persona.seed, "italic")
    yield _text(f"{persona.person_id}, {persona.split}, seed: {persona.source}", "dim")
    # The texts of each memory by id, each with where it comes from.
    versions: dict[str, list[tuple[str, str]]] = {}
    if profile is not None:
        yield from _profile(profile)
        versions = {f"m{number}": [("before", known.text)] for number, known in enumerate(profile.initial, start=1)}
    for item in person.rejections:
        if not _of_session(item):
            yield _rejection(item)
    for group in person.groups:
        yield _text(f"linked sessions {', '.join(str(index + 1) for index in group.events)}: {group.thread}", "dim")
    for seen in _lived(person):
        yield from _session(seen, dialogue=False)
        for fact, memory_id in zip(seen.session.facts, seen.memory_ids, strict=True):
            if fact.event is not Event.NONE:
                versions.setdefault(memory_id, []).append((f"session {seen.session.index + 1}", fact.text))
    changed = {memory_id: texts for memory_id, texts in versions.items() if len(texts) > 1}
    if changed:
        yield Rule("memories that changed", align="left")
    for memory_id, texts in changed.items():
        table = _grid()
        for number, (where, text) in enumerate(texts):
            style = "" if number == len(texts) - 1 else "dim"
            table.add_row(_text("" if number else memory_id, "dim"), _text(where, "dim"), _text(text, style))
        yield table


def _profile(profile: Profile) -> Iterable[RenderableType]:
    fixed, dynamic = profile.fixed, profile.dynamic
    facts = {
        "born": fixed.birth_date.isoformat(),
        "gender": fixed.gender,
        "lives in": fixed.location,
        "education": ", ".join(filter(None, (fixed.degree, fixed.major))),
        "character": ", ".join((fixed.mbti, *fixed.traits)),
        "family": "; ".join(filter(None, (fixed.family.parents, fixed.family.partner, fixed.family.children))),
        "life goal": fixed.life_goal.statement,
        "work": ", ".join(filter(None, (dynamic.career.job, dynamic.career.employer, dynamic.career.status))),
        "health": ", ".join(filter(None, (dynamic.health.physical, dynamic.health.mental))),
        "knows": "; ".join(f"{item.name} ({item.kind})" for item in dynamic.relationships),
        **{
            group.category: "; ".join(
                [*(f"likes {item.item}" for item in group.likes), *(f"dislikes {item.item}" for item in group.dislikes)]
            )
            for group in profile.preferences.groups
        },
    }
    table = _grid()
    for name, value in facts.items():
        if value:
            table.add_row(_text(name, "dim"), _text(value))
    yield table
    yield Rule(f"known before the first session, {profile.start.date()}", align="left")
    known = _grid()
    for number, fact in enumerate(profile.initial, start=1):
        known.add_row(_text(f"m{number}", "dim"), _text(fact.text))
    yield known


def _session(seen: _Seen, *, dialogue: bool) -> Iterable[RenderableType]:
    session, event = seen.session, seen.event
    title = f"{session.index + 1}. {session.time:%Y-%m-%d %H:%M}  {event.title}".rstrip()
    yield Rule(_text(title, "bold red" if session.dialogue is None else "bold"), align="left")
    goal = ["life goal"] if event.serves_life_goal else []
    yield _text(", ".join([event.domain, event.valence, *goal, f"{seen.memories} memories after it"]), "dim")
    for text in (event.narrative, f"wants: {session.goal}" if session.goal else ""):
        if text:
            yield _text(text)
    for item in seen.rejections:
        yield _rejection(item)
    table, facts = _grid(), list(zip(session.facts, seen.memory_ids, strict=True))
    for fact, memory_id in facts:
        mark, style = _MARKS[fact.event]
        table.add_row(_text(mark, f"bold {style}"), _text(memory_id, "dim"), _fact(fact, session.dialogue))
    yield table
    if not dialogue:
        return
    if session.dialogue is None:
        yield _text("no dialogue: the session was rejected", "red")
        return
    turns = {entry.fact_id: (entry.turn, entry.previous_turn) for entry in session.dialogue.plan}
    for number, exchange in enumerate(session.dialogue.turns, start=1):
        planned = [(fact, memory_id) for fact, memory_id in facts if number in turns.get(fact.id, ())]
        said = " ".join(f"{_MARKS[fact.event][0]}{memory_id}" for fact, memory_id in planned)
        yield Text.assemble(
            "\n", (f"{number} user ", "bold blue"), (f"[{said}] " if said else "", "magenta"), visible(exchange.user)
        )
        yield Padding(Text.assemble(("assistant ", "bold"), visible(exchange.assistant), style="dim"), (0, 0, 0, 2))


def _fact(fact: SessionFact, dialogue: Dialogue | None) -> Text:
    """A fact, where it and what held before are said, and its keywords: green if the user says them, else red."""
    text = Text()
    if fact.event is Event.UPDATE:
        text.append(visible(fact.previous_text) + "\n", "strike dim")
    text.append(visible(fact.text))
    places = [fact.origin.value]
    for entry in dialogue.plan if dialogue else ():
        if entry.fact_id == fact.id:
            places.append(f"turn {entry.turn}")
            if entry.previous_turn not in (0, entry.turn):
                places.append(f"before in turn {entry.previous_turn}")
    text.append(f"\n{', '.join(places)}:", "dim")
    said = " ".join(exchange.user for exchange in dialogue.turns) if dialogue else ""
    for number, keyword in enumerate(fact.keywords, start=1):
        style = ("green" if occurs(keyword, said) else "red") if dialogue else "dim"
        text.append(f" {visible(' / '.join(alternatives(keyword)))}", style)
        text.append("," if number < len(fact.keywords) else "", "dim")
    return text


def _rejection(item: Rejection) -> Text:
    text = _text(f"rejected: {item.unit} {item.where}".rstrip() + f" ({', '.join(item.rules) or 'no rule'})", "bold red")
    for reason in item.reasons:
        text.append(f"\n  {visible(reason)}", "red")
    return text


def _grid() -> Table:
    return Table.grid(padding=(0, 1))


def _text(text: str, style: str = "") -> Text:
    """Text of the data set: no markup in it is obeyed and nothing in it steers the terminal."""
    return Text(visible(text), style)
