"""Opening a store with many memories: ``python benchmarks/opening.py [--memories 100000]``.

Makes a store with one owner, then opens it in new processes: intact, and with its index removed, which is rebuilt and says
how far it is. Vectors cost nothing here, so it is the rebuilding of the index alone; importing packages does not count.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import numpy as np

from deltamem.bank.store import INDEX_FOLDER, MemoryStore
from deltamem.embedding import Vectors
from deltamem.journal.journal import JOURNAL_FILE, Journal
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.memory import Memory
from deltamem.sessions import Session, Turn

DIM = 384
TOGETHER = 1000
TIME = datetime(2026, 1, 1)


class RandomEmbedder:
    """A random unit vector for each text."""

    name = "random"

    def documents(self, texts: list[str]) -> Vectors:
        """Embed texts; returns float32 of shape ``(len(texts), 384)``."""
        rows = np.random.default_rng(len(texts)).standard_normal((len(texts), DIM), dtype=np.float32)
        unit: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return unit

    queries = documents


def fill(folder: Path, memories: int) -> None:
    """Write a journal with so many memories; the index is built by the first opening."""
    with Journal.open(folder / JOURNAL_FILE) as journal:
        owner = journal.owner("ann")
        for start in range(1, memories + 1, TOGETHER):
            texts = {n: f"Ann keeps {n} things in room {n % 97} of house {n // 97}." for n in range(start, start + TOGETHER)}
            changes = [Change(ChangeEvent.ADD, f"m{n}", None, Memory(f"m{n}", text, TIME)) for n, text in texts.items()]
            owner.append(
                EntryKind.SESSION, changes, session=Session("ann", "Ann", TIME, (Turn("user", "Hi."),), f"s{start}")
            )


def open_once(folder: Path) -> None:
    """Open the store in this process, search, and print what it took."""
    import deltamem.bank.chroma  # noqa: F401  the import is not what is measured

    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reports: list[int] = []
    begin = time.perf_counter()
    with MemoryStore.open(folder, RandomEmbedder(), progress=lambda owner, done, total: reports.append(done)) as store:  # type: ignore[arg-type]
        owned = store.bank("ann")
        opened = time.perf_counter() - begin
        hits = owned.bank.search(store.embedder.queries(["Where?"]), 5)[0]
        searched = time.perf_counter() - begin - opened
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            f"{len(owned.bank.state)} memories: opened in {opened:.2f} s ({len(reports)} reports of progress), "
            f"first search {1e3 * searched:.1f} ms ({len(hits)} hits), {(peak - base) / 1024:.0f} MiB more memory"
        )


def main() -> None:
    """Make the store and open it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memories", type=int, default=100_000)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open is not None:
        open_once(options.open)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder, options.memories)
        for what in ("no index yet", "intact", "intact", "index removed", "intact"):
            if what == "index removed":
                shutil.rmtree(folder / INDEX_FOLDER)
            print(f"{what:>14}: ", end="", flush=True)
            subprocess.run([sys.executable, __file__, "--open", str(folder)], check=True)


if __name__ == "__main__":
    main()
