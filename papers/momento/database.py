"""The state of the restaurant service in PostgreSQL with pgvector, on a server of the user's or on a private one.

What agents write goes through `papers.momento.sql`, and is refused by the database besides: one role reads the tables of the
service, others by row level security a user's own sessions, and none may call anything that does more than compute.
"""

from __future__ import annotations

import json
import math
import secrets
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import date, datetime, time
from decimal import Decimal
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, cast

import psycopg
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from deltamem.errors import DeltaMemError
from papers.momento import sql
from papers.momento.policies import (
    ENUMS,
    READABLE,
    SESSIONS,
    TABLES,
    CallError,
    DatabaseFailedError,
    PolicyViolationError,
    Row,
    amount,
)

SECONDS = 2.0
"""How long a query of an agent may take."""
TOO_LONG = f"Query took longer than {SECONDS:g} s"

_LONGEST_RESULT = 200_000
_MOST_RECALLED = 1000
_MOST_ON_DISK = "256MB"
_USER_SETTING = "momento.user_id"
_READER, _RECALLER, _USER = "reader", "recaller", "user"
_MAY_READ = {_READER: READABLE, _RECALLER: (SESSIONS,), _USER: (*READABLE, SESSIONS)}
"""By role the tables that it reads, of the sessions the rows of one user."""
_STABLE_ALLOWED = (
    "'extract', 'date_part', 'date_trunc', 'to_char', 'concat', 'timestamptz_pl_interval', 'timestamptz_mi_interval', "
    "'array_to_string'"
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
            OR p.proname IN ({_STABLE_ALLOWED})
            OR p.oid IN (SELECT oprcode FROM pg_operator WHERE oprcode <> 0)
            OR p.oid IN (SELECT castfunc FROM pg_cast WHERE castfunc <> 0))
    LOOP EXECUTE 'REVOKE EXECUTE ON ROUTINE ' || signature || ' FROM PUBLIC'; END LOOP;
END $$;
"""

# See `sql.LONGEST_VALUE`. What an aggregate collects before it gets here is bounded by time, and by the memory of a process.
_BOUNDED = """
CREATE FUNCTION bounded(value anyelement, most integer) RETURNS anyelement LANGUAGE plpgsql IMMUTABLE STRICT AS $$ BEGIN
    IF pg_column_size(value) > 4 * most OR octet_length(value::text) > most THEN
        RAISE EXCEPTION 'a value has more than % bytes', most;
    END IF;
    RETURN value;
END $$;
"""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class ServiceDatabase:
    """A database of its own on a server whose superuser we are; one trial at a time."""

    def __init__(self, url: str, name: str, roles: Mapping[str, tuple[str, str]]) -> None:
        """Connect; `roles` are those of `_MAY_READ`, with their passwords."""
        ours: dict[str, Any] = {"dbname": name, "autocommit": True, "options": "-c TimeZone=UTC"}
        with ExitStack() as stack:
            self._owner = stack.enter_context(closing(psycopg.connect(url, row_factory=dict_row, **ours)))
            self._readers = {
                kind: stack.enter_context(closing(psycopg.connect(url, user=role, password=password, **ours)))
                for kind, (role, password) in roles.items()
            }
            for connection in (self._owner, *self._readers.values()):
                connection.adapters.register_loader("uuid", TextLoader)
            self.close = stack.pop_all().close

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run our own SQL, with ``%s`` for parameters, and return what it selects."""
        try:
            cursor = self._owner.execute(query.encode(), list(parameters))
        except psycopg.Error as error:
            if self._gone(error):
                raise DatabaseFailedError(error) from error
            raise
        return cursor.fetchall() if cursor.description else []

    def _gone(self, error: Exception) -> bool:
        """Whether the server has gone away; what it refuses has a state, and so a class, of its own."""
        return isinstance(error, psycopg.OperationalError) or type(error) is psycopg.DatabaseError or self._owner.broken

    def insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows; columns that a row lacks become NULL.

        Raises:
            DeltaMemError: If the database refuses a value, or the server has gone away.
        """
        statement = f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(TABLES[table]))})"
        try:
            values = [[_stored(name, row.get(name), kind) for name, kind in TABLES[table].items()] for row in rows]
            with self._owner.cursor() as cursor:
                cursor.executemany(statement.encode(), values)
        except (psycopg.Error, ValueError) as error:
            if self._gone(error):
                raise DatabaseFailedError(error) from error
            said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
            raise DeltaMemError(f"a row of {table} cannot be stored: {said or error}") from error

    def transaction(self) -> AbstractContextManager[Any]:
        """All or nothing of what is done in the block."""
        return self._owner.transaction()

    def select(self, query: str, most: int, user_id: str | None = None) -> tuple[list[str], list[Row]]:
        """Run an agent's own SELECT over `READABLE`, and over the sessions of `user_id` if one is named.

        Returns names of columns and at most so many rows as JSON values.

        Raises:
            PolicyViolationError: If it is not such a SELECT.
            CallError: If it fails.
        """
        if user_id is not None:
            return self._own(_USER, user_id, *sql.checked(query, _MAY_READ[_USER]), most)
        asked, bounded = sql.checked(query, READABLE, (SESSIONS,))
        return self.guarded(_READER, asked, _limited(bounded, most), most)

    def recall(self, query: str, user_id: str, embedding: Sequence[float]) -> list[Row]:
        """As `select` over `user_id`'s own rows of the table ``sessions``; others do not exist for it.

        ``:query_embedding`` and ``:user_id`` stand for what they say.
        """
        values = {"user_id": user_id, "query_embedding": json.dumps(list(embedding))}
        return self._own(_RECALLER, user_id, *sql.checked(query, (SESSIONS,), READABLE, values), _MOST_RECALLED)[1]

    def _own(self, role: str, user_id: str, asked: str, bounded: str, most: int) -> tuple[list[str], list[Row]]:
        """`guarded`, where of the sessions those of a user are visible."""
        reader = self._readers[role]
        with reader.transaction():
            reader.execute(f"SET LOCAL {_USER_SETTING} = {_quoted(user_id)}".encode())
            return self.guarded(role, asked, _limited(bounded, most), most)

    def guarded(self, role: str, query: str, bounded: str, most: int) -> tuple[list[str], list[Row]]:
        """Run SQL with nothing but the rights of a role between it and the database.

        `query` only names the columns, as PostgreSQL parses it without running it; what is run is `bounded`.
        """
        reader = self._readers[role]
        try:
            names = _column_names(reader, query)
            # A row at a time, so that what is too long is not read to its end. The protocol takes one statement only.
            with reader.cursor() as cursor, closing(cast("Generator[Any]", cursor.stream(bounded.encode()))) as rows:
                return _shown(names, rows, most)
        except psycopg.errors.QueryCanceled as error:
            raise CallError(TOO_LONG) from error
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction) as error:
            raise PolicyViolationError(f"not allowed: {error.diag.message_primary}") from error
        except psycopg.Error as error:
            if reader.broken:
                raise DatabaseFailedError(error) from error
            raise CallError(error.diag.message_primary or str(error)) from error
        except ValueError as error:  # JSON with numbers of thousands of digits
            raise CallError(str(error)) from error


_GIVEN: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "real": (int, float),
    "money": (int, float, str, Decimal),
    "list": (list,),
    "date": (str, date),
    "time": (str, time),
    "timestamp": (str, datetime),
}
"""Types of values by kind of column, where they aren't texts: PostgreSQL would make of others what fits."""
_MADE: Mapping[str, Callable[[Any], Any]] = {
    "money": amount,
    "date": lambda value: date.fromisoformat(str(value)),
    "time": lambda value: time.fromisoformat(str(value)).replace(tzinfo=None),
    "timestamp": lambda value: datetime.fromisoformat(str(value)),
}


def _stored(name: str, value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind in ("json", "vector"):
        return json.dumps(value, ensure_ascii=False)
    try:
        if type(value) not in _GIVEN.get(kind, (str,)) or (kind == "list" and {*map(type, value)} - {str}):
            raise TypeError
        made = _MADE[kind](value) if kind in _MADE else value
        if kind in ("integer", "real", "money") and not -(2**31) <= made < 2**31:  # nor is NaN
            raise ValueError
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"the {name} {str(value)[:40]!r} is not of the type {kind}") from error
    return made


def _limited(query: str, most: int) -> str:
    return f"SELECT * FROM ({query}) AS q LIMIT {most}"  # whatever a query selects comes to the client


def _column_names(reader: psycopg.Connection, query: str) -> list[str]:
    result = reader.pgconn.prepare(b"", query.encode())
    if result.status == psycopg.pq.ExecStatus.COMMAND_OK:
        result = reader.pgconn.describe_prepared(b"")
    if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result)
    return [(result.fname(number) or b"").decode() for number in range(result.nfields)]


def _shown(names: Sequence[str], rows: Iterable[Sequence[Any]], most: int) -> tuple[list[str], list[Row]]:
    """What an agent is shown of a result: at most so many rows, as JSON values, no two columns of one name."""
    columns: dict[str, None] = {}
    given, numbers = set(names), Counter[str]()
    for name in names:
        shown = name
        while shown in columns or (shown != name and shown in given):
            numbers[name] += 1
            shown = f"{name}_{numbers[name] + 1}"
        columns[shown] = None
    kept: list[Row] = []
    size = 0
    for row in islice(rows, most):
        if any(isinstance(value, float | Decimal) and not math.isfinite(value) for value in row):
            raise CallError("the result has a number that is not finite")
        kept.append(dict(zip(columns, map(_plain, row), strict=True)))
        size += len(json.dumps(kept[-1], default=str))
        if size > _LONGEST_RESULT:
            raise CallError(f"the result has more than {_LONGEST_RESULT:,} characters; select less")
    return list(columns), kept


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value) if int(value.as_tuple().exponent) < 0 else int(value)
    if isinstance(value, date | time):
        return str(value)
    return [_plain(one) for one in value] if isinstance(value, list) else value


@contextmanager
def open_databases(name: str, count: int) -> Iterator[list[ServiceDatabase]]:
    """So many empty databases with the tables of the service; they are dropped when the block ends.

    `name` is ``postgres`` for a private server, or the URL of one, as libpq takes it.

    Raises:
        DeltaMemError: If the server does not answer, lacks pgvector, or does not let us.
    """
    if name == "postgres":
        with private_postgres() as url, open_databases(url, count) as databases:
            yield databases
        return
    if not name.startswith(("postgresql://", "postgres://")):
        raise DeltaMemError(f"database={name} does not exist; there are: postgres, postgresql://...")
    template = f"momento_{secrets.token_hex(6)}"
    roles = {kind: (f"{template}_{kind}", secrets.token_hex(16)) for kind in _MAY_READ}
    with ExitStack() as stack:
        try:
            server = stack.enter_context(closing(psycopg.connect(name, autocommit=True)))
            stack.callback(_drop, name, template, [f"ROLE IF EXISTS {role}" for role, _ in roles.values()])
            for number in range(count + 1):
                made = f"{template}_{number}" if number else template
                # Collation C sorts as Python does.
                of = template if number else "template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C.UTF-8'"
                server.execute(f"CREATE DATABASE {made} TEMPLATE {of}".encode())
                if not number:
                    _prepare(name, template, roles)
            names = [f"{template}_{number}" for number in range(1, count + 1)]
            databases = [ServiceDatabase(name, made, roles) for made in names]
        except psycopg.Error as error:
            raise DeltaMemError(f"PostgreSQL cannot be used: {' '.join(str(error).split())}") from error
        for database in databases:
            stack.callback(database.close)
        yield databases


def _prepare(url: str, template: str, roles: Mapping[str, tuple[str, str]]) -> None:
    """Make tables, and the roles that read them."""
    types = {"money": "numeric", "json": "jsonb", "list": "text[]", "timestamp": "timestamptz", "real": "float8"}
    statements = ["CREATE EXTENSION vector"]
    statements += [f"CREATE TYPE {name} AS ENUM ({', '.join(map(_quoted, of))})" for name, of in ENUMS.items()]
    for table, columns in TABLES.items():
        typed = ", ".join(f"{column} {types.get(kind, kind)}" for column, kind in columns.items())
        statements.append(f"CREATE TABLE {table} ({typed}, PRIMARY KEY (id))")
    statements += ["CREATE INDEX ON menu_items(restaurant_id)", _LOCK_DOWN + _BOUNDED]
    statements.append(f"ALTER TABLE {SESSIONS} ENABLE ROW LEVEL SECURITY")
    for kind, tables in _MAY_READ.items():
        role, password = roles[kind]
        statements += [
            f"CREATE ROLE {role} LOGIN PASSWORD '{password}'",
            f"ALTER ROLE {role} SET default_transaction_read_only = on",
            f"ALTER ROLE {role} SET statement_timeout = {round(1000 * SECONDS)}",
            f"ALTER ROLE {role} SET temp_file_limit = '{_MOST_ON_DISK}'",
            f"ALTER ROLE {role} SET max_parallel_workers_per_gather = 0",
            f'GRANT EXECUTE ON FUNCTION pg_column_size("any") TO {role}',
            f"GRANT USAGE ON SCHEMA public TO {role}",
            f"GRANT SELECT ON {', '.join(tables)} TO {role}",
        ]
        if SESSIONS in tables:
            own = f"USING (user_id = current_setting('{_USER_SETTING}', true))"
            statements += [
                f"CREATE POLICY own_{kind} ON {SESSIONS} FOR SELECT TO {role} {own}",
                f"GRANT EXECUTE ON FUNCTION current_setting(text, boolean) TO {role}",
            ]
    with closing(psycopg.connect(url, dbname=template, autocommit=True)) as connection:
        connection.execute("; ".join(statements).encode())


def _drop(url: str, template: str, roles: Sequence[str]) -> None:
    """Whatever of it there is. A server that has gone away has nothing to drop."""
    with suppress(psycopg.OperationalError), psycopg.connect(url, autocommit=True) as server:
        named = server.execute("SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [template]).fetchall()
        for what in (*(f"DATABASE {database} WITH (FORCE)" for (database,) in named), *roles):
            with suppress(psycopg.errors.InsufficientPrivilege):  # a role that may not make roles has made none
                server.execute(f"DROP {what}".encode())


@contextmanager
def private_postgres() -> Iterator[str]:
    """A PostgreSQL server with pgvector in a folder of its own, which ends with the block; gives its URL.

    Raises:
        DeltaMemError: If the package ``pgserver``, which brings the programs, is missing or cannot start here.
    """
    if find_spec("pgserver") is None:
        raise DeltaMemError(
            "database=postgres needs pgserver, or the URL of a server; install it with: pip install 'deltamem[momento]'"
        )
    folder = Path(tempfile.mkdtemp(prefix="momento-")).resolve()
    folder.chmod(0o755)  # as root the server runs as a user of its own
    program = [sys.executable, "-P", str(Path(__file__).with_name("postgres_server.py")), str(folder)]
    # Ctrl-C is for the run, and the server ends after it.
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        url = server.stdout.readline().strip() if server.stdout else ""
        if not url.startswith("postgresql://"):
            raise DeltaMemError(f"no private PostgreSQL could be started: {url}")
        yield url
