"""Reading what a model replied: thinking is taken off, and a JSON object is found in whatever surrounds it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from deltamem.llm import Answer
from eval.results.records import Cost

_DECODER = json.JSONDecoder(strict=False)  # line breaks within strings are common


def cost_of(answer: Answer) -> Cost:
    """The cost of one answer; waiting for a free slot does not count."""
    return Cost(
        calls=1,
        cached=int(answer.cached),
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        seconds=round(answer.seconds, 4),
    )


def without_thinking(text: str) -> str:
    """What follows the last ``</think>``; what precedes a ``<think>`` that never ended; else the text itself."""
    return text.rpartition("</think>")[2].partition("<think>")[0].strip()


def last_object(text: str, keys: Collection[str]) -> dict[str, str] | None:
    """Find the last JSON object with certain keys.

    Models quote the task, try, and correct themselves, so the last one counts. Where no object can be decoded, because of
    quotation marks within a string for example, single fields are looked for, and count if they are not contradictory.

    Args:
        text: What the model wrote after thinking.
        keys: What the object must have, in lower case; its own keys may be in any case.

    Returns:
        The object's fields by lower-case key, values as strings; None if there is no such object.
    """
    found: dict[str, str] | None = None
    end = 0
    for brace in re.finditer(r"\{", text):
        if brace.start() < end:
            continue
        try:
            value, after = _DECODER.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            continue
        fields = {str(key).strip().casefold(): _string(part) for key, part in value.items()}
        if fields.keys() >= set(keys):
            found, end = fields, after
    return found or _single_fields(text, keys)


def _single_fields(text: str, keys: Collection[str]) -> dict[str, str] | None:
    fields = {}
    for key in keys:
        pattern = rf"""["']{re.escape(key)}["']\s*:\s*(?:"([^"\n]*)"|'([^'\n]*)'|(\w+))\s*[,}}]"""
        values = {"".join(match).strip().casefold() for match in re.findall(pattern, text, re.IGNORECASE)}
        if len(values) != 1:
            return None
        fields[key] = values.pop()
    return fields


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False)
