"""``benchmarks/pretrained.py``: what can be checked without a GPU and without pretrained weights."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import offline_people
import pytest
from hydra import compose, initialize_config_dir
from transformers import PreTrainedTokenizerFast

from deltamem.config import validated
from deltamem.training.config import TrainSettings, register_search_path
from deltamem.training.tiny import TinyModelConfig, chat_text, target_trajectory, train_tokenizer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import pretrained  # noqa: E402
from gpu_plan import Run  # noqa: E402


@pytest.fixture(scope="module")
def conversation() -> list[dict[str, str]]:
    item = next(item for item in offline_people.labelled(4, 3) if item.operations)
    return [dict(message) for message in target_trajectory(item, pretrained.EPISODE, random.Random(0), drop=0.0)]


@pytest.fixture(scope="module")
def tokenizer(conversation: list[dict[str, str]]) -> PreTrainedTokenizerFast:
    words = [message["content"] for message in conversation]
    found = train_tokenizer(words, TinyModelConfig(vocabulary=600), pretrained.EPISODE.memory_fields)
    found.chat_template = pretrained.CHATML
    return found


def test_the_mask_is_what_the_assistant_writes(
    tokenizer: PreTrainedTokenizerFast, conversation: list[dict[str, str]]
) -> None:
    token_ids, own = pretrained.tokens_and_mask(tokenizer, conversation)
    written = tokenizer.decode([token for token, mine in zip(token_ids, own, strict=True) if mine])
    assert written == "".join(f"{turn['content']}<|im_end|>" for turn in conversation if turn["role"] == "assistant")


def test_the_line_end_behind_a_turn_belongs_to_the_next_message(
    tokenizer: PreTrainedTokenizerFast, conversation: list[dict[str, str]]
) -> None:
    asked = next(place for place, turn in enumerate(conversation) if turn["role"] == "tool")
    before, after = (chat_text(conversation[:end], tokenizer) for end in (asked, asked + 1))  # type: ignore[arg-type]
    assert before.endswith("<|im_end|>") and after.startswith(f"{before}\n<|im_start|>tool\n")


def test_the_plan_trains_the_supervised_model_on_one_gpu() -> None:
    run = Run(Path("out"), "cuda", "tiny", None, ("data.train_batch_size=16",))
    overrides = pretrained.plan(run, Path("out/supervised"), skip_people=10, lr=2e-5, max_steps=40, every=8)
    register_search_path()
    with initialize_config_dir(str(ROOT / "configs"), version_base=None):
        config = compose("train", [*overrides, "deltamem.out=out"])
    settings = validated(config.deltamem, TrainSettings)
    assert settings.episode.config() == pretrained.EPISODE and settings.model is None and settings.warm_start is None
    assert config.actor_rollout_ref.model.path == "out/supervised" and config.trainer.test_freq == 8
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == 16 and config.trainer.n_gpus_per_node == 1


def test_the_clock_is_up_when_its_minutes_have_passed() -> None:
    assert pretrained.Clock(0.0).up() and not pretrained.Clock(1.0).up()
