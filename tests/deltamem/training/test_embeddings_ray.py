"""The owner of the embedding model as a real ray actor, asked by several workers at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from deltamem.embedding import OFFLINE_MODEL, load_embedder
from deltamem.training.embedding_service import connect, find_owner
from deltamem.training.embedding_store import build_store

SETTINGS: dict[str, Any] = {"device": "cpu", "batch_size": 32, "threads": 1}
WORKERS, ROLLOUTS = 3, 30


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("RAY_worker_niceness", "0")
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_workers_share_one_owner_and_every_new_text_is_embedded_once(cluster: None, tmp_path: Path) -> None:
    known = [f"Ann keeps {number} bicycles." for number in range(40)]
    new = [f"Ruth sold {number} lamps at the harbour." for number in range(60)]
    embedder = load_embedder(OFFLINE_MODEL)
    build_store(tmp_path, known, embedder)

    class Worker:
        """Asks like the rollouts of an agent loop worker: all at once, for texts that the others ask for too."""

        def __init__(self) -> None:
            self.client = connect(OFFLINE_MODEL, store=str(tmp_path), **SETTINGS)

        async def ask(self, worker: int) -> tuple[dict[str, Any], Any, dict[str, int]]:
            import asyncio

            client = self.client
            parts = [known[::2] + [new[(worker + step * number) % 60] for step in range(9)] for number in range(ROLLOUTS)]
            found = await asyncio.gather(*map(client.documents, parts))
            queries = await asyncio.gather(*(client.queries([f"bicycles {number % 5}"]) for number in range(ROLLOUTS)))
            return {text: vector for part in found for text, vector in part.items()}, queries, client.figures()

    workers = [ray.remote(Worker).options(num_cpus=0.1).remote() for _ in range(WORKERS)]
    answers = ray.get([worker.ask.remote(number) for number, worker in enumerate(workers)])

    asked: set[str] = set()
    for vectors, queries, figures in answers:
        np.testing.assert_allclose(np.stack(list(vectors.values())), embedder.documents(list(vectors)), atol=1e-5)
        for number, query in enumerate(queries):
            np.testing.assert_allclose(query, embedder.queries([f"bicycles {number % 5}"]), atol=1e-5)
        asked |= vectors.keys() - set(known)
        assert figures["documents/in_store"] == ROLLOUTS * 20, "texts of the store were not asked for elsewhere"
        assert figures["documents/calls"] <= 3
    owner = find_owner(OFFLINE_MODEL, **SETTINGS)
    figures = ray.get(owner.figures.remote())
    assert figures["documents/texts"] == len(asked) > 50
    assert figures["queries/texts"] == 5
    assert figures["documents/batches"] <= 2 * WORKERS and figures["queries/batches"] <= 2 * WORKERS
    assert len(ray.util.list_named_actors()) == 1
