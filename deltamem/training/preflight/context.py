"""What the checks look at; whatever is costly is made when first needed and shared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from deltamem.errors import DeltaMemError
from deltamem.training import dataset
from deltamem.training.lengths import (
    Lengths,
    Limits,
    fit_run,
    load_model_config,
    load_tokenizer,
    measure,
    template_kwargs,
    with_limits,
)
from deltamem.training.preflight.finding import MadeByRunError
from deltamem.training.settings import TrainSettings


@dataclass
class Context:
    """One preflight.

    Attributes:
        config: The whole configuration, resolved.
        settings: Its ``deltamem`` part.
        folder: A temporary folder.
    """

    config: DictConfig
    settings: TrainSettings
    folder: Path

    def need_sessions(self) -> Path:
        """The sessions file.

        Raises:
            MadeByRunError: If the run makes it.
            DeltaMemError: If it is missing.
        """
        path = self.settings.sessions
        if path.is_file():
            return path
        if self.settings.synth is not None:
            raise MadeByRunError(f"made by the run: python -m synth writes {path}")
        raise DeltaMemError(f"{path}: no such file; make one with: python -m synth out={path.parent}")

    def need_model(self) -> str:
        """Name or folder of the starting model.

        Raises:
            MadeByRunError: If the run makes it.
        """
        path = str(self.config.actor_rollout_ref.model.path)
        if self.settings.model is not None and not Path(path).is_dir():
            raise MadeByRunError(f"made by the run: {path}")
        return path

    @cached_property
    def exported(self) -> dataset.Exported:
        """The rows as the run will write them, in the temporary folder."""
        data = self.settings.data
        return dataset.export(
            self.need_sessions(),
            self.folder / "data",
            self.settings.episode.config(),
            train_sessions=data.train_sessions,
            heldout_sessions=data.heldout_sessions,
            skip_people=data.skip_people,
            seed=self.settings.seed,
        )

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        self.need_model()
        return load_tokenizer(self.config.actor_rollout_ref.model)

    @cached_property
    def model_config(self) -> Any:
        """The model's Hugging Face configuration."""
        self.need_model()
        return load_model_config(self.config.actor_rollout_ref.model)

    @cached_property
    def lengths(self) -> Lengths:
        """Tokens of the exported rows."""
        return measure(
            [self.exported.train, self.exported.heldout],
            self.tokenizer,
            self.settings.episode.config(),
            template_kwargs(self.config),
        )

    @cached_property
    def limits(self) -> Limits:
        """The token limits of the run: fitted to the data, or as they are written."""
        if not self.settings.limits.fit:
            data = self.config.data
            return Limits(data.max_prompt_length, data.max_response_length, self.settings.turn_tokens)
        return fit_run(self.lengths, self.settings, window=int(self.model_config.max_position_embeddings))

    @cached_property
    def final_config(self) -> DictConfig:
        """The configuration that verl will get; with written limits where the data does not exist yet."""
        if not self.settings.limits.fit:
            return self.config
        try:
            return with_limits(self.config, self.limits)
        except (MadeByRunError, DeltaMemError):
            return self.config

    @property
    def ranks(self) -> int:
        """GPUs of the whole run."""
        return int(self.config.trainer.n_gpus_per_node * self.config.trainer.nnodes)

    @property
    def on_gpus(self) -> bool:
        """Whether the run needs GPUs."""
        return self.settings.cpu_threads is None
