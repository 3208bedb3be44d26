"""State, operations, transition and difference."""

import dataclasses
import itertools
import json
import math
import pickle
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.memory import Event, Memory, MemoryState, Metadata, Operation, OperationProblem, apply, check, diff, fresh_ids

MONDAY = datetime(2026, 3, 2, 9, 0)
LATER = datetime(2026, 3, 9, 9, 0)

texts = st.text(min_size=1, max_size=8).filter(str.strip)
ids = st.one_of(st.integers(1, 30).map(lambda n: f"m{n}"), st.text(min_size=1, max_size=4))
states = st.lists(st.builds(Memory, ids, texts, st.just(MONDAY)), unique_by=lambda m: m.id, max_size=6).map(MemoryState)


@st.composite
def operations_for(draw: st.DrawFn, state: MemoryState) -> list[Operation]:
    """Operations on a state, some of which cannot be applied."""
    targets = st.sampled_from([*state, "absent"])
    one = st.one_of(
        st.builds(Operation, st.just(Event.ADD), st.one_of(texts, st.just(" "))),
        st.builds(Operation, st.just(Event.UPDATE), texts, st.one_of(targets, st.none())),
        st.builds(Operation, st.just(Event.NONE), st.sampled_from(["", "known"]), targets),
    )
    return draw(st.lists(one, max_size=6))


cases = states.flatmap(lambda state: st.tuples(st.just(state), operations_for(state)))


def state_of(**texts_by_id: str) -> MemoryState:
    return MemoryState(Memory(memory_id, text, MONDAY) for memory_id, text in texts_by_id.items())


def test_apply_adds_rewrites_and_leaves_alone() -> None:
    state = state_of(m1="Ana has a dog.", m2="Ana lives in Oslo.", m3="Ana is a nurse.")
    operations = [
        Operation(Event.ADD, "Ana plays chess."),
        Operation(Event.UPDATE, "Ana lives in Rome.", "m2"),
        Operation(Event.NONE, "Ana is a nurse.", "m3"),
    ]
    after = apply(state, operations, LATER)
    assert after.memories == (
        Memory("m1", "Ana has a dog.", MONDAY),
        Memory("m2", "Ana lives in Rome.", LATER),
        Memory("m3", "Ana is a nurse.", MONDAY),
        Memory("m4", "Ana plays chess.", LATER),
    )
    assert apply(state, [Operation(Event.UPDATE, "Ana has a dog.", "m1")], LATER) == state, "the time stays too"


def test_a_state_cannot_be_changed_and_has_no_order() -> None:
    one, two = Memory("m1", "a", MONDAY), Memory("m2", "b", MONDAY)
    with pytest.raises(ValueError, match="'m1' occurs twice"):
        MemoryState([one, Memory("m1", "b", MONDAY)])
    state = MemoryState([one, two])
    with pytest.raises(TypeError):
        state["m1"] = two  # type: ignore[index]
    with pytest.raises(AttributeError):
        state.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError):
        state["m1"].text = "b"  # type: ignore[misc]
    assert state == MemoryState([two, one]) and hash(state) == hash(MemoryState([two, one]))
    assert MemoryState([one]) != MemoryState([Memory("m1", "a", LATER)])


@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        (Operation(Event.ADD, "  "), OperationProblem.EMPTY_TEXT),
        (Operation(Event.UPDATE, "", "m1"), OperationProblem.EMPTY_TEXT),
        (Operation(Event.UPDATE, "b"), OperationProblem.MISSING_TARGET),
        (Operation(Event.NONE, "", ""), OperationProblem.MISSING_TARGET),
        (Operation(Event.UPDATE, "b", "m9"), OperationProblem.UNKNOWN_TARGET),
        (Operation(Event.NONE, "a", "m9"), OperationProblem.UNKNOWN_TARGET),
    ],
)
def test_each_refusal_has_its_reason(operation: Operation, problem: OperationProblem) -> None:
    assert check(["m1"], [operation]) == ((), (problem,))
    with pytest.raises(ValueError, match=problem.value):
        apply(state_of(m1="a"), [operation], LATER)


def test_repeated_operation_counts_once_and_conflicting_updates_never() -> None:
    add = Operation(Event.ADD, "a")
    first, second = (Operation(Event.UPDATE, text, "m1") for text in "bc")
    assert check(["m1"], [add, add]) == ((add,), (OperationProblem.DUPLICATE_OPERATION,))
    assert check(["m1"], [first, add, second]) == ((add,), (OperationProblem.CONFLICTING_UPDATE,) * 2)


@given(cases)
def test_every_operation_is_either_valid_or_has_a_problem(case: tuple[MemoryState, list[Operation]]) -> None:
    state, operations = case
    valid, problems = check(state, operations)
    assert len(valid) + len(problems) == len(operations)
    assert check(state, valid) == (valid, ())


@given(cases, st.randoms(use_true_random=False))
def test_order_changes_neither_validity_nor_result(case: tuple[MemoryState, list[Operation]], random) -> None:
    state, operations = case
    shuffled = random.sample(operations, len(operations))
    before, after = check(state, operations), check(state, shuffled)
    assert sorted(before.problems) == sorted(after.problems)
    assert set(before.valid) == set(after.valid)
    left, right = apply(state, before.valid, LATER), apply(state, after.valid, LATER)
    # Added memories are numbered in order, so only their ids may differ.
    assert sorted(m.text for m in left.values()) == sorted(m.text for m in right.values())
    assert {i: left[i] for i in state} == {i: right[i] for i in state}


@given(cases)
def test_apply_is_pure_and_touches_only_what_it_was_told_to(case: tuple[MemoryState, list[Operation]]) -> None:
    state, operations = case
    before = state.memories
    valid = check(state, operations).valid
    after = apply(state, valid, LATER)
    assert state.memories == before
    assert apply(state, valid, LATER) == after
    assert tuple(after)[: len(state)] == tuple(state)
    updates = {op.target_memory_id: op.text for op in valid if op.event is Event.UPDATE}
    assert {i: m.text for i, m in after.items() if i in state} == {i: updates.get(i, m.text) for i, m in state.items()}
    added = [m for i, m in after.items() if i not in state]
    assert [m.text for m in added] == [op.text for op in valid if op.event is Event.ADD]
    assert all(m.time == LATER for m in added)


@given(states, st.integers(1, 5))
def test_fresh_ids_are_new_and_distinct(state: MemoryState, number: int) -> None:
    new = list(itertools.islice(fresh_ids(state), number))
    assert len({*new, *state}) == number + len(state)
    assert next(fresh_ids(["m2", "m10", "x99", "m3b"])) == "m11"


@given(cases)
def test_diff_names_exactly_what_apply_changed(case: tuple[MemoryState, list[Operation]]) -> None:
    state, operations = case
    after = apply(state, check(state, operations).valid, LATER)
    added, removed, changed = diff(state, after)
    assert removed == ()
    texts_before, texts_after = ({(m.id, m.text) for m in one.memories} for one in (state, after))
    assert texts_after - texts_before == {(m.id, m.text) for m in added} | {(new.id, new.text) for _, new in changed}
    assert texts_before - texts_after == {(old.id, old.text) for old, _ in changed}
    assert diff(after, state).removed == added


def test_metadata_is_flat_immutable_and_told_apart_by_what_is_written() -> None:
    given = {"b": ["x", "y"], "a": 1, "f": 1.5, "t": True, "n": None, "s": "Zürich"}
    noted = Metadata(given)
    assert noted.written == '{"a": 1, "b": ["x", "y"], "f": 1.5, "n": null, "s": "Zürich", "t": true}'
    assert list(noted) == sorted(given) and noted["b"] == ("x", "y") and Metadata(json.loads(noted.written)) == noted
    assert len({Metadata({"a": 1}), Metadata({"a": 1.0}), Metadata({"a": True}), Metadata({"a": 1})}) == 3
    assert Metadata({"a": 1}) == {"a": 1} and not Metadata() and pickle.loads(pickle.dumps(noted)) == noted
    given["a"] = 2
    assert noted["a"] == 1


@pytest.mark.parametrize(
    "values",
    [
        *({"a": value} for value in ({}, [1], math.nan, math.inf, 2**63, 10**9999, "\ud800", ["\ud800"], object())),
        *({key: 1} for key in ("", 1, "OR", "\ud800")),
    ],
)
def test_metadata_that_is_not_flat_json_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="metadata") as raised:
        Metadata(values)
    assert len(str(raised.value)) < 250
