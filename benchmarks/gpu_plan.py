"""Shapes of models for ``gpu.py``, and the overrides of ``train.py`` for each of its runs. Pure, but for `make_model`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from deltamem.episode import EpisodeConfig, opening_messages
from deltamem.sessions import LabelledSession
from deltamem.training.config import TinyModelConfig
from deltamem.training.tiny import chat_text, train_tokenizer


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a dense Qwen3 model.

    Attributes:
        vocabulary: Entries of the embedding; None: as many as the tokenizer has.
        tied: Whether input and output share the embedding.
        experiment: Whose settings the ``speed`` mode takes.
        prompts: Sessions of one training step of that mode on a GPU.
        offload: Weights and optimiser in bfloat16, and in the host's memory while they are not needed: else they do not
            fit on one GPU beside vLLM.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int | None = None
    tied: bool = True
    experiment: str = "tiny"
    prompts: int = 8
    offload: bool = False

    def parameters(self, vocabulary: int) -> int:
        """Number of parameters with so many entries of the embedding."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads) + 2 * self.head_dim
        layer = attention + 3 * self.hidden * self.mlp + 2 * self.hidden
        return (1 if self.tied else 2) * vocabulary * self.hidden + self.layers * layer + self.hidden

    def tiny_model(self, vocabulary: int) -> dict[str, int]:
        """The same sizes as keys of `deltamem.training.tiny.TinyModelConfig`, which makes the structured start."""
        return {
            "hidden_size": self.hidden,
            "layers": self.layers,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "mlp_size": self.mlp,
            "vocabulary": vocabulary,
        }


SHAPES = {
    "tiny": Shape(128, 4, 4, 2, 32, 384),
    "50m": Shape(640, 10, 10, 5, 64, 1920),
    "100m": Shape(768, 14, 12, 4, 64, 2304),
    "0.6b": Shape(1024, 28, 16, 8, 128, 3072, 151_936, experiment="qwen0_6b", prompts=16),
    "8b": Shape(4096, 36, 32, 8, 128, 12_288, 151_936, tied=False, experiment="qwen8b", offload=True),
}
"""The last two have the sizes of Qwen3-0.6B and Qwen3-8B."""

LEARNING = ("tiny", "50m", "100m")
"""Shapes that are small enough to be trained from scratch."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is to be run.

    Attributes:
        out: Run folder.
        device: "cpu" or "cuda".
        shape: Key of `SHAPES`.
        embedder: Embedding model; None takes the experiment's.
        extra: Overrides that come last.
    """

    out: Path
    device: str
    shape: str
    embedder: str | None = None
    extra: tuple[str, ...] = ()

    def ending(self) -> list[str]:
        """Overrides that every run has at its end."""
        return [*([f"deltamem.embedder.name={self.embedder}"] if self.embedder else []), *self.extra]


def on_one_gpu(attention: str) -> list[str]:
    """What an experiment needs to run on one GPU with vLLM.

    Args:
        attention: ``flash_attention_2``, or ``sdpa`` where flash-attn is not installed.
    """
    return [
        "trainer.device=cuda",
        "trainer.n_gpus_per_node=1",
        "trainer.nnodes=1",
        "deltamem.cpu_threads=null",
        "actor_rollout_ref.rollout.name=vllm",
        f"++actor_rollout_ref.model.override_config.attn_implementation={attention}",
    ]


def speed_plan(
    run: Run, *, steps: int, prompt_length: int, turn_tokens: int, prompts: int | None, attention: str
) -> list[str]:
    """Overrides of a few steps with a randomly initialised model.

    Such a model hardly ever ends a turn, so a rollout is one turn of `turn_tokens` tokens: a load of known size, without
    search.

    Args:
        run: Where and what.
        steps: Training steps; the first ones are not counted.
        prompt_length: No prompt is longer.
        turn_tokens: Tokens of a rollout.
        prompts: Sessions a step; None takes the shape's.
        attention: See `on_one_gpu`.
    """
    shape = SHAPES[run.shape]
    length = prompt_length + turn_tokens + 64
    common = [
        f"deltamem.sessions={run.out}/synth/sessions.jsonl",
        "deltamem.model=null",
        "deltamem.warm_start=null",
        f"actor_rollout_ref.model.path={run.out}/model",
        "deltamem.data.heldout_sessions=8",
        "deltamem.data.skip_people=0",
        "deltamem.limits.fit=false",
        f"deltamem.turn_tokens={turn_tokens}",
        f"data.max_prompt_length={prompt_length}",
        f"data.max_response_length={turn_tokens + 64}",
        f"trainer.total_training_steps={steps}",
        "trainer.total_epochs=1000",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
    ]
    start = [f"+experiment={shape.experiment}", "deltamem.synth=null", *common]
    batch = prompts or shape.prompts
    start.append(f"data.train_batch_size={batch}")
    if run.device == "cpu":
        return [*start, *run.ending()]
    offload = [
        "actor_rollout_ref.actor.fsdp_config.model_dtype=bf16",
        "actor_rollout_ref.actor.fsdp_config.param_offload=true",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
        "actor_rollout_ref.ref.fsdp_config.model_dtype=bf16",
        "actor_rollout_ref.ref.fsdp_config.param_offload=true",
    ]
    return [
        *start,
        *on_one_gpu(attention),
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={max(length, 8192)}",
        f"actor_rollout_ref.rollout.max_model_len={length}",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
        *(offload if shape.offload else []),
        *run.ending(),
    ]


def learning_plan(run: Run, *, people: int, warm_steps: int, max_steps: int, every: int, attention: str) -> list[str]:
    """Overrides of warm start and GRPO from scratch on data of the offline writer.

    Args:
        run: Where and what.
        people: People of the data set; the first three quarters are the warm start's.
        warm_steps: Steps of the warm start on target trajectories.
        max_steps: Most steps of GRPO.
        every: Steps from one validation and checkpoint to the next.
        attention: See `on_one_gpu`.
    """
    shape = SHAPES[run.shape]
    common = [
        "+experiment=tiny",
        f"deltamem.sessions={run.out}/synth/sessions.jsonl",
        f"deltamem.synth.people={people}",
        f"deltamem.data.skip_people={people * 3 // 4}",
        f"deltamem.warm_start.steps={warm_steps}",
        f"trainer.total_training_steps={max_steps}",
        f"trainer.test_freq={every}",
        f"trainer.save_freq={every}",
        # How far a run will get is not known before: a schedule over max_steps would hardly fall.
        "actor_rollout_ref.actor.optim.lr_scheduler_type=constant",
    ]
    sizes = shape.tiny_model(1600 if run.shape == "tiny" else 4096)
    common += [f"+deltamem.model.{name}={value}" for name, value in sizes.items()]
    if run.device == "cpu":
        return [*common, *run.ending()]
    return [
        *common,
        *on_one_gpu(attention),
        "+deltamem.warm_start.device=cuda",
        # Muon's step has the size of the matrix, AdamW's has not.
        "+deltamem.warm_start.other_lr=1e-3",
        "deltamem.warm_start.batch_size=64",
        "deltamem.data.heldout_sessions=512",
        "actor_rollout_ref.model.external_lib=null",
        # vLLM's kernels are for 16 bits, so the trainer computes the old log-probs itself.
        "actor_rollout_ref.rollout.dtype=bfloat16",
        "algorithm.rollout_correction.bypass_mode=false",
        "data.train_batch_size=64",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=128",
        "actor_rollout_ref.actor.optim.lr=1e-4",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=128",
        "actor_rollout_ref.rollout.max_num_seqs=512",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
        "actor_rollout_ref.rollout.max_model_len=2048",
        "ray_kwargs.ray_init.num_cpus=null",
        "ray_kwargs.ray_init.num_gpus=null",
        "ray_kwargs.ray_init.object_store_memory=null",
        *run.ending(),
    ]


def make_model(folder: Path, shape: Shape, sessions: Sequence[LabelledSession], episode: EpisodeConfig, device: str) -> int:
    """Write a randomly initialised model and a tokenizer trained on the sessions; returns the longest prompt in tokens.

    The tokenizer gets as many entries as the model has, so that all that the model samples can be read: vLLM never samples
    an id beyond the tokenizer, and its log-probs would differ from the trainer's.
    """
    # Fewer than the model has, for the scaffolds come on top.
    entries = 1600 if shape.vocabulary is None else min(16_000, shape.vocabulary // 2)
    tokenizer = train_tokenizer(sessions, episode, TinyModelConfig(vocabulary=entries), seed=1)
    longest = max(
        len(tokenizer(chat_text(opening_messages(item.session, episode), tokenizer))["input_ids"]) for item in sessions
    )
    vocabulary = shape.vocabulary or len(tokenizer)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=40_960,
        tie_word_embeddings=shape.tied,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(1)
    with torch.device(device):
        model = Qwen3ForCausalLM._from_config(config, dtype=torch.float32 if shape.vocabulary is None else torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="4GB")
    tokenizer.save_pretrained(folder)
    _fill_vocabulary(folder / "tokenizer.json", vocabulary)
    return longest


def _fill_vocabulary(path: Path, size: int) -> None:
    """Give every id below `size` an entry that no text is ever cut into."""
    state = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = state["model"]["vocab"]
    # An added token that the vocabulary lacks would get another id when the file is read.
    vocabulary |= {token["content"]: token["id"] for token in state["added_tokens"]}
    used = set(vocabulary.values())
    vocabulary |= {f"<|unused_{number}|>": number for number in range(size) if number not in used}
    path.write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")
