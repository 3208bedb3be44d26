"""Every invariant of a labelled session is broken on purpose once, and must be reported."""

from dataclasses import replace
from datetime import timedelta

import pytest
from synth_cases import person, with_session

from deltamem.memory import Event, Memory, MemoryState, Operation, apply
from deltamem.sessions import LabelledSession, Session, Turn
from synth.invariants import chain_violations, violations

PRIOR = MemoryState(
    [
        Memory("m1", "Ana lives in Oslo with Bo.", person().profile.start),
        Memory("m2", "Ana drinks tea at Kix.", person().profile.start),
    ]
)
TIME = person().profile.start + timedelta(days=1)


def labelled(*operations: Operation, said: str | None = None) -> LabelledSession:
    """A session whose user says all keywords and whose next state is right."""
    words = said if said is not None else " ".join(word for operation in operations for word in operation.keywords)
    session = Session("p0", "Ana", TIME, (Turn("user", words), Turn("assistant", "I see.")))
    return LabelledSession(session, 0, "train", PRIOR, operations, apply(PRIOR, operations, TIME))


ADD = Operation(Event.ADD, "Ana plays golf for Zed.", None, ("golf", "Zed"))
UPDATE = Operation(Event.UPDATE, "Ana lives in Rome with Bo.", "m1", ("Rome", "Bo"))
NONE = Operation(Event.NONE, "Ana drinks tea at Kix.", "m2", ("tea", "Kix"))
CLEAN = labelled(ADD, UPDATE, NONE)


def test_clean_sessions_have_no_violations():
    assert violations(CLEAN) == []
    assert violations(labelled()) == []
    assert chain_violations(person(sessions=6).sessions) == []


def test_keywords_are_compared_without_regard_to_case():
    assert violations(labelled(ADD, said="GOLF with zed")) == []


@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        (replace(UPDATE, target_memory_id="m9"), "unknown_target"),
        (replace(NONE, target_memory_id="m9"), "unknown_target"),
        (replace(UPDATE, target_memory_id=None), "missing_target"),
        (replace(ADD, text=" ", keywords=("golf",)), "empty_text"),
    ],
)
def test_an_operation_that_cannot_be_applied(operation, problem):
    found = violations(replace(CLEAN, operations=(operation,)))
    assert any(problem in sentence and "cannot be applied" in sentence for sentence in found)


def test_a_repeated_operation():
    [found] = violations(replace(CLEAN, operations=(*CLEAN.operations, ADD)))
    assert "duplicate_operation" in found


def test_two_updates_of_one_memory():
    [found] = violations(replace(CLEAN, operations=(*CLEAN.operations, replace(UPDATE, text="Ana left Rome and Bo."))))
    assert "conflicting_update" in found


def test_a_next_state_that_the_operations_do_not_give():
    assert violations(replace(CLEAN, next_state=PRIOR)) == ["replaying the operations does not give the next state"]


def test_a_next_state_with_another_time():
    late = MemoryState(replace(memory, time=TIME + timedelta(hours=1)) for memory in CLEAN.next_state.memories)
    assert violations(replace(CLEAN, next_state=late)) == ["replaying the operations does not give the next state"]


def test_an_operation_without_keywords():
    assert violations(labelled(replace(ADD, keywords=()))) == ["operation 1 (ADD) has no keywords"]


def test_a_keyword_that_is_not_in_its_memory():
    assert violations(labelled(UPDATE, replace(ADD, keywords=("golf", "polo")))) == [
        "operation 2 (ADD): keyword 'polo' is not in its memory"
    ]


def test_a_keyword_that_the_user_never_says():
    assert violations(labelled(ADD, said="I play golf.")) == ["operation 1 (ADD): the user never says 'Zed'"]


def test_what_only_the_assistant_says_does_not_count():
    dialogue = (Turn("user", "I play golf."), Turn("assistant", "For Zed?"))
    assert violations(with_session(labelled(ADD), dialogue=dialogue)) == ["operation 1 (ADD): the user never says 'Zed'"]


def test_an_update_that_changes_nothing():
    same = Operation(Event.UPDATE, "Ana lives in Oslo with Bo.", "m1", ("Oslo", "Bo"))
    assert violations(labelled(same)) == ["operation 1 (UPDATE) changes nothing"]


def test_a_none_that_says_something_else():
    other = replace(NONE, text="Ana drinks tea at the Kix.")
    assert violations(labelled(other)) == ["operation 1 (NONE) does not repeat the text of m2"]


def test_a_prior_memory_that_is_not_older_than_the_session():
    prior = MemoryState([*PRIOR.memories, Memory("m3", "Ana owns a cat.", TIME)])
    planted = replace(CLEAN, prior_state=prior, next_state=apply(prior, CLEAN.operations, TIME))
    assert violations(planted) == ["a prior memory is not older than the session"]


def test_a_chain_names_the_session_of_a_violation():
    first, second, third = person(sessions=3).sessions
    broken = replace(second, operations=(replace(second.operations[0], keywords=()), *second.operations[1:]))
    assert chain_violations([first, broken, third]) == [
        f"session 1: operation 1 ({second.operations[0].event}) has no keywords"
    ]


def test_a_chain_with_a_gap():
    first, _, third = person(sessions=3).sessions
    assert chain_violations([first, third]) == ["session 2: the prior state is not the next state of the session before"]


def test_a_chain_that_goes_back_in_time():
    first = labelled(ADD)
    # It says nothing new, so that its own invariants hold whatever its time.
    second = LabelledSession(first.session, 1, "train", first.next_state, (), first.next_state)
    found = chain_violations([first, second])
    assert "session 1: not later than the session before" in found
    later = with_session(second, time=TIME + timedelta(days=1))
    assert chain_violations([first, later]) == []
