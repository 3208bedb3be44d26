"""The scorer that the agent loop is given (Hydra: ``_target_: rewards.scorer.DeltaMemScorer``)."""

from __future__ import annotations

from dataclasses import dataclass

from deltamem.episode import EmbedTexts, Trajectory
from deltamem.sessions import LabelledSession
from rewards.diagnostics import count
from rewards.reward import RewardOptions, TotalScore, score

_OF_TRANSITION = ("precision", "recall", "positive_distance", "negative_distance")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaMemScorer(RewardOptions):
    """Scores episodes with the total reward; implements `deltamem.episode.Scorer`. Takes the options as keywords."""

    def __call__(
        self, labelled: LabelledSession, trajectory: Trajectory, embed: EmbedTexts
    ) -> tuple[dict[str, float], TotalScore]:
        """Score a finished episode of a session with its prior state and target.

        Returns:
            ``reward, format, retrieval, transition, precision, recall, positive_distance, negative_distance`` and the
            counts of `rewards.diagnostics` under ``count/<name>``; and the score that they are taken from.
        """
        total = score(trajectory, labelled, embed, self)
        transition = total.transition
        figures = {name: getattr(total, name) for name in ("reward", "format", "retrieval")}
        figures["transition"] = transition.reward
        figures |= {name: getattr(transition, name) for name in _OF_TRANSITION}
        counts = count(labelled, trajectory, transition)
        return figures | {f"count/{name}": float(value) for name, value in counts.items()}, total
