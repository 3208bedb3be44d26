"""Repairs that send single parts of an answer instead of the whole: their schema, and how they are put in place.

A long answer in which one part is wrong loses by being written anew: what was right may come back wrong, and thousands of
tokens are paid for again. So a model may answer with the parts that change. The answer with its patch is judged as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError, create_model

from synth.llm.answers import ANSWERS, SCHEMA, FormatError
from synth.records import Record
from synth.tasks import Unit

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

RecordT = TypeVar("RecordT", bound=Record)


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
