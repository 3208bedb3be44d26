"""The configuration of ``python -m eval.locomo`` as typed objects (``configs/locomo.yaml`` holds the defaults)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from deltamem.episode import EpisodeConfig
from deltamem.manager import ManagerSettings
from eval.locomo.systems import TurnText
from eval.policy_settings import EndpointSettings, EpisodeSettings


class EmbedderSettings(BaseModel):
    """The embedder of the system under test."""

    model_config = ConfigDict(extra="forbid")

    name: str
    device: str
    batch_size: PositiveInt


class ManagerEndpoint(EndpointSettings):
    """The endpoint of the model that manages memories, and how it is asked."""

    temperature: Annotated[float, Field(ge=0)]
    max_tokens: PositiveInt
    max_concurrency: PositiveInt
    window: PositiveInt | None
    cache: Path | None


class LocomoConfig(BaseModel):
    """All keys of the command."""

    model_config = ConfigDict(extra="forbid")

    system: str
    data: Path | None
    out: Path
    k: Annotated[list[PositiveInt], Field(min_length=1)]
    categories: Annotated[list[Annotated[int, Field(ge=1, le=5)]], Field(min_length=1)]
    embedder: EmbedderSettings
    with_time: bool
    with_captions: bool
    endpoint: ManagerEndpoint
    episode: EpisodeSettings
    attempts: PositiveInt
    resamples: PositiveInt
    seed: int

    @property
    def turn_text(self) -> TurnText:
        """What is written of a turn."""
        return TurnText(self.with_time, self.with_captions)

    def manager_settings(self) -> ManagerSettings:
        """How sessions are read.

        Raises:
            DeltaMemError: If a prompt does not exist or does not fit.
        """
        episode = self.episode.over(EpisodeConfig())
        episode.check()  # before anything is loaded
        return ManagerSettings(episode=episode, window_tokens=self.endpoint.window, attempts=self.attempts)

    def making(self, data_sha256: str) -> dict[str, Any]:
        """All that decides which memories are made of the data, except for the address of the endpoint."""
        decides = {"model", "temperature", "max_tokens", "tool_role", "window"}
        settings = self.manager_settings()
        return {
            "data_sha256": data_sha256,
            "embedder": self.embedder.name,
            "with_captions": self.with_captions,
            "attempts": self.attempts,
            "seed": self.seed,
            "episode": self.episode.model_dump(mode="json"),
            "prompt_hashes": settings.episode.prompt_hashes,
            **self.endpoint.model_dump(mode="json", include=decides),
        }
