"""The prompts as files, one a unit, and the messages made of them.

The system message is the same for all tasks of a unit, so that servers reuse its prefix: rules of the house, the unit's own
instructions, the sentences of its validators (`synth.rules`), so that prompt and validators cannot drift apart, and the JSON
schema of the answer. The user message holds the task as one JSON block.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from string import Template
from typing import Any

from synth.llm.schemas import answer_schema
from synth.records import Record
from synth.rules import UNIT_RULES
from synth.rules.base import Violation
from synth.tasks import TASKS, Task, Unit

Message = Mapping[str, str]

_TASK_TYPES: dict[Unit, type[Task[Record]]] = {task.unit: task for task in TASKS}
_TASK = re.compile(r"^Unit: (?P<unit>\w+)$.*^<task>\n(?P<task>.*)\n</task>$", re.DOTALL | re.MULTILINE)
_MOST_VIOLATIONS = 20
_LONGEST_VIOLATION = 400


def opening(task: Task[Any]) -> list[dict[str, str]]:
    """The messages that put a task to a model."""
    # Without "<", nothing inside the block can end it or be taken for a special token; to a JSON reader it is the same.
    block = task.model_dump_json().replace("<", "\\u003c")
    return [
        {"role": "system", "content": system_prompt(task.unit)},
        {"role": "user", "content": f"Unit: {task.unit}\n\n<task>\n{block}\n</task>\n\n{_text('ask')}"},
    ]


def repair(answer: str, violations: Sequence[Violation]) -> list[dict[str, str]]:
    """The messages that send an answer back.

    Args:
        answer: What the model wrote, without its thinking.
        violations: What is wrong with it, at least one.
    """
    listed = [f"- {rule}: {_shortened(message)}" for rule, message in violations[:_MOST_VIOLATIONS]]
    more = len(violations) - len(listed)
    if more:
        listed.append(f"- and {more} more")
    return [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": Template(_text("repair")).substitute(violations="\n".join(listed))},
    ]


def read_task(messages: Iterable[Message]) -> Task[Any]:
    """Find the task in a conversation; what a scripted server answers is made of it.

    Raises:
        ValueError: If there is none.
    """
    for message in messages:
        if message["role"] == "user" and (found := _TASK.search(message["content"])):
            return _TASK_TYPES[Unit(found["unit"])].model_validate_json(found["task"])
    raise ValueError("the conversation holds no task")


@cache
def system_prompt(unit: Unit) -> str:
    """Who the model is, what the unit is about, the rules and the schema of the answer."""
    return Template(_text("frame")).substitute(
        unit=Template(_text(unit)).substitute(facts=_text("facts")),
        rules="\n".join(f"- {rule.name}: {rule.says}" for rule in UNIT_RULES[unit]),
        schema=json.dumps(answer_schema(unit), separators=(",", ":")),
    )


def prompt_hashes() -> dict[str, str]:
    """The sha256 of everything in the messages that is neither task nor answer: by unit, and of the repairs (`repair`)."""
    texts = {unit.value: system_prompt(unit) + _text("ask") for unit in Unit} | {"repair": _text("repair")}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


@cache
def _text(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.md").read_text(encoding="utf-8").strip()


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST_VIOLATION else line[: _LONGEST_VIOLATION - 3] + "..."
