"""Gates: conditions of ``deltamem.gates`` (``configs/train.yaml``) that end a run whose hours would be wasted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from deltamem.training.config import GateSettings


class _Share(NamedTuple):
    """A share that should not exceed a gate: of a validation at once, of training for some steps in a row."""

    gate: str
    metric: str
    sentence: str


_SHARES = (
    _Share("truncated", "heldout/count/violations/token_limit", "a token limit ended {value:.0%} of the held-out episodes"),
    _Share("truncated", "train/truncated", "a token limit ended {value:.0%} of the episodes"),
    _Share("unreadable", "heldout/count/unreadable", "{value:.0%} of the held-out episodes have no readable answer"),
    _Share("unreadable", "train/count/unreadable", "{value:.0%} of the episodes have no readable answer"),
    _Share("no_signal", "train/no_signal", "the rollouts earn the same in {value:.0%} of the groups: GRPO learns nothing"),
)


class Gates:
    """Looks at the lines of ``metrics.jsonl`` as they come."""

    def __init__(self, settings: GateSettings, heldout: Mapping[int, float]) -> None:
        """Begin after the validations of earlier processes, whose `heldout` rewards by step count for the drop alone."""
        self._settings = settings
        self._best = max(heldout.values(), default=0.0)
        self._above: Counter[str] = Counter()

    def check(self, record: Mapping[str, Any]) -> str | None:
        """The first condition that a line meets, in a sentence that names its gate; None if there is none."""
        step, settings = record["step"], self._settings
        for gate, metric, sentence in _SHARES:
            limit, value = getattr(settings, gate), record.get(metric)
            if limit is None or value is None:
                continue
            self._above[metric] = self._above[metric] + 1 if value > limit else 0
            needed = settings.steps if metric.startswith("train/") else 1
            if self._above[metric] >= needed:
                row = f" for {needed} steps" if needed > 1 else ""
                return f"step {step}: {sentence.format(value=value)}{row} (deltamem.gates.{gate}={limit:g})"
        reward = record.get("heldout/reward")
        if reward is not None and settings.heldout_drop is not None:
            if reward < (1.0 - settings.heldout_drop) * self._best:
                found = f"the held-out reward fell from {self._best:.3f} to {reward:.3f}"
                return f"step {step}: {found} (deltamem.gates.heldout_drop={settings.heldout_drop:g})"
            self._best = max(self._best, reward)
        return None
