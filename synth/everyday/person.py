"""One person of everyday life, as the record that all writers leave."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from synth.author import Account
from synth.config import Shape
from synth.everyday.life import Life
from synth.names import NameSource
from synth.person import confirmed
from synth.planning import draft_dynamic, draft_fixed
from synth.records import Domain, EventSlot, LifeEvent, Person, Persona, Preferences, Profile, SynthSession

_FIRST_DAY = datetime(2026, 1, 1)
_START_DAYS = 90


def write_life(number: int, persona: Persona, shape: Shape, names: NameSource, *, sessions: int, seed: int) -> Person:
    """Write everything of one person from scenes; a session that breaks a rule is left out and named.

    Args:
        number: Of the person; it decides the name.
        persona: Who it is; of its seed nothing is used.
        shape: Its `everyday` is the plan.
        names: Where the name comes from.
        sessions: How many sessions.
        seed: What is drawn from, with the person's id.

    Raises:
        ValueError: If the shape has no plan for scenes.
    """
    if (plan := shape.everyday) is None:
        raise ValueError("the shape has no plan for scenes")
    rng = random.Random(f"{seed}/{persona.person_id}/everyday")
    name, gender = names.person(number, persona.split)
    name = name.split()[0] if rng.random() < plan.first_names else name
    start = _FIRST_DAY + timedelta(days=rng.randrange(_START_DAYS), hours=rng.randint(8, 22))
    fixed = draft_fixed(rng, name, gender, start.date())
    life = Life(rng, plan, fixed, persona.split, newcomer=rng.random() < plan.newcomers)
    profile = Profile(
        persona=persona,
        fixed=fixed,
        dynamic=draft_dynamic(rng, fixed, (), start.date()),
        preferences=Preferences(groups=()),
        start=start,
        initial=life.initial(start),
    )
    slots, events, written, time = [], [], list[SynthSession](), start
    for index in range(sessions):
        time += timedelta(days=rng.randint(shape.days_between.min, shape.days_between.max))
        time = time.replace(hour=rng.randint(7, 22), minute=rng.randrange(60))
        written.append(life.session(index, time))
        slots.append(_slot(index, time))
        events.append(_event(index, time))
    person = Person(persona=persona, profile=profile, slots=tuple(slots), events=tuple(events), sessions=tuple(written))
    account = Account()
    person = confirmed(account, person)
    return person.model_copy(update=account.record())


def _slot(index: int, time: datetime) -> EventSlot:
    day = time.date()
    return EventSlot(index=index, not_before=day, not_after=day, domain=Domain.SOCIAL, life_goal=False, changes=(), reused=0)


def _event(index: int, time: datetime) -> LifeEvent:
    """Nothing: what happens in a life stands in the scenes of its sessions."""
    return LifeEvent(
        index=index, date=time.date(), domain=Domain.SOCIAL, valence="neutral", agency="user_initiated", title="",
        narrative="", participants=(), grounding=(), result="", emotion="", follow_ups=(), serves_life_goal=False,
        changes=(),
    )  # fmt: skip
