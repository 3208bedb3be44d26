"""Every rule of finished records is broken on purpose at least once, and must be the only one to say so."""

from dataclasses import replace
from datetime import timedelta

import pytest
from handmade import ADD, NAME, NONE, OMAR, PRIOR, ROWING, TIME, UPDATE, broken, following, labelled, with_session

from deltamem.memory import Event, Memory, MemoryState, Operation, apply
from deltamem.sessions import Difficulty, OperationDifficulty, Turn
from synth.validators.session import CHAIN, SINGLE, SplitCheck, judge_chain, judge_session

CLEAN = labelled(ADD, UPDATE, NONE)
QUIET = labelled()


def as_is(*operations):
    """The clean session with other operations and the same states, where they cannot be applied."""
    return replace(CLEAN, operations=operations)


def dialogue(*turns):
    return with_session(QUIET, dialogue=tuple(Turn(role, content) for role, content in turns))


def with_prior(*memories):
    prior = MemoryState([*PRIOR.memories, *memories])
    return replace(CLEAN, prior_state=prior, next_state=apply(prior, CLEAN.operations, TIME))


SAME = Operation(Event.UPDATE, ROWING.text, "m1", ROWING.keywords)

PLAIN = OperationDifficulty(signal="value", rivals=0, provenance="said", time="same_day", chain=0)


def stated(session):
    """The session with the difficulty of operations that nothing resembles."""
    operations = tuple(replace(PLAIN, chain=int(operation.event is Event.UPDATE)) for operation in session.operations)
    return replace(session, difficulty=Difficulty(operations, 0.0, len(session.prior_state)))


# The broken rule, a part of its message, the session.
PLANTED = [
    ("ids", "no name", with_session(QUIET, person_name="")),
    ("speakers_alternate", "empty", dialogue()),
    ("operations_apply", "unknown_target", as_is(ADD, replace(UPDATE, target_memory_id="m9"), NONE)),
    ("next_state_follows", "does not give", replace(CLEAN, next_state=PRIOR)),
    ("one_operation_a_memory", "m1", labelled(UPDATE, replace(SAME, event=Event.NONE))),
    ("additions_new", "m2", labelled(Operation(Event.ADD, OMAR.text, None, OMAR.keywords))),
    ("names_person", "'She", labelled(Operation(Event.ADD, "She rows at dusk.", None, ("rows", "dusk")))),
    ("has_keywords", "operation 1 (ADD)", labelled(replace(ADD, keywords=()))),
    ("keywords_occur", "operation 2 (ADD): keyword 'mast'", labelled(UPDATE, replace(ADD, keywords=("hull", "mast")))),
    ("has_keywords", "an empty one", labelled(replace(ADD, keywords=("hull", ("summer regatta", " "))))),
    ("keywords_occur", "keyword ('mast', 'sail')", labelled(UPDATE, replace(ADD, keywords=("hull", ("mast", "sail"))))),
    ("difficulty_agrees", "of 1 operations", replace(CLEAN, difficulty=Difficulty((PLAIN,), 0.0, 3))),
    ("update_new_keyword", "all of its keywords", stated(labelled(replace(UPDATE, keywords=("rowing", "fjord", "dawn"))))),
    # One of the alternatives of each stands in the old text.
    (
        "update_new_keyword",
        "all of its keywords",
        stated(labelled(replace(UPDATE, keywords=("rowing", ("fjord", "dusk"))))),
    ),
    ("outdated_gone", "'dusk'", labelled(replace(UPDATE, outdated=("dusk",)))),
    ("update_changes", "operation 1 (UPDATE)", labelled(SAME)),
    ("none_repeats", "m2", labelled(replace(NONE, text=f"{NAME} plays chess with Omar Haddad on Sundays."))),
    ("prior_older", "not older", with_prior(Memory("m4", f"{NAME} owns a cat.", TIME))),
]


def test_clean_sessions_have_no_violations():
    assert judge_session(CLEAN).violations == ()
    assert judge_session(QUIET).violations == ()
    assert judge_session(stated(CLEAN)).violations == ()
    assert judge_session(stated(QUIET)).violations == ()
    either = replace(ADD, keywords=("hull", ("boat race", "summer regatta")))
    assert judge_session(stated(labelled(either))).violations == ()


@pytest.mark.parametrize(("rule", "part", "session"), PLANTED)
def test_a_planted_violation_is_found_by_its_rule_alone(rule, part, session):
    verdict = judge_session(session)
    assert broken(verdict) == {f"session.{rule}"}
    assert any(part in violation.message for violation in verdict.violations)


FIRST = labelled(ADD, NONE)
SECOND = following(FIRST, UPDATE)
CAT = Operation(Event.ADD, f"{NAME} owns a grey cat.", None, ("grey", "cat"))
THIRD = following(SECOND, CAT)


def test_a_clean_chain_has_no_violations_and_names_its_rules_once():
    verdict = judge_chain(iter([FIRST, SECOND, THIRD]))
    assert verdict.violations == ()
    assert sorted(verdict.checked) == sorted(rule.name for rule in (*SINGLE.rules, *CHAIN.rules))


def in_state(session, *memories):
    """The session in another prior state, with the next state that follows."""
    prior = MemoryState(memories)
    return replace(session, prior_state=prior, next_state=apply(prior, session.operations, session.session.time))


def without(memory_id):
    return [memory for memory in THIRD.prior_state.memories if memory.id != memory_id]


def changed(memory_id="", **values):
    """The memories before the third session, one of them changed."""
    return [replace(memory, **values) if memory.id == memory_id else memory for memory in THIRD.prior_state.memories]


PLANTED_CHAINS = [
    ("chain_same_person", "'p9'", [FIRST, with_session(SECOND, person_id="p9")]),
    ("chain_in_order", "it follows session 1", [replace(FIRST, session_index=1), replace(SECOND, session_index=0)]),
    ("chain_later", "not later", [with_session(QUIET, time=TIME + timedelta(days=1)), replace(QUIET, session_index=1)]),
    ("chain_continues", "the prior state", [FIRST, replace(labelled(), session_index=1, session=SECOND.session)]),
    ("chain_plausible", "m3 of the session before is gone", [FIRST, in_state(THIRD, *without("m3"))]),
]


@pytest.mark.parametrize(("rule", "part", "sessions"), PLANTED_CHAINS)
def test_a_planted_violation_between_sessions_is_found_by_its_rule_alone(rule, part, sessions):
    verdict = judge_chain(sessions)
    assert broken(verdict) == {f"session.{rule}"}
    assert any(part in violation.message for violation in verdict.violations)


def test_every_rule_has_a_planted_violation():
    planted = {f"session.{rule}" for rule, _, _ in (*PLANTED, *PLANTED_CHAINS)}
    assert {rule.name for rule in (*SINGLE.rules, *CHAIN.rules)} == planted


def test_people_of_one_split_may_share_everything_and_those_of_both_nothing():
    check = SplitCheck()
    assert check.person("p000001", "a nurse", "train") == check.person("p2", "a nurse", "train") == []
    assert check.session(CLEAN) == check.session(with_session(CLEAN, person_id="p2")) == []
    assert check.person("p3", "a baker", "heldout") == []
    assert check.session(replace(with_session(labelled(ADD), person_id="p3"), split="heldout")) == []


SPOKEN = (Turn("user", f"  {CLEAN.session.dialogue[0].content.upper()}"), Turn("assistant", "Something else."))
HELDOUT = replace(CLEAN, split="heldout")


@pytest.mark.parametrize(
    ("rule", "named", "twice"),
    [
        ("seeds", "p2", lambda check: check.person("p2", " a  NURSE", "heldout")),
        ("people", "p000001", lambda check: check.person("p000001", "a baker", "heldout")),
        ("people", "p000001", lambda check: check.session(with_session(HELDOUT, dialogue=labelled(ADD).session.dialogue))),
        # Whatever the assistant says.
        ("session_texts", "p2/0", lambda check: check.session(with_session(HELDOUT, person_id="p2", dialogue=SPOKEN))),
    ],
)
def test_what_is_in_both_splits_is_named(rule, named, twice):
    check = SplitCheck()
    check.person("p000001", "A nurse.", "train")
    check.session(CLEAN)
    [violation] = twice(check)
    assert violation.rule == f"split.{rule}"
    assert named in violation.message
