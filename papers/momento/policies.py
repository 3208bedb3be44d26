"""The restaurant service: its tables, and its rules on tiers, delivery, amounts, opening hours, overlapping reservations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from deltamem.errors import DeltaMemError

Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

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
        "embedding vector, messages json"
    ),
}
"""Columns of each table with their types."""

SESSIONS = "sessions"
READABLE = tuple(name for name in TABLES if name != SESSIONS)
"""What ``execute_sql`` may always read; the user's own sessions only where no memory is under test that has to find them."""


def amount(value: float | str | Decimal) -> Decimal:
    """An amount of money, with the digits that it was given with: the hash of a state shows them."""
    return Decimal(str(value))


def _tier(name: str, discount: int, cost: float, perks: str) -> dict[str, Any]:
    return {
        "tier": name,
        "order_discount_pct": discount,
        "priority_reservation": name in ("gold", "platinum"),
        "free_delivery": name == "platinum",
        "monthly_cost": cost,
        "description": perks,
    }


BENEFITS: Mapping[str, Mapping[str, Any]] = {
    "basic": _tier("basic", 0, 0.0, "What everybody has; no perks."),
    "silver": _tier("silver", 5, 9.99, "Orders cost 5% less."),
    "gold": _tier("gold", 10, 19.99, "Orders cost 10% less; reservations have priority."),
    "platinum": _tier("platinum", 15, 29.99, "Orders cost 15% less and are delivered free; reservations have priority."),
}
"""What each tier brings."""

PROVIDERS: Mapping[str, Mapping[str, Any]] = {
    name.lower(): {"id": name.lower(), "name": name, "description": said, "delivery_price": price}
    for name, said, price in (
        ("SwiftDrop", "Quick", 3.99),
        ("FoodFly", "Keeps food warm", 5.99),
        ("QuickDish", "The cheapest", 1.99),
        ("MealDash", "The fastest", 4.99),
        ("CarryEats", "By bicycle", 2.99),
    )
}
"""Delivery providers by id."""

LEAST_MINUTES, MOST_MINUTES = 30, 120
CHANGEABLE: Mapping[str, tuple[str, ...]] = {"reservations": ("confirmed",), "orders": ("created", "confirmed")}
"""States in which the user can still cancel or change something, by table."""


class PolicyViolationError(Exception):
    """A call breaks a rule of the service; nothing was changed."""


class DatabaseFailedError(DeltaMemError):
    """The database went away, or is out of room: no result of a call, and a run that meets it ends."""

    def __init__(self, cause: Exception) -> None:
        """Repeat what the database said first."""
        super().__init__(f"the database failed: {str(cause).partition(chr(10))[0]}")


class CallError(Exception):
    """A call cannot be carried out: something does not exist, or an argument is not what it should be."""


def check_party(party_size: int | None, duration_minutes: int | None) -> None:
    """Refuse parties of nobody and reservations that are too short or too long."""
    if party_size is not None and party_size < 1:
        raise PolicyViolationError("party_size must be at least 1")
    if duration_minutes is not None and not LEAST_MINUTES <= duration_minutes <= MOST_MINUTES:
        raise PolicyViolationError(f"duration_minutes must be between {LEAST_MINUTES} and {MOST_MINUTES}")


def parsed_date(text: str) -> date:
    """A date like 2026-05-18."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").date()
    except ValueError:
        raise CallError(f"{text!r} is not a date like 2026-05-18") from None


def parsed_time(text: str) -> time:
    """A time like 19:30."""
    try:
        return datetime.strptime(text, "%H:%M").time()
    except ValueError:
        raise CallError(f"{text!r} is not a time like 19:30") from None


def why_closed(opening_hours: Mapping[str, Any] | None, day: date, at: time) -> str | None:
    """Why a restaurant takes nobody at a time; None if it is open.

    As in the benchmark the closing time itself still counts as open, and hours that go past midnight never do.
    """
    if not opening_hours:
        return "the opening hours are not known"
    said = {name.lower(): ranges for name, ranges in opening_hours.items()}.get(f"{day:%A}".lower(), "")
    ranges = []
    for block in str(said).split(","):
        with suppress(CallError, ValueError):
            begin, end = (parsed_time(one.strip()) for one in block.split("-"))
            ranges.append((begin, end))
    if not ranges:
        return "closed on this day"
    return None if any(begin <= at <= end for begin, end in ranges) else "outside the opening hours"


def overlap(begin: time, minutes: int, other: time, other_minutes: int) -> bool:
    """Whether two stays on one day overlap; a stay may end after midnight."""
    first, second = (60 * at.hour + at.minute for at in (begin, other))
    return first < second + other_minutes and second < first + minutes


def order_total(dishes: Iterable[tuple[float, int]], tier: str, delivery_price: float | None) -> tuple[float, float]:
    """What an order costs, and the discount on its dishes, in dollars; `delivery_price` is None for pickup.

    The hashes of the published tasks come of binary floating point, rounded twice, so decimals would be wrong here.
    """
    benefits, subtotal = BENEFITS[tier], 0.0
    for price, quantity in dishes:  # from Python 3.12 on `sum` rounds otherwise
        subtotal += price * quantity
    discount = round(subtotal * benefits["order_discount_pct"] / 100, 2)
    total = round(subtotal - discount, 2)
    if delivery_price is not None and not benefits["free_delivery"]:
        total = round(total + delivery_price, 2)
    return total, discount
