"""A Qwen3 model of about a million parameters and its tokenizer, from scratch, for machines without pretrained weights."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from deltamem.episode import EpisodeConfig, MemoryField, Message
from deltamem.sessions import LabelledSession
from deltamem.training.tiny.structured_start import structured_start
from deltamem.training.tiny.teacher import ANSWER_THOUGHT, SEARCH_THOUGHT, target_trajectory

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'tool' -%}"
    "{{ '<|im_start|>user\n<tool_response>' + message.content + '</tool_response><|im_end|>\n' }}"
    "{%- else -%}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
"""ChatML with the tool's answer in a user message, as Qwen3 has it; reasoning stays in the history."""

_PIECES = r"\d{4}/\d\d/\d\d \(\w{3}\) \d\d:\d\d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"
"""Where BPE may not merge across; a session time is one piece, so that it becomes few tokens."""
_MEMORY_IDS = tuple(f"m{number}" for number in range(1, 100))


@dataclass(frozen=True, slots=True)
class TinyModelConfig:
    """Size of the model and its vocabulary. The defaults give 1.0 million parameters."""

    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    mlp_size: int = 384
    vocabulary: int = 1600
    context: int = 2048
    rope_theta: float = 1e6


def scaffolds(fields: Sequence[MemoryField]) -> list[str]:
    """The fixed pieces of the wire format that get a token each, so that a trajectory stays short.

    Args:
        fields: Order of the keys in the tool's answer.
    """
    first, *rest = fields
    record_end = '."' if fields[-1] == "text" else '"'
    pieces = [
        f'<think>{SEARCH_THOUGHT}</think><tool_call>{{"name": "search_memory", "arguments": {{"query_list": ["',
        '", "',
        '"]}}</tool_call>',
        f'<think>{ANSWER_THOUGHT}</think><outputs>{{"operations": [{{"text": "',
        f'<think>{ANSWER_THOUGHT}</think><outputs>{{"operations": []}}</outputs>',
        '.", "event": "ADD"}',
        '.", "event": "UPDATE", "target_memory_id": "',
        '.", "event": "NONE", "target_memory_id": "',
        '"}',
        ', {"text": "',
        "]}</outputs>",
        "<tool_response>[]</tool_response>",
        f'<tool_response>[{{"{first}": "',
        f'{record_end}}}, {{"{first}": "',
        f"{record_end}}}]</tool_response>",
    ]
    previous = first
    for field in rest:
        pieces.append(f'{"." if previous == "text" else ""}", "{field}": "')
        previous = field
    return pieces


def train_tokenizer(
    corpus: Iterable[str], config: TinyModelConfig, fields: Sequence[MemoryField]
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer in which wire-format scaffolds and memory ids are single tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_PIECES), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocabulary,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The scaffolds are cut out first, so that BPE spends its vocabulary on language.
    added = [AddedToken(piece, normalized=False) for piece in (*scaffolds(fields), *_MEMORY_IDS)]
    tokenizer.add_tokens(added)
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens(added)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def new_model(config: TinyModelConfig, tokenizer: PreTrainedTokenizerFast, *, seed: int) -> Qwen3ForCausalLM:
    """Make a Qwen3 model with the structured start; its vocabulary equals the tokenizer's length."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.mlp_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            attn_implementation="sdpa",
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    structured_start(model, seed=seed)
    return model


def chat_text(messages: Sequence[Message], tokenizer: PreTrainedTokenizerFast) -> str:
    """The whole conversation as the model sees it."""
    text = tokenizer.apply_chat_template(list(messages), tokenize=False)
    return str(text)


def build(
    folder: Path,
    sessions: Sequence[LabelledSession],
    episode: EpisodeConfig,
    config: TinyModelConfig,
    *,
    seed: int,
) -> None:
    """Train the tokenizer on target trajectories, make the model, and save both as a Hugging Face folder.

    Args:
        folder: Where to; made if missing.
        sessions: Training sessions whose trajectories the tokenizer is trained on (a few thousand suffice).
        episode: Prompts and the order of fields in the tool's answer.
        config: Sizes.
        seed: Seed of weights and of the teacher's omissions.
    """
    rng = random.Random(seed)
    template = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=CHAT_TEMPLATE)
    corpus = [chat_text(target_trajectory(labelled, episode, rng, drop=0.0), template) for labelled in sessions]
    tokenizer = train_tokenizer(corpus, config, episode.memory_fields)
    model = new_model(config, tokenizer, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
