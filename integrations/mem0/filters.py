"""Filters in mem0's dialect, as conditions on what mem0's clients see of a memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

from deltamem.filters import MOST_NESTED, FilterError, Test, conditions_of, read_filter, similar_key
from deltamem.memory import FILTER_WORDS, Memory, Value
from deltamem.zones import Zone, iso_time

ENTITIES = ("agent_id", "app_id", "run_id")
"""What mem0 files memories under besides their user; here keys of the metadata."""
REFUSED = ("categories", "feedback", "feedback_reason", "expiration_date", "immutable", "structured_attributes", "timestamp")
"""Fields of mem0's filters that memories do not have here."""
MOST_USERS = 100
# Dots, so that they cannot be taken for the metadata's own keys by accident.
_USER, _ID, _TEXT = "memory.user_id", "memory.id", "memory.text"
_TIMES = {"created_at": "memory.created_at", "updated_at": "memory.updated_at"}
_WALL_CLOCK = "memory.wall_clock."  # Before the name of a time: what the person's clock showed, whatever the offset
_FIELDS = ("user_id", *ENTITIES, *_TIMES, "keywords", "memory_ids", "metadata", *REFUSED)
_ORDER = ("eq", "ne", "gt", "gte", "lt", "lte")
_ANY = "*"
_UTC = Zone("UTC", "default")


class MemoryView(Mapping[str, Value]):
    """What filters see of a memory: its metadata, and what mem0 has beside it, computed when it is asked for."""

    __slots__ = ("_added", "_memory", "_owner", "_uuid")

    def __init__(self, owner: str, uuid: UUID, memory: Memory, added: datetime) -> None:
        """Look at a memory, which had the time `added` at first."""
        self._owner, self._uuid, self._memory, self._added = owner, uuid, memory, added

    def __getitem__(self, key: str) -> Value:
        if key == _USER:
            return self._owner
        if key == _ID:
            return str(self._uuid)
        if key == _TEXT:
            return self._memory.text
        if key in _TIMES.values():
            return utc(self._time(key)).timestamp()
        if key.startswith(_WALL_CLOCK):
            return utc(self._time(key).replace(tzinfo=None)).timestamp()
        return self._memory.metadata[key]

    def _time(self, key: str) -> datetime:
        return self._added if key.endswith("created_at") else self._memory.time

    def __iter__(self) -> Iterator[str]:
        yield from (_USER, _ID, _TEXT, *_TIMES.values(), *self._memory.metadata)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def with_offset(time: datetime) -> datetime:
    """A time as mem0's clients are given it, on the person's day; one without an offset counts as if in UTC."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def utc(time: datetime) -> datetime:
    """A time in UTC; at the ends of the calendar, where UTC leaves it, the end."""
    try:
        return with_offset(time).astimezone(UTC)
    except OverflowError:
        return (datetime.min if time.year == 1 else datetime.max).replace(tzinfo=UTC)


def read_time(given: object, where: str, zone: Zone = _UTC) -> datetime:
    """A time as mem0 takes it: ISO 8601, also only the date, or seconds since 1970, for the wall clock of a zone."""
    try:
        if isinstance(given, str):
            return iso_time(given)
        if isinstance(given, int | float) and not isinstance(given, bool):
            return zone.at(datetime.fromtimestamp(given, UTC))
    except (ValueError, OverflowError, OSError):
        pass
    raise FilterError(f"{where} needs seconds since 1970 or an ISO 8601 time such as 2026-03-02T09:00:00Z")


def users_of(filters: Mapping[str, object]) -> list[str]:
    """Whose memories a filter is about.

    That must be said where it holds for all that is found: at the top, or in an AND there.
    """
    named = [users for condition in _holding(filters, 1) for users in [_users(condition)]]
    if not named:
        raise FilterError('filters: user_id is missing, as in {"user_id": "ann"} or {"AND": [{"user_id": "ann"}, ...]}')
    common = [user for user in dict.fromkeys(named[0]) if all(user in users for users in named)]
    if len(common) > MOST_USERS:
        raise FilterError(f"filters: user_id names more than {MOST_USERS} users")
    return common


def _holding(filters: object, depth: int) -> Iterator[object]:
    if depth > MOST_NESTED or not isinstance(filters, Mapping):
        return
    if "user_id" in filters:
        yield filters["user_id"]
    parts = filters.get("AND")
    for part in parts if isinstance(parts, list) else []:
        yield from _holding(part, depth + 1)


def _users(condition: object) -> list[str]:
    given: object = [condition]
    if isinstance(condition, Mapping):
        if len(condition) != 1 or next(iter(condition)) not in ("eq", "in"):
            raise FilterError("filters: user_id takes a name, eq or in where it says whose memories are meant")
        [(operator, operand)] = condition.items()
        given = operand if operator == "in" else [operand]
    if not isinstance(given, list) or not given:
        raise FilterError("filters: user_id needs a name, or in with a list of names")
    return [user_name(name) for name in given]


def user_name(given: object) -> str:
    """The name of a user."""
    if not isinstance(given, str) or not 0 < len(given) <= 256:
        raise FilterError("user_id must be a text of 1 to 256 characters")
    if given == _ANY:
        raise FilterError("user_id: the wildcard * is not supported, because each user's memory is a memory of its own")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise FilterError("user_id is not valid Unicode") from None
    return given


def read_mem0_filter(filters: Mapping[str, object]) -> Test:
    """A function that tells of a memory's `MemoryView` whether a filter of mem0's holds."""
    return read_filter(_translated(filters, 1))


def check_mem0_keys(filters: Mapping[str, object], memories: Sequence[Memory]) -> None:
    """Refuse a key that is neither a field nor in the metadata of any of the memories that are looked through.

    Within ``metadata``, which may come to have a key later, only one that is written almost as one that there is.
    """
    known = {key for memory in memories for key in memory.metadata}
    for name, value in conditions_of(filters):
        inside = name == "metadata" and isinstance(value, Mapping)
        for key in value if inside and isinstance(value, Mapping) else [name]:
            if key in known or (key in _FIELDS and not inside):
                continue
            if meant := similar_key(key, known if inside else [*known, *_FIELDS, *FILTER_WORDS]):
                raise FilterError(f"filters: there is no {key!r}; did you mean {meant!r}?")
            if memories and not inside:
                later = f'{{"metadata": {{"{key}": ...}}}}'
                raise FilterError(f"filters: there is no {key!r}; what memories may come to have stands in {later}")


def _translated(filters: object, depth: int) -> object:
    if depth > MOST_NESTED:
        raise FilterError(f"filters: nested deeper than {MOST_NESTED}")
    if not isinstance(filters, Mapping):
        return filters  # refused by `read_filter`, in the same words as everywhere
    conditions: list[object] = []
    for key, value in filters.items():
        if key in FILTER_WORDS:
            parts = value if isinstance(value, list) else [value]
            if key != "NOT" and parts is not value:
                raise FilterError(f"filters: {key} needs a list")
            conditions.append({key: [_translated(part, depth + 1) for part in parts]})
        else:
            conditions.append(_condition(key, value))
    return {"AND": conditions} if conditions else {}


def _condition(key: object, value: object) -> object:
    match key:
        case "user_id":
            return {_USER: _present(value)}
        case "created_at" | "updated_at":
            return _times(str(key), value)
        case "keywords":
            if not isinstance(value, Mapping) or not value or not set(value) <= {"contains", "icontains"}:
                raise FilterError("filters: keywords takes contains or icontains, which look into the text")
            return {_TEXT: dict(value)}
        case "memory_ids":
            wanted = value.get("in") if isinstance(value, Mapping) and len(value) == 1 else value
            if not isinstance(wanted, list) or not all(isinstance(one, str) for one in wanted):
                raise FilterError("filters: memory_ids needs a list of ids")
            return {_ID: {"in": [one.lower() for one in wanted]}}
        case "metadata":
            if not isinstance(value, Mapping) or not value:
                raise FilterError('filters: metadata needs an object such as {"topic": "work"}')
            return {"AND": [{name: _present(condition)} for name, condition in value.items()]}
        case _ if key in REFUSED:
            raise FilterError(f"filters: {key} is not supported by this server")
    return {key: _present(value)}


def _present(condition: object) -> object:
    """A condition, with mem0's wildcard for whatever is not null."""
    if condition == _ANY:
        return {"ne": None}
    if isinstance(condition, Mapping) and _ANY in condition.values():
        raise FilterError('filters: the wildcard * stands by itself, as in {"run_id": "*"}')
    return condition


def _times(field: str, condition: object) -> object:
    operators = condition if isinstance(condition, Mapping) else {"eq": condition}
    if condition == _ANY:
        return {_TIMES[field]: {"ne": None}}
    if not operators or not set(operators) <= set(_ORDER):
        raise FilterError(f"filters: {field} takes {', '.join(_ORDER)}")
    tests: dict[str, dict[str, float]] = {}
    for name, given in operators.items():
        time = read_time(given, f"filters: {name} of {field}")
        # A day or hour without an offset is the person's own.
        key = _TIMES[field] if time.utcoffset() is not None else f"{_WALL_CLOCK}{field}"
        tests.setdefault(key, {})[name] = utc(time).timestamp()
    return tests
