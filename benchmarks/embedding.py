"""Embedding with sentence-transformers and with DeltaMem's encoder side by side: ``python benchmarks/embedding.py``.

Texts are embedded by the two in turns, so that a noisy machine troubles both alike; the vectors are compared too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from deltamem.bert_encoder import fast_encoder
from deltamem.embedding import OFFLINE_MODEL, Vectors, load_model

SUBJECTS = ("Ann", "Her sister Ruth", "The neighbour", "Mr Okafor", "Their youngest child")
ENDINGS = ("in the garden", "since March", "and told nobody about it until the summer was over", "", "near the old harbour")


def texts_of(count: int, seed: int) -> list[str]:
    """Different texts of 8 to 20 words."""
    rng = np.random.default_rng(seed)
    return [
        f"{rng.choice(SUBJECTS)} keeps {rng.integers(2, 99)} bicycles {rng.choice(ENDINGS)} {rng.choice(ENDINGS)}."
        for _ in range(count)
    ]


def seconds(encode: Callable[[list[str]], Vectors], texts: list[str]) -> tuple[float, Vectors]:
    started = time.perf_counter()
    vectors = encode(texts)
    return time.perf_counter() - started, vectors


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=OFFLINE_MODEL, help="a model that `SentenceTransformerEmbedder` takes")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 5, 32], help="texts a call")
    parser.add_argument("--rounds", type=int, default=40, help="calls of each")
    options = parser.parse_args()
    model = load_model(options.model, "cpu")
    fast = fast_encoder(model)
    if fast is None:
        raise SystemExit(f"error: {options.model} is not a model that the fast encoder takes")

    def library(texts: list[str]) -> Vectors:
        return model.encode(texts, normalize_embeddings=True, show_progress_bar=False)

    print(f"{'texts':>5}{'library ms':>12}{'ours ms':>10}{'ratio':>8}{'difference':>13}")
    for count in options.counts:
        took: tuple[list[float], list[float]] = ([], [])
        worst = 0.0
        for number in range(options.rounds + 5):
            texts = texts_of(count, number)
            theirs, expected = seconds(library, texts)
            ours, vectors = seconds(fast.encode, texts)
            worst = max(worst, float(np.abs(vectors - expected).max()))
            if number >= 5:
                took[0].append(theirs)
                took[1].append(ours)
        theirs, ours = (1e3 * statistics.median(times) for times in took)
        print(f"{count:5}{theirs:12.2f}{ours:10.2f}{theirs / ours:7.2f}x{worst:13.1e}")


if __name__ == "__main__":
    main()
