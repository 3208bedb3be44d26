"""The ReAct episode: reading what the model wrote, and the state machine of turns and searches.

An assistant turn is ``<think>...</think>`` followed by one ``<tool_call>`` or ``<outputs>``. One parser serves training
(strict) and serving (tolerant): it returns what it understood and a list of violations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from deltamem.config import StrictModel, first_error
from deltamem.embedding import public_name
from deltamem.errors import DeltaMemError
from deltamem.memory import Event, Memory, Operation, check
from deltamem.prompts import load_prompt
from deltamem.replies import after_thinking, json_values
from deltamem.runs import atomic_writer
from deltamem.sessions import (
    CONTROL_MARK,
    TIME_FORMAT,
    LabelledSession,
    Session,
    format_dialogue,
    from_json_line,
    to_json_line,
)
from deltamem.text_files import read_text

SEARCH_TOOL = "search_memory"
MAX_QUERIES = 16
"""Queries of one call beyond this number are ignored: a degenerate policy must not be able to flood its own context."""


class Violation(StrEnum):
    """How an assistant turn or a whole episode departed from the protocol."""

    MISSING_THINK = "missing_think"
    TAGS_IN_THINK = "tags_in_think"
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
    Violation.TURN_LIMIT: "the last turn searched, where the outputs belong",
    Violation.TOKEN_LIMIT: "it was cut at the limit of tokens, write less and nothing twice",
}
"""What a model is told of an action that cannot be read. Without marks: a chat server would take them for control."""


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """What was understood of one assistant text."""

    queries: tuple[str, ...] | None  # None if the turn calls no tool that could be read
    operations: tuple[Operation, ...] | None  # Those that can be applied; None if the turn has no outputs that could be read
    violations: tuple[Violation, ...]
    """In order of discovery. Where nothing could be read, the last one, a key of `REFUSALS`, says why."""


_OPENING = re.compile(r"<(tool_call|outputs)>")
_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)


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


class _UnreadableError(Exception):
    def __init__(self, violation: Violation) -> None:
        super().__init__(violation)
        self.violation = violation


def read_turn(text: str, known_ids: Collection[str], *, thinking: bool = True, tolerant: bool = False) -> AssistantTurn:
    """Read one assistant text: the queries or the operations, and the violations. Never raises, whatever the text.

    The text is the whole turn without its end-of-turn token, also what the chat template has written of it. An operation on
    any other id than the known ones of the memory state is refused. With `thinking` the turn must begin with a think block;
    without, there may be an empty one.

    A `tolerant` reader, for serving, also understands what is an action in all but its form: tags or their end missing, a
    fence, a list of operations or a single one by itself, and what `json_values` mends. Of a list that is cut the whole
    operations and queries count, and a query that is repeated counts once. The violations stay what they are for a strict
    reader. What may mean two things is not read.
    """
    violations: list[Violation] = []
    think = _THINK.match(text.lstrip())
    rest = text.lstrip()[think.end() :] if think else text
    if thinking and think is None:
        violations.append(Violation.MISSING_THINK)
    # A tag that is merely named is a thought; a whole block is an action in the wrong place, and at a second think block the
    # chat templates of served models would cut.
    if thinking and think is not None and ("<think>" in think[1] or _blocks(think[1])):
        violations.append(Violation.TAGS_IN_THINK)
    if not thinking and think is not None and think[1].strip():
        violations.append(Violation.UNWANTED_THINK)
    blocks = _blocks(rest)
    ends, starts = [0, *(block.end for block in blocks)], [*(block.start for block in blocks), len(rest)]
    outside = "".join(rest[end:start] for end, start in zip(ends, starts, strict=True))
    if outside.strip() and (blocks or think):
        violations.append(Violation.TEXT_OUTSIDE_TAGS)
    if len(blocks) > 1:
        violations.append(Violation.SEVERAL_ACTIONS)
    try:
        if not blocks:
            raise _UnreadableError(Violation.NO_ACTION)
        # An answer ends the episode, so it wins over a search that stands beside it.
        chosen = next((block for block in blocks if block.tag == "outputs"), blocks[0])
        return _read_action(_load(chosen.body), chosen.tag == "outputs", known_ids, violations, tolerant)
    except _UnreadableError as error:
        violations.append(error.violation)
    if tolerant:
        with suppress(_UnreadableError, RecursionError):
            return _read_action(*_loose_action(text), known_ids, violations, tolerant)
    return AssistantTurn(None, None, tuple(violations))


def _read_action(
    value: Any, is_answer: bool, known_ids: Collection[str], violations: Sequence[Violation], tolerant: bool
) -> AssistantTurn:
    if is_answer:
        operations, problems = _read_outputs(value, known_ids, tolerant)
        return AssistantTurn(None, operations, (*violations, *problems))
    queries, problems = _read_call(value, tolerant)
    return AssistantTurn(queries, None, (*violations, *problems))


def _loose_action(text: str) -> tuple[Any, bool]:
    """The action of a text that has none in the right form, as it should have been, and whether it is an answer.

    Raises:
        _UnreadableError: If there is none, or what there is may be two different ones.
    """
    begin = after_thinking(text)
    if begin < 0:  # A thought without an end is no answer
        raise _UnreadableError(Violation.NO_ACTION)
    found = json_values(text[begin:])
    if found.broken is not None:
        raise _UnreadableError(Violation.BAD_JSON)
    answers = [(value, listed) for value in found.values if (listed := _listed(value)) is not None]
    if answers:
        listed = answers[0][1]
        if all(_is_operation(value) for value, _ in answers):  # One after the other, without a list
            listed = [operation for _, single in answers for operation in single]
        # A model that repeats itself says no more than it said first.
        said = {json.dumps(entry, sort_keys=True) for entry in listed}
        if any(json.dumps(entry, sort_keys=True) not in said for _, other in answers for entry in other):
            raise _UnreadableError(Violation.SEVERAL_ACTIONS)
        return {"operations": listed}, True
    for value in found.values:
        if (call := _called(value))["name"] == SEARCH_TOOL:
            return call, False
    raise _UnreadableError(Violation.NO_ACTION)


def _called(value: Any) -> dict[str, Any]:
    """The tool that a value calls, and its arguments, in our form, OpenAI's or Llama's; of several calls the first."""
    value = value.get("tool_calls", value) if isinstance(value, dict) else value
    value = value[0] if isinstance(value, list) and value else value
    value = value.get("function", value) if isinstance(value, dict) else value
    if not isinstance(value, dict):
        return {"name": None}
    arguments = value.get("arguments", value.get("parameters"))
    with suppress(ValueError, RecursionError):
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {"name": value.get("name"), "arguments": arguments}


def _is_operation(value: Any) -> bool:
    return isinstance(value, dict) and {"text", "event"} <= value.keys()


def _listed(value: Any) -> list[Any] | None:
    """The operations that a value lists, or is one of; None if it is something else."""
    if (call := _called(value))["name"] == "outputs":  # As if it were a tool
        value = call["arguments"]
    elif isinstance(value, dict) and len(value) == 1 and "operations" not in value:
        (value,) = value.values()  # Such as {"outputs": [...]}
    if isinstance(value, dict):
        value = value if _is_operation(value) else value.get("operations")
        value = [value] if isinstance(value, dict) else value
    return value if isinstance(value, list) and (not value or any(map(_is_operation, value))) else None


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


def _read_call(call: Any, tolerant: bool) -> tuple[tuple[str, ...], list[Violation]]:
    if not isinstance(call, dict) or call.get("name") != SEARCH_TOOL:
        raise _UnreadableError(Violation.UNKNOWN_TOOL)
    arguments = call.get("arguments")
    listed = arguments.get("query_list") if isinstance(arguments, dict) else None
    single = tolerant and isinstance(listed, str)
    listed = [listed] if single else listed
    if not isinstance(arguments, dict) or not isinstance(listed, list):
        raise _UnreadableError(Violation.BAD_ARGUMENTS)
    queries = tuple(query for query in listed if _is_text(query) and query.strip())
    said = tuple(dict.fromkeys(queries)) if tolerant else queries
    if not queries:
        raise _UnreadableError(Violation.BAD_ARGUMENTS)
    strict = len(queries) == len(listed) <= MAX_QUERIES and call.keys() == {"name", "arguments"} and len(arguments) == 1
    strict = strict and not single
    return said[:MAX_QUERIES], [] if strict else [Violation.BAD_ARGUMENTS]


def _read_outputs(outputs: Any, known_ids: Collection[str], tolerant: bool) -> tuple[tuple[Operation, ...], list[Violation]]:
    listed = outputs.get("operations") if isinstance(outputs, dict) else None
    if not isinstance(listed, list):
        raise _UnreadableError(Violation.BAD_OPERATION)
    read = [_read_operation(entry, tolerant) for entry in listed]
    if tolerant and listed and all(operation is None for operation, _ in read):
        raise _UnreadableError(Violation.BAD_OPERATION)  # Something is said, and nothing of it understood
    violations = [violation for _, violation in read if violation is not None]
    if len(outputs) != 1:
        violations.append(Violation.BAD_OPERATION)
    checked = check(known_ids, [operation for operation, _ in read if operation is not None])
    return checked.valid, [*violations, *(Violation(problem.value) for problem in checked.problems)]


_EVENTS = frozenset(Event)
_OPERATION_KEYS = {"text", "event", "target_memory_id"}


def _read_operation(entry: Any, tolerant: bool) -> tuple[Operation | None, Violation | None]:
    """Read one entry of ``operations``: what was understood, and what was wrong with it."""
    if not isinstance(entry, dict) or not _is_text(name := entry.get("event")) or not _is_text(entry.get("text")):
        return None, Violation.BAD_OPERATION
    known = str(name).strip().upper() if tolerant else name
    target = written = entry.get("target_memory_id")
    if tolerant and known == Event.ADD and not _is_text(target):
        target = None  # It has no use for one
    if known not in _EVENTS or (target is not None and not _is_text(target)):
        return None, Violation.BAD_OPERATION
    event = Event(known)
    operation = Operation(event, entry["text"].strip(), None if event is Event.ADD else target)
    strict = name in _EVENTS and entry.keys() <= _OPERATION_KEYS and not (event is Event.ADD and target)
    return operation, None if strict and target == written else Violation.BAD_OPERATION


# Text of a JSON string that needs no escapes, says something, and cannot be taken for the end of a block.
_SAID = r'[^\s"\\<\x00-\x1f][^"\\<\x00-\x1f]{0,299}'
_THOUGHT = "<think>[^<]{1,600}</think>"


def turn_pattern(messages: Sequence[Message], config: EpisodeConfig) -> str:
    """A regular expression of readable assistant turns, for servers that keep a model to one (guided decoding).

    A search has up to five queries, an answer up to sixteen operations. UPDATE and NONE name an id that a search in the
    messages has shown, and are impossible before; the last turn cannot search. Whether operations repeat or contradict each
    other is left to the model. Everything is bounded, so that a model without a sense for an end comes to one.
    """
    operations = [rf'\{{"text": "{_SAID}", "event": "ADD"\}}']
    if ids := _shown_ids(messages):
        target = "|".join(re.escape(json.dumps(memory_id, ensure_ascii=False)) for memory_id in ids)
        operations.append(rf'\{{"text": "{_SAID}", "event": "(UPDATE|NONE)", "target_memory_id": ({target})\}}')
    operation = f"({'|'.join(operations)})"
    queries = rf'\["{_SAID}"(, "{_SAID}"){{0,4}}\]'
    call = rf'<tool_call>\{{"name": "{SEARCH_TOOL}", "arguments": \{{"query_list": {queries}\}}\}}</tool_call>'
    answer = rf'<outputs>\{{"operations": \[({operation}(, {operation}){{0,15}})?\]\}}</outputs>'
    is_last = sum(message["role"] == "assistant" for message in messages) + 1 >= config.max_turns
    return f"{_THOUGHT if config.thinking else ''}({answer if is_last else f'{call}|{answer}'})"


def _shown_ids(messages: Sequence[Message]) -> list[str]:
    """The ids in the tool's answers, each once."""
    answers = (json.loads(message["content"]) for message in messages if message["role"] == "tool")
    return list(dict.fromkeys(memory["id"] for answer in answers if isinstance(answer, list) for memory in answer))


MemoryField = Literal["id", "time", "text"]


class Message(TypedDict):
    """A chat message as every engine takes it."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class EpisodeConfig:
    """What shapes an episode besides the session."""

    system_prompt: str = "manager"  # Name of the prompt file for the system message
    session_prompt: str = "session"  # Name of the prompt file that presents the session
    k: int = 5  # Memories that `search_memory` returns for each query (paper, table 5)
    max_turns: int = 4  # Assistant turns; the last one must give the outputs
    memory_fields: tuple[MemoryField, ...] = ("id", "time", "text")
    """Order of the keys in the tool's answer. The paper's figure 6 shows ``id, time, text``."""
    thinking: bool = True
    """Whether every assistant turn begins with a think block; if not, text in such a block is a violation."""
    max_invalid_calls: int = 0
    """Turns without a readable action that are answered by an error in a row; one more ends the episode."""

    def check(self) -> None:
        """Make sure that the policy can do its task: that it sees ids and texts, and that its prompts suit it.

        Raises:
            DeltaMemError: If the tool's answer lacks an id or a text, or has a key twice; if a prompt does not exist, or
                asks a model that must not think to do so.
        """
        fields = self.memory_fields
        if not {"id", "text"} <= set(fields) or len(set(fields)) < len(fields):
            raise DeltaMemError(f"memory_fields is {list(fields)}; expected id and text, with or without time, each once")
        asking = [name for name in self.prompt_hashes if "<think>" in load_prompt(name).text]
        if asking and not self.thinking:
            raise DeltaMemError(
                f"prompt {asking[0]!r} asks for a think block, which thinking=false forbids; expected one that does not, "
                "such as 'manager_direct'"
            )

    @property
    def prompt_hashes(self) -> dict[str, str]:
        """sha256 of each prompt file in use, by name."""
        return {name: load_prompt(name).sha256 for name in (self.system_prompt, self.session_prompt)}


class EpisodeSettings(StrictModel):
    """The keys ``episode.*`` of a configuration; None leaves a field as a checkpoint or the default has it."""

    system_prompt: str | None = None
    session_prompt: str | None = None
    k: PositiveInt | None = None
    max_turns: PositiveInt | None = None
    memory_fields: tuple[MemoryField, ...] | None = None
    thinking: bool | None = None
    max_invalid_calls: NonNegativeInt | None = None

    def config(self, base: EpisodeConfig | None = None) -> EpisodeConfig:
        """`base` (by default the default) with the fields that are set here.

        Raises:
            DeltaMemError: See `EpisodeConfig.check`.
        """
        config = replace(base or EpisodeConfig(), **self.model_dump(exclude_none=True))
        config.check()
        return config


EPISODE_FILE = "episode.json"  # What a checkpoint was trained with, in its folder


@dataclass(frozen=True, slots=True)
class TrainedEpisode(EpisodeConfig):
    """What ``episode.json`` says of a checkpoint: the episodes that it was trained with, how they were searched and cut."""

    embedder: str | None = None  # Of the searches, by its public name; None if nobody noted it
    turn_tokens: PositiveInt | None = None  # Most tokens of an assistant turn; None if nobody noted it


_ADAPTER = TypeAdapter(TrainedEpisode)
_SHAPES = [field.name for field in fields(EpisodeConfig)]


def save_episode_config(
    folder: Path, config: EpisodeConfig, embedder: str | None = None, turn_tokens: int | None = None
) -> None:
    """Write ``episode.json`` into a checkpoint folder, with the embedder and the longest turn that it was trained with."""
    own = {name: getattr(config, name) for name in _SHAPES}
    noted = TrainedEpisode(**own, embedder=embedder and public_name(embedder), turn_tokens=turn_tokens)
    with atomic_writer(folder / EPISODE_FILE) as file:
        file.write(_ADAPTER.dump_json(noted, indent=2).decode("utf-8") + "\n")


def load_episode_config(folder: Path) -> EpisodeConfig:
    """Read ``episode.json`` of a checkpoint folder; without one, the default configuration.

    Raises:
        DeltaMemError: If the file cannot be read; names the key.
    """
    found = load_trained(folder)
    return EpisodeConfig(**{name: getattr(found, name) for name in _SHAPES})


def load_trained(folder: Path) -> TrainedEpisode:
    """As `load_episode_config`, with what else is noted of the training."""
    path = folder / EPISODE_FILE
    if not path.is_file():
        return TrainedEpisode()
    try:
        return _ADAPTER.validate_json(read_text(path), extra="forbid")
    except ValidationError as error:
        raise DeltaMemError(f"{path}: {first_error(error, 'the file')}") from error


@dataclass(frozen=True, slots=True)
class Search:
    """The model wants to search; the driver must call `Episode.answer`."""

    queries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The turn had no readable action; the episode has answered with the reason, and the model may go on."""

    reason: Violation


@dataclass(frozen=True, slots=True)
class Finished:
    """The episode is over."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A finished episode."""

    messages: tuple[Message, ...]  # The whole conversation with the model
    queries: tuple[tuple[str, ...], ...] = ()  # Of each search
    retrieved_ids: tuple[tuple[str, ...], ...] = ()  # What each search returned
    operations: tuple[Operation, ...] | None = None
    """Those that can be applied; None if the outputs are missing or could not be read."""
    violations: tuple[Violation, ...] = ()
    failure: str | None = None  # What broke in our own machinery, if anything; such an episode says nothing about the model
    cut: bool = False  # Whether the answer was cut at a token limit, so that more may be due than `operations`

    @property
    def seen_ids(self) -> frozenset[str]:
        """All ids that some search returned."""
        return frozenset(memory_id for ids in self.retrieved_ids for memory_id in ids)


def opening_messages(session: Session, config: EpisodeConfig) -> list[Message]:
    """The system message and the session, with which every episode begins."""
    return [
        Message(role="system", content=load_prompt(config.system_prompt).fill(max_turns=str(config.max_turns))),
        Message(
            role="user",
            content=load_prompt(config.session_prompt).fill(
                person=CONTROL_MARK.sub("< ", session.person_name),
                time=session.time.strftime(TIME_FORMAT),
                dialogue=format_dialogue(session.dialogue),
            ),
        ),
    ]


def format_memories(memories: Sequence[Memory], fields: Sequence[MemoryField]) -> str:
    r"""The tool's answer: a JSON list of memories with their id, time and text.

    In a memory with a control mark every ``<`` is written as ``\u003c``: the same text to whoever reads the JSON, but no
    special token to a chat server.
    """
    records = []
    for memory in memories:
        values = {"id": memory.id, "time": memory.time.strftime(TIME_FORMAT), "text": memory.text}
        record = json.dumps({field: values[field] for field in fields}, ensure_ascii=False)
        records.append(record.replace("<", "\\u003c") if CONTROL_MARK.search(record) else record)
    return f"[{', '.join(records)}]"


class EpisodeLog:
    """What happened in an episode, of whichever kind."""

    def __init__(self, messages: list[Message]) -> None:
        """Begin with the messages that open it."""
        self.messages = messages
        """What the model is asked now."""
        self._asked: list[Message] = []  # In questions before, of episodes whose questions stand by themselves
        self._queries: list[tuple[str, ...]] = []
        self._retrieved: list[tuple[str, ...]] = []
        self._operations: tuple[Operation, ...] | None = None
        self._violations: list[Violation] = []
        self._failure: str | None = None
        self._cut = False

    @property
    def problem(self) -> str:
        """Why no operations could be read, in plain words."""
        return REFUSALS[self._violations[-1]]

    def tell(self, problem: str) -> None:
        """Tell the model, before it begins, that its last answer to the same session could not be read, and why."""
        asked = self.messages[-1]
        told = f"Your last answer could not be read: {problem}. Answer in the form that is asked for."
        self.messages[-1] = Message(role=asked["role"], content=f"{asked['content']}\n\n{told}")

    def stop(self, violation: Violation) -> None:
        """End the episode from outside, for example because the context is full."""
        self._violations.append(violation)

    def fail(self, reason: str) -> None:
        """Record that our own machinery broke; the trajectory then carries the reason."""
        self._failure = reason

    @property
    def trajectory(self) -> Trajectory:
        """The episode so far."""
        return Trajectory(
            messages=(*self._asked, *self.messages),
            queries=tuple(self._queries),
            retrieved_ids=tuple(self._retrieved),
            operations=self._operations,
            violations=tuple(self._violations),
            failure=self._failure,
            cut=self._cut,
        )


class Episode(EpisodeLog):
    """One ReAct run over one session."""

    def __init__(
        self, session: Session, known_ids: Collection[str], config: EpisodeConfig, *, tolerant: bool = False
    ) -> None:
        """Begin an episode; `known_ids` are those of the memory state before the session; `tolerant` as in `read_turn`."""
        super().__init__(opening_messages(session, config))
        self._known_ids = known_ids
        self._config = config
        self._tolerant = tolerant
        self._turns = 0
        self._refused_in_a_row = 0

    def read(self, text: str, *, truncated: bool = False) -> Search | Refused | Finished:
        """Take one assistant text, see `read_turn`; `truncated` if the engine stopped at a token limit.

        Such a text ends the episode, unless a tolerant reader finds whole queries in it.

        Returns `Search` if the model asked for memories and may go on, `Refused` if its turn had no readable action and it
        may go on, else `Finished`.
        """
        self.messages.append(Message(role="assistant", content=text))
        self._turns += 1
        turn = read_turn(text, self._known_ids, thinking=self._config.thinking, tolerant=self._tolerant)
        self._violations += turn.violations
        self._cut = truncated and "</outputs>" not in text  # After its end an answer may go on for ever
        if truncated:
            self._violations.append(Violation.TOKEN_LIMIT)
        if truncated and turn.queries and self._tolerant:
            # A model that reads how it repeated itself goes on with that.
            call = json.dumps({"name": SEARCH_TOOL, "arguments": {"query_list": turn.queries}}, ensure_ascii=False)
            think = _THINK.match(text.lstrip())
            self.messages[-1]["content"] = f"{think[0] if think else ''}<tool_call>{call}</tool_call>"
        elif turn.operations is not None or truncated:
            self._operations = turn.operations
            return Finished()
        if turn.queries is None:
            return self._refuse(turn.violations[-1])
        self._refused_in_a_row = 0
        if self._turns >= self._config.max_turns:
            self._violations.append(Violation.TURN_LIMIT)
            return Finished()
        self._queries.append(turn.queries)
        return Search(turn.queries)

    def _refuse(self, reason: Violation) -> Refused | Finished:
        if self._refused_in_a_row >= self._config.max_invalid_calls or self._turns >= self._config.max_turns:
            return Finished()
        self._refused_in_a_row += 1
        self.messages.append(Message(role="tool", content=json.dumps({"error": REFUSALS[reason]})))
        return Refused(reason)

    def answer(self, memories: Sequence[Memory]) -> Message:
        """Answer the search with the memories it found; returns the tool message that was appended."""
        self._retrieved.append(tuple(memory.id for memory in memories))
        message = Message(role="tool", content=format_memories(memories, self._config.memory_fields))
        self.messages.append(message)
        return message


def session_fields(labelled: LabelledSession | str) -> dict[str, Any]:
    """The session, or its line of ``sessions.jsonl``, that a trajectory is about.

    Returns ``key``, and ``person_id, person_name, time, dialogue, prior_state, target_operations`` as in ``sessions.jsonl``.
    """
    labelled = from_json_line(labelled) if isinstance(labelled, str) else labelled
    session = json.loads(to_json_line(labelled))
    return {
        "key": labelled.key,
        **{name: session[name] for name in ("person_id", "person_name", "time", "dialogue", "prior_state")},
        "target_operations": session["operations"],
    }


def trajectory_fields(trajectory: Trajectory) -> dict[str, Any]:
    """What the policy did.

    Returns ``turns`` (the conversation after the opening messages), ``queries`` and ``retrieved_ids`` of each search,
    ``operations`` (null if the outputs could not be read) and ``violations``.
    """
    done = None
    if trajectory.operations is not None:
        keys = ("event", "text", "target_memory_id")
        done = [{key: getattr(operation, key) for key in keys} for operation in trajectory.operations]
    return {
        "turns": [dict(message) for message in trajectory.messages if message["role"] in ("assistant", "tool")],
        "queries": [list(queries) for queries in trajectory.queries],
        "retrieved_ids": [list(ids) for ids in trajectory.retrieved_ids],
        "operations": done,
        "violations": list(trajectory.violations),
    }


EmbedTexts: TypeAlias = Callable[[Sequence[str]], npt.NDArray[np.floating[Any]]]
"""Turns n texts into unit vectors of shape ``(n, dim)``, for example `Embedder.documents`."""


class Scorer(Protocol):
    """Scores a finished episode against its labelled session."""

    def __call__(self, labelled: LabelledSession, trajectory: Trajectory, embed: EmbedTexts) -> tuple[dict[str, float], Any]:
        """Score one finished episode against its session's prior state and target operations.

        Returns flat figures, whose keys are the same for every episode: ``reward`` is what the policy is trained on, the
        others are metrics. And for a reader a dataclass of plain JSON values: the score with its parts, the matched pairs
        and what is left over.
        """
