"""The manager as a system under test, behind a scripted endpoint, on conversations that can be checked by hand."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder
from locomo_cases import write
from omegaconf import OmegaConf
from rich.console import Console
from rule_model import answer
from scripted_server import Reply, Script, completion, failure, serve, unused_url

from deltamem.bank.store import MemoryStore
from deltamem.cli import CONFIGS, validated
from deltamem.endpoint_policy import EndpointPolicy
from deltamem.errors import DeltaMemError
from deltamem.history import History
from deltamem.llm import LLM
from deltamem.provenance import file_sha256
from eval.locomo import open_system
from eval.locomo.__main__ import main
from eval.locomo.deltamem_system import DeltaMemSystem
from eval.locomo.evaluate import evaluate
from eval.locomo.loader import load_locomo
from eval.locomo.retrieval import retrieve_all
from eval.locomo.session_log import SessionLog, SessionRecord
from eval.locomo.settings import LocomoConfig


def conversations() -> list[dict[str, Any]]:
    def turns(number: int, *said: tuple[str, str]) -> list[dict[str, Any]]:
        return [
            {"speaker": name, "dia_id": f"D{number}:{index}", "text": text}
            for index, (name, text) in enumerate(said, start=1)
        ]

    first = {
        "speaker_a": "Ana",
        "speaker_b": "Bo",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": turns(1, ("Ana", "Hello! My city is Boston."), ("Bo", "Look! My pet is a grey cat.")),
        "session_2_date_time": "9:00 am on 10 June, 2023",
        "session_2": turns(
            2, ("Bo", "How are you?"), ("Ana", "I moved. My city is Denver."), ("Bo", "My boat is the Otter.")
        ),
        "session_3_date_time": "9:00 am on 1 July, 2023",
        "session_3": turns(3, ("Ana", "My job is teaching chemistry."), ("Bo", "As you know, my pet is a grey cat.")),
        "session_4_date_time": "9:00 am on 2 July, 2023",
        "session_4": [],
    }
    first["session_1"][1]["blip_caption"] = "a cat on a sofa"
    second = {
        "speaker_a": "Cy",
        "speaker_b": "Ana",
        "session_1_date_time": "9:00 am on 1 January, 2024",
        "session_1": turns(1, ("Cy", "My city is Oslo."), ("Ana", "Good for you.")),
    }
    return [
        {
            "sample_id": "conv-1",
            "conversation": first,
            "qa": [
                {"question": "What city does Ana live in?", "answer": "x", "evidence": ["D2:2", "D1:1"], "category": 2},
                {"question": "What pet does Bo keep?", "answer": "x", "evidence": ["D1:2"], "category": 4},
                {"question": "What job has Ana?", "answer": "x", "evidence": ["D3:1", "D2:1"], "category": 1},
            ],
        },
        {
            "sample_id": "conv-2",
            "conversation": second,
            "qa": [{"question": "city of Cy?", "answer": "x", "evidence": ["D1:1"], "category": 4}],
        },
    ]


def is_check(body: dict[str, Any]) -> bool:
    return body["max_tokens"] == 1


def rules(body: dict[str, Any]) -> Reply:
    return completion("Hello.") if is_check(body) else completion(answer(body["messages"]))


def session_of(body: dict[str, Any]) -> tuple[str, str]:
    """Whose session it is, and of which day."""
    found = re.search(r"Person: (.*)\nSession time: (\S+)", body["messages"][1]["content"])
    assert found is not None
    return found[1], found[2]


def except_bo_in_june(then: Reply) -> Script:
    def script(body: dict[str, Any]) -> Reply:
        return then if not is_check(body) and session_of(body) == ("Bo", "2023/06/10") else rules(body)

    return script


Configure = Callable[..., LocomoConfig]


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Makes configurations like the command's, but with an embedder that is there at once."""
    monkeypatch.setattr(open_system, "load_embedder", lambda **_: WordEmbedder())
    data = write(tmp_path / "l.json", conversations())

    def make(url: str | None, *overrides: str) -> LocomoConfig:
        return validated(raw(data, url, *overrides), LocomoConfig)

    return make


def raw(data: Path, url: str | None, *overrides: str) -> Any:
    base = OmegaConf.load(CONFIGS / "locomo.yaml")
    for key in ("defaults", "hydra"):
        del base[key]
    named = [f"endpoint.base_url={url}", "endpoint.model=tiny", "system=deltamem", "endpoint.max_retries=0"]
    own = [f"data={data}", f"out={data.parent / 'out'}", "resamples=20", "k=[1,2]"]
    return OmegaConf.merge(base, OmegaConf.from_dotlist([*named, *own, *overrides]))


def quiet() -> Console:
    return Console(quiet=True)


def remembered(config: LocomoConfig, conversation: str, owner: str) -> list[str]:
    with MemoryStore.open(config.out / "memory" / conversation, WordEmbedder()) as store:
        return [memory.text for memory in store.bank(owner).bank.state.memories]


def test_memories_recall_and_summary(configure: Configure) -> None:
    with serve(rules) as server:
        config = configure(server.url)
        summary = evaluate(config, quiet())
        requests = list(server.requests)
    assert remembered(config, "conv-1", "Ana") == ["Ana's city is Denver.", "Ana's job is teaching chemistry."]
    assert remembered(config, "conv-1", "Bo") == ["Bo's pet is a grey cat.", "Bo's boat is the Otter."]
    assert remembered(config, "conv-2", "Ana") == []
    records = [json.loads(line) for line in (config.out / "questions.jsonl").read_text().splitlines()]
    # The whole origin counts: the update and what it replaced. Nobody was told that D2:1 answers anything.
    assert [record["hits"]["1"] for record in records] == [2, 1, 1, 1]
    assert records[0]["retrieved"][:2] == ["D1:1", "D2:2"]
    assert summary["groups"]["all"]["recall_micro"][1]["estimate"] == pytest.approx(5 / 6)

    ingest = summary["ingest"]
    assert ingest["model"] == f"tiny at {server.url}" and ingest["windows"] == [4096]
    assert set(ingest["prompt_hashes"]) == {"manager", "session"}
    assert ingest["sessions"] == {
        "total": 8,
        "applied": 8,
        "unreadable": 0,
        "failed": 0,
        "split": 0,
        "late": 0,
        "cost_unknown": 0,
    }
    assert ingest["operations"] == {"ADD": 5, "NONE": 1, "UPDATE": 1} and ingest["violations"] == {}
    assert ingest["memories"] == {"conv-1": {"Ana": 2, "Bo": 2}, "conv-2": {"Cy": 1, "Ana": 0}}
    calls = [body for body in requests if not is_check(body)]
    assert ingest["calls"] == len(calls) == 15 and ingest["cached"] == 0
    assert ingest["tokens"] == {"prompt": 15, "completion": 105}
    assert 0 < ingest["seconds_per_session"]["p50"] <= ingest["seconds_per_session"]["p95"]
    assert summary["failed_sessions"] == 0 and ingest["failures"] == []
    assert all(body["temperature"] == 0 for body in calls) and len(requests) == len(calls) + 1


def test_each_speaker_is_the_user_of_an_own_memory(configure: Configure) -> None:
    with serve(rules) as server:
        evaluate(configure(server.url), quiet())
        shown = {session_of(body): body["messages"][1]["content"] for body in server.requests if not is_check(body)}
    ana, bo = shown["Ana", "2023/05/08"], shown["Bo", "2023/05/08"]
    cat = "Bo: Look! My pet is a grey cat. [image: a cat on a sofa]"
    assert ana.endswith(f"user: Ana: Hello! My city is Boston.\nassistant: {cat}")
    assert bo.endswith(f"assistant: Ana: Hello! My city is Boston.\nuser: {cat}")
    assert "2023/05/08 (Mon) 13:56" in ana


async def test_passages_have_date_text_and_the_turns_that_blame_names(tmp_path: Path) -> None:
    conversation = load_locomo(write(tmp_path / "l.json", conversations()))[0]
    with serve(rules) as server:
        llm = LLM(server.url, "tiny")
        system = DeltaMemSystem(EndpointPolicy(llm, temperature=0), WordEmbedder(), tmp_path / "memory")
        async with system.ingest(conversation) as memory:
            ((first, *rest),) = await memory.retrieve(["Ana's city is"], 10)
            assert await memory.retrieve([], 3) == []
        await llm.close()
    assert (first.text, first.sources) == ("[10 June 2023] Ana's city is Denver.", ("D1:1", "D2:2"))
    assert len(rest) == 3
    passages = {passage.text.partition("] ")[2]: passage.sources for passage in (first, *rest)}
    turns = {f"conv-1/{session.number}": session.turns for session in conversation.sessions}
    with MemoryStore.open(tmp_path / "memory" / "conv-1", WordEmbedder()) as store:
        for owner in conversation.speakers:
            history = History(store.bank(owner).journal)
            for memory_id, stored in history.state().items():
                blamed = [
                    turns[origin.session_id][turn.number - 1].id
                    for origin in history.blame(memory_id)
                    for turn in origin.turns
                ]
                assert passages[stored.text] == tuple(blamed) != ()


async def test_an_interrupted_run_goes_on_where_it_was(configure: Configure) -> None:
    reached = threading.Event()

    def stall_in_july(body: dict[str, Any]) -> Reply:
        if not is_check(body) and session_of(body) == ("Ana", "2023/07/01"):
            reached.set()
            return Reply(delay=30)
        return rules(body)

    with serve(stall_in_july) as server:
        config = configure(server.url)
        running = asyncio.create_task(_take_in(config, server.url))
        assert await asyncio.to_thread(reached.wait, 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    days = {"conv-1/1": "2023/05/08", "conv-1/2": "2023/06/10", "conv-1/3": "2023/07/01", "conv-2/1": "2024/01/01"}
    logs = [SessionLog(path).records for path in sorted(config.out.rglob("sessions.jsonl"))]
    done = {(record.owner, days[record.session]) for records in logs for record in records}
    assert {("Ana", "2023/05/08"), ("Ana", "2023/06/10")} <= done and ("Ana", "2023/07/01") not in done
    with serve(rules) as server:
        summary = await asyncio.to_thread(evaluate, configure(server.url), quiet())
        asked = {session_of(body) for body in server.requests if not is_check(body)}
    assert ("Ana", "2023/07/01") in asked and not asked & done
    assert summary["ingest"]["sessions"]["applied"] == 8 and summary["ingest"]["sessions"]["late"] == 0
    assert remembered(config, "conv-1", "Ana") == ["Ana's city is Denver.", "Ana's job is teaching chemistry."]
    # Everything is there: now no server is needed at all, and the figures stay.
    again = await asyncio.to_thread(evaluate, configure(unused_url()), quiet())
    assert again["groups"] == summary["groups"] and again["ingest"]["tokens"] == summary["ingest"]["tokens"]


async def _take_in(config: LocomoConfig, url: str) -> None:
    """The part of `evaluate` that can be cancelled, as Ctrl-C cancels it."""
    loaded = load_locomo(config.data or Path())
    opened = open_system.open_system(config, file_sha256(config.data or Path()), lambda record: None)
    async with opened as system, asyncio.TaskGroup() as group:
        for conversation in loaded:
            group.create_task(retrieve_all(system, conversation, (1, 2, 4), [1]))


async def test_the_endpoint_is_told_whether_to_think(configure: Configure) -> None:
    with serve(rules) as server:
        plain = configure(server.url)
        direct = configure(server.url, "episode.thinking=false", "episode.system_prompt=manager_direct")
        for config in (plain, direct):
            async with open_system.open_system(config, "", lambda record: None) as system:
                assert isinstance(system, DeltaMemSystem)
                await system._policy.check()
    assert [request.get("chat_template_kwargs") for request in server.requests] == [None, {"enable_thinking": False}]


def test_a_process_killed_before_it_noted_the_cost(configure: Configure) -> None:
    with serve(rules) as server:
        config = configure(server.url)
        before = evaluate(config, quiet())["ingest"]
    log = config.out / "memory" / "conv-1" / "sessions.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    after = evaluate(configure(unused_url()), quiet())["ingest"]
    assert after["sessions"] == before["sessions"] | {"cost_unknown": 1}
    assert after["operations"] == before["operations"] and after["calls"] < before["calls"]
    assert len(log.read_bytes().splitlines()) == len(lines)


def test_a_failing_session_is_told_and_the_rest_goes_on(
    configure: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(except_bo_in_june(failure(400, "no room today"))) as server:
        code = main(raw(tmp_path / "l.json", server.url))
    assert code == 1
    shown = capsys.readouterr()
    assert "8 sessions, 7 applied, 0 unreadable, 1 failed; 13 calls (0 cached), 13 + 91 tokens" in " ".join(
        shown.out.split()
    )
    told = " ".join(shown.err.split())
    assert "1 sessions failed" in told and "conv-1/2 for Bo" in told and "no room today" in told
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["failed_sessions"] == summary["ingest"]["sessions"]["failed"] == 1
    (failed,) = summary["ingest"]["failures"]
    assert (failed["session"], failed["owner"]) == ("conv-1/2", "Bo") and "no room today" in failed["reason"]
    assert summary["ingest"]["memories"]["conv-1"] == {"Ana": 2, "Bo": 1}
    # A second run tries that session and nothing else, and says that it comes after its time.
    with serve(rules) as server:
        assert main(raw(tmp_path / "l.json", server.url)) == 0
        assert {session_of(body) for body in server.requests if not is_check(body)} == {("Bo", "2023/06/10")}
    again = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert again["ingest"]["sessions"]["late"] == 1 and again["failed_sessions"] == 0
    assert again["ingest"]["memories"]["conv-1"] == {"Ana": 2, "Bo": 2}


def test_nonsense_is_counted_and_not_asked_for_again(configure: Configure) -> None:
    with serve(except_bo_in_june(completion("I am a teapot."))) as server:
        summary = evaluate(configure(server.url), quiet())
    sessions = summary["ingest"]["sessions"]
    assert (sessions["unreadable"], sessions["applied"], summary["failed_sessions"]) == (1, 7, 0)
    assert sum(summary["ingest"]["violations"].values()) > 0
    again = evaluate(configure(unused_url()), quiet())
    assert again["ingest"]["sessions"] == sessions and again["ingest"]["violations"] == summary["ingest"]["violations"]


def test_cached_answers_are_counted(configure: Configure, tmp_path: Path) -> None:
    cache = f"endpoint.cache={tmp_path / 'answers.sqlite3'}"
    with serve(rules) as server:
        evaluate(configure(server.url, cache), quiet())
        summary = evaluate(configure(server.url, cache, f"out={tmp_path / 'second'}"), quiet())
    assert summary["ingest"]["cached"] == summary["ingest"]["calls"] == 15
    assert str(tmp_path) not in json.dumps(summary)


def test_memories_made_with_other_settings_are_refused(configure: Configure) -> None:
    with serve(rules) as server:
        evaluate(configure(server.url), quiet())
        evaluate(configure(server.url, "k=[1]", "with_time=false", "resamples=10"), quiet())
        with pytest.raises(DeltaMemError, match=r"made with with_captions = True, not False; choose another out="):
            evaluate(configure(server.url, "with_captions=false"), quiet())
        with pytest.raises(DeltaMemError, match=r"made with model = 'tiny', not 'huge'"):
            evaluate(configure(server.url, "endpoint.model=huge"), quiet())


def test_what_cannot_work_is_said_in_one_sentence(configure: Configure, tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match="endpoint http"):
        evaluate(configure(unused_url()), quiet())
    with serve(rules) as server, pytest.raises(DeltaMemError, match=r"max_tokens=5000 leaves no room .* of 4096 tokens"):
        evaluate(configure(server.url, "endpoint.max_tokens=5000"), quiet())
    with pytest.raises(DeltaMemError, match=r"unknown config key 'endpoint\.modl'"):
        configure(None, "endpoint.modl=x")
    with pytest.raises(DeltaMemError, match=r"config key 'endpoint\.tool_role'"):
        configure(None, "endpoint.tool_role=wizard")
    with pytest.raises(DeltaMemError, match="prompt 'absent' does not exist"):
        evaluate(configure(unused_url(), "episode.system_prompt=absent"), quiet())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_id": "../up"}, "'../up' of a conversation cannot be the name of a folder"),
        ({"sample_id": "conv-2"}, "two conversations have the same sample_id"),
        ({"speaker_b": "Ana"}, "both speakers are called 'Ana'"),
    ],
)
def test_conversations_that_cannot_have_two_memories(
    configure: Configure, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    data = conversations()
    data[0] |= {key: value for key, value in change.items() if key in data[0]}
    data[0]["conversation"] |= {key: value for key, value in change.items() if key in data[0]["conversation"]}
    write(tmp_path / "l.json", data)
    with serve(rules) as server, pytest.raises(DeltaMemError, match=re.escape(message)):
        evaluate(configure(server.url), quiet())


def test_a_log_that_is_no_log_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    SessionLog(path).add(SessionRecord(owner="Ana", session="c/1", outcome="applied", calls=2))
    assert SessionLog(path).records == [SessionRecord(owner="Ana", session="c/1", outcome="applied", calls=2)]
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(DeltaMemError, match="line 2: not a session record"):
        SessionLog(path)
