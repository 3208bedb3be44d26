"""The manager as a system under test, behind a scripted endpoint, on a dialogue that can be checked by hand."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder
from rule_model import RulePolicy, rules
from scripted_server import Reply, Script, completion, is_check, serve, unused_url
from system_cases import ANA, benchmark_config, dialogue, talk

from deltamem.assisted import AssistedConfig
from deltamem.bank.store import MemoryStore
from deltamem.errors import DeltaMemError
from deltamem.manager import ManagerSettings
from deltamem.runs import RecordFile
from eval.config import BenchmarkConfig
from eval.models import open_models
from eval.records import IngestRecord, ingest_session
from eval.systems.base import DialogueSession, DialogueTurn, Memory, Passage, StoreKey, System, SystemUnavailableError
from eval.systems.deltamem import DeltaMemSystem
from eval.systems.kinds import make_system

DENVER, CHEMISTRY = "Ana's city is Denver.", "Ana's job is teaching chemistry."


def session_of(body: dict[str, Any]) -> tuple[str, str]:
    """Whose session it is, and of which day."""
    found = re.search(r"Person: (.*)\nSession time: (\S+)", body["messages"][1]["content"])
    assert found is not None
    return found[1], found[2]


def days(requests: Sequence[dict[str, Any]]) -> set[str]:
    return {session_of(body)[1] for body in requests if not is_check(body)}


def except_in_june(then: Reply) -> Script:
    return lambda body: then if not is_check(body) and session_of(body)[1] == "2023/06/10" else rules(body)


def configure(out: Path, url: str | None, *overrides: str) -> BenchmarkConfig:
    return benchmark_config(out, "system=deltamem", f"base_url={url}", "manager.model=tiny", "cache=null", *overrides)


@asynccontextmanager
async def opened(config: BenchmarkConfig) -> AsyncIterator[System]:
    async with open_models(config) as models:
        yield make_system(config, config.out / "memory", WordEmbedder(), models)


async def take_in(memory: Memory, key: StoreKey, folder: Path) -> list[IngestRecord]:
    with RecordFile(folder / "sessions.jsonl", IngestRecord, lambda record: record.key) as log:
        return [await ingest_session(memory, key, dialogue(), number, log) for number in range(len(dialogue()))]


async def run(config: BenchmarkConfig, key: StoreKey = ANA) -> list[IngestRecord]:
    async with opened(config) as system, system.open(key) as memory:
        return await take_in(memory, key, config.out)


def stored(config: BenchmarkConfig, key: StoreKey = ANA) -> list[str]:
    with MemoryStore.open(config.out / "memory" / key.id, WordEmbedder()) as store:
        return [memory.text for memory in store.bank(key.owner).bank.state.memories]


async def test_what_is_remembered_told_and_paid(tmp_path: Path) -> None:
    with serve(rules) as server:
        config = configure(tmp_path, server.url)
        async with opened(config) as system, system.open(ANA) as memory:
            assert system.facts()["window"] is None
            boston, denver, chemistry = await take_in(memory, ANA, tmp_path)
            assert list(memory.known) == ["s1", "s2", "s3"]
            facts = system.facts()
        calls = [body for body in server.requests if not is_check(body)]
        assert len(server.requests) == len(calls) + 1 and all(body["temperature"] == 0 for body in calls)
    assert stored(config) == [DENVER, CHEMISTRY]
    assert [boston.memories, denver.memories, chemistry.memories] == [("Ana's city is Boston.",), (DENVER,), (CHEMISTRY,)]
    assert [record.operations for record in (boston, denver, chemistry)] == [{"ADD": 1}, {"UPDATE": 1}, {"ADD": 1}]
    # One search and one answer a session; the scripted server counts 1 + 7 tokens a request.
    assert sum(record.cost.calls for record in (boston, denver, chemistry)) == len(calls) == 6
    assert (denver.cost.calls, denver.cost.prompt_tokens, denver.cost.completion_tokens) == (2, 2, 14)
    assert denver.cost.searches == 1 and denver.cost.seconds > 0 and denver.cost.cached == 0
    assert denver.violations == {} and denver.parts == 1 and not denver.late
    assert facts["model"] == f"tiny at {server.url}" and facts["window"] == 16384 and facts["embedder"] == "words"
    assert set(facts["prompt_hashes"]) == {"manager", "session"} and "deltamem" in facts["versions"]
    assert (facts["safeguards"], facts["attempts"], "warnings" in facts) == ("off", 1, False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (ManagerSettings(mode="react", safeguards=False), None),
        (ManagerSettings(mode="react", safeguards=False, attempts=2), "asked for again (attempts): this is not the agent"),
        (ManagerSettings(mode="react"), "corrected (manager.safeguards): this is not the agent"),
        (ManagerSettings(mode="assisted"), None),
    ],
)
def test_what_is_not_as_in_training_is_a_warning(settings: ManagerSettings, said: str | None, tmp_path: Path) -> None:
    found = DeltaMemSystem(RulePolicy(), WordEmbedder(), tmp_path, settings=settings).facts().get("warnings", [])
    assert len(found) == (said is not None) and all(said in one for one in found)


async def test_what_was_rolled_back_is_no_source_and_its_session_is_read_again(tmp_path: Path) -> None:
    system = DeltaMemSystem(RulePolicy(), WordEmbedder(), tmp_path)
    first, second, _ = dialogue()
    async with system.open(ANA) as memory:
        await memory.ingest(first)
        await memory.ingest(second)
    with MemoryStore.open(tmp_path / ANA.id, WordEmbedder()) as store:
        await asyncio.to_thread(store.bank(ANA.owner).rollback, 1)
    async with system.open(ANA) as memory:
        assert list(memory.known) == ["s1"]
        assert [(one.text, one.sources) for one in await memory.search("city", 5)] == [("Ana's city is Boston.", ("D1:1",))]
        again = await memory.ingest(second)
        assert again.operations == {"UPDATE": 1} and again.memories == (DENVER,)
        assert [(one.text, one.sources) for one in await memory.search("city", 5)] == [(DENVER, ("D1:1", "D2:2"))]


async def test_each_speaker_is_the_user_of_an_own_memory(tmp_path: Path) -> None:
    roles = {"user": "assistant", "assistant": "user"}
    bo = StoreKey("conv-1.Bo", "Bo")
    with serve(rules) as server:
        async with opened(configure(tmp_path, server.url)) as system, system.open(ANA) as anas, system.open(bo) as bos:
            for session in dialogue():
                turns = (DialogueTurn(turn.id, roles[turn.role], turn.speaker, turn.text) for turn in session.turns)  # type: ignore[arg-type]
                await asyncio.gather(
                    anas.ingest(session), bos.ingest(DialogueSession(session.id, session.time, tuple(turns)))
                )
            assert {passage.text for passage in await bos.search("Bo", 9)} == {
                "Bo's pet is a grey cat.",
                "Bo's boat is the Otter.",
            }
            assert {passage.text for passage in await anas.search("Ana", 9)} == {DENVER, CHEMISTRY}
        shown = {session_of(body): body["messages"][1]["content"] for body in server.requests if not is_check(body)}
    cat = "Bo: Look! My pet is a grey cat. [image: a cat on a sofa]"
    assert shown["Ana", "2023/05/08"].endswith(f"user: Ana: Hello! My city is Boston.\nassistant: {cat}")
    assert shown["Bo", "2023/05/08"].endswith(f"assistant: Ana: Hello! My city is Boston.\nuser: {cat}")
    assert "2023/05/08 (Mon) 13:56" in shown["Ana", "2023/05/08"]


async def test_passages_have_time_text_similarity_and_the_turns_that_blame_names(tmp_path: Path) -> None:
    system = DeltaMemSystem(RulePolicy(), WordEmbedder(), tmp_path)
    async with system.open(ANA) as memory:
        for session in dialogue():
            await memory.ingest(session)
        repeated = await memory.ingest(talk(4, datetime(2023, 8, 1), ("user", "As I said, my city is Denver.")))
        assert repeated.operations == {"NONE": 1} and repeated.memories == ()
        first, *rest = await memory.search(DENVER, 10)
    assert (first.text, first.time, first.sources) == (DENVER, datetime(2023, 6, 10, 9), ("D1:1", "D2:2"))
    assert first.similarity == pytest.approx(1) and len(rest) == 1
    # A later run has the same, without being given the sessions again; a known session tells what it did.
    async with DeltaMemSystem(RulePolicy(), WordEmbedder(), tmp_path).open(ANA) as memory:
        passages = await memory.search(DENVER, 10)
        again = await memory.ingest(dialogue()[1])
    assert passages == [first, *rest]
    assert (again.memories, again.operations, again.usage.calls) == ((DENVER,), {"UPDATE": 1}, 0)
    turns = {session.id: session.turns for session in dialogue()}
    with MemoryStore.open(tmp_path / ANA.id, WordEmbedder()) as store:
        history = store.bank("Ana").journal
        for memory_id, known in history.state().items():
            origins = history.blame(memory_id)
            blamed = tuple(turns[one.session_id][turn.number - 1].id for one in origins for turn in one.turns)
            (passage,) = (passage for passage in passages if passage.text == known.text)
            assert passage.sources == blamed != ()


async def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    reached = threading.Event()

    def stall_in_july(body: dict[str, Any]) -> Reply:
        if not is_check(body) and session_of(body)[1] == "2023/07/01":
            reached.set()
            return Reply(delay=300)
        return rules(body)

    with serve(stall_in_july) as server:
        running = asyncio.create_task(run(configure(tmp_path, server.url)))
        assert await asyncio.to_thread(reached.wait, 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    with serve(rules) as server:
        records = await run(configure(tmp_path, server.url))
        assert days(server.requests) == {"2023/07/01"}
    assert [(record.outcome, record.late) for record in records] == [("applied", False)] * 3
    # Everything is there: now no server is needed at all, and the figures stay.
    assert await run(configure(tmp_path, unused_url())) == records


@pytest.mark.parametrize(("overrides", "calls"), [((), 1), (("manager.safeguards=true",), 2), (("attempts=3",), 3)])
async def test_nonsense_is_counted_and_not_asked_for_again(tmp_path: Path, overrides: Sequence[str], calls: int) -> None:
    with serve(except_in_june(completion("I am a teapot."))) as server:
        records = await run(configure(tmp_path, server.url, *overrides))
    assert [record.outcome for record in records] == ["applied", "unreadable", "applied"]
    assert sum(records[1].violations.values()) > 0 and records[1].cost.calls == calls and records[1].memories == ()
    assert await run(configure(tmp_path, unused_url(), *overrides)) == records
    # The store itself does not know the session, so that it can be given again.
    async with DeltaMemSystem(RulePolicy(), WordEmbedder(), tmp_path / "memory").open(ANA) as memory:
        assert list(memory.known) == ["s1", "s3"]
        assert (await memory.ingest(dialogue()[1])).memories == (DENVER,)


async def test_the_model_is_connected_once_if_something_must_be_read_and_its_window_splits_sessions(tmp_path: Path) -> None:
    long = talk(9, datetime(2023, 8, 8), *[("user", f"My item{n} is number {n}. " + "Well, well. " * 60) for n in range(8)])
    connected: list[int] = []

    async def connect() -> int:
        await asyncio.sleep(0.01)
        connected.append(1)
        return 2600

    async def read(memory: Memory) -> list[Passage]:
        for session in [*dialogue(), talk(4, datetime(2023, 7, 2))]:
            await memory.ingest(session)
        return await memory.search("city", 1)

    one, another = (DeltaMemSystem(RulePolicy(), WordEmbedder(), tmp_path, connect=connect) for _ in range(2))
    keys = [StoreKey(name, "Ana") for name in "ab"]
    async with one.open(keys[0]) as first, one.open(keys[1]) as second:
        assert await first.search("city", 3) == []
        assert (await first.ingest(talk(4, datetime(2023, 7, 2)))).memories == () and connected == []
        found = await asyncio.gather(read(first), read(second))
        assert connected == [1] and all(passages[0].text == DENVER for passages in found)
        ingested = await first.ingest(long)
        assert ingested.parts > 1 and ingested.memories is not None and len(ingested.memories) == 8
        (last,) = await first.search("Ana's item7 is number 7.", 1)
        assert last.sources == ("D9:8",)
    async with another.open(keys[1]) as second:
        assert await read(second) == found[1] and connected == [1]


async def test_the_window_is_that_of_the_configuration_or_the_endpoint_which_is_told_whether_to_think(
    tmp_path: Path,
) -> None:
    direct = ("episode.thinking=false", "episode.system_prompt=manager_direct")
    for overrides, models, window in (
        (("manager.window=5000",), ({"id": "tiny", "max_model_len": 9000},), 5000),
        (("manager.max_tokens=null", *direct), ({"id": "tiny"},), None),
    ):
        with serve(rules, models=models) as server:
            async with opened(configure(tmp_path / str(window), server.url, *overrides)) as system:
                async with system.open(ANA) as memory:
                    await memory.ingest(dialogue()[0])
                assert system.facts()["window"] == window
            sent = {body.get("max_tokens") for body in server.requests if not is_check(body)}
            thinking = {str(body.get("chat_template_kwargs")) for body in server.requests}
        assert sent == ({2048} if window else {None})
        assert thinking == ({"None"} if window else {"{'enable_thinking': False}"})


async def test_a_model_that_does_not_answer_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(SystemUnavailableError, match="endpoint http"):
        await run(configure(tmp_path, unused_url()))
    assert (tmp_path / "sessions.jsonl").read_text() == ""
    with (
        serve(rules) as server,
        pytest.raises(SystemUnavailableError, match=r"max_tokens=20000 leaves no room .* 16384 tokens"),
    ):
        await run(configure(tmp_path, server.url, "manager.max_tokens=20000"))


async def test_ids_that_cannot_name_a_folder(tmp_path: Path) -> None:
    for name in ("", ".", "..", "../up", "a\\b", "a\0b", "x" * 300):
        with pytest.raises(DeltaMemError, match=r"the id of a store: .* cannot be the name of a folder"):
            async with DeltaMemSystem(RulePolicy(), WordEmbedder(), tmp_path).open(StoreKey(name, "Ana")):
                pass
    assert list(tmp_path.iterdir()) == []


async def test_turn_ids_that_were_lost_cost_the_sources_only(tmp_path: Path) -> None:
    async with DeltaMemSystem(RulePolicy(), WordEmbedder(), tmp_path).open(ANA) as memory:
        await memory.ingest(dialogue()[0])
    (tmp_path / ANA.id / "turns.jsonl").unlink()
    async with DeltaMemSystem(RulePolicy(), WordEmbedder(), tmp_path).open(ANA) as memory:
        (passage,) = await memory.search("city", 1)
    assert passage.text == "Ana's city is Boston." and passage.sources == ()


@pytest.mark.parametrize("mode", ["assisted", "auto"])
async def test_a_model_that_was_not_trained_is_asked_for_one_object(tmp_path: Path, mode: str) -> None:
    with serve(rules) as server:
        config = configure(tmp_path, server.url, f"manager.mode={mode}")
        async with opened(config) as system:
            facts = system.facts()
        boston, denver, chemistry = await run(config)
    assert stored(config) == [DENVER, CHEMISTRY]
    assert [record.operations for record in (boston, denver, chemistry)] == [{"ADD": 1}, {"UPDATE": 1}, {"ADD": 1}]
    assert (boston.cost.calls, denver.cost.calls, denver.cost.searches) == (1, 2, 1)
    assert not any(message["role"] == "tool" for body in server.requests for message in body["messages"])
    reason = "assisted was asked for" if mode == "assisted" else "is not known to be trained for DeltaMem"
    assert facts["mode"] == "assisted" and facts["mode_reason"].endswith(reason)
    assert facts["prompt_hashes"] == AssistedConfig().prompt_hashes


async def test_an_ingredient_of_assisted_mode_can_be_left_out(tmp_path: Path) -> None:
    with serve(rules) as server:
        config = configure(tmp_path, server.url, "manager.mode=assisted", "assisted.k=0", "assisted.examples=false")
        await run(config)
    assert stored(config) == ["Ana's city is Boston.", DENVER, CHEMISTRY]  # nothing is compared
    assert {len(body["messages"]) for body in server.requests if not is_check(body)} == {2}


def test_the_mode_decides_the_records_but_not_those_of_react(tmp_path: Path) -> None:
    def decisive(*overrides: str) -> dict[str, Any]:
        return configure(tmp_path, None, *overrides).run_config()

    react, assisted = decisive(), decisive("manager.mode=assisted")
    assert react == decisive("assisted.k=0") and not {"mode", "assisted"} & (react.keys() | react["manager"].keys())
    assert set(react["episode_prompts"]) == {"manager", "session"}
    assert react != assisted == decisive("manager.mode=auto") != decisive("manager.mode=assisted", "assisted.k=0")
    assert assisted["episode_prompts"] == AssistedConfig().prompt_hashes
    assert (react["safeguards"], react["attempts"], assisted["safeguards"], assisted["attempts"]) == (False, 1, True, 2)
    assert decisive("manager.safeguards=true")["attempts"] == 2 and decisive("attempts=3")["attempts"] == 3
    for wrong in ("manager.mode=fast", "assisted.k=-1", "assisted.kk=1"):
        with pytest.raises(DeltaMemError, match=f"'{wrong.partition('=')[0]}'"):
            decisive(wrong)
