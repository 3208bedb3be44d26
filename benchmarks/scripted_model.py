"""A model that answers at once: an OpenAI-compatible server that plays the memory manager of DeltaMem and that of mem0.

It takes the same facts from a session for both. To DeltaMem it answers with one search for all facts, then with an ADD for
each new fact and an UPDATE for each correction; to mem0, which asks once and only adds, with the facts. It embeds texts by
hashed words. Run as a program it prints its base URL and serves until its standard input ends. ``GET /counts`` says how many
answers it has given.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hashed_words import vectors_of
from workload import CORRECT, REMEMBER

_FACT = re.compile(rf"({re.escape(REMEMBER)}|{re.escape(CORRECT)})(.+?\.)(?=\s|$)")
_NEW_MESSAGES = re.compile(r"## New Messages\n(.*?)\n\n## Observation Date", re.DOTALL)
"""Where mem0's prompt shows the session; other parts of it repeat earlier ones."""


def answer(messages: list[dict[str, Any]]) -> tuple[str, str]:
    """Answer a conversation; returns for whom, and the text."""
    session = str(messages[1]["content"])
    if part := _NEW_MESSAGES.search(session):
        facts = [{"id": str(index), "text": fact} for index, (_, fact) in enumerate(_FACT.findall(part[1]))]
        return "mem0", json.dumps({"memory": facts})
    found = _FACT.findall(session)
    if len(messages) == 2:
        call = {"name": "search_memory", "arguments": {"query_list": [_query(fact) for _, fact in found]}}
        return "deltamem", f"<think>What is known?</think><tool_call>{json.dumps(call)}</tool_call>"
    stored = {_without_numbers(memory["text"]): memory["id"] for memory in json.loads(messages[-1]["content"])}
    operations = [_operation(start, fact, stored) for start, fact in found]
    return "deltamem", f"<think>That is all.</think><outputs>{json.dumps({'operations': operations})}</outputs>"


def _operation(start: str, fact: str, stored: dict[str, str]) -> dict[str, str]:
    target = stored.get(_without_numbers(fact)) if start == CORRECT else None
    return (
        {"text": fact, "event": "ADD"} if target is None else {"text": fact, "event": "UPDATE", "target_memory_id": target}
    )


def _query(fact: str) -> str:
    """What a model would ask for: the fact without the person and the details."""
    return " ".join(fact.rstrip(".").split()[3:])


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "", text)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Otherwise the kernel holds back the body until the headers are acknowledged: 40 ms on each answer.
    disable_nagle_algorithm = True
    wbufsize = -1
    counts: Counter[str]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/embeddings"):
            vectors = vectors_of(body["input"]).tolist()
            data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            self._send({"object": "list", "model": body["model"], "data": data, "usage": usage})
            return
        asker, text = answer(body["messages"])
        self.counts[asker] += 1
        self._send(
            {
                "id": "scripted",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        )

    def do_GET(self) -> None:
        self._send(dict(self.counts))

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
    handler = type("Handler", (_Handler,), {"counts": Counter()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
