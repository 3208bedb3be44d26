"""Repairs that send single parts: what a patch may say, how it is put in place, and how a conversation goes on with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from handmade import CASES, edit
from llm_cases import broken, names, written_by
from scripted_server import completion, replies

from deltamem.runs import JsonLinesStore
from synth.llm.answers import can_be_patched, patch_type, patched, record_schema
from synth.records import Dialogue
from synth.tasks import Filling, InitialFacts, Unit, UnitResult
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


def test_rules_about_the_number_of_parts_ask_for_the_whole() -> None:
    assert not can_be_patched(Unit.FIXED, frozenset({"fixed.identity"}))
    assert not can_be_patched(Unit.DIALOGUE, frozenset({"dialogue.turn_count", "dialogue.supported"}))
    assert can_be_patched(Unit.DIALOGUE, frozenset({"dialogue.supported"}))


TASK, GOOD = CASES["dialogue"]
SILENT = edit(GOOD, {"turns.2.user": "And so the days go by.", "turns.3.assistant": "Evening light, as f4 says."})
"""Leaves out a fact in turn 3, and lets the assistant name an id in turn 4."""


def turn(number: int, dialogue: Dialogue = GOOD) -> dict[str, Any]:
    return {"number": number, **dialogue.turns[number - 1].model_dump()}


def sent(*turns: Mapping[str, Any], plan: tuple[Mapping[str, Any], ...] = ()) -> str:
    return json.dumps({"plan": plan, "asides": [], "guest_turn": 0, "turns": turns})


async def write(store: JsonLinesStore, *answers: str, repairs: int = 2) -> tuple[UnitResult[Any], list[dict[str, Any]]]:
    script = replies(*(completion(text, tokens=50) for text in answers))
    return await written_by(script, store, TASK, repairs=repairs)


async def test_only_the_wrong_turns_are_asked_for_and_the_whole_is_judged(store: JsonLinesStore) -> None:
    first = {violation.rule for violation in judge_answer(TASK, SILENT).violations}
    assert {"dialogue.supported", "dialogue.plain_speech"} <= first
    written, requests = await write(store, SILENT.model_dump_json(), sent(turn(3)), sent(turn(4)))
    assert written.answer == GOOD
    assert [set(rules) for rules in broken(written)] == [first, {"dialogue.plain_speech"}, set()]
    for request, standing in zip(requests[1:], (SILENT, edit(GOOD, {"turns.3": SILENT.turns[3].model_dump()})), strict=True):
        assistant, user = request["messages"][2:]
        assert request["messages"][:2] == requests[0]["messages"]
        assert json.loads(assistant["content"]) == standing.model_dump(mode="json")
        assert "- dialogue.plain_speech: turn 4" in user["content"] and "`turns`: each part that changes" in user["content"]
        assert request["response_format"]["json_schema"]["name"] == "dialogue_patch"
        assert request["response_format"]["json_schema"]["schema"] == record_schema(patch_type(Unit.DIALOGUE))
    assert "- dialogue.supported: f3" not in requests[2]["messages"][3]["content"]


async def test_a_patch_that_helps_nothing_leads_to_the_whole(store: JsonLinesStore) -> None:
    written, requests = await write(store, SILENT.model_dump_json(), sent(turn(3, SILENT)), GOOD.model_dump_json())
    assert written.answer == GOOD
    assert names(requests) == ["dialogue", "dialogue_patch", "dialogue"]


async def test_the_better_of_two_broken_answers_is_mended(store: JsonLinesStore) -> None:
    worse = sent(
        turn(3), turn(4), {"number": 5, "user": "Hm.", "assistant": "Chess?"}, {"number": 6, "user": "", "assistant": ""}
    )
    written, requests = await write(store, SILENT.model_dump_json(), worse, "never", repairs=2)
    assert written.answer is None and written.partial == SILENT
    assert json.loads(requests[2]["messages"][2]["content"]) == SILENT.model_dump(mode="json")


async def test_an_unreadable_patch_loses_nothing(store: JsonLinesStore) -> None:
    written, requests = await write(
        store, SILENT.model_dump_json(), '{"plan": [], "turns": [{"number": 0}]}', GOOD.model_dump_json()
    )
    assert written.answer == GOOD
    assert set(broken(written)[1]) == {"format.schema"}
    standing, complaint = requests[2]["messages"][2:]
    assert json.loads(standing["content"]) == SILENT.model_dump(mode="json")
    assert "- format.schema: turns[0].number" in complaint["content"] and "- dialogue.plain_speech" in complaint["content"]
