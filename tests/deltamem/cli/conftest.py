"""A bank of its own for each test, a model made of rules behind a real server, and an embedder that needs no model."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_cases import MONDAY, bank, follow_rules, lines_of, run, write
from episode_texts import WordEmbedder
from scripted_server import Served, serve

__all__ = ["bank"]


@pytest.fixture
def rules(bank: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A model behind an endpoint that every command of the test uses."""
    with serve(follow_rules, [{"id": "tiny", "max_model_len": 4096}]) as served:
        monkeypatch.setenv("DELTAMEM_BASE_URL", served.url)
        monkeypatch.setenv("DELTAMEM_PERSON", "Ann")
        yield served


@pytest.fixture(scope="session")
def mondays_bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("boston") / "bank"
    with serve(follow_rules) as served, pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltamem.embedding.load_embedder", lambda name, **settings: WordEmbedder())
        options = ["--bank", str(folder), "--owner", "ann", "--person", "Ann", "--base-url", served.url, "--mode", "react"]
        assert run("add", "-", *options, given=lines_of(MONDAY)).exit_code == 0
    return folder


@pytest.fixture
def boston(bank: Path, rules: Served, mondays_bank: Path) -> Path:
    """The bank after Monday's session."""
    return Path(shutil.copytree(mondays_bank, bank))


@pytest.fixture
def three(bank: Path) -> Path:
    """The bank after three sessions, one of which is named like a position."""
    days = ("first", "2026-03-02", "tea"), ("@1", "2026-03-03", "rain"), ("third", "2026-03-04", "fog")
    write(bank, *((name, f"{day}T09:00", f"Ann likes {thing}.") for name, day, thing in days))
    return bank
