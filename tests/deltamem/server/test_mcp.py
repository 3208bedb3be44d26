"""MCP, with the client of the mcp package: in this process, over standard input and output, and over HTTP."""

import asyncio
import itertools
import json
import logging
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder
from job_cases import Gate, Mumbling
from mcp.shared.exceptions import MCPError
from mcp_cases import INITIALIZE, MONDAY, NEW, OLD, SPEAKS, Person, both, call, connected, over_http, refusal, started, texts
from process_cases import CHEAP
from rule_model import RulePolicy
from server_cases import Server, serving
from typer.testing import CliRunner

from deltamem.bank.store import MemoryStore
from deltamem.cli.app import app
from deltamem.journal.journal import Journal
from deltamem.manager import MemoryManager
from deltamem.server.keys import Scope


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Without a model, so that what is added is stored word for word."""
    with serving(tmp_path_factory.mktemp("server") / "bank", model=False) as running:
        yield running


@both
async def test_the_life_of_a_memory(mode: str) -> None:
    async with connected(mode) as client:
        added = await call(client, "add_memory", text="Ann has a dog.", time=MONDAY, metadata={"topic": "pets"})
        assert (added["outcome"], added["time"], added["session_id"]) == ("written", MONDAY, None)
        assert [change["after"] for change in added["changes"]] == ["Ann has a dog."]
        await call(client, "add_memory", text="Ann lives in Boston.", time="2026-03-03T09:00:00+01:00")

        (found,) = (await call(client, "search_memories", query="dog", k=1))["memories"]
        assert (found["id"], found["time"], found["metadata"]) == ("m1", MONDAY, {"topic": "pets"})
        (found,) = (await call(client, "search_memories", query="dog", filters={"topic": {"ne": "pets"}}))["memories"]
        assert found["id"] == "m2"

        changed = await call(client, "update_memory", memory_id="m1", text="Ann has a cat.")
        assert [(change["before"], change["after"]) for change in changed["changes"]] == [
            ("Ann has a dog.", "Ann has a cat.")
        ]
        shown = await call(client, "get_memory", memory_id="m1")
        assert (shown["text"], shown["time"]) == ("Ann has a cat.", MONDAY)
        assert [(origin["event"], origin["actor"]) for origin in shown["origins"]] == [
            ("ADD", "tester"),
            ("UPDATE", "tester"),
        ]
        assert await call(client, "get_memory", memory_id=shown["uuid"]) == shown

        await call(client, "delete_memory", memory_id="m1")
        assert await texts(client) == ["Ann lives in Boston."]
        steps = (await call(client, "memory_history", memory_id="m1"))["steps"]
        assert [step["event"] for step in steps] == ["ADD", "UPDATE", "REMOVE"]
        assert [memory["text"] for memory in (await call(client, "get_memories", at="@3"))["memories"]] == [
            "Ann has a cat.",
            "Ann lives in Boston.",
        ]


async def test_pages() -> None:
    async with connected() as client:
        for animal in ("dog", "cat", "bird"):
            await call(client, "add_memory", text=f"Ann has a {animal}.")
        first = await call(client, "get_memories", limit=2)
        second = await call(client, "get_memories", limit=2, cursor=first["next"])
    assert [[memory["id"] for memory in page["memories"]] for page in (first, second)] == [["m1", "m2"], ["m3"]]
    assert second["next"] is None


async def test_the_tools_describe_themselves() -> None:
    async with connected() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        hints = {
            name: (tool.annotations.read_only_hint, tool.annotations.destructive_hint, tool.annotations.idempotent_hint)
            for name, tool in tools.items()
            if tool.annotations is not None
        }
        assert hints == {
            "add_memory": (False, False, False),
            "search_memories": (True, None, None),
            "get_memories": (True, None, None),
            "get_memory": (True, None, None),
            "update_memory": (False, False, True),
            "delete_memory": (False, True, True),
            "delete_all_memories": (False, True, True),
            "memory_history": (True, None, None),
            "rollback_memories": (False, True, False),
        }
        for tool in tools.values():
            assert tool.description and "\n" not in tool.description
            assert tool.title and tool.output_schema is not None
            assert tool.input_schema["additionalProperties"] is False
            assert not {"owner", "user_id", "ctx", "approval"} & set(tool.input_schema.get("properties", ()))


NOT_AGREED = "nothing was changed, because the person did not agree"


@pytest.mark.parametrize(
    ("mode", "person", "said"),
    [
        (OLD, None, "nothing was changed: ask the person first, and if they agree, repeat this with confirm set to true"),
        (NEW, Person("decline"), NOT_AGREED),
        (OLD, Person("cancel"), NOT_AGREED),
        (NEW, Person("accept", confirm=False), NOT_AGREED),
    ],
    ids=["cannot ask", "declined", "cancelled", "accepted the form, not the question"],
)
async def test_nothing_is_destroyed_without_consent(mode: str, person: Person | None, said: str) -> None:
    # Where the person can be asked, a model that agrees on their behalf is not enough.
    confirm = {} if person is None else {"confirm": True}
    async with connected(mode, person=person) as client:
        await call(client, "add_memory", text="Ann has a dog.")
        await call(client, "add_memory", text="Ann has a cat.")
        assert await refusal(client, "delete_memory", memory_id="m1", erase=True, **confirm) == said
        assert await refusal(client, "delete_all_memories", **confirm) == said
        assert await refusal(client, "delete_all_memories", erase=True, **confirm) == said
        assert await refusal(client, "rollback_memories", to="@1", **confirm) == said
        assert await texts(client) == ["Ann has a dog.", "Ann has a cat."]


@pytest.mark.parametrize("asks", [True, False])
async def test_what_was_agreed_is_done(asks: bool) -> None:
    person = Person() if asks else None
    confirm = {} if asks else {"confirm": True}
    async with connected(person=person) as client:
        for animal in ("dog", "cat", "bird"):
            await call(client, "add_memory", text=f"Ann has a {animal}.")
        done = await call(client, "rollback_memories", to="@2", **confirm)
        assert (done["kind"], done["restored"]) == ("rollback", 2)
        assert await texts(client) == ["Ann has a dog.", "Ann has a cat."]

        await call(client, "delete_memory", memory_id="m1", erase=True, **confirm)
        steps = (await call(client, "memory_history", memory_id="m1"))["steps"]
        assert "dog" not in json.dumps(steps) and steps[-1]["erased"]

        cleared = await call(client, "delete_all_memories", **confirm)
        assert (cleared["memories"], cleared["erased"]) == (1, False)
        assert await texts(client) == []
        await call(client, "rollback_memories", to=f"@{cleared['position'] - 1}", **confirm)
        assert await texts(client) == ["Ann has a cat."]

        assert (await call(client, "delete_all_memories", erase=True, **confirm))["erased"]
        assert await texts(client) == []
        assert "never was" in await refusal(client, "memory_history", memory_id="m2")
        await call(client, "add_memory", text="Ann begins again.")
    if person is not None:
        rollback, erase, clear, back, everything = person.asked
        assert rollback == (
            "Restore the memories as they were at @2? 1 that were added since are taken back, 0 get their earlier text,"
            " 0 come back."
        )
        assert "m1 (Ann has a dog.) for good" in erase
        assert "all 1 memories" in clear
        assert "1 come back" in back
        assert "everything about this person for good" in everything


async def test_what_does_not_exist_is_not_asked_about() -> None:
    person = Person()
    async with connected(person=person) as client:
        assert "never was" in await refusal(client, "delete_memory", memory_id="m7", erase=True)
        assert "position 9 does not exist" in await refusal(client, "rollback_memories", to="@9")
    assert person.asked == []


BAD_INPUT = [
    ("search_memories", {"query": "x", "owner": "bob"}, "owner: there is no such argument"),
    ("search_memories", {}, "query: Field required"),
    *(("search_memories", {"query": q}, "the query is blank; say what to look for") for q in ("", " ", "\u200b", "\ufeff")),
    ("search_memories", {"query": None}, "query: Input should be a valid string"),
    ("search_memories", {"query": "x", "k": 0}, "k: Input should be greater than or equal to 1"),
    ("search_memories", {"query": "x", "filters": {"a": {"near": 1}}}, "filter: 'near' of 'a' is no operator"),
    ("get_memories", {"at": "yesterday"}, "'yesterday' is no session in the memory of 'ann'"),
    ("get_memories", {"cursor": "page 2"}, "'page 2' is not the id of a memory"),
    ("get_memory", {"memory_id": "m1"}, "there is no memory 'm1' now; see its history"),
    ("add_memory", {"text": "  "}, "the text of a memory is empty"),
    ("add_memory", {"text": "x", "time": "now"}, "time: this is no ISO 8601 time such as"),
    ("add_memory", {"text": "x", "metadata": {"AND": 1}}, "metadata: 'AND' cannot be a key"),
    ("add_memory", {"text": "x", "metadata": {"a": {"b": 1}}}, "metadata.a"),
    ("add_memory", {"text": "x", "session_id": "s"}, "session_id: this server has no model"),
    ("update_memory", {"memory_id": "m1"}, "nothing to change: give text, time or metadata"),
    ("forget_everything", {}, "Unknown tool: forget_everything"),
]


async def test_bad_input_is_one_sentence() -> None:
    async with connected() as client:
        for tool, arguments, said in BAD_INPUT:
            assert said in await refusal(client, tool, **arguments)
        assert await texts(client) == []


async def test_a_defect_says_nothing_of_what_lies_inside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quoted = "Bob has a secret."

    async def broken(*arguments: object) -> None:
        raise RuntimeError(quoted)

    async with connected() as client:
        monkeypatch.setattr(MemoryManager, "search_many", broken)
        with caplog.at_level(logging.INFO):
            assert await refusal(client, "search_memories", query="x") == "the server failed; this is a defect of the server"
            with pytest.raises(MCPError) as error:
                await client.get_prompt("recall", {"topic": "x"})
        assert error.value.message == "the server failed; this is a defect of the server"
    assert "RuntimeError" in caplog.text
    assert quoted not in caplog.text


async def test_resources() -> None:
    async with connected() as client:
        await call(client, "add_memory", text="Ann has a dog.", time=MONDAY)
        assert [resource.uri for resource in (await client.list_resources()).resources] == ["memory://state"]
        templates = (await client.list_resource_templates()).resource_templates
        assert [template.uri_template for template in templates] == ["memory://memory/{id}"]
        (state,) = (await client.read_resource("memory://state")).contents
        assert state.mime_type == "application/json"
        (memory,) = json.loads(state.text)["memories"]  # type: ignore[union-attr]
        assert memory["text"] == "Ann has a dog."
        for name in ("m1", memory["uuid"]):
            (one,) = (await client.read_resource(f"memory://memory/{name}")).contents
            assert json.loads(one.text) == await call(client, "get_memory", memory_id="m1")  # type: ignore[union-attr]
        for uri, said in (("memory://memory/m9", "there is no memory 'm9' now"), ("memory://owner/bob", "Unknown resource")):
            with pytest.raises(MCPError, match=said):
                await client.read_resource(uri)


async def test_the_prompt() -> None:
    async with connected() as client:
        (prompt,) = (await client.list_prompts()).prompts
        assert prompt.arguments is not None
        assert [(argument.name, argument.required) for argument in prompt.arguments] == [("topic", True)]

        async def said(topic: str) -> str:
            (message,) = (await client.get_prompt("recall", {"topic": topic})).messages
            text: str = message.content.text  # type: ignore[union-attr]
            return text

        assert "Nothing is remembered" in await said("pets")
        await call(client, "add_memory", text="Ann has a dog.", time=MONDAY)
        assert "- Ann has a dog. (2026-03-02, m1)" in await said("dog")
        for arguments, complaint in ({}, "topic"), ({"topic": "x", "owner": "bob"}, "owner: there is no such argument"):
            with pytest.raises(MCPError, match=complaint):
                await client.get_prompt("recall", arguments)
        with pytest.raises(MCPError, match="Unknown prompt"):
            await client.get_prompt("recite", {})


async def test_a_model_reads_what_is_added() -> None:
    async with connected(policy=RulePolicy()) as client:
        first = await call(client, "add_memory", text="My city is Boston.", time=MONDAY, session_id="monday")
        assert (first["outcome"], first["session_id"]) == ("applied", "monday")
        assert [change["after"] for change in first["changes"]] == ["ann's city is Boston."]
        moved = await call(client, "add_memory", text="My city is Denver.")
        assert [change["event"] for change in moved["changes"]] == ["UPDATE"]
        again = await call(client, "add_memory", text="My city is Boston.", time=MONDAY, session_id="monday")
        assert (again["outcome"], again["changes"]) == ("known", [])
        again = await call(client, "add_memory", text="My city is Boston.", session_id="monday")
        assert (again["outcome"], again["time"]) == ("known", MONDAY)
        assert "monday" in await refusal(client, "add_memory", text="My dog is Rex.", time=MONDAY, session_id="monday")
        assert await texts(client) == ["ann's city is Denver."]
        origin = (await call(client, "get_memory", memory_id="m1"))["origins"][0]
        assert [(turn["role"], turn["content"]) for turn in origin["turns"]] == [("user", "My city is Boston.")]


async def test_what_a_slow_model_has_not_read_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltamem.server.mcp_tools.WAIT", 0.0)
    gate = Gate()
    sent = {"text": "My city is Boston.", "time": MONDAY, "session_id": "monday"}
    async with connected(policy=gate) as client:
        assert (await call(client, "add_memory", **sent))["outcome"] == "queued"
        gate.open.set()
        async with asyncio.timeout(60):
            while (await call(client, "add_memory", **sent))["outcome"] == "queued":
                await asyncio.sleep(0.01)
        assert await texts(client) == ["ann's city is Boston."]


async def test_what_the_model_cannot_read_is_an_error() -> None:
    async with connected(policy=Mumbling()) as client:
        said = await refusal(client, "add_memory", text="My city is Boston.")
        assert said == "the model could not read it: no answer of the model could be read"


WRITING: dict[str, dict[str, str]] = {
    "add_memory": {"text": "x"},
    "update_memory": {"memory_id": "m1", "text": "x"},
    "delete_memory": {"memory_id": "m1"},
    "delete_all_memories": {},
    "rollback_memories": {"to": "@0"},
}


async def test_scopes() -> None:
    person = Person()
    async with connected(scopes=[Scope.READ], person=person) as client:
        assert await texts(client) == []
        for tool, arguments in WRITING.items():
            assert await refusal(client, tool, **arguments) == "this API key lacks the scope write"
    async with connected(scopes=[Scope.READ, Scope.WRITE], person=person) as client:
        await call(client, "add_memory", text="Ann has a dog.")
        for tool, arguments in (("delete_memory", {"memory_id": "m1"}), ("delete_all_memories", {})):
            assert await refusal(client, tool, erase=True, **arguments) == "this API key lacks the scope admin"
        assert await texts(client) == ["Ann has a dog."]
    assert person.asked == []


# Over HTTP.


@both
async def test_http_keeps_owners_apart(server: Server, mode: str) -> None:
    ann, bob, person = server.key("ann"), server.key("bob"), Person()
    async with over_http(server, ann, mode, person) as first, over_http(server, bob, mode, person) as second:
        await call(first, "add_memory", text="Ann has a dog.")
        memory = await call(first, "get_memory", memory_id="m1")
        assert [origin["actor"] for origin in memory["origins"]] == ["key of ann"]
        for name in ("m1", memory["uuid"]):
            for tool, further in (
                ("get_memory", {}),
                ("update_memory", {"text": "x"}),
                ("delete_memory", {}),
                ("delete_memory", {"erase": True}),
                ("memory_history", {}),
            ):
                assert "there is no memory" in await refusal(second, tool, memory_id=name, **further)
            with pytest.raises(MCPError, match="there is no memory"):
                await second.read_resource(f"memory://memory/{name}")
        assert (await call(second, "search_memories", query="dog"))["memories"] == []
        (state,) = (await second.read_resource("memory://state")).contents
        assert json.loads(state.text) == {"memories": []}  # type: ignore[union-attr]
        assert "Ann" not in str(await second.get_prompt("recall", {"topic": "dog"}))
        await call(second, "delete_all_memories", erase=True)
        assert await texts(first) == ["Ann has a dog."]
        await call(first, "delete_memory", memory_id="m1", erase=True)
    assert [question.partition(" (")[0] for question in person.asked] == ["Erase the memory m1"]


def test_http_sessions_belong_to_the_key_and_owner_that_began_them(server: Server) -> None:
    ann, bob, both_of_them = server.key("ann"), server.key("bob"), server.key("ann", "bob")

    def begin(token: str, **headers: str) -> dict[str, str]:
        begun = server.client(token, **SPEAKS, **headers).post("/mcp", json=INITIALIZE)
        assert begun.status_code == 200
        return {"Mcp-Session-Id": begun.headers["mcp-session-id"], "Mcp-Protocol-Version": "2025-06-18"}

    def state(token: str, **headers: str) -> int:
        asked = {"jsonrpc": "2.0", "id": 2, "method": "resources/read", "params": {"uri": "memory://state"}}
        return server.client(token, **SPEAKS, **headers).post("/mcp", json=asked).status_code

    session = begin(ann)
    assert state(ann, **session) == 200
    assert state(bob, **session) == 404
    assert state(both_of_them, **session, **{"X-DeltaMem-Owner": "ann"}) == 404
    shared = begin(both_of_them, **{"X-DeltaMem-Owner": "bob"})
    assert state(both_of_them, **shared, **{"X-DeltaMem-Owner": "bob"}) == 200
    assert state(both_of_them, **shared, **{"X-DeltaMem-Owner": "ann"}) == 404
    server.keys.revoke(server.keys.list()[0].id)
    assert state(ann, **session) == 401


async def test_http_owner_of_a_key_for_several(server: Server) -> None:
    # Without any key the server is for this machine only, and the header alone says whose memory it is.
    async with over_http(server, None, **{"X-DeltaMem-Owner": "ann"}) as client:
        await call(client, "add_memory", text="Ann has a dog.")
    several, everybody, ann = server.key("ann", "bob"), server.key(), server.key("ann")
    for token in (several, everybody, ann):
        async with over_http(server, token, **{"X-DeltaMem-Owner": "ann"}) as client:
            assert await texts(client) == ["Ann has a dog."]

    def answer_to(token: str | None, **headers: str) -> int:
        return server.client(token, **SPEAKS, **headers).post("/mcp", json=INITIALIZE).status_code

    async with over_http(server, everybody, **{"X-DeltaMem-Owner": "%C3%A9va"}) as client:
        await call(client, "add_memory", text="\u00c9va has a cat.")
    assert server.service.known("\u00e9va")
    assert answer_to(everybody, **{"X-DeltaMem-Owner": "%ff"}) == 400
    assert answer_to(several) == 400
    assert answer_to(everybody) == 400
    assert answer_to(several, **{"X-DeltaMem-Owner": "carl"}) == 404
    assert answer_to(ann, **{"X-DeltaMem-Owner": "bob"}) == 404
    assert answer_to(None) == 401
    assert answer_to("dm_wrong") == 401


NONSENSE = (
    b"",
    b"{",
    b"\xff\xfe",
    b"[]",
    b'"hello"',
    b'{"jsonrpc": "2.0"}',
    b"[" * 100_000,
    b'{"jsonrpc": "2.0", "id": 1, "method": 7}',
)


def test_http_refuses_nonsense(server: Server) -> None:
    client = server.client(server.key("ann"), **SPEAKS)
    for body, version in itertools.product(NONSENSE, ("2025-06-18", "2026-07-28", "1999-01-01", "\u00e9")):
        answered = client.post("/mcp", content=body, headers={"Mcp-Protocol-Version": version.encode()})
        assert 400 <= answered.status_code < 500, (body[:100], version)
        assert "Traceback" not in answered.text


def test_http_answers_with_a_slash_and_without(server: Server) -> None:
    client = server.client(server.key("ann"), **SPEAKS)
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    asked |= {"params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}
    answers = [client.post(path, json=asked, follow_redirects=False) for path in ("/mcp", "/mcp/")]
    assert [answered.status_code for answered in answers] == [200, 200]
    assert answers[0].text.partition("instructions")[2] == answers[1].text.partition("instructions")[2] != ""


async def test_null_stands_for_what_is_left_out() -> None:
    async with connected() as client:
        await call(client, "add_memory", text="Ann has a dog.", time=None, metadata=None, session_id=None)
        assert len((await call(client, "search_memories", query="dog", k=None, filters=None))["memories"]) == 1
        listed = await call(client, "get_memories", filters=None, at=None, cursor=None, limit=None)
        assert [one["text"] for one in listed["memories"]] == ["Ann has a dog."]
        await call(client, "delete_memory", memory_id="m1", erase=None, confirm=None)
        assert await texts(client) == []


# Over standard input and output.

NOISY = CHEAP.replace(
    "deltamem.embedding.load_embedder = lambda name, **settings: WordEmbedder()",
    """
import os
def load(name, **settings):
    print("loading", flush=True)
    os.write(1, b"weights\\n")
    return WordEmbedder()
class Embedder(deltamem.embedding.LazyEmbedder):
    def __init__(self, name):
        print("opening")
        super().__init__(name)
deltamem.embedding.load_embedder, deltamem.embedding.LazyEmbedder = load, Embedder""",
)
"""A process that runs the command, with libraries that write to standard output."""


def exchange(
    bank: Path, lines: Sequence[bytes], end: Callable[["subprocess.Popen[bytes]"], None], program: str = NOISY
) -> tuple[list[Any], int, str]:
    """Send lines, read as many answers as there are requests, end the process: the answers, the exit code, its messages."""
    command = started(bank, program=program)
    process = subprocess.Popen(
        [command.command, *command.args],
        env=command.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        process.stdin.write(b"".join(line + b"\n" for line in lines))
        process.stdin.flush()
        answers = [process.stdout.readline() for line in lines if b'"id"' in line]
        end(process)
        process.stdin.close()
        code = process.wait(60)
        rest = [] if process.stdout.closed else process.stdout.readlines()
        return [json.loads(line) for line in answers + rest], code, process.stderr.read().decode()
    finally:
        process.kill()
        process.stdout.close()
        process.stderr.close()


BEGIN = [json.dumps(INITIALIZE).encode(), b'{"jsonrpc": "2.0", "method": "notifications/initialized"}']
ADD = json.dumps(
    {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "add_memory", "arguments": {"text": "Ann is é."}}}
).encode()


def only_memory(bank: Path) -> tuple[str, str | None]:
    """The text of Ann's memory and who wrote it, once the bank is closed."""
    with Journal.open(bank / "journal.sqlite3", read_only=True) as journal:
        [memory] = journal.owner("Ann").state().memories
        return memory.text, journal.owner("Ann").blame(memory.id)[0].actor


def test_standard_output_carries_only_the_protocol(tmp_path: Path) -> None:
    answers, code, noise = exchange(tmp_path / "bank", [*BEGIN, b"nonsense", b"\xff\xfe", ADD], lambda process: None)
    assert [answer["id"] for answer in answers if "id" in answer and answer["id"] is not None] == [1, 2]
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)
    assert code == 0
    assert [said in noise for said in ("opening", "loading", "weights")] == [True] * 3
    assert only_memory(tmp_path / "bank") == ("Ann is é.", "mcp")


@pytest.mark.slow
def test_a_client_that_stops_listening_is_an_end(tmp_path: Path) -> None:
    def stop_listening(process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.close()
        process.stdin.write(ADD + b"\n")

    _, code, noise = exchange(tmp_path / "bank", BEGIN, stop_listening, program=CHEAP)
    assert (code, noise) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_the_bank_closed(tmp_path: Path, number: signal.Signals) -> None:
    bank = tmp_path / "bank"
    answers, code, noise = exchange(bank, [*BEGIN, ADD], lambda process: process.send_signal(number), program=CHEAP)
    assert (len(answers), code, noise) == (2, 0, "")
    assert only_memory(bank) == ("Ann is é.", "mcp")


def test_a_bank_that_is_in_use_is_one_sentence(tmp_path: Path) -> None:
    bank = tmp_path / "bank"
    with MemoryStore.open(bank, WordEmbedder()):
        done = CliRunner().invoke(app, ["mcp", "--bank", str(bank), "--owner", "Ann"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
