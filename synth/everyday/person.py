"""One person of everyday life, as the record that all writers leave."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from synth.author import Account
from synth.config import Shape
from synth.everyday.life import Life
from synth.names import NameSource
from synth.person import bare_event, confirmed, drawn_start
from synth.planning import draft_dynamic, draft_fixed
from synth.records import Domain, EventSlot, Person, Persona, Preferences, Profile, SynthSession


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
    start = drawn_start(rng)
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
    slots, written, time = [], list[SynthSession](), start
    for index in range(sessions):
        time += timedelta(days=rng.randint(shape.days_between.min, shape.days_between.max))
        time = time.replace(hour=rng.randint(7, 22), minute=rng.randrange(60))
        written.append(life.session(index, time))
        slots.append(_slot(index, time))
    events = tuple(map(bare_event, slots))
    person = Person(persona=persona, profile=profile, slots=tuple(slots), events=events, sessions=tuple(written))
    account = Account()
    person = confirmed(account, person)
    return person.model_copy(update=account.record())


def _slot(index: int, time: datetime) -> EventSlot:
    """The plan of a session in which nothing happens: what happens in a life stands in its scenes."""
    day = time.date()
    return EventSlot(index=index, not_before=day, not_after=day, domain=Domain.SOCIAL, life_goal=False, changes=(), reused=0)
