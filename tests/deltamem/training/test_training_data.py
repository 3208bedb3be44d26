"""Rows that verl reads, and the token limits that follow from them."""

from __future__ import annotations

import json
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from chat_cases import QWEN3, qwen_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from preflight_cases import context, placed
from training_cases import labelled_session, write_sessions

from deltamem.bank.base import SnapshotBank, merge_hits
from deltamem.episode import EpisodeConfig, format_memories, opening_messages
from deltamem.errors import DeltaMemError
from deltamem.sessions import Turn, from_json_line, read_sessions, to_json_line
from deltamem.training import data, machine, token_limits
from deltamem.training.config import LimitSettings
from deltamem.training.data import AGENT_NAME, export
from deltamem.training.launch import agent_loop_config
from deltamem.training.machine import Gpu
from deltamem.training.pipeline import final, measured_limits
from deltamem.training.token_limits import Lengths, Limits

EPISODE = EpisodeConfig()
EVERYTHING: dict[str, Any] = {"train_sessions": None, "heldout_sessions": None, "skip_people": 0, "seed": 1}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


def test_rows_carry_the_whole_session(tmp_path: Path) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=6, heldout=3)
    done = export(sessions, tmp_path / "data", EPISODE, **EVERYTHING | {"heldout_sessions": 2, "skip_people": 2})
    train, heldout = rows_of(done.train), rows_of(done.heldout)
    assert (done.train_sessions, done.heldout_sessions) == (len(train), len(heldout)) == (4, 2)
    read = [from_json_line(row["extra_info"]["session"]) for row in train]
    assert read == [labelled_session(number) for number in range(2, 6)]  # persons 0 and 1 belong to the warm start
    assert train[0]["prompt"] == opening_messages(read[0].session, EPISODE)
    assert {row["agent_name"] for row in train} == {AGENT_NAME}
    assert [row["extra_info"]["index"] for row in train] == [0, 1, 2, 3]
    assert {from_json_line(row["extra_info"]["session"]).split for row in heldout} == {"heldout"}


def test_a_draw_takes_the_sessions_that_a_sample_of_the_list_takes(tmp_path: Path) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=9, heldout=3)
    rest = [item.key for item in read_sessions(sessions, split="train")][2:]
    for seed in (4, 5):
        asked = {"train_sessions": 5, "skip_people": 2, "seed": seed}
        done = export(sessions, tmp_path / "data", EPISODE, **EVERYTHING | asked)
        assert [row["extra_info"]["key"] for row in rows_of(done.train)] == random.Random(seed).sample(rest, 5)


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "ROWS_PER_GROUP", 8)
    path = tmp_path / "sessions.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(120):
            item = labelled_session(number, "heldout" if number % 10 == 0 else "train")
            turns = (*item.session.dialogue, Turn("user", f"{number} words " * 2_000))
            file.write(to_json_line(replace(item, session=replace(item.session, dialogue=turns))) + "\n")
    tracemalloc.start()
    done = export(path, tmp_path / "data", EPISODE, **EVERYTHING)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < path.stat().st_size / 3
    groups = pq.ParquetFile(done.train).metadata
    assert [groups.row_group(number).num_rows for number in range(groups.num_row_groups)] == [8] * 13 + [4]
    assert sorted(row["extra_info"]["session"] for file in (done.train, done.heldout) for row in rows_of(file)) == sorted(
        path.read_text("utf-8").splitlines()
    )


@pytest.mark.parametrize(
    ("line", "wanted", "message"),
    [
        ('{"person_id": "x"}\n', {}, r"sessions\.jsonl, line 6: "),
        ("", {"train_sessions": 7}, "training sessions: there are 3, expected at least 7"),
        ("", {"heldout_sessions": 9}, "held-out sessions: there are 2"),
        ("", {"skip_people": 3}, "after the first 3 persons: there are 0"),
    ],
)
def test_bad_or_too_few_sessions_are_refused_and_nothing_is_left(tmp_path, line, wanted, message):
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=3, heldout=2)
    with sessions.open("a") as file:
        file.write(line)
    with pytest.raises(DeltaMemError, match=message):
        export(sessions, tmp_path / "data", EPISODE, **EVERYTHING | wanted)
    assert not (tmp_path / "data").exists()


COMPACT = EpisodeConfig("manager_compact", "session_compact", k=1)


def exported(folder: Path, train: int = 5, heldout: int = 2) -> list[Path]:
    sessions = write_sessions(folder / "sessions.jsonl", train, heldout)
    made = data.export(sessions, folder / "data", COMPACT, **EVERYTHING)
    return [made.train, made.heldout]


@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}])
def test_prompts_are_counted_as_verl_builds_them(tmp_path: Path, options: dict[str, Any]) -> None:
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    tokenizer = qwen_tokenizer(QWEN3)
    found = token_limits.measure(exported(tmp_path), tokenizer, COMPACT, options)
    builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen3", chat_template_kwargs=options)
    rows = [opening_messages(item.session, COMPACT) for item in read_sessions(tmp_path / "sessions.jsonl")]
    assert found.prompt.tolist() == [len(builder.build_initial_tokens(messages)) for messages in rows]


def test_tool_answers_are_never_longer_than_measured(tmp_path: Path) -> None:
    tokenizer = qwen_tokenizer(QWEN3)
    files = exported(tmp_path)
    found = token_limits.measure(files, tokenizer, COMPACT, {})
    for number, item in enumerate(read_sessions(tmp_path / "sessions.jsonl")):
        bank = SnapshotBank("p", item.prior_state, np.eye(2, dtype=np.float32))
        hits = merge_hits(bank.search(np.eye(2, dtype=np.float32), COMPACT.k))
        before = [*opening_messages(item.session, COMPACT), {"role": "assistant", "content": "c"}]
        answered = [*before, {"role": "tool", "content": format_memories(hits, COMPACT.memory_fields)}]
        texts = [
            tokenizer.apply_chat_template(before, tokenize=False),
            tokenizer.apply_chat_template(answered, tokenize=False, add_generation_prompt=True),
        ]
        short, long = (len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
        # Two queries of k = 1 find both memories; a few tokens more are counted than are there.
        assert len(hits) == 2
        assert long - short <= found.found[number] <= long - short + 8


def of(prompt: list[int], call: list[int], found: list[int], outputs: list[int]) -> Lengths:
    return Lengths(*(np.array(counts) for counts in (prompt, call, found, outputs)))


def fitting(thinking: int, quantile: float = 1.0, multiple: int = 1) -> LimitSettings:
    return LimitSettings(fit=True, thinking_tokens=thinking, response_quantile=quantile, multiple=multiple)


def test_formula() -> None:
    measured = of([100, 255], [10, 20], [30, 40], [50, 45])
    limits = token_limits.fit(measured, fitting(thinking=7, multiple=16), max_turns=3, window=1000)
    # prompt: above 255; response: 3 x 7 + 2 x (20 + 40) + 45 = 186; turn: 7 + 50.
    assert limits == Limits(prompt=256, response=192, turn=64)
    assert token_limits.beyond(measured, limits, max_turns=3, thinking_tokens=7) == (0, 0)
    assert token_limits.beyond(measured, Limits(255, 185, 64), max_turns=3, thinking_tokens=7) == (1, 1)


def test_a_window_that_is_too_small() -> None:
    with pytest.raises(DeltaMemError, match="1 of 2 sessions need more than the 300 tokens"):
        token_limits.fit(of([100, 255], [1, 1], [1, 1], [1, 90]), fitting(thinking=1), max_turns=1, window=300)


counts = st.lists(st.integers(1, 5000), min_size=1, max_size=20)


@given(counts, st.integers(1, 5), st.integers(0, 2000), st.floats(0.5, 1.0), st.sampled_from([1, 8, 128]))
def test_limits_hold_what_they_promise(prompts: list[int], turns: int, thinking: int, share: float, multiple: int) -> None:
    measured = of(prompts, prompts[::-1], prompts, prompts[::-1])
    limits = token_limits.fit(measured, fitting(thinking, share, multiple), max_turns=turns, window=10**9)
    too_long, cut = token_limits.beyond(measured, limits, max_turns=turns, thinking_tokens=thinking)
    assert too_long == 0
    assert cut <= (1 - share) * len(prompts) + 1e-9
    assert all(value % multiple == 0 for value in (limits.prompt, limits.response, limits.turn))
    assert limits.turn - thinking >= 1


def test_fitted_limits_reach_verl_and_the_agent_loop(tmp_path: Path, model_folder: Path) -> None:
    episode = {"deltamem.limits.thinking_tokens": 8, "deltamem.episode.max_turns": 2}
    budgets = {"actor.ppo_max_token_len_per_gpu": 16, "ref.log_prob_max_token_len_per_gpu": 99999}
    model_keys = {f"actor_rollout_ref.{key}": value for key, value in (budgets | {"model.path": str(model_folder)}).items()}
    prepared = context(tmp_path, {"deltamem.out": str(tmp_path)} | episode | model_keys)
    config, run = prepared.config, prepared.settings
    with pytest.raises(DeltaMemError, match=r"lengths\.json: not the lengths of a data set"):
        final(config, run)
    found, limits = measured_limits(config, run, exported(tmp_path))
    token_limits.write_lengths(tmp_path / "lengths.json", found, limits)
    written = json.loads((tmp_path / "lengths.json").read_text())
    assert written["rows"] == 7
    assert written["tokens"]["prompt"]["max"] == found.prompt.max()
    changed, settings_ = final(config, run)
    again, _ = final(config, run)
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


def test_the_size_of_vllms_cache_is_written_down(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu("B", 48 << 30, "580"), Gpu("A", 24 << 30, "580")])
    given = {"actor_rollout_ref.model.path": str(model_folder), "deltamem.limits.fit": False}
    key, engine = "engine_kwargs.vllm.kv_cache_memory_bytes", "actor_rollout_ref.rollout.gpu_memory_utilization"

    def cache(**values: Any) -> Any:
        changed = placed(Path("/"), "+experiment=qwen0_6b", values=given | values)
        return OmegaConf.select(final(*changed)[0].actor_rollout_ref.rollout, key)

    # 45% of the smaller GPU, but for the weights and the working memory of a model of 0.1 million parameters.
    half = cache()
    assert 0.9 * 0.45 * (24 << 30) < half < 0.45 * (24 << 30)
    assert cache(**{engine: 0.9}) - half == int(0.9 * (24 << 30)) - int(0.45 * (24 << 30))
    assert cache(**{f"actor_rollout_ref.rollout.{key}": 5}) == 5
    assert cache(**{engine: 0.0001}) is None, "vLLM says by itself that this is too little"
    monkeypatch.setattr(machine, "gpus", list)
    assert cache() is None


def test_written_limits_are_left_alone() -> None:
    config, run = placed(Path("/"), "+experiment=tiny")
    assert final(config, run) == (config, run)
