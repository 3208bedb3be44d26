"""What tests of Momento share: the invented world, calls of every tool, and runs."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from episode_texts import WordEmbedder
from omegaconf import DictConfig, OmegaConf

from deltamem.config import composed, validated
from eval import fingerprint, runner
from eval.records import QuestionRecord
from papers.momento.__main__ import Momento, main
from papers.momento.data import MomentoConfig
from papers.momento.mini import mini_catalogue, new_id
from papers.momento.policies import TABLES
from papers.momento.scores import TrialRecord, trials_of
from papers.momento.tools import TOOLS
from papers.momento.world import World

if TYPE_CHECKING:
    from papers.momento.database import ServiceDatabase

TODAY = date(2026, 5, 18)  # a Monday
CATALOGUE = mini_catalogue()
PLACE, OTHER_PLACE = CATALOGUE.restaurants[0], CATALOGUE.restaurants[1]
MARA, OREN = (str(user["id"]) for user in CATALOGUE.users[:2])
DISHES = [dish for dish in CATALOGUE.menu_items if dish["restaurant_id"] == PLACE["id"]]
OTHER_DISH = next(dish for dish in CATALOGUE.menu_items if dish["restaurant_id"] == OTHER_PLACE["id"])
STAMP = "2026-05-01T10:00:00+00:00"


def order_row(name: str, status: str, user: str = MARA, **changes: Any) -> dict[str, Any]:
    return {
        "id": new_id("order", name),
        "user_id": user,
        "restaurant_id": PLACE["id"],
        "fulfillment": "pickup",
        "status": status,
        "total_price": 12.25,
        "currency": "USD",
        "created_at": STAMP,
        "updated_at": STAMP,
    } | changes


def reservation_row(name: str, status: str = "confirmed", user: str = MARA, **changes: Any) -> dict[str, Any]:
    return {
        "id": new_id("reservation", name),
        "user_id": user,
        "restaurant_id": PLACE["id"],
        "date": "2026-05-20",
        "time": "19:00",
        "party_size": 4,
        "duration_minutes": 90,
        "status": status,
        "created_at": STAMP,
    } | changes


def membership_row(name: str, tier: str, user: str = MARA, **changes: Any) -> dict[str, Any]:
    return {
        "id": new_id("membership", name),
        "user_id": user,
        "tier": tier,
        "status": "active",
        "start_date": "2026-01-01",
        "end_date": "2026-12-31",
        "created_at": STAMP,
        "updated_at": STAMP,
    } | changes


ITEM = {
    "id": new_id("item"),
    "order_id": new_id("order", "made"),
    "menu_item_id": DISHES[0]["id"],
    "name": DISHES[0]["name"],
}
SEED = {
    "orders": [order_row("made", "created"), order_row("gone", "delivered"), order_row("his", "created", OREN)],
    "order_items": [ITEM | {"price": 6.125, "quantity": 2}],
    "reservations": [reservation_row("soon"), reservation_row("past", "completed"), reservation_row("his", user=OREN)],
    "memberships": [membership_row("mara", "gold"), membership_row("oren", "silver", OREN, end_date="2026-05-17")],
}


def session_row(name: str, user: str, summary: str, embedding: list[float], started: str = STAMP) -> dict[str, Any]:
    return {
        "id": new_id("session", name),
        "user_id": user,
        "started_at": started,
        "ended_at": started,
        "summary": summary,
        "extracted_facts": {"about": name},
        "embedding": embedding,
    }


SESSIONS = [
    session_row("pasta", MARA, "Mara likes pasta", [1.0, 0.0, 0.0]),
    session_row("late", MARA, "Mara dines late", [0.0, 1.0, 0.0], "2026-05-15T10:00:00+00:00"),
    session_row("secret", OREN, "OREN-CANARY", [1.0, 0.0, 0.0]),
]


def reset(world: World) -> World:
    world.reset(TODAY, SEED, SESSIONS)
    return world


@contextmanager
def quick(databases: Sequence[ServiceDatabase]) -> Iterator[pytest.MonkeyPatch]:
    """Runs take these databases in place of a server of their own, embed by words and draw no charts."""
    from papers.momento import database

    @contextmanager
    def opened(name: str, count: int) -> Iterator[list[ServiceDatabase]]:
        for one in databases:
            one.rows(f"TRUNCATE {', '.join(TABLES)}")
        yield list(databases[:count])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner, "make_embedder", lambda settings: WordEmbedder())
        patched.setattr(fingerprint, "git_commit", lambda: None)
        patched.setattr(fingerprint, "versions", lambda packages: {})
        patched.setattr(database, "open_databases", opened)
        patched.setattr(runner, "report_folders", lambda folders, page: None)  # charts take longer than all the rest
        yield patched


@dataclass(frozen=True)
class Finished:
    """A run: its folder, exit code and output."""

    out: Path
    code: int
    stdout: str
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.out / "summary.json").read_bytes()))

    @property
    def page(self) -> str:
        return (self.out / "trials.html").read_text(encoding="utf-8").replace("&#39;", "'")

    @property
    def trials(self) -> dict[str, TrialRecord]:
        """By task and number."""
        return {f"{question.key}/{number}": trial for question, number, trial in trials_of(list(self.questions.values()))}

    @property
    def questions(self) -> dict[str, QuestionRecord]:
        """The last record of each task."""
        lines = (self.out / "questions.jsonl").read_text().splitlines() if (self.out / "questions.jsonl").exists() else []
        return {record.key: record for record in map(QuestionRecord.model_validate_json, lines)}

    def passed(self, metric: str = "passed") -> float:
        return float(self.summary["scores"][metric]["all"]["estimate"])


@cache
def composed_once() -> DictConfig:
    return composed("momento", [], Momento.config_dir)


def configured(out: Path, *overrides: str) -> MomentoConfig:
    own = OmegaConf.from_dotlist([f"out={out}", "stores_at_once=2", *overrides])
    return validated(OmegaConf.merge(composed_once(), own), MomentoConfig)  # type: ignore[arg-type]


def finish(out: Path, *overrides: str) -> Finished:
    """Run in this process."""
    with redirect_stdout(io.StringIO()) as stdout, redirect_stderr(io.StringIO()) as stderr:
        code = main(configured(out, *overrides))
    return Finished(out, code, " ".join(stdout.getvalue().split()), stderr.getvalue())


def planned_calls(count: int = 312) -> list[tuple[str, dict[str, Any]]]:
    """Calls of every tool, right and wrong, drawn from a seed; what was made earlier is used later."""
    draw = random.Random("calls")
    users, places = [MARA, OREN, "nobody"], [PLACE["id"], OTHER_PLACE["id"], new_id("no place"), "no uuid"]
    orders = [row["id"] for row in SEED["orders"]] + [new_id("no order"), "x"]
    reservations = [row["id"] for row in SEED["reservations"]] + [new_id("no reservation"), "x"]
    days = ["2026-05-20", "2026-05-24", "2026-5-21", "tomorrow"]
    choices: dict[str, Any] = {
        "user_id": users,
        "restaurant_id": places,
        "order_id": orders,
        "reservation_id": reservations,
        "exclude_reservation_id": [*reservations, None, None],
        "menu_item_id": [DISHES[1]["id"], OTHER_DISH["id"], new_id("no dish"), "x"],
        "date": days,
        "time": ["19:00", "20:30", "23:30", "9:5", "noon"],
        "party_size": [1, 4, 30, 0, "two"],
        "duration_minutes": [30, 90, 120, 20, 180],
        "special_requests": ["by the window", None],
        "special_instructions": ["ring twice", None],
        "items": [
            [{"menu_item_id": DISHES[0]["id"], "quantity": 2}, {"menu_item_id": DISHES[1]["id"], "notes": "hot"}],
            [{"menu_item_id": DISHES[2]["id"], "quantity": 3}],
            [{"menu_item_id": OTHER_DISH["id"]}],
            [{"quantity": 1}],
            [{"menu_item_id": DISHES[0]["id"], "quantity": 0}],
            [],
        ],
        "fulfillment": ["pickup", "delivery", "by drone"],
        "delivery_provider": ["quickdish", "foodfly", "nobody", None],
        "delivery_address": ["1 Elm Road", None],
        "tier": ["silver", "gold", "platinum", "Basic", "wood"],
        "start_date": days,
        "end_date": ["2027-05-18", "soon"],
        "new_end_date": ["2027-05-18", "2028-01-01", "soon"],
        "status": ["confirmed", "cancelled", "created", "delivered", "lost", None],
        "name": ["Table", "curry", "o", "100%", "_", None],
        "city": ["lindau", "Sarnath", None, None],
        "country": ["velia", None, None],
        "cuisines": [["italian", "thai"], ["greek"], ["Martian"], None],
        "categories": [["main"], ["dessert", "starter"], ["MAIN"], None],
        "amenities": [["wifi"], ["wifi", "parking"], None, None],
        "restaurant_ids": [[PLACE["id"], OTHER_PLACE["id"]], ["x"], None, None, None],
        "image_labels": ["Tacos", ["soup", "starter"], None],
        "min_price": [5, 7, None, None],
        "max_price": [22, 30, None, None],
        "latitude": [47.5, None],
        "longitude": [9.7, None],
        "radius_km": [5.0, 500, None],
        "limit": [1, 5, None],
        "max_rows": [3, 100, None],
        "query": [
            "SELECT name, city, capacity FROM restaurants WHERE city ILIKE 'lin%' ORDER BY name",
            "WITH cheap AS (SELECT restaurant_id, min(price) AS least FROM menu_items GROUP BY restaurant_id) "
            "SELECT r.name, c.least FROM cheap c JOIN restaurants r ON r.id = c.restaurant_id ORDER BY 2, 1 LIMIT 5",
            "DELETE FROM orders",
            "",
        ],
    }
    made = []
    for number in range(count):
        tool = list(TOOLS.values())[number % len(TOOLS)]
        mostly_right = number % 3 > 0
        arguments = {}
        for parameter in tool.arguments.model_fields:
            options = choices[parameter]
            value = options[0] if mostly_right and draw.random() < 0.7 else draw.choice(options)
            if value is not None:
                arguments[parameter] = value
        if number % 29 == 28:
            arguments["colour"] = "red"
        if number % 31 == 30 and arguments:
            arguments.popitem()
        made.append((tool.name, arguments))
    return made
