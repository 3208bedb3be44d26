"""What a batch of rollouts says about the policy and about the training signal. Pure functions of plain values."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deltamem.training.rollout.facts import RolloutFacts

PREFIX = "deltamem/"
"""Goes before the names in verl's log."""

_EQUAL = 1e-6
"""Rewards of a group that differ by less give GRPO nothing to learn from."""


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One rollout as the trainer sees it.

    Attributes:
        key: verl's key of the batch, ``<uid>_<rollout>_<index>``; rollouts of one prompt share the uid.
        reward: What the policy is trained on.
        figures: What the scorer said of it; empty of everything but the failure if the rollout failed.
        facts: What the agent loop noted.
        failure: Why our own machinery broke, if it did.
    """

    key: str
    reward: float
    figures: Mapping[str, float]
    facts: RolloutFacts
    failure: str | None

    @property
    def group(self) -> str:
        """The prompt that the rollout belongs to."""
        return self.key.split("_", 1)[0]

    @property
    def number(self) -> int:
        """Which of its group's rollouts this is, from 0."""
        return int(self.key.split("_")[1])


def batch_metrics(rows: Sequence[RolloutRow], expected: int) -> dict[str, float]:
    """All figures of a training batch, under the names of ``metrics.jsonl``.

    Args:
        rows: The rollouts that are there; at least one.
        expected: How many there should be.
    """
    answered = [row for row in rows if row.failure is None]
    train = figure_means([row.figures for row in rows])
    train |= {
        "reward": float(np.mean([row.reward for row in rows])),
        "failure": (expected - len(answered)) / expected,
    }
    train |= group_signal([(row.group, row.reward) for row in rows])
    facts = [row.facts for row in answered]
    return (
        {f"train/{name}": value for name, value in (train | episode_shape(facts)).items()}
        | {f"seconds/{name}": value for name, value in rollout_seconds(facts).items()}
        | {"data/order": float(data_order(row.facts["key"] for row in rows))}
    )


def figure_means(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of every figure over the rollouts that have it."""
    names = sorted({name for entry in figures for name in entry})
    return {name: float(np.mean([entry[name] for entry in figures if name in entry])) for name in names}


def group_signal(rewards: Sequence[tuple[str, float]]) -> dict[str, float]:
    """How much there is to learn from the groups of GRPO, which compares the rollouts of one prompt with each other.

    Args:
        rewards: Group and reward of each rollout.

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


def episode_shape(facts: Sequence[RolloutFacts]) -> dict[str, float]:
    """Lengths, turns, searches and the share of episodes that a token limit ended; empty without episodes."""
    if not facts:
        return {}
    tokens = [entry["model_tokens"] for entry in facts]
    half, most = np.percentile(tokens, [50, 95])
    shape = {
        "truncated": float(np.mean([entry["truncated"] for entry in facts])),
        "turns": float(np.mean([entry["turns"] for entry in facts])),
        "model_tokens_mean": float(np.mean(tokens)),
        "model_tokens_p50": float(half),
        "model_tokens_p95": float(most),
        "model_tokens_max": float(max(tokens)),
        "tool_tokens": float(np.mean([entry["tool_tokens"] for entry in facts])),
    }
    if queries := sum(entry["queries"] for entry in facts):
        shape["retrieved_per_query"] = sum(entry["retrieved"] for entry in facts) / queries
    return shape


def rollout_seconds(facts: Sequence[RolloutFacts]) -> dict[str, float]:
    """Wall time of the phases of a rollout, ``rollout_<phase>_mean`` and ``rollout_<phase>_sum``.

    The rollouts of a batch run at the same time, so the sums are no part of the step's own time.
    """
    phases = sorted({phase for entry in facts for phase in entry["seconds"]})
    spent = {phase: [entry["seconds"].get(phase, 0.0) for entry in facts] for phase in phases}
    means = {f"rollout_{phase}_mean": float(np.mean(values)) for phase, values in spent.items()}
    return means | {f"rollout_{phase}_sum": float(np.sum(values)) for phase, values in spent.items()}


def data_order(keys: Iterable[str]) -> int:
    """A number that two steps share if they were made of the same sessions, in whatever order their rollouts ended."""
    return zlib.crc32("\n".join(sorted(set(keys))).encode("utf-8"))
