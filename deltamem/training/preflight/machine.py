"""Checks of the machine: GPUs, their memory, the host's memory, the disk, Ray and the packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import socket
import subprocess
from typing import NamedTuple
from urllib.parse import urlsplit

from deltamem.training.model_shape import ModelShape
from deltamem.training.preflight import memory
from deltamem.training.preflight.context import Context
from deltamem.training.preflight.finding import Finding, fail, ok, warn
from deltamem.training.run.space import space_of

_VERL = "0.9.1"
_SECONDS = 20.0
_FULL = 0.95
"""Share of a GPU above which a plan is not trusted."""


class Gpu(NamedTuple):
    """A GPU of this machine; memory in bytes."""

    name: str
    memory: int


def installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def gpus() -> list[Gpu]:
    """The GPUs that a job may use, asked from nvidia-smi: asking torch could initialise CUDA in this process."""
    command = ["nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    found = {row[0]: Gpu(row[1], int(row[2]) << 20) for row in rows if len(row) == 3 and row[2].isdigit()}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not all(name in found for name in visible.split(",")):
        return list(found.values()) if visible != "" else []
    return [found[name] for name in visible.split(",")]


def check_gpus(context: Context) -> Finding:
    """How many there are."""
    wanted, nodes = context.config.trainer.n_gpus_per_node, context.config.trainer.nnodes
    if not context.on_gpus:
        return ok(f"not needed: runs on the CPU with {context.settings.cpu_threads} threads")
    found = gpus()
    if not found:
        return fail(f"no GPU found with nvidia-smi, expected {wanted} on each of {nodes} nodes")
    text = f"{len(found)} x {found[0].name}, {found[0].memory / 2**30:.0f} GiB each"
    if len(found) < wanted:
        return fail(f"{text}; expected {wanted}")
    if len({gpu.name for gpu in found}) > 1:
        return warn(f"{text}; not all of one kind, the slowest decides")
    return ok(text + (f"; the other {nodes - 1} nodes were not looked at" if nodes > 1 else ""))


def plan_of(context: Context) -> memory.Plan:
    """What of the configuration decides about memory."""
    config = context.final_config
    model = config.actor_rollout_ref
    fsdp, sampling = model.actor.fsdp_config, model.rollout
    parallel = max(model.actor.ulysses_sequence_parallel_size, fsdp.ulysses_sequence_parallel_size)
    longest = config.data.max_prompt_length + config.data.max_response_length
    if model.actor.use_dynamic_bsz:
        tokens = max(model.actor.ppo_max_token_len_per_gpu, sampling.log_prob_max_token_len_per_gpu)
    else:
        tokens = model.actor.ppo_micro_batch_size_per_gpu * longest // parallel
    return memory.Plan(
        shards=fsdp.fsdp_size if fsdp.fsdp_size > 0 else context.ranks,
        weight_bytes=2 if fsdp.model_dtype in ("bf16", "bfloat16", "fp16") else 4,
        lora_rank=model.model.lora_rank,
        tokens=tokens,
        checkpointing=model.model.enable_gradient_checkpointing,
        weights_stay=not (fsdp.param_offload or fsdp.offload_policy),
        optimizer_stays=not (fsdp.optimizer_offload or fsdp.offload_policy),
        tensor_parallel=sampling.tensor_model_parallel_size,
        utilization=sampling.gpu_memory_utilization,
        max_model_len=sampling.max_model_len or longest,
        max_sequences=sampling.max_num_seqs,
        batched_tokens=sampling.max_num_batched_tokens,
    )


def check_gpu_memory(context: Context) -> Finding:
    """Whether an update and the rollouts fit on a GPU."""
    if not context.on_gpus:
        return ok("not needed")
    shape, plan = ModelShape.of(context.model_config), plan_of(context)
    update = memory.update(shape, plan)
    text = (
        f"update {_gb(update.total)} (weights {_gb(update.weights)}, gradients {_gb(update.gradients)}, optimiser "
        f"{_gb(update.optimizer)}, gathered {_gb(update.gathered)}, {plan.tokens} tokens "
        f"{_gb(max(update.activations, update.logits))}, contexts {_gb(memory.CONTEXTS)})"
    )
    found = gpus()
    if not found:
        return warn(f"no GPU to compare with; {text}")
    gpu = min(found, key=lambda each: each.memory).memory
    rollout = memory.rollout(shape, plan, gpu)
    text += (
        f"; rollouts {_gb(rollout.total)}: training keeps {_gb(rollout.training)}, vLLM {_gb(rollout.engine)} with "
        f"{rollout.cache_tokens} tokens of cache"
    )
    if update.total > gpu:
        return fail(
            f"{text}; a GPU has {_gb(gpu)}: lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu, or use more GPUs"
        )
    if rollout.total > gpu:
        return fail(f"{text}; a GPU has {_gb(gpu)}: lower actor_rollout_ref.rollout.gpu_memory_utilization")
    if rollout.cache_tokens < plan.max_model_len:
        return fail(
            f"{text}; one sequence needs {plan.max_model_len}: raise actor_rollout_ref.rollout.gpu_memory_utilization"
        )
    if max(update.total, rollout.total) > _FULL * gpu:
        return warn(f"{text}; a GPU has {_gb(gpu)}, that is tight")
    return ok(f"{text}; a GPU has {_gb(gpu)}")


def check_host_memory(context: Context) -> Finding:
    """Whether what is kept off the GPUs fits into this node."""
    if not context.on_gpus:
        return ok("not needed")
    model = context.config.actor_rollout_ref
    separate = model.actor.use_kl_loss and not model.model.lora_rank
    half = model.ref.fsdp_config.model_dtype in ("bf16", "bfloat16", "fp16")
    need = memory.host(
        ModelShape.of(context.model_config),
        plan_of(context),
        ranks=context.config.trainer.n_gpus_per_node,
        reference_bytes=(2 if half else 4) if separate else None,
    )
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = f"about {_gb(need)} for loading and offloading, the node has {_gb(have)}"
    return fail(text) if need > have else ok(text)


def check_disk(context: Context) -> Finding:
    """Room for checkpoints and the exported policy."""
    space = space_of(context.config, ModelShape.of(context.model_config))
    text = (
        f"{space.checkpoints} checkpoints of {_gb(space.checkpoint)} and the policy: {_gb(space.missing)} more, "
        f"{_gb(space.free)} free in {space.place}"
    )
    if not os.access(space.place, os.W_OK):
        return fail(f"{space.place} cannot be written to")
    return fail(text) if space.missing > space.free else ok(text)


def check_ray(context: Context) -> Finding:
    """Whether a cluster answers, if one is named."""
    address = context.config.ray_kwargs.ray_init.get("address")
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS")
        if not address:
            nodes = context.config.trainer.nnodes
            return fail(f"no cluster: {nodes} nodes need one (slurm/train_multinode.sbatch starts it and sets RAY_ADDRESS)")
    if not address or address == "local":
        return ok("the run starts its own")
    place = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        with socket.create_connection((place.hostname or "", place.port or 6379), timeout=_SECONDS):
            return ok(f"{address} answers")
    except (OSError, ValueError) as error:
        return fail(f"{address} does not answer: {error}")


def check_packages(context: Context) -> Finding:
    """The pinned verl, vLLM and flash-attn where they are configured."""
    model = context.config.actor_rollout_ref
    verl = importlib.metadata.version("verl")
    if verl != _VERL:
        return fail(f"verl {verl} is installed, expected {_VERL}; install it with: pip install 'deltamem[train]'")
    found = [f"verl {verl}", f"torch {importlib.metadata.version('torch')}"]
    if model.rollout.name == "vllm":
        if not installed("vllm"):
            return fail("vLLM is not installed; install it with: pip install 'deltamem[gpu]'")
        found.append(f"vllm {importlib.metadata.version('vllm')}")
    attention = model.model.override_config.get("attn_implementation", "flash_attention_2")
    if context.on_gpus and attention == "flash_attention_2":
        if not installed("flash_attn"):
            return fail(
                "flash-attn is not installed; install it, or choose another attention with "
                "+actor_rollout_ref.model.override_config.attn_implementation=sdpa"
            )
        found.append(f"flash-attn {importlib.metadata.version('flash-attn')}")
    if model.model.lora_rank and not installed("peft"):
        return fail("LoRA needs the package peft; install it with: pip install peft")
    return ok(", ".join(found))


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
