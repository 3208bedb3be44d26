"""``python -m synth inspect``: one person in the terminal, and a life taken apart for reading."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from deltamem.cli.output import visible
from deltamem.errors import DeltaMemError
from deltamem.memory import Event
from synth.assembly import replay
from synth.output.files import PEOPLE_FILE, read_people, read_unfinished
from synth.records import LifeEvent, Person, Profile, Rejection, SessionFact, SynthSession
from synth.tasks import Unit
from synth.validators.speech import occurs

_MARKS = {Event.ADD: ("+", "green"), Event.UPDATE: ("~", "yellow"), Event.NONE: ("=", "cyan")}


@dataclass(frozen=True, slots=True)
class FactView:
    """A fact of a session with its memory, and the turns, from 1, where it and what held before are said; 0 for nowhere.

    `keywords` are those of the fact, each with whether the user says it; None in a session without a dialogue.
    """

    fact: SessionFact
    memory_id: str
    turn: int
    previous_turn: int
    keywords: list[tuple[str, bool | None]]


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session with its event, its facts in the order of the operations, and how many memories there are after it."""

    session: SynthSession
    event: LifeEvent
    facts: list[FactView]
    memories: int
    rejections: list[Rejection]


@dataclass(frozen=True, slots=True)
class Life:
    """A person taken apart; `versions` are the texts of each memory by id, each with its session (None: known before)."""

    person: Person
    sessions: list[SessionView]
    versions: dict[str, list[tuple[int | None, str]]]


def life(person: Person) -> Life:
    """Take a person apart; there are no sessions and memories if the person was rejected."""
    events = {event.index: event for event in person.events}
    initial = person.profile.initial if person.profile else ()
    versions: dict[str, list[tuple[int | None, str]]] = {
        f"m{number}": [(None, known.text)] for number, known in enumerate(initial, start=1)
    }
    sessions = []
    for session, before, operations, after in replay(person):
        added = iter([memory_id for memory_id in after if memory_id not in before])
        dialogue = session.dialogue
        turns = {entry.fact_id: (entry.turn, entry.previous_turn) for entry in (dialogue.plan if dialogue else ())}
        said = " ".join(exchange.user for exchange in dialogue.turns) if dialogue else ""
        facts = []
        for fact, operation in zip(session.facts, operations, strict=True):
            memory_id = operation.target_memory_id or next(added)
            if fact.event is not Event.NONE:
                versions.setdefault(memory_id, []).append((session.index, fact.text))
            keywords = [(word, occurs(word, said) if dialogue else None) for word in fact.keywords]
            facts.append(FactView(fact, memory_id, *turns.get(fact.id, (0, 0)), keywords))
        rejections = [item for item in person.rejections if _of_session(item) and item.where == str(session.index)]
        sessions.append(SessionView(session, events[session.index], facts, len(after), rejections))
    return Life(person, sessions, versions)


def _of_session(rejection: Rejection) -> bool:
    return rejection.unit in (Unit.FILLING, Unit.DIALOGUE)


def shown_person(people: Iterable[Person]) -> Person | None:
    """The first person of whom nothing was rejected, else the first with sessions, else the first."""
    best: Person | None = None
    for person in people:
        if person.sessions and not person.rejections:
            return person
        if best is None or (person.sessions and not best.sessions):
            best = person
    return best


def find_person(people: Iterable[Person], person_id: str) -> Person:
    """The person of an id; a `DeltaMemError` that names the first and the last one if there is none."""
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
    found = shown_person(people) if person is None else find_person(people, person)
    if found is None:
        raise DeltaMemError(f"{out}: there are no people yet")
    seen = life(found)
    if session is None:
        shown = _life(seen)
    else:
        numbers = [view.session.index + 1 for view in seen.sessions]
        if session not in numbers:
            there = f"there are {numbers[0]} to {numbers[-1]}" if numbers else "there are none"
            raise DeltaMemError(f"{found.persona.person_id}: no session {session}; {there}")
        shown = _session(seen.sessions[numbers.index(session)], dialogue=True)
    for part in shown:
        console.print(part)


def _life(seen: Life) -> Iterable[RenderableType]:
    persona = seen.person.persona
    yield Rule(_text(seen.person.profile.name if seen.person.profile else persona.person_id, "bold"))
    yield _text(persona.seed, "italic")
    yield _text(f"{persona.person_id}, {persona.split}, seed: {persona.source}", "dim")
    if seen.person.profile is not None:
        yield from _profile(seen.person.profile)
    for item in seen.person.rejections:
        if not _of_session(item):
            yield _rejection(item)
    for group in seen.person.groups:
        yield _text(f"linked sessions {', '.join(str(index + 1) for index in group.events)}: {group.thread}", "dim")
    for view in seen.sessions:
        yield from _session(view, dialogue=False)
    changed = {memory_id: texts for memory_id, texts in seen.versions.items() if len(texts) > 1}
    if changed:
        yield Rule("memories that changed", align="left")
    for memory_id, texts in changed.items():
        table = _grid()
        for number, (session, text) in enumerate(texts):
            where = "before" if session is None else f"session {session + 1}"
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


def _session(view: SessionView, *, dialogue: bool) -> Iterable[RenderableType]:
    session, event = view.session, view.event
    title = f"{session.index + 1}. {session.time:%Y-%m-%d %H:%M}  {event.title}".rstrip()
    yield Rule(_text(title, "bold red" if session.dialogue is None else "bold"), align="left")
    goal = ["life goal"] if event.serves_life_goal else []
    tags = [event.domain, event.valence, *goal, f"{view.memories} memories after it"]
    yield _text(", ".join(tags), "dim")
    for text in (event.narrative, f"wants: {session.goal}" if session.goal else ""):
        if text:
            yield _text(text)
    for item in view.rejections:
        yield _rejection(item)
    table = _grid()
    for fact in view.facts:
        mark, style = _MARKS[fact.fact.event]
        table.add_row(_text(mark, f"bold {style}"), _text(fact.memory_id, "dim"), _fact(fact))
    yield table
    if not dialogue:
        return
    if session.dialogue is None:
        yield _text("no dialogue: the session was rejected", "red")
        return
    for number, exchange in enumerate(session.dialogue.turns, start=1):
        planned = [fact for fact in view.facts if number in (fact.turn, fact.previous_turn)]
        said = " ".join(f"{_MARKS[fact.fact.event][0]}{fact.memory_id}" for fact in planned)
        yield Text.assemble(
            "\n", (f"{number} user ", "bold blue"), (f"[{said}] " if said else "", "magenta"), visible(exchange.user)
        )
        yield Padding(Text.assemble(("assistant ", "bold"), visible(exchange.assistant), style="dim"), (0, 0, 0, 2))


def _fact(view: FactView) -> Text:
    fact = view.fact
    text = Text()
    if fact.event is Event.UPDATE:
        text.append(visible(fact.previous_text) + "\n", "strike dim")
    text.append(visible(fact.text))
    places = [f"turn {view.turn}"] if view.turn else []
    if view.previous_turn and view.previous_turn != view.turn:
        places.append(f"before in turn {view.previous_turn}")
    text.append(f"\n{', '.join([fact.origin, *places])}:", "dim")
    for number, (keyword, said) in enumerate(view.keywords, start=1):
        text.append(f" {visible(keyword)}", {True: "green", False: "red", None: "dim"}[said])
        text.append("," if number < len(view.keywords) else "", "dim")
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
