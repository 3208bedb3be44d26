"""People written by hand, small enough to be checked by eye, for the tests of the data set's files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from handmade import DYNAMIC, FIXED, edit, event, session_fact, slot

from deltamem.episode import EpisodeConfig
from deltamem.memory import Event
from deltamem.sessions import Split
from synth.output.dataset import write_dataset
from synth.records import (
    Dialogue,
    EventGroup,
    Evolution,
    Exchange,
    Fact,
    FactChange,
    FactOrigin,
    Method,
    Person,
    Persona,
    PlannedFact,
    Preferences,
    Profile,
    Rejection,
    SessionFact,
    StateDelta,
    SynthSession,
    Track,
    TrackedFact,
    UnitUsage,
)

EPISODE = EpisodeConfig()
NAMES = ("Ana Ruiz", "Ben Ode", "Cleo Park", "Dara Voss", "Eli Moon", "Fay Lind")
MAKING: dict[str, Any] = {
    "people": 4, "sessions": 3, "writer": "llm", "seed": 7, "personas": {"source": "personahub"},
    "making": {
        "writer": "llm", "model": "gpt-oss-120b", "sampling": {"temperature": 1.0, "top_p": 1.0},
        "prompts": {"events": "0123456789abcdef"},
    },
}  # fmt: skip


def _persona(number: int, split: Split) -> Persona:
    return Persona(person_id=f"p{number:06d}", seed=f"Somebody with number {number}", source="generated", split=split)


def person(number: int, split: Split = "train", *, text: str = "", lost: Sequence[int] = ()) -> Person:
    """Somebody with three sessions: a job changed, a thread about it, a repeated memory.

    Args:
        number: Decides name and town, so that no two people say the same.
        split: Theirs.
        text: Said by the user and written in the narrative besides.
        lost: Indices of the sessions whose dialogue was rejected.
    """
    name, town = NAMES[number % len(NAMES)], f"Town{number}"
    works = Fact(text=f"{name} works as a baker in {town}.", keywords=("baker", town))
    moved = Fact(text=f"{name} works as a chef in {town}.", keywords=("chef", town))
    tea = Fact(text=f"{name} drinks green tea.", keywords=("green tea",))
    cat = Fact(text=f"{name} adopted a cat.", keywords=("adopted", "cat"))
    worry = Fact(text=f"{name} is worried about the new kitchen in {town}.", keywords=("worried", "new kitchen"))
    pride = Fact(text=f"{name} is proud of the new kitchen in {town}.", keywords=("proud", "new kitchen"))
    profile = Profile(
        persona=_persona(number, split),
        fixed=edit(FIXED, {"name": name, "birth_date": date(1990, 5, 1), "location": town}),
        dynamic=DYNAMIC,
        preferences=Preferences(groups=()),
        start=datetime(2026, 1, 1, 9),
        initial=(
            TrackedFact(**works.model_dump(), track=Track.CAREER, subject=""),
            TrackedFact(**tea.model_dump(), track=Track.PREFERENCE, subject="drinks"),
        ),
    )
    delta = StateDelta(
        **moved.model_dump(), track=Track.CAREER, change=FactChange.SHIFT, subject="", previous_text=works.text
    )
    events = tuple(
        event(
            index,
            date(2026, 1, 10) + timedelta(days=30 * index),
            domain="work",
            narrative=f"Something happens in {town}. {text}",
            serves_life_goal=index == 1,
            changes=(delta,) if index == 1 else (),
        )
        for index in range(3)
    )
    facts = (
        (session_fact(1, Event.ADD, worry, "", FactOrigin.EVOLUTION),),
        (
            session_fact(1, Event.UPDATE, moved, works.text, FactOrigin.DELTA),
            session_fact(2, Event.NONE, tea, tea.text, FactOrigin.REUSE),
        ),
        (session_fact(1, Event.UPDATE, pride, worry.text, FactOrigin.EVOLUTION), session_fact(2, Event.ADD, cat)),
    )
    sessions = tuple(
        SynthSession(
            index=index,
            time=datetime.combine(happened.date, datetime.min.time()) + timedelta(hours=20),
            goal="to talk",
            summary="a talk",
            facts=said,
            dialogue=None if index in lost else _dialogue(said, f"{name} here, {text}"),
        )
        for index, (happened, said) in enumerate(zip(events, facts, strict=True))
    )
    rejection = {"unit": "dialogue", "rules": ("dialogue.supported",), "reasons": (f"f1 is not said {text}",)}
    calls = UnitUsage(units=3, attempts=3 + len(lost), rejected=len(lost), prompt_tokens=300, completion_tokens=200)
    return Person(
        persona=profile.persona,
        profile=profile,
        slots=tuple(slot(happened, reused=int(happened.index == 1)) for happened in events),
        events=events,
        groups=(EventGroup(events=(0, 2), thread="the new kitchen"),),
        evolutions=(Evolution(method=Method.EMOTIONAL, memories=(worry, pride)),),
        sessions=sessions,
        rejections=tuple(Rejection(where=str(index), **rejection) for index in lost),
        checked={"dialogue.supported": 3 + len(lost), "events.one_per_slot": 1},
        violations={"dialogue.supported": 2 * len(lost)} if lost else {},
        usage={"events": UnitUsage(units=1, attempts=1, prompt_tokens=100, completion_tokens=50), "dialogue": calls},
    )


def rejected_person(number: int, split: Split = "train") -> Person:
    """Somebody whose profile was never right."""
    rejection = Rejection(unit="fixed", where="", rules=("fixed.identity",), reasons=("name must stay 'A', but is 'B'",))
    return Person(
        persona=_persona(number, split),
        rejections=(rejection,),
        checked={"fixed.identity": 3},
        violations={"fixed.identity": 3},
        usage={"fixed": UnitUsage(units=1, attempts=3, rejected=1, prompt_tokens=30, completion_tokens=20)},
    )


def some_people() -> list[Person]:
    """Two to train on, one of them without the second session; one held out; one rejected."""
    return [person(0), rejected_person(1), person(2, lost=(1,)), person(3, "heldout")]


def write(out: Path, people: Sequence[Person] | None = None, *, making: dict[str, Any] | None = None) -> dict[str, Any]:
    """Write a data set of handmade people."""
    chosen = some_people() if people is None else people
    return write_dataset(out, iter(chosen), making=making or MAKING, episode=EPISODE, seed=7)


def contents(out: Path) -> dict[str, bytes]:
    """The bytes of every file of a folder."""
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


def _dialogue(facts: Sequence[SessionFact], greeting: str) -> Dialogue:
    """A greeting, then each fact in a turn of its own, an outdated one mentioned with it."""
    said = [f"You should know that {fact.text} It was: {fact.previous_text or 'nothing'}" for fact in facts]
    return Dialogue(
        plan=tuple(
            PlannedFact(fact_id=fact.id, turn=turn, previous_turn=turn if fact.event is Event.UPDATE else 0)
            for turn, fact in enumerate(facts, start=2)
        ),
        turns=tuple(Exchange(user=text, assistant="I see.") for text in (f"Hello, {greeting}", *said)),
    )
