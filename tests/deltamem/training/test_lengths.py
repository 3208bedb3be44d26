"""Token limits from data: what is counted, what follows, and what verl is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_cases import QWEN3, qwen_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from preflight_cases import composed, context, resolved
from training_cases import labelled_session, write_sessions

from deltamem.bank.base import SnapshotBank, merge_hits
from deltamem.config import validated
from deltamem.episode import EpisodeConfig, format_memories, opening_messages
from deltamem.errors import DeltaMemError
from deltamem.sessions import read_sessions
from deltamem.training import data as dataset
from deltamem.training import data as lengths
from deltamem.training.config import TrainSettings
from deltamem.training.data import Lengths, Limits
from deltamem.training.launch import agent_loop_config
from deltamem.training.pipeline import fitted, measured_limits

EPISODE = EpisodeConfig("manager_compact", "session_compact", k=1)


def exported(folder: Path, train: int = 5, heldout: int = 2) -> list[Path]:
    sessions = write_sessions(folder / "sessions.jsonl", train, heldout)
    made = dataset.export(
        sessions, folder / "data", EPISODE, train_sessions=None, heldout_sessions=None, skip_people=0, seed=1
    )
    return [made.train, made.heldout]


@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}])
def test_prompts_are_counted_as_verl_builds_them(tmp_path: Path, options: dict[str, Any]) -> None:
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    tokenizer = qwen_tokenizer(QWEN3)
    found = lengths.measure(exported(tmp_path), tokenizer, EPISODE, options)
    builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen3", chat_template_kwargs=options)
    rows = [opening_messages(item.session, EPISODE) for item in read_sessions(tmp_path / "sessions.jsonl")]
    assert found.prompt.tolist() == [len(builder.build_initial_tokens(messages)) for messages in rows]


def test_tool_answers_are_never_longer_than_measured(tmp_path: Path) -> None:
    tokenizer = qwen_tokenizer(QWEN3)
    files = exported(tmp_path)
    found = lengths.measure(files, tokenizer, EPISODE, {})
    for number, item in enumerate(read_sessions(tmp_path / "sessions.jsonl")):
        bank = SnapshotBank("p", item.prior_state, np.eye(2, dtype=np.float32))
        hits = merge_hits(bank.search(np.eye(2, dtype=np.float32), EPISODE.k))
        before = [*opening_messages(item.session, EPISODE), {"role": "assistant", "content": "c"}]
        answered = [*before, {"role": "tool", "content": format_memories(hits, EPISODE.memory_fields)}]
        texts = [
            tokenizer.apply_chat_template(before, tokenize=False),
            tokenizer.apply_chat_template(answered, tokenize=False, add_generation_prompt=True),
        ]
        short, long = (len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
        # Two queries of k = 1 find both memories; a few tokens more are counted than are there.
        assert len(hits) == 2
        assert long - short <= found.found[number] <= long - short + 8


def test_the_longest_memories_count(tmp_path: Path) -> None:
    # One operation, k = 1: only the longer of two memories can be shown.
    item = labelled_session(0)
    tokenizer = qwen_tokenizer(QWEN3)
    one = lengths._found(tokenizer, [item], [1], EPISODE, {})
    two = lengths._found(tokenizer, [item], [2], EPISODE, {})
    singles = [
        len(tokenizer(format_memories([memory], EPISODE.memory_fields), add_special_tokens=False)["input_ids"])
        for memory in item.prior_state.memories
    ]
    assert one == [max(singles)]
    assert two == [sum(singles)]


def of(prompt: list[int], call: list[int], found: list[int], outputs: list[int]) -> Lengths:
    return Lengths(*(np.array(counts) for counts in (prompt, call, found, outputs)))


def test_formula() -> None:
    measured = of([100, 255], [10, 20], [30, 40], [50, 45])
    limits = lengths.fit(measured, max_turns=3, thinking_tokens=7, response_quantile=1.0, multiple=16, window=1000)
    # prompt: above 255; response: 3 x 7 + 2 x (20 + 40) + 45 = 186; turn: 7 + 50.
    assert limits == Limits(prompt=256, response=192, turn=64)
    assert lengths.beyond(measured, limits, max_turns=3, thinking_tokens=7) == (0, 0)
    assert lengths.beyond(measured, Limits(255, 185, 64), max_turns=3, thinking_tokens=7) == (1, 1)


def test_a_window_that_is_too_small() -> None:
    with pytest.raises(DeltaMemError, match="1 of 2 sessions need more than the 300 tokens"):
        lengths.fit(
            of([100, 255], [1, 1], [1, 1], [1, 90]),
            max_turns=1,
            thinking_tokens=1,
            response_quantile=1.0,
            multiple=1,
            window=300,
        )


counts = st.lists(st.integers(1, 5000), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(counts, st.integers(1, 5), st.integers(0, 2000), st.floats(0.5, 1.0), st.sampled_from([1, 8, 128]))
def test_limits_hold_what_they_promise(prompts: list[int], turns: int, thinking: int, share: float, multiple: int) -> None:
    measured = of(prompts, prompts[::-1], prompts, prompts[::-1])
    limits = lengths.fit(
        measured,
        max_turns=turns,
        thinking_tokens=thinking,
        response_quantile=share,
        multiple=multiple,
        window=10**9,
    )
    too_long, cut = lengths.beyond(measured, limits, max_turns=turns, thinking_tokens=thinking)
    assert too_long == 0
    assert cut <= (1 - share) * len(prompts) + 1e-9
    assert all(value % multiple == 0 for value in (limits.prompt, limits.response, limits.turn))
    assert limits.turn - thinking >= 1


def test_fitted_limits_reach_verl_and_the_agent_loop(tmp_path: Path, model_folder: Path) -> None:
    prepared = context(
        tmp_path,
        {
            "deltamem.out": str(tmp_path),
            "deltamem.limits.thinking_tokens": 8,
            "deltamem.episode.max_turns": 2,
            "actor_rollout_ref.model.path": str(model_folder),
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 16,
            "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 99999,
        },
    )
    config, run = prepared.config, prepared.settings
    with pytest.raises(DeltaMemError, match=r"lengths\.json: not the lengths of a data set"):
        fitted(config, run)
    found, limits = measured_limits(config, run, exported(tmp_path))
    lengths.write_lengths(tmp_path / "lengths.json", found, limits)
    written = json.loads((tmp_path / "lengths.json").read_text())
    assert written["rows"] == 7
    assert written["tokens"]["prompt"]["max"] == found.prompt.max()
    changed, settings_ = fitted(config, run)
    again, _ = fitted(config, run)
    assert changed == again  # a resumed run has the same identity
    model = changed.actor_rollout_ref
    assert (changed.data.max_prompt_length, changed.data.max_response_length) == (limits.prompt, limits.response)
    assert (model.rollout.prompt_length, model.rollout.response_length) == (limits.prompt, limits.response)
    assert model.rollout.max_model_len == limits.total == model.actor.ppo_max_token_len_per_gpu
    assert model.rollout.log_prob_max_token_len_per_gpu == max(12288, limits.total)
    assert model.ref.log_prob_max_token_len_per_gpu == 99999
    assert changed.deltamem.turn_tokens == limits.turn == settings_.turn_tokens
    loop = json.loads(OmegaConf.to_container(agent_loop_config(settings_))[0]["settings"])  # type: ignore[index]
    assert loop["turn_tokens"] == limits.turn
    assert config.data.max_prompt_length == 4096  # the configuration of the stages' hashes is left alone


def test_written_limits_are_left_alone() -> None:
    config = resolved(composed("+experiment=tiny"))
    run = validated(config.deltamem, TrainSettings)
    assert fitted(config, run) == (config, run)
