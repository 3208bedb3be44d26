"""A bank of its own for each test, a model made of rules behind a real server, and an embedder that needs no model."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_cases import MONDAY, bank, follow_rules, lines_of, run, write
from scripted_server import Served, serve

__all__ = ["bank"]


@pytest.fixture
def rules(bank: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A model behind an endpoint that every command of the test uses."""
    with serve(follow_rules, [{"id": "tiny", "max_model_len": 4096}]) as served:
        monkeypatch.setenv("DELTAMEM_BASE_URL", served.url)
        monkeypatch.setenv("DELTAMEM_PERSON", "Ann")
        yield served


@pytest.fixture
def boston(bank: Path, rules: Served) -> Path:
    """The bank after Monday's session."""
    assert run("add", "-", given=lines_of(MONDAY)).exit_code == 0
    return bank


@pytest.fixture
def three(bank: Path) -> Path:
    """The bank after three sessions, one of which is named like a position."""
    days = ("first", "2026-03-02", "tea"), ("@1", "2026-03-03", "rain"), ("third", "2026-03-04", "fog")
    write(bank, *((name, f"{day}T09:00", f"Ann likes {thing}.") for name, day, thing in days))
    return bank
