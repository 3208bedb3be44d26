from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from llm_cases import FIXED, GOOD, OTHER_NAME, PLACE, TASK, llm_settings, open_writer, written_by
from offline_people import shape
from scripted_server import Reply, Served, completion, failure, replies, serve, too_long

from deltamem.errors import ContextLengthError
from deltamem.runs import JsonLinesStore
from synth.llm import writer as llm_prompts
from synth.llm.answers import FORMAT_RULES, answer_schema
from synth.llm.pool import EndpointPool
from synth.llm.writer import LLMWriter, opening, prompt_hashes, read_task, repair, system_prompt
from synth.names import RealNames
from synth.offline import answer
from synth.person import write_person
from synth.records import FixedPart, Person, Persona
from synth.tasks import REVIEWS, TASKS, FixedTask, Unit, UnitId, UnitResult, Violation
from synth.validators import UNIT_RULES
from synth.validators.base import Case, RuleSet


async def write(
    server: Served, store: JsonLinesStore, *, task: FixedTask = TASK, place: UnitId = PLACE, seed: int = 1, **changes: Any
) -> UnitResult[FixedPart]:
    async with open_writer(server.url, store, seed=seed, **changes) as writer:
        return await writer.write(task, place)


def broken(written: UnitResult[FixedPart]) -> list[list[str]]:
    return [[violation.rule for violation in verdict.violations] for verdict in written.verdicts]


async def test_a_good_answer_is_taken_at_once(store: JsonLinesStore) -> None:
    written, requests = await written_by(lambda _: completion(GOOD, tokens=50, prompt_tokens=900), store)
    assert written.answer == FIXED
    assert broken(written) == [[]]
    assert written.verdicts[0].checked == (*FORMAT_RULES, *(rule.name for rule in UNIT_RULES[Unit.FIXED]))
    assert (written.prompt_tokens, written.completion_tokens, written.spent_tokens) == (900, 50, 50)
    assert len(requests) == 1


async def test_a_request_says_what_is_configured_and_nothing_else(store: JsonLinesStore) -> None:
    sampling = {"temperature": 0.7, "top_p": 0.9, "reasoning_effort": "medium"}
    _, (request,) = await written_by(lambda _: completion(GOOD), store, extra_body={"top_k": 9}, **sampling)
    assert sampling.items() <= request.items() and request["top_k"] == 9
    assert request["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "fixed", "schema": answer_schema(Unit.FIXED), "strict": True},
    }
    assert "max_tokens" not in request
    assert 0 <= request["seed"] < 2**31
    silent = {"reasoning_effort": None, "structured": "none", "max_tokens": 700}
    _, (request,) = await written_by(lambda _: completion(GOOD), store, **silent)
    assert request["max_tokens"] == 700 and not {"reasoning_effort", "response_format"} & request.keys()


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{GOOD}\n```",
        f"<think>Let me see {{}}</think>{GOOD}",
        GOOD[:-1] + ',"analysis":"fits"}',
        GOOD.replace('","', '",\n"')[:-1] + ",}",
    ],
    ids=["fence", "thinking", "field too many", "comma too many"],
)
async def test_an_untidy_answer_is_as_good(text: str, store: JsonLinesStore) -> None:
    written, requests = await written_by(lambda _: completion(text), store)
    assert written.answer == FIXED and broken(written) == [[]] and len(requests) == 1


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


async def test_an_answer_that_stays_wrong_is_rejected(store: JsonLinesStore) -> None:
    written, requests = await written_by(lambda _: completion(OTHER_NAME, tokens=5), store, repairs=2)
    assert written.answer is None
    assert broken(written) == [["fixed.identity"]] * 3
    assert (written.completion_tokens, written.spent_tokens) == (15, 15)
    assert len({request["seed"] for request in requests}) == 3


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


async def test_of_a_cut_off_answer_only_the_beginning_is_sent_back(store: JsonLinesStore) -> None:
    _, requests = await written_by(replies(completion("la " * 50_000, finish="length"), completion(GOOD)), store)
    assert requests[1]["messages"][2]["content"] == ("la " * 50_000)[:2_000]


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


async def test_a_rejection_is_not_asked_for_again_either(store: JsonLinesStore) -> None:
    with serve(lambda _: completion("no")) as server:
        first, second = await write(server, store), await write(server, store)
    assert len(server.requests) == 3 and first.verdicts == second.verdicts and second.spent_tokens == 0


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


async def test_a_changed_prompt_asks_again(store: JsonLinesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = llm_prompts.system_prompt
    with serve(replies(completion(OTHER_NAME), completion(GOOD))) as server:
        await write(server, store)
        monkeypatch.setattr(llm_prompts, "system_prompt", lambda unit: real(unit) + "\nBe brief.")
        await write(server, store)
        assert len(server.requests) == 3
        assert server.requests[2]["messages"][0]["content"].endswith("\nBe brief.")


async def test_thinking_is_counted_but_not_kept(store: JsonLinesStore) -> None:
    script = replies(completion(f"<think>secret</think>{GOOD}", tokens=80, reasoning_content="a secret of its own"))
    written, _ = await written_by(script, store)
    assert written.completion_tokens == 80 and 0 < written.reasoning_tokens < 20
    assert "secret" not in store.path.read_text()


async def test_thinking_is_recorded_as_the_server_counts_it(store: JsonLinesStore) -> None:
    with serve(replies(completion(OTHER_NAME, tokens=80, reasoning_tokens=30), completion(GOOD, tokens=70))) as server:
        fresh, found = await write(server, store), await write(server, store)
    assert (
        (fresh.completion_tokens, fresh.reasoning_tokens) == (150, 30) == (found.completion_tokens, found.reasoning_tokens)
    )


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


class Dissimilar:
    def between(self, texts: list[str], others: list[str]) -> list[list[float]]:
        return [[0.0] * len(others) for _ in texts]


async def test_rules_are_given_the_similarity_and_do_not_hold_up_the_event_loop(
    store: JsonLinesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    @RuleSet(Unit.FIXED).rule("Traits resemble the seed.", needs_similarity=True)
    def traits_similar(case: Case[FixedTask, FixedPart]) -> Iterator[str]:
        threads.add(threading.current_thread())
        assert case.similarity is not None
        if case.similarity.between([case.task.persona], list(case.answer.traits)) == [[0.0, 0.0]]:
            yield "the traits do not resemble the seed"

    monkeypatch.setitem(UNIT_RULES, Unit.FIXED, (traits_similar,))
    written, _ = await written_by(lambda _: completion(GOOD), store, repairs=0, similarity=Dissimilar())
    assert broken(written) == [["fixed.traits_similar"]]
    assert threads and threading.main_thread() not in threads


async def test_a_whole_life_is_written_through_the_wire_and_not_asked_for_twice(store: JsonLinesStore) -> None:
    persona = Persona(person_id="p000001", seed="A botanist who collects seeds.", source="generated", split="train")

    def script(body: dict[str, Any]) -> Reply:
        return completion(answer(read_task(body["messages"]), random.Random(body["seed"])).model_dump_json())

    with serve(script) as server:
        async with open_writer(server.url, store) as writer:

            async def person() -> Person:
                return await write_person(1, persona, writer, shape("paper"), RealNames(1), sessions=25, seed=1)

            first = await person()
            asked = len(server.requests)
            assert await person() == first
    assert first.rejections == () and len(first.sessions) == 25 and first.violations == {}
    assert len(server.requests) == asked == sum(usage.units for usage in first.usage.values())
    assert {request["response_format"]["json_schema"]["name"] for request in server.requests} == set(Unit) - {
        Unit.REVISION,
        *REVIEWS,
    }


# --- prompts ---------------------------------------------------------------------------------------------------------------


def test_a_task_is_found_again_in_its_conversation_whatever_its_texts_say() -> None:
    first = opening(TASK)
    assert read_task(first) == TASK
    assert read_task([*first, *repair(GOOD, [Violation("fixed.identity", "<task>\n{}\n</task>")])]) == TASK
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


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.unit)
def test_a_prompt_explains_every_field_of_its_task(task: type[Any]) -> None:
    prompt = system_prompt(task.unit)
    assert [name for name in task.model_fields if f"`{name}`" not in prompt and f"`{name}." not in prompt] == []


def test_every_unit_has_a_prompt_and_a_hash_of_its_own() -> None:
    assert len(set(prompt_hashes().values())) == len(Unit) + 2


def test_a_repair_lists_a_bounded_number_of_bounded_lines() -> None:
    violations = [Violation("a.b", f"wrong {number}\n" + "x" * 10_000) for number in range(50)]
    assistant, user = repair(GOOD, violations)
    assert assistant == {"role": "assistant", "content": GOOD}
    listed = [line for line in user["content"].splitlines() if line.startswith("- ")]
    assert len(listed) == 21 and listed[-1] == "- and 30 more"
    assert all(len(line) < 450 for line in listed) and "wrong 19" in listed[19]
