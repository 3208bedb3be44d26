"""What the agent loop reports of a rollout, and the metrics of a batch of rollouts."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

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
    # A validation generation: ``session`` (its line of sessions.jsonl), the fields of its trajectory and ``score``.
    generation: dict[str, Any] | None


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
    infos = [row.info for row in answered]
    figures = [{**row.figures, "reward": row.reward} for row in answered]
    train = {name: _mean(entry[name] for entry in figures if name in entry) for name in sorted(set().union(*figures))}
    train["failure"] = (expected - len(answered)) / expected
    train |= group_signal([(row.group, row.reward) for row in answered]) | episode_shape(infos)
    metrics = {f"train/{name}": value for name, value in train.items()}
    # The rollouts of a batch run at the same time, so the sums are no part of the step's own time.
    for phase in sorted({phase for entry in infos for phase in entry["seconds"]}):
        spent = [entry["seconds"].get(phase, 0.0) for entry in infos]
        metrics[f"seconds/rollout_{phase}_mean"] = _mean(spent)
        metrics[f"seconds/rollout_{phase}_sum"] = float(np.sum(spent))
    return metrics | {"data/order": float(data_order(row.info["key"] for row in rows))}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def group_signal(rewards: Sequence[tuple[str, float]]) -> dict[str, float]:
    """How much there is to learn from the groups of GRPO, from the group and reward of each rollout.

    ``group_std`` is the mean over groups of the standard deviation of their rewards, ``no_signal`` the share of groups whose
    rewards are all equal; nothing if no group has two rollouts.
    """
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for group, reward in rewards:
        groups[group].append(reward)
    compared = [values for values in groups.values() if len(values) > 1]
    if not compared:
        return {}
    return {
        "group_std": _mean(float(np.std(values, ddof=1)) for values in compared),
        "no_signal": _mean(max(values) - min(values) < _EQUAL for values in compared),
    }


def episode_shape(infos: Sequence[RolloutInfo]) -> dict[str, float]:
    """Lengths, turns, searches and the share of episodes that a token limit ended; empty without episodes."""
    if not infos:
        return {}
    tokens = [entry["model_tokens"] for entry in infos]
    half, most = np.percentile(tokens, [50, 95])
    shape = {
        "truncated": _mean(entry["truncated"] for entry in infos),
        "turns": _mean(entry["turns"] for entry in infos),
        "model_tokens_mean": _mean(tokens),
        "model_tokens_p50": float(half),
        "model_tokens_p95": float(most),
        "model_tokens_max": float(max(tokens)),
        "tool_tokens": _mean(entry["tool_tokens"] for entry in infos),
    }
    if queries := sum(entry["queries"] for entry in infos):
        shape["retrieved_per_query"] = sum(entry["retrieved"] for entry in infos) / queries
    return shape


def data_order(keys: Iterable[str]) -> int:
    """A checksum of a step's sessions, whatever order their rollouts ended in."""
    return zlib.crc32("\n".join(sorted(set(keys))).encode("utf-8"))
