"""A bank of its own for each test, a model made of rules behind a real server, and an embedder that needs no model."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from episode_texts import WordEmbedder
from rule_model import answer
from scripted_server import Reply, Served, completion, serve


def follow_rules(body: dict[str, object]) -> Reply:
    """How the server answers."""
    if body["max_tokens"] == 1:
        return completion("Hello.", tokens=1)
    return completion(answer(body["messages"]), prompt_tokens=100, tokens=10)  # type: ignore[arg-type]


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
