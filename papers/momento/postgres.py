"""The state of the restaurant service in PostgreSQL with pgvector, on a server of the user's or on a private one.

Two roles read what agents write: one the tables of the service, one by row level security a user's own sessions. Neither may
call anything that does more than compute.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import date, datetime, time
from decimal import Decimal
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, cast
from uuid import UUID

from sqlglot import exp

from deltamem.errors import DeltaMemError
from papers.momento import sql
from papers.momento.database import (
    ENUMS,
    READABLE,
    SECONDS,
    TABLES,
    TOO_LONG,
    Database,
    DatabaseFailedError,
    Row,
    Selected,
    collected,
    typed_rows,
)
from papers.momento.policies import CallError, PolicyViolationError

_READER, _RECALLER = "reader", "recaller"
_USER_SETTING = "momento.user_id"
_MISSING = "database=postgres needs psycopg; install it with: pip install 'deltamem[momento]'"
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
_MOST_ON_DISK = "256MB"


class PostgresDatabase(Database):
    """A database of its own on a PostgreSQL server with pgvector, whose superuser we are; dropped when it is closed."""

    name = "postgres"
    tests: ClassVar = {
        "among": "{} = ANY(?::uuid[])",
        "like": "{} ILIKE ANY(?)",
        "overlaps": "{} && ?",
        "contains": "{} @> ?",
    }

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
        ours: dict[str, Any] = {"dbname": self._database, "autocommit": True, "options": "-c TimeZone=UTC"}
        with ExitStack() as stack:
            try:
                with psycopg.connect(url, autocommit=True) as server:
                    made = f"CREATE DATABASE {self._database} TEMPLATE template0 ENCODING 'UTF8'"
                    server.execute(f"{made} LC_COLLATE 'C' LC_CTYPE 'C.UTF-8'".encode())
                stack.callback(self._drop)
                self._owner = stack.enter_context(closing(psycopg.connect(url, row_factory=shapes.dict_row, **ours)))
                self._readers = {
                    kind: stack.enter_context(
                        closing(psycopg.connect(url, user=f"{self._database}_{kind}", password=password, **ours))
                    )
                    for kind, password in self._prepare().items()
                }
            except psycopg.Error as error:
                raise DeltaMemError(f"PostgreSQL cannot be used: {' '.join(str(error).split())}") from error
            self._end = stack.pop_all()

    def _prepare(self) -> dict[str, str]:
        """Make tables, and roles of this database alone; the passwords of these by their kind."""
        run = self._owner.execute
        run("CREATE EXTENSION vector")
        for name, values in ENUMS.items():
            run(f"CREATE TYPE {name} AS ENUM ({', '.join(map(_quoted, values))})".encode())
        types = {"money": "numeric", "json": "jsonb", "list": "text[]", "timestamp": "timestamptz", "real": "float8"}
        for table, columns in TABLES.items():
            made = ", ".join(f"{column} {types.get(kind, kind)}" for column, kind in columns.items())
            run(f"CREATE TABLE {table} ({made}, PRIMARY KEY (id))".encode())
        run("CREATE INDEX ON menu_items(restaurant_id)")
        run((_LOCK_DOWN + _BOUNDED).encode())
        passwords = {}
        for kind, tables in ((_READER, READABLE), (_RECALLER, ("sessions",))):
            role, passwords[kind] = f"{self._database}_{kind}", secrets.token_hex(16)
            run(
                f"CREATE ROLE {role} LOGIN PASSWORD '{passwords[kind]}'; "
                f"ALTER ROLE {role} SET default_transaction_read_only = on; "
                f"ALTER ROLE {role} SET statement_timeout = {round(1000 * SECONDS)}; "
                f"ALTER ROLE {role} SET temp_file_limit = '{_MOST_ON_DISK}'; "
                f"ALTER ROLE {role} SET max_parallel_workers_per_gather = 0; "
                f'GRANT EXECUTE ON FUNCTION pg_column_size("any") TO {role}; '
                f"GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT ON {', '.join(tables)} TO {role}".encode()
            )
        recaller = f"{self._database}_{_RECALLER}"
        run(
            f"ALTER TABLE sessions ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON sessions FOR SELECT TO {recaller} "
            f"USING (user_id = current_setting('{_USER_SETTING}', true)); "
            f"GRANT EXECUTE ON FUNCTION current_setting(text, boolean) TO {recaller}".encode()
        )
        return passwords

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """See `Database`."""
        try:
            cursor = self._owner.execute(query.replace("?", "%s").encode(), list(parameters))
        except self._psycopg.OperationalError as error:
            raise DatabaseFailedError(error) from error
        if not cursor.description:
            return []
        return [{name: str(value) if isinstance(value, UUID) else value for name, value in row.items()} for row in cursor]

    def insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Database`."""
        kinds = TABLES[table].values()
        values = [
            [
                json.dumps(one, ensure_ascii=False) if one is not None and kind in ("json", "vector") else one
                for one, kind in zip(row, kinds, strict=True)
            ]
            for row in typed_rows(table, rows)
        ]
        with self._owner.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(kinds))})".encode(), values)

    def transaction(self) -> AbstractContextManager[Any]:
        """See `Database`."""
        return self._owner.transaction()

    def _select(self, tree: exp.Query, most: int) -> Selected:
        return self.guarded(_limited(tree, most), most)

    def guarded(self, query: str, most: int) -> Selected:
        """Run SQL with nothing but the rights of its role between it and the database."""
        return self._as(_READER, query, most)

    def _recall(self, tree: exp.Query, values: Mapping[str, str], most: int) -> Selected:
        filled = tree.copy()
        for place in list(filled.find_all(exp.Placeholder)):
            if place.name in values:
                place.replace(exp.Literal.string(values[place.name]))
        with self._readers[_RECALLER].transaction():
            self._readers[_RECALLER].execute(f"SET LOCAL {_USER_SETTING} = {_quoted(values['user_id'])}".encode())
            return self._as(_RECALLER, _limited(filled, most), most)

    def _as(self, kind: str, query: str, most: int) -> Selected:
        try:
            # A row at a time, so that what is too long is not read to its end. The protocol takes one statement only.
            with (
                self._readers[kind].cursor() as cursor,
                closing(cast("Generator[Any]", cursor.stream(query.encode()))) as rows,
            ):
                first = next(rows, None)
                if first is None:  # nor are there names of columns
                    cursor.execute(f"SELECT * FROM ({query}) AS q LIMIT 0".encode())
                names = [column.name for column in cursor.description or ()]
                return collected(names, () if first is None else chain([first], rows), most, lambda _, value: _plain(value))
        except self._psycopg.errors.QueryCanceled as error:
            raise CallError(TOO_LONG) from error
        except self._psycopg.OperationalError as error:
            if self._readers[kind].broken:
                raise DatabaseFailedError(error) from error
            raise CallError(error.diag.message_primary or str(error)) from error
        except (self._psycopg.errors.InsufficientPrivilege, self._psycopg.errors.ReadOnlySqlTransaction) as error:
            raise PolicyViolationError(f"not allowed: {error.diag.message_primary}") from error
        except self._psycopg.Error as error:
            raise CallError(error.diag.message_primary or str(error)) from error
        except ValueError as error:  # JSON with numbers of thousands of digits
            raise CallError(str(error)) from error

    def close(self) -> None:
        """See `Database`."""
        self._end.close()

    def _drop(self) -> None:
        roles = [f"DROP ROLE IF EXISTS {self._database}_{kind}" for kind in (_READER, _RECALLER)]
        for statement in (f"DROP DATABASE {self._database} WITH (FORCE)", *roles):
            # A server that has gone away has nothing to drop, and a role that may not make roles has made none.
            nothing = suppress(self._psycopg.OperationalError, self._psycopg.errors.InsufficientPrivilege)
            with nothing, self._psycopg.connect(self._url, autocommit=True) as server:
                server.execute(statement.encode())


def _limited(tree: exp.Query, most: int) -> str:
    # Whatever a query selects comes to the client.
    return f"SELECT * FROM ({sql.for_postgres(tree)}) AS q LIMIT {most}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _plain(value: Any) -> Any:
    """A selected value as JSON has it, the same as from SQLite."""
    if isinstance(value, Decimal):
        return float(value) if int(value.as_tuple().exponent) < 0 else int(value)
    if isinstance(value, datetime | date | time | UUID):
        return str(value)
    return [_plain(one) for one in value] if isinstance(value, list) else value


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
