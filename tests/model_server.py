"""A server in a process of its own that answers the prompts of synthesis (the offline writer is its brain) or of benchmarks.

    python tests/model_server.py --port 8000 --latency 0.3 --slots 64 --faults 0.05
    python tests/model_server.py --port 8000 --latency 0.2 --slots 64 --brain benchmark

Of the shape `demanding` the offline writer can tell what is left of its plan by `synth.config.Demands.scripted`.

It speaks as much of the OpenAI protocol as is asked for. An answer depends on the request alone, so that an interrupted run
and its resume see what an uninterrupted run sees. Faults: half of them are of transport (500, 429, an answer that takes
``--hang`` seconds and is a 503 then, in turn), once a request; the other half are bad answers (broken JSON, a broken rule),
which that very request always gets. ``GET /stats`` tells what was served.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import random
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from synth.records import Dialogue, LifeEvent, Voice

MODEL = "scripted"
THINKING = 100
"""Tokens of thinking that it claims for each answer."""
TRANSPORT_FAULTS, ANSWER_FAULTS = ("500", "429", "hang"), ("json", "rule")


Brain = Callable[[Sequence[Mapping[str, str]], random.Random], str]


def synthesis_brain() -> Brain:
    """The same good answer to a task whenever it is put; asked for parts, the parts in which the last answer differs."""
    from synth.llm.answers import ANSWERS, patch_type
    from synth.llm.writer import read_task
    from synth.offline import answer
    from synth.records import Dialogue
    from synth.tasks import REVIEWS, Events

    def reply(messages: Sequence[Mapping[str, str]], _: random.Random) -> str:
        task = read_task(messages)
        if task.unit in REVIEWS:  # nothing is found
            return json.dumps({name: [] for name in task.answer.model_fields})
        good = answer(task, random.Random(hashlib.sha256(task.model_dump_json().encode()).hexdigest()))
        if isinstance(good, Events):
            good = Events(events=tuple(map(partial(_long_enough, task.limits.narrative_words.min), good.events)))
        if isinstance(good, Dialogue):
            good = _voiced(task.voice, good)
        if "Send only the parts" not in messages[-1]["content"]:
            return good.model_dump_json()
        standing = ANSWERS[task.unit].model_validate_json(messages[-2]["content"])
        kept = {"removed": [], "guest_turn": 0}
        patch: dict[str, Any] = {name: kept[name] for name in patch_type(task.unit).model_fields if name in kept}
        for name in patch_type(task.unit).model_fields.keys() - patch.keys():
            before, after = getattr(standing, name), getattr(good, name)
            patch[name] = [
                {"number": number, **part.model_dump(mode="json")}
                for number, part in enumerate(after, start=1)
                if part not in before[number - 1 : number]
            ]
        return json.dumps(patch, ensure_ascii=False)

    return reply


def _long_enough(words: int, event: LifeEvent) -> LifeEvent:
    """Templates tell less than a language model is asked for."""
    missing = words - len(event.narrative.split())
    return event.model_copy(update={"narrative": event.narrative + " so" * max(0, missing)})


def _voiced(voice: Voice, dialogue: Dialogue) -> Dialogue:
    """Templates know no guests and no stray lines."""
    turns = list(dialogue.turns)
    if voice.interference:
        turns[0] = turns[0].model_copy(update={"assistant": f"{turns[0].assistant} {voice.interference}"})
    if not voice.guest:
        return dialogue.model_copy(update={"turns": tuple(turns)})
    given = voice.guest.split()[0]
    greeting = {
        "user": f"This is {given} at the keyboard. Hello!",
        "assistant": f"Hello {given}, nice of you to look in.",
    }
    turns.append(turns[0].model_copy(update=greeting))
    return dialogue.model_copy(update={"turns": tuple(turns), "guest_turn": len(turns)})


def benchmark_brain() -> Brain:
    """Judges, whose prompts ask for a label, get one; all other questions a short answer."""

    def reply(messages: Sequence[Mapping[str, str]], rng: random.Random) -> str:
        if '"label"' in messages[-1]["content"]:
            return json.dumps({"reason": "Scripted.", "label": rng.choice(("correct", "wrong"))})
        return f"Answer {rng.randrange(10**6)}"

    return reply


BRAINS = {"synthesis": synthesis_brain, "benchmark": benchmark_brain}


class ModelServer:
    """The application."""

    def __init__(self, brain: Brain, latency: float, slots: int, faults: float, hang: float) -> None:
        self._brain = brain
        self._latency = latency
        self._slots = asyncio.Semaphore(slots)
        self._faults = faults
        self._hang = hang
        self._failed: set[str] = set()
        self._transport = itertools.cycle(TRANSPORT_FAULTS)
        self.served = Counter(dict.fromkeys(("calls", "answers", *TRANSPORT_FAULTS, *ANSWER_FAULTS), 0))
        self._requests: Counter[str] = Counter()
        self._in_flight = 0
        self._first = self._last = 0.0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            await _send(send, 200, self._get(scope["path"]))
            return
        chunks = []
        while True:
            message = await receive()
            chunks.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        body = json.loads(b"".join(chunks))
        self._first = self._first or time.monotonic()
        self._in_flight += 1
        self.served["most in flight"] = max(self.served["most in flight"], self._in_flight)
        try:
            async with self._slots:
                started = time.monotonic()
                status, answer = self._answer(body)
                if status == 0:
                    await asyncio.sleep(self._hang)
                    status, answer = 503, {"error": {"message": "too late"}}
                await asyncio.sleep(max(0.0, self._latency - (time.monotonic() - started)))
        finally:
            self._in_flight -= 1
            self._last = time.monotonic()
        await _send(send, status, answer)

    def _get(self, path: str) -> dict[str, Any]:
        if path.endswith("/models"):
            return {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 131072}]}
        repeated = sum(count - 1 for count in self._requests.values())
        return {**self.served, "seconds": self._last - self._first, "distinct": len(self._requests), "repeated": repeated}

    def _answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.served["calls"] += 1
        key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        rng = random.Random(key)
        kind = rng.choice(["transport", *ANSWER_FAULTS, "transport"]) if rng.random() < self._faults else ""
        if kind == "transport" and key not in self._failed:
            self._failed.add(key)
            fault = next(self._transport)
            self.served[fault] += 1
            return 0 if fault == "hang" else int(fault), {
                "error": {"message": f"injected {fault}", "type": "x", "code": None}
            }
        if body.get("max_tokens") == 1:  # only asks whether the server is there
            return 200, _completion("x", 1)
        self._requests[key] += 1
        self.served["answers"] += 1
        text = self._brain(body["messages"], rng)
        if kind in ANSWER_FAULTS:
            self.served[kind] += 1
            text = text[: len(text) // 3] + "]}" if kind == "json" else _spoilt(text)
        reply = _completion(text, len(text) // 4)
        self.served["tokens"] += reply["usage"]["total_tokens"]
        return 200, reply


def _spoilt(text: str) -> str:
    """An answer that keeps its form and breaks a rule in one place: a name or a turn is no longer that of the task."""
    return re.sub(r'"(text|name)":"', r'"\1":"Somebody else ', text, count=1).replace('"turn":', '"turn":9', 1)


def _completion(text: str, tokens: int) -> dict[str, Any]:
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {
            "prompt_tokens": 1000,
            "completion_tokens": tokens + THINKING,
            "completion_tokens_details": {"reasoning_tokens": THINKING},
            "total_tokens": 1000 + tokens + THINKING,
        },
    }


async def _send(send: Any, status: int, body: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json"), *([(b"retry-after", b"0")] if status == 429 else [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


@contextmanager
def model_server(
    *, latency: float = 0.0, slots: int = 64, faults: float = 0.0, hang: float = 5.0, brain: str = "synthesis"
) -> Iterator[str]:
    """Start the server; yields the base URL, which ends in ``/v1``."""
    held = socket.socket()  # bound and not listening, so that nobody else is given the port before the server listens there
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    command = [sys.executable, "-P", __file__, "--port", str(port), "--latency", str(latency)]
    command += ["--slots", str(slots), "--faults", str(faults), "--hang", str(hang), "--brain", brain]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1])
    url = f"http://127.0.0.1:{port}/v1"
    try:
        _wait(url, process)
        yield url
    finally:
        process.kill()  # otherwise it would end its requests first
        process.wait()
        held.close()


def stats(url: str) -> dict[str, Any]:
    """What the server has served so far."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/stats", timeout=60) as response:
        found: dict[str, Any] = json.load(response)
        return found


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        try:
            stats(url)
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the model server did not start")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--faults", type=float, default=0.0)
    parser.add_argument("--hang", type=float, default=5.0)
    parser.add_argument("--brain", choices=BRAINS, default="synthesis")
    arguments = parser.parse_args()
    server = ModelServer(BRAINS[arguments.brain](), arguments.latency, arguments.slots, arguments.faults, arguments.hang)
    uvicorn.run(server, host="127.0.0.1", port=arguments.port, log_level="warning", lifespan="off", timeout_keep_alive=120)


if __name__ == "__main__":
    main()
