"""The gate before an agent's SQL: one SELECT over known tables and harmless functions; and its form for SQLite.

The gate gives good errors and the same answer on both databases. It isn't what protects them: the role of PostgreSQL and
the authorizer of SQLite refuse on their own (`eval.momento.database`).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection
from datetime import date, datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import sqlglot
from sqlglot import exp

from eval.momento.policies import PolicyViolationError

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of statements that are refused anyway

_NAMES = """
    Abs And Any Array ArrayAgg ArrayContainsAll ArrayOverlaps ArraySize Avg Case Cast Ceil Coalesce Concat Count
    DateTrunc DenseRank Extract Explode Exists Filter Floor Greatest GroupConcat If JSONExtract JSONExtractScalar Lag
    Lead Least Left Length Lower Max Min Nullif Or Quantile Rank Replace Right Round RowNumber StrPosition Substring Sum
    TimestampTrunc TimeToStr ToChar Trim Unnest Upper Xor
"""
FUNCTIONS = frozenset(_NAMES.split())
"""Nodes of sqlglot that are functions and may occur; a name that it does not know may not."""

_TYPE_NAMES = """
    TEXT VARCHAR CHAR INT BIGINT SMALLINT DECIMAL FLOAT DOUBLE BOOLEAN DATE TIME TIMESTAMP TIMESTAMPTZ UUID INTERVAL
    JSON JSONB VECTOR
"""
_TYPES = frozenset(_TYPE_NAMES.split())
_STATEMENTS = (exp.DML, exp.DDL, exp.Into, exp.Lock, exp.Command, exp.Set, exp.Copy, exp.Merge, exp.Drop, exp.Alter)
_SESSION_WORDS = frozenset({"user", "current_role", "session_user", "current_user", "current_catalog", "current_schema"})
_LONGEST = 20_000

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def _nested(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """Refuse a query that is nested too deeply for the parser, at whatever step that shows."""

    @wraps(function)
    def guarded(*arguments: _Given.args, **named: _Given.kwargs) -> _Made:
        try:
            return function(*arguments, **named)
        except RecursionError as error:
            raise PolicyViolationError("the query is nested too deeply") from error

    return guarded


@_nested
def checked(query: str, tables: Collection[str]) -> exp.Query:
    """Parse the SELECT of an agent.

    Args:
        query: PostgreSQL.
        tables: Those that it may read.

    Raises:
        PolicyViolationError: If it is anything else; says what is not allowed.
    """
    if len(query) > _LONGEST:
        raise PolicyViolationError(f"a query may have {_LONGEST:,} characters")
    try:
        statements = sqlglot.parse(query, dialect="postgres", error_level=sqlglot.ErrorLevel.RAISE)
    except (sqlglot.errors.SqlglotError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise PolicyViolationError(f"this cannot be read as one SELECT of PostgreSQL: {said}") from error
    if len(statements) != 1:
        raise PolicyViolationError("only one statement is allowed")
    (tree,) = statements
    if not isinstance(tree, exp.Select | exp.SetOperation) or not tree.selects:
        raise PolicyViolationError("only a SELECT is allowed")
    named = {cte.alias_or_name.lower() for cte in tree.find_all(exp.CTE)}
    if clash := named & set(tables):
        raise PolicyViolationError(f"{min(clash)!r} is a table; give the subquery another name")
    for node in tree.walk():
        _check(node, {*tables, *named})
    return tree


def _check(node: exp.Expr, tables: Collection[str]) -> None:
    if isinstance(node, _STATEMENTS):
        raise PolicyViolationError("only a SELECT that changes and locks nothing is allowed")
    if isinstance(node, exp.With) and node.args.get("recursive"):
        raise PolicyViolationError("WITH RECURSIVE is not allowed")
    if isinstance(node, exp.Table):
        if not isinstance(node.this, exp.Identifier):
            if not isinstance(node.this, exp.Func):
                raise PolicyViolationError("only tables can be read")
        elif node.catalog or node.db.lower() not in ("", "public") or node.name.lower() not in tables:
            raise PolicyViolationError(
                f"the table {node.sql(dialect='postgres')} cannot be read; get_database_schema has all"
            )
    if isinstance(node, exp.Anonymous) or (isinstance(node, exp.Func) and type(node).__name__ not in FUNCTIONS):
        name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
        raise PolicyViolationError(f"the function {name.lower()} is not allowed")
    if isinstance(node, exp.Cast) and str(getattr(node.to.this, "name", node.to.this)) not in _TYPES:
        raise PolicyViolationError(f"a cast to {node.to.sql(dialect='postgres').lower()} is not allowed")
    if isinstance(node, exp.Column) and node.name.lower() in _SESSION_WORDS and not node.this.quoted:
        raise PolicyViolationError(f"{node.name} is not allowed")


@_nested
def for_postgres(tree: exp.Query) -> str:
    """The SQL of a checked query, without its comments."""
    return tree.sql(dialect="postgres", comments=False)


@_nested
def for_sqlite(tree: exp.Query) -> str:
    """The same query for SQLite, in which `FUNCTIONS_OF_SQLITE` stand for what it lacks."""
    return tree.copy().transform(_sqlite).sql(dialect="sqlite", comments=False)


def _call(name: str, *arguments: exp.Expression) -> exp.Anonymous:
    # What stands for a node is not entered by `transform`.
    return exp.Anonymous(this=name, expressions=[argument.transform(_sqlite) for argument in arguments])


def _sqlite(node: exp.Expression) -> exp.Expression:
    match node:
        case exp.NullSafeEQ():  # pgvector's <=>
            return _call("cosine_distance", node.this, node.expression)
        case exp.EQ() if isinstance(node.expression, exp.Any):
            return _call("in_array", node.this, node.expression.this)
        case exp.ArrayOverlaps():
            return _call("overlaps", node.this, node.expression)
        case exp.ArrayContainsAll():
            return _call("contains_all", node.this, node.expression)
        case exp.Array():
            return _call("json_array", *node.expressions)
        case exp.ILike():
            return _call("ilike", node.this, node.expression)
        case exp.Extract():
            return _call("extract_part", exp.Literal.string(node.this.name.lower()), node.expression)
        case exp.TimestampTrunc():
            return _call("trunc_time", exp.Literal.string(node.text("unit").lower()), node.this)
        case exp.Add() | exp.Sub() if isinstance(node.expression, exp.Interval):
            sign = "-" if isinstance(node, exp.Sub) else ""
            amount = f"{sign}{node.expression.this.name} {node.expression.text('unit').lower()}"
            return _call("shift_time", node.this, exp.Literal.string(amount))
        case exp.Cast() if node.to.this.name in ("UUID", "TEXT", "VARCHAR", "VECTOR", "TIMESTAMP", "TIMESTAMPTZ", "TIME"):
            return node.this.transform(_sqlite)  # type: ignore[no-any-return]
    return node


def _ilike(text: str | None, pattern: str) -> bool | None:
    return None if text is None else like(text, pattern)


def like(text: str, pattern: str) -> bool:
    """ILIKE of PostgreSQL. No regular expression: many percent signs would keep one busy for ever."""
    wanted = [part for part in re.split(r"(\\.|%|_|.)", pattern.casefold(), flags=re.DOTALL) if part]
    text = text.casefold()
    place = token = 0
    after_any, restart = -1, 0  # the token after the last percent sign, and from where to try again
    while place < len(text):
        if token < len(wanted) and wanted[token] == "%":
            token += 1
            after_any, restart = token, place
        elif token < len(wanted) and (wanted[token] == "_" or wanted[token][-1] == text[place]):
            token += 1
            place += 1
        elif after_any >= 0:
            restart += 1
            token, place = after_any, restart
        else:
            return False
    return all(part == "%" for part in wanted[token:])


def _moment(value: str) -> datetime:
    return datetime.fromisoformat(value)


def _extract(part: str, value: str | None) -> int | None:
    if value is None:
        return None
    moment = _moment(value)
    parts: dict[str, Callable[[datetime], int]] = {
        "dow": lambda one: one.isoweekday() % 7,
        "isodow": lambda one: one.isoweekday(),
        "doy": lambda one: one.timetuple().tm_yday,
        "week": lambda one: one.isocalendar().week,
        "quarter": lambda one: (one.month + 2) // 3,
        "epoch": lambda one: int(one.timestamp()),
    }
    return parts[part](moment) if part in parts else int(getattr(moment, part))


def _trunc(unit: str, value: str | None) -> str | None:
    if value is None:
        return None
    moment = _moment(value)
    units = ("year", "month", "day", "hour", "minute", "second")
    if unit == "week":
        moment, unit = moment - timedelta(days=moment.weekday()), "day"
    lowest = {"month": 1, "day": 1}
    lower = {name: lowest.get(name, 0) for name in units[units.index(unit) + 1 :]}
    return str(moment.replace(microsecond=0, **lower))  # type: ignore[arg-type]


def _shift(value: str | None, amount: str) -> str | None:
    if value is None:
        return None
    count, unit = amount.split()
    unit = unit.removesuffix("s")
    if unit in ("month", "year"):
        day = date.fromisoformat(value[:10])
        months = day.year * 12 + day.month - 1 + int(count) * (12 if unit == "year" else 1)
        for last in range(day.day, 0, -1):  # 31 March minus a month is the last of February
            try:
                return str(date(months // 12, months % 12 + 1, last)) + value[10:]
            except ValueError:
                continue
    moved = _moment(value) + timedelta(**{f"{unit}s": int(count)})
    return str(moved.date()) if len(value) == 10 else str(moved)


def _arrays(test: Callable[[set[Any], set[Any]], bool]) -> Callable[[str | None, str], bool | None]:
    return lambda first, second: None if first is None else test(set(json.loads(first)), set(json.loads(second)))


def _like_any(text: str | None, patterns: str) -> bool | None:
    return None if text is None else any(like(text, pattern) for pattern in json.loads(patterns))


def _in_array(value: Any, array: str | None) -> bool | None:
    return None if array is None else value in json.loads(array)


def _cosine_distance(first: str | None, second: str | None) -> float | None:
    if first is None or second is None:
        return None
    one, other = json.loads(first), json.loads(second)
    norms = (sum(a * a for a in one) * sum(b * b for b in other)) ** 0.5
    return 1 - sum(a * b for a, b in zip(one, other, strict=True)) / norms if norms else None


FUNCTIONS_OF_SQLITE: dict[str, tuple[int, Callable[..., Any]]] = {
    "ilike": (2, _ilike),
    "like_any": (2, _like_any),
    "overlaps": (2, _arrays(lambda one, other: bool(one & other))),
    "contains_all": (2, _arrays(lambda one, other: one >= other)),
    "in_array": (2, _in_array),
    "extract_part": (2, _extract),
    "trunc_time": (2, _trunc),
    "shift_time": (2, _shift),
    "cosine_distance": (2, _cosine_distance),
}
"""By name: how many arguments, and the function."""
