"""What a language model answers: the JSON schema that it is held to, a tolerant reader, and patches of an answer.

A long answer in which one part is wrong loses by being written anew: what was right may come back wrong, and thousands of
tokens are paid for again. So a model may answer with the parts that change. The answer with its patch is judged as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import json_repair
from pydantic import Field, ValidationError, create_model

from deltamem.llm import Answer
from deltamem.replies import last_object, path, problems, without_thinking
from synth.records import Record
from synth.tasks import TASKS, RuleVerdict, RuleViolation, Unit

ANSWERS: dict[Unit, type[Record]] = {unit: task.answer for unit, task in TASKS.items()}

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


def tidied(value: Any, schema: dict[str, Any]) -> Any:
    """Parsed JSON without what a schema does not know, and with what is harmless set right.

    Typography becomes plain (`plain_text`); a number where a text belongs becomes that text, ``1`` and ``"F1"`` the id
    ``f1``; values of an enumeration and of a pattern get the case that is asked for; fields that are null or missing become
    empty where the prompt lets an empty value stand for "none". Anything else that is missing or wrong stays so.
    """
    return _tidied(value, schema, schema.get("$defs", {}))


_TYPOGRAPHY = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u02bc", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
        **dict.fromkeys("\u2010\u2011", "-"),
        **dict.fromkeys("\u00a0\u2007\u2009\u200a\u202f", " "),
        **dict.fromkeys("\u00ad\u200b\u2060\ufeff", None),
    }
)


def plain_text(text: str) -> str:
    """A text with straight quotes, plain hyphens and blanks, and nothing invisible.

    Language models set typography as they please, gpt-oss most of all; the reward, and rules that compare word for word,
    would see two different keywords.
    """
    return text.translate(_TYPOGRAPHY)


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):  # their keys are names
            found[key] = {name: _plain(part) for name, part in value.items()}
        elif key in _NOTES:
            continue
        elif key == "format":
            assert value == "date", value
            found["pattern"] = _DATE
        elif isinstance(value, dict):
            found[key] = _plain(value)
        elif isinstance(value, list):
            found[key] = [_plain(part) if isinstance(part, dict) else part for part in value]
        else:
            found[key] = value
    if "properties" in found:
        # A model settles what a fact is about, and copies the previous text, before it words the new one (appendix A).
        found["properties"] = dict(sorted(found["properties"].items(), key=lambda part: part[0] in _LAST))
        found["required"] = list(found["properties"])
        found["additionalProperties"] = False
    return found


_EMPTY: dict[str, Any] = {
    "previous_turn": 0,
    "previous_text": "",
    "subject": "",
    "physical_conditions": "",
    "mental_conditions": "",
    "misspoken": "",
    "outdated": [],
    "asides": [],
    "guest_turn": 0,
    "participants": [],
    "follow_ups": [],
}
"""Fields that say "none" by being empty, whichever record they belong to."""

_ID_PATTERN = re.compile(r"\^([fa])\[0-9\]\{1,3\}\$")
_LIKE_AN_ID = re.compile(r"(fact|f|aside|a)?[ _#-]*0*([0-9]{1,3})", re.IGNORECASE)


def _tidied(value: Any, schema: dict[str, Any], named: dict[str, Any]) -> Any:
    if "anyOf" in schema:
        if value is None:
            return None
        schema = next(part for part in schema["anyOf"] if part.get("type") != "null")
    if "$ref" in schema:
        schema = named[schema["$ref"].rpartition("/")[2]]
    if isinstance(value, dict) and "properties" in schema:
        parts = schema["properties"]
        found = {name: _tidied(part, parts[name], named) for name, part in value.items() if name in parts}
        return found | {name: empty for name, empty in _EMPTY.items() if name in parts and found.get(name) is None}
    if isinstance(value, list) and "items" in schema:
        return [_tidied(part, schema["items"], named) for part in value]
    if schema.get("type") == "string" and isinstance(value, str | int | float) and not isinstance(value, bool):
        return _tidied_text(str(value), schema)
    return value


def _tidied_text(text: str, schema: dict[str, Any]) -> str:
    text = plain_text(text)
    if values := schema.get("enum"):
        name = re.sub(r"[\s-]+", "_", text.strip().casefold())
        return name if name in values else text
    pattern = schema.get("pattern")
    if pattern and (wanted := _ID_PATTERN.fullmatch(pattern)) and (found := _LIKE_AN_ID.fullmatch(text.strip())):
        return f"{wanted[1]}{found[2]}" if (found[1] or wanted[1]).casefold().startswith(wanted[1]) else text
    if pattern is not None:
        variants = (text, text.strip().casefold(), text.strip().upper())
        return next((variant for variant in variants if re.search(pattern, variant)), text)
    return text


TRUNCATED, JSON, SCHEMA, LENGTH = FORMAT_RULES = ("format.truncated", "format.json", "format.schema", "format.length")
"""In the order in which they are checked."""

_LONGEST_MENDED = 200_000
"""Characters up to which broken JSON is mended: no answer is longer, only the babble of a failing model."""

RecordT = TypeVar("RecordT", bound=Record)


class FormatError(Exception):
    """An answer that cannot be read; the verdict says which of `FORMAT_RULES` were checked, and what is wrong."""

    def __init__(self, rule: str, *messages: str) -> None:
        super().__init__(rule, *messages)
        checked = FORMAT_RULES[: FORMAT_RULES.index(rule) + 1]
        self.verdict = RuleVerdict(checked, tuple(RuleViolation(rule, message) for message in messages))


_LEAST_THOUGHT = 40
"""Characters, or tokens that no text accounts for, from which an answer counts as thought about."""


def thinking_tokens(answer: Answer) -> int:
    """How many tokens of an answer were thinking: as the server says, otherwise by the length of what it delivers.

    A server that neither counts nor delivers the thinking still charges for it: tokens beyond one for every two characters
    of text, which no prose takes. 0 means that there is no trace of any.
    """
    if answer.reasoning_tokens:
        return answer.reasoning_tokens
    said = len(without_thinking(answer.text))
    thought = len(answer.reasoning) + len(answer.text) - said
    if thought >= _LEAST_THOUGHT:
        return round(answer.completion_tokens * thought / (thought + said))
    hidden = answer.completion_tokens - said // 2
    return hidden if hidden >= _LEAST_THOUGHT else 0


class AnswerReading(NamedTuple, Generic[RecordT]):
    """An answer that could be read; texts and lists that were too long are cut, each a violation of ``format.length``."""

    answer: RecordT
    violations: tuple[RuleViolation, ...] = ()


def read_answer(text: str, answer: type[RecordT]) -> AnswerReading[RecordT]:
    """Read an answer. Raises `FormatError` if no such record can be read; names ``format.json`` or ``format.schema``."""
    text, fields = without_thinking(text), {name for name, field in answer.model_fields.items() if field.is_required()}
    found = last_object(text, lambda value: value if fields <= value.keys() else None) or _mend(text, answer)
    if found is None:
        names = ", ".join(answer.model_fields)
        raise FormatError(JSON, f"the answer holds no JSON object with the fields {names} that can be read")
    value = tidied(found, record_schema(answer))
    cut: list[RuleViolation] = []
    while True:
        try:
            return AnswerReading(answer.model_validate(value), tuple(cut))
        except ValidationError as error:
            too_long = [problem for problem in error.errors(include_url=False) if problem["type"] in _TOO_LONG]
            if not too_long:
                raise FormatError(SCHEMA, *problems(error)) from error
        # What is too long can be read all the same, and then be mended by itself.
        for problem in too_long:
            place, limit, length = path(problem["loc"]), problem["ctx"]["max_length"], len(problem["input"])
            message = f"{place} must have at most {limit} {_TOO_LONG[problem['type']]}, but has {length}"
            cut.append(RuleViolation(LENGTH, message))
            _cut(value, problem["loc"], limit)


_TOO_LONG = {"string_too_long": "characters", "too_long": "items"}


def _cut(value: Any, location: tuple[int | str, ...], limit: int) -> None:
    *parents, last = location
    for part in parents:
        value = value[part]
    value[last] = (value[last].strip() if isinstance(value[last], str) else value[last])[:limit]


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
    return re.compile(r"\{\s*\W?(?:" + "|".join(map(re.escape, answer.model_fields)) + r")\b")


# --- patches: single parts of an answer instead of the whole ------------------------------------------------------------


_KEYS: Mapping[Unit, Mapping[str, str]] = {
    Unit.INITIAL: {"facts": ""},
    Unit.EVENTS: {"events": "index"},
    Unit.EVOLUTION: {"memories": ""},
    Unit.FILLING: {"facts": ""},
    Unit.REVISION: {"steps": ""},
    Unit.DIALOGUE: {"plan": "fact_id", "asides": "aside_id", "turns": ""},
}
"""The lists whose parts can be sent alone, with the field that tells parts apart; without one, parts get a number."""

_NUMBERS: Mapping[Unit, tuple[str, ...]] = {Unit.DIALOGUE: ("guest_turn",)}
"""Single numbers that can be sent too; 0 keeps them."""
_NUMBER = "number"
_REMOVABLE = frozenset({Unit.INITIAL, Unit.FILLING})
"""Units with lists from which a part may be taken without others losing their place."""

_WHOLE = frozenset({"events.one_per_slot", "dialogue.turn_count", "evolution.one_per_event", "filling.goal_and_summary"})
"""Rules about the number of parts, or about what is no part: whoever breaks them has to write the whole again."""


def can_be_patched(unit: Unit, rules: frozenset[str]) -> bool:
    """Whether an answer that breaks these rules can be mended part by part."""
    return unit in _KEYS and rules.isdisjoint(_WHOLE)


@cache
def patch_type(unit: Unit) -> type[Record]:
    """What a patch of a unit's answer has to be: of each list the parts that change; other fields are empty if kept."""
    answer, fields = ANSWERS[unit], {}
    for name, field in answer.model_fields.items():
        if name not in _KEYS[unit]:
            continue
        item: type[Record] = field.annotation.__args__[0]  # type: ignore[union-attr]
        if not _KEYS[unit][name]:
            number: Any = (Annotated[int, Field(ge=1, le=99)], ...)
            item = create_model(f"Numbered{item.__name__}", __base__=item, **{_NUMBER: number})
        fields[name] = (Annotated[tuple[item, ...], *field.metadata], ...)  # type: ignore[valid-type]
    for name in _NUMBERS.get(unit, ()):
        fields[name] = (Annotated[int, *answer.model_fields[name].metadata], ...)
    if unit in _REMOVABLE:
        fields["removed"] = (Annotated[tuple[Annotated[int, Field(ge=1, le=99)], ...], Field(max_length=20)], ...)
    made: type[Record] = create_model(f"{answer.__name__}Patch", __base__=Record, **fields)  # type: ignore[call-overload]
    return made


def patched(unit: Unit, answer: RecordT, patch: Record) -> RecordT:
    """An answer with the parts of a patch in place.

    A numbered part replaces the one at its place, counted from 1, or goes to the end; one with a field of its own replaces
    the part that has the same value there, or is added. Raises `FormatError` if the result is no such answer any more, for
    example because it has too many parts.
    """
    values = answer.model_dump()
    for name, key in _KEYS[unit].items():
        sent = [part.model_dump() for part in getattr(patch, name)]
        values[name] = _by_key(values[name], sent, key) if key else _by_number(values[name], sent)
    for number in sorted(set(getattr(patch, "removed", ())), reverse=True):
        for name in _KEYS[unit]:
            del values[name][number - 1 : number]
    values |= {name: value for name in _NUMBERS.get(unit, ()) if (value := getattr(patch, name))}
    try:
        return type(answer).model_validate(values)
    except ValidationError as error:
        raise FormatError(
            SCHEMA, f"the answer with the parts in place does not fit its schema: {error.errors()[0]['msg']}"
        ) from None


def parts_of(unit: Unit) -> str:
    """How a request names what can be sent alone."""
    named = [
        f"`{name}`: each part that changes, whole, "
        + (f"with its `{key}`" if key else f"with its `{_NUMBER}`, counted from 1; the next number adds one")
        for name, key in _KEYS[unit].items()
    ]
    named += [f"`{name}`: 0, unless it changes" for name in _NUMBERS.get(unit, ())]
    if unit in _REMOVABLE:
        named.append("`removed`: the numbers of parts that are to go")
    return "\n".join(f"- {line}" for line in named)


def _by_key(parts: Any, sent: list[dict[str, Any]], key: str) -> list[Any]:
    found = {part[key]: part for part in parts} | {part[key]: part for part in sent}
    return (
        sorted(found.values(), key=lambda part: part[key]) if isinstance(next(iter(found), ""), int) else [*found.values()]
    )


def _by_number(parts: Any, sent: list[dict[str, Any]]) -> list[Any]:
    found = list(parts)
    for part in sorted(sent, key=lambda part: part[_NUMBER]):
        place = part.pop(_NUMBER) - 1
        if place < len(found):
            found[place] = part
        else:
            found.append(part)
    return found
