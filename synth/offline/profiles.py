"""The profile units: the drafted parts, with what they leave open filled in, and preferences."""

from __future__ import annotations

import random
from collections.abc import Sequence

from synth.offline import words
from synth.records import DynamicPart, FixedPart, Preference, PreferenceGroup, Preferences, Record
from synth.tasks import DynamicTask, FixedTask, PreferencesTask


def write_fixed(task: FixedTask, rng: random.Random) -> FixedPart:
    """The draft, each empty text filled."""
    draft = task.draft
    family = _filled(draft.family, parents=words.PARENTS, partner=words.PARTNER, children=words.CHILDREN, rng=rng)
    goal = _filled(
        draft.life_goal,
        kind=words.GOAL_KINDS,
        statement=words.GOAL_STATEMENTS,
        motivation=words.GOAL_MOTIVATIONS,
        target=words.GOAL_TARGETS,
        rng=rng,
    )
    told = _filled(draft, location=words.LOCATIONS, degree=words.DEGREES, rng=rng)
    return draft.model_copy(
        update={
            **told,
            "family": draft.family.model_copy(update=family),
            "life_goal": draft.life_goal.model_copy(update=goal),
        }
    )


def write_dynamic(task: DynamicTask, rng: random.Random) -> DynamicPart:
    """The draft, each empty text filled."""
    draft = task.draft
    career = _filled(draft.career, description=words.CAREER_DESCRIPTIONS, rng=rng)
    health = _filled(draft.health, physical=("good",), mental=("good",), reason=words.HEALTH_REASONS, rng=rng)
    relationships = tuple(
        other.model_copy(update=_filled(other, kind=("Friend",), description=words.RELATIONSHIP_DESCRIPTIONS, rng=rng))
        for other in draft.relationships
    )
    return draft.model_copy(
        update={
            "career": draft.career.model_copy(update=career),
            "health": draft.health.model_copy(update=health),
            "relationships": relationships,
        }
    )


def write_preferences(task: PreferencesTask, rng: random.Random) -> Preferences:
    """Likes and dislikes in every category; no thing comes twice."""
    split = words.split_of(task.fixed.name)
    groups = []
    for category in task.categories:
        count = rng.randint(task.limits.items.min, task.limits.items.max)
        things = rng.sample(words.things(category), count)
        named = [Preference(item=f"{thing} from {words.invent(rng, split)}", reason="") for thing in things]
        likes = -(-count // 2)
        groups.append(
            PreferenceGroup(
                category=category,
                likes=_reasoned(rng, named[:likes], words.LIKED),
                dislikes=_reasoned(rng, named[likes:], words.DISLIKED),
            )
        )
    return Preferences(groups=tuple(groups))


def _reasoned(rng: random.Random, items: Sequence[Preference], reasons: Sequence[str]) -> tuple[Preference, ...]:
    return tuple(item.model_copy(update={"reason": rng.choice(reasons)}) for item in items)


def _filled(part: Record, *, rng: random.Random, **pools: Sequence[str]) -> dict[str, str]:
    """A text from its pool for each of the fields that is empty."""
    return {field: rng.choice(pool) for field, pool in pools.items() if not getattr(part, field)}
