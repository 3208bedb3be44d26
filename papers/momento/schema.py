"""The tables of the restaurant service, and what a value of each type may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from deltamem.errors import DeltaMemError

Row = dict[str, Any]

ENUMS: dict[str, tuple[str, ...]] = {
    "gender": ("male", "female", "other"),
    "payment_type": ("credit_card", "debit_card", "paypal", "apple_pay", "google_pay", "cash"),
    "reservation_status": ("confirmed", "cancelled", "completed", "no_show"),
    "order_status": ("created", "confirmed", "preparing", "ready", "picked_up", "on_the_way", "delivered", "cancelled"),
    "fulfillment_type": ("pickup", "delivery"),
    "delivery_provider": ("swiftdrop", "foodfly", "quickdish", "mealdash", "carryeats"),
    "membership_tier": ("basic", "silver", "gold", "platinum"),
    "membership_status": ("active", "cancelled", "expired"),
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
}
"""Columns of each table with their types."""

SESSIONS = "sessions"
READABLE = tuple(name for name in TABLES if name != SESSIONS)
"""What ``execute_sql`` may read: not the sessions, because how a memory finds these is under test."""


def amount(value: float | str | Decimal) -> Decimal:
    """An amount of money, with the digits that it was given with: the hash of a state shows them."""
    return Decimal(str(value))


def check_texts(name: str, value: Any) -> None:
    """Refuse texts in a JSON value that JSON allows and PostgreSQL does not hold.

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
    """Rows as values for all columns, None for those that a row lacks.

    Raises:
        DeltaMemError: If a row has no id of its own, or a value is not of its column's type.
    """
    ids = [row.get("id") for row in rows]
    if None in ids or len(set(map(str, ids))) < len(ids):
        raise DeltaMemError(f"each row of {table} needs an id of its own")
    return [[_typed(name, row.get(name), kind) for name, kind in TABLES[table].items()] for row in rows]


def _timestamp(value: str | datetime) -> datetime:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


_JSON_TYPES = {
    **{"text": (str,), "list": (list,), "integer": (int,), "real": (int, float)},
    **{"date": (str, date), "time": (str, time)},
}
"""What a value may be given as; other types decide that when they are converted."""

_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "money": amount,
    "date": lambda value: date.fromisoformat(str(value)),
    "time": lambda value: time.fromisoformat(str(value)).replace(tzinfo=None),
    "timestamp": _timestamp,
    "uuid": lambda value: str(UUID(value)),
    "vector": lambda value: [float(one) for one in value],
}


def _typed(name: str, value: Any, kind: str) -> Any:
    if value is None:
        return None
    check_texts(name, value)
    if kind in ENUMS and value not in ENUMS[kind]:
        raise DeltaMemError(f"{value!r} is none of {', '.join(ENUMS[kind])}")
    try:
        if type(value) not in _JSON_TYPES.get(kind, (type(value),)):
            raise TypeError
        converted = _CONVERTERS[kind](value) if kind in _CONVERTERS else value
        if kind in ("integer", "real", "money") and not is_storable(converted):
            raise ValueError
        return converted
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise DeltaMemError(f"the {name} {str(value)[:40]!r} is not of the type {kind}") from error
