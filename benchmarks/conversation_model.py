"""A model that keeps what one of two people says, word for word: an OpenAI-compatible server for DeltaMem, mem0 and LangMem.

It recognises each system by its prompt and takes the same facts for all: each turn of the user that it is shown is one
memory. To DeltaMem it answers with one search for all turns of the session, then with an ADD for each; to mem0 with a JSON
list; to LangMem with tool calls. Run as a program it prints its base URL and serves until its standard input ends. ``GET
/counts`` says how many answers it has given, and their tokens, estimated as bytes / 3.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from deltamem.episode import MAX_QUERIES
from deltamem.window import estimate_tokens

_MEM0 = re.compile(r"## New Messages\n(.*?)\n\n## Observation Date", re.DOTALL)
"""Where mem0's prompt shows what is new; other parts of it repeat earlier messages."""

_LANGMEM = re.compile(r"=+ Human Message =+\n\n(.*?)(?=\n+=+ \w+ Message =+\n|\n</session_)", re.DOTALL)
"""Where LangMem's prompt shows what the user said."""


class ConversationModel:
    """Knows all turns, so that it finds where one ends in whatever way it is shown."""

    def __init__(self, turns: list[str]) -> None:
        """Learn the turns, each after the name of its speaker."""
        self._turns = turns

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """The assistant message that answers a request."""
        messages = body["messages"]
        shown = str(messages[1]["content"])
        if "tools" in body:
            said = self._said("\n".join(_LANGMEM.findall(shown)), "")
            return {"content": None, "tool_calls": [_call(number, text) for number, text in enumerate(said)]}
        if part := _MEM0.search(shown):
            facts = [{"id": str(number), "text": text} for number, text in enumerate(self._said(part[1], "user: "))]
            return {"content": json.dumps({"memory": facts}, ensure_ascii=False)}
        said = self._said(shown, "user: ")
        if len(messages) == 2 and said:
            call = {"name": "search_memory", "arguments": {"query_list": said[:MAX_QUERIES]}}
            return {"content": f"<think>What is known?</think><tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"}
        operations = json.dumps({"operations": [{"text": text, "event": "ADD"} for text in said]}, ensure_ascii=False)
        return {"content": f"<think>That is all.</think><outputs>{operations}</outputs>"}

    def _said(self, shown: str, before: str) -> list[str]:
        found = [(shown.find(before + turn), turn) for turn in self._turns]
        return [turn for place, turn in sorted(found) if place >= 0]


def _call(number: int, text: str) -> dict[str, Any]:
    arguments = json.dumps({"content": text}, ensure_ascii=False)
    return {"id": f"call{number}", "type": "function", "function": {"name": "Memory", "arguments": arguments}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Otherwise the kernel holds back the body until the headers are acknowledged: 40 ms on each answer.
    disable_nagle_algorithm = True
    wbufsize = -1
    model: ConversationModel
    latency: float
    counts: Counter[str]
    lock: threading.Lock

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("max_tokens") == 1:  # whether there is anybody
            self._complete({"content": "Yes."}, 1, 1)
            return
        time.sleep(self.latency)
        message = self.model.answer(body)
        read = sum(estimate_tokens(json.dumps(body.get(part, ""), ensure_ascii=False)) for part in ("messages", "tools"))
        written = estimate_tokens(json.dumps(message, ensure_ascii=False))
        with self.lock:
            self.counts.update(calls=1, prompt_tokens=read, completion_tokens=written)
        self._complete(message, read, written)

    def do_GET(self) -> None:
        if self.path == "/counts":
            self._send(dict(self.counts))
        else:
            self._send({"object": "list", "data": [{"id": "scripted", "max_model_len": 32768}]})

    def _complete(self, message: dict[str, Any], read: int, written: int) -> None:
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
        kind = {"id": "scripted", "object": "chat.completion", "created": 0, "model": "scripted"}
        self._send(kind | {"choices": [choice], "usage": usage})

    def _send(self, payload: dict[str, Any]) -> None:
        data = json.dumps(payload).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    """Serve until the standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("turns", type=Path, help="JSON list of the turns")
    parser.add_argument("latency", type=float, help="seconds before each answer")
    arguments = parser.parse_args()
    parts = {
        "model": ConversationModel(json.loads(arguments.turns.read_bytes())),
        "latency": arguments.latency,
        "counts": Counter(calls=0, prompt_tokens=0, completion_tokens=0),
        "lock": threading.Lock(),
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), parts))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
