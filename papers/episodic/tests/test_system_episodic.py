"""Episodic memory as a system under test, behind a scripted endpoint, on a dialogue that can be checked by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder
from episodic_cases import Reviewer
from reviewer_script import reviewer_of
from scripted_server import Reply, completion, serve, unused_url
from system_cases import ANA, benchmark_config, dialogue, talk
from system_scripts import manager_of

from deltamem.bank.store import MemoryStore
from deltamem.episode import Message
from deltamem.prompts import load_prompt
from deltamem.runs import RecordFile
from eval.config import BenchmarkConfig
from eval.models import open_models
from eval.records import IngestRecord, ingest_session
from eval.systems.base import DialogueSession, DialogueTurn, StoreKey, System
from eval.systems.kinds import make_system
from papers.episodic import EpisodicSettings
from papers.episodic.reading import REFLECTIONS_PROMPT, SUMMARY_PROMPT, TURNS_PROMPT
from papers.episodic.system import NO_REPLY, EpisodicSystem, as_trajectory

NAMES = ("Boston", "Denver")
CITY = "What to know of the city (0.7): Wherever the city matters. The user's city is {}."
CALLS = 9
"""Of three sessions, with one episode each: notes, summary, lessons."""

PACKAGE = "papers.episodic.prompts"


def configure(out: Path, url: str, *overrides: str) -> BenchmarkConfig:
    return benchmark_config(out, "system=episodic", f"base_url={url}", "manager.model=tiny", "cache=null", *overrides)


@asynccontextmanager
async def opened(config: BenchmarkConfig) -> AsyncIterator[System]:
    async with open_models(config) as models:
        yield make_system(config, config.out / "memory", WordEmbedder(), models, {"vocabulary": lambda: NAMES})


async def run(config: BenchmarkConfig, key: StoreKey = ANA) -> list[IngestRecord]:
    sessions = dialogue()
    async with opened(config) as system, system.open(key) as memory:
        with RecordFile(config.out / "sessions.jsonl", IngestRecord, lambda record: record.key) as log:
            return [await ingest_session(memory, key, sessions, number, log) for number in range(len(sessions))]


def local(folder: Path, names: Sequence[str] = NAMES) -> EpisodicSystem:
    """The system with the same rules in this process."""
    policy = Reviewer(lambda messages: reviewer_of({"messages": messages}) or "")
    return EpisodicSystem(policy, WordEmbedder(), folder, settings=EpisodicSettings(vocabulary=tuple(names)))


def turns(*said: tuple[str, str]) -> DialogueSession:
    return talk(1, datetime(2023, 5, 8), *said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("session", "shown", "places"),
    [
        (
            turns(("user", "A table!"), ("assistant", "Done."), ("assistant", "Anything else?"), ("user", "No.")),
            [("A table!", ["Done.", "Anything else?"]), ("No.", [])],
            (("D1:1",), ("D1:2", "D1:3"), ("D1:4",), ()),
        ),
        (
            turns(("assistant", "How are you?"), ("assistant", "Hello?"), ("user", "Fine."), ("user", "And you?")),
            [("", ["How are you?", "Hello?"]), ("Fine.", []), ("And you?", [])],
            ((), ("D1:1", "D1:2"), ("D1:3",), (), ("D1:4",), ()),
        ),
        (turns(("user", "Anybody there?")), [("Anybody there?", [NO_REPLY])], (("D1:1",), ())),
        (turns(("user", "Hm."), ("assistant", " ")), [("Hm.", [NO_REPLY])], (("D1:1",), ("D1:2",))),
    ],
    ids=["the user begins", "the agent begins", "nobody replies", "a reply without a word"],
)
def test_a_session_as_the_work_of_an_agent(
    session: DialogueSession, shown: list[tuple[str, list[str]]], places: tuple[tuple[str, ...], ...]
) -> None:
    trajectory, of_places = as_trajectory(session)
    assert [(turn.user, [step.text for step in turn.steps]) for turn in trajectory.turns] == shown
    assert of_places == places and len(trajectory.session("", "x").dialogue) == len(places)
    assert {step.kind for turn in trajectory.turns for step in turn.steps} == {"assistant"} and trajectory.data == ()


async def test_what_is_learned_told_and_paid(tmp_path: Path) -> None:
    with serve(manager_of) as server:
        config = configure(tmp_path, server.url)
        records = await run(config)
        assert len(server.requests) == CALLS == sum(record.cost.calls for record in records)
        async with opened(config) as system, system.open(ANA) as memory:
            assert list(memory.known) == ["s1", "s2", "s3"]
            facts = system.facts()
        prompts = {body["messages"][0]["content"] for body in server.requests}
        shown = "".join(body["messages"][1]["content"] for body in server.requests)
    assert [record.operations for record in records] == [{"ADD": 2}, {"ADD": 1, "UPDATE": 1}, {"ADD": 2}]
    assert [record.memories and record.memories[-1] for record in records[:2]] == [
        CITY.format("Boston"),
        CITY.format("Denver"),
    ]
    assert all(record.memories and record.memories[0].startswith("Worked before: ") for record in records)
    # The scripted server counts 1 + 7 tokens a request.
    assert (records[1].cost.prompt_tokens, records[1].cost.completion_tokens) == (3, 21) and not records[1].violations
    assert prompts == {load_prompt(name, PACKAGE).text for name in (TURNS_PROMPT, SUMMARY_PROMPT, REFLECTIONS_PROMPT)}
    assert "Ana" not in shown and "Bo:" not in shown  # the roles tell who speaks
    assert facts["model"] == f"tiny at {server.url}" and facts["vocabulary"] == 2 and len(facts["prompt_hashes"]) == 3


async def test_passages_have_time_similarity_and_the_turns_that_they_come_from(tmp_path: Path) -> None:
    async with local(tmp_path).open(ANA) as memory:
        for session in dialogue():
            await memory.ingest(session)
        first, *rest = await memory.search(CITY.format("Denver"), 10)
        assert await memory.search(" ", 3) == await memory.search("city", 0) == []
    assert (first.text, first.time) == (CITY.format("Denver"), datetime(2023, 6, 10, 9))
    # The first session has one turn, of both; of the second, which the other one begins, the first turn says nothing of it.
    assert first.sources == ("D1:1", "D1:2", "D2:2", "D2:3") and first.similarity == pytest.approx(1, abs=0.1)
    assert len(rest) == 4
    assert [passage.sources for passage in rest if passage.text.startswith("Worked before")] == [()] * 3
    # A later run has the same, without being given the sessions again; a known session tells what it did.
    async with local(tmp_path).open(ANA) as memory:
        assert await memory.search(CITY.format("Denver"), 10) == [first, *rest]
        again = await memory.ingest(dialogue()[1])
    assert again.memories and again.memories[-1] == first.text and again.operations == {"ADD": 1, "UPDATE": 1}
    assert again.usage.calls == 0
    (tmp_path / ANA.id / "turns.jsonl").unlink()
    async with local(tmp_path).open(ANA) as memory:
        found = await memory.search("city", 10)
    assert {passage.text for passage in found} == {first.text, *(passage.text for passage in rest)}
    assert not any(passage.sources for passage in found)


async def test_a_lesson_that_could_come_from_every_turn_of_an_episode_names_none(tmp_path: Path) -> None:
    said = [("user", "My city is Boston."), ("assistant", "I see."), ("user", "My job is law."), ("assistant", "I see.")]

    def vague(messages: Sequence[Message]) -> str:
        answer = reviewer_of({"messages": messages}) or ""
        lessons = messages[0]["content"] == load_prompt(REFLECTIONS_PROMPT, PACKAGE).text
        return answer.replace("The user's job is law.", "Patience helps.") if lessons else answer

    system = local(tmp_path)
    system.policy = Reviewer(vague)
    async with system.open(ANA) as memory:
        await memory.ingest(turns(*said))
        found = {passage.text.partition(" (")[0]: passage.sources for passage in await memory.search("city and job", 9)}
    assert found["What to know of the city"] == ("D1:1", "D1:2")
    assert found["What to know of the job"] == ()


async def test_what_was_rolled_back_is_no_source_and_its_session_is_read_again(tmp_path: Path) -> None:
    first, second, _ = dialogue()
    for session in (first, second):
        async with local(tmp_path).open(ANA) as memory:
            await memory.ingest(session)
            (city, *_) = await memory.search(CITY.format("Boston"), 1)
        with MemoryStore.open(tmp_path / ANA.id, WordEmbedder()) as store:
            owned = store.bank("agent:Ana")
            if session is first:
                before = owned.journal.head
            else:
                await asyncio.to_thread(owned.rollback, before)
    assert city.text == CITY.format("Denver")
    async with local(tmp_path).open(ANA) as memory:
        assert list(memory.known) == ["s1"]
        (city, *_) = await memory.search(CITY.format("Boston"), 1)
        assert (city.text, city.sources) == (CITY.format("Boston"), ("D1:1", "D1:2"))
        again = await memory.ingest(second)
        assert again.operations == {"ADD": 1, "UPDATE": 1} and again.usage.calls == 3
        (city, *_) = await memory.search(CITY.format("Denver"), 1)
        assert city.sources == ("D1:1", "D1:2", "D2:2", "D2:3")


@pytest.mark.parametrize("answered", [0, 4])  # at the first stage of a session, and within another
async def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, answered: int) -> None:
    reached = threading.Event()

    def stalling(body: dict[str, Any]) -> Reply:
        if len(first.requests) > answered:
            reached.set()
            return Reply(delay=300)
        return manager_of(body)

    with serve(stalling) as first:
        running = asyncio.create_task(run(configure(tmp_path, first.url)))
        assert await asyncio.to_thread(reached.wait, 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    with serve(manager_of) as server:
        records = await run(configure(tmp_path, server.url))
        assert len(server.requests) == CALLS - answered  # nothing that was answered is asked again
    assert [(record.outcome, record.late) for record in records] == [("applied", False)] * 3
    assert [record.operations for record in records] == [{"ADD": 2}, {"ADD": 1, "UPDATE": 1}, {"ADD": 2}]
    assert sum(record.cost.calls for record in records) == CALLS - answered % 3  # what a killed session cost is not known
    # Everything is there: now no server is needed at all, and the figures stay.
    assert await run(configure(tmp_path, unused_url())) == records


@pytest.mark.parametrize("prompt", [TURNS_PROMPT, REFLECTIONS_PROMPT])
async def test_nonsense_is_counted_and_what_was_read_before_it_is_kept(tmp_path: Path, prompt: str) -> None:
    def confused(body: dict[str, Any]) -> Reply:
        asked, shown = (message["content"] for message in body["messages"])
        june = "Denver" in shown.partition("<similar_episodes>")[0] and asked == load_prompt(prompt, PACKAGE).text
        return completion("I am a teapot.") if june else manager_of(body)

    with serve(confused) as server:
        records = await run(configure(tmp_path, server.url))
    assert [record.outcome for record in records] == ["applied", "unreadable", "applied"]
    assert records[1].violations == {"no_block": 2} and records[1].memories == () and records[1].cost.calls >= 2
    assert await run(configure(tmp_path, unused_url())) == records  # it is not asked for again
    async with local(tmp_path / "memory").open(ANA) as memory:
        assert list(memory.known) == ["s1", "s3"]
        found = [passage.text for passage in await memory.search("The user's city is Denver.", 9)]
        assert any(text.startswith("Worked before") for text in found)
        # The store itself does not know the session, so that it can be given again.
        done = await memory.ingest(dialogue()[1])
        assert done.readable and CITY.format("Denver") in (done.memories or ())
        assert done.usage.calls == (3 if prompt == TURNS_PROMPT else 1)


async def test_names_of_the_setting_may_be_kept_and_data_of_the_user_never(tmp_path: Path) -> None:
    said = talk(1, datetime(2023, 5, 8), ("user", "My city is Boston. My boss is Xanthippe."), ("assistant", "I see."))
    async with local(tmp_path, ["Boston"]).open(ANA) as memory:
        ingested = await memory.ingest(said)
        found = " ".join(passage.text for passage in await memory.search("boss and city of the user", 9))
    assert "Boston" in found and "Xanthippe" not in found
    assert ingested.violations["masked_data"] == 2 and ingested.readable  # in the notes and in the summary


async def test_an_id_that_looks_like_a_stage_fails_its_session_only(tmp_path: Path) -> None:
    bad = DialogueSession("s0#turns-1", datetime(2023, 5, 1), (DialogueTurn("x", "user", "", "My city is Boston."),))
    sessions = [bad, dialogue()[0]]
    async with local(tmp_path).open(ANA) as memory:
        with RecordFile(tmp_path / "sessions.jsonl", IngestRecord, lambda record: record.key) as log:
            records = [await ingest_session(memory, ANA, sessions, number, log) for number in range(2)]
        assert list(memory.known) == ["s1"]
    assert [record.outcome for record in records] == ["failed", "applied"]
    assert "an id must not end like that of a stage, such as #turns-1" in str(records[0].reason)


async def test_a_store_that_is_reset_half_way_through_a_session_is_empty(tmp_path: Path) -> None:
    silent = True

    def moody(body: dict[str, Any]) -> Reply:
        lessons = body["messages"][0]["content"] == load_prompt(REFLECTIONS_PROMPT, PACKAGE).text
        return completion("Hm.") if silent and lessons else manager_of(body)

    with serve(moody) as server:
        async with opened(configure(tmp_path, server.url)) as system, system.open(ANA) as memory:
            assert not (await memory.ingest(dialogue()[0])).readable and list(memory.known) == []
            assert len(await memory.search("city", 9)) == 1  # the episode, of which nothing was learned
            await memory.reset()
            assert await memory.search("city", 9) == []
            silent = False
            assert (await memory.ingest(dialogue()[0])).usage.calls == 3
            assert len(await memory.search("city", 9)) == 2
    with MemoryStore.open(tmp_path / "memory" / ANA.id, WordEmbedder()) as store:
        assert store.owners() == ["agent:Ana"]
