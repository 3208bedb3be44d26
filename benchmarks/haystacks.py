"""What the two benchmarks of long histories cost beside embedder and models: seconds and memory of complete offline runs.

    python benchmarks/haystacks.py longmemeval 500 48 10    # questions, sessions of each, turns of a session: the size of S
    python benchmarks/haystacks.py longmemeval 50 480 10    # histories as long as those of M
    python benchmarks/haystacks.py beam 20 4 64             # chats, batches of each, messages of a batch: the size of 100K

The data is invented, in the published format; recall and scores mean nothing. The embedder hashes words, which takes no time
to speak of, so that reading, ingesting, searching, finding the evidence and scoring are what is measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "eval")]

import beam_cases  # noqa: E402
import benchmark_cases  # noqa: E402
import longmemeval_cases  # noqa: E402

from deltamem.embedding import Vectors  # noqa: E402
from eval import runner  # noqa: E402
from eval.beam.data import ABILITIES  # noqa: E402
from eval.longmemeval.data import TYPES  # noqa: E402


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


SYLLABLES = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in ("ra", "lin", "to", "shek")]
WORDS = [f"{first}{second}" for first in SYLLABLES for second in SYLLABLES]
OFTEN = list(accumulate(1 / rank for rank in range(1, len(WORDS) + 1)))


def babble(draw: random.Random, count: int) -> str:
    """Sentences of words that occur about as often as those of a language."""
    words = draw.choices(WORDS, cum_weights=OFTEN, k=count)
    return " ".join(f"{word}." if number % 12 == 0 or number == count else word for number, word in enumerate(words, 1))


def many_questions(questions: int, sessions: int, turns: int, words: int = 20, seed: int = 0) -> list[dict[str, Any]]:
    """As large a file as is wanted: sessions are drawn from a pool, as the filler sessions of the benchmark are."""
    draw = random.Random(seed)
    pool = [
        (f"filler_{n}", [(("user", "assistant")[i % 2], babble(draw, words)) for i in range(turns)])
        for n in range(40 * sessions)
    ]
    kinds = list(TYPES)
    found = []
    for number in range(questions):
        fact = babble(draw, 6)
        day = [("user", f"By the way: {fact}*"), ("assistant", babble(draw, words))]
        own = [*draw.sample(pool, sessions - 2), (f"answer_{number}", day)]
        dates = [f"2023/{1 + n % 12:02}/{1 + n % 28:02} (Mon) {n % 24:02}:{n % 60:02}" for n in range(sessions)]
        abstention = "_abs" if number % 17 == 0 else ""
        found.append(
            longmemeval_cases.record(
                f"q{number}{abstention}", kinds[number % len(kinds)], f"What of {fact[:12]}?", fact, *own,
                haystack_dates=dates,
            )
        )  # fmt: skip
    return found


def many_chats(chats: int, batches: int, messages: int, words: int = 20, seed: int = 0) -> list[dict[str, Any]]:
    """As large a file as is wanted, with two questions for each ability on every chat."""
    draw = random.Random(seed)
    found = []
    for name in range(chats):
        texts = [babble(draw, words) for _ in range(batches * messages)]
        asked = {
            ability: [
                beam_cases.probe(
                    f"What of {texts[place][:30]}?",
                    "one thing",
                    "another",
                    source=[] if ability == "abstention" else [place],
                )
                for place in draw.sample(range(len(texts)), 2)
            ]
            for ability in ABILITIES
        }
        days = [f"{('March', 'April', 'May')[number % 3]}-{1 + number % 28:02}-2024" for number in range(batches)]
        begins = range(0, len(texts), messages)
        starred = ["*" * (place % 4 == 0) + text for place, text in enumerate(texts)]
        found.append(
            beam_cases.row(
                str(name),
                [beam_cases.batch(at, day, *starred[at : at + messages]) for at, day in zip(begins, days, strict=True)],
                asked,
            )
        )
    return found


def write(name: str, data: Path, sizes: Sequence[int]) -> None:
    """Write the data."""
    if name == "beam":
        beam_cases.write(data, many_chats(*sizes, words=300))
    else:
        longmemeval_cases.write(data, many_questions(*sizes, words=160))


def main() -> None:
    """Write the data, run once and again, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["longmemeval", "beam"])
    parser.add_argument("sizes", type=int, nargs=3)
    options = parser.parse_args()
    name, sizes = options.name, options.sizes
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "big"
        # In a process of its own, whose memory is not the run's.
        writer = multiprocessing.get_context("spawn").Process(target=write, args=(name, data, sizes))
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
    main()
