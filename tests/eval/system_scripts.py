"""What a scripted model answers to the memory systems, each in the way in which it asks."""

from __future__ import annotations

import json
import re
from typing import Any

from rule_model import answer
from scripted_server import Reply, completion, is_check

try:
    from reviewer_script import reviewer_of
except ModuleNotFoundError:  # papers/ was removed, and episodic memory with it

    def reviewer_of(body: dict[str, Any]) -> str | None:
        return None


_MEM0 = re.compile(r"## New Messages\n(.*?)\n\n## Observation Date", re.DOTALL)
"""Where mem0's prompt shows what is new."""

_SAID = re.compile(r"(?<=Ana: )[^\"]*")
"""What Ana says, in prompts that name the speaker before the text."""

_FACT = re.compile(r"\bmy ([a-z][a-z0-9 ]*?) is ([^.\n]+)\.", re.IGNORECASE)


def manager_of(body: dict[str, Any]) -> Reply:
    """Answer any of the systems with the facts that Ana states, such as ``My city is Boston.``."""
    if is_check(body):
        return completion("Hello.")
    if any(tool["function"]["name"] == "search_memory" for tool in body.get("tools", ())):
        call = {"name": "search_memory", "arguments": json.dumps({"query": "What does Ana say?"})}
        return completion(None, finish="tool_calls", tool_calls=[{"id": "q", "type": "function", "function": call}])
    if len(body["messages"]) == 1:
        return completion(lightmem_of(body["messages"][0]["content"]))
    shown = str(body["messages"][1]["content"])
    if "tools" in body:
        calls = [_call(number, text) for number, text in enumerate(_facts(shown))]
        return completion(None, finish="tool_calls", tool_calls=calls) if calls else completion("Nothing.")
    if part := _MEM0.search(shown):
        memories = [{"id": str(number), "text": text} for number, text in enumerate(_facts(part[1]))]
        return completion(json.dumps({"memory": memories}))
    return completion(reviewer_of(body) or answer(body["messages"]))


def lightmem_of(asked: str) -> str:
    """The facts of what LightMem shows of a session; in its sleep a newer value of the same thing replaces the older."""
    if "Older note" not in asked:
        stated = re.findall(r"^\[(\d+)\] Ana: (.*)$", asked, re.MULTILINE)
        facts = [{"line": int(line), "fact": fact} for line, said in stated for fact in _facts(f"Ana: {said}")]
        return json.dumps({"facts": facts})
    older, newer = (re.findall(r"Ana's (.*?) is (.*?)\.", part) for part in asked.split("Newer notes, by time:"))
    stale = any(subject == one and value != two for subject, value in older for one, two in newer)
    return json.dumps({"action": "delete" if stale else "ignore", "memory": ""})


def _facts(shown: str) -> list[str]:
    said = [line for part in _SAID.findall(shown) for line in part.splitlines()[:1]]
    return [f"Ana's {subject.lower()} is {value}." for line in said for subject, value in _FACT.findall(line)]


def _call(number: int, text: str) -> dict[str, Any]:
    arguments = json.dumps({"content": text})
    return {"id": f"call{number}", "type": "function", "function": {"name": "Memory", "arguments": arguments}}
