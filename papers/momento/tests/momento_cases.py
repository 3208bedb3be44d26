"""What tests of Momento share: the invented world, calls of every tool, and runs."""

from __future__ import annotations

import io
import json
import ssl
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
from eval import fingerprint, runner, summarise
from eval.records import QuestionRecord
from papers.momento.__main__ import Momento, main
from papers.momento.data import MomentoConfig
from papers.momento.mini import mini_catalogue, new_id
from papers.momento.policies import TABLES
from papers.momento.scores import TrialRecord, trials_of
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


def _row(kind: str, name: str, user: str, **values: Any) -> dict[str, Any]:
    return {"id": new_id(kind, name), "user_id": user, "created_at": STAMP} | values


def order_row(name: str, status: str, user: str = MARA, **changes: Any) -> dict[str, Any]:
    made = {"restaurant_id": PLACE["id"], "fulfillment": "pickup", "total_price": 12.25, "currency": "USD"}
    return _row("order", name, user, status=status, updated_at=STAMP, **made | changes)


def reservation_row(name: str, status: str = "confirmed", user: str = MARA, **changes: Any) -> dict[str, Any]:
    made = {"restaurant_id": PLACE["id"], "date": "2026-05-20", "time": "19:00", "party_size": 4, "duration_minutes": 90}
    return _row("reservation", name, user, status=status, **made | changes)


def membership_row(name: str, tier: str, user: str = MARA, **changes: Any) -> dict[str, Any]:
    made = {"status": "active", "start_date": "2026-01-01", "end_date": "2026-12-31", "updated_at": STAMP}
    return _row("membership", name, user, tier=tier, **made | changes)


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
        patched.setattr(summarise, "versions", lambda packages: {})
        patched.setattr(ssl, "create_default_context", cache(ssl.create_default_context))  # all certificates of the world
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
