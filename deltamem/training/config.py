"""The training configuration: our ``deltamem:`` part as typed objects, and verl's own: where it is, what it accepts."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import io
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from omegaconf import DictConfig, OmegaConf, open_dict
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from deltamem.config import StrictModel
from deltamem.embedding import EmbedderSettings
from deltamem.episode import EpisodeSettings, Scorer
from deltamem.errors import DeltaMemError

CONFIG_FILE = "config.yaml"
"""In the folder of a stage: the configuration that it was given."""


def register_search_path() -> None:
    """Make known what ``configs/`` uses besides Hydra's own; call it before anything is composed.

    ``${folder_of_package:NAME}``, and ``${part_of:WHOLE,PARTS}`` for a share of a batch, in whole numbers.

    Hydra's own ``pkg://verl.trainer.config`` imports verl, and with it torch, transformers and ray: seconds before a typing
    error is reported.
    """
    OmegaConf.register_new_resolver("folder_of_package", folder_of_package, replace=True)
    OmegaConf.register_new_resolver("part_of", lambda whole, parts: max(whole // parts, 1), replace=True)


def folder_of_package(name: str) -> str:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise DeltaMemError(f"training needs the package {name}; install it with: pip install 'deltamem[train]'")
    return str(Path(spec.origin).parent)


class NameSettings(StrictModel):
    """Parts of the name of a run: experiment, algorithm, ablation, recipe (the paper's or what is recommended), variant."""

    experiment: str
    algorithm: str
    ablation: str
    recipe: str
    variant: str


class DataSettings(StrictModel):
    """Which sessions are trained and validated on; see `deltamem.training.data.export`."""

    train_sessions: int | None = Field(ge=1)
    heldout_sessions: int | None = Field(ge=1)
    skip_people: int = Field(ge=0)


class StoredEmbedderSettings(EmbedderSettings):
    """Which model embeds, where, and where the vectors of known texts are kept; see `deltamem.training.embedding_store`."""

    threads: int = Field(ge=1)
    store: Path


class LimitSettings(StrictModel):
    """How token limits follow from the data; see `deltamem.training.data`."""

    fit: bool
    thinking_tokens: int = Field(ge=0)
    response_quantile: float = Field(gt=0.0, le=1.0)
    multiple: int = Field(ge=1)


class Overlong(StrictModel):
    """A penalty on training rollouts that come near a token limit: DAPO's soft overlong punishment (arXiv 2503.14476)."""

    buffer: int = Field(ge=1)  # tokens below a limit from which on it grows, linearly
    weight: float = Field(gt=0.0, le=1.0)  # reward that is taken off at the limit

    def penalty(self, used: int, limit: int) -> float:
        """What is taken off the reward of a text of `used` tokens that may have `limit`; from 0 to the weight."""
        return self.weight * min(max(used - (limit - self.buffer), 0) / self.buffer, 1.0)


class TinyModelConfig(StrictModel):
    """Size of the model and its vocabulary. The defaults give a million parameters."""

    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    mlp_size: int = 384
    vocabulary: int = 1100
    context: int = 2048
    rope_theta: float = 1e6


class WarmStartConfig(StrictModel):
    """Hyperparameters of the warm start of a model made from scratch."""

    kind: Literal["scratch"] = "scratch"
    copy_steps: int = 60  # steps of pure copying (random token sequences repeated) before any dialogue
    steps: int = 400  # on target trajectories
    batch_size: int = 32
    matrix_lr: float = 0.02  # learning rate of Muon, for the matrices inside the layers
    other_lr: float = 4e-3  # learning rate of AdamW, for embeddings and norms
    # Last share of the steps over which the learning rate falls to zero. GRPO from a model whose learning rate had not
    # decayed did not rise (shared/TINY.md).
    decay_share: float = 0.3
    context_weight: float = 0.1  # loss weight of tokens that the assistant does not write
    decision_weight: float = 3.0  # loss weight of the tokens that decide on event and target id
    # First share of the trajectory steps, in which the teacher leaves nothing out.
    complete_share: float = 0.6
    # Range from which the chance that the teacher leaves a fact out is drawn after that, once a trajectory: how careful it
    # is differs from one to the next, and reinforcement learning can prefer the careful ones.
    careless: tuple[float, float] = (0.2, 1.0)
    device: str = "cpu"


class SupervisedConfig(StrictModel):
    """Hyperparameters of the warm start of a pretrained model; ``configs/warm_start/pretrained.yaml`` explains them."""

    kind: Literal["pretrained"]
    steps: int = Field(ge=1)
    tokens: int = Field(ge=1)
    passes: int = Field(ge=1)
    layers: int | None = Field(ge=1)
    lora_rank: int | None = Field(ge=1)
    lr: float = Field(gt=0.0)
    warm_up: int = Field(ge=0)
    decay_share: float = Field(gt=0.0, le=1.0)
    weight_decay: float = Field(ge=0.0)
    max_grad_norm: float = Field(gt=0.0)
    gradient_checkpointing: bool
    careless: tuple[float, float]
    heldout_sessions: int = Field(ge=0)
    test_every: int = Field(ge=1)
    save_every: int = Field(ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> SupervisedConfig:
        if self.layers is not None and self.lora_rank is not None:
            raise PydanticCustomError("trained", "layers and lora_rank exclude each other")
        if not 0.0 <= self.careless[0] <= self.careless[1] <= 1.0:
            raise PydanticCustomError("careless", "careless must be two shares, the lower one first")
        return self


EPISODE_SHARE = 0.8
"""Of ``deltamem.stall_minutes``, which the launcher waits: how long an episode may take before it counts as failed."""
SAMPLER_SHARE = 0.9
"""How long the sampler waits for the next rollout: longer than any of them may take."""

WARM_START_MAY_CHANGE = frozenset({"gradient_checkpointing", "heldout_sessions", "save_every", "test_every"})
"""Keys of `SupervisedConfig` that say how a warm start is computed, saved and shown; its result does not depend on them."""


class GateSettings(StrictModel):
    """Conditions that end a run, see `deltamem.training.gates`; null: never."""

    truncated: float | None = Field(gt=0.0, lt=1.0)
    unreadable: float | None = Field(gt=0.0, lt=1.0)
    no_signal: float | None = Field(gt=0.0, lt=1.0)
    heldout_drop: float | None = Field(gt=0.0, lt=1.0)
    steps: int = Field(ge=1)


class TrainSettings(StrictModel):
    """Everything under ``deltamem:``; ``configs/train.yaml`` explains each key."""

    name: NameSettings
    out: Path
    sessions: Path
    synth: dict[str, Any] | None
    seed: int
    data: DataSettings
    episode: EpisodeSettings
    turn_tokens: int = Field(ge=1)
    limits: LimitSettings
    embedder: StoredEmbedderSettings
    reward: dict[str, Any]
    overlong: Overlong | None
    max_failure_rate: float = Field(ge=0.0, le=1.0)
    start_minutes: float = Field(gt=0.0)
    gates: GateSettings
    stall_minutes: float = Field(gt=0.0)
    rates: dict[str, tuple[str, str]]
    cpu_threads: int | None = Field(ge=1)
    model: TinyModelConfig | None
    warm_start: Annotated[WarmStartConfig | SupervisedConfig, Field(discriminator="kind")] | None
    poll_seconds: float = Field(gt=0.0)
    sort_by_length: bool
    seeded_rollouts: bool
    shown_sessions: int = Field(ge=0)

    def scorer(self) -> Scorer:
        """The reward; if it cannot be made as it is configured, a `DeltaMemError` says why."""
        from hydra.utils import instantiate

        try:
            return cast(Scorer, instantiate(self.reward))
        except Exception as error:
            cause = error.__cause__ or error
            raise DeltaMemError(f"deltamem.reward: {' '.join(str(cause).split())}") from error


_OWN = ("deltamem", "model_engine")
"""Keys at the top that verl's own list of all keys lacks: ours, and the choice of a group of configurations."""


@cache
def _keys_of_verl() -> Any:
    return OmegaConf.to_container(
        OmegaConf.load(Path(folder_of_package("verl"), "trainer/config/_generated_ppo_trainer.yaml"))
    )


def unknown_keys(config: DictConfig) -> list[str]:
    """Keys of a composed configuration that verl does not have; it ignores a typing error silently."""
    plain: Any = OmegaConf.to_container(config)
    unknown = list(_unknown({key: value for key, value in plain.items() if key not in _OWN}, _keys_of_verl(), ""))
    import ray

    known = inspect.signature(ray.init).parameters
    prefix = "ray_kwargs.ray_init."
    return [key for key in unknown if not (key.startswith(prefix) and key.removeprefix(prefix) in known)]


def check_options_of_verl(config: DictConfig) -> None:
    """Refuse options that verl 0.9.1 accepts and does not read, and those that have no meaning beside our agent loop."""
    groups = config.algorithm.filter_groups
    if groups.enable and groups.max_num_gen_batches < 1:
        raise DeltaMemError(
            "algorithm.filter_groups needs max_num_gen_batches: without a limit a policy whose rollouts all earn the same "
            "would sample for ever"
        )
    if config.trainer.v1.sampler.sync_refill_failed_groups:
        raise DeltaMemError(
            "trainer.v1.sampler.sync_refill_failed_groups: a rollout that fails keeps its row here and is counted, so no "
            "prompt is without rollouts; deltamem.max_failure_rate says how many may fail"
        )
    if (given := config.actor_rollout_ref.nccl_timeout) != (default := _keys_of_verl()["actor_rollout_ref"]["nccl_timeout"]):
        raise DeltaMemError(
            f"actor_rollout_ref.nccl_timeout={given}: verl reads it nowhere (its default is {default}); NCCL's own limit is "
            "10 minutes, and deltamem.stall_minutes ends a run that makes no progress"
        )


def _unknown(value: Any, reference: Any, path: str) -> Iterator[str]:
    # An empty mapping in verl's own configuration is one that takes any key.
    if not isinstance(value, Mapping) or not isinstance(reference, Mapping) or not reference:
        return
    fields = _fields(reference.get("_target_"))
    for key, inner in value.items():
        if key in reference:
            yield from _unknown(inner, reference[key], f"{path}{key}.")
        elif key not in fields:
            yield f"{path}{key}"


def _fields(target: Any) -> frozenset[str]:
    """Fields of the dataclass behind a ``_target_``; verl's YAML does not list all of them."""
    if not isinstance(target, str):
        return frozenset()
    module, _, name = target.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    return frozenset(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else frozenset()


def read_by_verl(config: DictConfig) -> None:
    """Pass a resolved configuration through verl's own validation and its dataclasses; a refusal is a `DeltaMemError`."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    reference = need_reference_policy(config)
    if config.actor_rollout_ref.model.lora_rank and importlib.util.find_spec("vllm") is None:
        # For adapters verl asks vLLM which ranks it can serve; that it is missing is another check's finding.
        config = config.copy()
        config.actor_rollout_ref.model.lora_rank = 0
    model = config.actor_rollout_ref
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            validate_config(config=config, use_reference_policy=reference, use_critic=need_critic(config))
            for part in (model.rollout, config.algorithm, *([_as_worker(model.ref)] if reference else [])):
                omega_conf_to_dataclass(part)
    # Whatever verl raises (assertions, Hydra's errors around type errors) is its verdict.
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        sentence = " ".join(str(cause).split()) or type(cause).__name__
        raise DeltaMemError(f"verl refuses the configuration: {sentence}") from error


def _as_worker(config: DictConfig) -> DictConfig:
    """The reference's part with the keys renamed as verl's workers rename them before they read it."""
    config = config.copy()
    with open_dict(config):
        for key in [key for key in map(str, config) if key.startswith("log_prob_")]:
            name = key.removeprefix("log_prob_")
            config[name if name.startswith("use_") else f"ppo_{name}"] = config.pop(key)
    return config


def moved(value: Any, before: str, after: str) -> Any:
    """Configuration values, JSON-like, with paths below one folder put below another."""
    if isinstance(value, dict):
        return {key: moved(inner, before, after) for key, inner in value.items()}
    if isinstance(value, list):
        return [moved(inner, before, after) for inner in value]
    return after + value[len(before) :] if isinstance(value, str) and f"{value}/".startswith(f"{before}/") else value
