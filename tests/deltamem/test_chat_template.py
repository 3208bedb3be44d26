"""What templates write of an assistant's turn, and the format of Qwen3 that other tests rely on."""

from __future__ import annotations

from typing import Any

import pytest
from chat_cases import OPENED, PLAIN, QWEN3, SPECIAL, qwen_tokenizer

from deltamem.chat_template import TurnFormat, turn_format
from deltamem.errors import DeltaMemError
from deltamem.training.tiny import CHAT_TEMPLATE as TINY

EMPTY_BLOCK = "<think>\n\n</think>\n\n"
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def rendered(messages: list[dict[str, Any]], *, prompt: bool = False, **options: Any) -> str:
    return str(qwen_tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt, **options))


@pytest.mark.parametrize(
    ("template", "options", "opening"),
    [
        (TINY, {}, ""),
        (QWEN3, {}, ""),
        (QWEN3, {"enable_thinking": True}, ""),
        (QWEN3, {"enable_thinking": False}, EMPTY_BLOCK),
        (OPENED, {}, "<think>\n"),
    ],
)
def test_opening_is_what_the_template_has_written(template: str, options: dict[str, Any], opening: str) -> None:
    tokenizer = qwen_tokenizer(template)
    frame = turn_format(tokenizer, template_options=options)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert frame == TurnFormat(opening, frozenset({end}), end)


def test_every_token_that_ends_a_turn_is_known() -> None:
    tokenizer = qwen_tokenizer(QWEN3, "<|endoftext|>")
    text, start, end = (tokenizer.convert_tokens_to_ids(mark) for mark in SPECIAL)
    assert tokenizer.eos_token_id == text
    frame = turn_format(tokenizer, template_options={}, eos_ids=[start])
    assert frame.ends == {text, start, end} and frame.closing == end


def test_a_template_without_an_end_of_turn_has_none() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert turn_format(qwen_tokenizer(template), template_options={}).closing is None


@pytest.mark.parametrize(
    ("opening", "thinking", "told"),
    [(EMPTY_BLOCK, True, "writes an empty think block"), ("<think>\n", False, "opens a think block")],
)
def test_a_template_that_does_not_fit_the_episode_is_told(opening: str, thinking: bool, told: str) -> None:
    frame = TurnFormat(opening, frozenset(), None)
    with pytest.raises(DeltaMemError, match=told):
        frame.check(thinking=thinking)
    frame.check(thinking=not thinking)
    TurnFormat("", frozenset(), None).check(thinking=thinking)


def test_added_tokens_are_one_token_and_survive_decoding() -> None:
    tokenizer = qwen_tokenizer()
    for mark in (*SPECIAL, *PLAIN):
        (token,) = tokenizer.encode(mark, add_special_tokens=False)
        assert tokenizer.decode([token], skip_special_tokens=False) == mark
    assert tokenizer.decode(tokenizer.encode("<think>a</think>"), skip_special_tokens=True) == "<think>a</think>"


def test_qwen3_switch_of_thinking() -> None:
    plain = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert rendered(ASK, prompt=True) == rendered(ASK, prompt=True, enable_thinking=True) == plain
    assert rendered(ASK, prompt=True, enable_thinking=False) == plain + EMPTY_BLOCK


def test_qwen3_joins_the_answers_of_tools_in_a_user_turn() -> None:
    called = {"role": "assistant", "content": "<think>look</think>call"}
    text = rendered([*ASK, called, {"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}])
    assert text.endswith(
        "<|im_start|>assistant\n<think>\nlook\n</think>\n\ncall<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
    )


def test_qwen3_drops_reasoning_before_the_last_question_only() -> None:
    thought = {"role": "assistant", "content": "<think>\nold\n</think>\n\nyes"}
    found = {"role": "user", "content": "<tool_response>x</tool_response>"}
    assert "old" in rendered([*ASK, thought, found, thought])
    again = rendered([*ASK, thought, {"role": "user", "content": "And?"}, thought])
    assert again.count("old") == 1 and "<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\nAnd?" in again


def test_qwen3_lists_tools_and_calls() -> None:
    call = {"type": "function", "function": {"name": "find", "arguments": {"q": "a"}}}
    text = rendered([*ASK, {"role": "assistant", "content": "", "tool_calls": [call]}], tools=[{"name": "find"}])
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools") and '{"name": "find"}\n</tools>' in text
    assert text.endswith('</think>\n\n<tool_call>\n{"name": "find", "arguments": {"q": "a"}}\n</tool_call><|im_end|>\n')
