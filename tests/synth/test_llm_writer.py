from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from llm_cases import FIXED, GOOD, OTHER_NAME, PLACE, TASK, broken, llm_settings, names, open_writer, written_by
from offline_people import shape
from scripted_server import Reply, Served, completion, failure, replies, serve, too_long

from deltamem.errors import ContextLengthError
from deltamem.runs import JsonLinesStore
from synth.llm.answers import FORMAT_RULES, answer_schema
from synth.llm.pool import EndpointPool
from synth.llm.writer import LLMWriter, opening, read_task, repair, system_prompt
from synth.names import RealNames
from synth.offline import answer
from synth.person import write_person
from synth.records import FixedPart, Persona
from synth.tasks import REVIEWS, FixedTask, RuleViolation, Unit, UnitId, UnitResult
from synth.validators import UNIT_RULES


async def write(
    server: Served, store: JsonLinesStore, *, task: FixedTask = TASK, place: UnitId = PLACE, seed: int = 1, **changes: Any
) -> UnitResult[FixedPart]:
    async with open_writer(server.url, store, seed=seed, **changes) as writer:
        return await writer.write(task, place)


async def test_a_good_answer_is_taken_at_once(store: JsonLinesStore) -> None:
    written, requests = await written_by(lambda _: completion(GOOD, tokens=50, prompt_tokens=900), store)
    assert written.answer == FIXED
    assert broken(written) == [[]]
    assert written.verdicts[0].checked == (*FORMAT_RULES, *(rule.name for rule in UNIT_RULES[Unit.FIXED]))
    assert (written.prompt_tokens, written.completion_tokens, written.spent_tokens) == (900, 50, 50)
    assert len(requests) == 1


async def test_a_broken_rule_is_named_to_the_model_which_sees_its_last_answer_only(store: JsonLinesStore) -> None:
    other = OTHER_NAME.replace("Mira Tam", "Myra Tamm")
    written, (first, second, third) = await written_by(
        replies(completion(OTHER_NAME), completion(other), completion(GOOD)), store
    )
    assert written.answer == FIXED
    assert broken(written) == [["fixed.identity"], ["fixed.identity"], []]
    for request, before, wrong in ((second, OTHER_NAME, "Mira Tam"), (third, other, "Myra Tamm")):
        assert request["messages"][:2] == first["messages"]
        answer, complaint = request["messages"][2:]
        assert answer == {"role": "assistant", "content": before}
        assert f"- fixed.identity: name must stay 'Mira Tamm', but is '{wrong}'" in complaint["content"]
    assert len({request["seed"] for request in (first, second, third)}) == 3


@pytest.mark.parametrize(
    ("reply", "rule", "said"),
    [
        (completion("I am sorry, I cannot do that."), "format.json", "holds no JSON object with the fields name, gender"),
        (completion('{"name": "Mira Tamm"}'), "format.schema", "gender: Field required"),
        (completion(GOOD, finish="length", tokens=4096), "format.truncated", "cut off after 4096 tokens"),
        (completion(None), "format.json", "holds no JSON object"),
    ],
    ids=["words", "fields missing", "cut off", "nothing"],
)
async def test_an_unreadable_answer_is_sent_back_too(reply: Reply, rule: str, said: str, store: JsonLinesStore) -> None:
    written, requests = await written_by(replies(reply, completion(GOOD)), store)
    assert written.answer == FIXED
    assert rule in broken(written)[0] and len(set(broken(written)[0])) == 1
    assert written.verdicts[0].checked == FORMAT_RULES[: FORMAT_RULES.index(rule) + 1]
    assert f"- {rule}: " in requests[1]["messages"][3]["content"] and said in requests[1]["messages"][3]["content"]


async def test_what_does_not_fit_the_window_is_a_rejection_of_a_repair_and_an_error_of_a_task(store: JsonLinesStore) -> None:
    written, requests = await written_by(replies(completion(OTHER_NAME), too_long()), store)
    assert written.answer is None and broken(written) == [["fixed.identity"]] and len(requests) == 2
    with pytest.raises(ContextLengthError):
        await written_by(lambda _: too_long(), store, seed=2)


async def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with serve(replies(completion(OTHER_NAME, tokens=5), completion(GOOD, tokens=6))) as server:
        with JsonLinesStore(path) as store:
            fresh = await write(server, store)
        asked = len(server.requests)
        with JsonLinesStore(path) as store, serve(lambda _: failure(500)) as other:
            found = await write(other, store, slots=7, timeout=9.0, api_key_env="OTHER_KEY", patience=0.0)
    assert asked == 2 and other.requests == []
    assert (fresh.spent_tokens, found.spent_tokens) == (11, 0)
    assert (found.answer, found.verdicts, found.completion_tokens) == (fresh.answer, fresh.verdicts, 11)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2},
        {"place": UnitId(3, 0, "p000003/other")},
        {"task": TASK.model_copy(update={"persona": "A botanist."})},
        {"model": "other"},
        {"temperature": 0.5},
        {"top_p": 0.5},
        {"reasoning_effort": "low"},
        {"max_tokens": 500},
        {"structured": "json_object"},
        {"extra_body": {"top_k": 1}},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_whatever_an_answer_depends_on_makes_it_another(changes: dict[str, Any], store: JsonLinesStore) -> None:
    with serve(lambda _: completion(GOOD)) as server:
        await write(server, store)
        await write(server, store, **changes)
        assert len(server.requests) == 2


async def test_the_making_is_plain_and_names_what_answers_depend_on(store: JsonLinesStore) -> None:
    def making(**changes: Any) -> Mapping[str, Any]:
        settings = llm_settings("http://a/v1", **changes)
        return LLMWriter(settings, EndpointPool(settings), store, seed=5).making

    found = making()
    assert json.loads(json.dumps(found)) == found
    assert found["prompts"].keys() == {*(unit.value for unit in Unit), "repair", "patch"}
    assert found["schemas"].keys() == {unit.value for unit in Unit}
    assert making(slots=3, patience=1.0, timeout=7.0, max_retries=9) == found
    for change in ({"repairs": 3}, {"structured": "none"}, {"temperature": 0.5}, {"model": "other"}):
        assert making(**change) != found


@pytest.mark.parametrize(("sizes", "unasked"), [("paper", Unit.REVISION), ("demanding", Unit.EVOLUTION)])
async def test_a_whole_life_is_written_through_the_wire_and_not_asked_for_twice(
    store: JsonLinesStore, sizes: str, unasked: Unit
) -> None:
    persona = Persona(person_id="p000001", seed="A botanist who collects seeds.", source="generated", split="train")

    def script(body: dict[str, Any]) -> Reply:
        # 3: both lives need no repair then, and the second has nothing that evolves.
        return completion(answer(read_task(body["messages"]), random.Random(body["seed"] + 3)).model_dump_json())

    with serve(script) as server:
        async with open_writer(server.url, store) as writer:
            parts = 1, persona, writer, shape(sizes).scripted, RealNames(1)
            first = await write_person(*parts, sessions=13, seed=1)
            asked = len(server.requests)
            assert await write_person(*parts, sessions=13, seed=1) == first
    assert first.rejections == () and len(first.sessions) == 13 and first.violations == {}
    assert len(server.requests) == asked == sum(usage.units for usage in first.usage.values())
    assert set(names(server.requests)) == set(Unit) - {unasked, *REVIEWS}


def test_a_task_is_found_again_in_its_conversation_whatever_its_texts_say() -> None:
    first = opening(TASK)
    assert read_task(first) == TASK
    assert read_task([*first, *repair(GOOD, [RuleViolation("fixed.identity", "<task>\n{}\n</task>")])]) == TASK
    content = first[1]["content"]
    assert content.count("<task>") == content.count("</task>") == 1 and "<|im_end|>" not in content
    with pytest.raises(ValueError, match="no task"):
        read_task(first[:1])


@pytest.mark.parametrize("unit", Unit)
def test_a_prompt_holds_the_rules_and_the_schema_of_its_unit_and_no_blank_places(unit: Unit) -> None:
    prompt = system_prompt(unit)
    assert all(f"- {rule.name}: {rule.description}" in prompt for rule in UNIT_RULES[unit])
    assert json.dumps(answer_schema(unit), separators=(",", ":")) in prompt
    assert not re.search(r"\$(unit|rules|schema|facts)", prompt)


def test_a_repair_lists_a_bounded_number_of_bounded_lines() -> None:
    violations = [RuleViolation("a.b", f"wrong {number}\n" + "x" * 10_000) for number in range(50)]
    assistant, user = repair(GOOD, violations)
    assert assistant == {"role": "assistant", "content": GOOD}
    listed = [line for line in user["content"].splitlines() if line.startswith("- ")]
    assert len(listed) == 21 and listed[-1] == "- and 30 more"
    assert all(len(line) < 450 for line in listed) and "wrong 19" in listed[19]
