"""What preflight looks at in the machine: packages, cluster, processors, GPUs, memory, disk."""

from __future__ import annotations

import importlib.metadata
import os
import socket
from urllib.parse import urlsplit

from packaging.version import Version

from deltamem.training import cluster, machine, resources
from deltamem.training.checkpoints import space_of, warm_start_space
from deltamem.training.config import SupervisedConfig
from deltamem.training.preflight_inputs import FLASH, Context, Finding, State, fail, gb, ok, warn
from deltamem.training.resources import ModelShape, Plan

_PINNED = {"verl": "0.9.1", "torch": "2.11.0", "vllm": "0.24.0", "transformers": "5.9.0", "flash-attn": "2.8.3"}
"""What verl 0.9.1 pins for GPUs (its extras vllm and fsdp)."""
_OLDEST = {"verl": "0.9.1", "torch": "2.11", "vllm": "0.24", "transformers": "5.5.3", "flash-attn": "2.4.3"}
_GPU_DRIVER = 580
"""The oldest driver that CUDA 13 runs on."""


def check_packages(context: Context) -> Finding:
    """The pinned verl, vLLM and flash-attn where they are configured: there, not too old, and importable."""
    model, on_gpus = context.config.actor_rollout_ref, context.on_gpus
    wanted = ["verl", "torch", "transformers"]
    if model.rollout.name == "vllm":
        if not machine.installed("vllm"):
            return fail("vLLM is not installed; install it in the checkout with: pip install -e '.[gpu]'")
        wanted += ["vllm"] if on_gpus else []
    if on_gpus and context.attention == FLASH:
        if not machine.installed("flash_attn"):
            return fail(
                "flash-attn is not installed; install it (docs/training.md, Installation), or choose another attention with "
                "++actor_rollout_ref.model.override_config.attn_implementation=sdpa"
            )
        wanted.append("flash-attn")
    if model.model.lora_rank and not machine.installed("peft"):
        return fail("LoRA needs the package peft; install it with: pip install peft")
    have = {name: importlib.metadata.version(name) for name in wanted}
    if have["verl"] != _PINNED["verl"]:
        return fail(f"verl {have['verl']} is installed, expected {_PINNED['verl']}: pip install -e '.[gpu]' in the checkout")
    text = ", ".join(f"{name} {version}" for name, version in have.items())
    if not on_gpus:
        return ok(text)
    if old := [name for name in wanted if Version(have[name]) < Version(_OLDEST[name])]:
        return fail(f"{old[0]} {have[old[0]]} is too old for verl {_PINNED['verl']}, which was made with {_PINNED[old[0]]}")
    found = context.imports
    if found.errors:
        name, error = next(iter(found.errors.items()))
        return fail(f"{name} cannot be imported: {error}")
    if found.cuda is None:
        return fail(f"torch {have['torch']} is built for processors only; install the build for CUDA")
    if not found.usable and (cards := machine.gpus()):
        driver = cards[0].driver
        old_driver = (
            found.cuda.startswith("13.")
            and driver.partition(".")[0].isdigit()
            and int(driver.partition(".")[0]) < _GPU_DRIVER
        )
        need = f"; CUDA 13 needs {_GPU_DRIVER} or later" if old_driver else ""
        return fail(f"torch {have['torch']} (CUDA {found.cuda}) cannot use the GPUs with driver {driver}{need}")
    if other := [name for name in wanted if Version(have[name]).public != _PINNED[name]]:
        pins = ", ".join(f"{name} {_PINNED[name]}" for name in other)
        return warn(f"{text}; verl {_PINNED['verl']} was made with {pins}")
    return ok(text)


_SECONDS = 20.0


def check_ray(context: Context) -> Finding:
    """Whether a cluster answers, if one is named."""
    address, nodes = context.cluster, context.config.trainer.nnodes
    if address == "auto" or (address is None and nodes > 1):
        return fail(f"no cluster: {nodes} nodes need one (slurm/train_multinode.sbatch starts it and sets RAY_ADDRESS)")
    if address is None:
        return ok("the run starts its own")
    place = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        with socket.create_connection((place.hostname or "", place.port or 6379), timeout=_SECONDS):
            return ok(f"{address} answers")
    except (OSError, ValueError) as error:
        return fail(f"{address} does not answer: {error}")


def check_nodes(context: Context) -> Finding:
    """Whether all nodes would run the same packages and the same code as this one."""
    nodes, address = context.config.trainer.nnodes, context.cluster
    if nodes == 1 or address is None or check_ray(context).state is State.FAIL:
        return ok("one node" if nodes == 1 else "no cluster to ask")
    found = cluster.installed_on_nodes(address)
    if len(found) < nodes:
        return fail(f"{len(found)} of {nodes} nodes have joined {address}: {', '.join(sorted(found))}")
    if others := list(cluster.other_nodes(cluster.installed_here(), found)):
        return fail(f"{'; '.join(others)}: install the same there, or use one environment and checkout on a shared disk")
    return ok(f"{len(found)} nodes have the code and the packages of this one")


def check_cpus(context: Context) -> Finding:
    """Whether Ray has the processors that verl asks for; it would wait for ever."""
    config = context.config
    if not context.on_gpus:
        return ok("not needed")
    # verl's placement groups take three a GPU, each storage unit and the controller of TransferQueue one.
    units = config.transfer_queue.backend.SimpleStorage.num_data_storage_units
    need = 3 * config.trainer.n_gpus_per_node * config.trainer.nnodes + units + 1
    if context.cluster is not None:
        return ok(f"{need} of the cluster are needed")
    have = config.ray_kwargs.ray_init.num_cpus or machine.cpus()
    text = f"Ray counts {have}, verl asks for {need}"
    if have < need:
        return fail(
            f"{text}: it would wait for ever; give the job more, or let Ray count more: ray_kwargs.ray_init.num_cpus={need}"
        )
    return ok(text)


def check_gpus(context: Context) -> Finding:
    """How many there are."""
    wanted, nodes = context.config.trainer.n_gpus_per_node, context.config.trainer.nnodes
    if not context.on_gpus:
        return ok(f"not needed: runs on the CPU with {context.settings.cpu_threads} threads")
    found = machine.gpus()
    if not found:
        return fail(f"no GPU found with nvidia-smi, expected {wanted} on each of {nodes} nodes")
    text = f"{len(found)} x {found[0].name}, {found[0].memory / 2**30:.0f} GiB each"
    if len(found) < wanted:
        return fail(f"{text}; expected {wanted}")
    if len({gpu.name for gpu in found}) > 1:
        return warn(f"{text}; not all of one kind, the slowest decides")
    return ok(text + (f"; the other {nodes - 1} nodes were not looked at" if nodes > 1 else ""))


_FULL = 0.95
"""Share of a GPU above which a plan is not trusted."""


def check_gpu_memory(context: Context) -> Finding:
    """Whether an update and the rollouts fit on a GPU."""
    if not context.on_gpus:
        return ok("not needed")
    shape, plan = ModelShape.of(context.model_config), Plan.of(context.final_config)
    update = resources.update(shape, plan)
    text = (
        f"update {gb(update.total)} (weights {gb(update.weights)}, gradients {gb(update.gradients)}, optimiser "
        f"{gb(update.optimizer)}, gathered {gb(update.gathered)}, {plan.tokens} tokens "
        f"{gb(update.tokens)}, contexts {gb(resources.CONTEXTS)})"
    )
    found = machine.gpus()
    if not found:
        return warn(f"no GPU to compare with; {text}")
    gpu = min(found, key=lambda each: each.memory).memory
    rollout = resources.rollout(shape, plan, gpu)
    text += (
        f"; rollouts {gb(rollout.total)}: training keeps {gb(rollout.training)}, vLLM {gb(rollout.engine)} with "
        f"{rollout.cache_tokens} tokens of cache"
    )
    if update.fixed > gpu:
        return fail(
            f"{text}; a GPU has {gb(gpu)}, less than the {gb(update.fixed)} that no smaller batch saves: use more GPUs or "
            "LoRA (+experiment=qwen8b_lora), or keep weights and optimiser in host memory with "
            "actor_rollout_ref.actor.fsdp_config.offload_policy=true"
        )
    if update.total > gpu:
        return fail(
            f"{text}; a GPU has {gb(gpu)}: lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu, or use more GPUs"
        )
    if rollout.total > gpu:
        return fail(f"{text}; a GPU has {gb(gpu)}: lower actor_rollout_ref.rollout.gpu_memory_utilization")
    if rollout.cache_tokens < plan.max_model_len:
        return fail(
            f"{text}; one sequence needs {plan.max_model_len}: raise actor_rollout_ref.rollout.gpu_memory_utilization"
        )
    if max(update.total, rollout.total) > _FULL * gpu:
        return warn(f"{text}; a GPU has {gb(gpu)}, that is tight")
    return ok(f"{text}; a GPU has {gb(gpu)}")


_SHARED = 2_000_000_000
"""Bytes of shared memory that should be there."""


def check_host_memory(context: Context) -> Finding:
    """Whether what is kept off the GPUs fits into this node."""
    if not context.on_gpus:
        return ok("not needed")
    model = context.config.actor_rollout_ref
    separate = model.actor.use_kl_loss and not model.model.lora_rank
    need = resources.host(
        ModelShape.of(context.model_config),
        Plan.of(context.final_config),
        ranks=context.config.trainer.n_gpus_per_node,
        reference_bytes=resources.stored_bytes(model.ref.fsdp_config) if separate else None,
    )
    have = machine.memory()
    text = f"about {gb(need)} for loading and offloading, the node has {gb(have)}"
    if need > have:
        return fail(text)
    if (shared := machine.shared_memory()) is not None and shared < _SHARED:
        return warn(
            f"{text}; /dev/shm has only {gb(shared)}, which Ray, NCCL and vLLM share: give a container --shm-size=16g"
        )
    return ok(text)


def check_disk(context: Context) -> Finding:
    """Room for checkpoints, of the warm start too, and the exported policy."""
    saves, options = context.config.trainer.save_freq > 0, context.settings.warm_start
    if not saves and not isinstance(options, SupervisedConfig):
        return ok("nothing is saved, as trainer.save_freq says")
    shape = ModelShape.of(context.model_config)
    space = space_of(context.config, shape)
    parts = [f"{space.checkpoints} checkpoints of {gb(space.checkpoint)} and the policy"] if saves else []
    need = space.missing if saves else 0
    if isinstance(options, SupervisedConfig):
        peak, stays = warm_start_space(options, shape, context.settings.out, on_gpu=context.on_gpus)
        parts = [f"warm start {gb(peak)}, of which {gb(stays)} stay", *parts]
        need = max(peak, stays + need)
    text = f"{'; '.join(parts)}: {gb(need)} more, {gb(space.free)} free in {space.place}"
    if not os.access(space.place, os.W_OK):
        return fail(f"{space.place} cannot be written to")
    return fail(text) if need > space.free else ok(text)
