"""The configuration of ``python -m synth`` (``configs/synth.yaml``), typed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OfflineSettings(_Strict):
    """Shape of the offline writer's sessions; see `synth.offline.OfflineConfig`."""

    initial_memories: int = Field(ge=0)
    min_facts: int = Field(ge=1)
    max_facts: int = Field(ge=1, le=12)
    update_share: float = Field(ge=0, le=1)
    repeat_share: float = Field(ge=0, le=1)
    small_talk: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_facts > self.max_facts:
            raise ValueError("min_facts must not be larger than max_facts")
        if self.update_share + self.repeat_share > 1:
            raise ValueError("update_share and repeat_share must not add up to more than 1")
        return self


class EpisodePrompts(_Strict):
    """Names of the prompt files whose text stands in the parquet rows."""

    system_prompt: str
    session_prompt: str


class SynthSettings(_Strict):
    """The whole configuration."""

    people: int = Field(ge=1)
    sessions: int = Field(ge=1)
    writer: Literal["offline"]
    seed: int
    out: Path
    heldout_share: float = Field(gt=0, lt=1)
    offline: OfflineSettings
    episode: EpisodePrompts
