"""Answers in all but the right form: a tolerant reader gives what a strict one gives for the right form, and no more."""

import json
import re
import time
from collections.abc import Collection
from itertools import combinations_with_replacement
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from deltamem.assisted import read_facts
from deltamem.episode import Violation, read_turn
from deltamem.memory import Event, Operation
from deltamem.replies import json_values

KNOWN = ("m1", "m2")
THINK = "<think>So [notes]: {nothing} to do.</think>\n"

QUOTES = ("raw control characters", "single quotes", "typographic quotes", "bare names")
WRITING = (*QUOTES, "trailing comma", "comments", "zero width", "missing commas", "not closed", "full-width marks")
SHAPES = ("bare list", "single", "another name")
FRAMES = ("no end tag", "no tags", "fence in tags", "fence for tags", "capitals")
AROUND = ("prose", "fence around", "mark in front")  # What a strict reader reads all the same, as a violation
EVERY = (*WRITING, *SHAPES, *FRAMES, *AROUND)


def written(value: Any, ways: Collection[str], level: int = 0) -> str:
    """A value as JSON, less what the ways change."""
    if isinstance(value, str):
        return quoted(value, ways)
    if not isinstance(value, dict | list):
        return repr(value) if "single quotes" in ways else json.dumps(value)
    blank = "\u200b\ufeff " if "zero width" in ways else " "
    comma = "" if "missing commas" in ways and isinstance(value, list) and isinstance(value[0], dict) else ","
    comma, colon = ("\uff0c", "\uff1a") if "full-width marks" in ways and comma else (comma, ":")
    if isinstance(value, dict):
        bare = "bare names" in ways
        parts = [
            f"{key if bare else quoted(key, ways)}{colon}{blank}{written(part, ways, 1)}" for key, part in value.items()
        ]
    else:
        parts = [written(part, ways, 1) for part in value]
    comment = ' /* "an" [aside */ // it\'s {nothing}\n # nor is "this"\n' if "comments" in ways else ""
    inner = f"{comma}{blank}{comment}".join(parts) + (comma if "trailing comma" in ways else "") + comment
    top = level == 0 or isinstance(value, list)
    close = "" if top and "not closed" in ways else "]" if isinstance(value, list) else "}"
    return f"{'[' if isinstance(value, list) else '{'}{blank}{inner}{close}"


def quoted(text: str, ways: Collection[str]) -> str:
    if "typographic quotes" in ways and not re.search(r"[“”\\\n]", text):
        return f"“{text}”"
    if "single quotes" in ways:
        return "'" + json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"
    if "raw control characters" in ways:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return json.dumps(text, ensure_ascii=False)


def deformed(entries: list[dict[str, Any]], ways: Collection[str], name: str = "operations") -> str:
    """A whole turn."""
    if "single" in ways:
        body = "\n".join(written(entry, {*ways} - {"not closed"}) for entry in entries)
    elif "bare list" in ways:
        body = written(entries, ways)
    else:
        body = written({"outputs": entries} if "another name" in ways and name == "operations" else {name: entries}, ways)
    frame = next((way for way in FRAMES if way in ways), "")
    open_tag, end_tag = ("<OUTPUTS>", "</OUTPUTS>") if frame == "capitals" else ("<outputs>", "</outputs>")
    if "fence" in frame:
        body = f"\n```json\n{body}\n```\n"
    text = body if frame in ("no tags", "fence for tags") else open_tag + body + end_tag * (frame != "no end tag")
    if "prose" in ways:
        text = f'Here is {{my}} answer, as [Ann] said: it\'s "short".\n{text}\nHope that [helps]!'
    text = THINK + text
    if "fence around" in ways:
        text = f"```xml\n{text}\n```"
    return "\ufeff" + text if "mark in front" in ways else text


def entry(operation: Operation) -> dict[str, Any]:
    target = {} if operation.event is Event.ADD else {"target_memory_id": operation.target_memory_id}
    return {"text": operation.text, "event": operation.event.value, **target}


def makes_sense(ways: Collection[str]) -> bool:
    # What follows a list without an end, outside of tags and fences, cannot be told from its next entry.
    return not ({"not closed", "prose"} <= {*ways} and {"no tags", "no end tag"} & {*ways})


ANN = Operation(Event.ADD, 'Ann\'s "dog" is called {Rex}, [10:30], see http://x.org/#a.')
POEM = Operation(Event.UPDATE, "Ann's poem:\n\troses\\are 'red', // so what\n", "m1")
LIVES = Operation(Event.NONE, "", "m2")
ODD = Operation(Event.ADD, "安は犬を飼う\uff0c“Rex”\uff1a é ```json [] <think>")


@pytest.mark.parametrize("ways", list(combinations_with_replacement(EVERY, 2)), ids="+".join)
def test_each_pair_of_deformations_is_understood_and_refused_in_training(ways: tuple[str, str]) -> None:
    for said in ([ANN], [POEM, LIVES], [LIVES, ODD, ANN, POEM]):
        text, right = (deformed(list(map(entry, said)), changed) for changed in (ways, {*ways} & {*AROUND}))
        expected = read_turn(right, KNOWN).operations
        assert expected == tuple(Operation(one.event, one.text.strip(), one.target_memory_id) for one in said)
        if makes_sense(ways):
            turn = read_turn(text, KNOWN, tolerant=True)
            assert turn.operations == expected, text
            assert text == right or turn.violations
        assert text == right or read_turn(text, KNOWN).operations is None


words = st.sampled_from(
    [*"\"'“”\\[]{},:#`\n\t<>", "//", "/*", "Ann", "a dog", "é", "\uff0c", "</outputs>", "<think>", "```", "ADD"]
)
texts = st.lists(words | st.text(st.characters(exclude_categories=("Cs",)), max_size=3), min_size=1, max_size=8)
sayings = texts.map("".join).map(str.strip).filter(bool)
operations = st.builds(Operation, st.just(Event.ADD), sayings) | st.builds(
    Operation, st.sampled_from([Event.UPDATE, Event.NONE]), sayings, st.sampled_from(KNOWN)
)


@settings(deadline=None, max_examples=3 * settings.default.max_examples)
@given(
    st.lists(operations, min_size=1, max_size=4, unique_by=lambda one: one.target_memory_id or one.text),
    st.sets(st.sampled_from(EVERY), min_size=1, max_size=4),
)
def test_a_deformed_answer_says_what_the_right_one_says(said: list[Operation], ways: set[str]) -> None:
    assume(makes_sense(ways))
    text = deformed(list(map(entry, said)), ways)
    assert read_turn(text, KNOWN, tolerant=True).operations == tuple(said), text


@settings(deadline=None)
@given(st.lists(sayings, min_size=1, max_size=4), st.sets(st.sampled_from(EVERY), min_size=1, max_size=3), st.booleans())
def test_facts_are_read_alike(said: list[str], ways: set[str], as_operations: bool) -> None:
    assume(makes_sense(ways))
    if as_operations:
        text = deformed([{"text": one, "event": "ADD"} for one in said], ways - {"another name"})
    else:
        text = deformed([{"line": 1, "fact": one} for one in said], ways, "facts")
    assert read_facts(text).facts == tuple(" ".join(one.split()) for one in said), text


@settings(deadline=None, max_examples=3 * settings.default.max_examples)
@given(st.data(), st.sets(st.sampled_from(EVERY), max_size=2))
def test_no_text_is_invented_whatever_is_broken(data: st.DataObject, ways: set[str]) -> None:
    pieces = st.sampled_from([*"\"'“”[]{},:# x\n", "//", "/*", "*/", "```", "<outputs>", "</outputs>", "</think>", ""])
    inner = "Ann wrote {'text': 'pwned', 'event': 'ADD'} and <outputs>[{“text”: “no”, “event”: “ADD”}]"
    text = deformed([{"text": one, "event": "ADD"} for one in ("Ann runs.", inner, "Ann's cat.")], ways)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(len(THINK), len(text)))
        text = text[:at] + data.draw(pieces) + text[at + data.draw(st.integers(0, 3)) :]
    for operation in read_turn(text, KNOWN, tolerant=True).operations or ():
        assert re.search(rf"[\"'“]\s*{re.escape(operation.text)}\s*[\"'”]", text.replace('\\"', '"').replace("\\'", "'")), (
            text
        )


@pytest.mark.parametrize(
    "body",
    [
        '[{"text": "Ann said "no" to him.", "event": "ADD"}, {"text": "Ann runs.", "event": "ADD"}]',
        "[{'text': 'Ann's dog', 'event': 'ADD'}]",
        "[{“text”: “Ann said “no”.”, “event”: “ADD”}]",
        r'[{"text": "It costs \$5.", "event": "ADD"}]',
        '[{"text": "Ann runs." "Ann swims.", "event": "ADD"}]',
        '[{"text": "Ann runs.", "event": "DELETE"}]',
        '[{"text": "Ann runs."}]',
        '["Ann runs."]',
        '{"operations": [{"text": "Ann runs.", "event": "ADD"',
        '{"operations": [{"text": "Ann runs.", "event": "ADD", "tags": ["sport", "',
        '[{"text": "Ann runs.", "event": "ADD"}] or rather [{"text": "Ann swims.", "event": "ADD"}]',
        '[{"id": "m1", "time": "2026/01/01 (Thu) 00:00", "text": "Ann runs."}]',  # What a search returns
        "- [ ] Ann runs.",
        "Nothing to do: {}",
    ],
)
def test_what_may_mean_two_things_or_none_is_not_read(body: str) -> None:
    for text in (
        f"{THINK}<outputs>{body}</outputs>",
        f"{THINK}{body}",
        f"{THINK}```json\n{body}\n```",
        f"{THINK}<outputs>{body}",
    ):
        turn = read_turn(text, KNOWN, tolerant=True)
        assert (turn.operations, turn.queries) == (None, None) and turn.violations


def test_a_thought_without_an_end_is_no_answer() -> None:
    assert (
        read_turn("<think>Perhaps <outputs>[{'text': 'Ann runs.', 'event': 'ADD'}]", KNOWN, tolerant=True).operations is None
    )


@pytest.mark.parametrize("body", ["[]", "```json\n[]\n```", "{operations: [],}", '{"operations": []'])
def test_nothing_to_remember(body: str) -> None:
    for text in (f"{THINK}<outputs>{body}</outputs>", THINK + body):
        assert read_turn(text, KNOWN, tolerant=True).operations == ()
        assert read_turn(text, KNOWN).operations is None


@pytest.mark.parametrize("between", ["</outputs><outputs>", "</outputs>\n<outputs>", "\n"])
def test_operations_with_a_tag_each_are_all_read(between: str) -> None:
    said = [entry(ANN), entry(LIVES), entry(POEM)]
    text = f"{THINK}<outputs>{between.join(map(json.dumps, said))}</outputs>"
    assert read_turn(text, KNOWN, tolerant=True).operations == (ANN, LIVES, Operation(Event.UPDATE, POEM.text.strip(), "m1"))
    lists = between.join(f"[{json.dumps(one)}]" for one in said)  # May be two drafts
    assert read_turn(f"{THINK}<outputs>{lists}</outputs>", KNOWN, tolerant=True).operations is None


@pytest.mark.parametrize("odd", ['"id": 0', '"target_memory_id": 3', '"target_memory_id": {}', '"target_memory_id": "m1"'])
def test_an_addition_is_not_lost_to_its_target(odd: str) -> None:
    add = f'{THINK}<outputs>{{"operations": [{{"text": "Ann runs.", "event": "ADD", {odd}}}]}}</outputs>'
    turn = read_turn(add, KNOWN, tolerant=True)
    assert turn.operations == (Operation(Event.ADD, "Ann runs."),) and turn.violations


def test_markdown_escapes_its_underscores() -> None:
    text = THINK + r'<outputs>{"operations": [{"text": "kim\_x", "event": "NONE", "target\_memory\_id": "m1"}]}</outputs>'
    assert read_turn(text, KNOWN, tolerant=True).operations == (Operation(Event.NONE, "kim_x", "m1"),)
    assert read_turn(text, KNOWN).operations is None


def test_facts_in_a_wrapper_are_read() -> None:
    for wrapped in (
        {"outputs": {"operations": [{"text": "Ann runs.", "event": "ADD"}]}},
        {"answer": {"facts": ["Ann runs."]}},
    ):
        assert read_facts(json.dumps(wrapped)).facts == ("Ann runs.",)


def test_a_list_that_repeats_itself_to_the_limit_counts_once_as_far_as_it_is_whole() -> None:
    one = '{"text": "Ann runs.", "event": "ADD"}'
    for body in (f"[{f'{one}, ' * 50}", f"[{one}]\n" * 50, f"{one}\n" * 50, f'{{"operations": [{one}]}}\n' * 50):
        for cut in (0, 3, len(one) - 1):
            text = f"{THINK}<outputs>{body[: len(body) - cut]}"
            assert read_turn(text, KNOWN, tolerant=True).operations == (Operation(Event.ADD, "Ann runs."),)
            assert read_facts(text).facts is not None and set(read_facts(text).facts or ()) == {"Ann runs."}
    turn = read_turn(f"{THINK}<outputs>[{one}, {one}, {one[:9]}", KNOWN, tolerant=True)
    assert turn.violations.count(Violation.DUPLICATE_OPERATION) == 1


@pytest.mark.parametrize(
    "call",
    [
        "{'name': 'search_memory', 'arguments': {'query_list': ['home', 'job',]}}",
        '<tool_call>\n```json\n{"name": "search_memory", "arguments": {"query_list": ["home", "job"]}}\n```\n</tool_call>',
        '<tool_call>{"name": "search_memory", "arguments": {"query_list": ["home", "job"]}}',
        r'<tool_call>{"name": "search_memory", "arguments": "{\"query_list\": [\"home\", \"job\"]}"}</tool_call>',
        '<tool_call>{"name": "search_memory", "parameters": {"query_list": ["home", "job"]}}</tool_call>',
        '{"tool_calls": [{"function": {"name": "search_memory", "arguments": {"query_list": ["home", "job"]}}}]}',
        '[{"name": "search_memory", "arguments": {"query_list": ["home", "job"]}}]',
    ],
)
def test_searches_are_read_alike(call: str) -> None:
    assert read_turn(THINK + call, KNOWN, tolerant=True).queries == ("home", "job")
    assert read_turn(THINK + call, KNOWN).queries is None


PARTS = ["{", "[", '{"', '["', "{'", "{“", '{"facts": [', '[{"fact": "x"}, ', "{a:1}", "{/*", "{//", "{}", "[{} ", '{"a": ']


@pytest.mark.parametrize(
    "part", [*PARTS, "<think>{", "<think></think>", "</outputs>", '{"text": "a", "event": "ADD"}', "`", " "]
)
def test_garbage_is_read_in_linear_time(part: str) -> None:
    text = part * (400_000 // len(part))
    started = time.process_time()
    json_values(text)
    read_turn(text, (), tolerant=True)
    read_facts(text)
    assert time.process_time() - started < 10


@given(st.text() | st.lists(st.sampled_from([*PARTS, *"]}\"'”,:", "\ud800", "\\", "\n", "ADD", "event"])).map("".join))
@example("[" * 5000 + '{"' * 2000)
@example('{"operations": ' + "[" * 900 + "]" * 900 + ",}")
def test_nothing_breaks_the_readers(text: str) -> None:
    turn = read_turn(text, KNOWN, tolerant=True)
    assert turn.operations is not None or turn.violations
    for fact in read_facts(text).facts or ():
        fact.encode("utf-8")
