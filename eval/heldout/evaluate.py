"""Evaluation as a function: policy and sessions in, records and summary out."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Unpack

from deltamem.embedding import CachedEmbedder, Embedder
from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError
from deltamem.files import atomic_writer
from deltamem.policy import Policy
from deltamem.provenance import git_commit, versions
from deltamem.rollout import Rollout, run_episodes
from deltamem.sessions import LabelledSession
from eval.heldout.record import to_record
from eval.heldout.summary import summarise
from eval.metrics.intervals import RESAMPLES
from rewards.diagnostics import count
from rewards.total import PAPER_WEIGHTS, Weights, score
from rewards.transition import TransitionOptions

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeldoutResult:
    """What an evaluation found.

    Attributes:
        records: One record a session (see `eval.heldout.record.to_record`), in the order of the sessions.
        summary: The figures (see `eval.heldout.summary.summarise`) with ``policy``, ``seconds`` and ``provenance``.
    """

    records: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def failed(self) -> int:
        """Sessions that broke in our own machinery."""
        return int(self.summary["failed"])

    def write(self, folder: Path) -> None:
        """Write ``trajectories.jsonl`` and ``summary.json``, each whole or not at all, the summary last.

        Raises:
            DeltaMemError: If the folder or a file cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_writer(folder / "trajectories.jsonl") as file:
                for record in self.records:
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
            with atomic_writer(folder / "summary.json") as file:
                file.write(json.dumps(self.summary, ensure_ascii=False, indent=2) + "\n")
        except OSError as error:
            raise DeltaMemError(f"{folder}: the result cannot be written: {error.strerror or error}") from error


async def evaluate_async(
    policy: Policy,
    sessions: Sequence[LabelledSession],
    embedder: Embedder,
    config: EpisodeConfig,
    *,
    weights: Weights = PAPER_WEIGHTS,
    max_concurrency: int = 64,
    resamples: int = RESAMPLES,
    seed: int = 0,
    provenance: Mapping[str, Any] | None = None,
    on_done: Callable[[Rollout], None] | None = None,
    **options: Unpack[TransitionOptions],
) -> HeldoutResult:
    """Run an episode over each session and score it.

    Args:
        policy: Writes the assistant texts.
        sessions: What to evaluate on.
        embedder: Embeds memories and queries, for search and for the reward.
        config: Prompts and limits of an episode.
        weights: Shares of the reward's parts.
        max_concurrency: Episodes under way at once.
        resamples: Bootstrap draws of people.
        seed: Seed of the bootstrap.
        provenance: What the caller knows of the making (files, their hashes, its configuration); kept in the summary
            beside commit, versions, episode configuration and prompt hashes.
        on_done: Called after each episode.
        **options: Passed on to `rewards.transition.transition_score`.

    Returns:
        Records and summary. Sessions that failed are in both.
    """
    begin = time.perf_counter()
    cached = embedder if isinstance(embedder, CachedEmbedder) else CachedEmbedder(embedder)
    rollouts = await run_episodes(sessions, policy, cached, config, max_concurrency=max_concurrency, on_done=on_done)
    # One large batch is much faster than one small batch a session; scoring then finds everything in the cache.
    cached.documents(_scored_texts(sessions, rollouts))
    records = []
    for labelled, rollout in zip(sessions, rollouts, strict=True):
        total = score(rollout.trajectory, labelled, cached.documents, weights=weights, **options)
        counts = count(labelled, rollout.trajectory, total.transition)
        records.append(to_record(labelled, rollout, total, counts))
    making = {
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "git_commit": git_commit(),
        "versions": versions(),
        "episode": asdict(config),
        "prompt_hashes": config.prompt_hashes,
        "embedder": cached.name,
        "weights": asdict(weights),
        "transition_options": dict(options),
        "bootstrap": {"by": "person", "level": 0.95, "resamples": resamples, "seed": seed},
    }
    summary = {
        "policy": policy.name,
        **summarise(records, resamples=resamples, seed=seed),
        "seconds": round(time.perf_counter() - begin, 3),
        "provenance": making | dict(provenance or {}),
    }
    return HeldoutResult(records, summary)


def _blocking(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return asyncio.run(function(*args, **kwargs))

    return call


evaluate = _blocking(evaluate_async)
"""`evaluate_async` for callers without an event loop; takes and returns the same."""


def _scored_texts(sessions: Sequence[LabelledSession], rollouts: Sequence[Rollout]) -> list[str]:
    """The distinct texts that scoring may compare; prior memories are embedded already."""
    target = (operation.text for item in sessions for operation in item.operations)
    predicted = (operation.text for rollout in rollouts for operation in rollout.trajectory.operations or ())
    return [text for text in dict.fromkeys((*target, *predicted)) if text]
