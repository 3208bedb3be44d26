"""The ``deltamem:`` part of the training configuration as typed objects, and where Hydra finds verl's own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from pydantic import Field

from deltamem.config import StrictModel
from deltamem.episode import EpisodeConfig, MemoryField
from deltamem.errors import DeltaMemError


def register_search_path() -> None:
    """Make ``${folder_of_package:NAME}`` known, which ``configs/train.yaml`` uses; call it before anything is composed.

    Hydra's own ``pkg://verl.trainer.config`` imports verl, and with it torch, transformers and ray: seconds before a typing
    error is told.
    """
    OmegaConf.register_new_resolver("folder_of_package", folder_of_package, replace=True)


def folder_of_package(name: str) -> str:
    """The folder of an installed package, which is not imported.

    Raises:
        DeltaMemError: If it is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise DeltaMemError(f"training needs the package {name}; install it with: pip install 'deltamem[train]'")
    return str(Path(spec.origin).parent)


class NameSettings(StrictModel):
    """Parts of the name of a run: which experiment, which of its ablations, which variant."""

    experiment: str
    ablation: str
    variant: str


class DataSettings(StrictModel):
    """Which sessions are trained and validated on; see `deltamem.training.data.export`."""

    train_sessions: int | None = Field(ge=1)
    heldout_sessions: int | None = Field(ge=1)
    skip_people: int = Field(ge=0)


class EpisodeSettings(StrictModel):
    """Fields of `deltamem.episode.EpisodeConfig`."""

    system_prompt: str
    session_prompt: str
    k: int = Field(ge=1)
    max_turns: int = Field(ge=1)
    memory_fields: tuple[MemoryField, MemoryField, MemoryField]
    thinking: bool
    max_invalid_calls: int = Field(ge=0)

    def config(self) -> EpisodeConfig:
        """The library's own type.

        Raises:
            DeltaMemError: If a prompt does not exist or does not fit.
        """
        config = EpisodeConfig(**self.model_dump())
        config.check()
        return config


class EmbedderSettings(StrictModel):
    """Which model embeds, where, and where the vectors of known texts are kept; see `deltamem.training.embedding_store`."""

    name: str
    device: str
    batch_size: int = Field(ge=1)
    threads: int = Field(ge=1)
    store: Path


class LimitSettings(StrictModel):
    """How token limits follow from the data; see `deltamem.training.data`."""

    fit: bool
    thinking_tokens: int = Field(ge=0)
    response_quantile: float = Field(gt=0.0, le=1.0)
    multiple: int = Field(ge=1)


class TrainSettings(StrictModel):
    """Everything under ``deltamem:``; ``configs/train.yaml`` says what each key means."""

    name: NameSettings
    out: Path
    sessions: Path
    synth: dict[str, Any] | None
    seed: int
    data: DataSettings
    episode: EpisodeSettings
    turn_tokens: int = Field(ge=1)
    limits: LimitSettings
    embedder: EmbedderSettings
    reward: dict[str, Any]
    max_failure_rate: float = Field(ge=0.0, le=1.0)
    rates: dict[str, tuple[str, str]]
    cpu_threads: int | None = Field(ge=1)
    model: dict[str, Any] | None
    warm_start: dict[str, Any] | None
    poll_seconds: float = Field(gt=0.0)
    sort_by_length: bool
    seeded_rollouts: bool
    shown_sessions: int = Field(ge=0)
    trackers: tuple[Literal["tensorboard", "wandb"], ...]
