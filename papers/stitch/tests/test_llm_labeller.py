"""The labeller with a scripted model: what it asks, what it makes of bad answers, and what a kill costs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import intent_model
import pytest
from episode_texts import WordEmbedder
from intent_model import answer, label, prompt_name, trip
from scripted_server import Reply, Served, completion, failure, serve

from deltamem.errors import LLMError
from deltamem.journal.journal import Journal
from deltamem.llm import LLM
from papers.stitch.index import IntentIndex
from papers.stitch.labeller import Part
from papers.stitch.labels import Facet
from papers.stitch.llm_labeller import LLMLabeller
from papers.stitch.records import IntentFilter, Step
from papers.stitch.store import IntentLog


def rules(body: dict[str, Any]) -> Reply:
    return completion(json.dumps(answer(body)), prompt_tokens=100, tokens=20)


def names(server: Served) -> Counter[str]:
    return Counter(prompt_name(body) for body in server.requests)


def everything(index: IntentIndex) -> tuple[object, ...]:
    labels = [index.spaces.labels(facet) for facet in Facet]
    return labels, index.spaces.version, index.latest(999), [index.notes(scope) for scope in labels[0]]


async def test_a_step_costs_three_calls_and_now_and_then_one_more() -> None:
    with serve(rules) as server:
        labeller, index = await label(None, server.url, 60)
        # Ten parts of six steps: nine have ended. Labels are merged once, after fifty steps.
        assert names(server) == {"seeds": 1, "scope": 60, "event": 60, "note": 60, "segment": 9, "merge": 1}
        assert labeller.usage.calls == 191 and labeller.usage.prompt_tokens == 19_100
        assert [one.intent.scope for one in index.latest(60)] == [f"day {n // 6 % 3 + 1}" for n in range(60)]
        assert index.spaces.labels(Facet.EVENT) == (
            "open",
            "propose",
            "answer",
            "decide",
        )  # suggest is merged, what was made up is not; what the latest steps lacked is added
        assert index.spaces.current(Facet.EVENT, "Suggest") == "propose"
        assert index.spaces.labels(Facet.ENTITY) == ("price", "hotel", "deposit")
        resolved = {one.step.id: one.resolved for one in index.latest(60)}
        assert resolved["s8"] == "Inn3 costs 98." and resolved["s7"] == "What about Inn3?"
        assert index.notes("day 1") == ("A part with 6 steps.",) * 3
        found = await index.search("What does the hotel of day 2 cost?", 5)
        assert found.wanted == IntentFilter(("day 2",), ("answer",), ("price",))
        assert {hit.density for hit in found.hits[:3]} == {3}
    for prompt in ("note", "scope"):  # what a call shows does not grow with the record
        sizes = [len(body["messages"][0]["content"]) for body in server.requests if prompt_name(body) == prompt]
        assert max(sizes[45:]) < 1.2 * max(sizes[20:40])


async def test_a_scope_that_goes_on_is_summed_up_while_it_does() -> None:
    """Each step is in the window of the scope call or in a note that the call shows, also where nobody turns elsewhere."""
    steps = [Step(f"s{n}", "Ann", " " if n in (20, 47) else f"Fact {n}.", intent_model.BEGIN) for n in range(123)]
    with serve(rules) as server:
        llm = LLM(server.url, "tiny")
        index = IntentIndex(LLMLabeller(llm, WordEmbedder()), WordEmbedder())
        await index.add(steps)
        await llm.close()
        bodies = server.requests
    assert {one.intent.scope for one in index.latest(200)} == {"the trip"} and len(index.notes("the trip")) == 6
    shown = [body["messages"][0]["content"] for body in bodies if prompt_name(body) == "segment"]
    facts = [[int(number) for number in re.findall(r"Fact (\d+)", prompt)] for prompt in shown]
    assert [len(some) for some in facts] == [20] * 6, "every twenty steps with words"
    assert [one for some in facts for one in some] == [n for n in range(122) if n not in (20, 47)], "each step once"
    last = next(body for body in reversed(bodies) if prompt_name(body) == "scope")["messages"][0]["content"]
    assert last.count("A part with 20 steps.") == 6


@pytest.mark.parametrize("without", list(Part))
async def test_an_ablation_does_not_make_the_calls_it_leaves_out(without: Part) -> None:
    with serve(rules) as server:
        llm = LLM(server.url, "tiny")
        labeller = LLMLabeller(llm, WordEmbedder(), without=[without])
        index = IntentIndex(labeller, WordEmbedder(), without=[without])
        await index.add(trip(8))
        await llm.close()
    asked = names(server)
    assert (asked["scope"] == 0) == (without is Part.SCOPE) and (asked["event"] == 0) == (without is Part.EVENT)
    if without is Part.COREFERENCE:
        assert all(one.resolved == one.step.text for one in index.latest(8))
        assert all("Earlier steps that it may refer to:\nnone" in body["messages"][0]["content"]
                   for body in server.requests if prompt_name(body) == "note")  # fmt: skip


@pytest.mark.parametrize("bad", ['{"scope": "day 1"', '{"heading": "day 1"}', '{"scope": "  "}', '{"scope": ["day 1"]}', ""])
async def test_an_answer_that_cannot_be_read_is_asked_for_again_and_then_said_in_one_sentence(bad: str) -> None:
    broken = 2

    def script(body: dict[str, Any]) -> Reply:
        nonlocal broken
        if prompt_name(body) == "scope" and broken:
            broken -= 1
            return completion(bad)
        return rules(body)

    with serve(script) as server:
        _, index = await label(None, server.url, 2)
        assert len(index) == 2 and names(server)["scope"] == 4
        broken = 99
        index = IntentIndex(LLMLabeller(LLM(server.url, "tiny", max_retries=0), WordEmbedder()), WordEmbedder())
        with pytest.raises(LLMError, match=r"no answer to the prompt 'scope' could be read .*, in 3 attempts$"):
            await index.add(trip(3))
        assert len(index) == 0
        broken = 0
        assert await index.add(trip(3)) == 3


async def test_an_answer_between_words_is_read_and_long_or_odd_labels_are_tidied() -> None:
    def script(body: dict[str, Any]) -> Reply:
        if prompt_name(body) == "scope":
            return completion(f"Sure!\n```json\n{json.dumps({'scope': ' a  b ' + 'x' * 200})}\n```")
        if prompt_name(body) == "note":
            return completion(json.dumps({"resolved": " ", "summary": "", "entity_types": ["", " T ", "t"], "more": 1}))
        return rules(body)

    with serve(script) as server:
        _, index = await label(None, server.url, 2)
    (_, last) = index.latest(2)
    assert last.intent.scope == "a b " + "x" * 76 and last.intent.entity_types == ("T",)
    assert last.resolved == last.summary == last.step.text == "What about Inn0?"


async def test_a_step_without_words_asks_nobody_and_puts_off_no_upkeep_of_the_label_spaces() -> None:
    blank = [Step(f"blank{n}", "Ann", " \n", intent_model.BEGIN) for n in range(2)]
    steps = [blank[0], *trip(49), blank[1], *trip(50)[49:]]
    with serve(rules) as server:
        llm = LLM(server.url, "tiny")
        index = IntentIndex(LLMLabeller(llm, WordEmbedder()), WordEmbedder())
        await index.add(steps)
        await llm.close()
    asked = names(server)
    assert asked["note"] == 50 and asked["seeds"] == asked["merge"] == 1 and steps[50] is blank[1]
    before, without_words = index.latest(2)[0], index.latest(99)[50]
    assert index.latest(99)[0].intent.scope == "" and without_words.intent.scope == before.intent.scope == "day 3"


async def test_an_endpoint_that_fails_loses_no_step_and_no_answer(tmp_path: Path) -> None:
    down = False

    def script(body: dict[str, Any]) -> Reply:
        if down or (prompt_name(body) == "note" and "Inn1" in body["messages"][0]["content"].rpartition("The step:")[2]):
            return failure(400, "no room today")
        return rules(body)

    with serve(script) as server:
        with pytest.raises(LLMError, match="no room today"):
            await label(tmp_path / "j", server.url, 6)
        asked = names(server)
        assert asked == {"seeds": 1, "scope": 4, "event": 4, "note": 4}
        with Journal.open(tmp_path / "j") as journal:
            records = IntentLog(journal.owner("ann"), "steps").load()
        assert records is not None and len(records.snippets) == 3 and sorted(records.drafts) == ["s3/event", "s3/scope"]
    with serve(rules) as server:
        _, index = await label(tmp_path / "j", server.url, 6)
        assert len(index) == 6 and names(server) == {"scope": 2, "event": 2, "note": 3}


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [("note", 20), ("segment", 2), ("merge", 1), ("seeds", 1), ("scope", 30)])
async def test_a_kill_repeats_no_answered_call_and_changes_no_label(tmp_path: Path, killed_at: tuple[str, int]) -> None:
    """The process is killed while the model is thinking about one call; then it is run again."""
    count = 55
    with serve(rules) as server:
        _, whole = await label(None, server.url, count)
        needed = Counter(body["messages"][0]["content"] for body in server.requests)
    children: list[subprocess.Popen[bytes]] = []
    seen: Counter[str] = Counter()
    answered: Counter[str] = Counter()

    def script(body: dict[str, Any]) -> Reply:
        name = prompt_name(body)
        seen[name] += 1
        if len(children) == 1 and (name, seen[name]) == killed_at:
            children[0].send_signal(signal.SIGKILL)
            children[0].wait()
            return failure(400)
        answered[body["messages"][0]["content"]] += 1
        return rules(body)

    # The folder of the program and the cases that all tests share; `-P` keeps other folders from passing for packages.
    root = Path(intent_model.__file__).parents[3]
    paths = [root, root / "tests", Path(intent_model.__file__).parent]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    program = [sys.executable, "-P", intent_model.__file__, str(tmp_path / "journal")]
    with serve(script) as server:
        for _ in range(2):
            children.append(subprocess.Popen([*program, server.url, str(count)], stderr=subprocess.PIPE, env=environment))
            _, said = children[-1].communicate()
        assert [child.returncode for child in children] == [-signal.SIGKILL, 0], said
        journal = Journal.open(tmp_path / "journal")
        llm = LLM(server.url, "tiny")
        index = IntentIndex(LLMLabeller(llm, WordEmbedder()), WordEmbedder(), IntentLog(journal.owner("ann"), "steps"))
        assert everything(index) == everything(whole)
        # Scope and event of a step are asked for at once: the answer to one may have been on its way
        assert (answered - needed).total() <= (killed_at[0] == "scope") and needed - answered == Counter()
        journal.close()


@pytest.mark.parametrize("label", ["x" * 10_000, "a\nb\x00c", "\u200b", "DAY 1", '🙂 cafe\u0301 "}]{'])
async def test_hostile_labels_of_a_model_are_kept_or_left_out(label: str, tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> Reply:
        said = json.loads(json.dumps(answer(body)).replace("day 1", "@").replace("open", "@").replace("PRICE", "@"))
        return completion(json.dumps(said).replace("@", json.dumps(label)[1:-1]))

    with serve(script) as server:
        _, index = await intent_model.label(tmp_path / "j", server.url, 4)
        assert len(index) == 4 and all(len(one) <= 80 for facet in Facet for one in index.spaces.labels(facet))
        assert (await index.search("What does it cost?", 3)).hits
        with Journal.open(tmp_path / "j") as journal:
            again = IntentIndex(LLMLabeller(LLM(server.url, "tiny"), WordEmbedder()), WordEmbedder(),
                                IntentLog(journal.owner("ann"), "steps"))  # fmt: skip
            assert everything(again) == everything(index)
