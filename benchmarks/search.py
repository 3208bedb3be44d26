"""Search of both banks side by side: ``python benchmarks/search.py [--sizes 100 1000] [--vectors FILE.npy] [--json FILE]``.

For every size: p50 and p95 of one query with k = 5, recall@5 of Chroma against exact search, the time to build a bank, to
open an intact one, to rebuild a lost index from ready vectors, and the memory that an open bank takes besides its state.
Every measurement runs in a process of its own. Vectors are clustered (topics and subtopics) unless a file of real ones is
given; sizes beyond the file are filled up with mixtures of its rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from deltamem.bank.base import ReadableBank, SnapshotBank
from deltamem.bank.chroma import ChromaIndex
from deltamem.embedding import Vectors
from deltamem.memory import Memory, MemoryState

DIM = 384
K = 5
QUERIES = 300
Figures = dict[str, Any]


def clustered(rows: int, seed: int = 0) -> Vectors:
    """Unit vectors in 100 topics of 20 subtopics each, shape ``(rows, DIM)``."""
    random = np.random.default_rng(seed)
    topics = random.normal(size=(100, 1, DIM)) + 0.7 * random.normal(size=(100, 20, DIM))
    chosen = topics.reshape(-1, DIM)[random.integers(0, 2000, rows)]
    return unit(chosen + 0.6 * random.normal(size=(rows, DIM)))


def extended(real: Vectors, rows: int) -> Vectors:
    """The real vectors, filled up with mixtures of two of them and a little noise, shape ``(rows, dim)``."""
    random = np.random.default_rng(1)
    extra = max(0, rows - len(real))
    one, two = random.integers(0, len(real), (2, extra))
    weight = random.uniform(0.3, 0.7, (extra, 1))
    mixed = weight * real[one] + (1 - weight) * real[two] + 0.01 * random.normal(size=(extra, real.shape[1]))
    return np.concatenate([real, unit(mixed)])[:rows] if extra else real[:rows]


def unit(vectors: np.ndarray) -> Vectors:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def state_of(rows: int) -> MemoryState:
    """Memories with texts of a usual length; the number in front is the row of the vector."""
    time_ = datetime(2026, 4, 5)
    ending = "Anna moved from Boston to Denver in March and works as a nurse there"
    return MemoryState(Memory(f"m{row + 1}", f"{row} {ending}", time_) for row in range(rows))


def resident_mib() -> float:
    """Memory of this process in MiB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def search_times(bank: ReadableBank, queries: Vectors) -> tuple[list[list[str]], Figures]:
    bank.search(queries[:1], K)
    times, found = [], []
    for row in range(len(queries)):
        begin = time.perf_counter()
        hits = bank.search(queries[row : row + 1], K)[0]
        times.append(1e3 * (time.perf_counter() - begin))
        found.append([hit.memory.id for hit in hits])
    return found, {"search_p50_ms": float(np.percentile(times, 50)), "search_p95_ms": float(np.percentile(times, 95))}


def measure_snapshot(folder: Path, rows: int) -> tuple[list[list[str]], Figures]:
    queries = np.load(folder / "queries.npy")
    SnapshotBank("warm", state_of(10), queries[:10]).search(queries[:1], K)
    state = state_of(rows)
    before = resident_mib()
    vectors = np.array(np.load(folder / "vectors.npy", mmap_mode="r")[:rows])
    begin = time.perf_counter()
    bank = SnapshotBank("owner", state, vectors)
    seconds = time.perf_counter() - begin
    found, figures = search_times(bank, queries)
    return found, {"build_s": seconds, **figures, "memory_mib": resident_mib() - before}


def open_bank(
    folder: Path, state: MemoryState, embed: Callable[[Sequence[str]], Vectors]
) -> tuple[ChromaIndex, ReadableBank]:
    index = ChromaIndex.open(folder / f"index-{len(state)}")
    index.exact_up_to = 0
    journal = SimpleNamespace(name="owner", head=1, state=lambda: state, changed_since=lambda _: frozenset())
    return index, index.bank(journal, SimpleNamespace(name="benchmark", documents=embed))


def measure_rebuild(folder: Path, rows: int) -> Figures:
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    begin = time.perf_counter()
    index, _ = open_bank(folder, state_of(rows), lambda texts: vectors[[int(text.split()[0]) for text in texts]])
    seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    index.close()
    return {"rebuild_s": seconds, "close_s": time.perf_counter() - begin}


def measure_open(folder: Path, rows: int) -> tuple[list[list[str]], Figures]:
    def embed(texts: Sequence[str]) -> Vectors:
        raise AssertionError("an intact index embeds nothing")

    queries = np.load(folder / "queries.npy")
    state = state_of(rows)
    before = resident_mib()
    begin = time.perf_counter()
    index, bank = open_bank(folder, state, embed)
    opened = time.perf_counter() - begin
    bank.search(queries[:1], K)
    first = time.perf_counter() - begin
    found, figures = search_times(bank, queries)
    figures |= {"open_s": opened, "open_and_first_search_s": first, "memory_mib": resident_mib() - before}
    index.close()
    return found, figures


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure(folder: Path, rows: int) -> Figures:
    exact, snapshot = alone(measure_snapshot, folder, rows)
    rebuild = alone(measure_rebuild, folder, rows)
    found, chroma = alone(measure_open, folder, rows)
    shared = [len({*one} & {*other}) / len(other) for one, other in zip(found, exact, strict=True)]
    return {"memories": rows, "snapshot": snapshot, "chroma": {**rebuild, **chroma, "recall_at_5": float(np.mean(shared))}}


def table_of(results: Sequence[Figures]) -> Table:
    table = Table(title=f"search of one query, k = {K}")
    for name in (
        "memories",
        "snapshot p50 / p95 ms",
        "chroma p50 / p95 ms",
        "chroma : snapshot",
        "recall@5",
        "open s (+ first search)",
        "rebuild s",
        "rebuild : open",
        "MiB snapshot / chroma",
    ):
        table.add_column(name, justify="right")
    for result in results:
        exact, chroma = result["snapshot"], result["chroma"]
        table.add_row(
            f"{result['memories']:,}",
            f"{exact['search_p50_ms']:.3f} / {exact['search_p95_ms']:.3f}",
            f"{chroma['search_p50_ms']:.2f} / {chroma['search_p95_ms']:.2f}",
            f"{chroma['search_p50_ms'] / exact['search_p50_ms']:.2f}",
            f"{chroma['recall_at_5']:.4f}",
            f"{chroma['open_s']:.2f} ({chroma['open_and_first_search_s']:.2f})",
            f"{chroma['rebuild_s']:.1f}",
            f"{chroma['rebuild_s'] / chroma['open_s']:.0f}",
            f"{exact['memory_mib']:.0f} / {chroma['memory_mib']:.0f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--vectors", type=Path, help=f"unit vectors (.npy, float32); the last {QUERIES} are queries")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    rows = max(arguments.sizes)
    every = np.load(arguments.vectors) if arguments.vectors else clustered(rows + QUERIES)
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "vectors.npy", extended(every[:-QUERIES], rows))
        np.save(folder / "queries.npy", every[-QUERIES:])
        for size in arguments.sizes:
            results.append(measure(folder, size))
    Console().print(table_of(results))
    if arguments.json:
        machine = {"processors": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
        vectors = str(arguments.vectors or "clustered")
        arguments.json.write_text(json.dumps({"machine": machine, "vectors": vectors, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
