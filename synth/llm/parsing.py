"""Reading what a model wrote: tolerant of everything around and beside the answer, strict with the answer.

Thinking, code fences and text around the JSON object are taken off, broken JSON is mended, unknown fields are dropped. A
missing field is never made up.
"""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import json_repair
from pydantic import ValidationError

from synth.llm.schemas import prune, record_schema
from synth.records import Record
from synth.rules.base import Verdict, Violation

TRUNCATED, JSON, SCHEMA = FORMAT_RULES = ("format.truncated", "format.json", "format.schema")
"""In the order in which they are checked."""

_MOST_ERRORS = 20
_LONGEST_VALUE = 80
_MOST_STARTS = 200
_LONGEST_MENDED = 200_000
"""Characters up to which broken JSON is mended: no answer is longer, only the babble of a failing model."""

# The end of thinking, as tags, as gpt-oss's channels, and as those read once their special tokens are gone.
_BEFORE_ANSWER = ("</think>", "<|message|>", "assistantfinal")
_SPECIAL_TOKEN = re.compile(r"<\|[a-z_]{1,30}\|>")

RecordT = TypeVar("RecordT", bound=Record)


class FormatError(Exception):
    """An answer that cannot be read.

    Attributes:
        verdict: Which of `FORMAT_RULES` were checked, and what is wrong.
    """

    def __init__(self, rule: str, *messages: str) -> None:
        super().__init__(rule, *messages)
        checked = FORMAT_RULES[: FORMAT_RULES.index(rule) + 1]
        self.verdict = Verdict(checked, tuple(Violation(rule, message) for message in messages))


def without_reasoning(text: str) -> str:
    """What a model wrote after thinking.

    Args:
        text: Its message, which holds the thinking too if the server does not separate it.
    """
    if text.startswith("{"):
        return text
    if "<think>" in text and "</think>" not in text:
        return ""
    for mark in _BEFORE_ANSWER:
        text = text.rpartition(mark)[2]
    return _SPECIAL_TOKEN.sub("", text).strip()


def parse_answer(text: str, answer: type[RecordT]) -> RecordT:
    """Read an answer.

    Args:
        text: What the model wrote.
        answer: The type of record that it has to be.

    Raises:
        FormatError: If no such record can be read; names ``format.json`` or ``format.schema``.
    """
    try:
        return answer.model_validate_json(text)
    except ValidationError:
        pass
    found = _find_object(without_reasoning(text), answer)
    if found is None:
        fields = ", ".join(answer.model_fields)
        raise FormatError(JSON, f"the answer holds no JSON object with the fields {fields} that can be read")
    try:
        return answer.model_validate(prune(found, record_schema(answer)))
    except ValidationError as error:
        raise FormatError(SCHEMA, *_messages(error)) from error


def _find_object(text: str, answer: type[Record]) -> dict[str, Any] | None:
    fields = answer.model_fields.keys()
    best: dict[str, Any] | None = None
    end = 0
    for brace in islice(re.finditer(r"\{", text), _MOST_STARTS):
        if brace.start() < end:
            continue
        try:
            value, end = _DECODER.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            continue
        if fields <= value.keys():
            best = value  # the last one: models correct themselves
    return best or _mend(text, answer)


def _mend(text: str, answer: type[Record]) -> dict[str, Any] | None:
    start = _opening(answer).search(text)
    if start is None:
        return None
    try:
        value = json_repair.loads(text[start.start() :][:_LONGEST_MENDED], skip_json_loads=True)
    except (ValueError, RecursionError):
        return None
    objects = [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, dict)]
    return next((part for part in objects if part.keys() & answer.model_fields.keys()), None)


@cache
def _opening(answer: type[Record]) -> re.Pattern[str]:
    """Where the object may begin: a brace before one of its fields, in whatever quotes."""
    return re.compile(r"\{\s*\W?(?:" + "|".join(map(re.escape, answer.model_fields)) + r")\b")


def _messages(error: ValidationError) -> list[str]:
    problems = error.errors(include_url=False, include_context=False)
    messages = [
        f"{_path(problem['loc'])}: {problem['msg']}{_found(problem['input'])}" for problem in problems[:_MOST_ERRORS]
    ]
    more = len(problems) - len(messages)
    return [*messages, f"{more} further fields are wrong"] if more else messages


def _path(location: tuple[int | str, ...]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return path.removeprefix(".") or "the answer"


def _found(value: Any) -> str:
    if isinstance(value, dict | list):
        return ""
    shown = json.dumps(value, ensure_ascii=False, default=str)
    if len(shown) <= _LONGEST_VALUE:
        return f" (found {shown})"
    return f" (found {shown[:_LONGEST_VALUE]}..., {len(value)} characters)"


_DECODER = json.JSONDecoder()
