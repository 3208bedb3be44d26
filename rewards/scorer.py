"""The scorer that the agent loop is given (Hydra: ``_target_: rewards.scorer.DeltaMemScorer``)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from deltamem.episode import EmbedTexts, Trajectory
from deltamem.sessions import LabelledSession
from rewards.diagnostics import count
from rewards.reward import TotalScore, TransitionOptions, Weights, check_options, score


class DeltaMemScorer:
    """Scores episodes with the total reward; implements `deltamem.episode.Scorer`."""

    def __init__(
        self,
        *,
        format_weight: float = 0.1,
        retrieval_weight: float = 0.1,
        transition_weight: float = 0.8,
        tau: float = 0.75,
        lexical_fidelity: bool = True,
        paper_literal: bool = False,
        stale_weight: float = 1.0,
        match_overwritten: bool = True,
    ) -> None:
        """Fix the reward's settings; see `rewards.reward.transition_score` for their meaning.

        Raises:
            DeltaMemError: If the weights do not add up to 1 or an option is out of its range.
        """
        check_options(tau=tau, stale_weight=stale_weight)
        self._weights = Weights(format=format_weight, retrieval=retrieval_weight, transition=transition_weight)
        self._options = TransitionOptions(
            tau=tau,
            lexical_fidelity=lexical_fidelity,
            paper_literal=paper_literal,
            stale_weight=stale_weight,
            match_overwritten=match_overwritten,
        )

    def __call__(self, labelled: LabelledSession, trajectory: Trajectory, embed: EmbedTexts) -> dict[str, float]:
        """Score one episode.

        Args:
            labelled: The session with its prior state and target operations.
            trajectory: The finished episode.
            embed: Embeds memory texts.

        Returns:
            ``reward, format, retrieval, transition, precision, recall, positive_distance, negative_distance`` and the
            counts of `rewards.diagnostics` under ``count/<name>``.
        """
        total = self._score(labelled, trajectory, embed)
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
        return figures | {f"count/{name}": float(value) for name, value in counts.items()}

    def detail(self, labelled: LabelledSession, trajectory: Trajectory, embed: EmbedTexts) -> dict[str, Any]:
        """The `rewards.reward.TotalScore` of an episode as plain JSON values."""
        return asdict(self._score(labelled, trajectory, embed))

    def _score(self, labelled: LabelledSession, trajectory: Trajectory, embed: EmbedTexts) -> TotalScore:
        return score(trajectory, labelled, embed, weights=self._weights, **self._options)
