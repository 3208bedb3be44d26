"""The 26 tools, as functions whose parameters are those of the tools.

A result is a JSON text, or begins with ``Error: `` or ``PolicyViolationError: ``, and then nothing was changed.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from deltamem.errors import DeltaMemError
from eval.momento.database import ENUMS, READABLE, TABLES, Row, amount
from eval.momento.policies import (
    BENEFITS,
    CANCELLABLE,
    PROVIDERS,
    CallError,
    PolicyViolationError,
    check_party,
    order_total,
    overlap,
    parsed_date,
    parsed_time,
    why_closed,
)
from eval.momento.world import World

ERROR, VIOLATION = "Error: ", "PolicyViolationError: "
"""How the result of a failed call begins."""


def failed(result: str) -> bool:
    """Whether a call changed nothing because it could not be carried out or was not allowed."""
    return result.startswith((ERROR, VIOLATION))


_TEXT: dict[str, Any] = {"type": "string"}
_TEXTS: dict[str, Any] = {"type": "array", "items": _TEXT}
_COUNT = {"type": "integer", "minimum": 1}
_ITEM = {
    "type": "object",
    "properties": {"menu_item_id": _TEXT, "quantity": {"type": "integer", "minimum": 1, "default": 1}, "notes": _TEXT},
    "required": ["menu_item_id"],
}
_PARAMETERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("categories", "cuisines", "amenities", "restaurant_ids"), _TEXTS),
    **dict.fromkeys(("party_size", "limit"), _COUNT),
    **{key: {"type": "integer"} for key in ("min_price", "max_price")},
    **{key: {"type": "number"} for key in ("latitude", "longitude")},
    "duration_minutes": {"type": "integer", "minimum": 30, "maximum": 120},
    "radius_km": {"type": "number", "minimum": 0.1},
    "max_rows": {"type": "integer", "default": 100},
    "items": {"type": "array", "items": _ITEM},
    "image_labels": {"type": ["array", "string"], "items": _TEXT},
    "fulfillment": {"type": "string", "enum": list(ENUMS["fulfillment_type"])},
}
_HINTS = {
    "date": "For example 2026-05-18",
    "time": "For example 19:30",
    "query": "One SELECT of PostgreSQL; no other statement",
    "delivery_provider": "The id of one of get_delivery_providers; needed for a delivery",
    "delivery_address": "Needed for a delivery",
    "exclude_reservation_id": "A reservation that doesn't count, because it is to be changed",
    "image_labels": "What a picture shows, looked for in names, descriptions, categories and cuisines",
}


@dataclass(frozen=True)
class Tool:
    """A tool: what it does and what it takes."""

    name: str
    run: Callable[..., Any]
    description: str
    required: tuple[str, ...]
    properties: Mapping[str, Mapping[str, Any]]

    def schema(self) -> dict[str, Any]:
        """As models are shown it, in the OpenAI protocol."""
        shown = {name: {**of, "description": _HINTS[name]} if name in _HINTS else of for name, of in self.properties.items()}
        parameters = {"type": "object", "properties": shown, "required": list(self.required)}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }


TOOLS: dict[str, Tool] = {}
"""All tools by name."""


def _tool(**special: Mapping[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function a tool: its docstring describes it, its parameters after the world are those of the tool."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        required = tuple(one.name for one in parameters if one.default is inspect.Parameter.empty)
        properties = {one.name: special.get(one.name) or _PARAMETERS.get(one.name, _TEXT) for one in parameters}
        assert function.__doc__
        TOOLS[function.__name__] = Tool(function.__name__, function, function.__doc__, required, properties)
        return function

    return register


def call(world: World, name: str, arguments: Mapping[str, Any]) -> str:
    """Carry out a call as an agent makes it; never raises for what the agent did."""
    tool = TOOLS.get(name)
    if tool is None:
        return f"{ERROR}there is no tool {name!r}"
    try:
        given = {key: value for key, value in arguments.items() if value is not None}
        _check_arguments(tool, given)
        with world.database.transaction():
            try:
                return json.dumps(tool.run(world, **given), default=str, ensure_ascii=False)
            except PolicyViolationError as error:  # that a membership was found to be over stays, as in the benchmark
                return f"{VIOLATION}{error}"
            except CallError as error:
                return f"{ERROR}{error}"
    except (CallError, DeltaMemError) as error:
        return f"{ERROR}{error}"


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}


def _check_arguments(tool: Tool, given: Mapping[str, Any]) -> None:
    if missing := [name for name in tool.required if name not in given]:
        raise CallError(f"{tool.name} needs {missing[0]}")
    for name, value in given.items():
        if name not in tool.properties:
            raise CallError(f"{tool.name} has no argument {name!r}")
        _check_value(name, value, tool.properties[name])


def _check_value(name: str, value: Any, expected: Mapping[str, Any]) -> None:
    types = expected["type"] if isinstance(expected["type"], list) else [expected["type"]]
    if not any(isinstance(value, _JSON_TYPES[one]) for one in types) or isinstance(value, bool):
        raise CallError(f"{name} must be of the type {' or '.join(types)}")
    if isinstance(value, str) and ("\0" in value or (not value.isascii() and not _valid(value))):
        raise CallError(f"{name} holds characters that no text has")
    if isinstance(value, int | float) and not -(2**31) <= value < 2**31:  # NaN too
        raise CallError(f"{name} is out of range")
    if name == "limit" and value < 1:
        raise CallError("limit must be at least 1")
    if isinstance(value, list):
        for one in value:
            _check_value(f"each of {name}", one, expected["items"])
    if isinstance(value, dict):
        for key, of in expected["properties"].items():
            if key in value and value[key] is not None:
                _check_value(key, value[key], of)


def _valid(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _uuid(value: str, name: str) -> str:
    try:
        return str(UUID(value))
    except ValueError:
        raise CallError(f"{name} {value!r} is not a UUID") from None


def _user(world: World, user_id: str) -> Row:
    if (user := world.one("SELECT * FROM users WHERE id = ?", user_id)) is None:
        raise CallError("user not found")
    return user


def _restaurant(world: World, restaurant_id: str) -> Row:
    row = world.one("SELECT * FROM restaurants WHERE id = ?", _uuid(restaurant_id, "restaurant_id"))
    if row is None:
        raise CallError("restaurant not found")
    return row


def _place(world: World, restaurant_id: str | None) -> Row:
    """Name and address of the restaurant of a row, empty if there is none."""
    return world.one("SELECT name, address FROM restaurants WHERE id = ?", restaurant_id) or {}


def _pick(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names}


def _dollars(value: Any) -> float | None:
    return float(value) if value else None


# Reservations


def _remaining(world: World, place: Row, day: Any, at: Any, minutes: int, without: str | None = None) -> int:
    taken: int = sum(
        row["party_size"]
        for row in world.all(
            "SELECT * FROM reservations WHERE restaurant_id = ? AND date = ? AND status = 'confirmed'", place["id"], day
        )
        if row["id"] != without and overlap(at, minutes, row["time"], row["duration_minutes"])
    )
    return max(int(place["capacity"] or 0) - taken, 0)


@_tool()
def check_restaurant_availability(
    world: World,
    restaurant_id: str,
    date: str,
    time: str,
    party_size: int,
    duration_minutes: int,
    exclude_reservation_id: str | None = None,
) -> Row:
    """Whether a restaurant is open and has room for a party at a time."""
    without = _uuid(exclude_reservation_id, "exclude_reservation_id") if exclude_reservation_id else None
    check_party(party_size, duration_minutes)
    place = _restaurant(world, restaurant_id)
    day, at = parsed_date(date), parsed_time(time)
    asked = {"restaurant_id": restaurant_id, "date": date, "time": time, "party_size": party_size}
    asked["duration_minutes"] = duration_minutes
    if (reason := why_closed(place["opening_hours"], day, at)) is not None:
        return {**asked, "available": False, "reason": reason}
    remaining = _remaining(world, place, day, at, duration_minutes, without)
    if party_size > remaining:
        return {**asked, "available": False, "reason": "insufficient capacity"}
    return {**asked, "available": True, "remaining_capacity": remaining}


@_tool()
def create_reservation(
    world: World,
    restaurant_id: str,
    user_id: str,
    date: str,
    time: str,
    party_size: int,
    duration_minutes: int,
    special_requests: str | None = None,
) -> Row:
    """Reserve a table."""
    _uuid(restaurant_id, "restaurant_id")
    check_party(party_size, duration_minutes)
    _user(world, user_id)
    place = _restaurant(world, restaurant_id)
    day, at = parsed_date(date), parsed_time(time)
    _check_room(world, place, day, at, party_size, duration_minutes)
    tier = _tier(world, user_id)
    if BENEFITS[tier]["priority_reservation"]:
        special_requests = _noted(special_requests, f"{tier} membership: priority reservation")
    made = world.new_id()
    row = {
        "id": made,
        "user_id": user_id,
        "restaurant_id": place["id"],
        "date": day,
        "time": at,
        "party_size": party_size,
        "special_requests": special_requests,
        "duration_minutes": duration_minutes,
        "status": "confirmed",
        "created_at": world.now(),
    }
    world.database.insert("reservations", [row])
    return _reservation(world, made)


def _check_room(world: World, place: Row, day: Any, at: Any, party: int, minutes: int, without: str | None = None) -> None:
    if (reason := why_closed(place["opening_hours"], day, at)) is not None:
        raise PolicyViolationError(f"the restaurant is not open then: {reason}")
    if party > _remaining(world, place, day, at, minutes, without):
        raise PolicyViolationError("the restaurant has no room for so many at this time")


def _noted(text: str | None, note: str) -> str:
    return f"{text} | {note}" if text else note


def _reservation(world: World, reservation_id: str) -> Row:
    row = world.one("SELECT * FROM reservations WHERE id = ?", reservation_id)
    assert row is not None
    return row


def _own_reservation(world: World, reservation_id: str, user_id: str) -> Row | None:
    name = _uuid(reservation_id, "reservation_id")
    return world.one("SELECT * FROM reservations WHERE id = ? AND user_id = ?", name, user_id)


@_tool()
def cancel_reservation(world: World, reservation_id: str, user_id: str) -> Row:
    """Cancel a confirmed reservation of the user's own."""
    row = _own_reservation(world, reservation_id, user_id)
    if row is None:
        raise PolicyViolationError("the user has no such reservation")
    if row["status"] != "confirmed":
        raise PolicyViolationError(f"a reservation that is {row['status']} cannot be cancelled")
    world.all("UPDATE reservations SET status = 'cancelled' WHERE id = ?", row["id"])
    return _reservation(world, row["id"])


@_tool()
def update_reservation(
    world: World,
    reservation_id: str,
    user_id: str,
    date: str | None = None,
    time: str | None = None,
    party_size: int | None = None,
    duration_minutes: int | None = None,
    special_requests: str | None = None,
) -> Row:
    """Change a confirmed reservation of the user's own; what isn't given stays."""
    _uuid(reservation_id, "reservation_id")
    check_party(party_size, duration_minutes)
    row = _own_reservation(world, reservation_id, user_id)
    if row is None:
        raise PolicyViolationError("the user has no such reservation")
    if row["status"] != "confirmed":
        raise PolicyViolationError(f"a reservation that is {row['status']} cannot be changed")
    day, at = parsed_date(date) if date else row["date"], parsed_time(time) if time else row["time"]
    party, minutes = party_size or row["party_size"], duration_minutes or row["duration_minutes"]
    request = row["special_requests"] if special_requests is None else special_requests
    if date or time or party_size or duration_minutes:
        _check_room(world, _restaurant(world, row["restaurant_id"]), day, at, party, minutes, row["id"])
    world.all(
        "UPDATE reservations SET date = ?, time = ?, party_size = ?, duration_minutes = ?, special_requests = ? "
        "WHERE id = ?",
        *(day, at, party, minutes, request, row["id"]),
    )
    return _reservation(world, row["id"])


@_tool()
def get_reservation_details(world: World, reservation_id: str, user_id: str) -> Row:
    """All about a reservation of the user's own."""
    row = _own_reservation(world, reservation_id, user_id)
    if row is None:
        raise CallError("the user has no such reservation")
    place = _place(world, row["restaurant_id"])
    where = {"restaurant_name": place.get("name"), "restaurant_address": place.get("address")}
    return {**_pick(row, "id", "restaurant_id"), **where, **row}


@_tool(status={"type": "string", "enum": list(ENUMS["reservation_status"])})
def list_user_reservations(world: World, user_id: str, status: str | None = None) -> list[Row]:
    """The user's reservations, the latest first; perhaps only those of one status."""
    _user(world, user_id)
    rows = _of_status(world, "reservations", "reservation_status", user_id, status)
    rows.sort(key=lambda row: (row["date"], row["time"], row["id"]), reverse=True)
    return [
        {**_pick(row, "id", "restaurant_id"), "restaurant_name": _place(world, row["restaurant_id"]).get("name")}
        | _pick(row, "date", "time", "party_size", "duration_minutes", "status", "special_requests", "created_at")
        for row in rows
    ]


def _of_status(world: World, table: str, enum: str, user_id: str, status: str | None) -> list[Row]:
    if status and status not in ENUMS[enum]:
        raise CallError(f"there is no status {status!r}; there are: {', '.join(ENUMS[enum])}")
    rows = world.all(f"SELECT * FROM {table} WHERE user_id = ?", user_id)
    return [row for row in rows if not status or row["status"] == status]


# Restaurants and menus


@_tool()
def search_restaurants(
    world: World,
    name: str | None = None,
    city: str | None = None,
    country: str | None = None,
    cuisines: list[str] | None = None,
    amenities: list[str] | None = None,
    restaurant_ids: list[str] | None = None,
    min_price: int | None = None,
    max_price: int | None = None,
    latitude: float | None = None,
    longitude: float | None = None,
    radius_km: float | None = None,
    limit: int | None = None,
) -> list[Row]:
    """Find restaurants by anything that is known of them, for example any of the cuisines and all of the amenities."""
    given = (name, city, country, cuisines, amenities, restaurant_ids, min_price, max_price, latitude, longitude, radius_km)
    if all(value is None for value in given):
        raise PolicyViolationError("say at least one thing to search for")
    base = world.database
    where: list[tuple[str, list[Any]]] = []
    if restaurant_ids:
        ids = [_uuid(one, "restaurant_id") for one in restaurant_ids]
        where.append((f"id IN ({', '.join('?' * len(ids))})", ids))
    where += [
        (base.ilike(column), [f"%{text}%"])
        for column, text in (("name", name), ("city", city), ("country", country))
        if text
    ]
    if cuisines:
        where.append((base.overlaps("cuisines"), [cuisines]))
    if amenities:
        where.append((base.contains("amenities"), [amenities]))
    if min_price is not None:
        where.append(("price_range_lower >= ?", [min_price]))
    if max_price is not None:
        where.append(("price_range_upper <= ?", [max_price]))
    rows = _where(world, "restaurants", where)
    fields = ("id", "name", "address", "city", "country", "cuisines", "price_range_lower", "price_range_upper", "amenities")
    shown = (*fields, "opening_hours", "capacity", "image_url")
    found = [_pick(row, *shown) for row in rows]
    if latitude is not None and longitude is not None and radius_km is not None:
        for row, of in zip(rows, found, strict=True):
            of["distance_km"] = _kilometres(latitude, longitude, row["lat"], row["lon"])
        near = [of for of in found if of["distance_km"] is not None and of["distance_km"] <= radius_km]
        found = sorted(near, key=lambda of: of["distance_km"])
        for of in found:
            of["distance_km"] = round(of["distance_km"], 2)
    return found[:limit]


def _where(world: World, table: str, where: list[tuple[str, list[Any]]]) -> list[Row]:
    condition = " AND ".join(text for text, _ in where) or "1 = 1"
    values = [value for _, values in where for value in values]
    return world.all(f"SELECT * FROM {table} WHERE {condition} ORDER BY name, id", *values)


def _kilometres(latitude: float, longitude: float, lat: float | None, lon: float | None) -> float | None:
    if lat is None or lon is None:
        return None
    first, second, apart = math.radians(latitude), math.radians(lat), math.radians(lon - longitude)
    cosine = math.cos(first) * math.cos(second) * math.cos(apart) + math.sin(first) * math.sin(second)
    return 6371 * math.acos(max(-1.0, min(1.0, cosine)))


@_tool()
def get_restaurant_details(world: World, restaurant_id: str) -> Row:
    """All about a restaurant but its menu."""
    row = _restaurant(world, restaurant_id)
    del row["description"]
    return row


def _dish(row: Row, *names: str) -> Row:
    return {**_pick(row, *names, "name", "categories", "cuisines"), "price": _dollars(row["price"])} | _pick(
        row, "image_url"
    )


@_tool()
def list_restaurant_menu(world: World, restaurant_id: str) -> list[Row]:
    """The menu of a restaurant."""
    place = _restaurant(world, restaurant_id)
    rows = world.all("SELECT * FROM menu_items WHERE restaurant_id = ? ORDER BY name, id", place["id"])
    return [_dish(row, "id") for row in rows]


@_tool()
def query_menu_items(
    world: World,
    name: str | None = None,
    categories: list[str] | None = None,
    cuisines: list[str] | None = None,
    restaurant_ids: list[str] | None = None,
    image_labels: list[str] | str | None = None,
    limit: int | None = None,
) -> list[Row]:
    """Find dishes of all restaurants by name, category, cuisine or what a picture shows."""
    if all(value is None for value in (name, categories, cuisines, restaurant_ids, image_labels)):
        raise PolicyViolationError("say at least one thing to search for")
    base = world.database
    where: list[tuple[str, list[Any]]] = []
    if restaurant_ids:
        ids = [_uuid(one, "restaurant_id") for one in restaurant_ids]
        where.append((f"restaurant_id IN ({', '.join('?' * len(ids))})", ids))
    if name:
        where.append((base.ilike("name"), [f"%{name}%"]))
    where += [
        (base.overlaps(column), [values])
        for column, values in (("categories", categories), ("cuisines", cuisines))
        if values
    ]
    if labels := [image_labels] if isinstance(image_labels, str) else image_labels:
        texts = [(base.ilike(column), f"%{label}%") for label in labels for column in ("name", "description")]
        lists = [(base.overlaps(column), labels) for column in ("categories", "cuisines")]
        either = [*texts, *lists]
        where.append((f"({' OR '.join(text for text, _ in either)})", [value for _, value in either]))
    return [_dish(row, "id", "restaurant_id") for row in _where(world, "menu_items", where)][:limit]


@_tool()
def get_menu_item_details(world: World, menu_item_id: str) -> Row:
    """All about a dish."""
    row = world.one("SELECT * FROM menu_items WHERE id = ?", _uuid(menu_item_id, "menu_item_id"))
    if row is None:
        raise CallError("menu item not found")
    named = {"restaurant_name": _place(world, row["restaurant_id"]).get("name")}
    return {**_pick(row, "id", "restaurant_id"), **named, **_dish(row)}


# Orders


@_tool()
def create_order(
    world: World,
    user_id: str,
    restaurant_id: str,
    items: list[dict[str, Any]],
    fulfillment: str,
    delivery_provider: str | None = None,
    delivery_address: str | None = None,
    special_instructions: str | None = None,
) -> Row:
    """Order dishes of one restaurant, to be picked up or delivered."""
    _user(world, user_id)
    place = _restaurant(world, restaurant_id)
    if fulfillment not in ENUMS["fulfillment_type"]:
        raise PolicyViolationError("fulfillment must be pickup or delivery")
    delivered = fulfillment == "delivery"
    if delivered and not (delivery_provider and delivery_address):
        raise PolicyViolationError("a delivery needs a delivery_provider and a delivery_address")
    if delivery_provider is not None and delivery_provider not in PROVIDERS:
        raise PolicyViolationError(f"there is no delivery provider {delivery_provider!r}; get_delivery_providers has all")
    if not items:
        raise CallError("an order needs at least one item")
    dishes = [_ordered(world, item, place) for item in items]
    subtotal = 0.0
    for dish in dishes:
        subtotal += dish["price"] * dish["quantity"]
    tier = _tier(world, user_id)
    delivery = PROVIDERS[delivery_provider]["delivery_price"] if delivered and delivery_provider else None
    total, discount = order_total(subtotal, tier, delivery)
    if discount_pct := BENEFITS[tier]["order_discount_pct"]:
        special_instructions = _noted(special_instructions, f"{tier} membership discount: {discount_pct}% (-${discount})")
    if delivered and BENEFITS[tier]["free_delivery"]:
        special_instructions = _noted(special_instructions, f"{tier} membership: free delivery")
    made = world.new_id()
    order = {
        "id": made,
        "user_id": user_id,
        "restaurant_id": place["id"],
        "fulfillment": fulfillment,
        "status": "created",
        "total_price": amount(total),
        "currency": "USD",
        "delivery_provider_name": delivery_provider,
        "delivery_address": delivery_address,
        "special_instructions": special_instructions,
        "created_at": world.now(),
        "updated_at": world.now(),
    }
    world.database.insert("orders", [order])
    rows = [{"id": world.new_id(), "order_id": made, **dish, "price": amount(dish["price"])} for dish in dishes]
    world.database.insert("order_items", rows)
    return _order(world, made)


def _ordered(world: World, item: Mapping[str, Any], place: Row) -> Row:
    quantity = item.get("quantity")
    quantity = 1 if quantity is None else quantity
    if not item.get("menu_item_id"):
        raise CallError("each item needs a menu_item_id")
    name = _uuid(item["menu_item_id"], "menu_item_id")
    if quantity < 1:
        raise CallError("the quantity of an item must be at least 1")
    row = world.one("SELECT * FROM menu_items WHERE id = ?", name)
    if row is None:
        raise CallError(f"menu item {name} not found")
    if row["restaurant_id"] != place["id"]:
        raise PolicyViolationError(f"menu item {name} is not of this restaurant; an order is from one restaurant")
    dish = {"menu_item_id": name, "name": row["name"], "price": float(row["price"] or 0)}
    return {**dish, "quantity": quantity, "notes": item.get("notes")}


def _order(world: World, order_id: str) -> Row:
    row = world.one("SELECT * FROM orders WHERE id = ?", order_id)
    assert row is not None
    return row | {"items": _items(world, order_id)}


def _items(world: World, order_id: str) -> list[Row]:
    return world.all("SELECT * FROM order_items WHERE order_id = ? ORDER BY name, menu_item_id, id", order_id)


def _own_order(world: World, order_id: str, user_id: str) -> Row | None:
    return world.one("SELECT * FROM orders WHERE id = ? AND user_id = ?", _uuid(order_id, "order_id"), user_id)


@_tool()
def cancel_order(world: World, order_id: str, user_id: str) -> Row:
    """Cancel an order of the user's own that is created or confirmed."""
    row = _own_order(world, order_id, user_id)
    if row is None:
        raise PolicyViolationError("the user has no such order")
    if row["status"] not in CANCELLABLE:
        raise PolicyViolationError(f"an order that is {row['status']} cannot be cancelled")
    world.all("UPDATE orders SET status = 'cancelled', updated_at = ? WHERE id = ?", world.now(), row["id"])
    return _order(world, row["id"])


_ORDER_SHOWN = ("fulfillment", "status")
_ORDER_REST = ("currency", "delivery_provider_name", "delivery_address", "special_instructions")


@_tool()
def get_order_details(world: World, order_id: str, user_id: str) -> Row:
    """All about an order of the user's own."""
    row = _own_order(world, order_id, user_id)
    if row is None:
        raise CallError("the user has no such order")
    items = [
        {**_pick(item, "id", "menu_item_id", "name"), "price": _dollars(item["price"])} | _pick(item, "quantity", "notes")
        for item in _items(world, row["id"])
    ]
    named = {"restaurant_name": _place(world, row["restaurant_id"]).get("name")}
    shown = {**_pick(row, "id", "user_id", "restaurant_id"), **named, **_pick(row, *_ORDER_SHOWN)}
    shown |= {"total_price": _dollars(row["total_price"]), **_pick(row, *_ORDER_REST), "items": items}
    return shown | _pick(row, "created_at", "updated_at")


@_tool(status={"type": "string", "enum": list(ENUMS["order_status"])})
def list_user_orders(world: World, user_id: str, status: str | None = None) -> list[Row]:
    """The user's orders, the newest first; perhaps only those of one status."""
    _user(world, user_id)
    rows = _of_status(world, "orders", "order_status", user_id, status)
    rows.sort(key=lambda row: (row["created_at"], row["id"]), reverse=True)
    return [
        {**_pick(row, "id", "restaurant_id"), "restaurant_name": _place(world, row["restaurant_id"]).get("name")}
        | _pick(row, *_ORDER_SHOWN)
        | {"total_price": _dollars(row["total_price"]), **_pick(row, "currency", "delivery_provider_name")}
        | {"item_count": len(_items(world, row["id"])), "created_at": row["created_at"]}
        for row in rows
    ]


@_tool()
def get_delivery_providers(world: World) -> list[Mapping[str, Any]]:
    """Who delivers, and for how much."""
    return list(PROVIDERS.values())


# Memberships


def _active(world: World, user_id: str) -> Row | None:
    """The membership that is not basic, if one is active today; those whose end is past are marked."""
    world.all(
        "UPDATE memberships SET status = 'expired', updated_at = ? "
        "WHERE user_id = ? AND status = 'active' AND end_date IS NOT NULL AND end_date < ?",
        *(world.now(), user_id, world.today),
    )
    return world.one(
        "SELECT * FROM memberships WHERE user_id = ? AND status = 'active' AND tier <> 'basic' ORDER BY created_at DESC, id",
        user_id,
    )


def _tier(world: World, user_id: str) -> str:
    active = _active(world, user_id)
    return str(active["tier"]) if active else "basic"


def _membership(world: World, membership_id: str) -> Row:
    row = world.one("SELECT * FROM memberships WHERE id = ?", membership_id)
    assert row is not None
    return row


_TIERS = ENUMS["membership_tier"]


@_tool(tier={"type": "string", "enum": list(_TIERS[1:])})
def apply_membership(world: World, user_id: str, tier: str, start_date: str, end_date: str) -> Row:
    """Make the user a silver, gold or platinum member, who may not be one already."""
    _user(world, user_id)
    tier = tier.lower()
    if tier not in _TIERS[1:]:
        raise PolicyViolationError(f"one can apply for {', '.join(_TIERS[1:])}, not for {tier!r}")
    if (active := _active(world, user_id)) is not None:
        raise PolicyViolationError(f"the user has an active {active['tier']} membership, which must be cancelled first")
    made = world.new_id()
    days = {"start_date": parsed_date(start_date), "end_date": parsed_date(end_date)}
    row = {"id": made, "user_id": user_id, "tier": tier, "status": "active", **days}
    world.database.insert("memberships", [{**row, "created_at": world.now(), "updated_at": world.now()}])
    return _membership(world, made)


def _needs_active(world: World, user_id: str) -> Row:
    _user(world, user_id)
    if (active := _active(world, user_id)) is None:
        raise PolicyViolationError("the user has no active membership but the basic one")
    return active


@_tool()
def cancel_membership(world: World, user_id: str) -> Row:
    """End the user's active membership, after which the basic tier is left."""
    active = _needs_active(world, user_id)
    world.all("UPDATE memberships SET status = 'cancelled', updated_at = ? WHERE id = ?", world.now(), active["id"])
    return _membership(world, active["id"])


@_tool()
def renew_membership(world: World, user_id: str, new_end_date: str) -> Row:
    """Let the user's active membership end on another day."""
    active, end = _needs_active(world, user_id), parsed_date(new_end_date)
    world.all("UPDATE memberships SET end_date = ?, updated_at = ? WHERE id = ?", end, world.now(), active["id"])
    return _membership(world, active["id"])


@_tool()
def get_membership_status(world: World, user_id: str) -> Row:
    """The user's tier today and what it brings."""
    _user(world, user_id)
    names = ("start_date", "end_date", "created_at", "updated_at")
    if (active := _active(world, user_id)) is None:
        active = {"id": None, "user_id": user_id, "tier": "basic", "status": "active", **dict.fromkeys(names)}
    shown = {"membership_id": active["id"], **_pick(active, "user_id", "tier", "status", *names[:2])}
    return {**shown, "benefits": BENEFITS[active["tier"]], **_pick(active, *names[2:])}


@_tool(tier={"type": "string", "enum": list(_TIERS)})
def get_membership_benefits(world: World, tier: str) -> Mapping[str, Any]:
    """What a tier brings and costs."""
    if tier.lower() not in BENEFITS:
        raise CallError(f"there is no tier {tier!r}; there are: {', '.join(BENEFITS)}")
    return BENEFITS[tier.lower()]


# Everything else


@_tool()
def get_user_details(world: World, user_id: str) -> Row:
    """Name, address, and means of payment of the user."""
    user = _user(world, user_id)
    methods = world.all("SELECT * FROM payment_methods WHERE user_id = ? ORDER BY created_at DESC, id", user_id)
    return {
        "user_id": user["id"],
        "name": f"{user['first_name']} {user['last_name']}",
        **_pick(user, "first_name", "last_name", "email", "phone", "gender"),
        "address": _pick(user, "address1", "address2", "city", "state", "country", "zip"),
        "payment_methods": [_pick(method, "id", "type") for method in methods],
        "created_at": user["created_at"],
    }


def _exist(world: World, column: str, key: str, wanted: list[str]) -> list[Row]:
    there = {name for row in world.all(f"SELECT {column} FROM menu_items") for name in row[column] or ()}
    return [{key: name.lower(), "exists": name.lower() in there} for name in wanted]


@_tool()
def does_cuisine_exist(world: World, cuisines: list[str]) -> list[Row]:
    """Whether there are dishes of these cuisines."""
    return _exist(world, "cuisines", "cuisine", cuisines)


@_tool()
def does_category_exist(world: World, categories: list[str]) -> list[Row]:
    """Whether there are dishes of these categories."""
    return _exist(world, "categories", "category", categories)


@_tool()
def get_database_schema(world: World) -> Row:
    """Tables and columns that execute_sql can read."""
    types = {"list": "TEXT[]", "json": "JSONB", "money": "NUMERIC", "timestamp": "TIMESTAMPTZ"}
    return {
        "tables": {
            table: {
                "columns": {
                    column: f"ENUM ({', '.join(ENUMS[kind])})" if kind in ENUMS else types.get(kind, kind.upper())
                    for column, kind in TABLES[table].items()
                }
            }
            for table in READABLE
        }
    }


@_tool()
def execute_sql(world: World, query: str, max_rows: int = 100) -> Row:
    """Read the tables of the service with a SELECT."""
    if not query.strip():
        raise CallError("the query is empty")
    if max_rows < 1:
        raise CallError("max_rows must be at least 1")
    columns, rows = world.database.select(query, max_rows)
    return {"columns": columns, "rows": rows, "row_count": len(rows)}
