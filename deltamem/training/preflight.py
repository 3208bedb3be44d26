"""What can be checked before a GPU is touched: ``python train.py +experiment=X preflight=true``."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deltamem.chat_template import TurnFormat, turn_format
from deltamem.embedding import EndpointEmbedder, is_endpoint, load_embedder
from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256
from deltamem.sessions import read_sessions
from deltamem.training import data, resources
from deltamem.training.checkpoints import space_of
from deltamem.training.config import TrainSettings, read_by_verl, unknown_keys
from deltamem.training.data import Lengths, Limits
from deltamem.training.embedding_store import read_meta
from deltamem.training.metrics import check_trackers
from deltamem.training.resources import ModelShape, Plan


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

    @cached_property
    def model_config(self) -> Any:
        """The model's Hugging Face configuration."""
        return data.load_model_config(self.need_model())

    @cached_property
    def lengths(self) -> Lengths:
        """Tokens of the exported rows."""
        files, episode = [self.exported.train, self.exported.heldout], self.settings.episode.config()
        return data.measure(files, self.tokenizer, episode, data.template_kwargs(self.config))

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
        if not self.settings.limits.fit:
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
    def on_gpus(self) -> bool:
        """Whether the run needs GPUs."""
        return self.settings.cpu_threads is None


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
    """The GPUs that a job may use, from nvidia-smi: torch might initialise CUDA in this process."""
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


def check_gpu_memory(context: Context) -> Finding:
    """Whether an update and the rollouts fit on a GPU."""
    if not context.on_gpus:
        return ok("not needed")
    shape, plan = ModelShape.of(context.model_config), Plan.of(context.final_config)
    update = resources.update(shape, plan)
    text = (
        f"update {_gb(update.total)} (weights {_gb(update.weights)}, gradients {_gb(update.gradients)}, optimiser "
        f"{_gb(update.optimizer)}, gathered {_gb(update.gathered)}, {plan.tokens} tokens "
        f"{_gb(max(update.activations, update.logits))}, contexts {_gb(resources.CONTEXTS)})"
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


_VLLM_SECONDS = 300.0
_CALL = (
    "<think>\nWhat is known?\n</think>\n\n"
    '<tool_call>{"name": "search_memory", "arguments": {"query_list": ["where Ann lives"]}}</tool_call>'
)
_OUTPUTS = '<think>\nNothing is new.\n</think>\n\n<outputs>{"operations": []}</outputs>'
_MEMORIES = '[{"id": "m1", "time": "2026/04/05 (Sun) 20:01", "text": "Ann lives in Oslo."}]'


def check_model(context: Context) -> Finding:
    """Configuration, weights and architecture."""
    name, config = str(context.need_model().path), context.model_config
    from transformers import AutoModelForCausalLM

    known = {kind.__name__ for kind in AutoModelForCausalLM._model_mapping.values()}
    architectures = config.architectures or []
    if len(architectures) != 1 or architectures[0] not in known:
        return fail(f"{name}: architecture {architectures} is no causal language model of transformers")
    if context.config.actor_rollout_ref.rollout.name == "vllm" and not _known_to_vllm(architectures[0]):
        return fail(f"{name}: vLLM does not know the architecture {architectures[0]}")
    if missing := missing_weights(name):
        if os.environ.get("DELTAMEM_ALLOW_HUB") == "1" and not Path(name).is_dir():
            return warn(f"{name}: weights are not here yet, the run fetches them")
        return fail(f"{name}: {missing}")
    return ok(f"{name}: {architectures[0]}, reads {config.max_position_embeddings} tokens")


def _known_to_vllm(architecture: str) -> bool:
    """Whether vLLM, if it is installed, can serve an architecture; in a process of its own, because vLLM may touch a GPU."""
    if importlib.util.find_spec("vllm") is None:
        return True
    ask = (
        "import sys; from vllm import ModelRegistry; sys.exit(4 * (sys.argv[1] not in ModelRegistry.get_supported_archs()))"
    )
    command = [sys.executable, "-c", ask, architecture]
    return subprocess.run(command, capture_output=True, timeout=_VLLM_SECONDS, check=False).returncode != 4


def missing_weights(name: str) -> str | None:
    """What is missing of a model's safetensors files, for people; None if nothing is."""
    folder = Path(name)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except (OSError, ValueError):
            return f"weights are not available offline; fetch them with: hf download {name}"
    index = folder / "model.safetensors.index.json"
    expected = {"model.safetensors"}
    if index.is_file():
        try:
            expected = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError):
            return f"{index.name} is no index of weights"
    absent = sorted(file for file in expected if not (folder / file).is_file())
    return f"{absent[0]} is missing in {folder}" if absent else None


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
    tokenizer, model_type = context.tokenizer, context.model_config.model_type
    if not tokenizer.chat_template:
        return fail("the tokenizer has no chat template; name one in actor_rollout_ref.model.custom_chat_template")
    thinking = context.settings.episode.thinking
    try:
        problem = _template_problem(tokenizer, data.template_kwargs(context.config), model_type, thinking=thinking)
    except DeltaMemError:
        raise
    # Templates raise what they like, jinja's errors among it, and verl a ValueError if a tool's answer is no suffix.
    except Exception as error:
        problem = f"the chat template cannot render an episode: {' '.join(str(error).split())}"
    return fail(problem) if problem else ok(f"carries tool answers, append-only, {'' if thinking else 'without '}thinking")


def _template_problem(tokenizer: Any, kwargs: Mapping[str, Any], model_type: str, *, thinking: bool) -> str | None:
    """Why an episode of three turns cannot be built token by token as the agent loop does; None if it can.

    The episode is built twice: once as the agent loop does, from the model's own tokens and verl's continuous-token builder,
    and once by rendering all its messages. Both must be the same text.
    """
    frame = turn_format(tokenizer, template_options=kwargs)
    frame.check(thinking=thinking)
    off = {**kwargs, "enable_thinking": False}
    if not thinking and not frame.opening and turn_format(tokenizer, template_options=off) != frame:
        return "deltamem.episode.thinking=false needs data.apply_chat_template_kwargs.enable_thinking=false"
    call, outputs = (text if thinking else text.partition("</think>\n\n")[2] for text in (_CALL, _OUTPUTS))
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Manage memory."},
        {"role": "user", "content": "Ann: I moved."},
        {"role": "assistant", "content": call},
        {"role": "tool", "content": _MEMORIES},
        {"role": "assistant", "content": call},
        {"role": "tool", "content": _MEMORIES},
        {"role": "assistant", "content": outputs},
    ]
    ids = _continuous(tokenizer, kwargs, model_type, frame, messages)
    whole = tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if text.count(_MEMORIES) != 2:
        return "the chat template leaves out what the tool answers"
    if not thinking:
        # Every turn began after the template's own empty think block; in a rendered history it stands only in the last.
        empty = "<think>\n\n</think>\n\n"
        text, whole = text.replace(empty, ""), whole.replace(empty, "")
    if whole.startswith(text):
        return None
    place = next((place for place, (a, b) in enumerate(zip(text, whole, strict=False)) if a != b), len(whole))
    return (
        f"the chat template is not append-only: the agent loop has {text[place : place + 30]!r} where a rendered "
        f"conversation has {whole[place : place + 30]!r}"
    )


def _continuous(
    tokenizer: Any, kwargs: Mapping[str, Any], model_type: str, frame: TurnFormat, messages: Sequence[dict[str, Any]]
) -> list[int]:
    """Token ids of an episode as the agent loop builds them."""
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    builder = create_continuous_token_builder(tokenizer, hf_model_type=model_type, chat_template_kwargs=dict(kwargs))
    ids: list[int] = builder.build_initial_tokens(list(messages[:2]))
    for number in range(2, len(messages)):
        if messages[number]["role"] == "assistant":
            # What the template has opened, the model does not write again.
            text = messages[number]["content"].removeprefix(frame.opening)
            end = tokenizer.eos_token_id if frame.closing is None else frame.closing
            written = [*tokenizer.encode(text, add_special_tokens=False), end]
            ids = builder.merge_assistant_tokens(ids, written).token_ids
        else:
            ids = builder.merge_context_tokens(list(messages[:number]), list(messages[: number + 1]), ids).token_ids
    return ids


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
    ("batches", check_batches),
    ("reward", check_reward),
    ("embedder", check_embedder),
    ("trackers", check_tracking),
    ("disk", check_disk),
    ("ray", check_ray),
    ("GPUs", check_gpus),
    ("GPU memory", check_gpu_memory),
    ("host memory", check_host_memory),
)
"""All checks in the order of the table."""

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
    table = Table("check", "", "found")
    for row in rows:
        table.add_row(row.check, Text(row.finding.state, style=_STYLES[row.finding.state]), Text(row.finding.found))
    console.print(table)
    counts = Counter(row.finding.state for row in rows)
    if counts[State.FAIL]:
        console.print(f"preflight: {counts[State.FAIL]} of {len(rows)} checks failed; the run would not work")
        return 2
    warnings = f", {counts[State.WARN]} with a warning" if counts[State.WARN] else ""
    console.print(f"preflight: all {len(rows)} checks passed{warnings}; start with the same command without preflight=true")
    return 0
