"""A language model as a writer: prompts, schemas, a tolerant parser, repairs of what breaks rules."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import json_repair
from pydantic import ValidationError

from deltamem.errors import ContextLengthError
from deltamem.llm import Answer
from deltamem.prompts import Prompt, load_prompt
from deltamem.runs import JsonLinesStore
from synth.config import LLMSettings
from synth.llm.pool import EndpointPool
from synth.records import Record
from synth.tasks import TASKS, AnswerT, Task, Unit, UnitId, UnitResult, Verdict, Violation
from synth.validators import UNIT_RULES, judge_answer
from synth.validators.base import Similarity

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
        {"role": "user", "content": f"Unit: {task.unit}\n\n<task>\n{block}\n</task>\n\n{_prompt('ask').text}"},
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
        {"role": "user", "content": _prompt("repair").fill(violations="\n".join(listed))},
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
    return _prompt("frame").fill(
        unit=_prompt(unit).fill(facts=_prompt("facts").text),
        rules="\n".join(f"- {rule.name}: {rule.description}" for rule in UNIT_RULES[unit]),
        schema=json.dumps(answer_schema(unit), separators=(",", ":")),
    )


def prompt_hashes() -> dict[str, str]:
    """The sha256 of everything in the messages that is neither task nor answer: by unit, and of the repairs (`repair`)."""
    texts = {unit.value: system_prompt(unit) + _prompt("ask").text for unit in Unit} | {"repair": _prompt("repair").text}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _prompt(name: str) -> Prompt:
    return load_prompt(name, "synth.prompts")


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST_VIOLATION else line[: _LONGEST_VIOLATION - 3] + "..."


_LONGEST_ANSWER = 200_000
_LONGEST_CUT_OFF = 2_000
"""Characters that are kept and sent back of an answer that was cut off; mostly the model repeats itself there."""


class LLMWriter:
    """A language model behind endpoints."""

    def __init__(
        self,
        settings: LLMSettings,
        pool: EndpointPool,
        store: JsonLinesStore,
        *,
        seed: int,
        similarity: Similarity | None = None,
    ) -> None:
        """Take what it needs; closing pool and store is up to the caller.

        Args:
            settings: Model, sampling, repairs.
            pool: Whom to ask, by the same settings.
            store: Where answers are kept and looked up.
            seed: Of the data set; each request has its own, derived from it.
            similarity: For the rules that need one.
        """
        self._settings = settings
        self._pool = pool
        self._store = store
        self._seed = seed
        self._similarity = similarity
        self._judging = asyncio.Lock()
        self._making = {
            "writer": "llm",
            "model": settings.model,
            "sampling": settings.sampling,
            "structured": settings.structured,
            "prompts": prompt_hashes(),
            "schemas": {unit.value: _schema_hash(unit) for unit in Unit},
            "repairs": settings.repairs,
            "seed": seed,
        }
        self._asked = json.dumps([settings.model, settings.sampling, settings.structured], sort_keys=True)

    @property
    def making(self) -> Mapping[str, Any]:
        """See `synth.tasks.Writer`."""
        return self._making

    async def write(self, task: Task[AnswerT], place: UnitId) -> UnitResult[AnswerT]:
        """Ask until the answer keeps the rules or the repairs are used up; see `synth.tasks.Writer`."""
        first = opening(task)
        messages = first
        verdicts: list[Verdict] = []
        prompt_tokens = completion_tokens = spent_tokens = 0
        for attempt in range(1 + self._settings.repairs):
            try:
                answer = await self._answer(messages, task.unit, place, attempt)
            except ContextLengthError:
                if attempt == 0:
                    raise
                break  # the task fits, but not together with an answer and what is wrong with it
            prompt_tokens += answer.prompt_tokens
            completion_tokens += answer.completion_tokens
            spent_tokens += 0 if answer.cached else answer.completion_tokens
            read, verdict = await self._judged(answer, task)
            verdicts.append(verdict)
            if not verdict.violations:
                return UnitResult(read, tuple(verdicts), prompt_tokens, completion_tokens, spent_tokens)
            messages = [*first, *repair(answer.text, verdict.violations)]
        return UnitResult(None, tuple(verdicts), prompt_tokens, completion_tokens, spent_tokens)

    async def _judged(self, answer: Answer, task: Task[Any]) -> tuple[Any, Verdict]:
        try:
            if answer.truncated:
                raise FormatError(
                    TRUNCATED,
                    f"the answer was cut off after {answer.completion_tokens} tokens, thinking included; be briefer",
                )
            read = parse_answer(answer.text, task.answer)
        except FormatError as error:
            return None, error.verdict
        if self._similarity is not None and any(rule.needs_similarity for rule in UNIT_RULES[task.unit]):
            # An embedding model takes its time and leaves other threads theirs.
            judged = await asyncio.to_thread(judge_answer, task, read, self._similarity)
        else:
            # One at a time, and after whatever else can go on: requests do not wait while a wave of answers is judged.
            async with self._judging:
                await asyncio.sleep(0)
                judged = judge_answer(task, read)
        return read, Verdict((*FORMAT_RULES, *judged.checked), judged.violations)

    async def _answer(self, messages: Sequence[Mapping[str, str]], unit: Unit, place: UnitId, attempt: int) -> Answer:
        seed = _request_seed(f"{self._seed}/{place.name}/{attempt}")
        key = self._key(messages, unit, seed, attempt)
        stored = self._store.get(key)
        if stored is not None:
            return Answer(**stored, cached=True)
        answer = await self._pool.chat(
            messages, priority=(place.person, -place.step), seed=seed, name=unit.value, schema=answer_schema(unit)
        )
        text = without_reasoning(answer.text)
        truncated = answer.truncated or len(text) > _LONGEST_ANSWER
        kept: dict[str, Any] = {
            "text": text[:_LONGEST_CUT_OFF] if truncated else text,
            "truncated": truncated,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
        }
        self._store.put(key, kept)
        return Answer(**kept)

    def _key(self, messages: Sequence[Mapping[str, str]], unit: Unit, seed: int, attempt: int) -> str:
        """Hash of everything that an answer depends on; the endpoint's URL is not part of it."""
        digest = hashlib.sha256(f"{self._asked}{_schema_hash(unit)}{seed}/{attempt}".encode())
        for message in messages:
            text = message["content"].encode()
            digest.update(f"\n{message['role']} {len(text)}\n".encode())
            digest.update(text)
        return digest.hexdigest()


@cache
def _schema_hash(unit: Unit) -> str:
    return hashlib.sha256(json.dumps(answer_schema(unit), sort_keys=True).encode()).hexdigest()


def _request_seed(place: str) -> int:
    """31 bits, which every server takes."""
    return int.from_bytes(hashlib.sha256(place.encode()).digest()[:4]) >> 1
