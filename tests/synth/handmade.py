"""The small life of ``life.yaml`` as records, tasks with good answers, and shorthands for records that tests vary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from offline_people import shape

from deltamem.memory import Event, Memory, MemoryState, Operation, apply, wordings
from deltamem.sessions import LabelledSession, Session, Turn
from synth.config import Range, Shape
from synth.records import (
    Dialogue,
    DynamicPart,
    EventGroup,
    EventSlot,
    Evolution,
    Fact,
    FactChange,
    FactOrigin,
    FixedPart,
    LifeEvent,
    Method,
    PastEvent,
    Person,
    Persona,
    PlannedChange,
    PlannedRevision,
    Preferences,
    Profile,
    Record,
    Revision,
    SessionFact,
    TrackedFact,
)
from synth.tasks import (
    Contradiction,
    Contradictions,
    ContradictionsTask,
    DialogueTask,
    DynamicTask,
    Events,
    EventsTask,
    EvolutionTask,
    Extraction,
    ExtractionTask,
    Filling,
    FillingTask,
    FixedTask,
    InitialFacts,
    InitialTask,
    KnownFact,
    Links,
    LinksTask,
    PreferencesTask,
    RevisionTask,
    RuleVerdict,
    StatedFact,
    Task,
)

NAME = "Maya Lindqvist"
START = datetime(2026, 1, 5, 20, 0)
CATEGORIES = ("beverages", "sports")
RecordT = TypeVar("RecordT", bound=Record)


def span(least: int, most: int) -> Range:
    return Range(min=least, max=most)


def edit(record: RecordT, changes: Mapping[str, Any]) -> RecordT:
    """A copy of a record with other values at dotted paths, such as ``events.0.title``; checked against the schema."""
    values = record.model_dump()
    for path, given in changes.items():
        value = given.model_dump() if isinstance(given, Record) else given
        *parents, last = path.split(".")
        place: Any = values
        for key in parents:
            index = key if isinstance(place, dict) else int(key)
            if isinstance(place[index], tuple):
                place[index] = list(place[index])
            place = place[index]
        if isinstance(place, dict):
            if last not in place:
                raise KeyError(path)
            place[last] = value
        else:
            place[int(last)] = value
    return type(record).model_validate(values)


def broken(verdict: RuleVerdict) -> set[str]:
    """The names of the broken rules."""
    return {violation.rule for violation in verdict.violations}


def fact(text: str, *keywords: str) -> Fact:
    return Fact(text=f"{NAME} {text}", keywords=keywords)


def event(index: int, day: date, **fields: Any) -> LifeEvent:
    values = {
        "domain": "leisure", "valence": "positive", "agency": "user_initiated", "title": f"Event {index}",
        "narrative": "Something happened.", "result": "It worked out.", "emotion": "content", "participants": (),
        "grounding": ("fits her calm way",), "follow_ups": ("She plans the next step.",),
        "serves_life_goal": False, "changes": (),
    }  # fmt: skip
    return LifeEvent(index=index, date=day, **values | fields)


def slot(happened: LifeEvent, *, days: int = 0, reused: int = 0) -> EventSlot:
    """The plan of an event, so many days before and after it."""
    return EventSlot(
        index=happened.index,
        not_before=happened.date - timedelta(days=days),
        not_after=happened.date + timedelta(days=days),
        domain=happened.domain,
        life_goal=happened.serves_life_goal,
        changes=tuple(PlannedChange(track=delta.track, change=delta.change) for delta in happened.changes),
        reused=reused,
    )


def session_fact(
    number: int, kind: Event, said: Fact, previous: str = "", origin: FactOrigin = FactOrigin.FILLING
) -> SessionFact:
    values = {"text": said.text, "keywords": said.keywords, "previous_text": previous, "origin": origin}
    return SessionFact(id=f"f{number}", event=kind, **values)


@cache
def small_shape() -> Shape:
    """The paper's shape with a small profile; quotas are scaled to the few events by the rules themselves."""
    totals = {"total": (7, 8), "career": (1, 1), "health": (1, 2)}
    totals |= {"relationship": (2, 3), "preference": (2, 3), "other": (1, 2)}
    changes = {f"initial.{what}": span(*limits) for what, limits in totals.items()}
    changes["profile"] = {"relationships": span(2, 3), "categories": span(2, 2), "items": span(2, 3)}
    return edit(shape("paper"), {**changes, "events.narrative_words": span(10, 40), "plan.life_goal_events": 5})


_TEXT = Path(__file__).with_name("life.yaml").read_text(encoding="utf-8")
_LIFE: dict[str, Any] = yaml.safe_load(re.sub(r'text: ("?)Maya\b', rf"text: \g<1>{NAME}", _TEXT))


def _events() -> tuple[LifeEvent, ...]:
    for values in _LIFE["events"]:
        for change in values["changes"]:
            if previous := _LIFE["initial"].get(change.pop("of", None)):
                change |= {"previous_text": previous["text"], "track": previous["track"], "subject": previous["subject"]}
    return tuple(event(index, values.pop("date"), **values) for index, values in enumerate(_LIFE["events"]))


FIXED = FixedPart(**_LIFE["fixed"])
DYNAMIC = DynamicPart(**_LIFE["dynamic"])
PREFERENCES = Preferences(**_LIFE["preferences"])
INITIAL = JOB, BACK, OMAR, JUN, COFFEE, ROWING, VILLAGE = tuple(TrackedFact(**known) for known in _LIFE["initial"].values())
EVENTS = _events()
TIMETABLE, INES, COFFEE_LESS, POOL, DUSK = (happened.changes[0] for happened in EVENTS)
PAST = tuple(map(PastEvent.of, EVENTS))
GROUPS = tuple(EventGroup(**group) for group in _LIFE["groups"])
THREAD = Evolution(method=Method.EMOTIONAL, memories=_LIFE["thread"])
FILLING = Filling(**_LIFE["filling"])
RELIEF, HULL = (Fact(**said) for said in _LIFE["said_only"].values())
DIALOGUE = Dialogue(**_LIFE["dialogue"])
FACTS = (
    session_fact(1, Event.ADD, INES, origin=FactOrigin.DELTA),
    session_fact(2, Event.ADD, FILLING.facts[0]),
    session_fact(3, Event.ADD, RELIEF),
    session_fact(4, Event.UPDATE, DUSK, ROWING.text, FactOrigin.DELTA),
    session_fact(5, Event.NONE, OMAR, OMAR.text, FactOrigin.REUSE),
    session_fact(6, Event.ADD, HULL),
)
REVISION = Revision(**_LIFE["revision"])
STEPS = tuple(
    PlannedRevision(
        change=change, signal=signal, provenance="said", dated=False, today=happened.date, event=PastEvent.of(happened)
    )
    for change, signal, happened in ((FactChange.ADJUST, "value", EVENTS[2]), (FactChange.RETRACT, "implied", EVENTS[3]))
)
PERSONA = Persona(person_id="p000001", seed="A ferry planner.", source="generated", split="train")
PROFILE = Profile(persona=PERSONA, fixed=FIXED, dynamic=DYNAMIC, preferences=PREFERENCES, start=START, initial=INITIAL)
LIFE = Person(persona=PERSONA, profile=PROFILE, slots=tuple(slot(happened, days=1) for happened in EVENTS), events=EVENTS)


def _cases() -> dict[str, tuple[Task[Any], Any]]:
    sizes, seed = small_shape(), "A ferry planner who restores boats."
    parts: dict[str, Any] = {"fixed": FIXED, "dynamic": DYNAMIC, "preferences": PREFERENCES}
    told: dict[str, Any] = {"fixed": FIXED, "past": PAST[:1], "event": EVENTS[1]}
    fixed_draft = edit(FIXED, {"life_goal.statement": "", "location": ""})
    dynamic_draft = edit(DYNAMIC, {"career.description": "", "health.reason": ""})
    known = [KnownFact(**initial.model_dump(), updates=0) for initial in INITIAL[1:]]
    known.append(KnownFact(text=TIMETABLE.text, keywords=TIMETABLE.keywords, track=TIMETABLE.track, subject="", updates=1))
    later = {"facts": known, "past": PAST[:1], "names": (NAME, "Omar Haddad", "Jun Park"), "slots": LIFE.slots[1:]}
    thread = {"thread": GROUPS[1].thread, "events": [PAST[index] for index in GROUPS[1].events], "known": (OMAR.text,)}
    talk = {"turns": span(4, 8), "facts_per_turn": 2, "assistant_words": span(3, 60)}
    talk |= {"verbatim": False}
    cases: list[tuple[Task[Any], Record]] = [
        (FixedTask(persona=seed, draft=fixed_draft), FIXED),
        (DynamicTask(persona=seed, fixed=FIXED, today=START.date(), draft=dynamic_draft, limits=sizes.profile), DYNAMIC),
        (
            PreferencesTask(persona=seed, fixed=FIXED, dynamic=DYNAMIC, categories=CATEGORIES, limits=sizes.profile),
            PREFERENCES,
        ),
        (InitialTask(**parts, counts=sizes.initial, limits=sizes.facts), InitialFacts(facts=INITIAL)),
        # All events but the first one, which was written before.
        (EventsTask(**parts, **later, limits=sizes.events, fact_limits=sizes.facts), Events(events=EVENTS[1:])),
        (LinksTask(name=NAME, events=PAST, groups=span(1, 3), events_per_group=span(2, 3)), Links(groups=GROUPS)),
        (EvolutionTask(fixed=FIXED, **thread, limits=sizes.facts), THREAD),
        (
            FillingTask(**told, existing=(INES.text, OMAR.text), count=span(3, 4), limits=sizes.facts, today=EVENTS[1].date),
            FILLING,
        ),
        (RevisionTask(fixed=FIXED, memories=(ROWING,), steps=STEPS, known=(COFFEE.text,), limits=sizes.facts), REVISION),
        (
            DialogueTask(**told, today=EVENTS[1].date, goal=FILLING.goal, summary=FILLING.summary, facts=FACTS, limits=talk),
            DIALOGUE,
        ),
        (
            ExtractionTask(name=NAME, today=EVENTS[1].date, turns=DIALOGUE.turns),
            Extraction(facts=(StatedFact(turn=6, text=HULL.text), StatedFact(turn=3, text=RELIEF.text))),
        ),
        (
            ContradictionsTask(name=NAME, today=EVENTS[1].date, remembered=(), changed=(), turns=DIALOGUE.turns),
            Contradictions(found=(Contradiction(turn=4, reason="She rows at dawn and at dusk."),)),
        ),
    ]
    return {task.unit.value: (task, answer) for task, answer in cases}


CASES = _cases()


TIME = START + timedelta(days=30)
PRIOR = MemoryState(Memory(f"m{number}", known.text, START) for number, known in enumerate((ROWING, OMAR, COFFEE), start=1))
ADD = Operation(Event.ADD, HULL.text, None, HULL.keywords)
UPDATE = Operation(Event.UPDATE, DUSK.text, "m1", DUSK.keywords)
NONE = Operation(Event.NONE, OMAR.text, "m2", OMAR.keywords)


def labelled(*operations: Operation, prior: MemoryState = PRIOR) -> LabelledSession:
    """A session whose user says all keywords, and whose next state is right if the operations can be applied."""
    words = " ".join(["So:", *(word for operation in operations for word in wordings(operation.keywords))])
    session = Session("p000001", NAME, TIME, (Turn("user", words), Turn("assistant", "I see.")))
    return LabelledSession(session, 0, "train", prior, operations, apply(prior, operations, TIME))


def with_session(session: LabelledSession, **changes: Any) -> LabelledSession:
    """The labelled session with parts of its dialogue record replaced."""
    return replace(session, session=replace(session.session, **changes))


def following(before: LabelledSession, *operations: Operation) -> LabelledSession:
    """The session a day after another one that begins where that one ends."""
    time = before.session.time + timedelta(days=1)
    after = with_session(labelled(*operations, prior=before.next_state), time=time)
    return replace(after, session_index=before.session_index + 1, next_state=apply(before.next_state, operations, time))
