"""Every rule of a whole life is broken on purpose at least once, and must be the only one to say so."""

from datetime import date, datetime

import pytest
from rule_cases import COFFEE, EVENTS, JUN, NAME, broken, edit, life_case, paper_shape, shares_shape

from synth.config import Shape
from synth.records import Change, Domain, Participant, Track
from synth.validators import judge_life
from synth.validators.events import LIFE

[COFFEE_LESS] = EVENTS[2].changes
LEO = Participant(name="Leo Brandt", relationship="coach")
AGAIN = {
    "previous_text": COFFEE_LESS.text,
    "text": f"{NAME} likes strong black coffee at noon.",
    "keywords": ("strong", "black coffee", "noon"),
    "subject": "beverages",
}

# The broken rule, the shape, what is changed in the person.
PLANTED = [
    ("life.one_per_slot", "paper", {"events.4.index": 5}),
    ("life.dates_increase", "paper", {"events.2.date": date(2026, 3, 1)}),
    ("life.dates_after_start", "paper", {"events.0.date": date(2026, 1, 5)}),
    ("life.dates_after_start", "paper", {"profile.start": datetime(2025, 12, 1), "events.0.date": date(2026, 1, 1)}),
    ("life.span", "paper", {"events.4.date": date(2026, 8, 4)}),
    ("life.span", "paper", {"events.0.date": date(2026, 2, 28), "events.4.date": date(2026, 4, 28)}),
    ("life.track_quotas", "paper", {"events.3.changes.0.track": Track.RELATIONSHIP}),
    ("life.operator_balance", "paper", {"events.0.changes.0.change": Change.EXPAND}),
    ("life.domain_quotas", "paper", {"events.0.domain": Domain.ADMIN}),
    ("life.life_goal_quota", "paper", {"events.1.serves_life_goal": False}),
    ("life.facts_per_session", "shares", {"events.2.changes": ()}),
    ("life.facts_per_session", "shares", {"slots.2.reused": 1}),
    ("life.previous_text_exact", "paper", {"events.4.changes.0.previous_text": COFFEE.text}),
    ("life.previous_text_exact", "paper", {"events.4.changes.0.previous_text": ""}),
    ("life.previous_text_exact", "paper", {"events.1.changes.0.previous_text": JUN.text}),
    ("life.updates_per_fact", "paper", {f"events.4.changes.0.{field}": value for field, value in AGAIN.items()}),
    ("life.newcomers_introduced", "paper", {"events.4.participants": (LEO,)}),
    ("life.newcomers_introduced", "paper", {"events.0.participants": EVENTS[1].participants}),
]  # fmt: skip


def shape(kind: str) -> Shape:
    return paper_shape() if kind == "paper" else shares_shape()


@pytest.mark.parametrize("kind", ["paper", "shares"])
def test_a_good_life_breaks_no_rule(kind):
    assert judge_life(life_case(), shape(kind)).violations == ()


@pytest.mark.parametrize(("rule", "kind", "changes"), PLANTED)
def test_a_planted_violation_is_found_by_its_rule_alone(rule, kind, changes):
    assert broken(judge_life(edit(life_case(), changes), shape(kind))) == {rule}


def test_every_rule_of_a_life_is_planted():
    assert {rule for rule, _, _ in PLANTED} == {rule.name for rule in LIFE}


def test_a_fact_may_be_changed_as_often_as_one_likes_without_a_limit():
    again = edit(life_case(), {f"events.4.changes.0.{field}": value for field, value in AGAIN.items()})
    free = shares_shape().model_copy(update={"events": shares_shape().events.model_copy(update={"updates_per_fact": None})})
    assert judge_life(again, free).violations == ()


def test_quotas_and_span_grow_with_the_number_of_events():
    """The same five events would be far too few, and too short a life, for the paper's 25."""
    person = life_case()
    many = person.model_copy(update={"events": EVENTS * 5, "slots": person.slots * 5})
    found = broken(judge_life(many, paper_shape()))
    assert {"life.track_quotas", "life.domain_quotas", "life.span"} <= found
