"""Filters over the metadata of memories, as JSON: ``{"topic": "work", "OR": [{"year": {"gte": 2025}}, {"year": null}]}``.

A filter is an object. All its entries must hold: conditions on keys of the metadata, and ``AND`` or ``OR`` with a list of
filters or ``NOT`` with one filter or a list of which none may hold. A condition is a value, which the key must equal, or an
object of operators, all of which must hold:

- ``eq``, ``ne``: equal to a value or not. 1 equals 1.0; true is no number; lists are equal item by item.
- ``in``, ``nin``: equal to one of a list of values, or to none of them.
- ``gt``, ``gte``, ``lt``, ``lte``: numbers are compared with numbers and texts with texts; nothing else is in order.
- ``contains``, ``icontains``: the text holds a text, or the list of texts has it as an item; ``icontains`` ignores case.

A key that a memory lacks counts as null.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import count
from typing import Any, cast

from deltamem.blank import is_blank
from deltamem.errors import DeltaMemError
from deltamem.memory import FILTER_WORDS, Memory, Value

Test = Callable[[Mapping[str, Value]], bool]  # Whether metadata meets a filter

MOST_NESTED = 16  # How deep filters may lie in each other
MOST_CONDITIONS = 200  # In one filter, each operator counted; ``in`` and ``nin`` take lists of any length


class FilterError(DeltaMemError, ValueError):
    """A filter that cannot be understood, told in one sentence."""


def read_filter(filters: object) -> Test:
    """Make a test of the metadata of a memory of a filter as it comes from JSON; ``{}`` holds for everything.

    Raises:
        FilterError: If it is none; the sentence names what is wrong.
    """
    return _filter(filters, 1, count(1))


def check_queries(queries: Iterable[str]) -> None:
    """Refuse queries that ask for nothing, which would find anything.

    Raises:
        DeltaMemError: If one is blank.
    """
    if any(map(is_blank, queries)):
        raise DeltaMemError("the query is blank; say what to look for")


def meeting(memories: Sequence[Memory], filters: object) -> list[Memory]:
    """Those of an owner's memories whose metadata meet a filter.

    Raises:
        FilterError: If it is none, or it names a key that no memory has while some have one that is written almost so: what
            somebody mistyped would find nothing, without a word.
    """
    test = read_filter(filters)
    named = list(dict.fromkeys(key for key, _ in conditions_of(filters)))
    if any(all(key not in memory.metadata for memory in memories) for key in named):
        known = {key for memory in memories for key in memory.metadata}
        for key in named:
            if key not in known and (meant := similar_key(key, [*known, *FILTER_WORDS])) is not None:
                raise FilterError(f"filter: no memory has the key {key!r}; did you mean {meant!r}?")
    return [memory for memory in memories if test(memory.metadata)]


def conditions_of(filters: object) -> Iterator[tuple[str, object]]:
    """The conditions of a filter on keys, however deep in it."""
    for key, value in filters.items() if isinstance(filters, Mapping) else ():
        if key in FILTER_WORDS:
            for part in value if isinstance(value, list | tuple) else [value]:
                yield from conditions_of(part)
        else:
            yield key, value


def similar_key(key: str, known: Iterable[str]) -> str | None:
    """What a key that is not known may be meant for; another number or short word is none: ``item_1`` and ``item_2``."""

    def plain(name: str) -> str:
        return re.sub(r"[\W_]", "", name.casefold())

    def letters(name: str) -> str:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
        return plain(re.sub(r"\d|(?<![^\W_])[^\W_]{1,2}(?![^\W_])", "", words))  # created_by, createdAt

    forms = {plain(one): one for one in known if plain(one) == plain(key) or letters(one) != letters(key)}
    return next((forms[form] for form in get_close_matches(plain(key), forms, 1, 0.75)), None)


def _filter(given: object, depth: int, conditions: Iterator[int]) -> Test:
    """The test of a filter at a depth; `conditions` counts those of all."""
    if depth > MOST_NESTED:
        raise FilterError(f"filter: nested deeper than {MOST_NESTED}")
    if not isinstance(given, Mapping):
        raise FilterError(f'filter: expected an object such as {{"topic": "work"}}, not {_kind(given)}')
    return _all([_entry(key, value, depth, conditions) for key, value in given.items()])


def _entry(key: object, value: object, depth: int, conditions: Iterator[int]) -> Test:
    if not isinstance(key, str):
        raise FilterError(f"filter: {key!r} is no key")
    if key not in FILTER_WORDS:
        return _condition(key, value, conditions)
    if key == "NOT" and isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple) or not value:
        raise FilterError(f"filter: {key} needs a list of filters that is not empty, not {_kind(value)}")
    tests = [_filter(one, depth + 1, conditions) for one in value]
    if key == "AND":
        return _all(tests)
    wanted = key == "OR"
    return lambda metadata: any(test(metadata) for test in tests) is wanted


def _all(tests: list[Test]) -> Test:
    return lambda metadata: all(test(metadata) for test in tests)


def _condition(key: str, given: object, conditions: Iterator[int]) -> Test:
    operators = given if isinstance(given, Mapping) else {"eq": given}
    if not operators:
        raise FilterError(f'filter: the condition on {key!r} is an empty object; expected operators such as {{"eq": 1}}')
    tests = []
    for (name, operand), number in zip(operators.items(), conditions, strict=False):
        if number > MOST_CONDITIONS:
            raise FilterError(f"filter: more than {MOST_CONDITIONS} conditions")
        tests.append(_operator(key, name, operand))
    return lambda metadata: all(test(metadata.get(key)) for test in tests)


_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


def _operator(key: str, name: object, operand: object) -> Callable[[Value], bool]:
    where = f"filter: {name} of {key!r}"
    match name:
        case "eq" | "ne":
            wanted = _value(operand, where)
            return lambda value: equal(value, wanted) is (name == "eq")
        case "in" | "nin":
            if not isinstance(operand, list | tuple):
                raise FilterError(f"{where} needs a list of values, not {_kind(operand)}")
            choices = {_told_apart(_value(item, where)) for item in operand}
            return lambda value: (_told_apart(value) in choices) is (name == "in")
        case "gt" | "gte" | "lt" | "lte":
            if not (isinstance(operand, str) or _is_number(operand)):
                raise FilterError(f"{where} needs a number or a text, not {_kind(operand)}")
            compare = _ORDERS[name]
            if isinstance(operand, str):
                return lambda value: isinstance(value, str) and compare(value, operand)
            return lambda value: _is_number(value) and compare(value, operand)
        case "contains" | "icontains":
            if not isinstance(operand, str):
                raise FilterError(f"{where} needs a text, not {_kind(operand)}")
            form: Callable[[str], str] = str if name == "contains" else str.casefold
            part = form(operand)
            # A list of texts holds it as an item, a text anywhere.
            return lambda value: (
                part in form(value) if isinstance(value, str) else isinstance(value, tuple) and part in map(form, value)
            )
    known = "eq, ne, in, nin, gt, gte, lt, lte, contains, icontains"
    raise FilterError(f"filter: {name!r} of {key!r} is no operator; there are {known}")


def equal(one: Value, other: Value) -> bool:
    """Whether two values are equal, true and false being no numbers."""
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def _told_apart(value: Value) -> tuple[bool, Value]:
    """What is the same for equal values only, see `equal`."""
    return isinstance(value, bool), value


def _value(given: object, where: str) -> Value:
    if given is None or isinstance(given, str | bool) or _is_number(given):
        return cast(Value, given)
    if isinstance(given, list | tuple) and all(isinstance(item, str) for item in given):
        return tuple(given)
    raise FilterError(f"{where} needs a text, a finite number, true, false, null or a list of texts, not {_kind(given)}")


def _is_number(value: object) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and math.isfinite(value))


_KINDS = {dict: "an object", list: "a list", tuple: "a list", str: "a text", int: "a number", float: "a number"}


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _KINDS.get(type(value), type(value).__name__)
