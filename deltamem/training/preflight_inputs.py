"""What preflight looks at in the inputs of a run: configuration, model, data, and what is made of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from deltamem.chat_template import turn_format
from deltamem.embedding import EndpointEmbedder, is_endpoint, load_embedder
from deltamem.episode import Message
from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256
from deltamem.sessions import read_sessions
from deltamem.training import data, machine, resources
from deltamem.training.cluster import cluster_address
from deltamem.training.config import SupervisedConfig, TrainSettings, read_by_verl, unknown_keys
from deltamem.training.data import Lengths, Limits
from deltamem.training.embedding_store import read_meta
from deltamem.training.pipeline import check_loggers, supervised_data
from deltamem.training.resources import ModelShape
from deltamem.training.teacher import TrajectoryTokenizer


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
FLASH = "flash_attention_2"


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
            raise DeltaMemError(data.NO_TEMPLATE)
        return self.tokenizer

    @cached_property
    def imports(self) -> machine.Imports:
        """What can be imported of all that the processes of the run will import."""
        model = self.config.actor_rollout_ref
        packages = ["torch"] if self.on_gpus else []
        if model.rollout.name == "vllm":
            packages += ["vllm", "verl.workers.rollout.vllm_rollout.vllm_async_server"]
        if self.on_gpus and self.attention == FLASH:
            packages += ["flash_attn", "flash_attn.bert_padding", "flash_attn.ops.triton.cross_entropy"]
        return machine.try_imports(packages)

    @property
    def attention(self) -> str:
        """Which attention the trainer computes."""
        options = self.config.actor_rollout_ref.model.override_config
        return str(options.get("attn_implementation", FLASH))

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


def gb(count: int) -> str:
    """A number of bytes for people."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def check_model(context: Context) -> Finding:
    """Configuration, weights and architecture."""
    name, config = str(context.need_model().path), context.model_config
    from transformers import AutoModelForCausalLM

    known = {kind.__name__ for kind in AutoModelForCausalLM._model_mapping.values()}
    architectures = config.architectures or []
    if len(architectures) != 1 or architectures[0] not in known:
        return fail(f"{name}: architecture {architectures} is no causal language model of transformers")
    if context.config.actor_rollout_ref.rollout.name == "vllm" and machine.installed("vllm"):
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
    if problem := data.vocabulary_problem(tokenizer, config):
        return fail(problem)
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


def check_lengths(context: Context) -> Finding:
    """How many rows exceed the limits."""
    settings, limits, found = context.settings, context.limits, context.lengths
    if limits.turn > limits.response:
        return fail(f"deltamem.turn_tokens={limits.turn} is more than a response may have, {limits.response}")
    if settings.overlong is not None and settings.overlong.buffer > limits.turn:
        return fail(f"deltamem.overlong.buffer={settings.overlong.buffer} is more than a turn may have, {limits.turn}")
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
    if options.lora_rank is not None and not machine.installed("peft"):
        return fail("adapters need the package peft; install it with: pip install peft")
    passes, _ = supervised_data(context.config, context.settings, options, steps=1)
    longest = max(len(one.token_ids) for rows in passes for one in rows)
    text = f"{options.steps} steps on {options.passes} x {options.tokens} tokens; trajectories of up to {longest} tokens"
    own = max(sum(one.own for one in rows) for rows in passes)
    need = resources.warm_start(ModelShape.of(context.model_config), options, own=own, on_gpu=context.on_gpus)
    text += (
        f"; a step {gb(need.total)} (weights {gb(need.weights)}, gradients {gb(need.gradients)}, optimiser "
        f"{gb(need.optimizer)}, activations {gb(need.activations)}, logits {gb(need.logits)})"
    )
    found = machine.gpus()[:1] if context.on_gpus else []
    if context.on_gpus and not found:
        return ok(text)
    what, have = ("the first GPU", found[0].memory) if found else ("the machine", machine.memory())
    if need.fixed > have:
        return fail(f"{text}; {what} has {gb(have)}: set deltamem.warm_start.lora_rank or deltamem.warm_start.layers")
    if need.total > have:
        lower = "lower deltamem.warm_start.tokens" + (
            "" if options.gradient_checkpointing else ", or set deltamem.warm_start.gradient_checkpointing=true"
        )
        return fail(f"{text}; {what} has {gb(have)}: {lower}")
    return ok(text)


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


def check_reward(context: Context) -> Finding:
    """Whether the scorer can be made from its configuration."""
    context.settings.scorer()
    return ok(", ".join(f"{key}={value}" for key, value in context.settings.reward.items() if key != "_target_"))


_PROBE = "Ann lives in Oslo."


def check_embedder(context: Context) -> Finding:
    """Whether the model gives vectors, and its store belongs to it."""
    settings = context.settings.embedder
    if is_endpoint(settings.name):
        base_url, _, model = settings.name.partition("#")
        if not model:
            return fail(f"embedder {settings.name!r} names no model; write it as http://host:port/v1#model")
        vectors = EndpointEmbedder(base_url, model, timeout=20.0, max_retries=0).documents([_PROBE])
    else:
        # On the CPU, whatever device the run uses: nothing touches a GPU here.
        vectors = load_embedder(settings.name, device="cpu", batch_size=1).documents([_PROBE])
    meta = read_meta(Path(settings.store), settings.name)
    stored = "store made by the run" if meta is None else f"store in {settings.store}"
    return ok(f"{settings.name}: {vectors.shape[1]} dimensions, {stored}")


def check_tracking(context: Context) -> Finding:
    """Whether the configured trackers are installed."""
    return ok(", ".join((*check_loggers(context.config), "metrics.jsonl")))


def check_finished(context: Context) -> Finding:
    """What earlier starts of the run have left; verl would end with a traceback."""
    found = [path for path in (Path(context.config.data[key]) for key in ("train_files", "val_files")) if path.is_file()]
    for path in found:
        data.count_rows(path)
    return ok(f"{len(found)} files of rows can be read" if found else "nothing is there yet")


_CALL = (
    "<think>\nWhat is known?\n</think>\n\n"
    '<tool_call>{"name": "search_memory", "arguments": {"query_list": ["where Ann lives"]}}</tool_call>'
)
_OUTPUTS = '<think>\nNothing is new.\n</think>\n\n<outputs>{"operations": []}</outputs>'
_MEMORIES = '[{"id": "m1", "time": "2026/04/05 (Sun) 20:01", "text": "Ann lives in Oslo."}]'


def template_problem(tokenizer: Any, kwargs: Mapping[str, Any], model_type: str, *, thinking: bool) -> str | None:
    """Why an episode of three turns cannot be built token by token as the agent loop does; None if it can.

    The episode is built twice: once as the agent loop does, from the model's own tokens and verl's continuous-token builder,
    and once by rendering all its messages. Both must be the same text.
    """
    tokenize = TrajectoryTokenizer(tokenizer, model_type=model_type, template_kwargs=kwargs)
    frame = tokenize.frame
    frame.check(thinking=thinking)
    off = {**kwargs, "enable_thinking": False}
    if not thinking and not frame.opening and turn_format(tokenizer, template_options=off) != frame:
        return "deltamem.episode.thinking=false needs data.apply_chat_template_kwargs.enable_thinking=false"
    call, outputs = (text if thinking else text.partition("</think>\n\n")[2] for text in (_CALL, _OUTPUTS))
    messages = [
        Message(role="system", content="Manage memory."),
        Message(role="user", content="Ann: I moved."),
        Message(role="assistant", content=call),
        Message(role="tool", content=_MEMORIES),
        Message(role="assistant", content=call),
        Message(role="tool", content=_MEMORIES),
        Message(role="assistant", content=outputs),
    ]
    ids = tokenize(messages).token_ids
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
