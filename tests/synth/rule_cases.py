"""One consistent small life, in the paper's shape but smaller, and how to spoil it: cases for the rules of stage 1 and 2."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf

from synth.config import Shape
from synth.records import (
    Change,
    Domain,
    DynamicPart,
    EventSlot,
    FixedPart,
    LifeEvent,
    Participant,
    Person,
    Persona,
    PlannedChange,
    PreferenceGroup,
    Preferences,
    Profile,
    Record,
    StateDelta,
    Track,
    TrackedFact,
)
from synth.tasks import (
    DynamicTask,
    Events,
    EventsTask,
    FixedTask,
    InitialFacts,
    InitialTask,
    KnownFact,
    PastEvent,
    PreferencesTask,
)
from synth.validators.base import Verdict

NAME = "Maya Lindqvist"
START = datetime(2026, 1, 5, 20, 0)
DRINKS, SPORTS = "beverages", "sports"
RecordT = TypeVar("RecordT", bound=Record)


@cache
def paper_shape() -> Shape:
    """The paper's shape with a small profile; quotas are scaled to the few events by the rules themselves."""
    path = Path(__file__).parents[2] / "configs" / "shape" / "paper.yaml"
    values: Any = OmegaConf.to_container(OmegaConf.load(path))
    values["profile"] = {
        "relationships": {"min": 2, "max": 3},
        "categories": {"min": 2, "max": 2},
        "items": {"min": 2, "max": 3},
    }
    values["initial"] = {
        "total": {"min": 7, "max": 8},
        "career": {"min": 1, "max": 1},
        "health": {"min": 1, "max": 2},
        "relationship": {"min": 2, "max": 3},
        "preference": {"min": 2, "max": 3},
        "other": {"min": 1, "max": 2},
        "newcomers": 0.0,
    }
    values["events"]["narrative_words"] = {"min": 10, "max": 40}
    values["plan"]["life_goal_events"] = 5
    return Shape.model_validate(values)


def shares_shape() -> Shape:
    """As `paper_shape`, but with one change or repetition a session, drawn by chance."""
    values = paper_shape().model_dump()
    values["plan"] = {"kind": "shares", "facts": {"min": 1, "max": 1}, "update_share": 0.5, "repeat_share": 0.1}
    return Shape.model_validate(values)


FIXED = FixedPart.model_validate(
    {
        "name": NAME,
        "gender": "female",
        "birth_date": date(1988, 6, 2),
        "location": "Bergen",
        "degree": "Master",
        "major": "Logistics",
        "mbti": "INTJ",
        "traits": ("patient", "dry humour"),
        "family": {"parents": "both alive", "partner": "none", "children": "none"},
        "life_goal": {
            "kind": "Cultural Heritage",
            "statement": "Restore ten wooden rowing boats before 2035",
            "motivation": "Her grandfather built them.",
            "target": "ten boats on the water",
        },
    }
)
DYNAMIC = DynamicPart.model_validate(
    {
        "career": {
            "status": "employed",
            "industry": "shipping",
            "employer": "Nordhamn Lines",
            "job": "ferry planner",
            "monthly_income": 5_200,
            "savings": 41_000,
            "description": "Plans the ferries between the islands.",
        },
        "health": {
            "physical": "good",
            "physical_conditions": "back pain",
            "mental": "stable",
            "mental_conditions": "",
            "reason": "Long hours at a desk.",
        },
        "relationships": (
            {"name": "Omar Haddad", "kind": "friend", "description": "They play chess."},
            {"name": "Jun Park", "kind": "colleague", "description": "They share an office."},
        ),
    }
)
PREFERENCES = Preferences(
    groups=(
        PreferenceGroup.model_validate(
            {
                "category": DRINKS,
                "likes": ({"item": "black coffee", "reason": "It wakes her."},),
                "dislikes": ({"item": "lemonade", "reason": "Too sweet."},),
            }
        ),
        PreferenceGroup.model_validate(
            {
                "category": SPORTS,
                "likes": ({"item": "rowing", "reason": "The quiet."}, {"item": "swimming", "reason": "It helps her back."}),
                "dislikes": (),
            }
        ),
    )
)


def fact(text: str, *keywords: str, track: Track | None = None, subject: str = "") -> TrackedFact:
    return TrackedFact(text=f"{NAME} {text}", keywords=keywords, track=track, subject=subject)


JOB = fact("works as a ferry planner at Nordhamn Lines.", "ferry planner", "Nordhamn Lines", "works", track=Track.CAREER)
BACK = fact("swims twice a week against back pain.", "swims", "twice a week", "back pain", track=Track.HEALTH)
OMAR = fact(
    "plays chess with her friend Omar Haddad on Sundays.",
    *("chess", "Omar Haddad", "Sundays"),
    track=Track.RELATIONSHIP,
    subject="Omar Haddad",
)
JUN = fact(
    "shares an office with her colleague Jun Park.",
    *("office", "colleague", "Jun Park"),
    track=Track.RELATIONSHIP,
    subject="Jun Park",
)
COFFEE = fact(
    "likes strong black coffee and oat biscuits in the morning.",
    *("black coffee", "oat biscuits", "morning"),
    track=Track.PREFERENCE,
    subject=DRINKS,
)
ROWING = fact("likes rowing on the fjord at dawn.", "rowing", "fjord", "dawn", track=Track.PREFERENCE, subject=SPORTS)
VILLAGE = fact("grew up in a village near Bergen.", "grew up", "village", "Bergen")
INITIAL = (JOB, BACK, OMAR, JUN, COFFEE, ROWING, VILLAGE)


def delta(change: Change, previous: TrackedFact | None, text: str, *keywords: str, **fields: Any) -> StateDelta:
    """An update of a fact, or a new fact with its track and subject in `fields`."""
    if previous is not None:
        fields = {"track": previous.track, "subject": previous.subject, **fields}
    return StateDelta(
        change=change,
        previous_text=previous.text if previous is not None else "",
        text=f"{NAME} {text}",
        keywords=keywords,
        **fields,
    )


def event(index: int, day: date, domain: Domain, title: str, narrative: str, change: StateDelta, **fields: Any) -> LifeEvent:
    values = {"participants": (), "serves_life_goal": False, **fields}
    return LifeEvent(
        index=index,
        date=day,
        domain=domain,
        valence="positive",
        agency="user_initiated",
        title=title,
        narrative=narrative,
        grounding=("fits her calm way",),
        result="It worked out.",
        emotion="content",
        follow_ups=("She plans the next step.",),
        changes=(change,),
        **values,
    )


EVENTS = (
    event(
        0,
        date(2026, 2, 1),
        Domain.WORK,
        "A new chair",
        "The harbour office asked her to lead the people who write the timetables, and she agreed after a weekend of doubt.",
        delta(
            Change.SHIFT,
            JOB,
            "left her post as ferry planner and leads the timetable team at Nordhamn Lines.",
            *("ferry planner", "timetable team", "Nordhamn Lines"),
        ),
    ),
    event(
        1,
        date(2026, 3, 1),
        Domain.SOCIAL,
        "The woman next door",
        "A neighbour saw the old boat in her yard, offered help with the planks, and joined her on the water that week.",
        delta(
            Change.NEW,
            None,
            "rows with her new neighbour Ines Duarte on Thursdays.",
            *("neighbour", "Ines Duarte", "Thursdays"),
            track=Track.RELATIONSHIP,
            subject="Ines Duarte",
        ),
        participants=(Participant(name="Ines Duarte", relationship="neighbour"),),
        serves_life_goal=True,
    ),
    event(
        2,
        date(2026, 4, 1),
        Domain.LEISURE,
        "No more crumbs",
        "The bakery at the corner closed for good, so her early breakfast became shorter, which she did not mind.",
        delta(
            Change.PARTIAL_DELETION,
            COFFEE,
            "likes strong black coffee in the morning.",
            *("black coffee", "morning", "strong"),
        ),
    ),
    event(
        3,
        date(2026, 4, 20),
        Domain.HEALTH,
        "Lane four",
        "A coach at the pool by the harbour watched her, corrected her stroke, and agreed to look after her training.",
        delta(
            Change.EXPAND,
            BACK,
            "swims twice a week against back pain, mostly at the harbour pool with a coach.",
            *("swims", "twice a week", "harbour pool"),
        ),
        participants=(Participant(name="Omar Haddad", relationship="friend"),),
    ),
    event(
        4,
        date(2026, 5, 20),
        Domain.FINANCE,
        "Paying for the shed",
        "The rent of the shed rose, she moved her trips to the end of the day, and the cheaper hours paid the difference.",
        delta(
            Change.ADJUST,
            ROWING,
            "likes rowing on the fjord at dusk instead of dawn.",
            *("rowing", "fjord", "dusk"),
        ),
    ),
)
SLOTS = tuple(
    EventSlot(
        index=event.index,
        not_before=event.date - timedelta(days=1),
        not_after=event.date + timedelta(days=1),
        domain=event.domain,
        life_goal=event.serves_life_goal,
        changes=tuple(PlannedChange(track=delta.track, change=delta.change) for delta in event.changes),
        reused=0,
    )
    for event in EVENTS
)


def fixed_case() -> tuple[FixedTask, FixedPart]:
    draft = edit(FIXED, {"life_goal.statement": "", "location": ""})
    return FixedTask(persona="A ferry planner who restores boats.", draft=draft), FIXED


def dynamic_case() -> tuple[DynamicTask, DynamicPart]:
    draft = edit(DYNAMIC, {"career.description": "", "health.reason": ""})
    limits = paper_shape().profile
    return DynamicTask(persona="A ferry planner.", fixed=FIXED, today=START.date(), draft=draft, limits=limits), DYNAMIC


def preferences_case() -> tuple[PreferencesTask, Preferences]:
    task = PreferencesTask(
        persona="A ferry planner.",
        fixed=FIXED,
        dynamic=DYNAMIC,
        categories=(DRINKS, SPORTS),
        limits=paper_shape().profile,
    )
    return task, PREFERENCES


def initial_case() -> tuple[InitialTask, InitialFacts]:
    shape = paper_shape()
    task = InitialTask(fixed=FIXED, dynamic=DYNAMIC, preferences=PREFERENCES, counts=shape.initial, limits=shape.facts)
    return task, InitialFacts(facts=INITIAL)


def events_case() -> tuple[EventsTask, Events]:
    """The call that asks for all events but the first one, which was written before."""
    shape = paper_shape()
    [promotion] = EVENTS[0].changes
    facts = [KnownFact(**fact.model_dump(), updates=0) for fact in INITIAL[1:]]
    facts.append(KnownFact(text=promotion.text, keywords=promotion.keywords, track=promotion.track, subject="", updates=1))
    task = EventsTask(
        fixed=FIXED,
        dynamic=DYNAMIC,
        preferences=PREFERENCES,
        facts=tuple(facts),
        past=(PastEvent.of(EVENTS[0]),),
        names=(NAME, "Omar Haddad", "Jun Park"),
        slots=SLOTS[1:],
        limits=shape.events,
        fact_limits=shape.facts,
    )
    return task, Events(events=EVENTS[1:])


def life_case() -> Person:
    persona = Persona(person_id="p000001", seed="A ferry planner.", source="generated", split="train")
    profile = Profile(persona=persona, fixed=FIXED, dynamic=DYNAMIC, preferences=PREFERENCES, start=START, initial=INITIAL)
    return Person(
        persona=persona,
        profile=profile,
        slots=SLOTS,
        events=EVENTS,
        groups=(),
        evolutions=(),
        sessions=(),
        rejections=(),
        checked={},
        violations={},
        usage={},
    )


def edit(record: RecordT, changes: Mapping[str, Any]) -> RecordT:
    """A copy of a record with other values at dotted paths, such as ``events.0.title``; checked against the schema."""
    values = record.model_dump()
    for path, value in changes.items():
        *parents, last = path.split(".")
        place: Any = values
        for key in parents:
            place = _open(place, key)
        if isinstance(place, dict):
            if last not in place:
                raise KeyError(path)
            place[last] = value
        else:
            place[int(last)] = value
    return type(record).model_validate(values)


def _open(place: Any, key: str) -> Any:
    """The part of nested values at a key, made changeable in its place."""
    index = key if isinstance(place, dict) else int(key)
    if isinstance(place[index], tuple):
        place[index] = list(place[index])
    return place[index]


def broken(verdict: Verdict) -> set[str]:
    """The names of the broken rules."""
    return {violation.rule for violation in verdict.violations}
