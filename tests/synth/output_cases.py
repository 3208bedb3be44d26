"""People written by hand, small enough to be checked by eye, for the tests of the data set's files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from deltamem.episode import EpisodeConfig
from deltamem.memory import Event
from deltamem.sessions import Split
from synth.output.dataset import write_dataset
from synth.records import (
    Career,
    Change,
    Dialogue,
    Domain,
    DynamicPart,
    EventGroup,
    EventSlot,
    Evolution,
    Exchange,
    Fact,
    Family,
    FixedPart,
    Health,
    LifeEvent,
    LifeGoal,
    Method,
    Origin,
    Person,
    Persona,
    PlannedChange,
    PlannedFact,
    Preference,
    PreferenceGroup,
    Preferences,
    Profile,
    Rejection,
    Relationship,
    SessionFact,
    StateDelta,
    SynthSession,
    Track,
    TrackedFact,
    UnitUsage,
)

EPISODE = EpisodeConfig()
START = date(2026, 1, 10)
NAMES = ("Ana Ruiz", "Ben Ode", "Cleo Park", "Dara Voss", "Eli Moon", "Fay Lind")
MAKING: dict[str, Any] = {
    "people": 4,
    "sessions": 3,
    "writer": "llm",
    "seed": 7,
    "personas": {"source": "personahub"},
    "making": {
        "writer": "llm",
        "model": "gpt-oss-120b",
        "sampling": {"temperature": 1.0, "top_p": 1.0},
        "prompts": {"events": "0123456789abcdef"},
    },
}


def person(number: int, split: Split = "train", *, text: str = "", lost: Sequence[int] = ()) -> Person:
    """Somebody with three sessions: a job changed, a thread about it, a repeated memory.

    Args:
        number: Decides name and town, so that no two people say the same.
        split: Theirs.
        text: Said by the user and written in the narrative besides.
        lost: Indices of the sessions whose dialogue was rejected.
    """
    persona = Persona(person_id=f"p{number:06d}", seed=f"Somebody with number {number}", source="generated", split=split)
    name, town = NAMES[number % len(NAMES)], f"Town{number}"
    works, tea = f"{name} works as a baker in {town}.", f"{name} drinks green tea."
    moved = f"{name} works as a chef in {town}."
    worry, pride = f"{name} is worried about the new kitchen in {town}.", f"{name} is proud of the new kitchen in {town}."
    profile = Profile(
        persona=persona,
        fixed=FixedPart(
            name=name,
            gender="female",
            birth_date=date(1990, 5, 1),
            location=town,
            degree="",
            major="",
            mbti="INTJ",
            traits=("patient",),
            family=Family(parents="", partner="", children=""),
            life_goal=LifeGoal(kind="career", statement="To own a restaurant", motivation="", target=""),
        ),
        dynamic=DynamicPart(
            career=Career(
                status="employed", industry="food", employer="", job="baker", monthly_income=1, savings=1, description=""
            ),
            health=Health(physical="good", physical_conditions="", mental="good", mental_conditions="", reason=""),
            relationships=(Relationship(name="Max Holt", kind="friend", description=""),),
        ),
        preferences=Preferences(
            groups=(PreferenceGroup(category="drinks", likes=(Preference(item="green tea", reason=""),), dislikes=()),)
        ),
        start=datetime(2026, 1, 1, 9),
        initial=(
            TrackedFact(text=works, keywords=("baker", town), track=Track.CAREER, subject=""),
            TrackedFact(text=tea, keywords=("green tea",), track=Track.PREFERENCE, subject="drinks"),
        ),
    )
    delta = StateDelta(
        text=moved, keywords=("chef", town), track=Track.CAREER, change=Change.SHIFT, subject="", previous_text=works
    )
    events = tuple(
        LifeEvent(
            index=index,
            date=START + timedelta(days=30 * index),
            domain=Domain.WORK,
            valence="positive",
            agency="user_initiated",
            title=f"Event {index}",
            narrative=f"Something happens in {town}. {text}",
            participants=(),
            grounding=(),
            result="",
            emotion="",
            follow_ups=(),
            serves_life_goal=index == 1,
            changes=(delta,) if index == 1 else (),
        )
        for index in range(3)
    )
    facts = (
        (_fact(1, Event.ADD, worry, "", ("worried", "new kitchen"), Origin.EVOLUTION),),
        (
            _fact(1, Event.UPDATE, moved, works, ("chef", town), Origin.DELTA),
            _fact(2, Event.NONE, tea, tea, ("green tea",), Origin.REUSE),
        ),
        (
            _fact(1, Event.UPDATE, pride, worry, ("proud", "new kitchen"), Origin.EVOLUTION),
            _fact(2, Event.ADD, f"{name} adopted a cat.", "", ("adopted", "cat"), Origin.FILLING),
        ),
    )
    sessions = tuple(
        SynthSession(
            index=index,
            time=datetime.combine(event.date, datetime.min.time()) + timedelta(hours=20),
            goal="to talk",
            summary="a talk",
            facts=said,
            dialogue=None if index in lost else _dialogue(said, f"{name} here, {text}"),
        )
        for index, (event, said) in enumerate(zip(events, facts, strict=True))
    )
    return Person(
        persona=persona,
        profile=profile,
        slots=tuple(
            EventSlot(
                index=event.index,
                not_before=event.date,
                not_after=event.date,
                domain=Domain.WORK,
                life_goal=event.serves_life_goal,
                changes=(PlannedChange(track=Track.CAREER, change=Change.SHIFT),) if event.changes else (),
                reused=int(event.index == 1),
            )
            for event in events
        ),
        events=events,
        groups=(EventGroup(events=(0, 2), thread="the new kitchen"),),
        evolutions=(
            Evolution(
                method=Method.EMOTIONAL,
                memories=(
                    Fact(text=worry, keywords=("worried", "new kitchen")),
                    Fact(text=pride, keywords=("proud", "new kitchen")),
                ),
            ),
        ),
        sessions=sessions,
        rejections=tuple(
            Rejection(unit="dialogue", where=str(index), rules=("dialogue.user_first",), reasons=(f"f1 is not said {text}",))
            for index in lost
        ),
        checked={"dialogue.user_first": 3 + len(lost), "events.one_per_slot": 1},
        violations={"dialogue.user_first": 2 * len(lost)} if lost else {},
        usage={
            "events": UnitUsage(units=1, attempts=1, prompt_tokens=100, completion_tokens=50),
            "dialogue": UnitUsage(
                units=3, attempts=3 + len(lost), rejected=len(lost), prompt_tokens=300, completion_tokens=200
            ),
        },
    )


def rejected_person(number: int, split: Split = "train") -> Person:
    """Somebody whose profile was never right."""
    persona = Persona(person_id=f"p{number:06d}", seed=f"Somebody with number {number}", source="generated", split=split)
    rejection = Rejection(unit="fixed", where="", rules=("fixed.identity",), reasons=("name must stay 'A', but is 'B'",))
    return Person(
        persona=persona,
        profile=None,
        slots=(),
        events=(),
        groups=(),
        evolutions=(),
        sessions=(),
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


def _fact(number: int, event: Event, text: str, previous: str, keywords: tuple[str, ...], origin: Origin) -> SessionFact:
    return SessionFact(id=f"f{number}", event=event, text=text, previous_text=previous, keywords=keywords, origin=origin)


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
