"""What the 26 tools do: every public function is one of them, and its signature declares what models are shown of it.

Each works on a world and returns JSON values, or raises `CallError` or `PolicyViolationError`, and then nothing was changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from papers.momento.policies import (
    BENEFITS,
    CHANGEABLE,
    ENUMS,
    LEAST_MINUTES,
    MOST_MINUTES,
    PROVIDERS,
    READABLE,
    SESSIONS,
    TABLES,
    CallError,
    PolicyViolationError,
    Row,
    check_party,
    order_total,
    overlap,
    parsed_date,
    parsed_time,
    why_closed,
)
from papers.momento.world import World


def _uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise CallError(f"{text[:40]!r} is not a UUID") from None


def _shown(kind: str | list[str], **more: Any) -> WithJsonSchema:
    """What models are shown of a type. What it says of values are rules of the service, which `policies` checks."""
    return WithJsonSchema({"type": kind, **more})


_TIERS = ENUMS["membership_tier"]
_PAID = _TIERS[1:]

Uuid = Annotated[str, AfterValidator(_uuid)]
Day = Annotated[str, _shown("string", description="For example 2026-05-18")]
Time = Annotated[str, _shown("string", description="For example 19:30")]
Party = Annotated[int, _shown("integer", minimum=1)]
Minutes = Annotated[int, _shown("integer", minimum=LEAST_MINUTES, maximum=MOST_MINUTES)]
Limit = Annotated[int, Field(ge=1)]
Radius = Annotated[float, _shown("number", minimum=0.1)]
Tier = Annotated[str, AfterValidator(str.lower), _shown("string", enum=list(_TIERS))]
PaidTier = Annotated[str, AfterValidator(str.lower), _shown("string", enum=list(_PAID))]
ReservationStatus = Annotated[str, _shown("string", enum=list(ENUMS["reservation_status"]))]
OrderStatus = Annotated[str, _shown("string", enum=list(ENUMS["order_status"]))]
Fulfillment = Annotated[str, _shown("string", enum=list(ENUMS["fulfillment_type"]))]
Query = Annotated[str, _shown("string", description="One SELECT of PostgreSQL; no other statement")]
Provider = Annotated[str, _shown("string", description="The id of one of get_delivery_providers; needed for a delivery")]
Address = Annotated[str, _shown("string", description="Needed for a delivery")]
Excluded = Annotated[
    str,
    AfterValidator(lambda text: text and _uuid(text)),
    _shown("string", description="A reservation that doesn't count, because it is to be changed"),
]
Labels = Annotated[
    list[str] | str,
    _shown(
        ["array", "string"],
        items={"type": "string"},
        description="What a picture shows, looked for in names, descriptions, categories and cuisines",
    ),
]


class OrderItem(BaseModel):
    """A dish of an order."""

    model_config = ConfigDict(strict=True)

    menu_item_id: Uuid
    quantity: Annotated[int, Field(ge=1)] | None = 1
    notes: str | None = None


# Rows


def _row(world: World, table: str, row_id: str) -> Row:
    row = world.one(f"SELECT * FROM {table} WHERE id = %s", row_id)
    if row is None:
        raise CallError(f"{table.removesuffix('s').replace('_', ' ')} not found")
    return row


def _own_row(world: World, table: str, row_id: str, user_id: str, error: type[Exception] = CallError) -> Row:
    row = world.one(f"SELECT * FROM {table} WHERE id = %s AND user_id = %s", row_id, user_id)
    if row is None:
        raise error(f"the user has no such {table.removesuffix('s')}")
    return row


def _changeable_row(world: World, table: str, row_id: str, user_id: str, done: str) -> Row:
    row = _own_row(world, table, row_id, user_id, PolicyViolationError)
    if row["status"] not in CHANGEABLE[table]:
        raise PolicyViolationError(f"what is {row['status']} cannot be {done}")
    return row


def _insert(world: World, table: str, values: Row) -> Row:
    row = {"id": world.new_id(), **values}
    stamps = {name: world.now() for name in ("created_at", "updated_at") if name in TABLES[table]}
    world.database.insert(table, [row | stamps])
    return _row(world, table, row["id"])


def _update(world: World, table: str, row_id: str, **values: Any) -> Row:
    if "updated_at" in TABLES[table]:
        values["updated_at"] = world.now()
    places = ", ".join(f"{name} = %s" for name in values)
    world.all(f"UPDATE {table} SET {places} WHERE id = %s", *values.values(), row_id)
    return _row(world, table, row_id)


def _of_user(world: World, table: str, user_id: str, status: str | None, order: str) -> list[Row]:
    """The user's rows, perhaps of one status, with the names of their restaurants."""
    _row(world, "users", user_id)
    states = ENUMS[TABLES[table]["status"]]
    if status and status not in states:
        raise CallError(f"there is no status {status[:40]!r}; there are: {', '.join(states)}")
    return world.all(
        f"SELECT t.*, r.name AS restaurant_name FROM {table} t LEFT JOIN restaurants r ON r.id = t.restaurant_id "
        f"WHERE t.user_id = %s {'AND t.status = %s' if status else ''} ORDER BY {order}",
        *([user_id, status] if status else [user_id]),
    )


def _select(world: World, table: str, *filters: tuple[str, Any]) -> list[Row]:
    """Rows for which all conditions hold; one whose value was not given is left out."""
    chosen = [(condition, value) for condition, value in filters if value not in (None, "", [])]
    values = [value for condition, given in chosen for value in (given if condition.count("%s") > 1 else [given])]
    where = " AND ".join(condition for condition, _ in chosen) or "1 = 1"
    return world.all(f"SELECT * FROM {table} WHERE {where} ORDER BY name, id", *values)


def _place(world: World, row: Row) -> Row:
    """Name and address of the restaurant of a row, empty if there is none."""
    return world.one("SELECT name, address FROM restaurants WHERE id = %s", row["restaurant_id"]) or {}


def _pick(row: Row, names: str) -> Row:
    return {name: row[name] for name in names.split()}


def _dollars(value: Any) -> float | None:
    return float(value) if value else None


def _with_note(text: str | None, note: str) -> str:
    return f"{text} | {note}" if text else note


# Reservations


def _remaining(world: World, place: Row, day: Any, at: Any, minutes: int, without: str | None) -> int:
    query = "SELECT * FROM reservations WHERE restaurant_id = %s AND date = %s AND status = 'confirmed'"
    taken = sum(
        row["party_size"]
        for row in world.all(query, place["id"], day)
        if row["id"] != without and overlap(at, minutes, row["time"], row["duration_minutes"])
    )
    return max(int(place["capacity"] or 0) - int(taken), 0)


def _check_open(place: Row, day: Any, at: Any) -> None:
    if (reason := why_closed(place["opening_hours"], day, at)) is not None:
        raise PolicyViolationError(f"the restaurant is not open then: {reason}")


def _check_room(world: World, place: Row, day: Any, at: Any, party: int, minutes: int, without: str | None = None) -> None:
    if party > _remaining(world, place, day, at, minutes, without):
        raise PolicyViolationError("the restaurant has no room for so many at this time")


def check_restaurant_availability(
    world: World,
    restaurant_id: Uuid,
    date: Day,
    time: Time,
    party_size: Party,
    duration_minutes: Minutes,
    exclude_reservation_id: Excluded | None = None,
) -> Row:
    """Whether a restaurant is open and has room for a party at a time."""
    check_party(party_size, duration_minutes)
    place = _row(world, "restaurants", restaurant_id)
    day, at = parsed_date(date), parsed_time(time)
    asked = {"restaurant_id": restaurant_id, "date": date, "time": time, "party_size": party_size}
    asked["duration_minutes"] = duration_minutes
    reason = why_closed(place["opening_hours"], day, at)
    remaining = _remaining(world, place, day, at, duration_minutes, exclude_reservation_id)
    if reason is None and party_size > remaining:
        reason = "insufficient capacity"
    answer = (
        {"available": True, "remaining_capacity": remaining} if reason is None else {"available": False, "reason": reason}
    )
    return asked | answer


def create_reservation(
    world: World,
    restaurant_id: Uuid,
    user_id: str,
    date: Day,
    time: Time,
    party_size: Party,
    duration_minutes: Minutes,
    special_requests: str | None = None,
) -> Row:
    """Reserve a table."""
    check_party(party_size, duration_minutes)
    _row(world, "users", user_id)
    place = _row(world, "restaurants", restaurant_id)
    day, at = parsed_date(date), parsed_time(time)
    _check_open(place, day, at)
    tier = _tier(world, user_id)
    _check_room(world, place, day, at, party_size, duration_minutes)
    if BENEFITS[tier]["priority_reservation"]:
        special_requests = _with_note(special_requests, f"{tier} membership: priority reservation")
    row = {"user_id": user_id, "restaurant_id": restaurant_id, "date": day, "time": at, "party_size": party_size}
    row |= {"special_requests": special_requests, "duration_minutes": duration_minutes, "status": "confirmed"}
    return _insert(world, "reservations", row)


def cancel_reservation(world: World, reservation_id: Uuid, user_id: str) -> Row:
    """Cancel a confirmed reservation of the user's own."""
    _changeable_row(world, "reservations", reservation_id, user_id, "cancelled")
    return _update(world, "reservations", reservation_id, status="cancelled")


def update_reservation(
    world: World,
    reservation_id: Uuid,
    user_id: str,
    date: Day | None = None,
    time: Time | None = None,
    party_size: Party | None = None,
    duration_minutes: Minutes | None = None,
    special_requests: str | None = None,
) -> Row:
    """Change a confirmed reservation of the user's own; what isn't given stays."""
    check_party(party_size, duration_minutes)
    row = _changeable_row(world, "reservations", reservation_id, user_id, "changed")
    day, at = parsed_date(date) if date else row["date"], parsed_time(time) if time else row["time"]
    party, minutes = party_size or row["party_size"], duration_minutes or row["duration_minutes"]
    if date or time or party_size or duration_minutes:
        place = _row(world, "restaurants", row["restaurant_id"])
        _check_open(place, day, at)
        _check_room(world, place, day, at, party, minutes, reservation_id)
    moved = {"date": day, "time": at, "party_size": party, "duration_minutes": minutes}
    request = row["special_requests"] if special_requests is None else special_requests
    return _update(world, "reservations", reservation_id, **moved, special_requests=request)


def get_reservation_details(world: World, reservation_id: Uuid, user_id: str) -> Row:
    """All about a reservation of the user's own."""
    row = _own_row(world, "reservations", reservation_id, user_id)
    return row | {f"restaurant_{name}": _place(world, row).get(name) for name in ("name", "address")}


def list_user_reservations(world: World, user_id: str, status: ReservationStatus | None = None) -> list[Row]:
    """The user's reservations, the latest first; perhaps only those of one status."""
    shown = "id restaurant_id restaurant_name date time party_size duration_minutes status special_requests created_at"
    rows = _of_user(world, "reservations", user_id, status, "t.date DESC, t.time DESC, t.id DESC")
    return [_pick(row, shown) for row in rows]


# Restaurants and menus


def search_restaurants(
    world: World,
    name: str | None = None,
    city: str | None = None,
    country: str | None = None,
    cuisines: list[str] | None = None,
    amenities: list[str] | None = None,
    restaurant_ids: list[Uuid] | None = None,
    min_price: int | None = None,
    max_price: int | None = None,
    latitude: float | None = None,
    longitude: float | None = None,
    radius_km: Radius | None = None,
    limit: Limit | None = None,
) -> list[Row]:
    """Find restaurants by anything that is known of them, for example any of the cuisines and all of the amenities."""
    given = (name, city, country, cuisines, amenities, restaurant_ids, min_price, max_price, latitude, longitude, radius_km)
    if all(value is None for value in given):
        raise PolicyViolationError("say at least one thing to search for")
    rows = _select(
        world,
        "restaurants",
        ("id = ANY(%s::uuid[])", restaurant_ids),
        ("name ILIKE %s", name and f"%{name}%"),
        ("city ILIKE %s", city and f"%{city}%"),
        ("country ILIKE %s", country and f"%{country}%"),
        ("cuisines && %s", cuisines),
        ("amenities @> %s", amenities),
        ("price_range_lower >= %s", min_price),
        ("price_range_upper <= %s", max_price),
    )
    shown = "id name description address city country cuisines price_range_lower price_range_upper amenities"
    shown += " opening_hours capacity image_url"
    if latitude is None or longitude is None or radius_km is None:
        return [_pick(row, shown) for row in rows[:limit]]
    away = [(_kilometres(latitude, longitude, row["lat"], row["lon"]), row) for row in rows]
    near = sorted(((far, row) for far, row in away if far <= radius_km), key=lambda pair: pair[0])
    return [_pick(row, shown) | {"distance_km": round(far, 2)} for far, row in near[:limit]]


def _kilometres(latitude: float, longitude: float, lat: float | None, lon: float | None) -> float:
    if lat is None or lon is None:
        return math.inf
    first, second, apart = math.radians(latitude), math.radians(lat), math.radians(lon - longitude)
    cosine = math.cos(first) * math.cos(second) * math.cos(apart) + math.sin(first) * math.sin(second)
    return 6371 * math.acos(max(-1.0, min(1.0, cosine)))


def get_restaurant_details(world: World, restaurant_id: Uuid) -> Row:
    """All about a restaurant but its menu."""
    return _row(world, "restaurants", restaurant_id)


def _dish(row: Row, ids: str = "id restaurant_id") -> Row:
    return _pick(row, f"{ids} name description categories cuisines image_url") | {"price": _dollars(row["price"])}


def list_restaurant_menu(world: World, restaurant_id: Uuid) -> list[Row]:
    """The menu of a restaurant."""
    _row(world, "restaurants", restaurant_id)
    return [_dish(row, "id") for row in _select(world, "menu_items", ("restaurant_id = %s", restaurant_id))]


def query_menu_items(
    world: World,
    name: str | None = None,
    categories: list[str] | None = None,
    cuisines: list[str] | None = None,
    restaurant_ids: list[Uuid] | None = None,
    image_labels: Labels | None = None,
    limit: Limit | None = None,
) -> list[Row]:
    """Find dishes of all restaurants by name, category, cuisine or what a picture shows."""
    if all(value is None for value in (name, categories, cuisines, restaurant_ids, image_labels)):
        raise PolicyViolationError("say at least one thing to search for")
    labels = [image_labels] if isinstance(image_labels, str) else image_labels or []
    words = [f"%{label}%" for label in labels]
    pictured = "name ILIKE ANY(%s) OR description ILIKE ANY(%s) OR categories && %s OR cuisines && %s"
    rows = _select(
        world,
        "menu_items",
        ("restaurant_id = ANY(%s::uuid[])", restaurant_ids),
        ("name ILIKE %s", name and f"%{name}%"),
        ("categories && %s", categories),
        ("cuisines && %s", cuisines),
        (f"({pictured})", labels and [words, words, labels, labels]),
    )
    return [_dish(row) for row in rows[:limit]]


def get_menu_item_details(world: World, menu_item_id: Uuid) -> Row:
    """All about a dish."""
    row = _row(world, "menu_items", menu_item_id)
    return _dish(row) | {"restaurant_name": _place(world, row).get("name")}


# Orders


def create_order(
    world: World,
    user_id: str,
    restaurant_id: Uuid,
    items: list[OrderItem],
    fulfillment: Fulfillment,
    delivery_provider: Provider | None = None,
    delivery_address: Address | None = None,
    special_instructions: str | None = None,
) -> Row:
    """Order dishes of one restaurant, to be picked up or delivered."""
    _row(world, "users", user_id)
    _row(world, "restaurants", restaurant_id)
    if fulfillment not in ENUMS["fulfillment_type"]:
        raise PolicyViolationError("fulfillment must be pickup or delivery")
    delivered = fulfillment == "delivery"
    if delivered and not (delivery_provider and delivery_address):
        raise PolicyViolationError("a delivery needs a delivery_provider and a delivery_address")
    if delivery_provider is not None and delivery_provider not in PROVIDERS:
        raise PolicyViolationError(
            f"there is no delivery provider {delivery_provider[:40]!r}; get_delivery_providers has all"
        )
    if not items:
        raise CallError("an order needs at least one item")
    dishes = [_ordered(world, item, restaurant_id) for item in items]
    tier = _tier(world, user_id)
    delivery = PROVIDERS[delivery_provider]["delivery_price"] if delivered and delivery_provider else None
    total, discount = order_total([(dish["price"], dish["quantity"]) for dish in dishes], tier, delivery)
    if discount_pct := BENEFITS[tier]["order_discount_pct"]:
        special_instructions = _with_note(
            special_instructions, f"{tier} membership discount: {discount_pct}% (-${discount})"
        )
    if delivered and BENEFITS[tier]["free_delivery"]:
        special_instructions = _with_note(special_instructions, f"{tier} membership: free delivery")
    row: Row = {"user_id": user_id, "restaurant_id": restaurant_id, "fulfillment": fulfillment, "status": "created"}
    row |= {"total_price": total, "currency": "USD", "delivery_provider_name": delivery_provider}
    row |= {"delivery_address": delivery_address, "special_instructions": special_instructions}
    order = _insert(world, "orders", row)
    for dish in dishes:
        _insert(world, "order_items", dish | {"order_id": order["id"]})
    return order | {"items": _items(world, order)}


def _ordered(world: World, item: OrderItem, restaurant_id: str) -> Row:
    row = _row(world, "menu_items", item.menu_item_id)
    if row["restaurant_id"] != restaurant_id:
        raise PolicyViolationError(f"menu item {row['id']} is not of this restaurant; an order is from one restaurant")
    dish = {"menu_item_id": row["id"], "name": row["name"], "price": float(row["price"] or 0)}
    return {**dish, "quantity": item.quantity or 1, "notes": item.notes}


def _items(world: World, order: Row) -> list[Row]:
    return world.all("SELECT * FROM order_items WHERE order_id = %s ORDER BY name, menu_item_id, id", order["id"])


def cancel_order(world: World, order_id: Uuid, user_id: str) -> Row:
    """Cancel an order of the user's own that is created or confirmed."""
    _changeable_row(world, "orders", order_id, user_id, "cancelled")
    order = _update(world, "orders", order_id, status="cancelled")
    return order | {"items": _items(world, order)}


def get_order_details(world: World, order_id: Uuid, user_id: str) -> Row:
    """All about an order of the user's own."""
    row = _own_row(world, "orders", order_id, user_id)
    shown = "id menu_item_id name price quantity notes"
    items = [_pick(item, shown) | {"price": _dollars(item["price"])} for item in _items(world, row)]
    named = {"restaurant_name": _place(world, row).get("name"), "total_price": _dollars(row["total_price"])}
    return row | named | {"items": items}


def list_user_orders(world: World, user_id: str, status: OrderStatus | None = None) -> list[Row]:
    """The user's orders, the newest first; perhaps only those of one status."""
    shown = "id restaurant_id restaurant_name fulfillment status total_price currency delivery_provider_name created_at"
    return [
        _pick(row, shown) | {"total_price": _dollars(row["total_price"]), "item_count": len(_items(world, row))}
        for row in _of_user(world, "orders", user_id, status, "t.created_at DESC, t.id DESC")
    ]


def get_delivery_providers(world: World) -> list[Mapping[str, Any]]:
    """Who delivers, and for how much."""
    return list(PROVIDERS.values())


# Memberships


def _active(world: World, user_id: str) -> Row | None:
    """The membership that is not basic, if one is active today; those whose end is past are marked."""
    world.all(
        "UPDATE memberships SET status = 'expired', updated_at = %s "
        "WHERE user_id = %s AND status = 'active' AND end_date IS NOT NULL AND end_date < %s",
        *(world.now(), user_id, world.today),
    )
    return world.one(
        "SELECT * FROM memberships WHERE user_id = %s AND status = 'active' AND tier <> 'basic' "
        "ORDER BY created_at DESC, id",
        user_id,
    )


def _tier(world: World, user_id: str) -> str:
    active = _active(world, user_id)
    return str(active["tier"]) if active else "basic"


def _needs_active(world: World, user_id: str) -> str:
    _row(world, "users", user_id)
    if (active := _active(world, user_id)) is None:
        raise PolicyViolationError("the user has no active membership but the basic one")
    return str(active["id"])


def apply_membership(world: World, user_id: str, tier: PaidTier, start_date: Day, end_date: Day) -> Row:
    """Make the user a silver, gold or platinum member, who may not be one already."""
    _row(world, "users", user_id)
    if tier not in _PAID:
        raise PolicyViolationError(f"one can apply for {', '.join(_PAID)}, not for {tier[:40]!r}")
    if (active := _active(world, user_id)) is not None:
        raise PolicyViolationError(f"the user has an active {active['tier']} membership, which must be cancelled first")
    row = {"user_id": user_id, "tier": tier, "status": "active"}
    return _insert(world, "memberships", row | {"start_date": parsed_date(start_date), "end_date": parsed_date(end_date)})


def cancel_membership(world: World, user_id: str) -> Row:
    """End the user's active membership, after which the basic tier is left."""
    return _update(world, "memberships", _needs_active(world, user_id), status="cancelled")


def renew_membership(world: World, user_id: str, new_end_date: Day) -> Row:
    """Let the user's active membership end on another day."""
    return _update(world, "memberships", _needs_active(world, user_id), end_date=parsed_date(new_end_date))


def get_membership_status(world: World, user_id: str) -> Row:
    """The user's tier today and what it brings."""
    _row(world, "users", user_id)
    basic = {**dict.fromkeys(TABLES["memberships"]), "user_id": user_id, "tier": "basic", "status": "active"}
    active: Row = _active(world, user_id) or basic
    shown = _pick(active, "user_id tier status start_date end_date created_at updated_at")
    return {"membership_id": active["id"], **shown, "benefits": BENEFITS[active["tier"]]}


def get_membership_benefits(world: World, tier: Tier) -> Mapping[str, Any]:
    """What a tier brings and costs."""
    if tier not in BENEFITS:
        raise CallError(f"there is no tier {tier[:40]!r}; there are: {', '.join(BENEFITS)}")
    return BENEFITS[tier]


# Everything else


def get_user_details(world: World, user_id: str) -> Row:
    """Name, address, and means of payment of the user."""
    user = _row(world, "users", user_id)
    methods = world.all("SELECT * FROM payment_methods WHERE user_id = %s ORDER BY created_at DESC, id", user_id)
    return {
        "user_id": user["id"],
        "name": f"{user['first_name']} {user['last_name']}",
        **_pick(user, "first_name last_name email phone gender"),
        "address": _pick(user, "address1 address2 city state country zip"),
        "payment_methods": [_pick(method, "id type") for method in methods],
        "created_at": user["created_at"],
    }


def _exist(world: World, column: str, key: str, wanted: list[str]) -> list[Row]:
    there = {name for row in world.all(f"SELECT {column} FROM menu_items") for name in row[column] or ()}
    return [{key: name.lower(), "exists": name.lower() in there} for name in wanted]


def does_cuisine_exist(world: World, cuisines: list[str]) -> list[Row]:
    """Whether there are dishes of these cuisines."""
    return _exist(world, "cuisines", "cuisine", cuisines)


def does_category_exist(world: World, categories: list[str]) -> list[Row]:
    """Whether there are dishes of these categories."""
    return _exist(world, "categories", "category", categories)


def get_database_schema(world: World) -> Row:
    """Tables and columns that execute_sql can read."""
    types = {"list": "TEXT[]", "json": "JSONB", "money": "NUMERIC", "timestamp": "TIMESTAMPTZ"}
    types |= {kind: f"ENUM ({', '.join(values)})" for kind, values in ENUMS.items()}
    shown = (*READABLE, SESSIONS) if world.sessions_of is not None else READABLE
    columns = {table: {column: types.get(kind, kind.upper()) for column, kind in TABLES[table].items()} for table in shown}
    return {"tables": {table: {"columns": of} for table, of in columns.items()}}


def execute_sql(world: World, query: Query, max_rows: int = 100) -> Row:
    """Read the tables of the service with a SELECT."""
    if not query.strip():
        raise CallError("the query is empty")
    if max_rows < 1:
        raise CallError("max_rows must be at least 1")
    columns, rows = world.database.select(query, max_rows, world.sessions_of)
    return {"columns": columns, "rows": rows, "row_count": len(rows)}
