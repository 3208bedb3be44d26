"""What can be checked before a GPU is touched: ``python train.py +experiment=X preflight=true``."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
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
from deltamem.training import cluster, data, machine, models, pipeline, resources, token_limits
from deltamem.training.checkpoints import space_of, warm_start_space
from deltamem.training.config import SupervisedConfig, TrainSettings, read_by_verl, unknown_keys
from deltamem.training.embedding_store import read_meta
from deltamem.training.resources import ModelShape, Plan, gb


class State(StrEnum):
    """How bad it is: only `FAIL` keeps a run from starting."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class PreflightFinding(NamedTuple):
    """The result of one check: its state and one sentence for people."""

    state: State
    found: str


class MadeByRunError(Exception):
    """A check needs something that the run itself will make."""


FLASH = "flash_attention_2"


def refuse(broken: object, sentence: str) -> None:
    """Fail the check if a rule is broken."""
    if broken:
        raise DeltaMemError(sentence)


def warn(sentence: str) -> PreflightFinding:
    """The check passes, but people should know this."""
    return PreflightFinding(State.WARN, sentence)


Found = str | PreflightFinding
"""What a check returns: a sentence if all is right, or a warning; else it raises."""


@dataclass
class Context:
    """One preflight; everything is found out when it is first asked for."""

    config: DictConfig  # resolved
    settings: TrainSettings
    folder: Path  # a temporary one
    before_start: bool = False  # no time for what takes minutes

    def need_sessions(self) -> Path:
        """The sessions file; raises `MadeByRunError` if the run makes it."""
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
        return models.load_tokenizer(self.need_model())

    @property
    def chat_tokenizer(self) -> Any:
        """The same; raises `DeltaMemError` if it has no chat template."""
        if not self.tokenizer.chat_template:
            raise DeltaMemError(models.NO_TEMPLATE)
        return self.tokenizer

    @cached_property
    def model_config(self) -> Any:
        """The model's Hugging Face configuration."""
        return models.load_model_config(self.need_model())

    @cached_property
    def shape(self) -> ModelShape:
        """The model's sizes."""
        return ModelShape.of(self.model_config)

    @cached_property
    def lengths(self) -> token_limits.Lengths:
        """Tokens of the exported rows."""
        files, episode = [self.exported.train, self.exported.heldout], self.settings.episode.config()
        return token_limits.measure(files, self.chat_tokenizer, episode, models.template_kwargs(self.config))

    @cached_property
    def limits(self) -> token_limits.Limits:
        """The token limits of the run: fitted to the data, or as they are written."""
        settings = self.settings
        if not settings.limits.fit:
            return token_limits.written_limits(self.config, settings)
        window = int(self.model_config.max_position_embeddings)
        return token_limits.fit(self.lengths, settings.limits, max_turns=settings.episode.config().max_turns, window=window)

    @cached_property
    def final_config(self) -> DictConfig:
        """The configuration that verl will get; with written limits where the data does not exist yet."""
        if self.settings.limits.fit and not self.before_start:
            with contextlib.suppress(MadeByRunError, DeltaMemError):
                return token_limits.with_limits(self.config, self.limits)
        return self.config

    @property
    def on_gpus(self) -> bool:
        """Whether the run needs GPUs."""
        return self.settings.cpu_threads is None

    @property
    def attention(self) -> str:
        """Which attention the trainer computes."""
        return str(self.config.actor_rollout_ref.model.override_config.get("attn_implementation", FLASH))

    @cached_property
    def imports(self) -> machine.Imports:
        """What can be imported of all that the processes of the run will import."""
        packages = ["torch"] if self.on_gpus else []
        if self.config.actor_rollout_ref.rollout.name == "vllm":
            packages += ["vllm", "verl.workers.rollout.vllm_rollout.vllm_async_server"]
        if self.on_gpus and self.attention == FLASH:
            packages += ["flash_attn", "flash_attn.bert_padding", "flash_attn.ops.triton.cross_entropy"]
        return machine.try_imports(packages)

    @property
    def cluster(self) -> str | None:
        """The Ray cluster that the run connects to; None if it starts its own."""
        return cluster.cluster_address(self.config.ray_kwargs.ray_init.get("address"), os.environ)


_PINNED = {"verl": "0.9.1", "torch": "2.11.0", "vllm": "0.24.0", "transformers": "5.9.0", "flash-attn": "2.8.3"}
"""What verl 0.9.1 pins for GPUs (its extras vllm and fsdp)."""
_OLDEST = {"verl": "0.9.1", "torch": "2.11", "vllm": "0.24", "transformers": "5.5.3", "flash-attn": "2.4.3"}
_GPU_DRIVER = 580
"""The oldest driver that CUDA 13 runs on."""


def check_packages(context: Context) -> Found:
    """The pinned verl, vLLM and flash-attn where they are configured: there, not too old, and importable."""
    model, on_gpus = context.config.actor_rollout_ref, context.on_gpus
    vllm, flash = model.rollout.name == "vllm", on_gpus and context.attention == FLASH
    refuse(
        vllm and not machine.installed("vllm"),
        "vLLM is not installed; install it in the checkout with: pip install -e '.[gpu]'",
    )
    refuse(
        flash and not machine.installed("flash_attn"),
        "flash-attn is not installed; install it (docs/training.md, Installation), or choose another attention with "
        "++actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    )
    lacks_peft = model.model.lora_rank and not machine.installed("peft")
    refuse(lacks_peft, "LoRA needs the package peft; install it with: pip install peft")
    wanted = ["verl", "torch", "transformers", *["vllm"] * (vllm and on_gpus), *["flash-attn"] * flash]
    have = {name: importlib.metadata.version(name) for name in wanted}
    text = ", ".join(f"{name} {version}" for name, version in have.items())
    verl = _PINNED["verl"]
    other_verl = f"verl {have['verl']} is installed, expected {verl}: pip install -e '.[gpu]' in the checkout"
    refuse(have["verl"] != verl, other_verl)
    if not on_gpus:
        return text
    for name in wanted:
        too_old = Version(have[name]) < Version(_OLDEST[name])
        refuse(too_old, f"{name} {have[name]} is too old for verl {verl}, which was made with {_PINNED[name]}")
    found = context.imports
    for name, error in found.errors.items():
        raise DeltaMemError(f"{name} cannot be imported: {error}")
    refuse(found.cuda is None, f"torch {have['torch']} is built for processors only; install the build for CUDA")
    if not found.usable and (cards := machine.gpus()):
        driver = cards[0].driver
        major = driver.partition(".")[0]
        old = str(found.cuda).startswith("13.") and major.isdigit() and int(major) < _GPU_DRIVER
        need = f"; CUDA 13 needs {_GPU_DRIVER} or later, or cuda-compat (docs/first-run.md, An older driver)" if old else ""
        raise DeltaMemError(f"torch {have['torch']} (CUDA {found.cuda}) cannot use the GPUs with driver {driver}{need}")
    if other := [name for name in wanted if Version(have[name]).public != _PINNED[name]]:
        return warn(f"{text}; verl {verl} was made with {', '.join(f'{name} {_PINNED[name]}' for name in other)}")
    return text


def check_configuration(context: Context) -> Found:
    """Keys and values, as verl reads them."""
    unknown = unknown_keys(context.config)
    refuse(unknown, f"verl has no key {', '.join(map(repr, unknown))}")
    read_by_verl(context.final_config)
    mode = context.config.trainer.v1.trainer_mode
    refuse(mode != "sync", f"trainer.v1.trainer_mode={mode}: only sync is supported (docs/training.md, Partial rollouts)")
    return f"verl's own validation passes; {context.config.actor_rollout_ref.rollout.name} rollouts"


def check_model(context: Context) -> Found:
    """Configuration, weights and architecture."""
    name, config = str(context.need_model().path), context.model_config
    from transformers import AutoModelForCausalLM

    known = {kind.__name__ for kind in AutoModelForCausalLM._model_mapping.values()}
    kinds = config.architectures or []
    one = len(kinds) == 1 and kinds[0] in known
    refuse(not one, f"{name}: architecture {kinds} is no causal language model of transformers")
    if context.config.actor_rollout_ref.rollout.name == "vllm" and machine.installed("vllm"):
        served = context.imports.architectures
        unserved = served is not None and kinds[0] not in served
        refuse(unserved, f"{name}: vLLM does not know the architecture {kinds[0]}")
    missing = models.missing_weights(name)
    if missing and os.environ.get("DELTAMEM_ALLOW_HUB") == "1" and not Path(name).is_dir():
        return warn(f"{name}: weights are not here yet, the run fetches them")
    refuse(missing, f"{name}: {missing}")
    return f"{name}: {kinds[0]}, reads {config.max_position_embeddings} tokens"


def check_tokenizer(context: Context) -> Found:
    """Vocabulary and end of turn."""
    tokenizer = context.tokenizer
    if problem := models.vocabulary_problem(tokenizer, context.model_config):
        raise DeltaMemError(problem)
    no_ends = tokenizer.eos_token_id is None or tokenizer.pad_token_id is None
    refuse(no_ends, "the tokenizer lacks an end-of-sequence or a padding token")
    refuse(not tokenizer.is_fast, "the tokenizer is not a fast one: it cannot render long prompts in time")
    return f"{len(tokenizer)} tokens, turns end with {tokenizer.eos_token}"


def check_template(context: Context) -> Found:
    """Tools, thinking and append-only rendering."""
    tokenizer, model_type = context.chat_tokenizer, context.model_config.model_type
    thinking = context.settings.episode.config().thinking
    try:
        problem = models.template_problem(tokenizer, models.template_kwargs(context.config), model_type, thinking=thinking)
    except DeltaMemError:
        raise
    # Templates raise what they like, jinja's errors among it, and verl a ValueError if a tool's answer is no suffix.
    except Exception as error:
        problem = f"the chat template cannot render an episode: {' '.join(str(error).split())}"
    refuse(problem, str(problem))
    return f"carries tool answers, append-only, {'' if thinking else 'without '}thinking"


def check_data(context: Context) -> Found:
    """All lines of the sessions file, and the rows drawn from it."""
    path, config = context.need_sessions(), context.config
    people: dict[str, set[str]] = {"train": set(), "heldout": set()}
    keys = Counter[str]()
    for labelled in read_sessions(path):
        people[labelled.split].add(labelled.session.person_id)
        keys[labelled.key] += 1
    if both := sorted(people["train"] & people["heldout"]):
        raise DeltaMemError(f"{path}: {len(both)} persons are trained on and held out, {both[0]} is the first")
    again = keys.total() - len(keys)
    refuse(again, f"{path}: {again} sessions are there twice")
    exported, batch = context.exported, config.data.train_batch_size
    train = exported.train_sessions
    steps = config.trainer.total_training_steps
    if steps is None:
        steps = train // batch * config.trainer.total_epochs
    refuse(train < batch, f"{path}: {train} training sessions are fewer than data.train_batch_size={batch}")
    text = (
        f"{train} training sessions of {len(people['train'])} persons, {steps} steps; {exported.heldout_sessions} held-out "
        f"sessions of {len(people['heldout'])} persons; sha256 {file_sha256(path)[:12]}"
    )
    if (saves := config.trainer.save_freq) <= 0 or saves > steps:
        return warn(f"{text}; trainer.save_freq={saves} saves {'nothing' if saves <= 0 else 'only the last step'}")
    return text


def check_lengths(context: Context) -> Found:
    """How many rows exceed the limits."""
    settings, limits, lengths = context.settings, context.limits, context.lengths
    rows, window = len(lengths.prompt), int(context.model_config.max_position_embeddings)
    prompts, episodes = token_limits.beyond(
        lengths, limits, max_turns=settings.episode.config().max_turns, thinking_tokens=settings.limits.thinking_tokens
    )
    prompt, response, turn = limits.prompt, limits.response, limits.turn
    buffer = settings.overlong.buffer if settings.overlong is not None else 0
    refuse(turn > response, f"deltamem.turn_tokens={turn} is more than a response may have, {response}")
    refuse(buffer > turn, f"deltamem.overlong.buffer={buffer} is more than a turn may have, {turn}")
    refuse(limits.total > window, f"limits of {prompt} + {response} tokens are more than the model reads, {window}")
    too_long = f"{prompts} of {rows} prompts do not fit into data.max_prompt_length={prompt}"
    refuse(prompts > settings.max_failure_rate * rows, f"{too_long}, which ends the run")
    text = (
        f"prompts up to {lengths.prompt.max()} tokens, limits {prompt} + {response}, {turn} a turn"
        f"{' (fitted)' if settings.limits.fit else ''}; {episodes} of {rows} sessions may need more than a response has"
    )
    return warn(f"{too_long}; {text}") if prompts else text


def check_warm_start(context: Context) -> Found:
    """Whether target trajectories fit, and a step fits on the first GPU or into this machine."""
    options = context.settings.warm_start
    if not isinstance(options, SupervisedConfig):
        return "none" if options is None else "of a model that the run makes"
    context.need_model()
    context.need_sessions()
    lacks_peft = options.lora_rank is not None and not machine.installed("peft")
    refuse(lacks_peft, "adapters need the package peft; install it with: pip install peft")
    from deltamem.training.warm_start import supervised_data  # loads torch

    passes, _ = supervised_data(context.config, context.settings, steps=1)
    longest = max(len(one.token_ids) for rows in passes for one in rows)
    own = max(sum(one.own for one in rows) for rows in passes)
    need = resources.warm_start(context.shape, options, own=own, on_gpu=context.on_gpus)
    text = (
        f"{options.steps} steps on {options.passes} x {options.tokens} tokens; trajectories of up to {longest} tokens; "
        f"a step {need.described('weights', 'gradients', 'optimizer', 'activations', 'logits')}"
    )
    cards = machine.gpus()[:1] if context.on_gpus else []
    if context.on_gpus and not cards:
        return text
    what, have = ("the first GPU", cards[0].memory) if cards else ("the machine", machine.memory())
    lacks = f"{text}; {what} has {gb(have)}"
    recompute = "" if options.gradient_checkpointing else ", or set deltamem.warm_start.gradient_checkpointing=true"
    refuse(need.fixed > have, f"{lacks}: set deltamem.warm_start.lora_rank or deltamem.warm_start.layers")
    refuse(need.total > have, f"{lacks}: lower deltamem.warm_start.tokens{recompute}")
    return text


def check_batches(context: Context) -> Found:
    """Whether batches divide among GPUs."""
    config = context.final_config
    model, fsdp = config.actor_rollout_ref, config.actor_rollout_ref.actor.fsdp_config
    ranks = int(config.trainer.n_gpus_per_node * config.trainer.nnodes)
    batch, mini, n = config.data.train_batch_size, model.actor.ppo_mini_batch_size, model.rollout.n
    parallel = max(model.actor.ulysses_sequence_parallel_size, fsdp.ulysses_sequence_parallel_size)
    engine, shards, window = model.rollout.tensor_model_parallel_size, fsdp.fsdp_size, model.rollout.max_model_len
    replicas = max(ranks // parallel, 1)
    longest = config.data.max_prompt_length + config.data.max_response_length
    shared = f"{ranks} GPUs cannot be divided by"
    short = f"is less than one sequence of {longest} tokens"
    refuse(n < 2, f"actor_rollout_ref.rollout.n={n}: GRPO compares rollouts of one session, expected at least 2")
    refuse(ranks % engine, f"{ranks} GPUs cannot be shared by vLLM engines of tensor_model_parallel_size={engine}")
    refuse(ranks % parallel, f"{shared} ulysses_sequence_parallel_size={parallel}")
    refuse(shards > 0 and ranks % shards, f"{shared} fsdp_size={shards}")
    refuse(batch % mini, f"data.train_batch_size={batch} is not a multiple of ppo_mini_batch_size={mini}")
    uneven = f"{mini} x {n} rollouts of an update do not divide among {replicas} data-parallel ranks"
    refuse(mini * n % replicas, uneven)
    for part, key in token_limits.TOKEN_BUDGETS:
        budget = model[part][key]
        too_small = model.actor.use_dynamic_bsz and budget * parallel < longest
        refuse(too_small, f"actor_rollout_ref.{part}.{key}={budget} {short}")
    refuse(window is not None and window < longest, f"actor_rollout_ref.rollout.max_model_len={window} {short}")
    text = f"{batch} sessions x {n} rollouts a step, {mini * n // replicas} rollouts a GPU and update"
    return text if mini == batch else warn(f"{text}; {batch // mini} updates a step are off-policy after the first")


def check_reward(context: Context) -> Found:
    """Whether the scorer can be made from its configuration."""
    context.settings.scorer()
    return ", ".join(f"{key}={value}" for key, value in context.settings.reward.items() if key != "_target_")


def check_embedder(context: Context) -> Found:
    """Whether the model gives vectors, and its store belongs to it."""
    settings, probe = context.settings.embedder, ["Ann lives in Oslo."]
    base_url, _, model = settings.name.partition("#")
    if not is_endpoint(settings.name):
        # On the CPU, whatever device the run uses: nothing touches a GPU here.
        vectors = load_embedder(settings.name, device="cpu", batch_size=1).documents(probe)
    else:
        refuse(not model, f"embedder {settings.name!r} names no model; write it as http://host:port/v1#model")
        vectors = EndpointEmbedder(base_url, model, timeout=20.0, max_retries=0).documents(probe)
    meta = read_meta(Path(settings.store), settings.name)
    stored = "store made by the run" if meta is None else f"store in {settings.store}"
    return f"{settings.name}: {vectors.shape[1]} dimensions, {stored}"


def check_loggers(context: Context) -> Found:
    """Whether the configured loggers are installed."""
    return ", ".join((*pipeline.check_loggers(context.config), "metrics.jsonl"))


def check_finished(context: Context) -> Found:
    """What earlier starts of the run have left; verl would end with a traceback."""
    files = [path for key in ("train_files", "val_files") if (path := Path(context.config.data[key])).is_file()]
    for path in files:
        data.count_rows(path)
    return f"{len(files)} files of rows can be read" if files else "nothing is there yet"


def check_disk(context: Context) -> Found:
    """Room for checkpoints, of the warm start too, and the exported policy."""
    saves, options = context.config.trainer.save_freq > 0, context.settings.warm_start
    if not saves and not isinstance(options, SupervisedConfig):
        return "nothing is saved, as trainer.save_freq says"
    space = space_of(context.config, context.shape)
    parts = [f"{space.checkpoints} checkpoints of {gb(space.checkpoint)} and the policy"] if saves else []
    need = space.missing if saves else 0
    if isinstance(options, SupervisedConfig):
        peak, stays = warm_start_space(options, context.shape, context.settings.out, on_gpu=context.on_gpus)
        parts = [f"warm start {gb(peak)}, of which {gb(stays)} stay", *parts]
        need = max(peak, stays + need)
    text = f"{'; '.join(parts)}: {gb(need)} more, {gb(space.free)} free in {space.place}"
    refuse(not os.access(space.place, os.W_OK), f"{space.place} cannot be written to")
    refuse(need > space.free, text)
    return text


_SECONDS = 20.0


def check_ray(context: Context) -> Found:
    """Whether a cluster answers, if one is named."""
    address, nodes = context.cluster, context.config.trainer.nnodes
    alone = address == "auto" or (address is None and nodes > 1)
    refuse(alone, f"no cluster: {nodes} nodes need one (slurm/train_multinode.sbatch starts it and sets RAY_ADDRESS)")
    if address is None:
        return "the run starts its own"
    place = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        with socket.create_connection((place.hostname or "", place.port or 6379), timeout=_SECONDS):
            return f"{address} answers"
    except (OSError, ValueError) as error:
        raise DeltaMemError(f"{address} does not answer: {error}") from error


def check_nodes(context: Context) -> Found:
    """Whether all nodes would run the same packages and the same code as this one."""
    nodes, address = context.config.trainer.nnodes, context.cluster
    if nodes == 1:
        return "one node"
    try:
        check_ray(context)
    except DeltaMemError:
        address = None
    if address is None:
        return "no cluster to ask"
    there = cluster.installed_on_nodes(address)
    joined = ", ".join(sorted(there))
    refuse(len(there) < nodes, f"{len(there)} of {nodes} nodes have joined {address}: {joined}")
    others = list(cluster.other_nodes(cluster.installed_here(), there))
    cure = "install the same there, or use one environment and checkout on a shared disk"
    refuse(others, f"{'; '.join(others)}: {cure}")
    return f"{len(there)} nodes have the code and the packages of this one"


def check_cpus(context: Context) -> Found:
    """Whether Ray has the processors that verl asks for; it would wait for ever."""
    config = context.config
    if not context.on_gpus:
        return "not needed"
    # verl's placement groups take three a GPU, each storage unit and the controller of TransferQueue one.
    units = config.transfer_queue.backend.SimpleStorage.num_data_storage_units
    need = 3 * config.trainer.n_gpus_per_node * config.trainer.nnodes + units + 1
    if context.cluster is not None:
        return f"{need} of the cluster are needed"
    have = config.ray_kwargs.ray_init.num_cpus or machine.cpus()
    text = f"Ray counts {have}, verl asks for {need}"
    cure = f"give the job more, or let Ray count more: ray_kwargs.ray_init.num_cpus={need}"
    refuse(have < need, f"{text}: it would wait for ever; {cure}")
    return text


def check_gpus(context: Context) -> Found:
    """How many there are."""
    wanted, nodes = context.config.trainer.n_gpus_per_node, context.config.trainer.nnodes
    if not context.on_gpus:
        return f"not needed: runs on the CPU with {context.settings.cpu_threads} threads"
    cards = machine.gpus()
    refuse(not cards, f"no GPU found with nvidia-smi, expected {wanted} on each of {nodes} nodes")
    text = f"{len(cards)} x {cards[0].name}, {cards[0].memory / 2**30:.0f} GiB each"
    refuse(len(cards) < wanted, f"{text}; expected {wanted}")
    if len({gpu.name for gpu in cards}) > 1:
        return warn(f"{text}; not all of one kind, the slowest decides")
    return text + (f"; the other {nodes - 1} nodes were not looked at" if nodes > 1 else "")


_FULL = 0.95
"""Share of a GPU above which a plan is not trusted."""


def check_gpu_memory(context: Context) -> Found:
    """Whether an update and the rollouts fit on a GPU."""
    if not context.on_gpus:
        return "not needed"
    plan = Plan.of(context.final_config)
    update = resources.update(context.shape, plan)
    parts = update.described("weights", "gradients", "optimizer", "gathered")
    text = f"update {parts[:-1]}, {plan.tokens} tokens {gb(update.tokens)}, contexts {gb(update.process)})"
    cards = machine.gpus()
    if not cards:
        return warn(f"no GPU to compare with; {text}")
    gpu = min(card.memory for card in cards)
    rollout = resources.rollout(context.shape, plan, gpu)
    text += (
        f"; rollouts {gb(rollout.total)}: training keeps {gb(rollout.training)}, vLLM {gb(rollout.engine)} with "
        f"{rollout.cache_tokens} tokens of cache"
    )
    lacks, engine = f"{text}; a GPU has {gb(gpu)}", "actor_rollout_ref.rollout.gpu_memory_utilization"
    refuse(
        update.fixed > gpu,
        f"{lacks}, less than the {gb(update.fixed)} that no smaller batch saves: use more GPUs or LoRA "
        "(+experiment=qwen8b_lora), or keep weights and optimiser in host memory with "
        "actor_rollout_ref.actor.fsdp_config.offload_policy=true",
    )
    fewer = "lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu, or use more GPUs"
    refuse(update.total > gpu, f"{lacks}: {fewer}")
    refuse(rollout.total > gpu, f"{lacks}: lower {engine}")
    refuse(rollout.cache_tokens < plan.max_model_len, f"{text}; one sequence needs {plan.max_model_len}: raise {engine}")
    return warn(f"{lacks}, that is tight") if max(update.total, rollout.total) > _FULL * gpu else lacks


_SHARED = 2_000_000_000
"""Bytes of shared memory that should be there."""


def check_host_memory(context: Context) -> Found:
    """Whether what is kept off the GPUs fits into this node."""
    if not context.on_gpus:
        return "not needed"
    model = context.config.actor_rollout_ref
    separate = model.actor.use_kl_loss and not model.model.lora_rank
    need = resources.host(
        context.shape,
        Plan.of(context.final_config),
        ranks=context.config.trainer.n_gpus_per_node,
        reference_bytes=resources.stored_bytes(model.ref.fsdp_config) if separate else None,
    )
    have, shared = machine.memory(), machine.shared_memory()
    text = f"about {gb(need)} for loading and offloading, the node has {gb(have)}"
    refuse(need > have, text)
    if shared is not None and shared < _SHARED:
        cure = "which Ray, NCCL and vLLM share: give a container --shm-size=16g"
        return warn(f"{text}; /dev/shm has only {gb(shared)}, {cure}")
    return text


class Check(NamedTuple):
    """One line of the table."""

    name: str
    look: Callable[[Context], Found]
    before_start: bool = True  # takes seconds; else minutes, or the first stages of the run make it themselves
    estimate: bool = False  # may be wrong: it keeps no run from starting


CHECKS = (
    Check("packages", check_packages),
    Check("configuration", check_configuration),
    Check("model", check_model),
    Check("tokenizer", check_tokenizer),
    Check("chat template", check_template),
    Check("data", check_data, before_start=False),
    Check("lengths", check_lengths, before_start=False),
    Check("warm start", check_warm_start, before_start=False),
    Check("batches", check_batches),
    Check("reward", check_reward, before_start=False),
    Check("embedder", check_embedder, before_start=False),
    Check("loggers", check_loggers, before_start=False),
    Check("finished stages", check_finished),
    Check("disk", check_disk),
    Check("ray", check_ray),
    Check("nodes", check_nodes),
    Check("CPUs", check_cpus),
    Check("GPUs", check_gpus),
    Check("GPU memory", check_gpu_memory, estimate=True),
    Check("host memory", check_host_memory, estimate=True),
)
"""All checks in the order of the table."""


def run_checks(context: Context, checks: Sequence[Check] = CHECKS) -> dict[str, PreflightFinding]:
    """Run checks; one that breaks is a failed one. Returns what each found, by its name."""
    findings: dict[str, PreflightFinding] = {}
    explained: dict[str, str] = {}
    for check in checks:
        try:
            # Libraries show progress bars and warnings of their own; what matters of them is in the finding.
            with contextlib.redirect_stderr(io.StringIO()):
                found = check.look(context)
        except MadeByRunError as later:
            found = str(later)
        except DeltaMemError as error:
            # What several checks need is explained once.
            first = explained.setdefault(str(error), check.name)
            text = str(error) if first == check.name else f"needs what {first!r} did not find"
            found = PreflightFinding(State.FAIL, text)
        except Exception as error:
            text = f"the check itself broke: {type(error).__name__}: {' '.join(str(error).split())}"
            found = PreflightFinding(State.FAIL, text)
        findings[check.name] = found if isinstance(found, PreflightFinding) else PreflightFinding(State.OK, found)
    return findings


def preflight(config: DictConfig, settings: TrainSettings, console: Console) -> int:
    """Check a run and print the table; returns 0, or 2 if the run would not start or not finish properly."""
    with tempfile.TemporaryDirectory(prefix="deltamem_preflight_") as folder:
        return report(Context(config, settings, Path(folder)), console, "start with the same command without preflight=true")


def report(context: Context, console: Console, further: str) -> int:
    """Run all checks and print the table and what comes `further` if they pass; returns 0 or 2."""
    findings = run_checks(context)
    show(findings, console)
    counts = Counter(finding.state for finding in findings.values())
    if counts[State.FAIL]:
        console.print(f"preflight: {counts[State.FAIL]} of {len(findings)} checks failed; the run would not work")
        return 2
    warnings = f", {counts[State.WARN]} with a warning" if counts[State.WARN] else ""
    console.print(f"preflight: all {len(findings)} checks passed{warnings}; {further}")
    return 0


def check_start(config: DictConfig, settings: TrainSettings, console: Console) -> int:
    """Check what takes seconds before the first stage of a run on GPUs, and print what is not all right; returns 0 or 2.

    Estimates only warn. A run on a CPU is not checked: what it lacks shows within seconds.
    """
    if settings.cpu_threads is not None:
        return 0
    checks = [check for check in CHECKS if check.before_start]
    with tempfile.TemporaryDirectory(prefix="deltamem_preflight_") as folder:
        findings = run_checks(Context(config, settings, Path(folder), before_start=True), checks)
    estimates = {check.name for check in checks if check.estimate}
    findings = {
        name: warn(finding.found) if name in estimates else finding
        for name, finding in findings.items()
        if finding.state is not State.OK
    }
    if findings:
        show(findings, console)
    if any(finding.state is State.FAIL for finding in findings.values()):
        console.print("preflight: the run would not work; preflight=skip starts it all the same")
        return 2
    return 0


_STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red"}


def show(findings: Mapping[str, PreflightFinding], console: Console) -> None:
    """Print a table of findings."""
    table = Table("check", "", "found")
    for name, finding in findings.items():
        table.add_row(name, Text(finding.state, style=_STYLES[finding.state]), Text(finding.found))
    console.print(table)
