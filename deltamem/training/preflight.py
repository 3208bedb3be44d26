"""What can be checked before a GPU is touched: ``python train.py +experiment=X preflight=true``."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from omegaconf import DictConfig
from packaging.version import Version
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deltamem.embedding import EndpointEmbedder, is_endpoint, load_embedder
from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256
from deltamem.sessions import read_sessions
from deltamem.training import data, resources
from deltamem.training.checkpoints import space_of, warm_start_space
from deltamem.training.cluster import cluster_address
from deltamem.training.config import SupervisedConfig, TrainSettings, read_by_verl, unknown_keys
from deltamem.training.data import Lengths, Limits
from deltamem.training.embedding_store import read_meta
from deltamem.training.machine import Imports, cpus, gpus, installed, shared_memory, try_imports
from deltamem.training.metrics import check_trackers
from deltamem.training.pipeline import supervised_data
from deltamem.training.resources import ModelShape, Plan
from deltamem.training.template_check import template_problem


class State(StrEnum):
    """How bad it is: only `FAIL` keeps a run from starting."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """The result of one check: its state and one sentence for people."""

    state: State
    found: str


class MadeByRunError(Exception):
    """A check needs something that the run itself will make."""


ok = partial(Finding, State.OK)
warn = partial(Finding, State.WARN)
"""The run would start, but somebody should know this."""
fail = partial(Finding, State.FAIL)
"""The run would not start, or not finish properly."""


@dataclass
class Context:
    """One preflight."""

    config: DictConfig  # resolved
    settings: TrainSettings
    folder: Path  # a temporary one
    before_start: bool = False  # no time for what takes minutes

    def need_sessions(self) -> Path:
        """The sessions file; raises `MadeByRunError` if the run makes it, and `DeltaMemError` if it is missing."""
        path = self.settings.sessions
        if path.is_file():
            return path
        if self.settings.synth is not None:
            raise MadeByRunError(f"made by the run: python -m synth writes {path}")
        raise DeltaMemError(f"{path}: no such file; make one with: python -m synth out={path.parent}")

    def need_model(self) -> DictConfig:
        """``actor_rollout_ref.model``; raises `MadeByRunError` if the run makes the starting model."""
        model: DictConfig = self.config.actor_rollout_ref.model
        if self.settings.model is not None and not Path(model.path).is_dir():
            raise MadeByRunError(f"made by the run: {model.path}")
        return model

    @cached_property
    def exported(self) -> data.Exported:
        """The rows as the run will write them, in the temporary folder."""
        settings = self.settings
        chosen = {**settings.data.model_dump(), "seed": settings.seed}
        return data.export(self.need_sessions(), self.folder / "data", settings.episode.config(), **chosen)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return data.load_tokenizer(self.need_model())

    @property
    def chat_tokenizer(self) -> Any:
        """The same; raises `DeltaMemError` if it has no chat template."""
        if not self.tokenizer.chat_template:
            raise DeltaMemError(
                "the tokenizer has no chat template; name one in actor_rollout_ref.model.custom_chat_template"
            )
        return self.tokenizer

    @cached_property
    def imports(self) -> Imports:
        """What can be imported of all that the processes of the run will import."""
        model = self.config.actor_rollout_ref
        packages = ["torch"] if self.on_gpus else []
        if model.rollout.name == "vllm":
            packages += ["vllm", "verl.workers.rollout.vllm_rollout.vllm_async_server"]
        if self.on_gpus and self.attention == _FLASH:
            packages += ["flash_attn", "flash_attn.bert_padding", "flash_attn.ops.triton.cross_entropy"]
        return try_imports(packages)

    @property
    def attention(self) -> str:
        """Which attention the trainer computes."""
        options = self.config.actor_rollout_ref.model.override_config
        return str(options.get("attn_implementation", _FLASH))

    @cached_property
    def model_config(self) -> Any:
        """The model's Hugging Face configuration."""
        return data.load_model_config(self.need_model())

    @cached_property
    def lengths(self) -> Lengths:
        """Tokens of the exported rows."""
        files, episode = [self.exported.train, self.exported.heldout], self.settings.episode.config()
        return data.measure(files, self.chat_tokenizer, episode, data.template_kwargs(self.config))

    @cached_property
    def limits(self) -> Limits:
        """The token limits of the run: fitted to the data, or as they are written."""
        if not self.settings.limits.fit:
            written = self.config.data
            return Limits(written.max_prompt_length, written.max_response_length, self.settings.turn_tokens)
        window = int(self.model_config.max_position_embeddings)
        return data.fit(self.lengths, self.settings.limits, max_turns=self.settings.episode.max_turns, window=window)

    @cached_property
    def final_config(self) -> DictConfig:
        """The configuration that verl will get; with written limits where the data does not exist yet."""
        if not self.settings.limits.fit or self.before_start:
            return self.config
        try:
            return data.with_limits(self.config, self.limits)
        except (MadeByRunError, DeltaMemError):
            return self.config

    @property
    def ranks(self) -> int:
        """GPUs of the whole run."""
        return int(self.config.trainer.n_gpus_per_node * self.config.trainer.nnodes)

    @property
    def cluster(self) -> str | None:
        """The Ray cluster that the run connects to; None if it starts its own."""
        return cluster_address(self.config.ray_kwargs.ray_init.get("address"), os.environ)

    @property
    def on_gpus(self) -> bool:
        """Whether the run needs GPUs."""
        return self.settings.cpu_threads is None


def check_configuration(context: Context) -> Finding:
    """Keys and values, as verl reads them."""
    if unknown := unknown_keys(context.config):
        return fail(f"verl has no key {', '.join(map(repr, unknown))}")
    read_by_verl(context.final_config)
    if (mode := context.config.trainer.v1.trainer_mode) != "sync":
        return fail(f"trainer.v1.trainer_mode={mode}: only sync is supported (docs/training.md, Partial rollouts)")
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
    longest = config.data.max_prompt_length + config.data.max_response_length
    for part, key in data.TOKEN_BUDGETS:
        budget = model[part][key]
        if model.actor.use_dynamic_bsz and budget * parallel < longest:
            return fail(f"actor_rollout_ref.{part}.{key}={budget} is less than one sequence of {longest} tokens")
    if (window := model.rollout.max_model_len) is not None and window < longest:
        return fail(f"actor_rollout_ref.rollout.max_model_len={window} is less than one sequence of {longest} tokens")
    text = f"{batch} sessions x {n} rollouts a step, {mini * n // (ranks // parallel)} rollouts a GPU and update"
    return ok(text) if mini == batch else warn(f"{text}; {batch // mini} updates a step are off-policy after the first")


def check_data(context: Context) -> Finding:
    """All lines of the sessions file, and the rows drawn from it."""
    path = context.need_sessions()
    people: dict[str, set[str]] = {"train": set(), "heldout": set()}
    keys = Counter[str]()
    for labelled in read_sessions(path):
        people[labelled.split].add(labelled.session.person_id)
        keys[labelled.key] += 1
    if both := sorted(people["train"] & people["heldout"]):
        return fail(f"{path}: {len(both)} persons are trained on and held out, {both[0]} is the first")
    if again := keys.total() - len(keys):
        return fail(f"{path}: {again} sessions are there twice")
    if context.settings.curriculum is not None:
        data.check_difficulty(path)
    exported = context.exported
    batch = context.config.data.train_batch_size
    steps = exported.train_sessions // batch * context.config.trainer.total_epochs
    if context.config.trainer.total_training_steps is not None:
        steps = context.config.trainer.total_training_steps
    if exported.train_sessions < batch:
        return fail(f"{path}: {exported.train_sessions} training sessions are fewer than data.train_batch_size={batch}")
    text = (
        f"{exported.train_sessions} training sessions of {len(people['train'])} persons, {steps} steps; "
        f"{exported.heldout_sessions} held-out sessions of {len(people['heldout'])} persons; sha256 {file_sha256(path)[:12]}"
    )
    if (saves := context.config.trainer.save_freq) <= 0 or saves > steps:
        return warn(f"{text}; trainer.save_freq={saves} saves {'nothing' if saves <= 0 else 'only the last step'}")
    return ok(text)


_SECONDS = 20.0
_FULL = 0.95
"""Share of a GPU above which a plan is not trusted."""
_FLASH = "flash_attention_2"
_SHARED = 2_000_000_000
"""Bytes of shared memory that should be there."""


def check_finished(context: Context) -> Finding:
    """What earlier starts of the run have left; verl would end with a traceback."""
    found = [path for path in (Path(context.config.data[key]) for key in ("train_files", "val_files")) if path.is_file()]
    for path in found:
        data.count_rows(path)
    return ok(f"{len(found)} files of rows can be read" if found else "nothing is there yet")


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
    have = config.ray_kwargs.ray_init.num_cpus or cpus()
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
    found = gpus()
    if not found:
        return fail(f"no GPU found with nvidia-smi, expected {wanted} on each of {nodes} nodes")
    text = f"{len(found)} x {found[0].name}, {found[0].memory / 2**30:.0f} GiB each"
    if len(found) < wanted:
        return fail(f"{text}; expected {wanted}")
    if len({gpu.name for gpu in found}) > 1:
        return warn(f"{text}; not all of one kind, the slowest decides")
    return ok(text + (f"; the other {nodes - 1} nodes were not looked at" if nodes > 1 else ""))


def check_gpu_memory(context: Context) -> Finding:
    """Whether an update and the rollouts fit on a GPU."""
    if not context.on_gpus:
        return ok("not needed")
    shape, plan = ModelShape.of(context.model_config), Plan.of(context.final_config)
    update = resources.update(shape, plan)
    text = (
        f"update {_gb(update.total)} (weights {_gb(update.weights)}, gradients {_gb(update.gradients)}, optimiser "
        f"{_gb(update.optimizer)}, gathered {_gb(update.gathered)}, {plan.tokens} tokens "
        f"{_gb(update.tokens)}, contexts {_gb(resources.CONTEXTS)})"
    )
    found = gpus()
    if not found:
        return warn(f"no GPU to compare with; {text}")
    gpu = min(found, key=lambda each: each.memory).memory
    rollout = resources.rollout(shape, plan, gpu)
    text += (
        f"; rollouts {_gb(rollout.total)}: training keeps {_gb(rollout.training)}, vLLM {_gb(rollout.engine)} with "
        f"{rollout.cache_tokens} tokens of cache"
    )
    if update.fixed > gpu:
        return fail(
            f"{text}; a GPU has {_gb(gpu)}, less than the {_gb(update.fixed)} that no smaller batch saves: use more GPUs or "
            "LoRA (+experiment=qwen8b_lora), or keep weights and optimiser in host memory with "
            "actor_rollout_ref.actor.fsdp_config.offload_policy=true"
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
    need = resources.host(
        ModelShape.of(context.model_config),
        Plan.of(context.final_config),
        ranks=context.config.trainer.n_gpus_per_node,
        reference_bytes=resources.stored_bytes(model.ref.fsdp_config) if separate else None,
    )
    have = _memory()
    text = f"about {_gb(need)} for loading and offloading, the node has {_gb(have)}"
    if need > have:
        return fail(text)
    if (shared := shared_memory()) is not None and shared < _SHARED:
        return warn(
            f"{text}; /dev/shm has only {_gb(shared)}, which Ray, NCCL and vLLM share: give a container --shm-size=16g"
        )
    return ok(text)


def check_disk(context: Context) -> Finding:
    """Room for checkpoints, of the warm start too, and the exported policy."""
    saves, options = context.config.trainer.save_freq > 0, context.settings.warm_start
    if not saves and not isinstance(options, SupervisedConfig):
        return ok("nothing is saved, as trainer.save_freq says")
    shape = ModelShape.of(context.model_config)
    space = space_of(context.config, shape)
    parts = [f"{space.checkpoints} checkpoints of {_gb(space.checkpoint)} and the policy"] if saves else []
    need = space.missing if saves else 0
    if isinstance(options, SupervisedConfig):
        peak, stays = warm_start_space(options, shape, context.settings.out, on_gpu=context.on_gpus)
        parts = [f"warm start {_gb(peak)}, of which {_gb(stays)} stay", *parts]
        need = max(peak, stays + need)
    text = f"{'; '.join(parts)}: {_gb(need)} more, {_gb(space.free)} free in {space.place}"
    if not os.access(space.place, os.W_OK):
        return fail(f"{space.place} cannot be written to")
    return fail(text) if need > space.free else ok(text)


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
        if not installed("vllm"):
            return fail("vLLM is not installed; install it in the checkout with: pip install -e '.[gpu]'")
        wanted += ["vllm"] if on_gpus else []
    if on_gpus and context.attention == _FLASH:
        if not installed("flash_attn"):
            return fail(
                "flash-attn is not installed; install it (docs/training.md, Installation), or choose another attention with "
                "++actor_rollout_ref.model.override_config.attn_implementation=sdpa"
            )
        wanted.append("flash-attn")
    if model.model.lora_rank and not installed("peft"):
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
    if not found.usable and (cards := gpus()):
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


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def check_model(context: Context) -> Finding:
    """Configuration, weights and architecture."""
    name, config = str(context.need_model().path), context.model_config
    from transformers import AutoModelForCausalLM

    known = {kind.__name__ for kind in AutoModelForCausalLM._model_mapping.values()}
    architectures = config.architectures or []
    if len(architectures) != 1 or architectures[0] not in known:
        return fail(f"{name}: architecture {architectures} is no causal language model of transformers")
    if context.config.actor_rollout_ref.rollout.name == "vllm" and installed("vllm"):
        served = context.imports.architectures
        if served is not None and architectures[0] not in served:
            return fail(f"{name}: vLLM does not know the architecture {architectures[0]}")
    if missing := data.missing_weights(name):
        if os.environ.get("DELTAMEM_ALLOW_HUB") == "1" and not Path(name).is_dir():
            return warn(f"{name}: weights are not here yet, the run fetches them")
        return fail(f"{name}: {missing}")
    return ok(f"{name}: {architectures[0]}, reads {config.max_position_embeddings} tokens")


def check_tokenizer(context: Context) -> Finding:
    """Vocabulary and end of turn."""
    tokenizer, config = context.tokenizer, context.model_config
    if len(tokenizer) > config.vocab_size:
        return fail(f"{len(tokenizer)} tokens do not fit into the model's vocabulary of {config.vocab_size}")
    if tokenizer.eos_token_id is None or tokenizer.pad_token_id is None:
        return fail("the tokenizer lacks an end-of-sequence or a padding token")
    if not tokenizer.is_fast:
        return fail("the tokenizer is not a fast one: it cannot render long prompts in time")
    return ok(f"{len(tokenizer)} tokens, turns end with {tokenizer.eos_token}")


def check_template(context: Context) -> Finding:
    """Tools, thinking and append-only rendering."""
    tokenizer, model_type = context.chat_tokenizer, context.model_config.model_type
    thinking = context.settings.episode.thinking
    try:
        problem = template_problem(tokenizer, data.template_kwargs(context.config), model_type, thinking=thinking)
    except DeltaMemError:
        raise
    # Templates raise what they like, jinja's errors among it, and verl a ValueError if a tool's answer is no suffix.
    except Exception as error:
        problem = f"the chat template cannot render an episode: {' '.join(str(error).split())}"
    return fail(problem) if problem else ok(f"carries tool answers, append-only, {'' if thinking else 'without '}thinking")


def check_lengths(context: Context) -> Finding:
    """How many rows exceed the limits."""
    settings, limits, found = context.settings, context.limits, context.lengths
    if limits.turn > limits.response:
        return fail(f"deltamem.turn_tokens={limits.turn} is more than a response may have, {limits.response}")
    window = int(context.model_config.max_position_embeddings)
    if limits.total > window:
        return fail(f"limits of {limits.prompt} + {limits.response} tokens are more than the model reads, {window}")
    rows = len(found.prompt)
    prompts, episodes = data.beyond(
        found, limits, max_turns=settings.episode.max_turns, thinking_tokens=settings.limits.thinking_tokens
    )
    text = (
        f"prompts up to {found.prompt.max()} tokens, limits {limits.prompt} + {limits.response}, {limits.turn} a turn"
        f"{' (fitted)' if settings.limits.fit else ''}; {episodes} of {rows} sessions may need more than a response has"
    )
    if prompts > settings.max_failure_rate * rows:
        return fail(
            f"{prompts} of {rows} prompts do not fit into data.max_prompt_length={limits.prompt}, which ends the run"
        )
    if prompts:
        return warn(f"{prompts} of {rows} prompts do not fit into data.max_prompt_length={limits.prompt}; {text}")
    return ok(text)


def check_warm_start(context: Context) -> Finding:
    """Whether target trajectories fit, and a step fits on the first GPU or into this machine."""
    options = context.settings.warm_start
    if not isinstance(options, SupervisedConfig):
        return ok("none" if options is None else "of a model that the run makes")
    context.need_model()
    context.need_sessions()
    if options.lora_rank is not None and not installed("peft"):
        return fail("adapters need the package peft; install it with: pip install peft")
    passes, _ = supervised_data(context.config, context.settings, options, steps=1)
    longest = max(len(one.token_ids) for rows in passes for one in rows)
    text = f"{options.steps} steps on {options.passes} x {options.tokens} tokens; trajectories of up to {longest} tokens"
    own = max(sum(one.own for one in rows) for rows in passes)
    need = resources.warm_start(ModelShape.of(context.model_config), options, own=own, on_gpu=context.on_gpus)
    text += (
        f"; a step {_gb(need.total)} (weights {_gb(need.weights)}, gradients {_gb(need.gradients)}, optimiser "
        f"{_gb(need.optimizer)}, activations {_gb(need.activations)}, logits {_gb(need.logits)})"
    )
    found = gpus()[:1] if context.on_gpus else []
    if context.on_gpus and not found:
        return ok(text)
    what, have = ("the first GPU", found[0].memory) if found else ("the machine", _memory())
    if need.fixed > have:
        return fail(f"{text}; {what} has {_gb(have)}: set deltamem.warm_start.lora_rank or deltamem.warm_start.layers")
    if need.total > have:
        lower = "lower deltamem.warm_start.tokens" + (
            "" if options.gradient_checkpointing else ", or set deltamem.warm_start.gradient_checkpointing=true"
        )
        return fail(f"{text}; {what} has {_gb(have)}: {lower}")
    return ok(text)


def _memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_PROBE = "Ann lives in Oslo."


def check_embedder(context: Context) -> Finding:
    """Whether the model gives vectors, and its store belongs to it."""
    settings = context.settings.embedder
    if is_endpoint(settings.name):
        base_url, _, model = settings.name.partition("#")
        if not model:
            return fail(f"embedder {settings.name!r} names no model; write it as http://host:port/v1#model")
        vectors = EndpointEmbedder(base_url, model, timeout=_SECONDS, max_retries=0).documents([_PROBE])
    else:
        # On the CPU, whatever device the run uses: nothing touches a GPU here.
        vectors = load_embedder(settings.name, device="cpu", batch_size=1).documents([_PROBE])
    meta = read_meta(Path(settings.store), settings.name)
    stored = "store made by the run" if meta is None else f"store in {settings.store}"
    return ok(f"{settings.name}: {vectors.shape[1]} dimensions, {stored}")


def check_reward(context: Context) -> Finding:
    """Whether the scorer can be made from its configuration."""
    context.settings.scorer()
    return ok(", ".join(f"{key}={value}" for key, value in context.settings.reward.items() if key != "_target_"))


def check_tracking(context: Context) -> Finding:
    """Whether the configured trackers are installed."""
    check_trackers(context.settings.trackers)
    return ok(", ".join(("console", "metrics.jsonl", *context.settings.trackers)))


Check = Callable[[Context], Finding]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("packages", check_packages),
    ("configuration", check_configuration),
    ("model", check_model),
    ("tokenizer", check_tokenizer),
    ("chat template", check_template),
    ("data", check_data),
    ("lengths", check_lengths),
    ("warm start", check_warm_start),
    ("batches", check_batches),
    ("reward", check_reward),
    ("embedder", check_embedder),
    ("trackers", check_tracking),
    ("finished stages", check_finished),
    ("disk", check_disk),
    ("ray", check_ray),
    ("CPUs", check_cpus),
    ("GPUs", check_gpus),
    ("GPU memory", check_gpu_memory),
    ("host memory", check_host_memory),
)
"""All checks in the order of the table."""

_AFTERWARDS = ("data", "lengths", "warm start", "reward", "embedder", "trackers")
"""Checks that take minutes, or that the first stages make themselves."""
_ESTIMATES = ("GPU memory", "host memory")
"""Checks that may be wrong: they keep no run from starting."""

_STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red"}


class Row(NamedTuple):
    """One line of the table."""

    check: str
    finding: Finding


def run_checks(context: Context, checks: Sequence[tuple[str, Check]] = CHECKS) -> list[Row]:
    """Run all checks; one that breaks is a failed one."""
    rows: list[Row] = []
    explained: dict[str, str] = {}
    for name, check in checks:
        try:
            # Libraries show progress bars and warnings of their own; what matters of them is in the finding.
            with contextlib.redirect_stderr(io.StringIO()):
                finding = check(context)
        except MadeByRunError as later:
            finding = ok(str(later))
        except DeltaMemError as error:
            # What several checks need is explained once.
            first = explained.setdefault(str(error), name)
            finding = fail(str(error) if first == name else f"needs what {first!r} did not find")
        except Exception as error:
            finding = fail(f"the check itself broke: {type(error).__name__}: {' '.join(str(error).split())}")
        rows.append(Row(name, finding))
    return rows


def preflight(config: DictConfig, settings: TrainSettings, console: Console) -> int:
    """Check a run (its resolved configuration and the ``deltamem`` part of it) and print the table.

    Returns:
        0, or 2 if the run would not start or not finish properly.
    """
    with tempfile.TemporaryDirectory(prefix="deltamem_preflight_") as folder:
        rows = run_checks(Context(config, settings, Path(folder)))
    _show(rows, console)
    counts = Counter(row.finding.state for row in rows)
    if counts[State.FAIL]:
        console.print(f"preflight: {counts[State.FAIL]} of {len(rows)} checks failed; the run would not work")
        return 2
    warnings = f", {counts[State.WARN]} with a warning" if counts[State.WARN] else ""
    console.print(f"preflight: all {len(rows)} checks passed{warnings}; start with the same command without preflight=true")
    return 0


def check_start(config: DictConfig, settings: TrainSettings, console: Console) -> int:
    """Check what takes seconds before the first stage of a run on GPUs, and print what is not all right.

    Estimates only warn. A run on a CPU is not checked: what it lacks shows within seconds.

    Returns:
        0, or 2 if the run would not start or not finish properly.
    """
    if settings.cpu_threads is not None:
        return 0
    checks = [entry for entry in CHECKS if entry[0] not in _AFTERWARDS]
    with tempfile.TemporaryDirectory(prefix="deltamem_preflight_") as folder:
        rows = run_checks(Context(config, settings, Path(folder), before_start=True), checks)
    rows = [
        Row(name, warn(finding.found) if name in _ESTIMATES and finding.state == State.FAIL else finding)
        for name, finding in rows
        if finding.state != State.OK
    ]
    if rows:
        _show(rows, console)
    if any(row.finding.state == State.FAIL for row in rows):
        console.print("preflight: the run would not work; preflight=skip starts it all the same")
        return 2
    return 0


def _show(rows: Sequence[Row], console: Console) -> None:
    table = Table("check", "", "found")
    for row in rows:
        table.add_row(row.check, Text(row.finding.state, style=_STYLES[row.finding.state]), Text(row.finding.found))
    console.print(table)
