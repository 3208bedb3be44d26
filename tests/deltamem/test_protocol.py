"""The parser of assistant texts: what it understands, what it reports, and that nothing makes it raise."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltamem.episode import MAX_QUERIES, AssistantTurn, Violation, read_turn
from deltamem.memory import Event, Operation

KNOWN = ("m1", "m2")
ADD = {"text": "Ana plays chess.", "event": "ADD"}
UPDATE = {"text": "Ana lives in Rome.", "event": "UPDATE", "target_memory_id": "m1"}
NONE = {"text": "Ana is a nurse.", "event": "NONE", "target_memory_id": "m2"}


def call(*queries: object, name: str = "search_memory") -> str:
    body = json.dumps({"name": name, "arguments": {"query_list": list(queries)}})
    return f"<think>look</think>\n<tool_call>{body}</tool_call>"


def outputs(*operations: object) -> str:
    return f"<think>done</think>\n<outputs>{json.dumps({'operations': list(operations)})}</outputs>"


def test_search_is_read_without_violation() -> None:
    assert read_turn(call("Ana home", "Ana job"), KNOWN) == AssistantTurn(("Ana home", "Ana job"), None, ())


def test_operations_are_read_without_violation() -> None:
    turn = read_turn(outputs(ADD, UPDATE, NONE), KNOWN)
    assert turn == AssistantTurn(
        None,
        (
            Operation(Event.ADD, "Ana plays chess."),
            Operation(Event.UPDATE, "Ana lives in Rome.", "m1"),
            Operation(Event.NONE, "Ana is a nurse.", "m2"),
        ),
        (),
    )


def test_no_operations_is_a_valid_answer() -> None:
    assert read_turn(outputs(), KNOWN) == AssistantTurn(None, (), ())


def test_null_target_of_an_addition_and_blanks_around_are_no_violation() -> None:
    text = "\n " + outputs(ADD | {"target_memory_id": None, "text": " Ana plays chess. "}) + " \n"
    assert read_turn(text, KNOWN) == AssistantTurn(None, (Operation(Event.ADD, "Ana plays chess."),), ())


@pytest.mark.parametrize(
    ("text", "violations"),
    [
        ("", {Violation.MISSING_THINK, Violation.NO_ACTION}),
        ("I do not know.", {Violation.MISSING_THINK, Violation.NO_ACTION}),
        ("<think>hm</think>", {Violation.NO_ACTION}),
        ("<think>hm</think> words", {Violation.NO_ACTION, Violation.TEXT_OUTSIDE_TAGS}),
        ("<think>hm <outputs>{}</outputs>", {Violation.MISSING_THINK, Violation.TEXT_OUTSIDE_TAGS, Violation.BAD_OPERATION}),
        (outputs().removeprefix("<think>done</think>"), {Violation.MISSING_THINK}),
        (outputs() + " bye", {Violation.TEXT_OUTSIDE_TAGS}),
        (outputs() + "</outputs>", {Violation.TEXT_OUTSIDE_TAGS}),
        (outputs().replace("done", "done <think> again"), {Violation.MISSING_THINK}),
        (outputs() + "<outputs>{}</outputs>", {Violation.SEVERAL_ACTIONS}),
        ("<think>x</think><outputs>{nope}</outputs>", {Violation.BAD_JSON}),
        ("<think>x</think><outputs>[]</outputs>", {Violation.BAD_OPERATION}),
        ('<think>x</think><outputs>{"operations": {}}</outputs>', {Violation.BAD_OPERATION}),
        ('<think>x</think><outputs>{"operations": [], "note": 1}</outputs>', {Violation.BAD_OPERATION}),
        (call("q", name="delete_memory"), {Violation.UNKNOWN_TOOL}),
        ("<think>x</think><tool_call>7</tool_call>", {Violation.UNKNOWN_TOOL}),
        (call(), {Violation.BAD_ARGUMENTS}),
        (call("q", 3), {Violation.BAD_ARGUMENTS}),
        (call(" "), {Violation.BAD_ARGUMENTS}),
        (call("\ud800"), {Violation.BAD_ARGUMENTS}),
        (call("q").replace('"query_list"', '"queries"'), {Violation.BAD_ARGUMENTS}),
        (call("q").replace('{"name"', '{"id": 1, "name"'), {Violation.BAD_ARGUMENTS}),
        (outputs("text"), {Violation.BAD_OPERATION}),
        (outputs(ADD | {"event": "DELETE"}), {Violation.BAD_OPERATION}),
        (outputs(ADD | {"event": ["ADD"]}), {Violation.BAD_OPERATION}),
        (outputs(ADD | {"event": {}}), {Violation.BAD_OPERATION}),
        (outputs(ADD | {"text": "\ud800"}), {Violation.BAD_OPERATION}),
        (outputs(ADD | {"target_memory_id": "m1"}), {Violation.BAD_OPERATION}),
        (outputs(ADD | {"reason": "x"}), {Violation.BAD_OPERATION}),
        (outputs(UPDATE | {"target_memory_id": 1}), {Violation.BAD_OPERATION}),
        (outputs(ADD | {"text": " "}), {Violation.EMPTY_TEXT}),
        (outputs(UPDATE | {"target_memory_id": "m7"}), {Violation.UNKNOWN_TARGET}),
        (outputs(UPDATE | {"target_memory_id": None}), {Violation.MISSING_TARGET}),
        (outputs(ADD, ADD), {Violation.DUPLICATE_OPERATION}),
        (outputs(UPDATE, UPDATE | {"text": "Ana lives in Bonn."}), {Violation.CONFLICTING_UPDATE}),
    ],
)
def test_each_departure_has_its_name(text: str, violations: set[Violation]) -> None:
    assert set(read_turn(text, KNOWN).violations) == violations


BARE = outputs(ADD).removeprefix("<think>done</think>")


@pytest.mark.parametrize(
    ("text", "violations"),
    [
        (BARE, ()),
        ("<think>\n\n</think>\n\n" + BARE, ()),
        ("<think></think>" + call("q").removeprefix("<think>look</think>"), ()),
        ("<think>hm</think>" + BARE, (Violation.UNWANTED_THINK,)),
        ("<think>hm" + BARE, (Violation.TEXT_OUTSIDE_TAGS,)),
        ("hm" + BARE, (Violation.TEXT_OUTSIDE_TAGS,)),
        ("<think>\n</think>", (Violation.NO_ACTION,)),
        ("", (Violation.NO_ACTION,)),
    ],
)
def test_turn_without_thinking(text: str, violations: tuple[Violation, ...]) -> None:
    turn = read_turn(text, KNOWN, thinking=False)
    assert turn.violations == violations
    assert (turn.operations is not None) == text.endswith(BARE)


def test_what_can_be_understood_beside_a_violation_is_kept() -> None:
    turn = read_turn(outputs(ADD, UPDATE | {"target_memory_id": "m7"}, ADD | {"event": 5}), KNOWN)
    assert turn.operations == (Operation(Event.ADD, "Ana plays chess."),)
    assert turn.violations == (Violation.BAD_OPERATION, Violation.UNKNOWN_TARGET)


def test_too_many_queries_are_cut_and_reported() -> None:
    turn = read_turn(call(*(f"q{n}" for n in range(MAX_QUERIES + 1))), KNOWN)
    assert turn.queries is not None
    assert len(turn.queries) == MAX_QUERIES
    assert turn.violations == (Violation.BAD_ARGUMENTS,)
    assert read_turn(call(*(f"q{n}" for n in range(MAX_QUERIES))), KNOWN).violations == ()


def test_outputs_win_over_a_search_beside_them() -> None:
    turn = read_turn(call("q") + outputs(ADD).removeprefix("<think>done</think>"), KNOWN)
    assert turn.queries is None
    assert turn.operations == (Operation(Event.ADD, "Ana plays chess."),)
    assert turn.violations == (Violation.SEVERAL_ACTIONS,)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["ADD", "m1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "arguments", "query_list", "operations", "text", "event", "target_memory_id", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
pieces = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "<outputs>", "</outputs>", "{", "}", "[", "\ud800"]
)
any_text = st.text(st.characters(exclude_categories=()), max_size=12)  # includes lone surrogates


@given(st.lists(pieces | any_text | json_values.map(json.dumps), max_size=12).map("".join))
def test_random_text_never_raises(text: str) -> None:
    assert_sound(read_turn(text, KNOWN))


@given(st.sampled_from(["tool_call", "outputs"]), json_values)
@example("outputs", {"operations": [{"event": [], "text": "a"}]})
@example("tool_call", {"name": ["search_memory"], "arguments": {"query_list": ["a"]}})
def test_any_json_inside_the_tags_never_raises(tag: str, value: object) -> None:
    turn = read_turn(f"<think>x</think><{tag}>{json.dumps(value)}</{tag}>", KNOWN)
    assert_sound(turn)


@given(st.sampled_from([call("Ana home"), outputs(ADD, UPDATE, NONE)]), st.data())
def test_mutated_valid_text_never_raises(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 20)))
        text = text[:start] + data.draw(pieces | any_text) + text[end:]
    assert_sound(read_turn(text, KNOWN))


@pytest.mark.parametrize("body", ["[" * 100_000, '{"operations":' * 50_000, "1" * 10_000, '{"operations": [1e999, NaN]}'])
def test_deep_or_huge_json_is_a_violation(body: str) -> None:
    turn = read_turn(f"<think>x</think><outputs>{body}</outputs>", KNOWN)
    assert_sound(turn)
    assert turn.violations


def assert_sound(turn: AssistantTurn) -> None:
    """What every reading promises: one action or none, storable text, known targets, and a reason where there is none."""
    assert turn.queries is None or turn.operations is None
    if turn.queries is None and turn.operations is None:
        assert turn.violations
    for query in turn.queries or ():
        assert query.encode("utf-8").strip()
    for operation in turn.operations or ():
        operation.text.encode("utf-8")
        assert (operation.target_memory_id is None) == (operation.event is Event.ADD)
        assert operation.target_memory_id in (None, *KNOWN)
