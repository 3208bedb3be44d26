"""STITCH in benchmarks, with an oracle that knows the labels of a dialogue."""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import intent_model
import pytest
from episode_texts import WordEmbedder
from scripted_server import Reply, completion, serve
from system_cases import ANA, benchmark_config, dialogue, talk

from deltamem.errors import DeltaMemError
from eval.models import open_models
from eval.systems.base import ExpectantMemory, System
from eval.systems.kinds import make_system
from papers.stitch.labeller import GoldStep
from papers.stitch.records import Intent, IntentFilter
from papers.stitch.system import OracleIntents, labelled_by

CITY = "What is Ana's city?"
GOLD = {
    turn.id: GoldStep(Intent(session.id, "city" if "city" in turn.text else "other", ()), turn.text, turn.text)
    for session in dialogue()
    for turn in session.turns
}
INTENTS = {ANA.id: OracleIntents(GOLD, {CITY: IntentFilter(("s2",), ("city",))})}


async def opened(tmp_path: Path, *overrides: str, **extras: Any) -> System:
    config = benchmark_config(tmp_path, "system=stitch", *overrides)
    async with open_models(config) as models:
        return make_system(
            config, tmp_path, WordEmbedder(), models, {name: partial(dict, extra) for name, extra in extras.items()}
        )


async def test_turns_are_found_by_the_labels_of_the_question(tmp_path: Path) -> None:
    system = await opened(tmp_path, "labeller=oracle", intents=INTENTS)
    async with system.open(ANA) as memory:
        for session in dialogue():
            await memory.ingest(session)
            await memory.ingest(session)
        found = await memory.search(CITY, 3)
        assert found[0].sources == ("D2:2",) and found[0].text == "Ana: I moved. My city is Denver." and len(found) == 3
        assert found[0].time == dialogue()[1].time and set(memory.known) == {"s1", "s2", "s3"}
        await memory.reset()
        assert await memory.search(CITY, 3) == [] and not memory.known
    assert system.facts()["labeller"] == "oracle"


async def test_an_ablation_finds_less(tmp_path: Path) -> None:
    system = await opened(tmp_path, "labeller=oracle", "without=[scope]", intents=INTENTS)
    async with system.open(ANA) as memory:
        for session in dialogue():
            await memory.ingest(session)
        assert {passage.sources for passage in await memory.search(CITY, 2)} == {("D1:1",), ("D2:2",)}
    assert system.facts()["without"] == ["scope"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["labeller=oracle"], "labeller=oracle needs the intents .*, and this benchmark names none"),
        (["labeller=psychic"], "labeller"),
        (["without=[memory]"], "without"),
    ],
)
async def test_what_is_missing_or_wrong_is_one_sentence(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(DeltaMemError, match=message):
        await opened(tmp_path, *overrides)


async def test_a_store_without_intents_says_which_step_it_lacks(tmp_path: Path) -> None:
    system = await opened(tmp_path, "labeller=oracle", intents={})
    async with system.open(ANA) as memory:
        with pytest.raises(DeltaMemError, match="no labels of step 'D1:1'"):
            await memory.ingest(dialogue()[0])
        assert not memory.known


async def test_a_model_labels_once_and_says_what_it_cost(tmp_path: Path) -> None:
    def rules(body: dict[str, Any]) -> Reply:
        return completion(json.dumps(intent_model.answer(body)), prompt_tokens=100, tokens=20)

    with serve(rules) as server:
        config = benchmark_config(tmp_path, "system=stitch", f"base_url={server.url}", "manager.model=tiny", "cache=null")
        assert labelled_by(config) == "llm" and config.run_config()["labeller"] == "llm"
        async with open_models(config) as models:
            system = make_system(config, tmp_path, WordEmbedder(), models)
            async with system.open(ANA) as memory:
                calls = [(await memory.ingest(session)).usage for session in dialogue()]
                # Three for each turn, and the label spaces before the first
                assert [usage.calls for usage in calls] == [7, 9, 6] and calls[0].prompt_tokens == 700
                assert (await memory.ingest(dialogue()[0])).usage.calls == 0
                assert len(await memory.search(CITY, 9)) == 7
            assert "intent_scope" in system.facts()["prompt_hashes"] and system.facts()["labeller"] == "llm-tiny"
            asked = len(server.requests)
            async with system.open(ANA) as memory:
                assert len(memory.known) == 3 and [(await memory.ingest(one)).usage.calls for one in dialogue()] == [0, 0, 0]
            assert len(server.requests) == asked


async def test_label_spaces_are_begun_with_fifty_steps_over_sessions(tmp_path: Path) -> None:
    def rules(body: dict[str, Any]) -> Reply:
        return completion(json.dumps(intent_model.answer(body)))

    talks = [
        talk(number, datetime(2023, 5, number), *(("user", f"Fact {number}/{one}.") for one in range(7)))
        for number in range(1, 10)
    ]
    with serve(rules) as server:
        config = benchmark_config(tmp_path, "system=stitch", f"base_url={server.url}", "manager.model=tiny", "cache=null")
        async with (
            open_models(config) as models,
            make_system(config, tmp_path, WordEmbedder(), models).open(ANA) as memory,
        ):
            assert isinstance(memory, ExpectantMemory)
            memory.expect(talks)
            usage = [(await memory.ingest(one)).usage.calls for one in talks]
        prompts = {intent_model.prompt_name(body): body["messages"][0]["content"] for body in server.requests}
    shown = re.findall(r"Fact (\d/\d)", prompts["seeds"])
    assert shown == [f"{1 + n // 7}/{n % 7}" for n in range(50)], "seven sessions and one turn of the eighth"
    assert usage == [22, 21, 22, 21, 21, 22, 21, 22, 22], "three for each turn, seeds, notes of twenty steps, a merge"
