"""What a scripted model answers to the memory systems, each in the way in which it asks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from episodic_cases import reflection, reflections, summary_block, turn_block
from rule_model import answer
from scripted_server import Reply, completion, is_check

from deltamem.prompts import load_prompt
from papers.episodic.reading import REFLECTIONS_PROMPT, SUMMARY_PROMPT, TURNS_PROMPT

_MEM0 = re.compile(r"## New Messages\n(.*?)\n\n## Observation Date", re.DOTALL)
"""Where mem0's prompt shows what is new."""

_SAID = re.compile(r"(?<=Ana: )[^\"]*")
"""What Ana says, in prompts that name the speaker before the text."""

_FACT = re.compile(r"\bmy ([a-z][a-z0-9 ]*?) is ([^.\n]+)\.", re.IGNORECASE)


_NOTED = re.compile(r"The user's ([a-z][a-z0-9 ]*?) is ([^.\n]+)\.")

_TURN = re.compile(r"<turn_(\d+)>\nuser: (.*)\n")
"""A turn in the prompts of episodic memory, with what the user says."""

_KEPT = re.compile(r"^id: (m\d+)\ntitle: (.*)$", re.MULTILINE)


def manager_of(body: dict[str, Any]) -> Reply:
    """Answer DeltaMem, episodic memory, mem0 or LangMem with the facts that Ana states, such as ``My city is Boston.``."""
    if is_check(body):
        return completion("Hello.")
    if any(tool["function"]["name"] == "search_memory" for tool in body.get("tools", ())):
        call = {"name": "search_memory", "arguments": json.dumps({"query": "What does Ana say?"})}
        return completion(None, finish="tool_calls", tool_calls=[{"id": "q", "type": "function", "function": call}])
    shown = str(body["messages"][1]["content"])
    if "tools" in body:
        calls = [_call(number, text) for number, text in enumerate(_facts(shown))]
        return completion(None, finish="tool_calls", tool_calls=calls) if calls else completion("Nothing.")
    if part := _MEM0.search(shown):
        memories = [{"id": str(number), "text": text} for number, text in enumerate(_facts(part[1]))]
        return completion(json.dumps({"memory": memories}))
    return completion(reviewer_of(body) or answer(body["messages"]))


def reviewer_of(body: dict[str, Any]) -> str | None:
    """Answer each stage of episodic memory by what its prompt shows; None for other prompts."""
    prompt, asked, *_ = (str(message["content"]) for message in body["messages"])
    if prompt == load_prompt(TURNS_PROMPT, "papers.episodic.prompts").text:
        notes = [
            turn_block(int(number), ended=False).replace(
                "Called the tool for it.", _note(_FACT.findall(said)) or "Listened."
            )
            for number, said in _TURN.findall(asked.partition("<turns>")[2])
        ]
        return f"<summary>{''.join(notes)}</summary>"
    noted = dict(_NOTED.findall(asked.partition("<similar_episodes>")[0]))
    if prompt == load_prompt(SUMMARY_PROMPT, "papers.episodic.prompts").text:
        return summary_block(note=_note(noted.items()))
    if prompt != load_prompt(REFLECTIONS_PROMPT, "papers.episodic.prompts").text:
        return None
    kept = {title: memory for memory, title in _KEPT.findall(asked)}
    lessons = []
    for subject, value in noted.items():
        memory = kept.get(title := f"What to know of the {subject}")
        hints, use = _note([(subject, value)]), f"Wherever the {subject} matters."
        lessons.append(reflection("update" if memory else "add", memory, title, use, hints))
    return reflections(*lessons)


def _note(facts: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"The user's {subject.lower()} is {value}." for subject, value in facts)


def _facts(shown: str) -> list[str]:
    said = [line for part in _SAID.findall(shown) for line in part.splitlines()[:1]]
    return [f"Ana's {subject.lower()} is {value}." for line in said for subject, value in _FACT.findall(line)]


def _call(number: int, text: str) -> dict[str, Any]:
    arguments = json.dumps({"content": text})
    return {"id": f"call{number}", "type": "function", "function": {"name": "Memory", "arguments": arguments}}
