"""Search in rollouts: ``python benchmarks/rollout_search.py [--sizes 100 300] [--prompts 20] [--json FILE]``.

What one rollout does with its prior state: take the vectors of its texts from the memory-mapped store, build a
`SnapshotBank` over them and search two queries with k = 5. Beside it, an ephemeral Chroma collection for each rollout with
the same vectors, the same two queries, and its removal. The two take turns after the 8 rollouts of a prompt. Nothing is
embedded on either side.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import chromadb
import numpy as np
from chromadb.config import Settings

from deltamem.bank.base import SnapshotBank
from deltamem.embedding import Vectors
from deltamem.memory import Memory, MemoryState
from deltamem.training.embedding_service import EmbeddingClient, Lookup, TextVectors
from deltamem.training.embedding_store import EmbeddingStore, build_store

DIM = 384
K = 5
QUERIES = 2
ROLLOUTS = 8


class TopicEmbedder:
    """Clustered unit vectors, drawn for each text."""

    name = "topics"

    def __init__(self) -> None:
        self._topics = np.random.default_rng(0).normal(size=(200, DIM))

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Shape ``(len(texts), DIM)``."""
        rows = []
        for text in texts:
            rng = np.random.default_rng(list(text.encode()))
            rows.append(self._topics[rng.integers(200)] + 0.6 * rng.normal(size=DIM))
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    queries = documents


async def _never(texts: list[str]) -> Vectors:
    raise AssertionError(f"the store knows every text, but not {texts[0]!r}")


def people_of(people: int, size: int) -> list[MemoryState]:
    time_ = datetime(2026, 4, 5)
    ending = "moved from Boston to Denver in March and works as a nurse there"
    return [
        MemoryState(Memory(f"m{row + 1}", f"Person {person} {ending}, note {row}.", time_) for row in range(size))
        for person in range(people)
    ]


def measure(size: int, prompts: int, folder: Path) -> dict[str, float]:
    """Milliseconds a rollout on both sides; every prompt has its own state, and the first is for warming up."""
    states, embedder = people_of(prompts + 1, size), TopicEmbedder()
    build_store(folder, (memory.text for state in states for memory in state.memories), embedder)
    store = EmbeddingStore(folder, embedder.name)
    client = EmbeddingClient(documents=TextVectors(_never), queries=TextVectors(_never), store=store)
    chroma = chromadb.EphemeralClient(Settings(anonymized_telemetry=False))
    vectors = [embedder.documents([memory.text for memory in state.memories]) for state in states]
    rollouts = range((prompts + 1) * ROLLOUTS)
    queries = [embedder.queries([f"query {number} {part}" for part in range(QUERIES)]) for number in rollouts]

    async def ours(number: int) -> list[list[str]]:
        state = states[number // ROLLOUTS]
        texts = [memory.text for memory in state.memories]
        bank = SnapshotBank("person", state, Lookup(await client.documents(texts))(texts))
        return [[hit.memory.id for hit in hits] for hits in bank.search(queries[number], K)]

    def theirs(number: int) -> list[list[str]]:
        state = states[number // ROLLOUTS]
        name = f"rollout-{size}-{number}"
        collection = chroma.create_collection(name, metadata={"hnsw:space": "cosine"}, embedding_function=None)
        collection.add(ids=list(state), embeddings=vectors[number // ROLLOUTS], documents=[m.text for m in state.memories])
        found = collection.query(query_embeddings=queries[number], n_results=K)["ids"]
        chroma.delete_collection(name)
        return found

    times: dict[str, list[float]] = {"snapshot": [], "chroma": []}
    same = 0

    def timed(side: str, search: Callable[[int], list[list[str]]], number: int) -> list[list[str]]:
        begin = time.perf_counter()
        found = search(number)
        times[side].append(1e3 * (time.perf_counter() - begin))
        return found

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        for prompt in range(prompts + 1):
            numbers = rollouts[prompt * ROLLOUTS : (prompt + 1) * ROLLOUTS]
            exact = [timed("snapshot", lambda number: loop.run_until_complete(ours(number)), number) for number in numbers]
            index = [timed("chroma", theirs, number) for number in numbers]
            for one, other in zip(chain(*exact), chain(*index), strict=True):
                same += len({*one} & {*other})
    warm = {side: values[ROLLOUTS:] for side, values in times.items()}
    figures: dict[str, float] = {"memories": size, "recall_at_5": same / (len(rollouts) * QUERIES * K)}
    for side, values in warm.items():
        figures |= {f"{side}_p50_ms": statistics.median(values), f"{side}_mean_ms": statistics.fmean(values)}
    figures["ratio_p50"] = figures["chroma_p50_ms"] / figures["snapshot_p50_ms"]
    figures["ratio_mean"] = figures["chroma_mean_ms"] / figures["snapshot_mean_ms"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300])
    parser.add_argument("--prompts", type=int, default=20, help="with 8 rollouts each")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(size, options.prompts, Path(folder)))
        print(", ".join(f"{name} {value:.3f}" for name, value in results[-1].items()))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
