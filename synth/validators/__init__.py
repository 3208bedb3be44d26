"""The rules that every written record has to keep, whoever wrote it."""

from __future__ import annotations

from synth.config import Shape
from synth.records import Person, Record
from synth.tasks import RuleVerdict, RuleViolation, Task, Unit
from synth.validators import demands, dialogue, events, memories, profile, reviews, session
from synth.validators.base import Case, Rule, Similarity, judge

__all__ = ["RULES", "UNIT_RULES", "Rule", "RuleVerdict", "RuleViolation", "Similarity", "judge_answer", "judge_life"]

UNIT_RULES: dict[Unit, tuple[Rule, ...]] = {
    Unit.FIXED: profile.FIXED.rules,
    Unit.DYNAMIC: profile.DYNAMIC.rules,
    Unit.PREFERENCES: profile.PREFERENCES.rules,
    Unit.INITIAL: profile.INITIAL.rules,
    Unit.EVENTS: events.EVENTS.rules,
    Unit.LINKS: memories.LINKS.rules,
    Unit.EVOLUTION: memories.EVOLUTION.rules,
    Unit.FILLING: memories.FILLING.rules,
    Unit.REVISION: demands.REVISION.rules,
    Unit.DIALOGUE: dialogue.DIALOGUE.rules,
    Unit.EXTRACTION: reviews.EXTRACTION.rules,
    Unit.CONTRADICTIONS: reviews.CONTRADICTIONS.rules,
}

_FINISHED = (*reviews.SAID.rules, *reviews.CONSISTENT.rules, *events.LIFE.rules, *session.SINGLE.rules, *session.CHAIN.rules)
RULES: tuple[Rule, ...] = (*(rule for rules in UNIT_RULES.values() for rule in rules), *_FINISHED)
"""All rules."""


def judge_answer(task: Task[Record], answer: Record) -> RuleVerdict:
    """Check the answer of a unit against its task."""
    return judge(UNIT_RULES[task.unit], Case(task, answer))


def judge_life(person: Person, shape: Shape) -> RuleVerdict:
    """Check the events of a whole life; only people whose events were not rejected have one."""
    return judge(events.LIFE.rules, Case(shape, person))
