"""The client of chat endpoints against a real local server whose answers are scripted, and its response cache."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import multiprocessing
import sqlite3
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from scripted_server import Reply, completion, failure, replies, serve, too_long, unused_url

from deltamem.errors import ContextLengthError, DeltaMemError, LLMError
from deltamem.llm import LLM, Answer, RequestCounts, ResponseCache, ServedModel, ToolCall, _trusted, seed_of_request
from deltamem.refusals import is_passing

HELLO = [{"role": "user", "content": "hello"}]


async def ask(llm: LLM, **options: Any) -> Answer:
    return await llm.chat(HELLO, **{"temperature": 1.0, "max_tokens": 16} | options)


async def test_an_answer_carries_text_and_tokens_and_usage_adds_up() -> None:
    with serve(lambda body: completion("hi", tokens=3, prompt_tokens=11)) as server:
        llm = LLM(server.url + "/", "tiny")
        assert await ask(llm) == Answer("hi", truncated=False, prompt_tokens=11, completion_tokens=3)
        before = llm.usage
        await ask(llm)
        assert before == RequestCounts(requests=1, prompt_tokens=11, completion_tokens=3)
        assert llm.usage == RequestCounts(requests=2, prompt_tokens=22, completion_tokens=6)
        await llm.close()
    assert "seed" not in server.requests[0] and "response_format" not in server.requests[0]


async def test_all_parameters_are_sent_and_every_conversation_and_sample_has_a_seed_of_its_own() -> None:
    with serve(lambda body: completion("{}")) as server:
        llm = LLM(server.url, "tiny")
        for sample in (0, 1):
            await ask(llm, seed=4, sample=sample, response_format={"type": "json_object"}, extra_body={"top_k": 3})
        await ask(llm, max_tokens=None)
        for said in ("hi", "hey"):
            await llm.chat([{"role": "user", "content": said}], temperature=1, max_tokens=16, seed=4)
    first, second, third, *others = server.requests
    assert first["response_format"] == {"type": "json_object"} and first["top_k"] == 3
    seeds = [seed_of_request(4, sample, first["messages"]) for sample in (0, 1)]
    assert ([first["seed"], second["seed"]], first["max_tokens"]) == (seeds, 16)
    assert len({*seeds, *(one["seed"] for one in others)}) == 4, "servers draw the same numbers of the same seed"
    assert all(0 <= seed < 2**31 for seed in seeds) and seed_of_request(5, 0, first["messages"]) not in seeds
    assert "max_tokens" not in third


async def test_tools_are_sent_and_calls_are_read_and_cached(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    calls = [{"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}]
    calls.append({"type": "function", "function": {"name": "look"}})  # what some servers leave out
    expected = (ToolCall("a", "look", '{"at": 1}'), ToolCall("call_1", "look", "{}"))
    cache = ResponseCache(tmp_path / "answers")
    with serve(lambda body: completion(None, tool_calls=calls)) as server:
        llm = LLM(server.url, "tiny", cache=cache)
        for cached in (False, True):
            answer = await ask(llm, tools=tools)
            assert (answer.tool_calls, answer.text, answer.cached) == (expected, "", cached)
        await ask(llm)  # another request than the one with tools
        await llm.close()
    cache.close()
    assert [body.get("tools") for body in server.requests] == [tools, None]
    assert expected[0].message_part() == calls[0]


@pytest.mark.parametrize("content", ["hi", None, ""])
async def test_tokens_and_content_may_be_missing_and_the_content_type_wrong(content: str | None) -> None:
    body = {"choices": [{"message": {"content": content, "tool_calls": None}}], "usage": None}
    with serve(lambda _: Reply(body, headers={"Content-Type": "text/plain"})) as server:
        answer = await ask(LLM(server.url, "tiny"))
    assert answer == Answer(content or "", truncated=False, prompt_tokens=0, completion_tokens=0)


UNREADABLE = "something else than a chat completion"


@pytest.mark.parametrize(
    ("reply", "passing", "said"),
    [
        (failure(400, "bad\n  value"), False, "refused the request to model 'tiny': Error code: 400 - bad value$"),
        (failure(404, "no model tiny"), False, "refused the request to model 'tiny': .*no model tiny"),
        (Reply({"detail": "Not Found"}, 404), False, r"refused .*Error code: 404 - \{'detail': 'Not Found'\}"),
        (failure(401, "bad key"), False, "refused a request without a key .*OPENAI_API_KEY is not set.*bad key"),
        (failure(408, retry_after="0.01"), True, "refused the request"),
        (failure(409, retry_after="0.01"), True, "refused the request"),
        (failure(429, retry_after="0.01"), True, "refused the request"),
        (failure(500, "x" * 9000, retry_after="0.01"), True, r"failed on .*: Error code: 500 - x{200,300}\.\.\.$"),
        (Reply(b"<html>\n<h1>oops</h1>", 502), True, "failed on .*502 - <html> <h1>oops</h1>$"),
        (Reply(reset=True), True, "cannot be reached for model 'tiny' .*; is the server up"),
        (completion("half", cut=True), True, "cannot be reached for .*without sending complete message body"),
        (completion("late", delay=60), True, "gave no answer in time for model 'tiny'"),
        (Reply(b""), True, f"{UNREADABLE}: an empty body$"),
        (Reply(b"<html>\n<h1>hi</h1>", headers={"Content-Type": "text/html"}), True, f"{UNREADABLE}: <html> <h1>hi</h1>$"),
        (Reply(b'{"choices": ['), True, UNREADABLE),
        (Reply(b"[" * 100_000), True, UNREADABLE),
        (Reply(b'{"choices": [{"message": {"content": "\\ud800"}}]}'), True, UNREADABLE),
        (Reply({"choices": []}), True, UNREADABLE),
        (Reply({"error": {"message": "upstream is down"}}), True, f"{UNREADABLE}: .*upstream is down"),
    ],
)
async def test_a_failure_is_one_sentence_and_the_request_repeated_if_it_may_pass(
    reply: Reply, passing: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fails_and_is_repeated(reply, passing, said, monkeypatch)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(reset=True), "cannot be reached for model 'tiny' .*; is the server up"),
        (completion("half", cut=True), "cannot be reached for model 'tiny' .*payload is not completed"),
        (completion("late", delay=60), "gave no answer in time for model 'tiny'"),
        (failure(500, "broken", retry_after="0.01"), "failed on the request to model 'tiny': Error code: 500 - broken$"),
    ],
)
async def test_connections_of_aiohttp_fail_and_answer_as_those_of_httpx(
    reply: Reply, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp")
    await fails_and_is_repeated(reply, True, said, monkeypatch, aiohttp=True)


async def fails_and_is_repeated(
    reply: Reply, passing: bool, said: str, monkeypatch: pytest.MonkeyPatch, *, aiohttp: bool = False
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("deltamem.llm._FIRST_DELAY", 0.01)
    seconds = 3.0 if reply.delay else 60.0  # the good answer has to come within it too
    with serve(replies(reply, reply, completion("hi", tokens=7))) as server:
        llm = LLM(server.url, "tiny", timeout=seconds / 10, max_retries=0, aiohttp=aiohttp)
        with pytest.raises(LLMError, match=said) as caught:
            await ask(llm)
        await llm.close()
        assert f"endpoint {server.url}" in str(caught.value) and "\n" not in str(caught.value)
        assert is_passing(caught.value) is passing and not isinstance(caught.value, ContextLengthError)
        assert llm.usage == RequestCounts(requests=1, failures=1)
        llm = LLM(server.url, "tiny", timeout=seconds, max_retries=1, aiohttp=aiohttp)
        if passing:
            answer = await ask(llm)
            assert answer == Answer("hi", truncated=False, prompt_tokens=1, completion_tokens=7) and answer.seconds > 0
            assert llm.usage == RequestCounts(requests=1, retries=1, prompt_tokens=1, completion_tokens=7)
        else:
            with pytest.raises(LLMError):
                await ask(llm)
        await llm.close()
    assert len(server.requests) == 2 + passing


async def test_a_rate_limit_is_waited_for() -> None:
    with serve(replies(failure(429, "slow down", retry_after="0.7"), completion("hi"))) as server:
        llm = LLM(server.url, "tiny", max_retries=1)
        begin = time.monotonic()
        assert (await ask(llm)).text == "hi"
    assert time.monotonic() - begin >= 0.7  # without the header the client would wait for at most 0.5 s
    assert llm.usage.retries == 1


async def test_a_rate_limit_longer_than_two_minutes_is_told_at_once() -> None:
    with serve(lambda body: failure(429, "come back tomorrow", retry_after="86400")) as server:
        with pytest.raises(LLMError, match=r"refused the request to model 'tiny': Error code: 429 - come back tomorrow"):
            await ask(LLM(server.url, "tiny"))
        assert len(server.requests) == 1


async def test_all_kinds_of_failures_share_one_budget_of_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltamem.llm._FIRST_DELAY", 0.05)
    fails = failure(500, retry_after="0.01")
    with serve(replies(fails, Reply(b"?"), fails, Reply(b"?"))) as server:
        llm = LLM(server.url, "tiny", max_retries=2)
        with pytest.raises(LLMError, match="failed on the request to model 'tiny': Error code: 500"):
            await ask(llm)
        assert len(server.requests) == 3
    assert llm.usage.failures == 1 and llm.usage.requests == 1 and llm.usage.retries == 2


@pytest.mark.parametrize(
    "reply",
    [
        too_long(),
        failure(400, "too much", code="context_length_exceeded"),
        failure(400, "The decoder prompt (length 90) is longer than the maximum model length of 64."),
        failure(400, "request (90 tokens) exceeds the available context size (64 tokens), try increasing it"),
        failure(413, "prompt is too long: 90 tokens > 64 maximum"),
    ],
)
async def test_a_prompt_that_does_not_fit_is_an_error_of_its_own(reply: Reply) -> None:
    match = "the window of model 'tiny'"
    with serve(lambda body: reply) as server, pytest.raises(ContextLengthError, match=match) as caught:
        await ask(LLM(server.url, "tiny", max_retries=0))
    assert not is_passing(caught.value)


def test_what_cannot_be_right_is_told_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("localhost:8000/v1", "ftp://localhost", "http://", "http://host:99999/v1", "http://[::1/v1", ""):
        with pytest.raises(DeltaMemError, match="is not the URL of an endpoint"):
            LLM(url, "tiny")
    with pytest.raises(DeltaMemError, match="holds a password") as caught:
        LLM("http://me:hunter2@localhost/v1", "tiny")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(DeltaMemError, match="the name of the model is empty"):
        LLM("http://localhost:1/v1", "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeltaMemError, match=r"pip install 'openai\[aiohttp\]'"):
        LLM("http://localhost:1/v1", "tiny", aiohttp=True)


async def test_the_key_is_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", " sk-hunter2\n")
    with serve(lambda body: failure(401, "no such key: sk-hunter2")) as server:
        with pytest.raises(LLMError, match=r"refused the key in \$MY_KEY .*no such key: \*\*\*$"):
            await ask(LLM(server.url, "tiny", api_key_env="MY_KEY"))
        assert server.requests[0]["_key"] == "Bearer sk-hunter2"
    with serve(lambda body: Reply(b"." * 295 + b"sk-hunter2" + b"." * 99)) as server, pytest.raises(LLMError) as caught:
        await ask(LLM(server.url, "tiny", api_key_env="MY_KEY", max_retries=0))
    assert "sk-" not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "sk-hunter2\x07")
    with pytest.raises(DeltaMemError, match=r"\$MY_KEY holds no usable key") as caught:
        LLM(server.url, "tiny", api_key_env="MY_KEY")
    assert "hunter2" not in str(caught.value)


async def test_text_that_is_no_unicode_is_an_error_that_does_not_pass() -> None:
    with pytest.raises(LLMError, match="not valid Unicode") as caught:
        await LLM(unused_url(), "tiny").chat([{"role": "user", "content": "\ud800"}], temperature=0, max_tokens=1)
    assert not is_passing(caught.value)


async def test_requests_in_flight_are_bounded() -> None:
    with serve(lambda body: completion("hi", delay=0.03)) as server:
        llm = LLM(server.url, "tiny", max_concurrency=3)
        await asyncio.gather(*(ask(llm) for _ in range(12)))
    assert server.peak == 3 and llm.usage.requests == 12


async def test_a_cancelled_request_gives_its_slot_back() -> None:
    with serve(replies(completion("late", delay=5), completion("hi"))) as server:
        llm = LLM(server.url, "tiny", max_concurrency=1)
        late = asyncio.create_task(ask(llm))
        while not server.requests:
            await asyncio.sleep(0.01)
        late.cancel()
        assert (await ask(llm)).text == "hi"


@pytest.mark.parametrize("closing", [True, False])
def test_event_loops_in_turn(closing: bool) -> None:
    """Every loop keeps connections open and lets requests wait for slots: neither may reach into the next loop."""
    with serve(lambda body: completion("hi")) as server:
        llm = LLM(server.url, "tiny", max_concurrency=2, max_retries=0)

        async def several() -> int:
            answers = await asyncio.gather(*(ask(llm) for _ in range(5)))
            if closing:
                await llm.close()
            answers.append(await ask(llm))  # a closed client opens again
            if closing:
                await llm.close()
            return len(answers)

        gc.collect()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert [asyncio.run(several()) for _ in range(3)] == [6, 6, 6]
            gc.collect()
        assert not (closing and told)
    assert llm.usage == RequestCounts(requests=18, prompt_tokens=18, completion_tokens=126)


def test_event_loops_at_once() -> None:
    with serve(lambda body: completion("hi", delay=0.01)) as server:
        llm = LLM(server.url, "tiny", max_concurrency=2, max_retries=0)

        async def several() -> None:
            await asyncio.gather(*(ask(llm) for _ in range(8)))
            await llm.close()

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: asyncio.run(several()), range(4)))
    assert llm.usage.requests == 32 and llm.usage.failures == 0 and llm.usage.completion_tokens == 32 * 7


async def test_a_cached_answer_is_not_asked_for_again_and_all_that_decides_it_is_part_of_its_key(tmp_path: Path) -> None:
    with serve(lambda body: completion("hi", tokens=3, reasoning_content="hm")) as server:
        llm = LLM(server.url, "tiny", cache=ResponseCache(tmp_path / "cache.sqlite"))
        first, again = await ask(llm), await ask(llm)
        assert not first.cached and again == Answer("hi", False, 1, 3, cached=True, reasoning="hm")
        assert llm.usage == RequestCounts(requests=1, cached=1, prompt_tokens=1, completion_tokens=3)
        others: dict[str, Any] = {"sample": 1, "scope": "ann", "temperature": 0.5, "max_tokens": 9, "seed": 0}
        others |= {"response_format": {"type": "json_object"}, "extra_body": {"top_k": 1}}
        for name, value in others.items():
            assert not (await ask(llm, **{name: value})).cached
        assert not (await LLM(server.url, "other", cache=llm.cache).chat(HELLO, temperature=1, max_tokens=16)).cached
        assert (await ask(llm, scope="ann")).cached


async def test_truncated_and_failed_answers_are_not_cached(tmp_path: Path) -> None:
    script = replies(completion("cut o", finish="length"), failure(400, "no"), completion("hi"))
    with serve(script) as server:
        llm = LLM(server.url, "tiny", cache=ResponseCache(tmp_path / "cache.sqlite"))
        assert (await ask(llm)).truncated
        with pytest.raises(LLMError):
            await ask(llm)
        third = await ask(llm)
        assert (third.text, third.cached) == ("hi", False)
        assert (await ask(llm)).cached
    rows = sqlite3.connect(tmp_path / "cache.sqlite").execute("SELECT value FROM answers").fetchall()
    assert len(rows) == 1 and "hi" in rows[0][0]


def test_an_answer_that_was_paid_for_is_kept_though_its_call_is_cancelled(tmp_path: Path) -> None:
    """The answer waits for a thread to write it when the run is stopped."""
    cache, executor = ResponseCache(tmp_path / "cache.sqlite"), ThreadPoolExecutor(1)
    busy, released = threading.Event(), threading.Event()

    def keep_busy() -> None:
        busy.set()
        released.wait()

    def script(body: dict[str, Any]) -> Reply:
        executor.submit(keep_busy)
        busy.wait()
        return completion("paid")

    async def stopped(url: str) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(executor)
        call = asyncio.create_task(ask(LLM(url, "tiny", cache=cache)))
        while not busy.is_set() or not executor._work_queue.qsize():  # until the write waits for the only thread
            await asyncio.sleep(0.01)
        call.cancel()
        assert await asyncio.wait([call], timeout=0.05) == (set(), {call})  # whoever erases now comes after the write
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await call

    with serve(script) as server:
        asyncio.run(stopped(server.url))
        again = asyncio.run(ask(LLM(server.url, "tiny", cache=cache)))
        assert again.text == "paid" and again.cached and len(server.requests) == 1


async def test_certificates_are_those_that_the_client_trusts_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the system too, where a company has put its own."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    async with openai.DefaultAsyncHttpxClient() as client:
        own = client._transport._pool._ssl_context  # type: ignore[attr-defined]
        assert _trusted.__wrapped__().cert_store_stats() == own.cert_store_stats()


async def test_check_passes_by_the_cache(tmp_path: Path) -> None:
    with serve(replies(completion("h"), failure(404, "gone"))) as server:
        llm = LLM(server.url, "tiny", cache=ResponseCache(tmp_path / "cache.sqlite"))
        await llm.check(HELLO)
        with pytest.raises(LLMError, match="gone"):
            await llm.check(HELLO)
    assert server.requests[0]["max_tokens"] == 1


async def test_models_are_listed_with_their_windows() -> None:
    listed = [{"id": "a", "max_model_len": 4096}, {"id": "b", "context_window": 8}, {"id": "c", "owned_by": "x"}]
    listed += [{"id": "d", "meta": {"n_ctx": 16384}}, {"id": "e", "meta": {"n_ctx": None}}]
    with serve(lambda body: completion("hi"), models=listed) as server:
        models = [ServedModel("a", 4096), ServedModel("b", 8), ServedModel("c", None)]
        models += [ServedModel("d", 16384), ServedModel("e", None)]
        assert await LLM(server.url, "tiny").models() == models
        with pytest.raises(LLMError, match=r"refused the request .*404 - not found"):
            await LLM(server.url + "/x", "tiny").models()


ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0.5, "sample": 0}
PEERS = 4
EACH = 5


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def fill(path: Path, peer: int, start: object) -> None:
    """Open the cache at the same time as others, write, and read back."""
    start.wait()  # type: ignore[attr-defined]
    cache = ResponseCache(path)
    for number in range(EACH):
        cache.put("ann", {"asked": [peer, number]}, {"text": f"{peer} {number}"})
        assert cache.get("ann", {"asked": [peer, number]}) == {"text": f"{peer} {number}"}
    cache.close()


def test_an_answer_comes_back_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    value = {"text": "na\u00efve \u0000 \U0001f600\n", "prompt_tokens": 3}
    cache = ResponseCache(path)
    assert cache.get("ann", ASKED) is None
    cache.put("ann", ASKED, value)
    cache.close()
    assert ResponseCache(path).get("ann", dict(reversed(ASKED.items()))) == value


@pytest.mark.parametrize("reopened", [False, True])
def test_what_is_forgotten_is_in_no_file(reopened: bool, tmp_path: Path) -> None:
    """Also long answers, which lie in pages of their own, and while another connection is open."""
    path = tmp_path / "cache.sqlite"
    cache, other = ResponseCache(path), ResponseCache(path)
    for number in range(100):
        for scope in ("Canary Owner", "bob"):
            text = f"{scope} secret {number} " * (1 if number % 10 else 2000)
            cache.put(scope, {"asked": number}, {"text": text})
            cache.put(scope, {"asked": number}, {"text": text + "again"})
    assert other.get("Canary Owner", {"asked": 7}) is not None
    if reopened:
        cache.close()
        cache = ResponseCache(path)
    assert bytes_on_disk(tmp_path).count(b"Canary Owner") >= 100
    assert cache.forget("Canary Owner") == 100
    kept = bytes_on_disk(tmp_path)
    assert b"Canary Owner" not in kept and b"bob secret 99" in kept
    assert other.get("Canary Owner", {"asked": 7}) is None and other.get("bob", {"asked": 7}) is not None
    assert cache.forget("nobody") == 0


def test_a_reader_that_keeps_the_wal_from_being_emptied_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltamem.llm._BUSY_SECONDS", 0.1)
    path = tmp_path / "cache.sqlite"
    cache = ResponseCache(path)
    cache.put("ann", ASKED, {"text": "secret"})
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM answers").fetchall()
    with pytest.raises(DeltaMemError, match=r"in use by another process.*try again"):
        cache.forget("ann")
    reader.execute("COMMIT")
    cache.forget("ann")
    assert b"secret" not in bytes_on_disk(tmp_path)
    reader.close()


def test_processes_may_share_a_file_that_none_has_made(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may wait for ever for a lock of theirs
    start = context.Event()
    peers = [context.Process(target=fill, args=(path, peer, start)) for peer in range(PEERS)]
    for peer in peers:
        peer.start()
    start.set()
    for peer in peers:
        peer.join()
    assert [peer.exitcode for peer in peers] == [0] * PEERS
    cache = ResponseCache(path)
    assert all(cache.get("ann", {"asked": [peer, number]}) for peer in range(PEERS) for number in range(EACH))


def test_threads_may_open_a_file_that_none_has_made(tmp_path: Path) -> None:
    for attempt in range(4):
        start = threading.Event()
        with ThreadPoolExecutor(PEERS) as pool:
            done = [pool.submit(fill, tmp_path / f"{attempt}.sqlite", peer, start) for peer in range(PEERS)]
            start.set()
            assert [future.result() for future in done] == [None] * PEERS


def test_a_file_that_is_no_cache_is_told(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be read as one" * 100)
    with pytest.raises(DeltaMemError, match=r"notes\.txt: cannot be opened as a response cache: file is not a database"):
        ResponseCache(path)
    with pytest.raises(DeltaMemError, match=r"sqlite: cannot be opened as a response cache: No such file or directory$"):
        ResponseCache(tmp_path / "missing" / "cache.sqlite")
