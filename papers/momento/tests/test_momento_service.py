"""The service: every tool, signatures, policies, hashes, refusals."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
import pytest
from momento_cases import (
    DISHES,
    MARA,
    OREN,
    OTHER_DISH,
    PLACE,
    SEED,
    TODAY,
    membership_row,
    new_id,
    order_row,
    reservation_row,
    reset,
)

from deltamem.errors import DeltaMemError
from eval.data import data_folders
from papers.momento.tools import ERROR, TOOLS, VIOLATION, call, failed
from papers.momento.world import HASHES, World, read_catalogue, state_hashes


def published_signatures() -> dict[str, Any]:
    for folder in data_folders():
        path = folder / "momento" / "momento_tool_signatures.json"
        if path.is_file():
            return {tool["name"]: tool for tool in json.loads(path.read_bytes())}
    pytest.skip("the published signatures are not here")


def without_descriptions(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: without_descriptions(value) for key, value in schema.items() if key != "description"}
    return schema


def test_all_26_signatures_are_the_published_ones() -> None:
    published = published_signatures()
    assert len(published) == 26
    shown = {name: without_descriptions(tool.schema()["function"]["parameters"]) for name, tool in TOOLS.items()}
    assert shown == {
        name: {"type": "object", "required": tool["required"], "properties": tool["properties"]}
        for name, tool in published.items()
    }


TABLE = {"restaurant_id": PLACE["id"], "user_id": MARA, "date": "2026-05-21", "time": "19:00", "party_size": 2}
RESERVE = TABLE | {"duration_minutes": 60}
ASKED = {key: value for key, value in RESERVE.items() if key != "user_id"}
ORDER: dict[str, Any] = {"user_id": MARA, "restaurant_id": PLACE["id"], "fulfillment": "pickup"}
ORDER["items"] = [{"menu_item_id": DISHES[0]["id"]}]
DELIVERY = ORDER | {"fulfillment": "delivery", "delivery_provider": "quickdish", "delivery_address": "1 Elm Road"}
SOON, PAST = ({"reservation_id": new_id("reservation", name), "user_id": MARA} for name in ("soon", "past"))
MADE, GONE = ({"order_id": new_id("order", name), "user_id": MARA} for name in ("made", "gone"))
YEAR, LATER = {"tier": "gold", "start_date": "2026-05-18", "end_date": "2027-05-18"}, {"new_end_date": "2028-01-01"}

POLICIES = [  # what keeps a rule, what breaks it
    ("party of at least one", "create_reservation", RESERVE, RESERVE | {"party_size": 0}),
    ("at least 30 minutes", "create_reservation", RESERVE | {"duration_minutes": 30}, RESERVE | {"duration_minutes": 29}),
    ("at most 120 minutes", "update_reservation", SOON | {"duration_minutes": 120}, SOON | {"duration_minutes": 121}),
    ("opening hours", "create_reservation", RESERVE | {"time": "11:00"}, RESERVE | {"time": "10:59"}),
    ("capacity", "create_reservation", RESERVE | {"party_size": PLACE["capacity"]}, RESERVE | {"party_size": 61}),
    ("room when moved", "update_reservation", SOON | {"party_size": 5}, SOON | {"party_size": 61}),
    ("confirmed to be changed", "update_reservation", SOON | {"time": "20:00"}, PAST | {"time": "20:00"}),
    ("confirmed to be cancelled", "cancel_reservation", SOON, PAST),
    ("one's own reservation", "cancel_reservation", SOON, SOON | {"user_id": OREN}),
    ("one's own order", "cancel_order", MADE, MADE | {"user_id": OREN}),
    ("order not yet prepared", "cancel_order", MADE, GONE),
    ("how it is handed over", "create_order", ORDER, ORDER | {"fulfillment": "catapult"}),
    ("provider of a delivery", "create_order", DELIVERY, {**DELIVERY, "delivery_provider": None}),
    ("known provider", "create_order", DELIVERY, DELIVERY | {"delivery_provider": "pigeon"}),
    ("provider by its id", "create_order", DELIVERY, DELIVERY | {"delivery_provider": "QuickDish"}),
    ("address of a delivery", "create_order", DELIVERY, {**DELIVERY, "delivery_address": None}),
    ("one restaurant", "create_order", ORDER, ORDER | {"items": [*ORDER["items"], {"menu_item_id": OTHER_DISH["id"]}]}),
    ("one membership at a time", "apply_membership", YEAR | {"user_id": OREN}, YEAR | {"user_id": MARA}),
    ("no basic membership", "apply_membership", YEAR | {"user_id": OREN}, YEAR | {"user_id": OREN, "tier": "basic"}),
    ("a membership to cancel", "cancel_membership", {"user_id": MARA}, {"user_id": OREN}),
    ("a membership to renew", "renew_membership", LATER | {"user_id": MARA}, LATER | {"user_id": OREN}),
    ("something to search for", "search_restaurants", {"city": "Lindau"}, {"limit": 3}),
    ("some dish to search for", "query_menu_items", {"name": "a"}, {"limit": 3}),
    ("one's own to change", "update_reservation", SOON | {"party_size": 2}, SOON | {"party_size": 2, "user_id": OREN}),
    ("at most 120 minutes to ask for", "check_restaurant_availability", ASKED, ASKED | {"duration_minutes": 121}),
    ("reading only", "execute_sql", {"query": "SELECT 1 AS one"}, {"query": "DELETE FROM orders"}),
]


@pytest.mark.parametrize(("name", "tool", "keeps", "breaks"), POLICIES, ids=[policy[0] for policy in POLICIES])
def test_each_policy_has_a_case_on_either_side(
    world: World, name: str, tool: str, keeps: dict[str, Any], breaks: dict[str, Any]
) -> None:
    before = world.hashes(MARA)
    refused = call(world, tool, breaks)
    assert refused.startswith(VIOLATION), refused
    assert world.hashes(MARA) == before
    done = call(world, tool, keeps)
    assert not failed(done), done


HERS = {"user_id": MARA}
READS: dict[str, dict[str, Any]] = {
    "get_reservation_details": SOON,
    "list_user_reservations": HERS | {"status": "confirmed"},
    "search_restaurants": {
        **{"name": "o", "city": "lindau", "country": "norvia", "cuisines": ["italian", "greek"], "amenities": ["wifi"]},
        **{"restaurant_ids": [PLACE["id"]], "min_price": 5, "max_price": 40, "latitude": 47.5, "longitude": 9.7},
        **{"radius_km": 500.0, "limit": 5},
    },
    "get_restaurant_details": {"restaurant_id": PLACE["id"]},
    "list_restaurant_menu": {"restaurant_id": PLACE["id"]},
    "query_menu_items": {
        **{"name": "a", "categories": ["main"], "cuisines": ["thai"], "restaurant_ids": [PLACE["id"]]},
        **{"image_labels": ["soup", "starter"], "limit": 5},
    },
    "get_menu_item_details": {"menu_item_id": DISHES[0]["id"]},
    "get_order_details": MADE,
    "list_user_orders": HERS | {"status": "created"},
    "get_delivery_providers": {},
    "get_membership_status": HERS,
    "get_membership_benefits": {"tier": "Gold"},
    "get_user_details": HERS,
    "does_cuisine_exist": {"cuisines": ["Thai"]},
    "does_category_exist": {"categories": ["pie"]},
    "get_database_schema": {},
}
GARBAGE: list[Any] = [None, "x", 10**12, [], {"a": 1}, new_id("nothing")]


def test_calls_that_fail_change_nothing_and_every_tool_can_be_used(world: World) -> None:
    """Every tool with garbage in the place of each of its arguments, then with the right ones."""

    def fresh() -> list[dict[str, str]]:
        call(reset(world), "get_membership_status", {"user_id": OREN})  # whose membership is over, which is noted once
        return [world.hashes(user) for user in (MARA, OREN)]

    right = {tool: keeps for _, tool, keeps, _ in POLICIES} | READS
    assert set(right) == set(TOOLS)
    for number, (tool, arguments) in enumerate(right.items()):
        before = fresh()
        for place, name in enumerate(arguments):
            given = arguments | {name: GARBAGE[(number + place) % len(GARBAGE)]}
            if failed(call(world, tool, given)) or tool in READS:
                assert [world.hashes(user) for user in (MARA, OREN)] == before, (tool, given)
            else:
                fresh()
        assert failed(call(world, tool, arguments | {"colour": "red"}))
        assert json.loads(call(world, tool, arguments)) is not None


@pytest.fixture
def added(world: World) -> Iterator[Callable[[str, dict[str, Any]], str]]:
    """Adds a row to the catalogue for one test, and gives its id."""
    made = []

    def add(table: str, row: dict[str, Any]) -> str:
        made.append((table, new_id(table, len(made))))
        world.database.insert(table, [row | {"id": made[-1][1]}])
        return made[-1][1]

    yield add
    for table, row_id in made:
        world.all(f"DELETE FROM {table} WHERE id = %s", row_id)


@pytest.mark.parametrize(
    ("tier", "delivered", "prices", "total", "notes"),
    [
        ("basic", False, [10.0, 10.0], 20.0, ""),
        ("silver", False, [10.0, 10.0], 19.0, "5%"),
        ("gold", True, [10.0, 10.0], 19.99, "10%"),
        ("platinum", True, [10.0, 10.0], 17.0, "free delivery"),
        ("platinum", False, [10.0, 10.0], 17.0, "15%"),
        # Half cents as binary floating point has them; schoolbook rounding gives 0.94, 1.12 and 1.42.
        ("gold", False, [1.05], 0.95, "-$0.1)"),
        ("gold", False, [1.25], 1.13, "-$0.12)"),
        ("silver", False, [1.5], 1.43, "-$0.07)"),
        ("gold", False, [8.95, 21.16, 5.27, 28.27], 57.29, "10%"),  # Python 3.12's sum makes 57.28 of it
    ],
)
def test_what_an_order_costs_by_tier(
    world: World,
    added: Callable[[str, dict[str, Any]], str],
    tier: str,
    delivered: bool,
    prices: list[float],
    total: float,
    notes: str,
) -> None:
    dishes = [added("menu_items", {**DISHES[0], "price": price}) for price in prices]
    world.reset(TODAY, {"memberships": [membership_row("m", tier)]} if tier != "basic" else {})
    asked = (DELIVERY if delivered else ORDER) | {"items": [{"menu_item_id": one} for one in dishes]}
    order = json.loads(call(world, "create_order", asked))
    assert float(order["total_price"]) == total
    assert notes in (order["special_instructions"] or "")
    reserved = json.loads(call(world, "create_reservation", RESERVE))
    assert ("priority" in (reserved["special_requests"] or "")) is (tier in ("gold", "platinum"))


@pytest.mark.parametrize(
    ("hours", "taken"),
    [
        ("18:00-02:00", []),  # as in the benchmark hours past midnight are never open
        ("11:00-14:00, 18:00-22:00", ["11:00", "13:59", "14:00", "18:00", "22:00"]),
        ("Closed", []),
        ("", []),
        (None, []),
        ("00:00-23:59", ["00:00", "01:30", "11:00", "13:59", "14:00", "16:00", "18:00", "22:00", "22:01", "23:59"]),
    ],
)
def test_opening_hours(
    world: World, added: Callable[[str, dict[str, Any]], str], hours: str | None, taken: list[str]
) -> None:
    place = added("restaurants", {**PLACE, "opening_hours": hours if hours is None else {"Thursday": hours}})
    asked = ASKED | {"restaurant_id": place}
    times = ["00:00", "01:30", "11:00", "13:59", "14:00", "16:00", "18:00", "22:00", "22:01", "23:59"]
    world.reset(TODAY, {})
    answers = {at: json.loads(call(world, "check_restaurant_availability", asked | {"time": at})) for at in times}
    assert [at for at, answer in answers.items() if answer["available"]] == taken
    friday = json.loads(call(world, "check_restaurant_availability", asked | {"date": "2026-05-22"}))
    assert not friday["available"]
    for at in times:
        made = call(world, "create_reservation", asked | {"time": at, "party_size": 1, "user_id": MARA})
        assert made.startswith(VIOLATION) is (at not in taken), made


def test_the_last_seat_is_given_and_none_after_it(world: World) -> None:
    half = PLACE["capacity"] // 2
    others = [
        reservation_row("before", user=OREN, party_size=half, date="2026-05-21", time="18:00", duration_minutes=90),
        reservation_row("after", user=OREN, party_size=2, date="2026-05-21", time="19:45", duration_minutes=30),
        reservation_row("gone", "cancelled", user=OREN, party_size=half, date="2026-05-21", time="19:00"),
        reservation_row("elsewhere", user=OREN, party_size=half, date="2026-05-22", time="19:00"),
    ]
    world.reset(TODAY, {"reservations": others})
    whole, left = PLACE["capacity"], PLACE["capacity"] - half - 2
    cases = {"17:00": whole, "17:01": whole - half, "18:45": whole - half, "18:46": left, "19:30": whole - 2, "20:15": whole}
    for at, free in cases.items():
        answer = json.loads(call(world, "check_restaurant_availability", ASKED | {"time": at}))
        assert answer["remaining_capacity"] == free, at
    without = ASKED | {"exclude_reservation_id": others[0]["id"]}
    assert json.loads(call(world, "check_restaurant_availability", without))["remaining_capacity"] == whole - 2
    assert call(world, "create_reservation", RESERVE | {"party_size": left + 1}).startswith(VIOLATION)
    mine = json.loads(call(world, "create_reservation", RESERVE | {"party_size": left}))
    assert call(world, "create_reservation", RESERVE | {"party_size": 1}).startswith(VIOLATION)
    own = {"reservation_id": mine["id"], "user_id": MARA}
    assert not failed(call(world, "update_reservation", own | {"time": "19:15"}))  # its own seats do not count against it
    assert call(world, "update_reservation", own | {"party_size": left + 1}).startswith(VIOLATION)
    assert not failed(call(world, "create_reservation", RESERVE | {"time": "20:15", "party_size": left}))


def test_nothing_is_cancelled_twice(world: World) -> None:
    for tool, own in (("cancel_reservation", SOON), ("cancel_order", MADE), ("cancel_membership", {"user_id": MARA})):
        assert not failed(call(world, tool, own))
        before = world.hashes(MARA)
        assert call(world, tool, own).startswith(VIOLATION)
        assert world.hashes(MARA) == before


def test_rows_of_other_users_are_not_there(world: World) -> None:
    his = {"reservation_id": new_id("reservation", "his")}, {"order_id": new_id("order", "his")}
    for tool, named in zip(("get_reservation_details", "get_order_details"), his, strict=True):
        assert call(world, tool, named | {"user_id": MARA}).startswith(ERROR)
        assert not failed(call(world, tool, named | {"user_id": OREN}))
    for tool, kind in (("list_user_reservations", "reservation"), ("list_user_orders", "order")):
        assert new_id(kind, "his") not in call(world, tool, {"user_id": MARA})


def test_a_membership_ends_by_the_date_of_the_trial(world: World) -> None:
    over = {"memberships": [membership_row("m", "gold", end_date="2026-05-17")]}
    for today, tier in ((date(2026, 5, 17), "gold"), (date(2026, 5, 18), "basic")):
        world.reset(today, over)
        assert json.loads(call(world, "get_membership_status", {"user_id": MARA}))["tier"] == tier
    # That it is over stays noted although the call is refused.
    world.reset(date(2026, 5, 18), over)
    assert call(world, "cancel_membership", {"user_id": MARA}).startswith(VIOLATION)
    assert world.state(MARA)["memberships"][0]["status"] == "expired"


def test_a_membership_counts_before_it_begins(world: World) -> None:
    """As in the benchmark, which looks at the end only: also a second one is refused."""
    world.reset(TODAY, {"memberships": [membership_row("m", "silver", start_date="2027-01-01", end_date="2027-12-31")]})
    assert json.loads(call(world, "get_membership_status", {"user_id": MARA}))["tier"] == "silver"
    assert "5%" in json.loads(call(world, "create_order", ORDER))["special_instructions"]
    again = {"user_id": MARA, "tier": "gold", "start_date": "2026-05-18", "end_date": "2026-06-18"}
    assert call(world, "apply_membership", again).startswith(VIOLATION)
    # One that ends before it begins is over at once.
    world.reset(TODAY, {})
    assert not failed(call(world, "apply_membership", again | {"end_date": "2026-05-17"}))
    assert json.loads(call(world, "get_membership_status", {"user_id": MARA}))["tier"] == "basic"
    assert not failed(call(world, "apply_membership", again))


def test_a_reset_is_whole(world: World) -> None:
    before = world.hashes(MARA)
    call(world, "create_order", ORDER)
    assert world.hashes(MARA) != before
    with pytest.raises(DeltaMemError, match="invalid input value for enum"):
        world.reset(TODAY, {"orders": [order_row("new", "lost")]})
    with pytest.raises(DeltaMemError, match="invalid input value for enum"):
        world.reset(date(2031, 2, 3), {"orders": [order_row("new", "lost")]})
    assert world.hashes(MARA) != before and world.today == TODAY  # nothing of the refused resets happened
    assert reset(world).hashes(MARA) == before


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("reservations", reservation_row("new", party_size=4.5)),
        ("reservations", reservation_row("new", special_requests=5)),
        ("reservations", reservation_row("new", date="today")),
        ("reservations", reservation_row("new", time=19)),
        ("orders", order_row("new", "created", currency=False)),
        ("orders", order_row("new", "created", total_price=float("nan"))),
        ("orders", order_row("new", "created", total_price=2**31)),
        ("orders", order_row("new", "created", created_at=20260501)),
        ("memberships", membership_row("new", "gold", status=True)),
        ("menu_items", dict(DISHES[0]) | {"id": new_id("new"), "cuisines": [5]}),
    ],
)
def test_a_row_of_other_types_is_refused_and_not_cast(world: World, table: str, row: dict[str, Any]) -> None:
    before = world.all(f"SELECT * FROM {table}")
    with pytest.raises(DeltaMemError, match=rf"^a row of {table} cannot be stored: the \w+ .* is not of the type \w+$"):
        world.database.insert(table, [row])
    assert world.all(f"SELECT * FROM {table}") == before


def test_what_was_wrong_changes_nothing(world: World) -> None:
    before = world.hashes(MARA)
    for arguments in (
        ORDER | {"items": [*ORDER["items"], {"menu_item_id": new_id("none")}]},
        ORDER | {"items": "one curry"},
        ORDER | {"items": [{"menu_item_id": DISHES[0]["id"], "quantity": 10**12}]},
        ORDER | {"items": [{"menu_item_id": DISHES[0]["id"], "quantity": 2**31 - 1}]},
        ORDER | {"items": [{"menu_item_id": DISHES[0]["id"], "quantity": 0}]},
        ORDER | {"items": []},
        ORDER | {"special_instructions": "a\0b"},
        ORDER | {"special_instructions": "\ud800"},
        {},
    ):
        assert call(world, "create_order", arguments).startswith(ERROR)
    for day in ("2026-02-30", "2026-13-01", "0000-01-01", "", "18.05.2026", "2026-05-21T19:00"):
        assert call(world, "create_reservation", RESERVE | {"date": day}).startswith(ERROR), day
        assert call(world, "renew_membership", {"user_id": MARA, "new_end_date": day}).startswith(ERROR), day
    for at in ("24:00", "19:00:00", "7pm", "", "25:10", "-1:00"):
        assert call(world, "create_reservation", RESERVE | {"time": at}).startswith(ERROR), at
    assert call(world, "burn_restaurant", {}).startswith(ERROR)
    for query, most in ((" ", 5), ("SELECT 1 AS x", 0)):
        assert call(world, "execute_sql", {"query": query, "max_rows": most}).startswith(ERROR)
    assert world.hashes(MARA) == before


HOSTILE: list[tuple[str, dict[str, Any]]] = [
    ("search_restaurants", {"name": "\\"}),
    ("search_restaurants", {"restaurant_ids": [PLACE["id"]] * 3000}),
    ("search_restaurants", {"latitude": float("nan"), "longitude": 1, "radius_km": 5}),
    ("search_restaurants", {"min_price": 10**400}),
    ("search_restaurants", {"cuisines": ['{"}']}),
    ("query_menu_items", {"image_labels": [f"soup{number}" for number in range(1500)]}),
    ("create_order", ORDER | {"items": [{"menu_item_id": DISHES[0]["id"], "quantity": -1}]}),
    ("get_user_details", {"user_id": MARA, "\ud800": 1}),
]


def test_hostile_arguments_are_answered(world: World) -> None:
    for tool, arguments in HOSTILE:
        result = call(world, tool, arguments)
        assert result.encode() and (failed(result) or json.loads(result) is not None), tool


def test_times_of_other_zones_are_stored_in_utc(world: World) -> None:
    world.reset(TODAY, {"orders": [order_row("east", "created", created_at="2026-05-01T10:00:00+05:00")]})
    (order,) = json.loads(call(world, "list_user_orders", {"user_id": MARA}))
    assert order["created_at"] == "2026-05-01 05:00:00+00:00"


def test_hashes_agree_with_an_independent_computation(world: World) -> None:
    """By PostgreSQL's own sorting of its own types, as the benchmark has it."""
    queries = {
        "orders_hashed": "SELECT user_id, restaurant_id, fulfillment, status, total_price, currency, delivery_provider_name "
        "FROM orders WHERE user_id = %s ORDER BY restaurant_id, fulfillment, status, total_price, created_at",
        "reservations_hashed": "SELECT user_id, restaurant_id, date, time, party_size, duration_minutes, status "
        "FROM reservations WHERE user_id = %s ORDER BY restaurant_id, date, time, party_size, status",
        "order_items_hashed": "SELECT i.menu_item_id, i.name, i.price, i.quantity FROM order_items i JOIN orders o "
        "ON i.order_id = o.id WHERE o.user_id = %s ORDER BY i.menu_item_id, i.name, i.quantity, o.created_at",
        "memberships_hashed": "SELECT user_id, tier, status, start_date, end_date "
        "FROM memberships WHERE user_id = %s ORDER BY tier, status, start_date",
    }
    extra = {
        "orders": [
            *SEED["orders"],
            *(order_row(f"o{n}", status, total_price=n) for n, status in enumerate(("ready", "created"))),
        ]
    }
    world.reset(TODAY, SEED | extra)
    call(world, "create_order", DELIVERY)
    call(world, "create_reservation", RESERVE)
    for user in (MARA, OREN):
        expected = {}
        for name, query in queries.items():
            text = ""
            for row in world.all(query, user):
                text += json.dumps({key: row[key] for key in sorted(row)}, default=lambda value: str(value))
            expected[name] = hashlib.md5(text.encode()).hexdigest()
        assert world.hashes(user) == expected
        assert tuple(expected) == HASHES
    assert state_hashes({"orders": []}) == {"orders_hashed": hashlib.md5(b"").hexdigest()}


def test_rows_that_are_none_are_refused(world: World) -> None:
    for row, said in (
        ({"id": None}, "null value"),
        ({"party_size": "four"}, "type integer"),
        ({"party_size": True}, "type integer"),
        ({"party_size": 10**30}, "type integer"),
        ({"date": "soon"}, "type date"),
        ({"created_at": 5}, "type timestamp"),
        ({"special_requests": "a\0b"}, "NUL"),
        ({"special_requests": "\ud800"}, "surrogates"),
    ):
        with pytest.raises(DeltaMemError, match=said):
            world.reset(TODAY, {"reservations": [reservation_row("new") | row]})
    with pytest.raises(DeltaMemError, match="duplicate key"):
        world.reset(TODAY, {"reservations": [reservation_row("new"), reservation_row("new")]})


def test_the_published_world_is_read(tmp_path: Path, world: World) -> None:
    """Users and restaurants of the published files; the menus, which are not at hand, are made up."""
    folder = next((one / "momento" for one in data_folders() if (one / "momento" / "restaurants.json").is_file()), None)
    if folder is None:
        pytest.skip("the published restaurants are not here")
    for name in ("restaurants.json", "users.json"):
        shutil.copy(folder / name, tmp_path)
    with pytest.raises(DeltaMemError, match=r"restaurant_menus\.json"):
        read_catalogue(tmp_path)
    place = json.loads((tmp_path / "restaurants.json").read_bytes())[0]
    dish = {
        "id": new_id("made up"),
        "restaurant_id": place["id"],
        "name": "Pie",
        "cuisines": ["Thai"],
        "categories": ["main"],
    }
    (tmp_path / "restaurant_menus.json").write_text(json.dumps([dish]))
    catalogue = read_catalogue(tmp_path)
    assert (len(catalogue.restaurants), len(catalogue.users)) == (700, 500)
    drawn = random.Random(42)
    assert [one["capacity"] for one in catalogue.restaurants[:5]] == [drawn.randint(20, 100) for _ in range(5)]
    assert 1 <= catalogue.menu_items[0]["price"] <= 50  # drawn too
    with world.database.transaction() as both:
        for table in ("restaurants", "menu_items", "users"):
            world.database.insert(table, getattr(catalogue, table))
        raise psycopg.Rollback(both)
