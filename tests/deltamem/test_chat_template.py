"""What templates write of an assistant's turn, and the format of Qwen3 that other tests rely on."""

from __future__ import annotations

from typing import Any

import pytest
from chat_cases import OPENED, PLAIN, QWEN3, SPECIAL, qwen_tokenizer

from deltamem.chat_template import TurnFormat, turn_format
from deltamem.errors import DeltaMemError
from deltamem.training.chatml import CHAT_TEMPLATE as TINY

EMPTY_BLOCK = "<think>\n\n</think>\n\n"


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
    endless = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert turn_format(qwen_tokenizer(endless), template_options={}).closing is None


@pytest.mark.parametrize(
    ("opening", "thinking", "said"),
    [(EMPTY_BLOCK, True, "writes an empty think block"), ("<think>\n", False, "opens a think block")],
)
def test_a_template_that_does_not_fit_the_episode_is_refused(opening: str, thinking: bool, said: str) -> None:
    frame = TurnFormat(opening, frozenset(), None)
    with pytest.raises(DeltaMemError, match=said):
        frame.check(thinking=thinking)
    frame.check(thinking=not thinking)
    TurnFormat("", frozenset(), None).check(thinking=thinking)


def test_the_tokenizer_of_the_tests_writes_what_qwen3_writes() -> None:
    tokenizer = qwen_tokenizer()
    for mark in (*SPECIAL, *PLAIN):
        assert len(tokenizer.encode(mark, add_special_tokens=False)) == 1
    assert tokenizer.decode(tokenizer.encode("<think>a</think>"), skip_special_tokens=True) == "<think>a</think>"

    def rendered(*roles: tuple[str, str]) -> str:
        messages = [{"role": role, "content": content} for role, content in roles]
        return str(tokenizer.apply_chat_template(messages, tokenize=False))

    ask, thought = ("user", "Hi"), ("assistant", "<think>\nold\n</think>\n\nyes")
    assert rendered(ask, thought, ("tool", "one"), ("tool", "two")).endswith(
        "<|im_start|>assistant\n<think>\nold\n</think>\n\nyes<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
    )
    # Reasoning before the last question is dropped.
    assert rendered(ask, thought, ("user", "And?"), thought).count("old") == 1
