"""Every rule of the events stage is broken on purpose at least once, and must be the only one to say so."""

from datetime import date

import pytest
from rule_cases import COFFEE, EVENTS, JUN, NAME, ROWING, VILLAGE, broken, edit, events_case

from synth.records import Change, Domain, Participant, PlannedChange, Track
from synth.validators import judge_answer
from synth.validators.events import EVENTS as EVENTS_RULES

# The events of the answer are 0: Ines is met (new), 1: coffee (partial deletion), 2: swimming (expand), 3: rowing (adjust).
# The facts of the task are 0: back, 1: Omar, 2: Jun, 3: coffee, 4: rowing, 5: village, 6: the timetable team.
[COFFEE_LESS] = EVENTS[2].changes
[ROWING_LATE] = EVENTS[4].changes
PREFERENCE_UPDATE = PlannedChange(track=Track.PREFERENCE, change=Change.ADJUST)
INES, LEO = Participant(name="Ines Duarte", relationship="neighbour"), Participant(name="Leo Brandt", relationship="coach")
COFFEE_AT_NOON = f"{NAME} likes strong black coffee at noon."


def ines(text: str, *keywords: str) -> dict[str, object]:
    """Edits of the new relationship."""
    return {"events.0.changes.0.text": f"{NAME} {text}", "events.0.changes.0.keywords": keywords}


def coffee(text: str, *keywords: str) -> dict[str, object]:
    """Edits of the partial deletion."""
    return {"events.1.changes.0.text": f"{NAME} {text}", "events.1.changes.0.keywords": keywords}


def swims(text: str, *keywords: str) -> dict[str, object]:
    """Edits of the expansion."""
    return {"events.2.changes.0.text": f"{NAME} {text}", "events.2.changes.0.keywords": keywords}


def rows(text: str, *keywords: str) -> dict[str, object]:
    """Edits of the adjustment."""
    return {"events.3.changes.0.text": f"{NAME} {text}", "events.3.changes.0.keywords": keywords}


# The broken rule, what is changed in the task, what is changed in the answer.
PLANTED = [
    ("events.one_per_slot", {}, {"events": EVENTS[1:4]}),
    ("events.one_per_slot", {}, {"events.0.index": 7}),
    ("events.date_in_slot", {}, {"events.0.date": date(2026, 3, 5)}),
    ("events.dates_increase", {"slots.1.not_before": date(2026, 2, 1)}, {"events.1.date": date(2026, 3, 1)}),
    ("events.dates_increase", {"slots.0.not_before": date(2026, 1, 1)}, {"events.0.date": date(2026, 2, 1)}),
    ("events.domain", {}, {"events.2.domain": Domain.WORK}),
    ("events.life_goal", {}, {"events.0.serves_life_goal": False}),
    ("events.life_goal_told", {}, {"events.0.narrative": "A neighbour saw her in the yard, offered help and joined her."}),
    ("events.life_goal_told", {}, {"events.2.serves_life_goal": True}),
    ("events.planned_changes", {}, {"events.1.changes": ()}),
    ("events.planned_changes", {"slots.2.changes": ()}, {}),
    ("events.planned_changes", {}, {"events.1.changes.0.change": Change.SHIFT}),
    ("events.planned_changes", {"slots.3.changes": (PREFERENCE_UPDATE, PREFERENCE_UPDATE)}, {}),
    ("events.planned_changes", {"slots.3.changes": (PlannedChange(track=None, change=Change.SHIFT),)}, {}),
    ("events.narrative_words", {}, {"events.3.narrative": "The rent of the shed rose."}),
    ("events.narrative_words", {}, {"events.3.narrative": "The rent of the shed rose. " * 9}),
    ("events.outcome_told", {}, {"events.3.title": ""}),
    ("events.outcome_told", {}, {"events.3.result": ""}),
    ("events.outcome_told", {}, {"events.3.emotion": ""}),
    ("events.grounding", {}, {"events.3.grounding": ()}),
    ("events.grounding", {}, {"events.3.grounding": (" ",)}),
    ("events.events_distinct", {}, {"events.3.title": "a new chair"}),
    ("events.events_distinct", {}, {"events.3.title": "Lane four."}),
    ("events.events_distinct", {}, {"events.3.narrative": EVENTS[0].narrative}),
    ("events.told_anew", {}, {"events.3.narrative": f"As ever {JUN.text[:-1]}, but the rent of the shed rose."}),
    ("events.told_anew", {}, {"events.3.grounding": (VILLAGE.text.upper(),)}),
    ("events.participants", {}, {"events.2.participants": (Participant(name=NAME, relationship="herself"),)}),
    ("events.participants", {}, {"events.0.participants": (INES, INES)}),
    ("events.participants", {}, {"events.2.participants.0.relationship": ""}),
    ("events.newcomers_introduced", {}, {"events.2.participants": (LEO,)}),
    ("events.newcomers_introduced", {}, {"events.0.participants": (INES, LEO)}),
    ("events.newcomers_introduced", {"names": (NAME, "Jun Park")}, {}),
    ("events.newcomers_introduced", {}, {"events.0.participants": (INES, LEO),
                                         **ines("rows with Ines Duarte and Leo Brandt.", "Leo Brandt", "rows", "with")}),
    ("events.new_without_previous", {}, {"events.0.changes.0.previous_text": JUN.text}),
    ("events.previous_text_exact", {}, {"events.3.changes.0.previous_text": ROWING.text.rstrip(".")}),
    ("events.previous_text_exact", {}, {"events.3.changes.0.previous_text": ""}),
    ("events.previous_text_exact", {}, {"events.3.changes.0.previous_text": COFFEE.text}),
    (
        "events.one_update_per_event",
        {"slots.3.changes": (PREFERENCE_UPDATE, PREFERENCE_UPDATE)},
        {"events.3.changes": (ROWING_LATE, edit(ROWING_LATE, {"text": f"{NAME} likes rowing on the dark fjord at dusk."}))},
    ),
    ("events.updates_per_fact", {"facts.4.updates": 1}, {}),
    (
        "events.updates_per_fact",
        {},
        {"events.3.changes": (edit(COFFEE_LESS, {
            "change": "adjust", "previous_text": COFFEE_LESS.text, "text": COFFEE_AT_NOON,
            "keywords": ("strong", "black coffee", "noon")}),)},
    ),
    ("events.same_track", {"facts.4.track": None}, {}),
    ("events.same_track", {"facts.0.track": Track.CAREER}, {}),
    ("events.changes_something", {}, rows("likes rowing on the fjord at dawn!", "rowing", "fjord", "dawn")),
    ("events.changes_something", {"facts.5.text": ROWING_LATE.text}, {}),
    ("events.keyword_kept", {"facts.3.keywords": ("coffee", "oat biscuits", "likes")}, {}),
    (
        "events.information_kept",
        {},
        rows("has gone from rowing to a heated hall since the storms.", "rowing", "heated hall", "storms"),
    ),
    (
        "events.information_kept",
        {},
        swims("swims with a coach who films each lane at the harbour.", "swims", "coach", "harbour"),
    ),
    ("events.expansion_longer", {}, swims("swims twice a week against pain.", "swims", "twice a week", "pain")),
    (
        "events.deletion_partial",
        {},
        coffee("likes strong black coffee, oat biscuits and milk in the morning.", "black coffee", "milk", "morning"),
    ),
    (
        "events.deletion_partial",
        {"facts.3.keywords": ("what she", "a", "b")},
        coffee("may never again have what she had.", "what she", "never", "had"),
    ),
    ("events.subjects", {}, {"events.0.changes.0.subject": ""}),
    ("events.subjects", {"facts.0.subject": "swimming"}, {"events.2.changes.0.subject": "swimming"}),
    ("events.subjects", {"facts.4.subject": ""}, {"events.3.changes.0.subject": ""}),
    ("events.same_subject", {}, {"events.3.changes.0.subject": "beverages"}),
    ("events.subjects_occur", {"names": (NAME, "Omar Haddad", "Ines Duarte")}, ines("rows with her neighbour on Thursdays.",
                                                                                     "neighbour", "rows", "Thursdays")),
    ("events.new_relationship", {"names": (NAME, "Omar Haddad", "Ines Duarte")}, {"events.0.participants": ()}),
    (
        "events.new_relationship",
        {},
        {
            **ines("rows with her new neighbour Ines on Thursdays.", "rows", "neighbour", "Ines"),
            "events.0.participants.0.name": "Ines",
            "events.0.changes.0.subject": "Ines",
        },
    ),
    ("events.begins_with_name", {}, {"events.3.changes.0.text": "She likes rowing on the fjord at dusk instead of dawn."}),
    ("events.third_person", {}, rows("likes rowing on our fjord at dusk instead of dawn.", "rowing", "fjord", "dusk")),
    ("events.one_sentence", {}, rows("likes rowing on the fjord at dusk instead of dawn", "rowing", "fjord", "dusk")),
    ("events.lasting_time", {}, rows("likes rowing on the fjord at dusk since last winter.", "rowing", "fjord", "dusk")),
    ("events.fact_words", {}, rows("likes rowing on the fjord at dusk, " + "and again at dusk, " * 6 + "not dawn.",
                                   "rowing", "fjord", "dusk")),
    ("events.keyword_count", {}, {"events.3.changes.0.keywords": ("rowing", "fjord")}),
    ("events.keyword_words", {}, {"events.3.changes.0.keywords": ("rowing on the fjord at", "fjord", "dusk")}),
    ("events.keywords_occur", {}, {"events.3.changes.0.keywords": ("rowing", "fjord", "sunset")}),
    ("events.keywords_distinct", {}, {"events.3.changes.0.keywords": ("rowing", "fjord", "Fjord")}),
    ("events.keywords_tell", {}, {"events.3.changes.0.keywords": ("rowing", "fjord", "Maya Lindqvist")}),
]  # fmt: skip


def test_good_events_break_no_rule():
    task, answer = events_case()
    assert judge_answer(task, answer).violations == ()


@pytest.mark.parametrize(("rule", "in_task", "in_answer"), PLANTED)
def test_a_planted_violation_is_found_by_its_rule(rule, in_task, in_answer):
    task, answer = events_case()
    assert broken(judge_answer(edit(task, in_task), edit(answer, in_answer))) == {rule}


def test_a_fact_that_an_earlier_event_left_may_be_changed_where_the_limit_allows():
    task, answer = events_case()
    again = {
        "events.3.changes.0.previous_text": COFFEE_LESS.text,
        "events.3.changes.0.text": COFFEE_AT_NOON,
        "events.3.changes.0.keywords": ("strong", "black coffee", "noon"),
        "events.3.changes.0.subject": "beverages",
    }
    for limit in (2, None):
        assert judge_answer(edit(task, {"limits.updates_per_fact": limit}), edit(answer, again)).violations == ()


def test_a_new_fact_may_be_changed_later_but_not_by_its_own_event():
    task, answer = events_case()
    [met] = EVENTS[1].changes
    friends = edit(
        met,
        {
            "change": "adjust",
            "previous_text": met.text,
            "text": f"{NAME} rows with her neighbour and friend Ines Duarte on Thursdays.",
            "keywords": ("neighbour", "Ines Duarte", "friend"),
        },
    )
    update = PlannedChange(track=Track.RELATIONSHIP, change=Change.ADJUST)
    later = judge_answer(edit(task, {"slots.3.changes": (update,)}), edit(answer, {"events.3.changes": (friends,)}))
    assert later.violations == ()
    planned = (PlannedChange(track=Track.RELATIONSHIP, change=Change.NEW), update)
    at_once = judge_answer(edit(task, {"slots.0.changes": planned}), edit(answer, {"events.0.changes": (met, friends)}))
    assert broken(at_once) == {"events.previous_text_exact"}


def test_a_superseded_fact_cannot_be_changed_any_more():
    task, answer = events_case()
    stale = edit(answer, {"events.3.changes.0.previous_text": COFFEE.text, "events.3.changes.0.subject": "beverages"})
    assert broken(judge_answer(task, stale)) == {"events.previous_text_exact"}


def test_a_plan_without_tracks_leaves_them_to_the_writer():
    task, answer = events_case()
    free = {f"slots.{index}.changes.0.track": None for index in range(4)}
    assert judge_answer(edit(task, free), answer).violations == ()


def test_a_deletion_may_name_what_it_takes_away():
    task, answer = events_case()
    told = coffee(
        "likes strong black coffee in the morning, without the oat biscuits.", "black coffee", "morning", "without"
    )
    assert judge_answer(task, edit(answer, told)).violations == ()


def test_subjects_are_left_alone_where_the_shape_has_none():
    task, answer = events_case()
    bare = {f"events.{index}.changes.0.subject": "" for index in range(4)}
    assert judge_answer(edit(task, {"limits.subjects": False}), edit(answer, bare)).violations == ()


def test_an_empty_answer_only_lacks_its_events():
    task, answer = events_case()
    assert broken(judge_answer(task, edit(answer, {"events": ()}))) == {"events.one_per_slot"}


def test_every_rule_of_events_is_planted():
    assert {rule for rule, _, _ in PLANTED} == {rule.name for rule in EVENTS_RULES}
