"""Dialogues that are read again: what is said and not labelled, and what contradicts itself, is mended or rejected."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from handmade import CASES, NAME, edit
from llm_cases import broken, names, written_by
from scripted_server import Reply, completion

from deltamem.runs import JsonLinesStore
from synth.author import Account
from synth.llm.writer import contradictions_task, extraction_task, read_task
from synth.records import Dialogue, SessionFact
from synth.tasks import Contradictions, DialogueTask, Extraction, ExtractionTask, StatedFact, Task, Unit, UnitResult
from synth.validators.reviews import Reviewed, judge_reviewed

TASK, GOOD = CASES["dialogue"]
assert isinstance(TASK, DialogueTask) and isinstance(GOOD, Dialogue)
CHATTY = edit(GOOD, {"turns.4.user": GOOD.turns[4].user + " After that I bake rye bread for the whole street."})
"""States something that no fact of the session says."""
STATED = StatedFact(turn=5, text=f"{NAME} bakes rye bread for the whole street.")


def labels() -> list[StatedFact]:
    turns = {planned.fact_id: planned.turn for planned in GOOD.plan}
    return [StatedFact(turn=turns[fact.id], text=fact.text) for fact in TASK.facts]


def reader(task: Task[Any]) -> dict[str, Any]:
    """Finds the rye bread if it is there, besides what is labelled; no contradiction."""
    if not isinstance(task, ExtractionTask):
        return {"found": []}
    bread = [STATED] if "rye bread" in task.turns[4].user else []
    return {"facts": [fact.model_dump() for fact in (*labels(), *bread)]}


async def write(
    store: JsonLinesStore, dialogues: list[str], read: Callable[[Task[Any]], Any] = reader, **changes: Any
) -> tuple[UnitResult[Any], list[dict[str, Any]]]:
    left = list(dialogues)

    def script(body: dict[str, Any]) -> Reply:
        task = read_task(body["messages"])
        answer = left.pop(0) if task.unit is Unit.DIALOGUE else json.dumps(read(task))
        return completion(answer, tokens=40, prompt_tokens=100)

    return await written_by(script, store, TASK, **({"extraction": True} | changes))


PATCH = json.dumps({"plan": [], "asides": [], "turns": [{"number": 5, **GOOD.turns[4].model_dump()}]})


async def test_what_is_said_and_not_labelled_is_mended_in_its_turn(store: JsonLinesStore) -> None:
    written, requests = await write(store, [CHATTY.model_dump_json(), PATCH])
    assert written.answer == GOOD
    assert names(requests) == ["dialogue", "extraction", "dialogue_patch", "extraction"]
    assert broken(written) == [["dialogue.said_is_labelled"], []]
    complaint = requests[2]["messages"][3]["content"]
    assert f"- dialogue.said_is_labelled: turn 5: the user states '{STATED.text}'" in complaint
    assert all("dialogue.said_is_labelled" in verdict.checked for verdict in written.verdicts)
    # The reader is not told what is labelled.
    told = requests[1]["messages"][1]["content"]
    assert "keywords" not in told and TASK.facts[5].text not in told and "rye bread" in told


async def test_a_contradiction_is_mended(store: JsonLinesStore) -> None:
    def read(task: Task[Any]) -> dict[str, Any]:
        wrong = "rye bread" in task.turns[4].user
        return {"found": [{"turn": 5, "reason": "She bakes for the street and has no oven."}] if wrong else []}

    written, requests = await write(store, [CHATTY.model_dump_json(), PATCH], read, extraction=False, contradictions=True)
    assert written.answer == GOOD and broken(written) == [["dialogue.no_contradiction"], []]
    assert names(requests) == ["dialogue", "contradictions", "dialogue_patch", "contradictions"]
    assert "turn 5: a contradiction: She bakes for the street and has no oven." in requests[2]["messages"][3]["content"]


async def test_a_review_that_cannot_be_read_finds_nothing(store: JsonLinesStore) -> None:
    written, requests = await write(store, [CHATTY.model_dump_json()], lambda task: "no", repairs=1)
    assert written.answer == CHATTY and names(requests) == ["dialogue", "extraction", "extraction"]
    assert "dialogue.said_is_labelled" not in written.verdicts[0].checked
    account = Account()
    account.take(Unit.DIALOGUE, written)
    record = account.record()
    assert record["usage"]["extraction"].rejected == 1 and record["rejections"] == ()


def unlabelled(*stated: StatedFact, task: DialogueTask = TASK, similarity: Any = None) -> list[str]:
    verdict = judge_reviewed(task, Reviewed(GOOD, Extraction(facts=stated), None), similarity)
    assert verdict.checked == ("dialogue.said_is_labelled",)
    return [violation.message for violation in verdict.violations]


def test_what_is_remembered_may_be_said_and_what_is_news_may_not() -> None:
    assert len(unlabelled(STATED)) == 1
    assert unlabelled(STATED, task=TASK.model_copy(update={"known": (f"{NAME} bakes rye bread for her street.",)})) == []


def test_a_fact_may_sum_up_what_is_said() -> None:
    told = StatedFact(turn=6, text=f"{NAME} has bought two tins to have the hull blue for the regatta.")
    assert unlabelled(told) == []
    assert len(unlabelled(told, task=TASK.model_copy(update={"facts": TASK.facts[:5]}))) == 1


def test_reviews_are_told_what_changes_on_purpose_and_no_labels() -> None:
    fact: SessionFact = TASK.facts[3].model_copy(update={"outdated": ("dawn",), "misspoken": "noon"})
    task = TASK.model_copy(update={"facts": (*TASK.facts[:3], fact, *TASK.facts[4:]), "known": (f"{NAME} has a cat.",)})
    told = contradictions_task(task, GOOD)
    assert told.changed == (fact.previous_text, "noon", "dawn") and told.remembered == task.known
    assert extraction_task(task, GOOD).turns == GOOD.turns
    assert judge_reviewed(task, Reviewed(GOOD, None, Contradictions(found=()))).violations == ()
