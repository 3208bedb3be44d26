"""What the two benchmarks of long histories cost beside embedder and models: seconds and memory of complete offline runs.

    python benchmarks/haystacks.py longmemeval 500 48 10    # questions, sessions of each, turns of a session: the size of S
    python benchmarks/haystacks.py longmemeval 50 480 10    # histories as long as those of M
    python benchmarks/haystacks.py beam 20 4 64             # chats, batches of each, messages of a batch: the size of 100K

The data is invented, in the published format; recall and scores mean nothing. The embedder hashes words, which takes no time
to speak of, so that reading, ingesting, searching, finding the evidence and scoring are what is measured.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "eval")]

import beam_cases  # noqa: E402
import benchmark_cases  # noqa: E402
import longmemeval_cases  # noqa: E402

from deltamem.embedding import Vectors  # noqa: E402
from eval import runner  # noqa: E402


class HashedWords:
    """Texts that share words are similar."""

    name = "hashed words"

    def documents(self, texts: Sequence[str]) -> Vectors:  # noqa: D102
        vectors = np.zeros((len(texts), 256), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in text.split():
                row[crc32(word.encode()) % 256] += 1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1)

    queries = documents


def write(name: str, data: Path, sizes: Sequence[int]) -> None:
    """Write the data."""
    if name == "beam":
        beam_cases.write(data, beam_cases.many(*sizes, words=300))
    else:
        longmemeval_cases.write(data, longmemeval_cases.many(*sizes, words=160))


def main(name: str, *sizes: int) -> None:
    """Write the data, run once and again, and print what it took."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "big"
        writer = multiprocessing.Process(target=write, args=(name, data, sizes))  # whose memory is not the run's
        writer.start()
        writer.join()
        case = benchmark_cases.BEAM if name == "beam" else benchmark_cases.LONGMEMEVAL
        print(f"{data.stat().st_size / 1e6:,.0f} MB of data; peak so far {_peak():,.0f} MB")
        runner.make_embedder = lambda settings: HashedWords()
        for _ in range(2):
            started = time.monotonic()
            summary = case.run(Path(folder), f"data={data}", "system=naive_rag")
            shown = {metric: round(of["all"]["estimate"], 3) for metric, of in summary["scores"].items() if "@" in metric}
            asked, failed = summary["questions"]["answered"], summary["failures"]["count"]
            print(f"{time.monotonic() - started:,.1f} s, {asked} answered, {failed} failed, peak {_peak():,.0f} MB")
        print(json.dumps(shown))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
