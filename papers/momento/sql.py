"""The gate before an agent's SQL: one SELECT over known tables and harmless functions.

The gate gives good errors and bounds what a query may ask for. It isn't what protects the database, whose roles refuse on
their own (`papers.momento.database`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping

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
_BUILT_IN = ("json_", "pg_", "information_schema")
_LONGEST = 20_000
LONGEST_VALUE, LONGEST_OPERAND, _MOST_SEARCHES = 20_000, 500, 50
"""How long values may become that a query makes, and those that others are searched for, as texts; and how many searches.

A database looks at its limit of time between rows, and not while it evaluates one expression; and some expressions take as
long as the product of two lengths. TRIM of 300,000 characters by as many others took minutes.
"""


def checked(
    query: str, tables: Collection[str], hidden: Collection[str] = (), values: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """The SELECT of an agent, and the same with a bound around every value that could grow long.

    Args:
        query: PostgreSQL.
        tables: Those that it may read.
        hidden: Others that there are.
        values: What stands for placeholders such as ``:user_id``.

    Raises:
        PolicyViolationError: If it is anything else; says what is not allowed.
    """
    try:
        return _checked(query, tables, hidden, values or {})
    except RecursionError as error:
        raise PolicyViolationError("the query is nested too deeply") from error


def _checked(query: str, tables: Collection[str], hidden: Collection[str], values: Mapping[str, str]) -> tuple[str, str]:
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
    for place in list(tree.find_all(exp.Placeholder)):
        if place.name in values:
            place.replace(exp.Literal.string(values[place.name]))
    written = tree.sql(dialect="postgres", comments=False)
    _bound(tree)
    return written, tree.sql(dialect="postgres", comments=False)


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
"""What makes long values."""
_TEXT_TYPES = ("TEXT", "VARCHAR", "CHAR", "JSON", "JSONB")
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
                one.replace(exp.alias_(one.copy(), name))
    nodes = list(tree.walk())
    if sum(type(node) in _SEARCHES for node in nodes) > _MOST_SEARCHES:
        raise PolicyViolationError(f"a query may search texts and lists {_MOST_SEARCHES} times")
    for node in nodes:
        kind = node.to.this.name if isinstance(node, exp.Cast) else ""
        if isinstance(node, exp.Literal) and not node.is_string and not _NUMBER.fullmatch(node.name):
            raise PolicyViolationError("a number may have 50 digits")
        if isinstance(node, exp.Mul) or kind == "DECIMAL":
            _bound_one(node, LONGEST_OPERAND)  # the digits of a NUMERIC
        elif isinstance(node, _LONG) or kind in _TEXT_TYPES:
            _bound_one(node, LONGEST_VALUE)
        if (operand := node.args.get(_SEARCHES.get(type(node), ""))) is not None:
            _bound_one(operand.this if isinstance(operand, exp.Any) else operand, LONGEST_OPERAND)


def _column_name(node: exp.Expr) -> exp.Identifier | None:
    """How PostgreSQL calls a column of a result that was given no name: as the column or the function in it."""
    while isinstance(node, exp.Cast | exp.Paren | exp.Filter | exp.Window | exp.WithinGroup):
        node = node.this
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Identifier):
        return node.this.copy()
    if not isinstance(node, exp.Func) or isinstance(node, exp.Binary | exp.Trim):  # TRIM is called btrim
        return None
    written = re.match(r"(\w+)[(\[]", node.sql(dialect="postgres"))
    return written and exp.to_identifier(written[1].lower(), quoted=True)


def _bound_one(node: exp.Expr, most: int) -> None:
    while isinstance(node.parent, exp.Filter | exp.Window | exp.WithinGroup) and node.arg_key == "this":
        node = node.parent
    inner = node.unnest()
    if isinstance(inner, exp.Array) and all(isinstance(one, exp.Literal) for one in inner.expressions):
        return
    if isinstance(inner, exp.Literal | exp.Null):  # of no type yet, and no longer than the query
        return
    bounded = exp.Anonymous(this="bounded")
    node.replace(bounded)
    bounded.set("expressions", [node, exp.Literal.number(most)])


_NUMBER = re.compile(r"[\d.]{1,50}(e[+-]?\d\d?)?", re.IGNORECASE)


_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)


def _distance(node: exp.Expression) -> exp.Expression:
    """Tell pgvector's ``<=>`` from IS NOT DISTINCT FROM, which sqlglot reads alike, and let it bind before comparisons."""
    sides = (node.args.get("this"), node.args.get("expression"))
    if not isinstance(node, exp.NullSafeEQ) or not any(
        (isinstance(side, exp.Column) and side.name == "embedding")
        or (isinstance(side, exp.Placeholder) and side.name == "query_embedding")
        or (isinstance(side, exp.Cast) and side.to.this.name == "VECTOR")
        for side in sides
    ):
        return node
    other = node.expression.unnest()
    if isinstance(other, _COMPARISONS):
        return type(other)(
            this=exp.Operator(this=node.this, operator="<=>", expression=other.this), expression=other.expression
        )
    return exp.Operator(this=node.this, operator="<=>", expression=node.expression)
