"""The restaurant service of one trial: what there is, its state, the date; and the hashes by which a state is compared."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from deltamem.errors import DeltaMemError
from deltamem.text_files import read_text
from papers.momento.policies import ENUMS, SESSIONS, TABLES, Row, Rows

if TYPE_CHECKING:
    from papers.momento.database import ServiceDatabase

TRIAL_TABLES = ("order_items", "orders", "reservations", "memberships")
"""What a trial may change, and what is reset before each."""

HASHES = ("orders_hashed", "reservations_hashed", "order_items_hashed", "memberships_hashed")
"""Names of the four hashes, as tasks call them."""

_HASHED = {
    "orders": (
        "user_id restaurant_id fulfillment status total_price currency delivery_provider_name",
        "restaurant_id fulfillment status total_price created_at",
    ),
    "reservations": (
        "user_id restaurant_id date time party_size duration_minutes status",
        "restaurant_id date time party_size status",
    ),
    "order_items": ("menu_item_id name price quantity", "menu_item_id name quantity created_at"),
    "memberships": ("user_id tier status start_date end_date", "tier status start_date"),
}
"""Of each table the columns that are hashed, and those by which the rows are sorted."""

BASIC = {"tier": "basic", "status": "active", "start_date": "2025-01-01", "end_date": "2099-12-31"}
"""The membership of whoever has no other."""
_EPOCH = "2025-01-01T00:00:00+00:00"


@dataclass(frozen=True)
class Catalogue:
    """What there is, by table: users, their payment methods, restaurants and their menus."""

    users: Rows
    payment_methods: Rows
    restaurants: Rows
    menu_items: Rows

    @property
    def vocabulary(self) -> list[str]:
        """Names of restaurants and dishes, and of where they are: those of no user."""
        places = [str(row[key]) for key in ("name", "city", "country") for row in self.restaurants if row.get(key)]
        return [*dict.fromkeys([*places, *(str(row["name"]) for row in self.menu_items)])]


class World:
    """The service on a database, with the catalogue that it was made with."""

    def __init__(self, database: ServiceDatabase, catalogue: Catalogue) -> None:
        """Fill an empty database."""
        self.database = database
        self.today = date.min
        self.sessions_of: str | None = None  # The user whose sessions `execute_sql` shows; None: nobody's
        self._users = [str(user["id"]) for user in catalogue.users]
        self._made = 0
        with database.transaction():
            for table in ("users", "payment_methods", "restaurants", "menu_items"):
                rows: Rows = getattr(catalogue, table)
                stamped = table in ("users", "payment_methods")
                database.insert(table, [{"created_at": _EPOCH, **row} for row in rows] if stamped else rows)

    def reset(self, today: date, seed: Mapping[str, Rows], sessions: Rows = (), *, sessions_of: str | None = None) -> None:
        """Begin a trial: nothing is left of the one before. All or nothing.

        `seed` has rows of `TRIAL_TABLES`. Whoever has a row of memberships there has no others; the rest has a basic one.
        The sessions of `sessions_of` can be read by ``execute_sql``.

        Raises:
            DeltaMemError: If a row does not fit its table.
        """
        given = {str(row["user_id"]) for row in seed.get("memberships", ())}
        basic = [
            {"id": str(uuid5(NAMESPACE_URL, f"basic {user}")), "user_id": user, "created_at": _EPOCH, "updated_at": _EPOCH}
            | BASIC
            for user in self._users
            if user not in given
        ]
        with self.database.transaction():
            for table in (*TRIAL_TABLES, SESSIONS):
                self.database.rows(f"DELETE FROM {table}")
            self.database.insert("memberships", basic)
            for table in reversed(TRIAL_TABLES):
                self.database.insert(table, list(seed.get(table, ())))
            self.database.insert(SESSIONS, list(sessions))
        self.today, self._made, self.sessions_of = today, 0, sessions_of

    def new_id(self) -> str:
        """An id for a new row; the same in each trial, so that trials can be compared."""
        self._made += 1
        return str(uuid5(NAMESPACE_URL, f"{self.today} {self._made}"))

    def now(self) -> datetime:
        """Noon of the trial's date, and a second more for each row that was made."""
        return datetime.combine(self.today, time(12), UTC) + timedelta(seconds=self._made)

    def one(self, query: str, *parameters: Any) -> Row | None:
        """The first row."""
        return next(iter(self.database.rows(query, parameters)), None)

    def all(self, query: str, *parameters: Any) -> list[Row]:
        """All rows."""
        return self.database.rows(query, parameters)

    def state(self, user_id: str) -> dict[str, list[Row]]:
        """What the hashes are made of, by table: the user's rows in order, without what may differ."""
        state = {}
        for table, (columns, order) in _HASHED.items():
            query = f"SELECT * FROM {table} WHERE user_id = %s"
            if table == "order_items":
                query = "SELECT i.*, o.created_at FROM order_items i JOIN orders o ON i.order_id = o.id WHERE o.user_id = %s"
            rows = sorted(
                self.all(query, user_id), key=lambda row: [_rank(table, name, row[name]) for name in order.split()]
            )
            state[table] = [{name: row[name] for name in columns.split()} for row in rows]
        return state

    def hashes(self, user_id: str) -> dict[str, str]:
        """The four hashes of a user's state, by their names."""
        return state_hashes(self.state(user_id))


def state_hashes(state: Mapping[str, Rows]) -> dict[str, str]:
    """MD5 over the rows of each table as JSON with sorted keys, one after the other; that of nothing if there are none."""
    return {
        f"{table}_hashed": hashlib.md5(
            "".join(json.dumps(row, sort_keys=True, default=str) for row in rows).encode()
        ).hexdigest()
        for table, rows in state.items()
    }


def _rank(table: str, column: str, value: Any) -> Any:
    """By what a value is sorted: as PostgreSQL does it, those of few values by their order, and NULL after all others."""
    values = ENUMS.get(TABLES[table].get(column, ""))
    return (value is None, values.index(value) if values and value is not None else value)


def read_catalogue(folder: Path) -> Catalogue:
    """The published world: ``users.json``, ``restaurants.json`` and ``restaurant_menus.json`` of a folder.

    The files give restaurants no capacity; the benchmark draws them with seed 42, and so do we.

    Raises:
        DeltaMemError: If a file is missing or is something else.
    """

    def read(name: str) -> Any:
        try:
            return json.loads(read_text(folder / name))
        except OSError as error:
            raise DeltaMemError(f"{folder / name}: {error.strerror}; the published world has three files") from error
        except ValueError as error:
            raise DeltaMemError(f"{folder / name}: not valid JSON") from error

    people, places, menus = read("users.json"), read("restaurants.json"), read("restaurant_menus.json")
    draw = random.Random(42)
    try:
        restaurants = []
        for place in places:
            hours, drawn = place.get("opening_hours"), draw.randint(20, 100)
            restaurants.append(
                {
                    **place,
                    "cuisines": [name.lower() for name in place.get("cuisines") or ()],
                    "opening_hours": json.loads(hours) if isinstance(hours, str) else hours,
                    "capacity": drawn if place.get("capacity") is None else place["capacity"],
                }
            )
        dishes = []
        for dish in menus:
            drawn_price = draw.uniform(1.0, 50.0)
            cuisines = [name.lower() for name in dish.get("cuisines") or ()]
            dishes.append(
                {**dish, "cuisines": cuisines, "price": drawn_price if dish.get("price") is None else dish["price"]}
            )
        users = [
            {"id": key, **user["name"], **user["address"], "email": user["email"], "gender": user.get("gender")}
            | {"phone": user["address"].get("phone")}  # where the benchmark looks for it
            for key, user in people.items()
        ]
        payments = [
            {"id": method["id"], "user_id": key, "type": method["type"], "details": method.get("details") or {}}
            for key, user in people.items()
            for method in user.get("payment_methods") or ()
        ]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DeltaMemError(f"{folder}: not the files of Momento's world: {error!r}") from error
    return Catalogue(users, payments, restaurants, dishes)
