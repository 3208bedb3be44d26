"""The total reward of one episode (paper, equation 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from deltamem.episode import Trajectory
from deltamem.errors import DeltaMemError
from deltamem.scoring import EmbedTexts
from deltamem.sessions import LabelledSession
from rewards.format import format_score
from rewards.retrieval import retrieval_score
from rewards.transition import TransitionOptions, TransitionScore, transition_score


@dataclass(frozen=True, slots=True)
class Weights:
    """Shares of the three parts; they add up to 1."""

    format: float = 0.1
    retrieval: float = 0.1
    transition: float = 0.8

    def __post_init__(self) -> None:
        shares = (self.format, self.retrieval, self.transition)
        if not all(share >= 0.0 for share in shares) or abs(sum(shares) - 1.0) > 1e-6:
            raise DeltaMemError(
                "the reward weights for format, retrieval and transition must not be negative and must add up to 1, not "
                f"{shares[0]}, {shares[1]} and {shares[2]}"
            )

    def combine(self, *, format: float, retrieval: float, transition: float) -> float:
        """The weighted sum of the three parts, each in [0, 1]."""
        return self.format * format + self.retrieval * retrieval + self.transition * transition


PAPER_WEIGHTS = Weights()


@dataclass(frozen=True, slots=True)
class TotalScore:
    """The reward of one episode and its parts, all in [0, 1]."""

    reward: float
    format: float
    retrieval: float
    transition: TransitionScore


def score(
    trajectory: Trajectory,
    labelled: LabelledSession,
    embed: EmbedTexts,
    *,
    weights: Weights = PAPER_WEIGHTS,
    **options: Unpack[TransitionOptions],
) -> TotalScore:
    """Score a finished episode.

    Args:
        trajectory: The episode. One that broke in our own machinery (`failure`) scores 0 in every part.
        labelled: Its session with the prior state and the target.
        embed: Returns unit vectors of shape ``(n, dim)`` for n texts.
        weights: Shares of the parts.
        **options: Passed on to `transition_score`.

    Returns:
        The reward and its parts.

    Raises:
        DeltaMemError: If an option is out of its range or the target does not fit the prior state.
    """
    predicted = None if trajectory.failure is not None else trajectory.operations
    transition = transition_score(labelled.prior_state, predicted, labelled.operations, embed, **options)
    if trajectory.failure is not None:
        return TotalScore(0.0, 0.0, 0.0, transition)
    parts = {
        "format": format_score(trajectory),
        "retrieval": retrieval_score(trajectory, labelled.operations),
        "transition": transition.reward,
    }
    return TotalScore(weights.combine(**parts), parts["format"], parts["retrieval"], transition)
