"""``python -m synth inspect``: one person in the terminal, and a life taken apart for reading."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from deltamem.cli.output import visible
from deltamem.errors import DeltaMemError
from deltamem.memory import Event
from synth.output.files import PEOPLE_FILE, read_people, read_unfinished
from synth.output.report import FactView, Life, MemoryView, SessionView, find_person, life, shown_person
from synth.records import Profile, Rejection

_MARKS = {Event.ADD: ("+", "green"), Event.UPDATE: ("~", "yellow"), Event.NONE: ("=", "cyan")}


def inspect(out: Path, person: str | None, session: int | None, console: Console) -> None:
    """Show a person: profile, events, operations, keywords, dialogues with the place of each fact, rejections.

    Args:
        out: Folder of the data set; it need not be finished.
        person: Whom to show; None shows the first person of whom nothing was rejected.
        session: Shows this session alone, counted from 1, with its dialogue; None shows the whole life without dialogues.
        console: Where to.

    Raises:
        DeltaMemError: If there is no such person or session.
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
    for item in seen.rejections:
        yield _rejection(item)
    for group in seen.person.groups:
        yield _text(f"linked sessions {', '.join(str(index + 1) for index in group.events)}: {group.thread}", "dim")
    for view in seen.sessions:
        yield from _session(view, dialogue=False)
    changed = [memory for memory in seen.memories if len(memory.versions) > 1]
    if changed:
        yield Rule("memories that changed", align="left")
        for memory in changed:
            yield _versions(memory)


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
    tags = [
        event.domain,
        event.valence,
        *(["life goal"] if event.serves_life_goal else []),
        f"{view.memories} memories after it",
    ]
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
        said = " ".join(f"{_MARKS[fact.fact.event][0]}{fact.memory_id}" for fact in view.said_in(number))
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
    for keyword in view.keywords:
        text.append(f" {visible(keyword.text)}", {True: "green", False: "red", None: "dim"}[keyword.said])
        text.append("," if keyword is not view.keywords[-1] else "", "dim")
    return text


def _versions(memory: MemoryView) -> Table:
    table = _grid()
    for number, version in enumerate(memory.versions):
        where = "before" if version.session is None else f"session {version.session + 1}"
        style = "" if number == len(memory.versions) - 1 else "dim"
        table.add_row(_text("" if number else memory.id, "dim"), _text(where, "dim"), _text(version.text, style))
    return table


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
