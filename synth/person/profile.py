"""Stage 1 of one person: what the program draws, and the units that make a profile of it (HaluMem, stage 1)."""

from __future__ import annotations

from datetime import datetime, timedelta

from synth.person.asking import Author
from synth.planning.names import NameSource
from synth.planning.skeleton import draft_categories, draft_dynamic, draft_fixed
from synth.records import Preferences, Profile, TrackedFact
from synth.tasks import DynamicTask, FixedTask, InitialTask, PreferencesTask

_FIRST_DAY = datetime(2026, 1, 1)
"""Events are later (paper, prompt appendix)."""
_START_DAYS = 90
_FIRST_HOUR, _LAST_HOUR = 8, 22


async def write_profile(author: Author, names: NameSource) -> Profile | None:
    """Have the drafts of the program enriched part after part.

    Args:
        author: Asks for the units.
        names: Where the names of the person and their acquaintances come from.

    Returns:
        None if a part is rejected.

    Raises:
        DeltaMemError: If no answer can be got for a unit.
    """
    persona, shape = author.persona, author.shape
    limits = shape.profile
    rng = author.rng("start")
    start = _FIRST_DAY + timedelta(days=rng.randrange(_START_DAYS), hours=rng.randint(_FIRST_HOUR, _LAST_HOUR))
    today = start.date()
    name, gender = names.person(author.number, persona.split)
    draft = draft_fixed(author.rng("fixed"), name, gender, today)
    fixed = await author.ask(FixedTask(persona=persona.seed, draft=draft))
    if fixed is None:
        return None
    friends = _friends(author, name, names)
    sketch = draft_dynamic(author.rng("dynamic"), fixed, friends, today)
    dynamic = await author.ask(DynamicTask(persona=persona.seed, fixed=fixed, today=today, draft=sketch, limits=limits))
    if dynamic is None:
        return None
    preferences = Preferences(groups=())
    if limits.categories.max:
        categories = draft_categories(author.rng("categories"), limits)
        tastes = await author.ask(
            PreferencesTask(persona=persona.seed, fixed=fixed, dynamic=dynamic, categories=categories, limits=limits)
        )
        if tastes is None:
            return None
        preferences = tastes
    facts: tuple[TrackedFact, ...] = ()
    if shape.initial.total.max and author.rng("newcomer").random() >= shape.initial.newcomers:
        initial = await author.ask(
            InitialTask(fixed=fixed, dynamic=dynamic, preferences=preferences, counts=shape.initial, limits=shape.facts)
        )
        if initial is None:
            return None
        facts = initial.facts
    return Profile(persona=persona, fixed=fixed, dynamic=dynamic, preferences=preferences, start=start, initial=facts)


def _friends(author: Author, name: str, names: NameSource) -> list[str]:
    """Names for the relationships of the start, no two the same."""
    rng, limits = author.rng("names"), author.shape.profile.relationships
    found = [name]
    size = 1 + rng.randint(limits.min, limits.max)
    while len(found) < size:
        other = names.other(rng, author.persona.split)
        if other not in found:
            found.append(other)
    return found[1:]
