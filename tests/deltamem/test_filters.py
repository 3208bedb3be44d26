"""Filters over metadata: examples, a naive reference, and what is refused."""

import json
import math
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.errors import DeltaMemError
from deltamem.filters import MOST_CONDITIONS, MOST_NESTED, FilterError, meeting, read_filter
from deltamem.memory import Memory, Metadata

NOTED = Metadata({"topic": "Work", "year": 2025, "score": 0.5, "vip": True, "gone": None, "tags": ["Red", "blue"]})


@pytest.mark.parametrize(
    ("filters", "holds"),
    [
        ({}, True),
        ({"topic": "Work"}, True),
        ({"year": 2025.0}, True),
        ({"vip": 1}, False),
        ({"missing": None}, True),
        ({"tags": ["blue", "Red"]}, False),
        ({"year": {"in": [2024, 2025]}}, True),
        ({"year": {"gt": 2024, "lt": 2026}}, True),
        ({"year": {"gt": "2024"}}, False),
        ({"vip": {"gt": 0}}, False),
        ({"missing": {"lt": 5}}, False),
        ({"topic": {"contains": "OR"}}, False),
        ({"topic": {"icontains": "OR"}}, True),
        ({"tags": {"contains": "Re"}}, False),
        ({"tags": {"icontains": "BLUE"}}, True),
        ({"OR": [{"year": 1}, {"vip": True}]}, True),
        ({"NOT": [{"year": 1}, {"vip": True}]}, False),
        ({"topic": "Work", "NOT": {"OR": [{"year": 1}, {"score": {"gt": 0.6}}]}}, True),
    ],
)
def test_examples(filters: dict[str, Any], holds: bool) -> None:
    assert read_filter(filters)(NOTED) is holds


def nested(depth: int) -> dict[str, Any]:
    return {"year": 1} if depth == 1 else {"NOT": nested(depth - 1)}


@pytest.mark.parametrize(
    ("filters", "sentence"),
    [
        ([], "expected an object .* not a list"),
        ("topic", "not a text"),
        (None, "not null"),
        ({"topic": {"like": "x"}}, "'like' of 'topic' is no operator; there are eq, ne"),
        ({"topic": {}}, "'topic' is an empty object"),
        ({"topic": {"eq": {"a": 1}}}, "eq of 'topic' needs .* not an object"),
        ({"topic": [1, 2]}, "list of texts, not a list"),
        ({"topic": math.nan}, "a finite number"),
        ({"topic": {"in": "Work"}}, "in of 'topic' needs a list of values, not a text"),
        ({"topic": {"nin": [{}]}}, "nin of 'topic'"),
        ({"year": {"gt": None}}, "gt of 'year' needs a number or a text, not null"),
        ({"year": {"lte": True}}, "not true"),
        ({"year": {"lte": math.inf}}, "needs a number"),
        ({"tags": {"contains": 1}}, "contains of 'tags' needs a text, not a number"),
        ({"AND": {"a": 1}}, "AND needs a list of filters"),
        ({"OR": []}, "OR needs a list of filters that is not empty"),
        ({"NOT": "x"}, "NOT needs a list"),
        ({"OR": [1]}, "expected an object"),
        ({1: 2}, "1 is no key"),
        (nested(MOST_NESTED + 1), "nested deeper than 16"),
        (nested(500), "nested deeper than 16"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(filters: object, sentence: str) -> None:
    with pytest.raises(FilterError, match=sentence) as raised:
        read_filter(filters)
    assert isinstance(raised.value, DeltaMemError | ValueError) and "\n" not in str(raised.value)


def test_filters_have_so_many_conditions_as_is_said() -> None:
    """What they cost grows with the memories, too, and nobody can call a search back."""
    parts = [{"OR": [{"year": {"gt": 3000, "lt": 0}} for _ in range(MOST_CONDITIONS // 4)]} for _ in range(2)]
    assert read_filter({"OR": [*parts[:1], {"topic": "Work"}]})(NOTED)
    assert not read_filter({"OR": parts})(NOTED)
    for more in (
        {"OR": [*parts, {"topic": "Work"}]},
        {"NOT": {"AND": parts}, "topic": "Work"},
        dict.fromkeys(map(str, range(201))),
    ):
        with pytest.raises(FilterError, match="more than 200 conditions"):
            read_filter(more)
    years = list(range(10_000))
    assert read_filter({"year": {"in": years}})(NOTED) and not read_filter({"vip": {"in": years}})(NOTED)


def test_filters_may_be_nested_as_deep_as_is_said() -> None:
    assert read_filter(nested(MOST_NESTED))(Metadata({"year": 1})) is (MOST_NESTED % 2 == 1)


KEYS = st.sampled_from(["a", "b", "c"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([-1.0, 0.5, 1.0]),
    st.sampled_from(["", "a", "Ab", "b", "ß"]),
)
VALUES = st.one_of(SCALARS, st.lists(st.sampled_from(["a", "Ab", "SS"]), max_size=2))
OPERATORS = st.one_of(
    st.tuples(st.sampled_from(["eq", "ne"]), VALUES),
    st.tuples(st.sampled_from(["in", "nin"]), st.lists(VALUES, max_size=3)),
    st.tuples(st.sampled_from(["gt", "gte", "lt", "lte"]), st.one_of(st.integers(-2, 2), st.sampled_from([0.5, "a", "Ab"]))),
    st.tuples(st.sampled_from(["contains", "icontains"]), st.sampled_from(["", "a", "AB", "b", "ss"])),
)
CONDITIONS = st.one_of(VALUES, st.dictionaries(st.just("eq"), VALUES, min_size=1), OPERATORS.map(lambda pair: dict([pair])))
FILTERS = st.recursive(
    st.dictionaries(KEYS, CONDITIONS, max_size=2),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["AND", "OR", "NOT"]), st.lists(inner, min_size=1, max_size=3), max_size=2),
        st.fixed_dictionaries({"NOT": inner}),
        st.tuples(st.dictionaries(KEYS, CONDITIONS, max_size=1), inner).map(lambda pair: pair[0] | pair[1]),
    ),
    max_leaves=5,
)


def alike(one: Any, other: Any) -> bool:
    """Equality by what JSON calls the type."""
    kinds = [{bool: "b", int: "n", float: "n", str: "s", list: "l", type(None): "0"}[type(value)] for value in (one, other)]
    return kinds[0] == kinds[1] and one == other


def naive(filters: dict[str, Any], noted: dict[str, Any]) -> bool:
    """The rules of the page, word by word."""
    results = []
    for key, value in filters.items():
        if key == "AND":
            results.append(min(naive(one, noted) for one in value))
        elif key == "OR":
            results.append(max(naive(one, noted) for one in value))
        elif key == "NOT":
            results += [not naive(one, noted) for one in (value if isinstance(value, list) else [value])]
        else:
            own = noted.get(key)
            for name, operand in (value if isinstance(value, dict) else {"eq": value}).items():
                results.append(naive_operator(name, own, operand))
    return False not in results


def naive_operator(name: str, own: Any, operand: Any) -> bool:
    if name in ("eq", "ne"):
        return alike(own, operand) == (name == "eq")
    if name in ("in", "nin"):
        return (len([item for item in operand if alike(own, item)]) > 0) == (name == "in")
    if name in ("gt", "gte", "lt", "lte"):
        number = type(own) in (int, float) and type(operand) in (int, float)
        if not number and not (type(own) is str and type(operand) is str):
            return False
        return {"gt": own > operand, "gte": own >= operand, "lt": own < operand, "lte": own <= operand}[name]
    if name == "icontains":
        operand = operand.casefold()
        own = own.casefold() if type(own) is str else [item.casefold() for item in own] if type(own) is list else own
    return type(own) in (str, list) and operand in own


@given(FILTERS, st.dictionaries(KEYS, VALUES, max_size=3))
def test_filters_do_what_the_rules_say(filters: dict[str, Any], noted: dict[str, Any]) -> None:
    assert read_filter(filters)(Metadata(noted)) is naive(filters, noted)
    # As JSON brings it, too.
    assert read_filter(json.loads(json.dumps(filters)))(Metadata(json.loads(Metadata(noted).written))) is naive(
        filters, noted
    )
    # A negation holds exactly where the filter does not.
    assert read_filter({"NOT": filters})(Metadata(noted)) is not naive(filters, noted)


JSON = st.recursive(
    SCALARS | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(JSON)
def test_anything_else_is_a_filter_error(value: object) -> None:
    try:
        read_filter(value)(NOTED)
    except FilterError as error:
        assert str(error)


NOTES = ({"topic": "work", "user_id": "ann"}, {"item_1": 1, "created_at": "x"}, {"topic": "home"}, {})


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"topic": "home"}, [2]),
        ({"subject": "home"}, []),
        ({"subject": {"ne": "home"}}, [0, 1, 2, 3]),
        ({"item_2": 1}, []),
        ({"created_by": "x"}, []),
        ({"createdBy": "x"}, []),
        ({"OR": [{"topic": "work"}, {"item_1": 1}]}, [0, 1]),
        ({"tpoic": "work"}, "'tpoic'; did you mean 'topic'"),
        ({"topics": {"ne": "work"}}, "'topics'; did you mean 'topic'"),
        ({"AND": [{"topic": "work"}, {"NOT": {"userId": "ann"}}]}, "'userId'; did you mean 'user_id'"),
        ({"created-at": "x"}, "'created-at'; did you mean 'created_at'"),
        ({"Topic": "work"}, "'Topic'; did you mean 'topic'"),
        ({"and": ["x"]}, "'and'; did you mean 'AND'"),
    ],
)
def test_a_key_that_is_mistyped_is_named(filters: dict[str, Any], found: list[int] | str) -> None:
    memories = [Memory(f"m{number}", "x", datetime(2026, 3, 2), Metadata(note)) for number, note in enumerate(NOTES)]
    if isinstance(found, list):
        assert meeting(memories, filters) == [memories[number] for number in found]
    else:
        with pytest.raises(FilterError, match=f"no memory has the key {found}"):
            meeting(memories, filters)
