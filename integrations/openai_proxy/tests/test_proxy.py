"""The proxy in front of a real HTTP server, asked by the official client and by raw requests."""

import asyncio
import codecs
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from proxy_cases import (
    CHAT,
    REMEMBERED,
    Asked,
    Upstream,
    ask_stream,
    chat,
    dialogues,
    echo,
    end,
    event,
    headers,
    know,
    models,
    proxying,
    said,
)
from rule_model import rules
from scripted_server import serve
from server_cases import ANN, LONG, QUICK, Server, block, conversed, ok, problem, process, serving, until, written

from deltamem.server.keys import KEYS_FILE, Keys, Scope
from deltamem.server.service import ServerSettings
from integrations.openai_proxy import routes
from integrations.openai_proxy.buffer import AnswerPlace
from integrations.openai_proxy.settings import ProxySettings


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Upstream, Server]]:
    with models() as upstream, proxying(tmp_path_factory.mktemp("proxy"), upstream) as server:
        yield upstream, server


@pytest.fixture
def upstream(running: tuple[Upstream, Server]) -> Upstream:
    """The server behind the proxy, which nobody has asked yet, and which echoes unless a test says otherwise."""
    upstream = running[0]
    upstream.asked.clear()
    upstream.gone.clear()
    upstream.answers(echo)
    return upstream


@pytest.fixture
def server(running: tuple[Upstream, Server], upstream: Upstream) -> Iterator[Server]:
    """The proxy, without keys and without memories."""
    yield running[1]
    running[1].clear()


def test_memories_are_appended_to_the_last_message_and_every_other_byte_stays(upstream: Upstream, server: Server) -> None:
    know(server, "Ann has a dog named Rex.")
    http = server.client(**headers())
    # Numbers, spaces, escapes and equal keys that no JSON library would write again like this.
    body = (
        '{ "model":"m",  "temperature": 0.70, "messages" : [ '
        '{"role": "system","content":"Be \\u006bind \\ud83d\\ude00"},\n'
        ' {"role":"user","content":"x","content":"Hello \\"you\\" \\u00fc"}  , {"role":"assistant","content":null},'
        '{"content":"My dog\'s name?"  ,"role":"user" } ], "seed":1e2, "n":1 }'
    )
    response = http.post(CHAT, content=body, headers={"Content-Type": "application/json"})
    assert ok(response)["choices"][0]["message"]["content"] == "I see."
    assert response.headers["x-deltamem-memory"] == "on"
    (asked,) = upstream.asked
    place = body.index("My dog's name?") + len("My dog's name?")
    addition = json.dumps(REMEMBERED)[1:-1]
    assert asked.body.decode() == body[:place] + addition + body[place:]


def test_what_is_said_over_several_requests_is_one_session_read_once(upstream: Upstream, server: Server) -> None:
    http, history = (
        server.client(**headers()),
        ["My city is Boston.", "I see.", "My dog is Rex.", "I see.", "Bye.", "I see."],
    )
    ok(http.post(CHAT, json=chat(*history[:1])))
    ok(http.post(CHAT, json=chat(*history[:3], stream=False)))
    again = chat(*history[:3])
    assert http.post(CHAT, json=again).headers["x-deltamem-memory"] == "on", "the same again: the answer is made again"
    last = {"model": "m", "messages": [{"role": "user", "content": "Bye."}], "stream": True}
    assert ask_stream(http, last).endswith(b"data: [DONE]\n\n")
    assert server.service.store.journal.owner("ann").head == 0, "nothing is read while it goes on"
    end(server)
    assert dialogues(server) == [history]
    found = ok(http.get(f"{ANN}/memories"))["memories"]
    assert [one["text"] for one in found] == ["Ann's city is Boston.", "Ann's dog is Rex."]
    # It goes on: only what is new becomes a further session.
    ok(http.post(CHAT, json=chat(*history, "My job is nurse.")))
    assert REMEMBERED.partition("\n- ")[0] in upstream.asked[-1].last
    end(server)
    assert dialogues(server)[1:] == [["My job is nurse.", "I see."]]
    assert [e.session_id for e in server.service.store.journal.owner("ann").entries()] == ["s", "s/2"]
    end(server)
    assert len(dialogues(server)) == 2


def test_a_conversation_without_a_name_is_known_by_its_beginning(server: Server) -> None:
    http = server.client(**headers(session=None))
    for texts in (["My city is Boston."], ["My job is nurse."], ["My city is Boston.", "I see.", "My dog is Rex."]):
        ok(http.post(CHAT, json=chat(*texts)))
    end(server)
    assert sorted(dialogues(server)) == [
        ["My city is Boston.", "I see.", "My dog is Rex.", "I see."],
        ["My job is nurse.", "I see."],
    ]


TITLE = """### Task:
Generate a concise, 3-5 word title with an emoji.
### Chat History:
<chat_history>
USER: My city
is Boston.
ASSISTANT: I see.
</chat_history>"""


def test_what_a_client_asks_about_a_conversation_is_not_what_the_person_says(upstream: Upstream, server: Server) -> None:
    for name in ("s", None):
        http = server.client(**headers(session=name))
        ok(http.post(CHAT, json=chat("My city\nis Boston.")))
        for streamed in (False, True):
            response = http.post(CHAT, json=chat(TITLE, stream=streamed))
            assert (response.status_code, response.headers["x-deltamem-memory"]) == (200, "read")
            assert "x-deltamem-timezone" not in response.headers
        ok(http.post(CHAT, json=chat("My city\nis Boston.", "I see.", TITLE)))
        end(server)
    assert dialogues(server) == [["My city\nis Boston.", "I see.", TITLE, "I see."]] * 2, "in a history the person says it"


def test_silence_ends_a_conversation(tmp_path: Path) -> None:
    with models() as upstream, proxying(tmp_path, upstream, idle=0.1) as server:
        ok(server.client(**headers()).post(CHAT, json=chat("My city is Boston.")))
        until(lambda: dialogues(server))
        assert dialogues(server)[0][0] == "My city is Boston."


def test_streams_go_through_byte_for_byte_as_they_come(upstream: Upstream, server: Server) -> None:
    chunks = [
        b": comment\r\n\r\n",
        event("I "),
        b"data: {not json\n\n",
        event("see."),
        event(None, "stop"),
        b"data: [DONE]\n\n",
    ]
    sent: list[bytes] = []
    steps = threading.Semaphore(0)

    def answer(asked: Asked) -> Iterator[bytes]:
        for chunk in chunks:
            sent.append(chunk)
            yield chunk
            assert steps.acquire(timeout=LONG)

    upstream.answers(answer, X_Request_Id="r1")
    body = chat("My city is Boston.", stream=True)
    with server.client(**headers()).stream("POST", CHAT, json=body) as response:
        assert response.headers["content-type"] == "text/event-stream" and response.headers["x-request-id"] == "r1"
        got = b""
        for chunk in response.iter_raw():
            got += chunk
            assert got == b"".join(sent), "each is here before the next is made"
            steps.release()
    assert got == b"".join(chunks)
    end(server)
    assert dialogues(server) == [["My city is Boston.", "I see."]]


def test_tools_images_and_parts(upstream: Upstream, server: Server) -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        if asked.json["messages"][-1]["role"] == "tool":
            yield said("It is sunny.")
        else:
            call = {"id": "t", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
            yield said(None, tool_calls=[call])  # type: ignore[arg-type]

    upstream.answers(answer)
    know(server, "Ann has a dog named Rex.")
    client = openai.OpenAI(base_url=f"{server.url}/proxy/v1", api_key="x", default_headers=headers(), max_retries=0)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Weather, and my dog's name?"}, image]}]
    first = client.chat.completions.create(model="m", messages=messages)
    assert first.choices[0].message.tool_calls
    called = first.choices[0].message.model_dump(exclude_none=True)
    messages += [called, {"role": "tool", "tool_call_id": "t", "content": "sun"}]
    second = client.chat.completions.create(model="m", messages=messages)
    assert second.choices[0].message.content == "It is sunny."
    one, other = [asked.json["messages"] for asked in upstream.asked]
    assert [part["type"] for part in one[0]["content"]] == ["text", "image_url", "text"]
    assert one[0]["content"][2]["text"] == REMEMBERED.lstrip("\n") and one[0]["content"][:2] == messages[0]["content"]
    assert other[0] == one[0] and other[1:] == messages[1:], "the beginning is the same, and nothing follows the tool"
    # Some put the time into the question, and the model may say something before it calls a tool.
    messages[0]["content"][0]["text"] += " It is 21:31."
    messages[1]["content"] = "Let me look."
    client.chat.completions.create(model="m", messages=messages)
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": []}])  # type: ignore[list-item]
    assert upstream.asked[-1].last == []
    end(server)
    assert dialogues(server) == [["Weather, and my dog's name?", "It is sunny."]]


async def test_the_official_client_synchronous_asynchronous_and_streaming(upstream: Upstream, server: Server) -> None:
    ann, bob = server.key("ann"), server.key("bob")
    know(server, "Ann has a dog named Rex.")
    options: dict[str, Any] = {"base_url": f"{server.url}/proxy/v1", "max_retries": 0}
    client = openai.OpenAI(api_key=ann, default_headers=headers(owner=None), **options)
    messages: list[Any] = [{"role": "user", "content": "My dog's name?"}]

    def ask() -> tuple[str, str]:
        done = client.chat.completions.create(model="m", messages=messages)
        stream = client.chat.completions.create(model="m", messages=messages, stream=True)
        return done.choices[0].message.content or "", "".join(part.choices[0].delta.content or "" for part in stream)

    assert await asyncio.to_thread(ask) == ("I see.", "I see.")
    assert [model.id for model in await asyncio.to_thread(lambda: client.models.list().data)] == ["m"]
    other = openai.AsyncOpenAI(api_key=bob, default_headers=headers(owner="bob"), **options)
    raw = await other.chat.completions.with_raw_response.create(model="m", messages=messages)
    assert raw.headers["x-deltamem-memory"] == "on"
    async with await other.chat.completions.create(model="m", messages=messages, stream=True) as stream:
        assert "".join([part.choices[0].delta.content or "" async for part in stream]) == "I see."
    chats = [asked for asked in upstream.asked if asked.path == "/v1/chat/completions"]
    assert [asked.last for asked in chats] == [f"My dog's name?{REMEMBERED}"] * 2 + ["My dog's name?"] * 2
    for asked in upstream.asked:
        assert asked.headers["authorization"] == "Bearer upstream-key"
        assert not [name for name in asked.headers if name in ("x-api-key", "cookie") or "deltamem" in name]
        assert ann not in str(asked.headers) and bob not in str(asked.headers)
    await other.close()
    client.close()


def test_who_may_use_whose_memory(upstream: Upstream, server: Server) -> None:
    ann, both = server.key("ann"), server.key("ann", "bob")
    reader = server.key("ann", scopes=[Scope.READ])
    problem(server.client().post(CHAT, json=chat("Hello")), 401)
    problem(server.client().get("/proxy/v1/models"), 401)
    foreign = problem(server.client(ann, **headers(owner="bob")).post(CHAT, json=chat("Hello")), 404)
    assert foreign == problem(server.client(ann, **headers(owner="nobody")).post(CHAT, json=chat("Hello")), 404)
    assert "X-DeltaMem-Owner" in problem(server.client(both).post(CHAT, json=chat("Hello")), 400)
    assert "write" in problem(server.client(reader).post(CHAT, json=chat("Hello")), 403)
    assert "'of'" in problem(server.client(ann, **{"X-DeltaMem-Mode": "of"}).post(CHAT, json=chat("Hello")), 400)
    for wrong in ("%ff", "%00", "x" * 257, "%0A"):
        problem(server.client(ann, **headers(session=wrong)).post(CHAT, json=chat("Hello")), 400)
    assert upstream.asked == [] and server.service.store.owners() == []
    read = server.client(reader, **{"X-DeltaMem-Mode": "read"})
    assert read.post(CHAT, json=chat("Hello")).headers["x-deltamem-memory"] == "read"
    assert server.service.store.owners() == [], "reading leaves no trace"
    # Percent-encoded, since headers hold ASCII.
    juergen = server.client(server.key("Jürgen"), **headers(owner="J%C3%BCrgen"))
    ok(juergen.post(CHAT, json=chat("Hello")))
    assert server.service.store.owners() == ["Jürgen"]


def test_models_are_the_only_other_thing_that_the_upstreams_key_opens(upstream: Upstream, server: Server) -> None:
    http = server.client()
    good = ["models", "models/Qwen/Qwen3-8B", "models/a%3Fb%23c"]
    for path in good:
        ok(http.get(f"/proxy/v1/{path}"))
    for path in ("%2e%2e/files", "x/%2E./%2e%2e/files", "/files", "%2e", ""):
        problem(http.get(f"/proxy/v1/models/{path}"), 404)
    for path in ("files", "embeddings"):
        problem(http.get(f"/proxy/v1/{path}"), 404)
    assert [asked.path for asked in upstream.asked] == [f"/v1/{path}" for path in good]


def test_the_modes(upstream: Upstream, server: Server) -> None:
    know(server, "Ann has a dog named Rex.")
    for mode, appended in (("on", True), ("read", True), ("off", False)):
        http = server.client(**headers(session=mode) | {"X-DeltaMem-Mode": mode})
        assert http.post(CHAT, json=chat(f"My dog's name? {mode}")).headers["x-deltamem-memory"] == mode
        assert ("<memories>" in upstream.asked[-1].last) is appended
    end(server)
    assert dialogues(server) == [["My dog's name? on", "I see."]]


def test_a_memory_that_fails_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with models() as upstream, proxying(tmp_path, upstream, recall=0.2) as server:
        know(server, "Ann has a dog named Rex.")
        http, body = server.client(**headers()), json.dumps(chat("My dog's name?")).encode()
        asleep = threading.Event()

        def broken(texts: object) -> object:
            raise RuntimeError("My dog's name?")

        def slow(texts: object) -> object:
            asleep.wait(LONG)
            raise RuntimeError

        for queries in (broken, slow):
            monkeypatch.setattr(server.service.store.embedder, "queries", queries, raising=False)
            response = http.post(CHAT, content=body)
            assert (ok(response)["id"], response.headers["x-deltamem-memory"]) == ("c", "error")
            assert upstream.asked[-1].body == body
        asleep.set()
        monkeypatch.undo()
        for wrong in (b"{", b"\xff", b"[]", b'{"messages": 1}', b'{"messages": ["x"]}', b"[" * 50_000):
            assert http.post(CHAT, content=wrong).headers["x-deltamem-memory"] == "error"
            assert upstream.asked[-1].body == wrong
        server.service.store.journal._database._connection.execute("PRAGMA query_only = ON")
        response = http.post(CHAT, content=body)
        server.service.store.journal._database._connection.execute("PRAGMA query_only = OFF")
        assert (ok(response)["id"], response.headers["x-deltamem-memory"]) == ("c", "error")
        end(server)
        assert dialogues(server) == []


def test_errors_of_the_upstream_pass_and_nothing_is_remembered(upstream: Upstream, server: Server) -> None:
    refusal = b'{"error": {"message": "slow down", "type": "rate_limit", "code": null}}'
    upstream.answers(lambda asked: iter([refusal]), 429, Retry_After="7")
    response = server.client(**headers()).post(CHAT, json=chat("My city is Boston."))
    assert (response.status_code, response.headers["retry-after"], response.content) == (429, "7", refusal)
    assert server.service.store.owners() == []


def test_an_upstream_that_is_not_there_or_silent(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        nowhere = Upstream(f"http://127.0.0.1:{held.getsockname()[1]}/v1")
        with proxying(tmp_path, nowhere, answer=0.2) as server:
            http = server.client(**headers())
            assert "cannot be reached" in problem(http.post(CHAT, json=chat("Hello")), 502)
            held.listen()
            assert "in time" in problem(http.post(CHAT, json=chat("Hello")), 504)


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_dies_in_the_middle_is_seen_to_die(upstream: Upstream, server: Server, stream: bool) -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield event("I ") if stream else said("I see.")[:30]
        raise ConnectionError

    upstream.answers(answer)
    with pytest.raises(httpx.RemoteProtocolError):
        server.client(**headers()).post(CHAT, json=chat("My city is Boston.", stream=stream))
    end(server)
    assert dialogues(server) == [["My city is Boston."]], "what the person said counts, half an answer does not"


@pytest.mark.parametrize("begun", [False, True])
def test_when_the_client_leaves_the_upstream_is_left(upstream: Upstream, server: Server, begun: bool) -> None:
    waiting, left = threading.Event(), threading.Event()

    def answer(asked: Asked) -> Iterator[bytes]:
        if begun:
            yield event("I ")
        waiting.set()
        assert left.wait(LONG)
        while True:  # until the connection is found closed
            yield event("x" * 100_000)

    upstream.answers(answer)
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0)) as connection:
        body = json.dumps(chat("My city is Boston.", stream=True)).encode()
        lines = [f"POST {CHAT} HTTP/1.1", "Host: localhost", *(f"{n}: {v}" for n, v in headers().items())]
        connection.sendall("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
        if begun:
            assert connection.recv(10) == b"HTTP/1.1 2"
        assert waiting.wait(LONG)
    left.set()
    assert upstream.gone.wait(LONG)
    ok(server.client(**headers()).get("/health/live"))


def stream(*chunks: object) -> bytes:
    """Events; a pair is a text and the reason for which it ends."""

    def data(chunk: object) -> bytes:
        if isinstance(chunk, tuple):
            return event(*chunk)
        return b"data: " + (chunk.encode() if isinstance(chunk, str) else json.dumps(chunk).encode()) + b"\n\n"

    return b"".join(map(data, chunks))


def choices(*found: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"choices": list(found), **more}


def piece(text: str, **more: object) -> dict[str, Any]:
    return {"delta": {"content": text}, **more}


DONE = "[DONE]"
CALL = {"delta": {"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}]}}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
MESSAGE = {"role": "assistant", "content": "I see."}
WHOLE = {
    "the reason is empty until the end": stream(("I ", ""), ("see.", ""), (None, "stop"), DONE),
    "no reason at all": stream(choices(piece("I ")), choices(piece("see.")), DONE),
    "always null": stream(("I ", None), ("see.", None), DONE),
    "always empty": stream(("I ", ""), ("see.", ""), DONE),
    "in each chunk": stream(("I ", "stop"), ("see.", "stop"), DONE),
    "twice": stream(("I see.", "stop"), (None, "stop"), DONE, DONE),
    "without an end mark": stream(("I ", None), ("see.", "stop")),
    "last chunk without a choice": stream(("I see.", None), choices(finish_reason="stop")),
    "last chunk without a delta": stream(("I see.", None), choices({"index": 0, "finish_reason": "stop"})),
    "last delta is null": stream(("I see.", None), choices({"index": 0, "delta": None, "finish_reason": "length"})),
    "usage": stream(("I see.", "stop"), choices(usage=USAGE), {"choices": None, "usage": USAGE}, {"usage": USAGE}, DONE),
    "several choices": stream(
        choices(piece("No.", index=1, finish_reason="stop")),
        choices(piece("I ", index=0), piece("x", index=2)),
        choices(piece("see.", index=0, finish_reason="stop")),
        DONE,
    ),
    "another choice breaks off": stream(
        choices(piece("N", index=1, finish_reason="abort")), choices(piece("I see.", index=0, finish_reason="stop")), DONE
    ),
    "a byte order mark": codecs.BOM_UTF8 + stream(("I ", ""), ("see.", "stop"), DONE),
    "an object with a byte order mark": codecs.BOM_UTF8 + said("I see."),
    "choices without numbers": stream(choices(piece("I "), piece("N")), choices(piece("see."), piece("o.")), DONE),
    "the whole message at the end": stream(("I ", None), choices({"index": 0, "message": MESSAGE, **piece("see.")}), DONE),
    "the whole message instead": stream(choices({"index": 0, "message": MESSAGE, "finish_reason": "stop"})),
    "parts": stream(choices(piece([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "I see."}])), DONE),
    "a tool after the text": stream(("I see.", None), choices(CALL), (None, "tool_calls"), DONE),
    "comments": b": wait\n\nevent: x\nid: 1\n" + stream(("I see.", None)) + b":\n\n" + stream(DONE),
    "lines of one kind or another": stream(("I see.", "stop"), DONE).replace(b"\n", b"\r\n"),
    "no empty lines": stream(("I ", ""), ("see.", "stop"), DONE).replace(b"\n\n", b"\n").replace(b": ", b":"),
    "no last line end": stream(("I see.", ""), DONE).rstrip(),
    "objects over several lines": stream(("I ", ""), ("see.", "")).replace(b", ", b",\ndata: ") + stream(DONE),
    "no JSON": stream("{x", ("I see.", ""), "null", "[]", "{}", '{"choices": [1, {}]}', DONE),
    "an object": said("I see."),
    "an object without a reason": said("I see.").replace(b'"finish_reason": "stop", ', b""),
    "an object with an empty reason": b"\n" + said("I see.").replace(b'"stop"', b'""'),
    "an object with several choices": json.dumps(choices({"message": MESSAGE}, {"message": {"content": "No."}})).encode(),
}
CUT = {
    "the reason is empty": stream(("I ", ""), ("see", "")),
    "the reason is null": stream(("I ", None)),
    "no reason": stream(choices(piece("I "))),
    "only another choice is whole": stream(choices(piece("I ", index=0), piece("No.", index=1, finish_reason="stop"))),
    "an error": stream(("I ", ""), {"error": {"message": "out of memory"}}, DONE),
    "an error as a reason": stream(("I ", ""), (None, "error"), DONE),
    "aborted": stream(("I ", "abort"), DONE),
    **{
        f"the reason {reason}": stream(("I ", ""), (None, reason), DONE)
        for reason in ("network_error", "insufficient_system_resource", "CANCELLED", "user_abort", "timeout", "time_limit")
    },
    **{f"{reason} as a reason": stream(("I ", reason), ("s", reason)) for reason in ("null", "None", "not_finished", " ")},
    "an error of another form": stream(("I ", ""), {"object": "error", "message": "out of memory", "code": 500}, DONE),
    "an error by its type": stream(("I ", ""), {"type": "error", "message": "out of memory"}, DONE),
    "an event that is an error": stream(("I ", "")) + b'event: error\ndata: "overloaded"\n\n' + stream(DONE),
    "a field that is an error": stream(("I ", "")) + b'error: {"code": 500}\n\n' + stream(DONE),
    "within an event": stream(("I ", ""), ("see.", "stop"))[:-20],
    "half an object": said("I see.")[:-2],
    "an object with an error": b'{"error": {"message": "out of memory"}, ' + said("I see.")[1:],
    "nothing is said": stream(choices(CALL), (None, "tool_calls"), DONE),
    "nothing": b"",
}


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("name", [*WHOLE, *CUT])
async def test_a_whole_answer_is_kept_once_and_a_cut_one_never(name: str, size: int) -> None:
    kept: list[str] = []

    class Conversation:
        def keep_answer(self, place: AnswerPlace, text: str) -> None:
            kept.append(text)

    class Response:
        async def aiter_raw(self) -> AsyncIterator[bytes]:
            for start in range(0, len(sent), size):
                yield sent[start : start + size]

    sent = WHOLE.get(name, CUT.get(name, b""))
    answer = routes._KeptAnswer(Conversation(), AnswerPlace("s", 1, 1))  # type: ignore[arg-type]
    got, ended = b"", False
    async for chunk in routes._relayed(Response(), answer):  # type: ignore[arg-type]
        got += chunk
        ended = ended or got.count(DONE.encode()) > 0
        assert kept or not ended or name in CUT, "before the end is sent on"
    await answer.keep()
    assert got == sent
    assert [text for text in kept if text.strip()] == (["I see."] if name in WHOLE else [])


def test_a_client_that_leaves_after_the_last_word_has_its_answer_kept(upstream: Upstream, server: Server) -> None:
    left = threading.Event()

    def answer(asked: Asked) -> Iterator[bytes]:
        yield event("I see.", "stop")
        assert left.wait(LONG)
        if "off" in asked.last:
            raise ConnectionError
        while True:  # until the connection is found closed
            yield b": wait\n\n" * 10_000

    upstream.answers(answer)
    for name in ("Leave", "Break off"):
        left.clear()
        body = chat(f"{name} here.", stream=True)
        with server.client().stream("POST", CHAT, json=body, headers=headers(name.replace(" ", ""))) as response:
            chunks = response.iter_raw()
            next(chunks)
            if "off" in name:
                left.set()
                with pytest.raises(httpx.RemoteProtocolError):
                    list(chunks)
        left.set()
        assert upstream.gone.wait(LONG)
        upstream.gone.clear()
    until(lambda: end(server) or sorted(dialogues(server)) == [["Break off here.", "I see."], ["Leave here.", "I see."]])


def test_a_huge_answer_goes_through_and_is_not_remembered(
    upstream: Upstream, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_LARGEST_ANSWER", 2**20)
    huge = said("word " * 400_000)
    upstream.answers(lambda asked: (huge[place : place + 65_536] for place in range(0, len(huge), 65_536)))
    response = server.client(**headers()).post(CHAT, json=chat("My city is Boston."))
    assert response.content == huge and response.headers["x-deltamem-memory"] == "on"
    end(server)
    assert dialogues(server) == [["My city is Boston."]]


def test_what_is_forgotten_or_erased_is_in_no_file(server: Server) -> None:
    http = server.client(**headers())
    know(server, "Ann's passphrase is xyzzyplugh.")
    ok(http.post(CHAT, json=chat("Note: Ann's passphrase is XYZZYplugh. My dog is Rex.")))
    ok(http.post(CHAT, json=chat("My city is Boston."), headers=headers("t")))
    ok(http.delete(f"{ANN}/memories/m1", params={"mode": "erase"}))
    ok(http.post(CHAT, json=chat("Note: Ann's passphrase is XYZZYplugh. My dog is Rex.", "I see.", "My job is nurse.")))
    bob = server.client(**headers(owner="bob"))
    ok(bob.post(CHAT, json=chat("My word is frobnicate.")))
    ok(server.client().delete("/v1/owners/bob"))
    end(server)
    kept = [["", "I see.", "My job is nurse.", "I see."], ["My city is Boston.", "I see."]]
    assert sorted(dialogues(server)) == kept
    data = {path: path.read_bytes().lower() for path in server.folder.rglob("*") if path.is_file()}
    for word in (b"xyzzy", b"frobnicate"):
        assert [path for path, found in data.items() if word in found] == []
    assert any(b"my city is boston" in found for found in data.values())


def test_without_a_model_it_reads_and_without_an_upstream_it_says_so(tmp_path: Path) -> None:
    with models() as upstream:
        settings = ServerSettings(worker=QUICK, rate_limit=None, plugins={"openai_proxy": ProxySettings(upstream.url)})
        with serving(tmp_path / "bank", model=False, settings=settings) as server:
            know(server, "Ann has a dog named Rex.")
            http = server.client("callers-own", **headers())
            assert http.post(CHAT, json=chat("My dog's name?")).headers["x-deltamem-memory"] == "read"
            assert upstream.asked[-1].last.endswith("</memories>")
            assert upstream.asked[-1].headers["authorization"] == "Bearer callers-own", "an open server has no keys to guard"
            assert http.post(f"{CHAT}?beta=1", json=chat("My dog's name?")).status_code == 200
            assert upstream.asked[-1].path == "/v1/chat/completions?beta=1"
    with serving(tmp_path / "bank") as server:
        assert "--upstream" in problem(server.client(**headers()).post(CHAT, json=chat("Hello")), 503)


@pytest.mark.slow
def test_what_was_said_survives_a_kill_and_is_read_once(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        text = asked.json["messages"][-1]["content"]
        if "never" in text:
            yield event("I ")
            threading.Event().wait(1)
            yield event("x")
        else:
            yield from echo(asked)

    with models(answer) as upstream, serve(rules) as reader:
        options = ["--upstream", upstream.url, "--base-url", reader.url, "--model", "tiny"]
        for number in range(3):
            with process(tmp_path / "bank", tmp_path / "log", *options) as server, server.client() as http:
                ok(http.post(CHAT, json=chat(f"My dog{number} is Rex."), headers=headers(f"s{number}")))
                ask_stream(http, chat(f"My cat{number} is Tom.", stream=True), f"t{number}")
                body = chat(f"My fish{number} is never.", stream=True)
                with http.stream("POST", CHAT, json=body, headers=headers(f"u{number}")) as response:
                    next(response.iter_raw())
                    server.process.kill()
                    server.process.wait()
        with process(tmp_path / "bank", tmp_path / "log", *options, "--idle", "0.1") as server, server.client() as http:
            names = {"dog": "Rex", "cat": "Tom", "fish": "never"}
            expected = {f"Ann's {what}{number} is {name}." for number in range(3) for what, name in names.items()}

            def texts() -> set[str]:
                listed = http.get(f"{ANN}/memories")
                return {one["text"] for one in listed.json()["memories"]} if listed.status_code == 200 else set()

            until(lambda: texts() == expected)
            until(lambda: ok(http.get(f"{ANN}/jobs"))["jobs"] == [])
            done = ok(http.get(f"{ANN}/jobs", params={"state": "done"}))["jobs"]
            assert sorted(job["session_id"] for job in done) == sorted(f"{kind}{n}" for kind in "stu" for n in range(3))
            assert len({job["position"] for job in done}) == 9


def test_what_is_erased_while_an_answer_is_made_does_not_come_back_with_it(upstream: Upstream, server: Server) -> None:
    asked, erased = threading.Event(), threading.Event()

    def answer(request: Asked) -> Iterator[bytes]:
        yield event("You ")
        asked.set()
        assert erased.wait(LONG)
        yield event("keep a quokka.")
        yield event(None, "stop")

    upstream.answers(answer)
    with ThreadPoolExecutor(1) as pool:
        http = server.client()
        [memory] = written(http, "Ann keeps a quokka.")
        for path in (f"{ANN}/memories/{memory['id']}?mode=erase", ANN):
            asked.clear(), erased.clear()
            streaming = pool.submit(ask_stream, server.client(), chat("My pet? My city is Oslo.", stream=True), path)
            assert asked.wait(LONG)
            until(lambda: server.service.store.journal.knows("ann"))
            ok(http.delete(path))
            erased.set()
            assert b"quokka" in streaming.result(LONG)
            assert not [file for file in server.folder.rglob("*") if file.is_file() and b"quokka" in file.read_bytes()]
            end(server)
        assert server.service.store.owners() == []


README = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")


def test_the_proxy_and_the_client_before_it(tmp_path: Path) -> None:
    (tmp_path / "bank").mkdir()
    with Keys.open(tmp_path / "bank" / KEYS_FILE) as keys:
        token = keys.create("test", ["ann"], frozenset({Scope.READ, Scope.WRITE}))[1]
    program = block(README, "python", "from openai import OpenAI").replace("TOKEN", token)

    def ask(url: str) -> None:
        memory = {"memories": [{"text": "Ann has a dog called Rex."}]}
        ok(httpx.post(f"{url}{ANN}/memories", json=memory, headers={"X-API-Key": token}), 201)
        exec(program.replace("http://localhost:8377", url), {})

    with models() as upstream, serve(rules) as reader:
        line = block(README, "bash", "--upstream").replace("https://HOST/v1", upstream.url).replace("KEY=...", "KEY=secret")
        printed = conversed(line.replace("http://localhost:8000/v1", reader.url), ask, tmp_path)
    assert printed == "I see.\n"
    (asked,) = upstream.asked
    assert "Ann has a dog called Rex." in asked.last and asked.headers["authorization"] == "Bearer secret"
