from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from handmade import EVENTS, edit
from hypothesis import example, given, settings
from hypothesis import strategies as st

from synth.llm.answers import FORMAT_RULES, FormatError, answer_schema, plain_text, read_answer, record_schema
from synth.records import Dialogue, EventGroup, Fact, LifeEvent, PlannedFact, StateDelta
from synth.tasks import Events, Links, Unit

LINKS = Links(
    groups=(
        EventGroup(events=(0, 3), thread="The garden with the {old} gate"),
        EventGroup(events=(1, 4), thread='He said "no", twice'),
    )
)
GOOD = LINKS.model_dump_json()
EVENT: dict[str, Any] = edit(EVENTS[1], {"changes": ()}).model_dump(mode="json")


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """All schemas within a schema; names of fields are not among them."""
    if isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            for part in value.values() if key in ("properties", "$defs") else [value]:
                yield from parts(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from parts(part)


@pytest.mark.parametrize("unit", Unit)
def test_a_schema_bounds_everything_demands_every_field_and_says_nothing_else(unit: Unit) -> None:
    found = list(parts(answer_schema(unit)))
    assert all({"maxLength", "pattern", "enum"} & part.keys() for part in found if part.get("type") == "string")
    assert all(part.keys() >= {"items", "maxItems"} for part in found if part.get("type") == "array")
    assert all(part.keys() >= {"minimum", "maximum"} for part in found if part.get("type") == "integer")
    assert not any("*" in part.get("pattern", "") or "+" in part.get("pattern", "") for part in found)
    objects = [part for part in found if part.get("type") == "object"]
    assert objects and any(part.get("type") == "string" for part in found)
    for part in objects:
        assert part["required"] == list(part["properties"]) and part["additionalProperties"] is False
    assert not [part for part in found if {"title", "description", "default", "format"} & part.keys()]


def harmony(text: str) -> str:
    return (
        '<|channel|>analysis<|message|>Perhaps {"groups": []}?<|end|>'
        f"<|start|>assistant<|channel|>final <|constrain|>json<|message|>{text}<|return|>"
    )


WRAPPINGS: dict[str, Callable[[str], str]] = {
    "nothing": lambda text: text,
    "blanks": lambda text: f"\n\n  {text}\n ",
    "fence": lambda text: f"```json\n{text}\n```",
    "fence and words": lambda text: f"Here it is:\n```\n{text}\n```\nI hope {{this}} helps.",
    "thinking": lambda text: f'<think>What about {{"groups": []}}? No.</think>\n{text}',
    "end of thinking": lambda text: f"groups...</think>{text}",
    "channels": harmony,
    "channels without tokens": lambda text: f"analysisI think of {{}}.assistantfinal{text}",
    "end token": lambda text: f"{text}<|im_end|>",
    "draft": lambda text: f'{{"groups": [{{"events": [], "thread": "draft"}}]}}\nBetter:\n{text}',
    "braces": lambda text: f"A set {{0, 3}} and {{1, 4}}: {text}",
}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.builds(EventGroup, events=st.lists(st.integers(0, 999), max_size=8), thread=st.text(max_size=60).map(plain_text)),
        max_size=4,
    ),
    st.sampled_from(list(WRAPPINGS.values())),
)
def test_any_answer_survives_any_wrapping(groups: list[EventGroup], wrap: Callable[[str], str]) -> None:
    links = Links(groups=tuple(groups))
    assert read_answer(wrap(links.model_dump_json()), Links).answer == links


BROKEN = {
    "comma too many": '{"groups": [{"events": [0, 3], "thread": "a"},]}',
    "comma missing": '{"groups": [{"events": [0, 3] "thread": "a"}]}',
    "single quotes": "{'groups': [{'events': [0, 3], 'thread': 'a'}]}",
    "no quotes": "{groups: [{events: [0, 3], thread: 'a'}]}",
    "brackets not closed": '{"groups": [{"events": [0, 3], "thread": "a"}',
    "comment": '{"groups": [ // one group\n{"events": [0, 3], "thread": "a"}]}',
    "words and fence": 'Sure!\n```json\n{"groups": [{"events": [0, 3], "thread": "a",},]}\n```',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_broken_json_is_mended(text: str) -> None:
    assert read_answer(text, Links).answer == Links(groups=(EventGroup(events=(0, 3), thread="a"),))


def wrong(text: str, answer: type[Any]) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    with pytest.raises(FormatError) as caught:
        read_answer(text, answer)
    verdict = caught.value.verdict
    return verdict.checked, [tuple(violation) for violation in verdict.violations]  # type: ignore[misc]


def test_a_missing_field_is_named_and_never_made_up() -> None:
    event = {key: value for key, value in EVENT.items() if key != "agency"}
    checked, found = wrong(json.dumps({"events": [EVENT, event]}), Events)
    assert checked == FORMAT_RULES[:3]
    assert found == [("format.schema", "events[1].agency: Field required")]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"index": 1000}, "events[0].index: Input should be less than or equal to 999 (found 1000)"),
        ({"date": "3rd of May"}, "events[0].date: "),
        ({"domain": "garden"}, "events[0].domain: Input should be 'work', 'social',"),
        ({"participants": "Jo Lind"}, "events[0].participants: "),
        ({"participants": [{"name": "Jo Lind"}]}, "events[0].participants[0].relationship: Field required"),
        ({"result": None}, "events[0].result: Input should be a valid string (found null)"),
    ],
)
def test_what_does_not_fit_the_schema_is_named(change: dict[str, Any], said: str) -> None:
    _, found = wrong(json.dumps({"events": [EVENT | change]}), Events)
    assert len(found) == 1 and found[0][0] == "format.schema" and said in found[0][1]


def test_what_is_too_long_can_be_read_and_is_named() -> None:
    """So that the one part which is too long can be mended by itself."""
    long = EVENT | {"title": " " + "x" * 90, "follow_ups": ["a" * 401, *"bcde"], "narrative": "word " * 700}
    read = read_answer(json.dumps({"events": [EVENT, long]}), Events)
    assert [tuple(violation) for violation in read.violations] == [
        ("format.length", "events[1].title must have at most 80 characters, but has 91"),
        ("format.length", "events[1].narrative must have at most 2500 characters, but has 3500"),
        ("format.length", "events[1].follow_ups[0] must have at most 400 characters, but has 401"),
        ("format.length", "events[1].follow_ups must have at most 4 items, but has 5"),
    ]
    first, second = read.answer.events
    assert first == LifeEvent(**EVENT) and second.title == "x" * 80 and second.follow_ups == ("a" * 400, "b", "c", "d")


def test_a_model_is_asked_for_plain_keywords_but_alternatives_can_be_read_and_cut() -> None:
    asked = record_schema(Fact)["properties"]["keywords"]
    assert asked == {"type": "array", "maxItems": 6, "items": {"type": "string", "maxLength": 80}}
    read = read_answer(json.dumps({"text": "Jo Lind has tea.", "keywords": [["tea"], ["has", "x" * 90], "y" * 81]}), Fact)
    assert [message for _, message in read.violations] == [
        "keywords[1][1] must have at most 80 characters, but has 90",
        "keywords[2] must have at most 80 characters, but has 81",
    ]
    assert read.answer.keywords == ("tea", ("has", "x" * 80), "y" * 80)


PLAN = {"fact_id": "f1", "turn": 2, "previous_turn": 0}
CHANGE = {
    "track": "preference", "change": "partial_deletion", "subject": "", "previous_text": "Jo Lind's tea is green-white.",
    "text": "Jo Lind has tea.", "keywords": ["tea"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"fact_id": 1}, PLAN),
        ({"fact_id": "F1"}, PLAN),
        ({"fact_id": "01"}, PLAN),
        ({"fact_id": "fact 1"}, PLAN),
        ({"turn": "2"}, PLAN),
        ({"turn": 2.0}, PLAN),
        ({"previous_turn": None}, PLAN),
        ({"previous_turn": ...}, PLAN),
        ({"change": "Partial deletion"}, CHANGE),
        ({"track": " PREFERENCE"}, CHANGE),
        ({"subject": None}, CHANGE),
        ({"subject": ...}, CHANGE),
        ({"previous_text": "Jo Lind\u2019s tea is green\u2011white.\u200b"}, CHANGE),
        ({"previous_text": "Jo\u00a0Lind's tea\u202fis green-white."}, CHANGE),
    ],
    ids=str,
)
def test_what_is_harmless_is_set_right(change: dict[str, Any], same: dict[str, Any]) -> None:
    changed = {key: value for key, value in (same | change).items() if value is not ...}
    if same is PLAN:
        read = read_answer(json.dumps({"plan": [changed], "turns": []}), Dialogue)
        assert read.answer.plan == (PlannedFact(**PLAN),)
    else:
        answer = json.dumps({"events": [EVENT | {"changes": [changed], "valence": "Positive"}]})
        read = read_answer(answer, Events)
        assert read.answer.events[0].changes == (StateDelta(**CHANGE),) and read.answer.events[0].valence == "positive"
    assert read.violations == ()


@pytest.mark.parametrize(
    "text",
    ["", "I cannot do that.", "<think>hm {}", "[]", "42", '"groups"', "{}", '{"plan": []}', "{" * 5_000, '[{"a": 1}]'],
)
def test_an_answer_without_an_object_is_told_which_is_wanted(text: str) -> None:
    assert wrong(text, Links) == (
        ("format.truncated", "format.json"),
        [("format.json", "the answer holds no JSON object with the fields groups that can be read")],
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"groups": ' * 20_000,
        '{"groups": [' + "[" * 100_000,
        '{"groups": ["' + "\\" * 100_000,
        "{'groups': [" + "{'events': [1, " * 10_000,
        '{"a": 1} ' * 20_000,
        "<|channel|>" * 20_000,
    ],
    ids=["objects", "lists", "backslashes", "quotes", "many objects", "tokens"],
)
def test_babble_is_refused_in_bounded_time(text: str) -> None:
    began = time.process_time()
    wrong(text, Links)
    assert time.process_time() - began < 10


@given(st.text(max_size=200) | st.text(alphabet='{}[]",:\\ groupsevnt012`\n', max_size=200))
@example('{"groups": [{"events": [0], "thread": "\\ud800"}]}')
@example('{"groups": [{"events": [1e400], "thread": "a"}]}')
@example('{"groups": {"events": []}}')
def test_whatever_comes_is_an_answer_or_a_format_error(text: str) -> None:
    try:
        read = read_answer(text, Links).answer
    except FormatError as error:
        assert error.verdict.violations
    else:
        assert Links.model_validate_json(read.model_dump_json()) == read
