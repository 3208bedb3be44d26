"""What the agent loop needs to know of a reward: `deltamem` never imports one, it is given a scorer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from deltamem.episode import Trajectory
from deltamem.sessions import LabelledSession

EmbedTexts: TypeAlias = Callable[[Sequence[str]], npt.NDArray[np.floating[Any]]]
"""Turns n texts into unit vectors of shape ``(n, dim)``, for example `Embedder.documents`."""


class Scorer(Protocol):
    """Scores a finished episode against its labelled session."""

    def __call__(self, labelled: LabelledSession, trajectory: Trajectory, embed: EmbedTexts) -> dict[str, float]:
        """Score one episode.

        Args:
            labelled: The session with its prior state and target operations.
            trajectory: The finished episode.
            embed: Embeds memory texts.

        Returns:
            Flat figures; ``reward`` is what the policy is trained on, the others are metrics. The keys are the same for
            every episode.
        """
        ...

    def detail(self, labelled: LabelledSession, trajectory: Trajectory, embed: EmbedTexts) -> dict[str, Any]:
        """Score one episode for a reader: plain JSON values with the parts, the matched pairs and what is left over."""
        ...
