"""The tables of the restaurant service, and its state in SQLite, and what databases have in common.

Both run the same SQL of `papers.momento.service`. What an agent writes goes through `papers.momento.sql`, and is refused
by the database besides: SQLite has an authorizer, and for sessions a database that holds those of one user only.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time as clock
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import islice
from typing import Any, ClassVar
from uuid import UUID

from sqlglot import exp

from deltamem.errors import DeltaMemError
from papers.momento import sql
from papers.momento.policies import CallError, PolicyViolationError

Row = dict[str, Any]
Selected = tuple[list[str], list[Row]]
"""Names of the columns, and the rows."""

ENUMS: dict[str, tuple[str, ...]] = {
    "gender": ("male", "female", "other"),
    "payment_type": ("credit_card", "debit_card", "paypal", "apple_pay", "google_pay", "cash"),
    "reservation_status": ("confirmed", "cancelled", "completed", "no_show"),
    "order_status": ("created", "confirmed", "preparing", "ready", "picked_up", "on_the_way", "delivered", "cancelled"),
    "fulfillment_type": ("pickup", "delivery"),
    "delivery_provider": ("swiftdrop", "foodfly", "quickdish", "mealdash", "carryeats"),
    "membership_tier": ("basic", "silver", "gold", "platinum"),
    "membership_status": ("active", "cancelled", "expired"),
    "message_role": ("user", "assistant", "tool"),
}
"""Types of columns with few values, in the order in which they are sorted."""


def _columns(text: str) -> dict[str, str]:
    return dict(column.split() for column in text.split(", "))


TABLES: dict[str, dict[str, str]] = {
    "users": _columns(
        "id text, first_name text, last_name text, email text, gender gender, address1 text, address2 text, city text, "
        "state text, country text, zip text, phone text, created_at timestamp"
    ),
    "payment_methods": _columns("id uuid, user_id text, type payment_type, details json, created_at timestamp"),
    "restaurants": _columns(
        "id uuid, name text, description text, address text, city text, country text, lat real, lon real, cuisines list, "
        "price_range_lower integer, price_range_upper integer, opening_hours json, capacity integer, amenities list, "
        "image_url list"
    ),
    "menu_items": _columns(
        "id uuid, restaurant_id uuid, name text, description text, categories list, cuisines list, price money, "
        "image_url list"
    ),
    "reservations": _columns(
        "id uuid, user_id text, restaurant_id uuid, date date, time time, party_size integer, special_requests text, "
        "duration_minutes integer, status reservation_status, created_at timestamp"
    ),
    "orders": _columns(
        "id uuid, user_id text, restaurant_id uuid, fulfillment fulfillment_type, status order_status, total_price money, "
        "currency text, delivery_provider_name delivery_provider, delivery_address text, special_instructions text, "
        "created_at timestamp, updated_at timestamp"
    ),
    "order_items": _columns(
        "id uuid, order_id uuid, menu_item_id uuid, name text, price money, quantity integer, notes text"
    ),
    "memberships": _columns(
        "id uuid, user_id text, tier membership_tier, status membership_status, start_date date, end_date date, "
        "created_at timestamp, updated_at timestamp"
    ),
    "sessions": _columns(
        "id uuid, user_id text, started_at timestamp, ended_at timestamp, summary text, extracted_facts json, "
        "embedding vector"
    ),
    "session_messages": _columns("id uuid, session_id uuid, role message_role, content json, seq integer"),
}
"""Columns of each table with their types."""

SESSION_TABLES = ("sessions", "session_messages")
READABLE = tuple(name for name in TABLES if name not in SESSION_TABLES)
"""What ``execute_sql`` may read: not the tables of sessions, because how a memory finds these is under test."""

SECONDS = 2.0
"""How long a query of an agent may take."""
TOO_LONG = f"Query took longer than {SECONDS:g} s"

_LONGEST_RESULT = 200_000
_MOST_RECALLED = 1000
_KINDS = {column: kind for columns in TABLES.values() for column, kind in columns.items()}


def amount(value: float | str | Decimal) -> Decimal:
    """An amount of money, with the digits that it was given with."""
    return Decimal(str(value))


def check_texts(name: str, value: Any) -> None:
    """Refuse texts in a JSON value that JSON allows and databases do not hold.

    Raises:
        DeltaMemError: Naming what the value is.
    """
    if isinstance(value, str) and any(one == "\0" or "\ud800" <= one <= "\udfff" for one in value):
        raise DeltaMemError(f"{name} holds characters that no text has")
    for one in value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else ():
        check_texts(name, one)


def is_storable(number: float) -> bool:
    """Whether a number fits into PostgreSQL's integer; NaN and infinity do not."""
    return -(2**31) <= number < 2**31


def typed_rows(table: str, rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Rows as values for all columns, in the form in which tools give them, so that both databases see the same.

    Raises:
        DeltaMemError: If a row has no id of its own, or a value is not of its column's type.
    """
    ids = [row.get("id") for row in rows]
    if None in ids or len(set(map(str, ids))) < len(ids):
        raise DeltaMemError(f"each row of {table} needs an id of its own")
    return [[_typed(name, row.get(name), kind) for name, kind in TABLES[table].items()] for row in rows]


def _typed(name: str, value: Any, kind: str) -> Any:
    if value is None:
        return None
    check_texts(name, value)
    if kind in ENUMS and value not in ENUMS[kind]:
        raise DeltaMemError(f"{value!r} is none of {', '.join(ENUMS[kind])}")
    try:
        if type(value) not in _GIVEN.get(kind, (type(value),)):
            raise TypeError
        made = _TYPERS.get(kind, _same)(value)
        if kind in ("integer", "real", "money") and not is_storable(made):
            raise ValueError
        return made
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise DeltaMemError(f"the {name} {str(value)[:40]!r} is not of the type {kind}") from error


def _same(value: Any) -> Any:
    return value


def _timestamp(value: str | datetime) -> datetime:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


_GIVEN = {"text": (str,), "list": (list,), "integer": (int,), "real": (int, float), "date": (str, date), "time": (str, time)}
_TYPERS: dict[str, Callable[[Any], Any]] = {
    "money": amount,
    "date": lambda value: date.fromisoformat(str(value)),
    "time": lambda value: time.fromisoformat(str(value)).replace(tzinfo=None),
    "timestamp": _timestamp,
    "uuid": lambda value: str(UUID(value)),
    "vector": lambda value: [float(one) for one in value],
}
"""What makes of what is given a value of each type, or raises."""

_PARSERS: dict[str, Callable[[Any], Any]] = {
    "money": amount,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timestamp": datetime.fromisoformat,
    **dict.fromkeys(("json", "list", "vector"), json.loads),
}
"""What reads what SQLite stored."""


class DatabaseFailedError(DeltaMemError):
    """The database went away, or is out of room: no result of a call, and a trial that meets it has failed."""

    def __init__(self, cause: Exception) -> None:
        """Repeat what the database said first."""
        said = str(cause).partition("\n")[0]
        super().__init__(f"the database failed: {said}")


class Database(ABC):
    """Where the state is; one trial at a time."""

    name: str
    tests: ClassVar[Mapping[str, str]]
    """SQL for conditions on a column: whether it is ``among`` a list of UUIDs, or ``like`` any of a list of patterns
    (whatever the case); and of a list whether it ``overlaps`` another or ``contains`` it."""

    def test(self, kind: str, column: str) -> str:
        """One of `tests`; the list is the parameter."""
        return self.tests[kind].format(column)

    @abstractmethod
    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run our own SQL with ``?`` for parameters, and return what it selects with the types of the columns."""

    @abstractmethod
    def insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows; columns that a row lacks become NULL."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """All or nothing of what is done in the block."""

    def select(self, query: str, most: int) -> Selected:
        """Run an agent's own SELECT over `READABLE` and return at most so many rows as JSON values.

        Raises:
            PolicyViolationError: If it is not such a SELECT.
            CallError: If it fails.
        """
        with sql.parsing():
            return self._select(sql.checked(query, READABLE, SESSION_TABLES), most)

    @abstractmethod
    def _select(self, tree: exp.Query, most: int) -> Selected: ...

    def recall(self, query: str, user_id: str, embedding: Sequence[float]) -> list[Row]:
        """Run a SELECT over `user_id`'s own rows of the table ``sessions``; others do not exist for it.

        ``:query_embedding`` and ``:user_id`` stand for what they say.

        Raises:
            PolicyViolationError: If it is not such a SELECT.
            CallError: If it fails.
        """
        values = {"user_id": user_id, "query_embedding": json.dumps(list(embedding))}
        with sql.parsing():
            return self._recall(sql.checked(query, ("sessions",), READABLE), values, _MOST_RECALLED)[1]

    @abstractmethod
    def _recall(self, tree: exp.Query, values: Mapping[str, str], most: int) -> Selected: ...

    @abstractmethod
    def close(self) -> None:
        """End; nothing is kept."""


def collected(names: Sequence[str], rows: Iterable[Sequence[Any]], most: int, plain: Callable[[str, Any], Any]) -> Selected:
    """What an agent is shown of a result: at most so many rows, values made JSON by `plain`, no two columns of one name.

    Raises:
        CallError: If it is too long, which is seen as soon as it is.
    """
    columns: dict[str, None] = {}
    given, numbers = set(names), Counter[str]()
    for name in names:
        shown = name
        while shown in columns or (shown != name and shown in given):
            numbers[name] += 1
            shown = f"{name}_{numbers[name] + 1}"
        columns[shown] = None
    found: list[Row] = []
    size = 0
    for row in islice(rows, most):
        if any(isinstance(value, float | Decimal) and not math.isfinite(value) for value in row):
            raise CallError("the result has a number that is not finite")
        values = [plain(name, value) for name, value in zip(names, row, strict=True)]
        found.append(dict(zip(columns, values, strict=True)))
        size += len(json.dumps(found[-1], default=str))
        if size > _LONGEST_RESULT:
            raise CallError(f"the result has more than {_LONGEST_RESULT:,} characters; select less")
    return list(columns), found


class SQLiteDatabase(Database):
    """In memory, of this process."""

    name = "sqlite"
    tests: ClassVar = {
        "among": "in_array({}, ?)",
        "like": "ilike_any({}, ?)",
        "overlaps": "overlaps({}, ?)",
        "contains": "contains_all({}, ?)",
    }

    def __init__(self) -> None:
        """Make the tables."""
        self._connection = _connection(*TABLES)
        self._connection.execute("CREATE INDEX of_restaurant ON menu_items(restaurant_id)")

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """See `Database`."""
        cursor = self._connection.execute(query, [_stored(value) for value in parameters])
        names = [column[0] for column in cursor.description or ()]
        return [{name: _parsed(name, value) for name, value in zip(names, row, strict=True)} for row in cursor]

    def insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Database`."""
        _insert(self._connection, table, ([_stored(value) for value in row] for row in typed_rows(table, rows)))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Database`."""
        self._connection.execute("BEGIN")
        with self._connection:
            yield

    def _select(self, tree: exp.Query, most: int) -> Selected:
        names = {cte.alias_or_name for cte in tree.find_all(exp.CTE)} - set(TABLES)
        return self.guarded(sql.for_sqlite(tree), {*READABLE, *names}, most)

    def guarded(self, query: str, tables: Collection[str], most: int) -> Selected:
        """Run SQLite's SQL with nothing but the authorizer between it and the database."""
        return _guarded(self._connection, query, tables, most)

    def _recall(self, tree: exp.Query, values: Mapping[str, str], most: int) -> Selected:
        own = _connection("sessions")
        try:
            theirs = self._connection.execute("SELECT * FROM sessions WHERE user_id = ?", (values["user_id"],))
            _insert(own, "sessions", theirs)
            return _guarded(own, sql.for_sqlite(tree), ("sessions",), most, values)
        finally:
            own.close()

    def close(self) -> None:
        """See `Database`."""
        self._connection.close()


def _connection(*tables: str) -> sqlite3.Connection:
    # The run of a trial may move from one thread to another; only one at a time uses it.
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    for name, (count, function) in sql.FUNCTIONS_OF_SQLITE.items():
        connection.create_function(name, count, function, deterministic=True)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5_000_000)
    # Amounts have no type: SQLite would make 20 of 20.0, and the hash of a state shows the digits.
    types = {"integer": "INTEGER", "real": "REAL", "money": ""}
    for table in tables:
        columns = ", ".join(f"{column} {types.get(kind, 'TEXT')}" for column, kind in TABLES[table].items())
        connection.execute(f"CREATE TABLE {table} ({columns}, PRIMARY KEY (id))")
    return connection


def _insert(connection: sqlite3.Connection, table: str, rows: Iterator[Sequence[Any]] | sqlite3.Cursor) -> None:
    connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(TABLES[table]))})", rows)


def _stored(value: Any) -> Any:
    if isinstance(value, Decimal):
        number = float(value) if int(value.as_tuple().exponent) < 0 else int(value)
        if str(number) != str(value):
            raise DeltaMemError(f"SQLite would not keep the digits of the amount {value}; use database=postgres")
        return number
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, ensure_ascii=False)
    return str(value) if isinstance(value, date | time) else value


def _parsed(column: str, value: Any) -> Any:
    return value if value is None else _PARSERS.get(_KINDS.get(column, ""), _same)(value)


_HARMLESS_NAMES = """
    abs avg ceil ceiling coalesce concat count date dense_rank floor group_concat iif ifnull instr json_array
    json_extract json_group_array lag lead length lower ltrim max min nullif rank replace round row_number rtrim
    strftime substr substring sum trim upper
"""
_HARMLESS = {*sql.FUNCTIONS_OF_SQLITE, "->", "->>", *_HARMLESS_NAMES.split()}


def _guarded(
    connection: sqlite3.Connection,
    query: str,
    tables: Collection[str],
    most: int,
    values: Mapping[str, str] | Sequence[Any] = (),
) -> Selected:
    """Run a query that may read only these tables, call only harmless functions and take only `SECONDS`."""

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        match action:
            case sqlite3.SQLITE_SELECT:
                return sqlite3.SQLITE_OK
            case sqlite3.SQLITE_READ if first in tables:
                return sqlite3.SQLITE_OK
            case sqlite3.SQLITE_FUNCTION if (second or "").lower() in _HARMLESS:
                return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    end = clock.monotonic() + SECONDS
    connection.set_authorizer(authorize)
    connection.set_progress_handler(lambda: clock.monotonic() > end, 100)
    try:
        cursor = connection.execute(query, values)
        return collected([column[0] for column in cursor.description or ()], cursor, most, _reread)
    except sqlite3.DatabaseError as error:
        said = str(error)
        if "prohibited" in said or "not authorized" in said:
            raise PolicyViolationError(f"not allowed: {said}") from error
        raise CallError(TOO_LONG if said == "interrupted" else said) from error
    except (sqlite3.Warning, ValueError, OverflowError) as error:
        raise CallError(str(error)) from error
    finally:
        connection.set_authorizer(None)
        connection.set_progress_handler(None, 0)


def _reread(column: str, value: Any) -> Any:
    """A selected value as JSON has it: lists and objects are texts in SQLite."""
    if isinstance(value, str) and _KINDS.get(column) in ("list", "json", "vector") and value[:1] in ("[", "{"):
        return json.loads(value)
    return value


@contextmanager
def open_database(name: str) -> Iterator[Database]:
    """The database that the configuration names: ``sqlite``, ``postgres`` for a private server, or the URL of a server.

    Raises:
        DeltaMemError: If it does not exist or cannot be used.
    """
    from papers.momento.postgres import PostgresDatabase, private_postgres

    if name == "postgres":
        with private_postgres() as url, open_database(url) as opened:
            yield opened
        return
    if name != "sqlite" and not name.startswith(("postgresql://", "postgres://")):
        raise DeltaMemError(f"database={name} does not exist; there are: sqlite, postgres, postgresql://...")
    database = SQLiteDatabase() if name == "sqlite" else PostgresDatabase(name)
    try:
        yield database
    finally:
        database.close()
