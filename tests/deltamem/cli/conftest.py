"""A bank of its own for each test, a model made of rules behind a real server, and an embedder that needs no model."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_cases import follow_rules
from episode_texts import WordEmbedder
from scripted_server import Served, serve


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the bank of Ann will be; every command that a test runs uses it."""
    for name in os.environ:
        if name.startswith("DELTAMEM_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr("deltamem.embedding.load_embedder", lambda name, **settings: WordEmbedder())
    monkeypatch.setenv("DELTAMEM_BANK", str(tmp_path / "bank"))
    monkeypatch.setenv("DELTAMEM_OWNER", "ann")
    return tmp_path / "bank"


@pytest.fixture
def rules(bank: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A model behind an endpoint that every command of the test uses."""
    with serve(follow_rules) as served:
        monkeypatch.setenv("DELTAMEM_BASE_URL", served.url)
        monkeypatch.setenv("DELTAMEM_PERSON", "Ann")
        yield served
