"""What a reward costs: ``python benchmarks/reward.py [--trajectories 512] [--prompts 64] [--json FILE]``.

Scoring: the whole call of `DeltaMemScorer`, diagnostics included, over trajectories with 20 entries on each side of the
comparison, vectors at hand. Embedding: the new texts of a step's rollouts through store, client and owner (in this process,
without ray) against one call of the embedder for each trajectory, with the real all-MiniLM-L6-v2, in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deltamem.embedding import OFFLINE_MODEL, Embedder, Vectors, load_embedder
from deltamem.episode import Trajectory
from deltamem.memory import Event, Memory, MemoryState, Operation, apply
from deltamem.sessions import LabelledSession, Session
from deltamem.training.embedding_service import BatchedEmbedder, EmbeddingClient, Lookup, TextVectors
from deltamem.training.embedding_store import EmbeddingStore, build_store
from rewards import diagnostics
from rewards import reward as transition
from rewards.reward import state_diff
from rewards.scorer import DeltaMemScorer

TIME = datetime(2026, 4, 5, 20, 1)
MEMORIES = 100
ENTRIES = 20
DIM = 384
NAMES = ("Anna", "Ruth Okafor", "Her brother Ben", "The neighbour's daughter", "Anna's manager")
FACTS = ("moved to", "works as a nurse in", "is planning a holiday in", "keeps a small garden in", "was offered a flat in")
PLACES = ("Lisbon", "Oslo", "Quito", "Hanoi", "Perth", "Turin", "Accra", "Osaka", "Bergen", "Porto", "Leeds", "Graz")
ENDINGS = ("since the spring of 2025", "because of a new job", "with two friends from school", "and likes it", "for now")


class Rollout(NamedTuple):
    """One finished episode and its session."""

    labelled: LabelledSession
    trajectory: Trajectory

    def texts(self) -> list[str]:
        """All texts whose vectors the agent loop awaits: of the prior state, the target and the prediction."""
        operations = (*self.labelled.operations, *(self.trajectory.operations or ()))
        memories = self.labelled.prior_state.memories
        return sorted({*(memory.text for memory in memories), *(operation.text for operation in operations)})


def sentence(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    """A memory of a usual length, and its keywords."""
    place, number, ending = rng.choice(PLACES), rng.randint(2, 900), rng.choice(ENDINGS)
    return f"{rng.choice(NAMES)} {rng.choice(FACTS)} {place}, {number} km away, {ending}.", (place, str(number))


def rollouts_of(prompts: int, rollouts: int) -> list[Rollout]:
    """Episodes with 20 entries of either complement.

    11 additions on each side; of 8 due updates 6 are made, and one memory is overwritten that is not due. A predicted text
    is a target's with another ending, or now and then a sentence of its own, so that most entries find a partner.
    """
    episodes = []
    for prompt in range(prompts):
        rng = random.Random(prompt)
        texts = list(dict.fromkeys(sentence(rng)[0] for _ in range(2 * MEMORIES)))[:MEMORIES]
        prior = MemoryState(Memory(f"m{row + 1}", text, TIME) for row, text in enumerate(texts))
        facts = [sentence(rng) for _ in range(19)]
        target = [Operation(Event.UPDATE, *_split(fact, f"m{row + 1}")) for row, fact in enumerate(facts[:8])]
        target += [Operation(Event.ADD, text, None, keywords) for text, keywords in facts[8:]]
        nones = tuple(Operation(Event.NONE, texts[row], f"m{row + 1}") for row in (30, 31, 32))
        labelled = LabelledSession(
            Session(f"p{prompt}", "Anna", TIME, ()), 0, "train", prior, (*target, *nones), apply(prior, target, TIME)
        )
        for rollout in range(rollouts):
            drawn = random.Random(1_000 * prompt + rollout)
            new = [
                sentence(drawn)[0] if drawn.random() < 0.15 else f"{text[:-1]} {drawn.choice(ENDINGS)}." for text, _ in facts
            ]
            predicted = [Operation(Event.UPDATE, new[row], f"m{row + 1}") for row in range(6)]
            predicted += [Operation(Event.UPDATE, new[6], "m50"), *(Operation(Event.ADD, text) for text in new[8:])]
            ids = tuple(f"m{row + 1}" for row in range(35))
            episodes.append(Rollout(labelled, Trajectory((), (("home", "work"),), (ids,), (*predicted, *nones))))
    return episodes


def _split(fact: tuple[str, tuple[str, ...]], memory_id: str) -> tuple[str, str, tuple[str, ...]]:
    return fact[0], memory_id, fact[1]


def like_minilm(texts: Sequence[str]) -> dict[str, Vectors]:
    """A vector for each text: that of its words added up, so that like texts are close."""
    words: dict[str, Vectors] = {}
    found = {}
    for text in texts:
        parts = text.replace(",", "").replace(".", "").split()
        for word in parts:
            if word not in words:
                words[word] = np.random.default_rng(abs(hash(word)) % 2**32).normal(size=DIM).astype(np.float32)
        vector = np.sum([words[word] for word in parts], axis=0)
        found[text] = (vector / np.linalg.norm(vector)).astype(np.float32)
    return found


def clear_caches() -> None:
    for module in (diagnostics, transition):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def scoring(rollouts: Sequence[Rollout], rounds: int) -> dict[str, float]:
    """Processor milliseconds a trajectory of the scorer alone; each round begins with empty caches."""
    scorer = DeltaMemScorer()
    embed = Lookup(like_minilm(sorted({text for rollout in rollouts for text in rollout.texts()})))
    pairs = 0
    for rollout in rollouts:
        states = state_diff(rollout.labelled.prior_state, rollout.trajectory.operations or (), rollout.labelled.operations)
        if (len(states.predicted), len(states.target)) != (ENTRIES, ENTRIES):
            raise SystemExit(f"error: a trajectory has {len(states.predicted)} and {len(states.target)} entries")
        pairs += len(scorer(rollout.labelled, rollout.trajectory, embed)[1].transition.pairs)
    times = []
    for _ in range(rounds):
        clear_caches()
        begin = time.process_time()
        for rollout in rollouts:
            scorer(rollout.labelled, rollout.trajectory, embed)
        times.append(1e3 * (time.process_time() - begin) / len(rollouts))
    return {"pairs": pairs / len(rollouts), "best_ms": min(times), "median_ms": statistics.median(times)}


def embedding(rollouts: Sequence[Rollout], embedder: Embedder, folder: Path) -> dict[str, float]:
    """Seconds to get the vectors of all texts of all rollouts, in both ways, and of building the store once."""
    prior = [memory.text for rollout in rollouts for memory in rollout.labelled.next_state.memories]
    prior += [memory.text for rollout in rollouts for memory in rollout.labelled.prior_state.memories]
    begin = time.perf_counter()
    build_store(folder, prior, embedder)
    built = time.perf_counter() - begin

    async def batched() -> list[Any]:
        owner = BatchedEmbedder(embedder)

        async def ask(texts: list[str]) -> Vectors:
            return Lookup(await owner.documents.get(texts))(texts)

        client = EmbeddingClient(
            documents=TextVectors(ask, max_calls=8), queries=TextVectors(ask), store=EmbeddingStore(folder, embedder.name)
        )
        return await asyncio.gather(*(client.documents(rollout.texts()) for rollout in rollouts))

    begin = time.perf_counter()
    ours = asyncio.run(batched())
    together = time.perf_counter() - begin
    begin = time.perf_counter()
    theirs = [embedder.documents(rollout.texts()) for rollout in rollouts]
    apart = time.perf_counter() - begin
    for rollout, one, other in zip(rollouts, ours, theirs, strict=True):
        np.testing.assert_allclose(Lookup(one)(rollout.texts()), other, atol=1e-5)
    return {"build_s": built, "store_and_owner_s": together, "per_trajectory_s": apart, "ratio": apart / together}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=64, help="to embed for, with 8 rollouts each; 0 leaves it out")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    figures: dict[str, Any] = {"scoring": scoring(rollouts_of(max(1, options.trajectories // 8), 8), options.rounds)}
    if options.prompts:
        embedder = load_embedder(OFFLINE_MODEL, max_texts=0)
        embedder.documents(["warm"])
        with tempfile.TemporaryDirectory() as folder:
            figures["embedding"] = embedding(rollouts_of(options.prompts, 8), embedder, Path(folder))
    for part, values in figures.items():
        print(f"{part}: " + ", ".join(f"{name} {value:.3f}" for name, value in values.items()))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
