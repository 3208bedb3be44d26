"""The gate before an agent's SQL: one SELECT over known tables and harmless functions; and its form for SQLite.

The gate gives good errors and the same answer on both databases. It isn't what protects them: the role of PostgreSQL and
the authorizer of SQLite refuse on their own (`papers.momento.database`).
"""

from __future__ import annotations

import json
import logging
import re
from calendar import monthrange
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache, partial
from typing import Any, cast

import sqlglot
from sqlglot import exp

from papers.momento.policies import PolicyViolationError

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
_BUILT_IN = ("sqlite_", "pragma_", "json_", "pg_", "information_schema")
_LONGEST = 20_000
LONGEST_VALUE, LONGEST_OPERAND, _MOST_SEARCHES = 20_000, 500, 50
"""How long values may become that a query makes, and those that others are searched for, as texts; and how many searches.

A database looks at its limit of time between rows, and not while it evaluates one expression; and some expressions take as
long as the product of two lengths. TRIM of 300,000 characters by as many others took minutes.
"""


@contextmanager
def parsing() -> Iterator[None]:
    """Refuse a query that is nested too deeply for the parser, at whatever step that shows."""
    try:
        yield
    except RecursionError as error:
        raise PolicyViolationError("the query is nested too deeply") from error


def checked(query: str, tables: Collection[str], hidden: Collection[str] = ()) -> exp.Query:
    """Parse the SELECT of an agent.

    Args:
        query: PostgreSQL.
        tables: Those that it may read.
        hidden: Others that there are.

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
    for name in named:  # outside its SELECT the name would mean the table
        if name in tables or name in hidden or name.startswith(_BUILT_IN):
            raise PolicyViolationError(f"{name!r} is a table; give the subquery another name")
    for node in tree.walk():
        _check(node, {*tables, *named})
    tree = tree.transform(_distance)
    _bound(tree)
    return cast("exp.Query", tree)


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


_LONG = (exp.GroupConcat, exp.ArrayAgg, exp.DPipe, exp.Concat, exp.Replace, exp.TimeToStr, exp.ToChar, exp.Array)
_SEARCHES: dict[type[exp.Expr], str] = {
    **dict.fromkeys((exp.Trim, exp.Replace, exp.Like, exp.ILike, exp.ArrayOverlaps, exp.ArrayContainsAll), "expression"),
    exp.StrPosition: "substr",
}
"""What searches a value for another, and under which name it has that."""


def _bound(tree: exp.Expr) -> None:
    """Let no value that a query makes grow too long; the function `bounded` refuses those that do."""
    for select in tree.find_all(exp.Select):
        for one in select.expressions:
            if not isinstance(one, exp.Alias | exp.Column) and (name := _column_name(one)) is not None:
                one.replace(exp.alias_(one.copy(), name, quoted=True))
    nodes = list(tree.walk())
    if sum(type(node) in _SEARCHES for node in nodes) > _MOST_SEARCHES:
        raise PolicyViolationError(f"a query may search texts and lists {_MOST_SEARCHES} times")
    for node in nodes:
        kind = node.to.this.name if isinstance(node, exp.Cast) else ""
        if isinstance(node, exp.Literal) and not node.is_string and not _NUMBER.fullmatch(node.name):
            raise PolicyViolationError("a number may have 50 digits")
        if isinstance(node, exp.Mul) or kind == "DECIMAL":
            _bound_one(node, LONGEST_OPERAND)  # the digits of a NUMERIC
        elif isinstance(node, _LONG) or kind in ("TEXT", "VARCHAR", "CHAR", "JSON", "JSONB"):
            _bound_one(node, LONGEST_VALUE)
        if (operand := node.args.get(_SEARCHES.get(type(node), ""))) is not None:
            _bound_one(operand.this if isinstance(operand, exp.Any) else operand, LONGEST_OPERAND)


def _bound_one(node: exp.Expr, most: int) -> None:
    while isinstance(node.parent, exp.Filter | exp.Window | exp.WithinGroup) and node.arg_key == "this":
        node = node.parent
    inner = node.unnest()
    if isinstance(inner, exp.Array) and all(isinstance(one, exp.Literal) for one in inner.expressions):
        return
    if isinstance(inner, exp.Literal | exp.Null):  # of no type yet, and no longer than the query
        return
    made = exp.Anonymous(this="bounded")
    node.replace(made)
    value = exp.cast(node, "text", copy=False) if isinstance(inner, exp.Placeholder) else node
    made.set("expressions", [value, exp.Literal.number(most)])


_NUMBER = re.compile(r"[\d.]{1,50}(e[+-]?\d\d?)?", re.IGNORECASE)
_UNNAMED = "?column?"
_SAME_NAMES = """
    Abs ArrayAgg Avg Ceil Coalesce Concat Count DenseRank Extract Floor Greatest Lag Lead Least Left Length Lower Max Min
    Nullif Rank Replace Right Round RowNumber Substring Sum Upper
"""
_NAMED_FUNCTIONS = frozenset(_SAME_NAMES.split())
_OTHER_NAMES: dict[type[exp.Expr], str] = {
    exp.GroupConcat: "string_agg",
    exp.TimeToStr: "to_char",
    exp.Array: "array",
    exp.Exists: "exists",
    exp.StrPosition: "position",
}
_SAME_TYPES = ("TEXT", "VARCHAR", "JSON", "JSONB", "DATE", "UUID")


def _column_name(node: exp.Expr) -> str | None:
    """How PostgreSQL calls a column of a result that was given no name, of the usual ones."""
    name: str | None = _OTHER_NAMES.get(type(node))
    match node:
        case exp.Column() | exp.Alias() if not node.is_star:
            name = node.alias_or_name
        case exp.Paren() | exp.Filter() | exp.Window():
            name = _column_name(node.this)
        case exp.Subquery():
            name = _column_name(node.selects[0])
        case exp.Cast():
            name = _column_name(node.this)
            if name == _UNNAMED:
                name = node.to.this.name.lower() if node.to.this.name in _SAME_TYPES else None
        case exp.Case():
            name = _column_name(node.args["default"]) if node.args.get("default") else None
            name = "case" if name in (None, _UNNAMED) else name
        case exp.Func() if type(node).__name__ in _NAMED_FUNCTIONS:
            name = node.sql_name().lower()
        case exp.Binary() | exp.Literal() | exp.Not() | exp.Neg():
            name = _UNNAMED
    return name


def _distance(node: exp.Expression) -> exp.Expression:
    """Tell pgvector's ``<=>`` from IS NOT DISTINCT FROM, which sqlglot reads alike, and let it bind before comparisons."""
    if not isinstance(node, exp.NullSafeEQ) or not any(map(_is_vector, (node.this, node.expression))):
        return node
    other = node.expression.unnest()
    if isinstance(other, _COMPARISONS):
        return type(other)(
            this=exp.Operator(this=node.this, operator="<=>", expression=other.this), expression=other.expression
        )
    return exp.Operator(this=node.this, operator="<=>", expression=node.expression)


def _is_vector(node: exp.Expression) -> bool:
    return (
        (isinstance(node, exp.Column) and node.name == "embedding")
        or (isinstance(node, exp.Placeholder) and node.name == "query_embedding")
        or (isinstance(node, exp.Cast) and node.to.this.name == "VECTOR")
    )


def for_postgres(tree: exp.Query) -> str:
    """The SQL of a checked query, without its comments."""
    return tree.sql(dialect="postgres", comments=False)


def for_sqlite(tree: exp.Query) -> str:
    """The same query for SQLite, in which `FUNCTIONS_OF_SQLITE` stand for what it lacks."""
    return tree.copy().transform(_sqlite).sql(dialect="sqlite", comments=False)


_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_TEXTS = ("UUID", "TEXT", "VARCHAR", "VECTOR", "TIMESTAMP", "TIMESTAMPTZ", "TIME", "JSON", "JSONB")
_MOMENTS = {"date", "time", "start_date", "end_date", "created_at", "updated_at", "started_at", "ended_at"}
"""Columns with dates and times, which SQLite has as texts."""


def _is_moment(node: exp.Expression | None) -> bool:
    match node:
        case exp.Column():
            return node.name.lower() in _MOMENTS
        case exp.Cast():
            return node.to.this.name in ("DATE", "TIME", "TIMESTAMP", "TIMESTAMPTZ")
        case exp.TimestampTrunc():
            return True
        case exp.Paren() | exp.Max() | exp.Min() | exp.Add():
            return _is_moment(node.this)
        case exp.Sub():
            return _is_moment(node.this) and not _is_moment(node.expression)
    return False


def _call(name: str, *arguments: exp.Expression) -> exp.Anonymous:
    # What stands for a node is not entered by `transform`.
    return exp.Anonymous(this=name, expressions=[argument.transform(_sqlite) for argument in arguments])


def _likeness(node: exp.Like | exp.ILike, *escape: exp.Expression) -> exp.Expression:
    of_any = isinstance(node.expression, exp.Any)
    name = ("i" if isinstance(node, exp.ILike) else "is_") + ("like_any" if of_any else "like")
    made = _call(name, node.this, node.expression.this.unnest() if of_any else node.expression, *escape)
    return exp.paren(exp.not_(made)) if node.args.get("negate") else made


def _sqlite(node: exp.Expression) -> exp.Expression:
    match node:
        case exp.Operator() if node.args["operator"] == "<=>":
            return _call("cosine_distance", node.this, node.expression)
        case exp.EQ() if isinstance(node.expression, exp.Any):
            return _call("in_array", node.this, node.expression.this)
        case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE() if _is_moment(node.this) or _is_moment(
            node.expression
        ):
            return type(node)(this=_call("moment", node.this), expression=_call("moment", node.expression))
        case exp.Between() if _is_moment(node.this):
            return exp.Between(**{name: _call("moment", node.args[name]) for name in ("this", "low", "high")})
        case exp.In() if node.expressions and _is_moment(node.this):
            return exp.In(this=_call("moment", node.this), expressions=[_call("moment", one) for one in node.expressions])
        case exp.ArrayOverlaps():
            return _call("overlaps", node.this, node.expression)
        case exp.ArrayContainsAll():
            return _call("contains_all", node.this, node.expression)
        case exp.Array():
            return _call("json_array", *node.expressions)
        case exp.Like() | exp.ILike():
            return _likeness(node)
        case exp.Escape() if isinstance(node.this, exp.Like | exp.ILike):
            return _likeness(node.this, node.expression)
        case exp.Left() | exp.Right():
            return _call(f"{node.key}_part", node.this, node.expression)
        case exp.Extract():
            return _call("extract_part", exp.Literal.string(node.this.name.lower()), node.expression)
        case exp.TimestampTrunc():
            return _call("trunc_time", exp.Literal.string(node.text("unit").lower()), node.this)
        case exp.Add() | exp.Sub() if isinstance(node.expression, exp.Interval):
            sign = "-" if isinstance(node, exp.Sub) else ""
            amount = f"{sign}{node.expression.this.name} {node.expression.text('unit').lower()}"
            return _call("shift_time", node.this, exp.Literal.string(amount))
        case exp.Add() | exp.Sub() if _is_moment(node.this):
            return _call("add_days" if isinstance(node, exp.Add) else "less_days", node.this, node.expression)
        case exp.Cast() if node.to.this.name in _TEXTS:
            return node.this.transform(_sqlite)  # type: ignore[no-any-return]
    return node


# Functions for SQLite. NULL makes NULL of all of them.


def like(text: str, pattern: str, escape: str = "\\", *, fold: bool = True) -> bool:
    """ILIKE of PostgreSQL, or LIKE. No regular expression for all of it: many percent signs would keep one busy for ever."""
    text, place = f"\ud800{_lower(text) if fold else text}\udfff", 0  # no text has these, so that they stand for its ends
    for part in _parts(_lower(pattern) if fold else pattern, escape):
        if isinstance(part, str):
            found = text.find(part, place)
            place = found + len(part)
        elif len(text) * len(part.pattern) > 10**8:
            raise ValueError("too long to be compared")
        else:
            match = part.search(text, place)
            found, place = (match.start(), match.end()) if match else (-1, 0)
        if found < 0:
            return False
    return True


@lru_cache(maxsize=512)
def _parts(pattern: str, escape: str) -> list[str | re.Pattern[str]]:
    """What stands between the percent signs of a pattern."""
    parts: list[list[str]] = [["\ud800"]]
    for token in re.findall(f"{re.escape(escape)}.|." if escape else ".", pattern, flags=re.DOTALL):
        if token == "%":
            parts.append([])
        else:
            parts[-1].append(token)
    parts[-1].append("\udfff")
    return [
        re.compile("".join("." if one == "_" else re.escape(one[-1]) for one in part), re.DOTALL)
        if "_" in part
        else "".join(one[-1] for one in part)
        for part in parts
    ]


def _lower(text: str) -> str:
    """Lower case of each character for itself, as PostgreSQL has it."""
    return text.lower() if text.isascii() else "".join(one.lower()[:1] for one in text)


_like = partial(like, fold=False)


def _any_of(test: Callable[..., bool]) -> Callable[[str, str], bool]:
    return lambda text, patterns: any(test(text, pattern) for pattern in set(json.loads(patterns)))


def _bounded(value: Any, most: int) -> Any:
    if isinstance(value, str) and len(value.encode()) > most:
        raise ValueError(f"a value has more than {most} bytes")
    return value


def _datetime(value: str) -> datetime:
    return datetime.combine(date.min, time.fromisoformat(value)) if value[2:3] == ":" else datetime.fromisoformat(value)


def _moment(value: str) -> str:
    """A form in which all dates and times can be compared as texts."""
    moment = _datetime(value)
    return (moment.astimezone(UTC) if moment.tzinfo else moment).strftime("%Y-%m-%d %H:%M:%S.%f").rjust(26, "0")


def _extract(part: str, value: str) -> int:
    moment = _datetime(value)
    parts: dict[str, Callable[[datetime], int]] = {
        "dow": lambda one: one.isoweekday() % 7,
        "isodow": lambda one: one.isoweekday(),
        "doy": lambda one: one.timetuple().tm_yday,
        "week": lambda one: one.isocalendar().week,
        "quarter": lambda one: (one.month + 2) // 3,
        "epoch": lambda one: int(one.replace(tzinfo=UTC).timestamp()),
    }
    return parts[part](moment) if part in parts else int(getattr(moment, part))


def _trunc(unit: str, value: str) -> str:
    moment = _datetime(value)
    units = ("year", "month", "day", "hour", "minute", "second")
    if unit == "week":
        moment, unit = moment - timedelta(days=moment.weekday()), "day"
    lowest = {"month": 1, "day": 1}
    lower = {name: lowest.get(name, 0) for name in units[units.index(unit) + 1 :]}
    return str(moment.replace(microsecond=0, **lower))  # type: ignore[arg-type]


def _shift(value: str, amount: str) -> str:
    count, unit = amount.split()
    unit, moment = unit.removesuffix("s"), _datetime(value)
    if unit not in ("month", "year"):
        return str(moment + timedelta(**{f"{unit}s": int(count)}))
    year, month = divmod(moment.year * 12 + moment.month - 1 + int(count) * (12 if unit == "year" else 1), 12)
    last = monthrange(year, month + 1)[1]  # 31 March minus a month: the last of February
    return str(moment.replace(year=year, month=month + 1, day=min(moment.day, last)))


def _less_days(value: str, other: str | int) -> str | int:
    if isinstance(other, int):
        return str(date.fromisoformat(value) - timedelta(days=other))
    apart = _datetime(value) - _datetime(other)
    return apart.days if len(value) == len(other) == 10 else str(apart)


def _arrays(test: Callable[[set[Any], set[Any]], bool]) -> Callable[[str, str], bool]:
    return lambda first, second: test(set(json.loads(first)), set(json.loads(second)))


def _cosine_distance(first: str, second: str) -> float | None:
    one, other = json.loads(first), json.loads(second)
    norms = (sum(a * a for a in one) * sum(b * b for b in other)) ** 0.5
    return 1 - sum(a * b for a, b in zip(one, other, strict=True)) / norms if norms else None


def _strict(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: None if None in values else function(*values)


FUNCTIONS_OF_SQLITE: dict[str, tuple[int, Callable[..., Any]]] = {
    "bounded": (2, _strict(_bounded)),
    "concat": (-1, lambda *values: "".join(str(value) for value in values if value is not None)),
    "ilike": (-1, _strict(like)),
    "is_like": (-1, _strict(_like)),
    "ilike_any": (2, _strict(_any_of(like))),
    "is_like_any": (2, _strict(_any_of(_like))),
    "left_part": (2, _strict(lambda text, count: text[:count])),
    "right_part": (2, _strict(lambda text, count: text[-count:] if count else "")),
    "overlaps": (2, _strict(_arrays(lambda one, other: bool(one & other)))),
    "contains_all": (2, _strict(_arrays(lambda one, other: one >= other))),
    "in_array": (2, _strict(lambda value, array: value in json.loads(array))),
    "moment": (1, _strict(_moment)),
    "extract_part": (2, _strict(_extract)),
    "trunc_time": (2, _strict(_trunc)),
    "shift_time": (2, _strict(_shift)),
    "add_days": (2, _strict(lambda value, days: _less_days(value, -days))),
    "less_days": (2, _strict(_less_days)),
    "cosine_distance": (2, _strict(_cosine_distance)),
}
"""By name: how many arguments, and the function."""
