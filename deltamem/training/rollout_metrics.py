"""What the agent loop reports of a rollout, and the metrics of a batch of rollouts."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import psutil

from deltamem.episode import Trajectory, Violation, trajectory_fields

if TYPE_CHECKING:
    from deltamem.training.agent_loop import TokenSequence

ROLLOUT_INFO = "rollout_info"
"""Key of the `RolloutInfo` in verl's ``extra_fields``."""


class RolloutInfo(TypedDict):
    """What the agent loop notes of one rollout."""

    key: str  # of the session
    heldout: bool
    truncated: bool  # a token limit ended the episode
    turns: int  # of the assistant
    model_tokens: int
    tool_tokens: int  # with the markup around them
    queries: int
    retrieved: int  # memories that the searches returned
    seconds: dict[str, float]  # wall time by phase: ``generate``, ``search``, ``reward``
    # A validation generation: ``session`` (its line of sessions.jsonl), `trajectory_fields` and ``score`` (of the `Scorer`).
    generation: dict[str, Any] | None


def rollout_info(
    trajectory: Trajectory,
    tokens: TokenSequence,
    *,
    key: str,
    heldout: bool,
    seconds: Mapping[str, float],
    generation: tuple[str, Mapping[str, Any]] | None = None,
) -> RolloutInfo:
    """Describe a rollout.

    Args:
        trajectory: The episode; one that failed has no messages.
        tokens: What is handed to the trainer.
        key: The session's key.
        heldout: Whether the session is of the held-out split.
        seconds: Wall time by phase.
        generation: The line of ``sessions.jsonl`` and the score in detail, if the whole episode is kept.
    """
    model_tokens = sum(tokens.mask)
    return RolloutInfo(
        key=key,
        heldout=heldout,
        truncated=Violation.TOKEN_LIMIT in trajectory.violations,
        turns=sum(message["role"] == "assistant" for message in trajectory.messages),
        model_tokens=model_tokens,
        tool_tokens=len(tokens.mask) - model_tokens if trajectory.failure is None else 0,
        queries=sum(len(queries) for queries in trajectory.queries),
        retrieved=sum(len(ids) for ids in trajectory.retrieved_ids),
        seconds=dict(seconds),
        generation=None
        if generation is None
        else {"session": generation[0], **trajectory_fields(trajectory), "score": dict(generation[1])},
    )


PREFIX = "deltamem/"
"""Goes before the names in verl's log."""

_EQUAL = 1e-6
"""Rewards of a group that differ by less give GRPO nothing to learn from."""


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One rollout as the trainer sees it."""

    key: str  # verl's key of the batch, ``<uid>_<rollout>_<index>``; rollouts of one prompt share the uid
    reward: float
    figures: Mapping[str, float]  # from the scorer; only the failure if the rollout failed
    info: RolloutInfo
    failure: str | None  # why our own machinery broke, if it did

    @property
    def group(self) -> str:
        """The prompt that the rollout belongs to."""
        return self.key.split("_", 1)[0]

    @property
    def number(self) -> int:
        """Which of its group's rollouts this is, from 0."""
        return int(self.key.split("_")[1])


def batch_metrics(rows: Sequence[RolloutRow], expected: int) -> dict[str, float]:
    """All figures of a training batch that should have `expected` rollouts, under the names of ``metrics.jsonl``."""
    answered = [row for row in rows if row.failure is None]
    train = figure_means([{**row.figures, "reward": row.reward} for row in answered])
    train["failure"] = (expected - len(answered)) / expected
    train |= group_signal([(row.group, row.reward) for row in answered])
    infos = [row.info for row in answered]
    return (
        {f"train/{name}": value for name, value in (train | episode_shape(infos)).items()}
        | {f"seconds/{name}": value for name, value in rollout_seconds(infos).items()}
        | {"data/order": float(data_order(row.info["key"] for row in rows))}
    )


def figure_means(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of every figure over the rollouts that have it."""
    names = sorted({name for entry in figures for name in entry})
    return {name: float(np.mean([entry[name] for entry in figures if name in entry])) for name in names}


def group_signal(rewards: Sequence[tuple[str, float]]) -> dict[str, float]:
    """How much there is to learn from the groups of GRPO, from the group and reward of each rollout.

    Returns:
        ``group_std``, the mean over groups of the standard deviation of their rewards, and ``no_signal``, the share of
        groups whose rewards are all equal; nothing if no group has two rollouts.
    """
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for group, reward in rewards:
        groups[group].append(reward)
    compared = [values for values in groups.values() if len(values) > 1]
    if not compared:
        return {}
    return {
        "group_std": float(np.mean([np.std(values, ddof=1) for values in compared])),
        "no_signal": float(np.mean([max(values) - min(values) < _EQUAL for values in compared])),
    }


def episode_shape(infos: Sequence[RolloutInfo]) -> dict[str, float]:
    """Lengths, turns, searches and the share of episodes that a token limit ended; empty without episodes."""
    if not infos:
        return {}
    tokens = [entry["model_tokens"] for entry in infos]
    half, most = np.percentile(tokens, [50, 95])
    shape = {
        "truncated": float(np.mean([entry["truncated"] for entry in infos])),
        "turns": float(np.mean([entry["turns"] for entry in infos])),
        "model_tokens_mean": float(np.mean(tokens)),
        "model_tokens_p50": float(half),
        "model_tokens_p95": float(most),
        "model_tokens_max": float(max(tokens)),
        "tool_tokens": float(np.mean([entry["tool_tokens"] for entry in infos])),
    }
    if queries := sum(entry["queries"] for entry in infos):
        shape["retrieved_per_query"] = sum(entry["retrieved"] for entry in infos) / queries
    return shape


def rollout_seconds(infos: Sequence[RolloutInfo]) -> dict[str, float]:
    """Wall time of the phases of a rollout, ``rollout_<phase>_mean`` and ``rollout_<phase>_sum``.

    The rollouts of a batch run at the same time, so the sums are no part of the step's own time.
    """
    phases = sorted({phase for entry in infos for phase in entry["seconds"]})
    spent = {phase: [entry["seconds"].get(phase, 0.0) for entry in infos] for phase in phases}
    means = {f"rollout_{phase}_mean": float(np.mean(values)) for phase, values in spent.items()}
    return means | {f"rollout_{phase}_sum": float(np.sum(values)) for phase, values in spent.items()}


def data_order(keys: Iterable[str]) -> int:
    """A checksum of a step's sessions, whatever order their rollouts ended in."""
    return zlib.crc32("\n".join(sorted(set(keys))).encode("utf-8"))


_GB = 1024**3


def run_processes(start: psutil.Process) -> list[psutil.Process]:
    """The processes of the run that `start`, for example a worker, belongs to: a common ancestor and its descendants.

    Ray's workers descend from its ``raylet``. Where the run has started ray itself, the raylet descends from the driver, and
    so do ray's other processes; a raylet that ``ray start`` made has no driver above it, and only its own descendants are
    known to belong to the run. Without a raylet it is `start` itself with its descendants.
    """
    root = start
    for ancestor in start.parents():
        if ancestor.name() == "raylet":
            driver = ancestor.parent()
            root = driver if driver is not None and driver.name().startswith("python") else ancestor
            break
    return [root, *root.children(recursive=True)]


def memory_figures(processes: list[psutil.Process]) -> dict[str, float]:
    """Their memory.

    Returns:
        ``rss_gb``, which counts memory that processes share once for each of them; ``pss_gb``, which shares it out among
        them, where the system reports it; ``processes``, their number. Processes that have ended are left out.
    """
    used = [memory for process in processes if (memory := _memory(process)) is not None]
    figures = {"rss_gb": sum(rss for rss, _ in used) / _GB, "processes": float(len(used))}
    shares = [pss for _, pss in used if pss is not None]
    return figures | ({"pss_gb": sum(shares) / _GB} if len(shares) == len(used) else {})


def _memory(process: psutil.Process) -> tuple[int, int | None] | None:
    try:
        rss: int = process.memory_info().rss
        try:
            return rss, process.memory_full_info().pss
        except (psutil.AccessDenied, AttributeError):
            return rss, None
    except psutil.NoSuchProcess:
        return None
