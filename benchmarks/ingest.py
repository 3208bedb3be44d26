"""What the manager costs beside the model: ``python benchmarks/ingest.py [--memories 1000] [--sessions 200] [--json F]``.

A model made of rules answers in the process at once, so what is measured is ours: episode, embedding, search, checks,
journal and bank, on a store on disk. Once with an embedder that costs nothing, once with all-MiniLM-L6-v2.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from deltamem_side import DeltaMemSide
from hashed_words import vectors_of
from rich.console import Console
from rich.table import Table
from scripted_model import answer
from workload import OWNER, make_workload

from deltamem.bank.store import MemoryStore
from deltamem.embedding import Embedder, Vectors, load_embedder
from deltamem.episode import Message
from deltamem.ingest import Transition
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.policy import Completion
from deltamem.sessions import Turn

BEGIN = datetime(2026, 6, 1, 20, 1)


class FreeEmbedder:
    """Hashed words, as vectors of the length that all-MiniLM-L6-v2 gives."""

    name = "hashed-words"

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Embed texts; returns float32 of shape ``(len(texts), 384)``."""
        return vectors_of(texts)

    queries = documents


class Instant:
    """The scripted model without a server; keeps how long it thought, to be taken off."""

    name = "instant"

    def __init__(self) -> None:
        self.seconds = 0.0

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Write the next assistant text."""
        begin = time.perf_counter()
        _, text = answer([dict(message) for message in messages])
        self.seconds += time.perf_counter() - begin
        return Completion(text, truncated=False, tokens=1)


class Timed:
    """Passes texts on and keeps how long embedding took."""

    def __init__(self, embedder: Embedder) -> None:
        self.name = embedder.name
        self.seconds = 0.0
        self._embedder = embedder

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Embed memory texts."""
        return self._timed(self._embedder.documents, texts)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Embed search queries."""
        return self._timed(self._embedder.queries, texts)

    def _timed(self, embed: Any, texts: Sequence[str]) -> Vectors:
        begin = time.perf_counter()
        vectors: Vectors = embed(texts)
        self.seconds += time.perf_counter() - begin
        return vectors


def measure(embedder: Embedder, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Ingest the sessions one after the other into a store that holds the memories already."""
    work = make_workload(options.memories, options.sessions, options.facts, 1, seed=options.seed)
    timed, policy = Timed(embedder), Instant()
    with MemoryStore.open(folder, timed) as store, asyncio.Runner() as runner:
        DeltaMemSide(store, "http://127.0.0.1:1/v1", runner).preload(work.memories)
        manager = MemoryManager(store, OWNER, policy, ManagerSettings(person_name="Ann"))
        timed.seconds = 0.0
        done: list[Transition] = []
        begin = time.perf_counter()
        for number, turns in enumerate(work.sessions):
            dialogue = [Turn("user" if turn["role"] == "user" else "assistant", turn["content"]) for turn in turns]
            session = manager.session(f"session {number}", BEGIN, dialogue)
            done.append(runner.run(manager.ingest(session)))
        seconds = time.perf_counter() - begin
        stored = len(manager.state())
    operations = sum(len(transition.changes) for transition in done)
    each = [1e3 * transition.seconds for transition in done]
    return {
        "embedder": embedder.name,
        "memories": {"before": options.memories, "after": stored},
        "operations": operations,
        "operations_per_second": operations / seconds,
        "session_ms": {"p50": statistics.median(each), "p95": statistics.quantiles(each, n=20)[-1]},
        "mean_ms": {
            "all": 1e3 * seconds / len(done),
            "model": 1e3 * policy.seconds / len(done),
            "embedding": 1e3 * timed.seconds / len(done),
            "manager": 1e3 * (seconds - policy.seconds - timed.seconds) / len(done),
        },
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memories", type=int, default=1000, help="stored beforehand")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--facts", type=int, default=5, help="of a session: all new but one, which corrects a memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    figures = []
    for embedder in (FreeEmbedder(), load_embedder()):
        with tempfile.TemporaryDirectory() as folder:
            figures.append(measure(embedder, options, Path(folder)))
    table = Table(title=f"{options.sessions} sessions of {options.facts} facts into {options.memories} memories")
    for column in ("embedder", "operations/s", "session p50", "p95 ms", "mean", "model", "embedding", "manager ms"):
        table.add_column(column, justify="left" if column == "embedder" else "right")
    for row in figures:
        mean, session = row["mean_ms"], row["session_ms"]
        cells = [session["p50"], session["p95"], mean["all"], mean["model"], mean["embedding"], mean["manager"]]
        table.add_row(row["embedder"], f"{row['operations_per_second']:.0f}", *(f"{value:.1f}" for value in cells))
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
