"""Reading what a model answers: its thinking dropped, its JSON object found and checked.

Whatever the text, nothing is raised. The turns of an episode have a reader of their own, `deltamem.episode.read_turn`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

_DECODER = json.JSONDecoder(strict=False)  # line breaks within strings are common
_MOST_STARTS = 1_000  # Braces at which an object is looked for; a failing model may write nothing else
_MOST_PROBLEMS = 20
_LONGEST_VALUE = 80

# The end of thinking, as tags, as gpt-oss's channels, and as those read once their special tokens are gone.
_BEFORE_ANSWER = ("</think>", "<|message|>", "assistantfinal")
_SPECIAL_TOKEN = re.compile(r"<\|[a-z_]{1,30}\|>")


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What was understood of an answer."""

    value: T | None  # None if it cannot be understood
    violations: tuple[Any, ...] = ()  # What is wrong with it, though it may be understood


def without_thinking(text: str) -> str:
    """What a model wrote after thinking, for servers that do not separate the two.

    It follows the last end of thinking; of thinking that never ended, what precedes it counts.
    """
    if text.startswith("{"):  # the marks may stand in a string
        return text.strip()
    for mark in _BEFORE_ANSWER:
        text = text.rpartition(mark)[2]
    return _SPECIAL_TOKEN.sub("", text.partition("<think>")[0]).strip()


def last_object(text: str, accept: Callable[[dict[str, Any]], T | None]) -> T | None:
    """The last JSON object in a text that is accepted, whatever stands around it.

    Models quote the task, try, and correct themselves, so the last one counts; an object within an accepted one does not.
    `accept` says what an object is taken for; None if it is not the one that was asked for.
    """
    found: T | None = None
    end = 0
    for brace in islice(re.finditer(r"\{", text), _MOST_STARTS):
        if brace.start() < end:
            continue
        try:
            value, after = _DECODER.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            continue
        if (accepted := accept(value)) is not None:
            found, end = accepted, after
    return found


def read_object(text: str, model: type[Model]) -> Reading[Model]:
    """Read the last JSON object that has the required fields of a model; violations say what the model complains of."""
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    found = last_object(without_thinking(text), lambda value: value if required <= value.keys() else None)
    if found is None:
        return Reading(None, (f"the answer holds no JSON object with the fields {', '.join(model.model_fields)}",))
    try:
        return Reading(model.model_validate(found))
    except ValidationError as error:
        return Reading(None, tuple(problems(error)))


def problems(error: ValidationError) -> list[str]:
    """Pydantic's complaints as a model is told them: where, what, and what stands there."""
    every = error.errors(include_url=False, include_context=False)
    lines = [f"{path(problem['loc'])}: {problem['msg']}{_shown(problem['input'])}" for problem in every[:_MOST_PROBLEMS]]
    return [*lines, f"{more} further fields are wrong"] if (more := len(every) - len(lines)) else lines


def path(location: tuple[int | str, ...]) -> str:
    """Where a complaint is about, as ``facts[2].text``."""
    written = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return written.removeprefix(".") or "the answer"


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return ""
    written = json.dumps(value, ensure_ascii=False, default=str)
    if len(written) <= _LONGEST_VALUE:
        return f" (found {written})"
    return f" (found {written[:_LONGEST_VALUE]}..., {len(value)} characters)"
