"""What a person should be told of while a run goes on, each thing once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_NO_SIGNAL_STEPS = 10


@dataclass(frozen=True, slots=True)
class _Limit:
    """A metric whose size should not exceed a limit for a number of steps."""

    metric: str
    limit: float
    steps: int
    sentence: str


_LIMITS = (
    _Limit(
        "train/no_signal",
        0.8,
        _NO_SIGNAL_STEPS,
        "{value:.0%} of the groups are without signal, and not for the first step: the rollouts of a prompt all earn the "
        "same, and GRPO learns nothing; more rollouts a prompt or a higher temperature may help",
    ),
    _Limit(
        "train/truncated",
        0.2,
        1,
        "a token limit ended {value:.0%} of the episodes; see deltamem.turn_tokens and data.max_response_length",
    ),
    _Limit(
        "train/add_for_update",
        0.5,
        1,
        "the policy does {value:.0%} of the due UPDATEs as ADDs: this games the reward; see deltamem.reward.stale_weight",
    ),
    _Limit(
        "train/kl_to_sampler",
        0.05,
        1,
        "sampler and actor are different policies (KL {value:.3f}): their weights, precision or templates disagree",
    ),
)


@dataclass
class Alarms:
    """Watches the metrics of a run."""

    _above: dict[str, int] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def check(self, record: Mapping[str, Any]) -> list[str]:
        """Look at a line of ``metrics.jsonl``; a line without a metric leaves its count alone.

        Returns:
            One sentence for each condition that holds now for the first time.
        """
        sentences = []
        for limit in _LIMITS:
            value = record.get(limit.metric)
            if value is None:
                continue
            self._above[limit.metric] = self._above.get(limit.metric, 0) + 1 if abs(value) > limit.limit else 0
            if self._above[limit.metric] >= limit.steps and limit.metric not in self._told:
                self._told.add(limit.metric)
                sentences.append(f"step {record['step']}: {limit.sentence.format(value=value)}")
        return sentences
