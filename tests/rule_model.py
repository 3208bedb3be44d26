"""A model made of rules, which follows the protocol like a language model would and is right every time.

It reads sentences of the form "My city is Boston." from the user's turns, searches for "Ann's city is", and adds, updates or
repeats the memory "Ann's city is Boston.", as a policy in the process or as the answer function of the scripted server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from episode_texts import outputs, search
from scripted_server import Reply, completion, is_check

from deltamem.episode import Message
from deltamem.memory import Event, Operation
from deltamem.policy import Completion

_FACT = re.compile(r"\bmy ([a-z][a-z0-9 ]*?) is ([^.\n]+)\.", re.IGNORECASE)
_LINE = re.compile(r"^\[(\d+)\] ([^:\n]+): (.*)$", re.MULTILINE)
_NUMBERED = re.compile(r"(\d+)\. (.+)")
_NOTE = re.compile(r"   (m\d+): (.+)")
_PERSON = re.compile(r"^Person: (.*)$", re.MULTILINE)


def facts(messages: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Memory texts by subject, as the user's turns of the session state them; the last statement counts."""
    opening = messages[1]["content"]
    person = _PERSON.search(opening)
    assert person is not None
    said = [line for line in opening.splitlines() if line.startswith("user: ")]
    return {
        f"{person[1]}'s {subject.lower()} is": f"{person[1]}'s {subject.lower()} is {value}."
        for line in said
        for subject, value in _FACT.findall(line)
    }


def answer(messages: Sequence[Mapping[str, str]]) -> str:
    """The next assistant text."""
    wanted = facts(messages)
    if not wanted:
        return outputs()
    if messages[-1]["role"] not in ("tool", "user") or len(messages) == 2:
        return search(*wanted)
    found = {memory["text"]: memory["id"] for memory in json.loads(messages[-1]["content"])}
    operations = []
    for subject, text in wanted.items():
        stored = next((known for known in found if known.startswith(subject + " ")), None)
        if stored is None:
            operations.append(Operation(Event.ADD, text))
        elif stored == text:
            operations.append(Operation(Event.NONE, text, found[stored]))
        else:
            operations.append(Operation(Event.UPDATE, text, found[stored]))
    return outputs(*operations)


def assisted_answer(messages: Sequence[Mapping[str, str]]) -> str:
    """The JSON of an assisted episode: the facts of the session, or how each fact stands to the memories beside it."""
    asked = messages[-1]["content"]
    if "Conversation on " in asked:
        said = [(int(number), person, text) for number, person, text in _LINE.findall(asked)]
        stated = [
            {"line": number, "fact": f"{person}'s {subject.lower()} is {value}."}
            for number, person, text in said
            for subject, value in _FACT.findall(text)
        ]
        return json.dumps({"facts": stated})
    judged: dict[str, dict[str, str]] = {}
    fact = ""
    for line in asked.splitlines():
        if numbered := _NUMBERED.fullmatch(line):
            fact = numbered[2]
            judged[numbered[1]] = {"relation": "new", "note": "none"}
        elif (note := _NOTE.fullmatch(line)) and note[2].partition(" is ")[0] == fact.partition(" is ")[0]:
            judged[str(len(judged))] = {"relation": "same" if note[2] == fact else "change", "note": note[1]}
    return json.dumps(judged)


def rules(body: Mapping[str, Any]) -> Reply:
    """The rules as a script of the scripted server, for both modes."""
    if is_check(body):
        return completion("Hello.")
    return completion((assisted_answer if "response_format" in body else answer)(body["messages"]))


class RulePolicy:
    """The rules as a policy."""

    name = "rules"

    async def complete(self, messages: Sequence[Message]) -> Completion:
        text = answer([{"role": message["role"], "content": message["content"]} for message in messages])
        return Completion(text, truncated=False, tokens=len(text.split()), prompt_tokens=10)
