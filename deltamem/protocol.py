"""Reading what the model wrote: one parser for training, serving and evaluation.

An assistant turn is ``<think>...</think>`` followed by one ``<tool_call>`` or one ``<outputs>``; of a model that does not
think, only the latter. The parser returns what it understood and a list of violations: training turns violations into a lost
format reward, serving applies what is valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from deltamem.memory import Event, Operation, OperationProblem, check

SEARCH_TOOL = "search_memory"
CONTROL_MARK = re.compile(r"<(?=\||/?(?:think|tool_call|tool_response|outputs|s|start_of_turn|end_of_turn)>)")
"""The ``<`` of a mark that a chat server or this protocol takes for control, not for text: ``<|im_start|>``, ``<think>``.

Servers look for special tokens inside the content of messages too, so stored text must not contain them.
"""
MAX_QUERIES = 16
"""Queries of one call beyond this number are ignored: a degenerate policy must not be able to flood its own context."""


class Violation(StrEnum):
    """How an assistant turn or a whole episode departed from the protocol."""

    MISSING_THINK = "missing_think"
    UNWANTED_THINK = "unwanted_think"
    TEXT_OUTSIDE_TAGS = "text_outside_tags"
    NO_ACTION = "no_action"
    SEVERAL_ACTIONS = "several_actions"
    BAD_JSON = "bad_json"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    BAD_OPERATION = "bad_operation"
    UNKNOWN_TARGET = "unknown_target"
    MISSING_TARGET = "missing_target"
    EMPTY_TEXT = "empty_text"
    DUPLICATE_OPERATION = "duplicate_operation"
    CONFLICTING_UPDATE = "conflicting_update"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"


REFUSALS: Mapping[Violation, str] = {
    Violation.NO_ACTION: "no action found, write one tool_call block or one outputs block",
    Violation.BAD_JSON: "the block is not valid JSON",
    Violation.UNKNOWN_TOOL: f"the only tool is {SEARCH_TOOL}",
    Violation.BAD_ARGUMENTS: f"{SEARCH_TOOL} takes a query_list with at least one text",
    Violation.BAD_OPERATION: "outputs takes a list of operations",
}
"""What the model is told of a turn without a readable action. Without marks: a chat server would take them for control."""


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """What was understood of one assistant text.

    Attributes:
        queries: The search queries; None if the turn calls no tool that could be read.
        operations: The applicable operations; None if the turn has no outputs that could be read.
        violations: Everything that departs from the protocol, in order of discovery. Where neither queries nor operations
            could be read, the last one says why; it is a key of `REFUSALS`.
    """

    queries: tuple[str, ...] | None
    operations: tuple[Operation, ...] | None
    violations: tuple[Violation, ...]


_OPENING = re.compile(r"<(tool_call|outputs)>")
_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_ANY_TAG = re.compile(r"</?(?:think|tool_call|outputs)>")


class _Block(NamedTuple):
    tag: str
    body: str
    start: int
    end: int


def _blocks(text: str) -> list[_Block]:
    """The blocks of a text from left to right, each up to the first end of its own tag.

    Not one regular expression with a lazy middle: that takes minutes for a model that repeats ``<outputs>`` without end.
    """
    last = {tag: text.rfind(f"</{tag}>") for tag in ("tool_call", "outputs")}
    blocks: list[_Block] = []
    for opening in _OPENING.finditer(text):
        tag = opening[1]
        if opening.end() > last[tag] or (blocks and opening.start() < blocks[-1].end):
            continue
        close = text.index(f"</{tag}>", opening.end())
        blocks.append(_Block(tag, text[opening.end() : close], opening.start(), close + len(tag) + 3))
    return blocks


def _outside(text: str, blocks: Sequence[_Block]) -> str:
    """What a text says besides its blocks."""
    ends = [0, *(block.end for block in blocks)]
    starts = [*(block.start for block in blocks), len(text)]
    return "".join(text[end:start] for end, start in zip(ends, starts, strict=True))


class _UnreadableError(Exception):
    def __init__(self, violation: Violation) -> None:
        super().__init__(violation)
        self.violation = violation


def read_turn(text: str, known_ids: Collection[str], *, thinking: bool = True) -> AssistantTurn:
    """Read one assistant text.

    Args:
        text: The whole turn without its end-of-turn token, also what the chat template has written of it.
        known_ids: Ids of the memory state; an operation on any other id is refused.
        thinking: Whether the turn must begin with a think block; if not, there may be an empty one.

    Returns:
        The queries or the operations, and the violations. Never raises, whatever the text.
    """
    violations: list[Violation] = []
    think = _THINK.match(text.lstrip())
    rest = text.lstrip()[think.end() :] if think else text
    if thinking and (think is None or _ANY_TAG.search(think[1])):
        violations.append(Violation.MISSING_THINK)
    if not thinking and think is not None and think[1].strip():
        violations.append(Violation.UNWANTED_THINK)
    blocks = _blocks(rest)
    if _outside(rest, blocks).strip() and (blocks or think):
        violations.append(Violation.TEXT_OUTSIDE_TAGS)
    if not blocks:
        return AssistantTurn(None, None, (*violations, Violation.NO_ACTION))
    if len(blocks) > 1:
        violations.append(Violation.SEVERAL_ACTIONS)
    # An answer ends the episode, so it wins over a search that stands beside it.
    chosen = next((block for block in blocks if block.tag == "outputs"), blocks[0])
    try:
        if chosen.tag == "tool_call":
            queries, problems = _read_call(_load(chosen.body))
            return AssistantTurn(queries, None, (*violations, *problems))
        operations, problems = _read_outputs(_load(chosen.body), known_ids)
        return AssistantTurn(None, operations, (*violations, *problems))
    except _UnreadableError as error:
        return AssistantTurn(None, None, (*violations, error.violation))


def _load(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise _UnreadableError(Violation.BAD_JSON) from None


def _is_text(value: object) -> bool:
    """Whether a value is a string that can be stored (JSON can smuggle in lone surrogates)."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _read_call(call: Any) -> tuple[tuple[str, ...], list[Violation]]:
    if not isinstance(call, dict) or call.get("name") != SEARCH_TOOL:
        raise _UnreadableError(Violation.UNKNOWN_TOOL)
    arguments = call.get("arguments")
    if not isinstance(arguments, dict) or not isinstance(listed := arguments.get("query_list"), list):
        raise _UnreadableError(Violation.BAD_ARGUMENTS)
    queries = tuple(query for query in listed if _is_text(query) and query.strip())
    if not queries:
        raise _UnreadableError(Violation.BAD_ARGUMENTS)
    strict = len(queries) == len(listed) <= MAX_QUERIES and call.keys() == {"name", "arguments"} and len(arguments) == 1
    return queries[:MAX_QUERIES], [] if strict else [Violation.BAD_ARGUMENTS]


def _read_outputs(outputs: Any, known_ids: Collection[str]) -> tuple[tuple[Operation, ...], list[Violation]]:
    listed = outputs.get("operations") if isinstance(outputs, dict) else None
    if not isinstance(listed, list):
        raise _UnreadableError(Violation.BAD_OPERATION)
    read = [_read_operation(entry) for entry in listed]
    violations = [violation for _, violation in read if violation is not None]
    if len(outputs) != 1:
        violations.append(Violation.BAD_OPERATION)
    checked = check(known_ids, [operation for operation, _ in read if operation is not None])
    return checked.valid, [*violations, *(_FROM_PROBLEM[problem] for problem in checked.problems)]


_FROM_PROBLEM = {problem: Violation(problem.value) for problem in OperationProblem}
_EVENTS = frozenset(Event)
_OPERATION_KEYS = {"text", "event", "target_memory_id"}


def _read_operation(entry: Any) -> tuple[Operation | None, Violation | None]:
    """Read one entry of ``operations``: what was understood, and what was wrong with it."""
    if not isinstance(entry, dict) or not _is_text(name := entry.get("event")) or not _is_text(entry.get("text")):
        return None, Violation.BAD_OPERATION
    target = entry.get("target_memory_id")
    if name not in _EVENTS or (target is not None and not _is_text(target)):
        return None, Violation.BAD_OPERATION
    event = Event(name)
    operation = Operation(event, entry["text"].strip(), None if event is Event.ADD else target)
    strict = entry.keys() <= _OPERATION_KEYS and not (event is Event.ADD and target)
    return operation, None if strict else Violation.BAD_OPERATION
