"""The scorer that the agent loop is given (Hydra: ``_target_: rewards.scorer.DeltaMemScorer``)."""

from __future__ import annotations

from dataclasses import dataclass

from deltamem.episode import EmbedTexts, Trajectory
from deltamem.sessions import LabelledSession
from rewards.diagnostics import count
from rewards.reward import RewardOptions, TotalScore, score


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaMemScorer(RewardOptions):
    """Scores episodes with the total reward; implements `deltamem.episode.Scorer`. Takes the options as keywords."""

    def __call__(
        self, labelled: LabelledSession, trajectory: Trajectory, embed: EmbedTexts
    ) -> tuple[dict[str, float], TotalScore]:
        """Score one episode.

        Args:
            labelled: The session with its prior state and target operations.
            trajectory: The finished episode.
            embed: Embeds memory texts.

        Returns:
            ``reward, format, retrieval, transition, precision, recall, positive_distance, negative_distance`` and the
            counts of `rewards.diagnostics` under ``count/<name>``; and the score that they are taken from.
        """
        total = score(trajectory, labelled, embed, self)
        transition = total.transition
        figures = {
            "reward": total.reward,
            "format": total.format,
            "retrieval": total.retrieval,
            "transition": transition.reward,
            "precision": transition.precision,
            "recall": transition.recall,
            "positive_distance": transition.positive_distance,
            "negative_distance": transition.negative_distance,
        }
        counts = count(labelled, trajectory, transition)
        return figures | {f"count/{name}": float(value) for name, value in counts.items()}, total
