"""The configuration of ``python -m eval.heldout`` as typed objects (``configs/heldout.yaml`` holds the defaults)."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from deltamem.checkpoint import load_episode_config
from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError
from deltamem.sessions import Split
from eval.policy_settings import EndpointSettings, EpisodeSettings
from rewards.total import Weights
from rewards.transition import TransitionOptions, check_options


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RewardSettings(_Strict):
    """Weights of the parts and options of `rewards.transition.transition_score`."""

    format_weight: float
    retrieval_weight: float
    transition_weight: float
    tau: float
    lexical_fidelity: bool
    paper_literal: bool
    stale_weight: float
    match_overwritten: bool

    @property
    def weights(self) -> Weights:
        """Shares of the parts; a `DeltaMemError` if they do not add up to 1."""
        return Weights(self.format_weight, self.retrieval_weight, self.transition_weight)

    @property
    def options(self) -> TransitionOptions:
        """Options of the transition score; a `DeltaMemError` if one is out of its range."""
        check_options(tau=self.tau, stale_weight=self.stale_weight)
        return TransitionOptions(
            tau=self.tau,
            lexical_fidelity=self.lexical_fidelity,
            paper_literal=self.paper_literal,
            stale_weight=self.stale_weight,
            match_overwritten=self.match_overwritten,
        )


class HeldoutSettings(_Strict):
    """All keys of the command."""

    checkpoint: Path | None
    endpoint: EndpointSettings
    sessions: Path
    out: Path
    n: PositiveInt
    split: Split
    seed: int
    temperature: float = Field(ge=0)
    max_new_tokens: PositiveInt
    max_concurrency: PositiveInt
    embedder: str
    device: str
    batch_size: PositiveInt
    resamples: PositiveInt
    episode: EpisodeSettings
    reward: RewardSettings

    def check_policy(self) -> None:
        """Make sure that exactly one policy is named.

        Raises:
            DeltaMemError: If none, both or half of one is named, or the checkpoint folder does not exist.
        """
        with_endpoint = self.endpoint.base_url is not None or self.endpoint.model is not None
        if (self.checkpoint is not None) == with_endpoint:
            raise DeltaMemError(
                "name one policy: either checkpoint=<folder> or endpoint.base_url=<url> endpoint.model=<name>"
            )
        if with_endpoint and (self.endpoint.base_url is None or self.endpoint.model is None):
            raise DeltaMemError("an endpoint needs both endpoint.base_url=<url> and endpoint.model=<name>")
        if self.checkpoint is not None and not (self.checkpoint / "config.json").is_file():
            raise DeltaMemError(f"{self.checkpoint}: not a checkpoint folder (it holds no config.json)")

    def episode_config(self) -> EpisodeConfig:
        """What shapes the episodes: the defaults, then the checkpoint's ``episode.json``, then the keys ``episode.*``.

        Raises:
            DeltaMemError: If ``episode.json`` cannot be read, or a prompt does not exist or does not fit.
        """
        base = EpisodeConfig() if self.checkpoint is None else load_episode_config(self.checkpoint)
        config = self.episode.over(base)
        config.check()  # before the model is loaded
        return config
