"""The JSON schema of each unit's answer: every string and every list bounded, every field demanded, nothing else allowed.

Servers that constrain the output to a schema need the bounds: without them a weak model fills the window with one string.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from synth.records import Record
from synth.tasks import TASKS, Unit

ANSWERS: dict[Unit, type[Record]] = {task.unit: task.answer for task in TASKS}

_DATE = "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"
_LAST = ("text", "keywords")
_NOTES = frozenset({"title", "description", "default"})
"""What pydantic adds that is no constraint; docstrings must not change what a model is told."""


def answer_schema(unit: Unit) -> dict[str, Any]:
    """The JSON schema of a unit's answer; callers must not change it."""
    return record_schema(ANSWERS[unit])


@cache
def record_schema(answer: type[Record]) -> dict[str, Any]:
    """The JSON schema of a record; formats are replaced by patterns, which every server knows."""
    return _plain(answer.model_json_schema())


def prune(value: Any, schema: dict[str, Any]) -> Any:
    """Leave out what a schema does not know; what is missing or wrong stays so.

    Args:
        value: Parsed JSON.
        schema: Of `record_schema`.
    """
    return _prune(value, schema, schema.get("$defs", {}))


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):  # their keys are names
            found[key] = {name: _plain(part) for name, part in value.items()}
        elif key == "format":
            assert value == "date", value
            found["pattern"] = _DATE
        elif isinstance(value, dict):
            found[key] = _plain(value)
        elif isinstance(value, list):
            found[key] = [_plain(part) if isinstance(part, dict) else part for part in value]
        elif key not in _NOTES:
            found[key] = value
    if "properties" in found:
        # A model settles what a fact is about, and copies the previous text, before it words the new one (appendix A).
        found["properties"] = dict(sorted(found["properties"].items(), key=lambda part: part[0] in _LAST))
        found["required"] = list(found["properties"])
        found["additionalProperties"] = False
    return found


def _prune(value: Any, schema: dict[str, Any], named: dict[str, Any]) -> Any:
    if "$ref" in schema:
        schema = named[schema["$ref"].rpartition("/")[2]]
    if isinstance(value, dict) and "properties" in schema:
        parts = schema["properties"]
        return {name: _prune(part, parts[name], named) for name, part in value.items() if name in parts}
    if isinstance(value, list) and "items" in schema:
        return [_prune(part, schema["items"], named) for part in value]
    return value
