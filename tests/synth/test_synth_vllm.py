"""The writer against a real vLLM server on the CPU. Its model is random: answers fit, and are nonsense."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from llm_cases import llm_settings
from offline_people import Recorder, shape
from pydantic import ValidationError
from vllm_server import serve, vllm_python, write_tiny_model

from deltamem.runs import JsonLinesStore
from synth.config import PersonaSettings, Range
from synth.llm.answers import FORMAT_RULES, SCHEMA, TRUNCATED, can_be_patched
from synth.llm.pool import EndpointPool
from synth.llm.writer import LLMWriter, contradictions_task, extraction_task
from synth.names import InventedNames
from synth.person import write_person
from synth.personas import draw_personas
from synth.records import Record
from synth.tasks import RuleVerdict, Task, Unit, UnitId, UnitResult
from synth.validators import UNIT_RULES

PYTHON = vllm_python()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="no vLLM: run `make vllm`, or name an interpreter in DELTAMEM_VLLM_PYTHON"),
]

WINDOW = 32_768
SESSIONS = 3
PLACES = 2
MOST_TOKENS = 1_200
NO_DAY = re.compile(r"0000-\d\d-\d\d|\d{4}-(02-(29|30|31)|(04|06|09|11)-31)")
# Of 25 events; so that three of them are one group, which no random numbers name.
ONE_GROUP = {"groups": Range(min=16, max=16), "events_per_group": Range(min=3, max=3)}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("vllm")
    write_tiny_model(folder / "model", window=WINDOW, vocabulary=4_000)
    assert PYTHON is not None
    with serve(PYTHON, folder / "model", folder / "server.log", window=WINDOW, cache=256) as base_url:
        yield base_url


def requests(url: str) -> int:
    """How many the server has answered."""
    metrics = httpx.get(url.removesuffix("/v1") + "/metrics").text
    return sum(int(float(count)) for count in re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", metrics, re.MULTILINE))


def format_problem(stored: dict[str, Any], answer: type[Record]) -> str | None:
    """What is wrong with an answer as it was received, without the tolerance of the parser."""
    if stored["truncated"]:
        assert stored["completion_tokens"] == MOST_TOKENS
        return TRUNCATED
    try:
        answer.model_validate_json(stored["text"])
    except ValidationError as error:
        # All that a schema lets through and a record does not.
        assert all(NO_DAY.fullmatch(str(problem["input"])) for problem in error.errors()), error
        return SCHEMA
    return None


def format_rule(verdict: RuleVerdict) -> str | None:
    return next((violation.rule for violation in verdict.violations if violation.rule in FORMAT_RULES), None)


async def tasks() -> dict[Unit, Task[Any]]:
    """One of each unit that the shape of the paper asks for, and the reviews."""
    recorder = Recorder(1)
    [persona] = draw_personas(PersonaSettings(), people=1, heldout_share=0.1, seed=1)
    sizes = shape("paper").model_copy(update=ONE_GROUP)
    await write_person(0, persona, recorder, sizes, InventedNames(1), sessions=SESSIONS, seed=1)
    found: dict[Unit, Task[Any]] = {}
    for task, answer, _ in recorder.asked:
        found.setdefault(task.unit, task)
        if task.unit is Unit.DIALOGUE and answer is not None:
            found[Unit.EXTRACTION] = extraction_task(task, answer)
            found[Unit.CONTRADICTIONS] = contradictions_task(task, answer)
    return found


async def asked(
    url: str, wanted: dict[Unit, Task[Any]], tmp_path: Path, *, repairs: int
) -> dict[Unit, tuple[list[UnitResult[Any]], list[dict[str, Any]]]]:
    """What the server answers to each task, at some places, and what was stored of it."""
    settings = llm_settings(url, max_tokens=MOST_TOKENS, repairs=repairs, slots=16, timeout=300)
    stores = {unit: JsonLinesStore(tmp_path / f"{unit}.jsonl") for unit in wanted}
    before = requests(url)
    pool = EndpointPool(settings)
    await pool.check()

    async def ask(unit: Unit) -> list[UnitResult[Any]]:
        writer = LLMWriter(settings, pool, stores[unit], seed=1)
        places = [UnitId(number, 0, f"p{number:06d}/{unit}/0") for number in range(PLACES)]
        return await asyncio.gather(*(writer.write(wanted[unit], place) for place in places))

    units = dict(zip(wanted, await asyncio.gather(*map(ask, wanted)), strict=True))
    assert pool.structured == {url: "json_schema"}, "a schema was refused"
    await pool.close()
    # None was answered twice. That one was sent twice may be: a busy server closes an idle connection just when it is used.
    assert requests(url) - before == sum(len(item.verdicts) for written in units.values() for item in written)
    found = {}
    for unit, store in stores.items():
        found[unit] = units[unit], list(map(store.get, store.keys()))
        store.close()
    return found


async def test_vllm_takes_the_schemas_of_answers_and_the_rules_reject_what_it_writes(url, tmp_path, record_property):
    wanted = await tasks()
    found = Counter()
    for unit, (written, stored) in (await asked(url, wanted, tmp_path, repairs=0)).items():
        verdicts = [verdict for item in written for verdict in item.verdicts]
        assert len(stored) == len(verdicts) == PLACES
        problems = Counter(format_problem(answer, wanted[unit].answer) for answer in stored)
        assert problems == Counter(map(format_rule, verdicts))
        found.update(problems)
        known = {rule.name for rule in UNIT_RULES[unit]} | set(FORMAT_RULES)
        assert all(rule in known and message for verdict in verdicts for rule, message in verdict.violations)
        if unit not in (Unit.EXTRACTION, Unit.CONTRADICTIONS):  # an empty list is a good answer there
            assert all(item.answer is None for item in written)
        prompts = sum(answer["prompt_tokens"] for answer in stored)
        assert prompts == sum(item.prompt_tokens for item in written) > 1_000 * len(stored)
        assert all(item.spent_tokens == item.completion_tokens > 0 for item in written)
    record_property("answers", json.dumps({rule or "rules": count for rule, count in found.items()}))
    assert found[None] > found.total() / 2


async def test_vllm_takes_the_schemas_of_patches(url, tmp_path):
    wanted = {unit: task for unit, task in (await tasks()).items() if can_be_patched(unit, frozenset())}
    for written, stored in (await asked(url, wanted, tmp_path, repairs=1)).values():
        assert len(stored) == sum(len(item.verdicts) for item in written) == 2 * PLACES
