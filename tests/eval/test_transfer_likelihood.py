"""How likely points are to a model: which tokens count, beside a model whose losses are known, and the command."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chat_cases import qwen_tokenizer

from deltamem.errors import DeltaMemError
from eval.transfer.likelihood import Answer, Likelihood, compare, less_than, likelihood

ANSWER = Answer("ana", [{"role": "user", "content": "Ana moved."}], ('Ana lives in "Porto".', "Ana: 東京."))


if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


def model(*, even: bool) -> LlamaForCausalLM:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = LlamaForCausalLM(LlamaConfig(vocab_size=len(qwen_tokenizer()), tie_word_embeddings=True, **sizes)).eval()
    with torch.no_grad():  # All tokens are as likely as one another, or some of them are far likelier
        made.get_output_embeddings().weight.mul_(0 if even else 20)
    return made


def test_the_words_of_the_points_count_and_nothing_around_them() -> None:
    tokenizer = qwen_tokenizer()
    found = likelihood(model(even=True), tokenizer, ANSWER)
    assert found.loss == pytest.approx(found.tokens * math.log(len(tokenizer)), rel=1e-5)
    words = [
        len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in ('Ana lives in \\"Porto\\".', "Ana: 東京.")
    ]
    assert abs(found.tokens - sum(words)) <= 2, "but for what a token joins at either end"
    alone = likelihood(model(even=False), tokenizer, Answer("ana", ANSWER.messages, ANSWER.points[:1]))
    both = likelihood(model(even=False), tokenizer, ANSWER)
    assert alone.tokens < both.tokens and alone.loss < both.loss


def test_what_another_model_gains_is_paired_by_session_and_resampled_by_person() -> None:
    first = [Likelihood(f"p{number}", 30.0 + number, 10) for number in range(8)]
    gain = less_than(first, [Likelihood(one.person, one.loss - 5, one.tokens) for one in first])
    assert gain is not None and (gain.estimate, gain.low, gain.high) == (0.5, 0.5, 0.5)


def test_the_command_compares_models_on_the_chat_core(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, even in (("first", True), ("other", False)):
        model(even=even).save_pretrained(tmp_path / name)
        qwen_tokenizer().save_pretrained(tmp_path / name)
    assert compare([str(tmp_path / "first"), str(tmp_path / "other"), "windows=4"]) == 0
    first, other = capsys.readouterr().out.splitlines()[2:]
    size = math.log(len(qwen_tokenizer()))
    assert first.startswith(f"| {tmp_path / 'first'} | {size:.3f} |  | ")
    assert "[" in other and float(other.split("|")[2]) != pytest.approx(size, abs=1e-3)
    with pytest.raises(DeltaMemError, match="nothing: no model that can be loaded"):
        compare([str(tmp_path / "nothing")])
    with pytest.raises(DeltaMemError, match="name a folder of a model"):
        compare(["windows=4"])
