"""The state of the restaurant service in SQLite, which needs nothing, or in PostgreSQL with pgvector, the real thing.

Both run the same SQL of `eval.momento.world`. What an agent writes itself goes through `eval.momento.sql`, and is refused by
the database besides: PostgreSQL has two roles, one for the tables of the service and one for a user's own sessions by row
level security, neither of which may call anything volatile; SQLite has an authorizer, and for sessions a database that holds
those of one user only.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import tempfile
import time as clock
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from filelock import FileLock
from sqlglot import exp

from deltamem.errors import DeltaMemError
from eval.momento import sql
from eval.momento.policies import CallError, PolicyViolationError

if TYPE_CHECKING:
    pass

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

TABLES: dict[str, dict[str, str]] = {
    "users": {"id": "text", "first_name": "text", "last_name": "text", "email": "text", "gender": "gender"}
    | dict.fromkeys(("address1", "address2", "city", "state", "country", "zip", "phone"), "text")
    | {"created_at": "timestamp"},
    "payment_methods": {
        "id": "uuid",
        "user_id": "text",
        "type": "payment_type",
        "details": "json",
        "created_at": "timestamp",
    },
    "restaurants": {"id": "uuid"}
    | dict.fromkeys(("name", "description", "address", "city", "country"), "text")
    | {"lat": "real", "lon": "real", "cuisines": "list", "price_range_lower": "integer", "price_range_upper": "integer"}
    | {"opening_hours": "json", "capacity": "integer", "amenities": "list", "image_url": "list"},
    "menu_items": {"id": "uuid", "restaurant_id": "uuid", "name": "text", "description": "text"}
    | {"categories": "list", "cuisines": "list", "price": "money", "image_url": "list"},
    "reservations": {
        "id": "uuid",
        "user_id": "text",
        "restaurant_id": "uuid",
        "date": "date",
        "time": "time",
        "party_size": "integer",
        "special_requests": "text",
        "duration_minutes": "integer",
        "status": "reservation_status",
        "created_at": "timestamp",
    },
    "orders": {
        "id": "uuid",
        "user_id": "text",
        "restaurant_id": "uuid",
        "fulfillment": "fulfillment_type",
        "status": "order_status",
        "total_price": "money",
        "currency": "text",
        "delivery_provider_name": "delivery_provider",
        "delivery_address": "text",
        "special_instructions": "text",
        "created_at": "timestamp",
        "updated_at": "timestamp",
    },
    "order_items": {
        "id": "uuid",
        "order_id": "uuid",
        "menu_item_id": "uuid",
        "name": "text",
        "price": "money",
        "quantity": "integer",
        "notes": "text",
    },
    "memberships": {"id": "uuid", "user_id": "text", "tier": "membership_tier", "status": "membership_status"}
    | {"start_date": "date", "end_date": "date", "created_at": "timestamp", "updated_at": "timestamp"},
    "sessions": {"id": "uuid", "user_id": "text", "started_at": "timestamp", "ended_at": "timestamp", "summary": "text"}
    | {"extracted_facts": "json", "embedding": "vector"},
    "session_messages": {"id": "uuid", "session_id": "uuid", "role": "message_role", "content": "json", "seq": "integer"},
}
"""Columns of each table with their types."""

SESSION_TABLES = ("sessions", "session_messages")
READABLE = tuple(name for name in TABLES if name not in SESSION_TABLES)
"""What ``execute_sql`` may read: not the tables of sessions, because how a memory finds these is under test."""

SECONDS = 2.0
"""How long a query of an agent may take."""

_LONGEST_RESULT = 200_000
_TOO_LONG = f"Query took longer than {SECONDS:g} s"


def amount(value: float | str | Decimal) -> Decimal:
    """An amount of money, with the digits that it was given with."""
    return Decimal(str(value))


class Database(Protocol):
    """Where the state is; one trial at a time."""

    name: str

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run our own SQL with ``?`` for parameters, and return what it selects with the types of the columns."""
        ...

    def insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows; columns that a row lacks become NULL."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing of what is done in the block."""
        ...

    def ilike(self, column: str) -> str:
        """SQL for whether a text holds a pattern, whatever the case; the pattern is the parameter."""
        ...

    def overlaps(self, column: str) -> str:
        """SQL for whether a list shares an element with the parameter, a list."""
        ...

    def contains(self, column: str) -> str:
        """SQL for whether a list has all elements of the parameter, a list."""
        ...

    def select(self, query: str, most: int) -> Selected:
        """Run an agent's own SELECT over `READABLE` and return at most so many rows as JSON values.

        Raises:
            PolicyViolationError: If it is not such a SELECT.
            CallError: If it fails.
        """
        ...

    def recall(self, query: str, user_id: str, embedding: Sequence[float]) -> list[Row]:
        """Run a SELECT over `user_id`'s own rows of the table ``sessions``; others do not exist for it.

        ``:query_embedding`` and ``:user_id`` stand for what they say.

        Raises:
            PolicyViolationError: If it is not such a SELECT.
            CallError: If it fails.
        """
        ...

    def close(self) -> None:
        """End; nothing is kept."""
        ...


_PARSERS = {
    "money": amount,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "json": json.loads,
    "list": json.loads,
    "vector": json.loads,
}
_KINDS = {column: kind for columns in TABLES.values() for column, kind in columns.items()}


def _plain(value: Any) -> Any:
    """A selected value as JSON has it, the same from both databases."""
    if isinstance(value, Decimal):
        return float(value) if int(value.as_tuple().exponent) < 0 else int(value)
    if isinstance(value, datetime | date | time | UUID):
        return str(value)
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _checked_size(columns: list[str], rows: list[Row]) -> Selected:
    if len(json.dumps(rows, default=str)) > _LONGEST_RESULT:
        raise CallError(f"the result has more than {_LONGEST_RESULT:,} characters; select less")
    return columns, rows


class SQLiteDatabase:
    """In memory, of this process."""

    name = "sqlite"

    def __init__(self) -> None:
        """Make the tables."""
        self._connection = _sqlite_connection()
        for table, columns in TABLES.items():
            self._connection.execute(_sqlite_table(table, columns))
        self._connection.execute("CREATE INDEX of_restaurant ON menu_items(restaurant_id)")

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """See `Database`."""
        cursor = self._connection.execute(query, [_stored(value) for value in parameters])
        return [_parsed(row) for row in _dicts(cursor)] if cursor.description else []

    def insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Database`."""
        kinds = _with_ids(table, rows)
        values = [[_stored(_typed(row.get(column), kind)) for column, kind in kinds.items()] for row in rows]
        marks = ", ".join("?" * len(kinds))
        self._connection.executemany(f"INSERT INTO {table} ({', '.join(kinds)}) VALUES ({marks})", values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Database`."""
        self._connection.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def ilike(self, column: str) -> str:
        """See `Database`."""
        return f"ilike({column}, ?)"

    def overlaps(self, column: str) -> str:
        """See `Database`."""
        return f"overlaps({column}, ?)"

    def contains(self, column: str) -> str:
        """See `Database`."""
        return f"contains_all({column}, ?)"

    def select(self, query: str, most: int) -> Selected:
        """See `Database`."""
        tree = sql.checked(query, READABLE)
        names = {cte.alias_or_name for cte in tree.find_all(exp.CTE)}
        return _checked_size(*self.guarded(sql.for_sqlite(tree), {*READABLE, *names}, most))

    def guarded(self, query: str, tables: Collection[str], most: int) -> Selected:
        """Run SQLite's SQL with nothing but the authorizer between it and the database."""
        return _guarded(self._connection, query, tables, most)

    def recall(self, query: str, user_id: str, embedding: Sequence[float]) -> list[Row]:
        """See `Database`."""
        tree = sql.checked(query, ("sessions",))
        own = _sqlite_connection()
        try:
            own.execute(_sqlite_table("sessions", TABLES["sessions"]))
            cursor = self._connection.execute("SELECT * FROM sessions WHERE user_id = ?", (user_id,))
            own.executemany(f"INSERT INTO sessions VALUES ({', '.join('?' * len(TABLES['sessions']))})", cursor.fetchall())
            values = {"user_id": user_id, "query_embedding": json.dumps(list(embedding))}
            _, rows = _guarded(own, sql.for_sqlite(tree), ("sessions",), -1, values)
            return rows
        finally:
            own.close()

    def close(self) -> None:
        """See `Database`."""
        self._connection.close()


def _sqlite_connection() -> sqlite3.Connection:
    # The run of a trial may move from one thread to another; only one at a time uses it.
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    for name, (count, function) in sql.FUNCTIONS_OF_SQLITE.items():
        connection.create_function(name, count, function, deterministic=True)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5_000_000)
    return connection


def _sqlite_table(table: str, columns: Mapping[str, str]) -> str:
    # Amounts have no type: SQLite would make 20 of 20.0, and the hash of a state shows the digits.
    types = {"integer": "INTEGER", "real": "REAL", "money": ""}
    made = ", ".join(f"{column} {types.get(kind, 'TEXT')}" for column, kind in columns.items())
    return f"CREATE TABLE {table} ({made}, PRIMARY KEY (id))"


def _typed(value: Any, kind: str) -> Any:
    """A value of a row in the form in which tools give it, so that both databases see the same."""
    if value is None:
        return None
    if kind == "integer" and not isinstance(value, int):
        raise DeltaMemError(f"{value!r} is not a whole number")
    if kind in ENUMS and value not in ENUMS[kind]:
        raise DeltaMemError(f"{value!r} is none of {', '.join(ENUMS[kind])}")
    try:
        if kind == "money":
            return amount(value)
        if kind == "timestamp" and isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        if kind in ("date", "time") and isinstance(value, str):
            return _PARSERS[kind](value)
        return str(UUID(value)) if kind == "uuid" else value
    except (ValueError, ArithmeticError) as error:
        raise DeltaMemError(f"{value!r} is not of the type {kind}") from error


def _with_ids(table: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The columns of a table, once it is known that each row has an id of its own."""
    ids = [row.get("id") for row in rows]
    if None in ids or len(set(ids)) < len(ids):
        raise DeltaMemError(f"each row of {table} needs an id of its own")
    return TABLES[table]


def _stored(value: Any) -> Any:
    if isinstance(value, Decimal):
        number = float(value) if int(value.as_tuple().exponent) < 0 else int(value)
        if str(number) != str(value):
            raise DeltaMemError(f"SQLite would not keep the digits of the amount {value}; use database=postgres")
        return number
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, ensure_ascii=False)
    return str(value) if isinstance(value, date | time) else value


def _dicts(cursor: sqlite3.Cursor) -> list[Row]:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _parsed(row: Row) -> Row:
    return {
        name: parser(value) if value is not None and (parser := _PARSERS.get(_KINDS.get(name, ""))) else value
        for name, value in row.items()
    }


_HARMLESS = {*sql.FUNCTIONS_OF_SQLITE, "->", "->>", "json_array", "like", "glob"} | {
    "abs",
    "avg",
    "ceil",
    "ceiling",
    "coalesce",
    "concat",
    "count",
    "date",
    "dense_rank",
    "floor",
    "group_concat",
    "iif",
    "ifnull",
    "instr",
    "json_extract",
    "json_group_array",
    "lag",
    "lead",
    "length",
    "lower",
    "ltrim",
    "max",
    "min",
    "nullif",
    "rank",
    "replace",
    "round",
    "row_number",
    "rtrim",
    "strftime",
    "substr",
    "substring",
    "sum",
    "trim",
    "upper",
}


def _guarded(
    connection: sqlite3.Connection,
    query: str,
    tables: Collection[str],
    most: int,
    values: Mapping[str, Any] | Sequence[Any] = (),
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
    connection.set_progress_handler(lambda: clock.monotonic() > end, 10_000)
    try:
        cursor = connection.execute(query, values)
        columns = [column[0] for column in cursor.description or ()]
        found = cursor.fetchall() if most < 0 else cursor.fetchmany(most)
    except sqlite3.DatabaseError as error:
        said = str(error)
        if "prohibited" in said or "not authorized" in said:
            raise PolicyViolationError(f"not allowed: {said}") from error
        raise CallError(_TOO_LONG if said == "interrupted" else said) from error
    except (sqlite3.Warning, ValueError, OverflowError) as error:
        raise CallError(str(error)) from error
    finally:
        connection.set_authorizer(None)
        connection.set_progress_handler(None, 0)
    rows = [{name: _reread(name, value) for name, value in zip(columns, row, strict=True)} for row in found]
    return columns, rows


def _reread(column: str, value: Any) -> Any:
    """A list or object, which SQLite has as text."""
    if isinstance(value, str) and _KINDS.get(column) in ("list", "json", "vector") and value[:1] in ("[", "{"):
        return json.loads(value)
    return value


_READER, _RECALLER = "momento_reader", "momento_recall"
_USER_SETTING = "momento.user_id"
_MISSING = "database=postgres needs psycopg; install it with: pip install 'deltamem[momento]'"
_STABLE_ALLOWED = (
    "extract",
    "date_part",
    "date_trunc",
    "to_char",
    "concat",
    "timestamptz_pl_interval",
    "timestamptz_mi_interval",
    "array_to_string",
)

# Whoever may SELECT could otherwise sleep, read settings and the catalog, or run a query that is a string. Immutable
# functions can do nothing but compute; what casts and aggregates need is among them.
_LOCK_DOWN = f"""
REVOKE ALL ON ALL TABLES IN SCHEMA pg_catalog, information_schema FROM PUBLIC;
REVOKE USAGE ON SCHEMA information_schema FROM PUBLIC;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
DO $$ DECLARE signature text; BEGIN
    FOR signature IN
        SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = 'pg_catalog' AND NOT (
            (p.provolatile = 'i' AND p.proname NOT LIKE 'pg\\_%' AND p.proname NOT LIKE '%\\_to\\_xml%')
            OR p.proname IN ({", ".join(map(repr, _STABLE_ALLOWED))})
            OR p.oid IN (SELECT oprcode FROM pg_operator WHERE oprcode <> 0)
            OR p.oid IN (SELECT castfunc FROM pg_cast WHERE castfunc <> 0))
    LOOP EXECUTE 'REVOKE EXECUTE ON ROUTINE ' || signature || ' FROM PUBLIC'; END LOOP;
END $$;
"""


class PostgresDatabase:
    """A database of its own on a PostgreSQL server with pgvector, whose superuser we are; dropped when it is closed."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        """Make the database, its tables and its roles.

        Args:
            url: Of the server, as libpq takes it.

        Raises:
            DeltaMemError: If psycopg is missing, the server does not answer, or it lacks pgvector.
        """
        try:
            import psycopg
            from psycopg import rows as shapes
        except ImportError as error:
            raise DeltaMemError(_MISSING) from error
        self._psycopg = psycopg
        self._url = url
        self._database = f"momento_{secrets.token_hex(6)}"
        try:
            with psycopg.connect(url, autocommit=True) as server:
                made = f"CREATE DATABASE {self._database} TEMPLATE template0 ENCODING 'UTF8'"
                server.execute(f"{made} LC_COLLATE 'C' LC_CTYPE 'C.UTF-8'")
            self._owner = psycopg.connect(
                url, dbname=self._database, autocommit=True, row_factory=shapes.dict_row, options="-c TimeZone=UTC"
            )
            passwords = self._prepare()
            self._readers = {
                role: psycopg.connect(
                    url, dbname=self._database, user=role, password=password, autocommit=True, options="-c TimeZone=UTC"
                )
                for role, password in passwords.items()
            }
        except psycopg.Error as error:
            raise DeltaMemError(f"PostgreSQL cannot be used: {' '.join(str(error).split())}") from error

    def _prepare(self) -> dict[str, str]:
        """Make tables and roles; the passwords of these."""
        run = self._owner.execute
        run("CREATE EXTENSION vector")
        for name, values in ENUMS.items():
            run(f"CREATE TYPE {name} AS ENUM ({', '.join(map(_quoted, values))})".encode())
        types = {
            "money": "numeric",
            "json": "jsonb",
            "list": "text[]",
            "timestamp": "timestamptz",
            "real": "double precision",
        }
        for table, columns in TABLES.items():
            made = ", ".join(f"{column} {types.get(kind, kind)}" for column, kind in columns.items())
            run(f"CREATE TABLE {table} ({made}, PRIMARY KEY (id))".encode())
        run("CREATE INDEX ON menu_items(restaurant_id)")
        run(_LOCK_DOWN.encode())
        passwords = {}
        for role, tables in ((_READER, READABLE), (_RECALLER, ("sessions",))):
            passwords[role] = secrets.token_hex(16)
            run(  # roles belong to the server, and another database may have made them
                f"DO $$ BEGIN IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{role}') THEN "
                f"CREATE ROLE {role} LOGIN; "
                f"END IF; END $$; ALTER ROLE {role} PASSWORD '{passwords[role]}' CONNECTION LIMIT 50; "
                f"ALTER ROLE {role} SET default_transaction_read_only = on; "
                f"ALTER ROLE {role} SET statement_timeout = {round(1000 * SECONDS)}; "
                f"GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT ON {', '.join(tables)} TO {role}".encode()
            )
        run(
            f"ALTER TABLE sessions ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON sessions FOR SELECT TO {_RECALLER} "
            f"USING (user_id = current_setting('{_USER_SETTING}', true)); "
            f"GRANT EXECUTE ON FUNCTION current_setting(text, boolean) TO {_RECALLER}".encode()
        )
        return passwords

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """See `Database`."""
        cursor = self._owner.execute(query.replace("?", "%s").encode(), [self._bound(value) for value in parameters])
        if not cursor.description:
            return []
        return [{name: str(value) if isinstance(value, UUID) else value for name, value in row.items()} for row in cursor]

    def insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Database`."""
        kinds = _with_ids(table, rows)
        values = [[self._bound(_typed(row.get(name), kind), kind) for name, kind in kinds.items()] for row in rows]
        marks = ", ".join(["%s"] * len(kinds))
        with self._owner.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} ({', '.join(kinds)}) VALUES ({marks})".encode(), values)

    def _bound(self, value: Any, kind: str = "") -> Any:
        if value is not None and kind in ("json", "vector"):
            return json.dumps(value, ensure_ascii=False)
        return value

    def transaction(self) -> AbstractContextManager[Any]:
        """See `Database`."""
        return self._owner.transaction()

    def ilike(self, column: str) -> str:
        """See `Database`."""
        return f"{column} ILIKE ?"

    def overlaps(self, column: str) -> str:
        """See `Database`."""
        return f"{column} && ?"

    def contains(self, column: str) -> str:
        """See `Database`."""
        return f"{column} @> ?"

    def select(self, query: str, most: int) -> Selected:
        """See `Database`."""
        tree = sql.checked(query, READABLE)
        return _checked_size(*self.guarded(sql.for_postgres(tree), most))

    def guarded(self, query: str, most: int) -> Selected:
        """Run SQL with nothing but the rights of its role between it and the database."""
        return self._as(_READER, query, most)

    def recall(self, query: str, user_id: str, embedding: Sequence[float]) -> list[Row]:
        """See `Database`."""
        tree = sql.checked(query, ("sessions",))
        text = json.dumps(list(embedding))
        with self._readers[_RECALLER].transaction():
            self._readers[_RECALLER].execute(f"SET LOCAL {_USER_SETTING} = {_quoted(user_id)}".encode())
            values = {"user_id": exp.Literal.string(user_id), "query_embedding": exp.Literal.string(text)}
            filled = tree.copy()
            for place in list(filled.find_all(exp.Placeholder)):
                place.replace(values.get(place.name, place))
            return self._as(_RECALLER, sql.for_postgres(filled).replace("IS NOT DISTINCT FROM", "<=>"), -1)[1]

    def _as(self, role: str, query: str, most: int) -> Selected:
        try:
            # What is prepared is one statement.
            cursor = self._readers[role].execute(query.encode(), prepare=True)
            columns = [column.name for column in cursor.description or ()]
            found = cursor.fetchall() if most < 0 else cursor.fetchmany(most)
        except self._psycopg.errors.QueryCanceled as error:
            raise CallError(_TOO_LONG) from error
        except (self._psycopg.errors.InsufficientPrivilege, self._psycopg.errors.ReadOnlySqlTransaction) as error:
            raise PolicyViolationError(f"not allowed: {error.diag.message_primary}") from error
        except self._psycopg.Error as error:
            raise CallError(error.diag.message_primary or str(error)) from error
        return columns, [{name: _plain(value) for name, value in zip(columns, row, strict=True)} for row in found]

    def close(self) -> None:
        """See `Database`."""
        for connection in (*self._readers.values(), self._owner):
            connection.close()
        with self._psycopg.connect(self._url, autocommit=True) as server:
            server.execute(f"DROP DATABASE {self._database} WITH (FORCE)".encode())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def private_postgres() -> Iterator[str]:
    """A PostgreSQL server with pgvector in a folder of its own, which ends with the block; gives its URL.

    Raises:
        DeltaMemError: If the package ``pgserver``, which brings the programs, is missing or cannot start here.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a machine without a folder for sockets of users is told so
            import pgserver
    except ImportError as error:
        raise DeltaMemError(
            "database=postgres needs pgserver, or the URL of a server; install it with: pip install 'deltamem[momento]'"
        ) from error
    folder = Path(tempfile.mkdtemp(prefix="momento-"))
    folder.chmod(0o755)  # as root the server runs as a user of its own
    try:
        # As root the package makes a user for the server, which two processes cannot do at once.
        with FileLock(Path(tempfile.gettempdir()) / f"momento-{os.getuid()}.lock"):
            server = pgserver.get_server(folder, cleanup_mode="delete")
    except Exception as error:  # the package raises what subprocess and the operating system raise
        raise DeltaMemError(f"no private PostgreSQL could be started: {error}") from error
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextmanager
def open_database(name: str) -> Iterator[Database]:
    """The database that the configuration names: ``sqlite``, ``postgres`` for a private server, or the URL of a server.

    Raises:
        DeltaMemError: If it does not exist or cannot be used.
    """
    if name == "sqlite":
        database: Database = SQLiteDatabase()
    elif name == "postgres":
        with private_postgres() as url, open_database(url) as opened:
            yield opened
        return
    elif name.startswith(("postgresql://", "postgres://")):
        database = PostgresDatabase(name)
    else:
        raise DeltaMemError(f"database={name} does not exist; there are: sqlite, postgres, postgresql://...")
    try:
        yield database
    finally:
        database.close()
