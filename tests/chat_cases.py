"""Tokenizers with the chat templates of real models."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from deltamem.prompts import load_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

QWEN3 = Path(__file__).with_name("qwen3_template.jinja").read_text(encoding="utf-8")
OPENED = QWEN3.replace(
    "{{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and enable_thinking is false -}}",
    "{{- '<think>\\n' -}}",
)
"""As of models that always think: the generation prompt ends with the beginning of the block."""

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Tokens of their own that a decoder must not skip."""


@cache
def qwen_tokenizer(template: str = QWEN3, eos: str = "<|im_end|>") -> PreTrainedTokenizerFast:
    """A small byte-level tokenizer with the added tokens of Qwen3."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([load_prompt("manager").text, load_prompt("manager_direct").text, "\n\n" * 9], trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in PLAIN])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=eos,
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
