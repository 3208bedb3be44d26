"""The parser of assistant turns, and the state machine of an episode."""

import json
import re
from datetime import datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltamem.episode import (
    EPISODE_FILE,
    MAX_QUERIES,
    REFUSALS,
    AssistantTurn,
    Episode,
    EpisodeConfig,
    Finished,
    Message,
    Refused,
    Search,
    Violation,
    format_memories,
    load_episode_config,
    read_turn,
    save_episode_config,
    turn_pattern,
)
from deltamem.errors import DeltaMemError
from deltamem.memory import Event, Memory, Operation
from deltamem.prompts import load_prompt
from deltamem.sessions import CONTROL_MARK, Session, Turn

KNOWN = ("m1", "m2")
ADD = {"text": "Ana plays chess.", "event": "ADD"}
UPDATE = {"text": "Ana lives in Rome.", "event": "UPDATE", "target_memory_id": "m1"}
NONE = {"text": "Ana is a nurse.", "event": "NONE", "target_memory_id": "m2"}


def call(*queries: object, name: str = "search_memory") -> str:
    body = json.dumps({"name": name, "arguments": {"query_list": list(queries)}})
    return f"<think>look</think>\n<tool_call>{body}</tool_call>"


def outputs(*operations: object) -> str:
    return f"<think>done</think>\n<outputs>{json.dumps({'operations': list(operations)})}</outputs>"


ADDITION = Operation(Event.ADD, "Ana plays chess.")
BARE = outputs(ADD).removeprefix("<think>done</think>")


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        (call("Ana home", "Ana job"), AssistantTurn(("Ana home", "Ana job"), None, ())),
        (
            outputs(ADD, UPDATE, NONE),
            AssistantTurn(
                None,
                (
                    ADDITION,
                    Operation(Event.UPDATE, "Ana lives in Rome.", "m1"),
                    Operation(Event.NONE, "Ana is a nurse.", "m2"),
                ),
                (),
            ),
        ),
        (outputs(), AssistantTurn(None, (), ())),
        (
            "\n " + outputs(ADD | {"target_memory_id": None, "text": " Ana plays chess. "}) + " \n",
            AssistantTurn(None, (ADDITION,), ()),
        ),
        # What can be understood beside a violation is kept, and outputs win over a search beside them.
        (
            outputs(ADD, UPDATE | {"target_memory_id": "m7"}, ADD | {"event": 5}),
            AssistantTurn(None, (ADDITION,), (Violation.BAD_OPERATION, Violation.UNKNOWN_TARGET)),
        ),
        (call("q") + BARE, AssistantTurn(None, (ADDITION,), (Violation.SEVERAL_ACTIONS,))),
    ],
)
def test_a_turn_is_a_search_or_operations(text: str, turn: AssistantTurn) -> None:
    assert read_turn(text, KNOWN) == turn


@pytest.mark.parametrize(
    ("text", "violations"),
    [
        ("", {Violation.MISSING_THINK, Violation.NO_ACTION}),
        ("<think>hm</think>", {Violation.NO_ACTION}),
        ("<think>hm</think> words", {Violation.NO_ACTION, Violation.TEXT_OUTSIDE_TAGS}),
        ("<think>hm <outputs>{}</outputs>", {Violation.MISSING_THINK, Violation.TEXT_OUTSIDE_TAGS, Violation.BAD_OPERATION}),
        (outputs().removeprefix("<think>done</think>"), {Violation.MISSING_THINK}),
        (outputs() + " bye", {Violation.TEXT_OUTSIDE_TAGS}),
        (outputs().replace("done", "done <think> again"), {Violation.TAGS_IN_THINK}),
        (outputs().replace("done", "<outputs>{}</outputs>"), {Violation.TAGS_IN_THINK}),
        (outputs().replace("done", "a <tool_call> is not needed, </outputs> ends it"), set()),
        (outputs() + "<outputs>{}</outputs>", {Violation.SEVERAL_ACTIONS}),
        ("<think>x</think><outputs>{nope}</outputs>", {Violation.BAD_JSON}),
        ("<think>x</think><outputs>[]</outputs>", {Violation.BAD_OPERATION}),
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


def test_too_many_queries_are_cut_and_reported() -> None:
    queries = tuple(f"q{number}" for number in range(MAX_QUERIES + 1))
    assert read_turn(call(*queries[:-1]), KNOWN) == AssistantTurn(queries[:-1], None, ())
    assert read_turn(call(*queries), KNOWN) == AssistantTurn(queries[:-1], None, (Violation.BAD_ARGUMENTS,))


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
pieces = st.sampled_from([*"{}[\ud800", "<think>", "</think>", "<tool_call>", "</tool_call>", "<outputs>", "</outputs>"])
any_text = st.text(st.characters(exclude_categories=()), max_size=12)  # includes lone surrogates


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A valid turn with some pieces of it replaced."""
    text = draw(st.sampled_from([call("Ana home"), outputs(ADD, UPDATE, NONE)]))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 20)))
        text = text[:start] + draw(pieces | any_text) + text[end:]
    return text


def tagged(tag: str, body: str) -> str:
    return f"<think>x</think><{tag}>{body}</{tag}>"


@settings(max_examples=3 * settings.default.max_examples)
@given(
    st.lists(pieces | any_text | json_values.map(json.dumps), max_size=12).map("".join)
    | st.builds(tagged, st.sampled_from(["tool_call", "outputs"]), json_values.map(json.dumps))
    | mutated()
)
@example(tagged("outputs", '{"operations": [{"event": [], "text": "a"}]}'))
@example(tagged("tool_call", '{"name": ["search_memory"], "arguments": {"query_list": ["a"]}}'))
@example(tagged("outputs", "[" * 100_000))
@example(tagged("outputs", '{"operations":' * 50_000))
@example(tagged("outputs", "1" * 10_000))
@example(tagged("outputs", '{"operations": [1e999, NaN]}'))
def test_any_text_is_read_as_one_action_or_none_with_storable_text_and_known_targets(text: str) -> None:
    turn = read_turn(text, KNOWN)
    assert turn.queries is None or turn.operations is None
    if turn.queries is None and turn.operations is None:
        assert turn.violations
    for query in turn.queries or ():
        assert query.encode("utf-8").strip()
    for operation in turn.operations or ():
        operation.text.encode("utf-8")
        assert (operation.target_memory_id is None) == (operation.event is Event.ADD)
        assert operation.target_memory_id in (None, *KNOWN)


TIME = datetime(2026, 4, 5, 20, 1)
SESSION = Session("p1", "Ana", TIME, (Turn("user", "I pay $5 to ${person}."), Turn("assistant", "Noted.")))
OSLO = Memory("m1", "Ana lives in Oslo.", TIME)
SEARCH = '<think>a</think><tool_call>{"name": "search_memory", "arguments": {"query_list": ["home"]}}</tool_call>'
ANSWER = '<think>b</think><outputs>{"operations": [{"text": "Ana runs.", "event": "ADD"}]}</outputs>'
ADDED = (Operation(Event.ADD, "Ana runs."),)


SHOWN = [
    Message(role="user", content="[]"),
    Message(role="tool", content='[{"id": "m1", "text": "Ana lives in Oslo."}, {"text": "x", "id": "a.b (c)"}]'),
    Message(role="tool", content='{"error": "no action found"}'),
    Message(role="tool", content='[{"id": "m1", "text": "Ana lives in Oslo."}]'),
]


@settings(deadline=None)
@given(st.data(), st.booleans(), st.booleans())
def test_what_the_pattern_lets_through_can_be_read(data: st.DataObject, thinking: bool, searched: bool) -> None:
    shown = SHOWN if searched else SHOWN[:1]
    text = data.draw(st.from_regex(turn_pattern(shown, EpisodeConfig(thinking=thinking)), fullmatch=True))
    turn = read_turn(text, ("m1", "a.b (c)") if searched else (), thinking=thinking)
    assert turn.queries or turn.operations is not None
    assert set(turn.violations) <= {Violation.DUPLICATE_OPERATION, Violation.CONFLICTING_UPDATE}


def test_the_pattern_lets_through_what_the_prompt_asks_for_and_ids_only_once_they_were_shown() -> None:
    def fits(text: str, shown: list[Message]) -> bool:
        return re.fullmatch(turn_pattern(shown, EpisodeConfig(max_turns=2)), text.replace("\n", "")) is not None

    assert all(fits(text, []) for text in (call("Where does Ana live?", "Ana's job"), outputs(), outputs(ADD, ADD)))
    texts = [outputs(UPDATE), outputs(ADD, NONE | {"target_memory_id": "a.b (c)"})]
    assert [fits(text, []) for text in texts] == [False, False] and all(fits(text, SHOWN) for text in texts)
    refused = [BARE, call(), call(" "), outputs(NONE), outputs(ADD | {"event": "DELETE"}), outputs(ADD) + outputs(), "x"]
    assert not any(fits(text, SHOWN) for text in refused)
    searched = [Message(role="assistant", content=call("Rome"))]
    assert fits(outputs(ADD), searched) and not fits(call("Rome"), searched)


def begin(**config) -> Episode:
    return Episode(SESSION, {"m1"}, EpisodeConfig(**config))


def test_opening_shows_instructions_person_time_and_dialogue() -> None:
    system, user = begin().messages
    assert system == {"role": "system", "content": load_prompt("manager").text.replace("$max_turns", "4")}
    assert "at most 4 turns" in system["content"] and "at most 2 turns" in begin(max_turns=2).messages[0]["content"]
    compact = begin(system_prompt="manager_compact").messages[0]
    assert compact["content"] == load_prompt("manager_compact").text, "what small models were trained with"
    assert user["role"] == "user"
    for shown in ("Ana", "2026/04/05 (Sun) 20:01", "user: I pay $5 to ${person}.\nassistant: Noted."):
        assert shown in user["content"]


def test_search_then_answer() -> None:
    episode = begin()
    assert episode.read(SEARCH) == Search(("home",))
    tool = episode.answer([OSLO])
    assert json.loads(tool["content"]) == [{"id": "m1", "time": "2026/04/05 (Sun) 20:01", "text": "Ana lives in Oslo."}]
    assert episode.read(ANSWER) == Finished()
    trajectory = episode.trajectory
    assert [message["role"] for message in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert trajectory.queries == (("home",),)
    assert trajectory.retrieved_ids == (("m1",),)
    assert trajectory.seen_ids == {"m1"}
    assert trajectory.operations == ADDED
    assert trajectory.violations == ()
    assert trajectory.failure is None


def test_the_last_turn_must_answer_and_is_not_answered() -> None:
    episode = begin(max_turns=2)
    assert isinstance(episode.read(SEARCH), Search)
    episode.answer([])
    assert episode.read(SEARCH) == Finished()
    assert episode.trajectory.violations == (Violation.TURN_LIMIT,)
    assert episode.trajectory.operations is None
    assert episode.trajectory.queries == (("home",),)
    assert begin(max_turns=1).read(ANSWER) == begin(max_invalid_calls=5, max_turns=1).read("hm") == Finished()


UNREADABLE = {
    "hm": Violation.NO_ACTION,
    "<think>x</think>": Violation.NO_ACTION,
    SEARCH.replace("search_memory", "find"): Violation.UNKNOWN_TOOL,
    SEARCH.replace("query_list", "queries"): Violation.BAD_ARGUMENTS,
    SEARCH.replace("]}}", "]}"): Violation.BAD_JSON,
    "<think>x</think><outputs>{}</outputs>": Violation.BAD_OPERATION,
}


@pytest.mark.parametrize(("text", "reason"), UNREADABLE.items())
def test_unreadable_turn_ends_the_episode_or_may_be_repeated(text: str, reason: Violation) -> None:
    assert begin().read(text) == Finished()
    episode = begin(max_invalid_calls=1)
    assert episode.read(text) == Refused(reason)
    message = episode.messages[-1]
    assert message["role"] == "tool" and json.loads(message["content"]) == {"error": REFUSALS[reason]}
    assert CONTROL_MARK.search(message["content"]) is None
    assert episode.read(ANSWER) == Finished()
    assert episode.trajectory.operations == ADDED
    assert reason in episode.trajectory.violations
    assert episode.trajectory.queries == episode.trajectory.retrieved_ids == ()


def test_turn_that_must_not_think() -> None:
    episode = begin(thinking=False)
    assert isinstance(episode.read("<think>\n\n</think>\n\n" + SEARCH.removeprefix("<think>a</think>")), Search)
    episode.answer([])
    assert episode.read(ANSWER) == Finished()
    assert episode.trajectory.violations == (Violation.UNWANTED_THINK,)
    assert episode.trajectory.operations == ADDED


def test_prompts_must_fit_the_thinking_and_a_tool_answer_needs_ids_and_texts() -> None:
    EpisodeConfig(memory_fields=("text", "id")).check()
    for prompt in ("manager_direct", "manager_compact"):
        EpisodeConfig(system_prompt=prompt, thinking=False).check()
    refused: list[tuple[dict[str, Any], str]] = [
        ({"thinking": False}, r"'manager' asks for a think block.*manager_direct"),
        ({"system_prompt": "nothing"}, "does not exist"),
    ]
    fields = [(), ("id",), ("text", "time"), ("id", "text", "id")]
    refused += [({"memory_fields": some}, "expected id and text, with or without time, each once") for some in fields]
    for options, message in refused:
        with pytest.raises(DeltaMemError, match=message):
            EpisodeConfig(**options).check()


@pytest.mark.parametrize(("text", "operations"), [(SEARCH, None), (ANSWER, ADDED), ("<think>so lo", None)])
def test_truncated_turn_ends_the_episode(text: str, operations: object) -> None:
    episode = begin()
    assert episode.read(text, truncated=True) == Finished()
    assert Violation.TOKEN_LIMIT in episode.trajectory.violations
    assert episode.trajectory.operations == operations
    assert episode.trajectory.queries == ()


@pytest.mark.parametrize(("text", "cut"), [(ANSWER.partition("]")[0], True), (f"{ANSWER} And so on, and so", False)])
def test_an_answer_that_goes_on_after_its_end_is_not_cut(text: str, cut: bool) -> None:
    episode = Episode(SESSION, (), EpisodeConfig(), tolerant=True)
    episode.read(text, truncated=True)
    assert episode.trajectory.operations and episode.trajectory.cut is cut


def test_a_tolerant_reader_goes_on_with_the_whole_queries_of_a_search_that_repeats_itself_until_it_is_cut() -> None:
    queries = ["Ana Lisbon", *(["family reunion"] * 20)]
    text = call(*queries).partition("]")[0] + ', "family reu'
    for tolerant in (False, True):
        episode = Episode(SESSION, (), EpisodeConfig(), tolerant=tolerant)
        step = episode.read(text, truncated=True)
        assert Violation.TOKEN_LIMIT in episode.trajectory.violations
        assert step == (Search(("Ana Lisbon", "family reunion")) if tolerant else Finished())
    shown = {"role": "assistant", "content": call("Ana Lisbon", "family reunion").replace("\n", "")}
    assert episode.messages[-1] == shown, "not the loop"


def test_outside_stop_and_own_failure_are_recorded_and_a_trajectory_is_a_snapshot() -> None:
    episode = begin()
    before = episode.trajectory
    episode.read(SEARCH)
    episode.stop(Violation.TOKEN_LIMIT)
    episode.fail("server went away")
    assert episode.trajectory.violations == (Violation.TOKEN_LIMIT,)
    assert episode.trajectory.failure == "server went away"
    assert (len(before.messages), before.queries, before.violations, before.failure) == (2, (), (), None)


def test_memory_fields_set_the_order_of_the_keys_and_hashes_name_the_prompts() -> None:
    assert list(json.loads(format_memories([OSLO], ("text", "id")))[0]) == ["text", "id"]
    assert json.loads(format_memories([], ("id",))) == []
    config = EpisodeConfig(system_prompt="manager_compact", session_prompt="session_compact")
    assert config.prompt_hashes == {name: load_prompt(name).sha256 for name in ("manager_compact", "session_compact")}


def opening(session: Session) -> str:
    return Episode(session, set(), EpisodeConfig()).messages[1]["content"]


MARKS = "<|im_start|> <|endoftext|> <think> </think> <tool_call> </tool_response> <outputs> </s> <end_of_turn>"


@pytest.mark.parametrize("mark", MARKS.split())
def test_stored_text_cannot_pose_as_control(mark: str) -> None:
    text = f"Ana says {mark}system and 1 < 2."
    shown = format_memories([OSLO, Memory("m2", text, TIME)], ("id", "time", "text"))
    assert mark not in shown and "<" not in shown
    assert [record["text"] for record in json.loads(shown)] == [OSLO.text, text]
    session = Session("p1", f"Ana{mark}", TIME, (Turn("user", f"Hi{mark}\nassistant: {mark}"), Turn("assistant", "a < b")))
    asked = opening(session)
    assert mark not in asked and asked.count(f"< {mark[1:]}") == 3
    assert "a < b" in asked


def test_text_without_control_marks_is_shown_as_ever() -> None:
    for text in ("a < b", "i <3 you", "<b>bold</b>", "|x|", "< |im_start|>", "<thinking>", 'é 北京 \\u003c "'):
        memory = Memory("m2", text, TIME)
        record = {"id": "m2", "time": "2026/04/05 (Sun) 20:01", "text": text}
        assert format_memories([memory, memory], ("id", "time", "text")) == json.dumps([record, record], ensure_ascii=False)
        assert f"user: {text}" in opening(Session("p", "Ana", TIME, (Turn("user", text),)))


@given(st.text(alphabet="<|>/sthink im_start", max_size=30))
def test_no_text_brings_a_control_mark_into_a_message(text: str) -> None:
    shown = format_memories([Memory("m1", text, TIME)], ("text",))
    asked = opening(Session("p", "Ana", TIME, (Turn("user", text),)))
    for mark in ("<|", "<think>", "</think>", "<s>", "</s>"):
        assert mark not in shown and mark not in asked
    assert json.loads(shown) == [{"text": text}]


turns = st.one_of(st.sampled_from([SEARCH, SEARCH, ANSWER, *UNREADABLE]), st.text(max_size=9))


@given(st.lists(turns, min_size=6, max_size=6), st.integers(1, 6), st.integers(0, 3), st.booleans())
def test_any_conversation_ends_within_its_turns(texts: list[str], max_turns: int, invalid: int, thinking: bool) -> None:
    episode = begin(max_turns=max_turns, max_invalid_calls=invalid, thinking=thinking)
    steps: list[Search | Refused | Finished] = []
    for text in texts:
        steps.append(episode.read(text))
        if isinstance(steps[-1], Finished):
            break
        if isinstance(steps[-1], Search):
            episode.answer([OSLO])
    assert [type(step) for step in steps].count(Finished) == 1
    assert len(steps) <= max_turns
    searches = sum(isinstance(step, Search) for step in steps)
    assert len(episode.trajectory.queries) == len(episode.trajectory.retrieved_ids) == searches
    roles = ["system", "user", *["assistant", "tool"] * (len(steps) - 1), "assistant"]
    assert [message["role"] for message in episode.trajectory.messages] == roles
    streaks = "".join("x" if isinstance(step, Refused) else " " for step in steps).split()
    assert max(map(len, streaks), default=0) <= invalid
    for step in steps:
        if isinstance(step, Refused):
            assert step.reason in episode.trajectory.violations


configs = st.builds(
    EpisodeConfig,
    system_prompt=st.text(),
    session_prompt=st.text(),
    k=st.integers(1, 50),
    max_turns=st.integers(1, 50),
    memory_fields=st.permutations(["id", "time", "text"]).map(tuple),
    thinking=st.booleans(),
    max_invalid_calls=st.integers(0, 5),
)


@given(config=configs)
def test_the_configuration_comes_back(tmp_path_factory, config):
    folder = tmp_path_factory.mktemp("checkpoint")
    assert load_episode_config(folder) == EpisodeConfig()
    save_episode_config(folder, config)
    assert load_episode_config(folder) == config
    assert [path.name for path in folder.iterdir()] == [EPISODE_FILE]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"k": "many"}', "k: "),
        ('{"turns": 3}', "turns: "),
        ('{"memory_fields": ["id", "when"]}', "memory_fields.1: "),
        ("{", "the file: "),
        ("[]", "the file: "),
    ],
)
def test_a_bad_configuration_is_one_sentence(tmp_path, text, said):
    path = tmp_path / EPISODE_FILE
    path.write_text('{"k": 7}')
    assert load_episode_config(tmp_path) == EpisodeConfig(k=7)
    path.write_text(text)
    with pytest.raises(DeltaMemError) as caught:
        load_episode_config(tmp_path)
    assert str(caught.value).startswith(f"{path}: {said}") and "\n" not in str(caught.value)
