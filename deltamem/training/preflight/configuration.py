"""Whether verl understands the configuration: no key that nobody reads, values that its own dataclasses take."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import io
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from deltamem.errors import DeltaMemError
from deltamem.training.preflight.context import Context
from deltamem.training.preflight.finding import Finding, fail, ok, warn

_OWN = ("deltamem", "model_engine")
"""Keys at the top that verl's own list of all keys lacks: ours, and the choice of a group of configurations."""


def unknown_keys(config: DictConfig) -> list[str]:
    """Keys of a composed configuration that verl does not have; it ignores a typing error silently."""
    text = resources.files("verl.trainer.config").joinpath("_generated_ppo_trainer.yaml").read_text(encoding="utf-8")
    reference: Any = OmegaConf.to_container(OmegaConf.create(text))
    plain: Any = OmegaConf.to_container(config)
    found = list(_unknown({key: value for key, value in plain.items() if key not in _OWN}, reference, ""))
    import ray

    known = inspect.signature(ray.init).parameters
    prefix = "ray_kwargs.ray_init."
    return [key for key in found if not (key.startswith(prefix) and key.removeprefix(prefix) in known)]


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
    """Pass a resolved configuration through verl's own validation and its dataclasses.

    Raises:
        DeltaMemError: If verl refuses it; says why.
    """
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
            for part in (model.rollout, config.algorithm, *([_reference(model.ref)] if reference else [])):
                omega_conf_to_dataclass(part)
    # Whatever verl raises (assertions, Hydra's errors around type errors) is its verdict.
    except Exception as error:
        raise DeltaMemError(f"verl refuses the configuration: {_innermost(error)}") from error


def _reference(config: DictConfig) -> DictConfig:
    """The reference's part with the keys renamed as verl's workers rename them before they read it."""
    config = config.copy()
    with open_dict(config):
        for key in [key for key in map(str, config) if key.startswith("log_prob_")]:
            name = key.removeprefix("log_prob_")
            config[name if name.startswith("use_") else f"ppo_{name}"] = config.pop(key)
    return config


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split()) or type(error).__name__


def check_configuration(context: Context) -> Finding:
    """Keys and values, as verl reads them."""
    if unknown := unknown_keys(context.config):
        return fail(f"verl has no key {', '.join(map(repr, unknown))}")
    read_by_verl(context.final_config)
    return ok(f"verl's own validation passes; {context.config.actor_rollout_ref.rollout.name} rollouts")


def check_batches(context: Context) -> Finding:
    """Whether batches divide among GPUs."""
    config, ranks = context.final_config, context.ranks
    model = config.actor_rollout_ref
    batch, mini, n = config.data.train_batch_size, model.actor.ppo_mini_batch_size, model.rollout.n
    parallel = max(model.actor.ulysses_sequence_parallel_size, model.actor.fsdp_config.ulysses_sequence_parallel_size)
    engine = model.rollout.tensor_model_parallel_size
    shards = model.actor.fsdp_config.fsdp_size
    if n < 2:
        return fail(f"actor_rollout_ref.rollout.n={n}: GRPO compares rollouts of one session, expected at least 2")
    if ranks % engine:
        return fail(f"{ranks} GPUs cannot be shared by vLLM engines of tensor_model_parallel_size={engine}")
    if ranks % parallel:
        return fail(f"{ranks} GPUs cannot be divided by ulysses_sequence_parallel_size={parallel}")
    if shards > 0 and ranks % shards:
        return fail(f"{ranks} GPUs cannot be divided by fsdp_size={shards}")
    if batch % mini:
        return fail(f"data.train_batch_size={batch} is not a multiple of ppo_mini_batch_size={mini}")
    if mini * n % (ranks // parallel):
        return fail(f"{mini} x {n} rollouts of an update do not divide among {ranks // parallel} data-parallel ranks")
    budgets = (
        ("actor.ppo_max_token_len_per_gpu", model.actor.ppo_max_token_len_per_gpu),
        ("rollout.log_prob_max_token_len_per_gpu", model.rollout.log_prob_max_token_len_per_gpu),
        ("ref.log_prob_max_token_len_per_gpu", model.ref.log_prob_max_token_len_per_gpu),
    )
    longest = config.data.max_prompt_length + config.data.max_response_length
    for name, budget in budgets:
        if model.actor.use_dynamic_bsz and budget * parallel < longest:
            return fail(f"actor_rollout_ref.{name}={budget} is less than one sequence of {longest} tokens")
    if (window := model.rollout.max_model_len) is not None and window < longest:
        return fail(f"actor_rollout_ref.rollout.max_model_len={window} is less than one sequence of {longest} tokens")
    text = f"{batch} sessions x {n} rollouts a step, {mini * n // (ranks // parallel)} rollouts a GPU and update"
    return ok(text) if mini == batch else warn(f"{text}; {batch // mini} updates a step are off-policy after the first")
