"""The intent index beside the plain bank: ``python benchmarks/intent.py [--steps 10000] [--json FILE]``.

Both hold the same texts on disk and are asked the same queries with the same k. Vectors are ready (clustered, 384 numbers),
so that neither the embedder nor a language model is timed: what is left is what the index itself costs. A query asks for
one scope, one event and one entity type, or for no label at all. Ingest is timed for each thousand steps, with labels that
are known (oracle) and with those of the labeller without a model, whose rules are timed with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table
from search import clustered

from deltamem.bank.store import MemoryStore, UserStore
from deltamem.edits import Add
from deltamem.embedding import Vectors
from deltamem.journal.journal import JOURNAL_FILE, Journal
from papers.stitch.embedding_labeller import EmbeddingLabeller
from papers.stitch.index import IntentIndex
from papers.stitch.labeller import GoldStep, IntentLabeller, OracleLabeller
from papers.stitch.records import Intent, IntentFilter, Step
from papers.stitch.store import IntentLog

BLOCK = 1_000
QUERIES = 300
SCOPES, EVENTS, TYPES = 60, 12, 30
BEGIN = datetime(2026, 5, 1, 8)


class ReadyVectors:
    """The vector of each text that was ever seen is the next row of a matrix."""

    name = "ready"

    def __init__(self, rows: int) -> None:
        self._matrix = clustered(rows)
        self._row: dict[str, int] = {}

    def documents(self, texts: Sequence[str]) -> Vectors:
        """The rows of texts."""
        rows = [self._row.setdefault(text, len(self._row) % len(self._matrix)) for text in texts]
        return self._matrix[rows] if rows else self._matrix[:0]

    queries = documents


def texts(count: int) -> list[str]:
    """A trip of sixty days, each of which comes back again and again; every text is another."""
    said = (
        "Let us turn to day {day}.",
        "What about Inn{n} for the night?",
        "It costs {n} with breakfast.",
        "We take Inn{n}, then.",
    )
    return [f"{said[n % 4].format(day=n // 20 % SCOPES + 1, n=n)} ({n})" for n in range(count)]


def gold(count: int) -> dict[str, GoldStep]:
    """Labels of the steps, three entity types each."""
    random = np.random.default_rng(0)
    types = random.integers(0, TYPES, (count, 3))
    return {
        f"s{n}": GoldStep(
            Intent(
                f"day {n // 20 % SCOPES + 1}", f"event {n % EVENTS}", tuple(dict.fromkeys(f"type {t}" for t in types[n]))
            ),
            text,
            text,
        )
        for n, text in enumerate(texts(count))
    }


def wanted() -> dict[str, IntentFilter]:
    """What the queries ask for."""
    random = np.random.default_rng(1)
    return {
        f"query {n}": IntentFilter(
            (f"day {random.integers(1, SCOPES + 1)}",),
            (f"event {random.integers(0, EVENTS)}",),
            (f"type {random.integers(0, TYPES)}",),
        )
        for n in range(QUERIES)
    }


def free() -> dict[str, IntentFilter]:
    """Queries that ask for no label, the dearest: every summary is compared."""
    return {f"free {n}": IntentFilter() for n in range(QUERIES)}


async def ingest(index: IntentIndex, steps: Sequence[Step]) -> list[float]:
    """Milliseconds of processor time a step, of each thousand; waiting for the disk is not counted."""
    spent = []
    for begin in range(0, len(steps), BLOCK):
        began = time.process_time()
        await index.add(steps[begin : begin + BLOCK])
        spent.append((time.process_time() - began) / len(steps[begin : begin + BLOCK]) * 1e3)
    return spent


async def compare(index: IntentIndex, owned: UserStore, embedder: ReadyVectors, k: int) -> dict[str, object]:
    """Median milliseconds of a search in both; they take turns, so that what else runs on the machine meets both."""
    spent: dict[str, list[float]] = {"intent": [], "intent_no_labels": [], "bank": []}
    for labelled, unlabelled in zip(wanted(), free(), strict=True):
        for name, query in (("intent", labelled), ("bank", labelled), ("intent_no_labels", unlabelled)):
            began = time.perf_counter()
            if name == "bank":
                await asyncio.to_thread(owned.search, embedder.queries, [query], k)
            else:
                await index.search(query, k)
            spent[name].append(time.perf_counter() - began)
    p50 = {name: median(times) * 1e3 for name, times in spent.items()}
    ratios = {f"ratio_{name}_k{k}": p50[name] / p50["bank"] for name in ("intent", "intent_no_labels")}
    return {f"{name}_p50_ms_k{k}": value for name, value in p50.items()} | ratios


async def main(count: int) -> dict[str, object]:
    """Measure."""
    embedder = ReadyVectors(count + 20_000)
    steps = [Step(f"s{n}", "Ann", text, BEGIN + timedelta(minutes=n)) for n, text in enumerate(texts(count))]
    oracle = OracleLabeller(gold(count), wanted() | free())
    figures: dict[str, object] = {"steps": count, "machine": platform.processor() or platform.machine()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        labellers: list[tuple[str, IntentLabeller]] = [("oracle", oracle), ("embedding", EmbeddingLabeller(embedder))]
        for label, labeller in labellers:
            (folder / label).mkdir()
            with Journal.open(folder / label / JOURNAL_FILE) as journal:
                index = IntentIndex(labeller, embedder, IntentLog(journal.owner("ann"), "steps"))
                figures[f"ingest_cpu_ms_{label}"] = await ingest(index, steps)
                await index.search("query 0", 1)  # embeds what is there
        began = time.perf_counter()
        with (
            Journal.open(folder / "oracle" / JOURNAL_FILE) as journal,
            MemoryStore.open(folder / "bank", embedder) as store,
        ):
            index = IntentIndex(oracle, embedder, IntentLog(journal.owner("ann"), "steps"))
            figures["open_s"] = time.perf_counter() - began
            owned = store.bank("ann")
            for begin in range(0, count, BLOCK):
                owned.edit([Add(step.text, step.time) for step in steps[begin : begin + BLOCK]], "benchmark")
            for k in (5, 40):
                figures |= await compare(index, owned, embedder, k)
    return figures


def table(figures: dict[str, object]) -> Table:
    """One row a figure."""
    view = Table("figure", "value")
    for name, value in figures.items():
        shown = ", ".join(f"{one:.2f}" for one in value) if isinstance(value, list) else value
        view.add_row(name, f"{shown:.2f}" if isinstance(shown, float) else str(shown))
    return view


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    measured = asyncio.run(main(given.steps))
    Console().print(table(measured))
    if given.json:
        given.json.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
