"""The rules that every written record has to keep, whoever wrote it."""

from __future__ import annotations

from synth.config import Shape
from synth.records import Person, Record
from synth.tasks import Task, Unit
from synth.validators import dialogue, events, memories, profile, session
from synth.validators import events as life
from synth.validators.base import Case, Rule, Similarity, Verdict, Violation, judge

__all__ = ["RULES", "UNIT_RULES", "Rule", "Similarity", "Verdict", "Violation", "judge_answer", "judge_life"]

UNIT_RULES: dict[Unit, tuple[Rule, ...]] = {
    Unit.FIXED: profile.FIXED,
    Unit.DYNAMIC: profile.DYNAMIC,
    Unit.PREFERENCES: profile.PREFERENCES,
    Unit.INITIAL: profile.INITIAL,
    Unit.EVENTS: events.EVENTS,
    Unit.LINKS: memories.LINKS,
    Unit.EVOLUTION: memories.EVOLUTION,
    Unit.FILLING: memories.FILLING,
    Unit.DIALOGUE: dialogue.DIALOGUE,
}

RULES: tuple[Rule, ...] = (*(rule for rules in UNIT_RULES.values() for rule in rules), *life.LIFE, *session.SESSION)
"""All rules."""


def judge_answer(task: Task[Record], answer: Record, similarity: Similarity | None = None) -> Verdict:
    """Check the answer of a unit against its task."""
    return judge(UNIT_RULES[task.unit], Case(task, answer, similarity))


def judge_life(person: Person, shape: Shape) -> Verdict:
    """Check the events of a whole life; only people whose events were not rejected have one."""
    return judge(life.LIFE, Case(shape, person))
