"""What a run folder says of the policy that came out of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError
from deltamem.prompts import load_prompt
from deltamem.provenance import config_hash, file_sha256, git_commit, versions
from deltamem.training.run.metrics import read_metrics
from deltamem.training.settings import EpisodeSettings


@dataclass(frozen=True)
class RunFacts:
    """Facts of a training run, as far as they are on disk.

    Attributes:
        step: Of the exported checkpoint.
        steps: Of the whole run.
        base: The model that GRPO started from, a name on the Hub or that of a folder; None if it was made in the run.
        base_is_folder: Whether it is a folder, which says nothing to others.
        licence: Of the base, from its own model card; None if that says nothing.
        experiment: Name of the run.
        config_sha256: Hash of the whole configuration.
        settings: Keys and values that differ between runs, for people.
        episode: Prompts and limits.
        prompts: Name -> sha256 of the prompts.
        data: Name of a file -> sha256 (None if it is gone) and rows.
        metrics: Lines of ``metrics.jsonl`` up to `step`.
        heldout_sessions: Sessions behind each held-out figure.
        prompt_tokens: Most tokens of a prompt.
        response_tokens: Most tokens of a response.
        lora_rank: 0 if all weights were trained.
        commit: Of the code that exported.
        versions: Of the packages that exported.
    """

    step: int
    steps: int | None
    base: str | None
    base_is_folder: bool
    licence: str | None
    experiment: str
    config_sha256: str
    settings: dict[str, Any]
    episode: EpisodeConfig
    prompts: dict[str, str]
    data: dict[str, tuple[str | None, int | None]]
    metrics: list[dict[str, Any]]
    heldout_sessions: int | None
    prompt_tokens: int
    response_tokens: int
    lora_rank: int
    commit: str | None
    versions: dict[str, str]


_SHOWN = (
    "algorithm.adv_estimator",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.clip_ratio",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.temperature",
    "data.train_batch_size",
    "deltamem.reward",
    "deltamem.seed",
    "deltamem.embedder.name",
)


def read_facts(run: Path, step: int) -> RunFacts:
    """Collect the facts of a run.

    Args:
        run: The run folder.
        step: Of the checkpoint.

    Raises:
        DeltaMemError: If the run's configuration is missing.
    """
    path = run / "grpo" / "config.yaml"
    if not path.is_file():
        raise DeltaMemError(f"{path}: no such file; expected the folder of a training run")
    config = OmegaConf.load(path)
    model = config.actor_rollout_ref.model
    own = config.deltamem.model is not None
    base = Path(model.path)
    episode = EpisodeSettings.model_validate(OmegaConf.to_container(config.deltamem.episode)).config()
    plain: Any = OmegaConf.to_container(config)
    files = {"train": run / "data" / "train.parquet", "heldout": run / "data" / "heldout.parquet"}
    rows = {name: pq.read_metadata(file).num_rows if file.is_file() else None for name, file in files.items()}
    sessions = Path(config.deltamem.sessions)
    data: dict[str, tuple[str | None, int | None]] = {sessions.name: (_hash(sessions), None)}
    data |= {file.name: (_hash(file), rows[name]) for name, file in files.items()}
    total = OmegaConf.select(config, "trainer.total_training_steps")
    if total is None and rows["train"] is not None:
        total = rows["train"] // config.data.train_batch_size * config.trainer.total_epochs
    return RunFacts(
        step=step,
        steps=total,
        base=None if own else base.name if base.is_dir() else str(model.path),
        base_is_folder=base.is_dir(),
        licence=None if own else _licence(base),
        experiment=str(config.trainer.experiment_name),
        config_sha256=config_hash(plain),
        settings={name: _plain(config, name) for name in _SHOWN},
        episode=episode,
        prompts={name: load_prompt(name).sha256 for name in (episode.system_prompt, episode.session_prompt)},
        data=data,
        metrics=[line for line in read_metrics(run / "metrics.jsonl") if line["step"] <= step],
        heldout_sessions=rows["heldout"],
        prompt_tokens=int(config.data.max_prompt_length),
        response_tokens=int(config.data.max_response_length),
        lora_rank=int(OmegaConf.select(config, "actor_rollout_ref.model.lora_rank") or 0),
        commit=git_commit(),
        versions=versions(),
    )


def _plain(config: Any, key: str) -> Any:
    value = OmegaConf.select(config, key)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _hash(path: Path) -> str | None:
    return file_sha256(path) if path.is_file() else None


def _licence(base: Path) -> str | None:
    """The licence that the front matter of a local model card names."""
    card = base / "README.md"
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8")
    front = text.split("---", 2)[1] if text.startswith("---") and text.count("---") >= 2 else ""
    found = OmegaConf.create(front) if front.strip() else None
    licence = found.get("license") if isinstance(found, DictConfig) else None
    return str(licence) if licence else None
