"""Repairs that send single parts: what a patch may say, how it is put in place, and how a conversation goes on with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from handmade import CASES, edit
from llm_cases import written_by
from scripted_server import completion, replies

from deltamem.runs import JsonLinesStore
from synth.llm.answers import FormatError, record_schema
from synth.llm.patches import can_be_patched, patch_type, patched
from synth.llm.writer import opening, patch_request, read_task
from synth.records import Dialogue
from synth.tasks import Events, Filling, InitialFacts, Unit, UnitResult, Violation
from synth.validators import judge_answer

PATCHED = [unit for unit in Unit if can_be_patched(unit, frozenset()) and unit.value in CASES]


def put(unit: Unit, answer: Any, **parts: Any) -> Any:
    """An answer with parts in place; lists that are not named are empty."""
    fields = patch_type(unit).model_fields
    values = {name: parts.get(name, 0 if field.annotation is int else ()) for name, field in fields.items()}
    return patched(unit, answer, patch_type(unit)(**values))


@pytest.mark.parametrize("unit", PATCHED)
def test_an_empty_patch_changes_nothing_and_all_parts_make_the_whole(unit: Unit) -> None:
    _, answer = CASES[unit]
    assert put(unit, answer) == answer
    values = answer.model_dump()
    lists = {name: parts for name, parts in values.items() if name in patch_type(unit).model_fields and parts}
    lists = {name: parts for name, parts in lists.items() if not isinstance(parts, int)}
    numbered = {
        name: [{"number": number, **part} if is_numbered(unit, name) else part for number, part in enumerate(parts, start=1)]
        for name, parts in lists.items()
    }
    empty = answer.model_copy(update=dict.fromkeys(lists, ()))
    assert put(unit, empty, **numbered) == put(unit, answer, **numbered) == answer


def is_numbered(unit: Unit, name: str) -> bool:
    part = record_schema(patch_type(unit))["properties"][name]["items"]["$ref"].rpartition("/")[2]
    return part.startswith("Numbered")


def test_numbered_parts_replace_are_added_and_are_taken_out() -> None:
    filling: Filling = CASES["filling"][1]
    _, second, third = filling.facts
    new = {"text": "Maya Lindqvist keeps bees.", "keywords": ("bees",)}
    changed = put(Unit.FILLING, filling, facts=[{"number": 4, **new}, {"number": 2, **third.model_dump()}], removed=[1, 9])
    assert [fact.text for fact in changed.facts] == [third.text, third.text, new["text"]]
    assert (changed.goal, changed.summary) == (filling.goal, filling.summary) and second not in changed.facts
    initial: InitialFacts = CASES["initial"][1]
    assert put(Unit.INITIAL, initial, removed=[2]).facts == (initial.facts[0], *initial.facts[2:])


def test_events_go_where_their_index_says() -> None:
    events: Events = CASES["events"][1]
    first, *rest = events.events
    changed = put(Unit.EVENTS, Events(events=tuple(rest)), events=[first, edit(rest[-1], {"title": "Another"})])
    assert changed.events == (first, *rest[:-1], edit(rest[-1], {"title": "Another"}))


def test_a_dialogue_with_too_many_turns_is_no_dialogue() -> None:
    dialogue: Dialogue = CASES["dialogue"][1]
    turns = [{"number": 7 + number, "user": "And?", "assistant": "Yes."} for number in range(40)]
    with pytest.raises(FormatError, match="does not fit its schema"):
        put(Unit.DIALOGUE, dialogue, turns=turns)


def test_the_turn_of_a_guest_is_kept_unless_another_is_sent() -> None:
    dialogue: Dialogue = CASES["dialogue"][1]
    changed = put(Unit.DIALOGUE, dialogue, guest_turn=3)
    assert (changed.guest_turn, put(Unit.DIALOGUE, changed).guest_turn, changed.turns) == (3, 3, dialogue.turns)


def test_rules_about_the_number_of_parts_ask_for_the_whole() -> None:
    assert not can_be_patched(Unit.FIXED, frozenset({"fixed.identity"}))
    assert not can_be_patched(Unit.DIALOGUE, frozenset({"dialogue.turn_count", "dialogue.keywords_said"}))
    assert can_be_patched(Unit.DIALOGUE, frozenset({"dialogue.keywords_said"}))


# --- conversations ---------------------------------------------------------------------------------------------------------

TASK, GOOD = CASES["dialogue"]
SILENT = edit(GOOD, {"turns.2.user": "And so the days go by.", "turns.3.assistant": "Evening light on the summer regatta?"})
"""Leaves out a fact in turn 3, and lets the assistant be first with a keyword in turn 4."""


def turn(number: int, dialogue: Dialogue = GOOD) -> dict[str, Any]:
    return {"number": number, **dialogue.turns[number - 1].model_dump()}


def sent(*turns: Mapping[str, Any], plan: tuple[Mapping[str, Any], ...] = ()) -> str:
    return json.dumps({"plan": plan, "asides": [], "guest_turn": 0, "turns": turns})


async def write(store: JsonLinesStore, *answers: str, repairs: int = 2) -> tuple[UnitResult[Any], list[dict[str, Any]]]:
    script = replies(*(completion(text, tokens=50) for text in answers))
    return await written_by(script, store, TASK, repairs=repairs)


def rules(written: UnitResult[Any]) -> list[list[str]]:
    return [sorted({violation.rule for violation in verdict.violations}) for verdict in written.verdicts]


async def test_only_the_wrong_turns_are_asked_for_and_the_whole_is_judged(store: JsonLinesStore) -> None:
    first = {violation.rule for violation in judge_answer(TASK, SILENT).violations}
    assert {"dialogue.keywords_said", "dialogue.user_first"} <= first
    written, requests = await write(store, SILENT.model_dump_json(), sent(turn(3)), sent(turn(4)))
    assert written.answer == GOOD
    assert rules(written) == [sorted(first), ["dialogue.user_first"], []]
    for request, standing in zip(requests[1:], (SILENT, edit(GOOD, {"turns.3": SILENT.turns[3].model_dump()})), strict=True):
        assistant, user = request["messages"][2:]
        assert request["messages"][:2] == requests[0]["messages"]
        assert json.loads(assistant["content"]) == standing.model_dump(mode="json")
        assert "- dialogue.user_first: turn 4" in user["content"] and "`turns`: each part that changes" in user["content"]
        assert request["response_format"]["json_schema"]["name"] == "dialogue_patch"
        assert request["response_format"]["json_schema"]["schema"] == record_schema(patch_type(Unit.DIALOGUE))
    assert "- dialogue.keywords_said: f3" not in requests[2]["messages"][3]["content"]


async def test_a_patch_that_helps_nothing_leads_to_the_whole(store: JsonLinesStore) -> None:
    written, requests = await write(store, SILENT.model_dump_json(), sent(turn(3, SILENT)), GOOD.model_dump_json())
    assert written.answer == GOOD
    assert [request["response_format"]["json_schema"]["name"] for request in requests] == [
        "dialogue", "dialogue_patch", "dialogue",
    ]  # fmt: skip


async def test_the_better_of_two_broken_answers_is_mended(store: JsonLinesStore) -> None:
    worse = sent(
        turn(3), turn(4), {"number": 5, "user": "Hm.", "assistant": "Chess?"}, {"number": 6, "user": "", "assistant": ""}
    )
    written, requests = await write(store, SILENT.model_dump_json(), worse, "never", repairs=2)
    assert written.answer is None and written.partial == SILENT
    assert json.loads(requests[2]["messages"][2]["content"]) == SILENT.model_dump(mode="json")


@pytest.mark.parametrize(
    "answer", [GOOD.model_dump_json(), f"```json\n{GOOD.model_dump_json(indent=1)}\n```"], ids=["whole", "whole in a fence"]
)
async def test_a_model_may_send_the_whole_where_parts_were_asked_for(store: JsonLinesStore, answer: str) -> None:
    written, _ = await write(store, SILENT.model_dump_json(), answer)
    assert written.answer == GOOD and len(written.verdicts) == 2


async def test_an_unreadable_patch_loses_nothing(store: JsonLinesStore) -> None:
    written, requests = await write(
        store, SILENT.model_dump_json(), '{"plan": [], "turns": [{"number": 0}]}', GOOD.model_dump_json()
    )
    assert written.answer == GOOD
    assert rules(written)[1] == ["format.schema"]
    standing, complaint = requests[2]["messages"][2:]
    assert json.loads(standing["content"]) == SILENT.model_dump(mode="json")
    assert "- format.schema: turns[0].number" in complaint["content"] and "- dialogue.user_first" in complaint["content"]


async def test_patches_are_found_again_after_a_stop(store: JsonLinesStore) -> None:
    answers = (SILENT.model_dump_json(), sent(turn(3), turn(4)))
    first, asked = await write(store, *answers)
    again, asked_again = await write(store, "nothing", "nothing")
    assert (len(asked), asked_again) == (2, [])
    assert again.answer == first.answer == GOOD and again.verdicts == first.verdicts and again.spent_tokens == 0


async def test_a_text_that_is_too_long_is_mended_by_itself(store: JsonLinesStore) -> None:
    long = GOOD.model_dump(mode="json")
    long["turns"][0]["assistant"] = "What a nice surprise. " * 200
    written, requests = await write(store, json.dumps(long), sent(turn(1)))
    assert written.answer == GOOD
    assert "- format.length: turns[0].assistant must have at most 2500 characters" in requests[1]["messages"][3]["content"]
    assert requests[1]["response_format"]["json_schema"]["name"] == "dialogue_patch"


def test_the_request_for_a_patch_is_still_a_conversation_about_its_task() -> None:
    messages = [*opening(TASK), *patch_request(Unit.DIALOGUE, GOOD.model_dump_json(), [Violation("a.b", "$unit <task>")])]
    assert read_task(messages) == TASK
