"""What the trainer makes of a batch of rollouts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lazy import lazy, names
from rollout_cases import a_batch, extra_fields, failed, info, row
from training_cases import labelled_session

from deltamem.errors import DeltaMemError
from deltamem.training.metrics import RolloutRow, batch_metrics, data_order, episode_shape, group_signal

torch = lazy("torch")
TensorDict = names("tensordict", "TensorDict")
KVBatchMeta = names("transfer_queue", "KVBatchMeta")
DataProto = names("verl", "DataProto")
ReplayBuffer = names("verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer")
compute_advantage_for_multi_trajectories = names("verl.trainer.ppo.v1.utils", "compute_advantage_for_multi_trajectories")
replay_buffer = lazy("deltamem.training.replay_buffer")
ValidationFolder, generation_records = names("deltamem.training.replay_buffer", "ValidationFolder generation_records")


def test_a_batch_in_figures() -> None:
    found = batch_metrics(a_batch(), expected=4)
    rewards = [entry.reward for entry in a_batch()]
    assert rewards[0] == rewards[2] == rewards[3] and rewards[1] < rewards[0]
    expected = {
        "train/reward": sum(rewards) / 4,
        "train/count/wrong_target_updates": 0.25,
        "train/no_signal": 0.5,
        "train/group_std": (rewards[0] - rewards[1]) / 2**0.5 / 2,  # as GRPO takes it
        "train/truncated": 0.25,
        "train/failure": 0.0,
        "train/model_tokens_mean": 125.0,
        "train/model_tokens_max": 200.0,
        "train/model_tokens_p50": 100.0,
        "train/model_tokens_p95": 185.0,
        "train/tool_tokens": 30.0,
        "train/turns": 2.0,
        "train/retrieved_per_query": 0.5,
        "seconds/rollout_search_mean": 0.25,
        "seconds/rollout_generate_sum": 4.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_failed_and_lost_rollouts_count_as_failures_and_nowhere_else() -> None:
    whole = batch_metrics(a_batch(), expected=4)
    found = batch_metrics([*a_batch(), failed("b", 2, labelled_session(2))], expected=8)
    assert found["train/failure"] == 0.5
    policy = ("reward", "no_signal", "group_std", "precision", "model_tokens_mean", "truncated")
    for name in (*(f"train/{figure}" for figure in policy), "seconds/rollout_reward_mean"):
        assert found[name] == whole[name]
    nothing = batch_metrics([failed("a", number, labelled_session(1)) for number in range(2)], expected=2)
    assert nothing["train/failure"] == 1.0
    assert not {"train/reward", "train/no_signal", "train/truncated"} & nothing.keys()
    # One rollout a prompt has no groups, and no search has no rate.
    assert group_signal([("a", 0.5), ("b", 0.5)]) == {}
    assert "retrieved_per_query" not in episode_shape([info(labelled_session(1), queries=0)])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1)), max_size=12), st.randoms())
def test_signal_does_not_depend_on_the_order(rewards: list[tuple[str, float]], random: Any) -> None:
    mixed = list(rewards)
    random.shuffle(mixed)
    assert group_signal(mixed) == pytest.approx(group_signal(rewards))
    for figure in group_signal(rewards).values():
        assert 0.0 <= figure <= 1.0


@given(st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), min_size=1), min_size=2, unique=True))
def test_data_order_names_the_sessions_and_not_their_timing(keys: list[str]) -> None:
    assert data_order(keys) == data_order([*reversed(keys), keys[0]])
    assert data_order(keys) != data_order(keys[1:])


@pytest.fixture
def buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[RolloutRow]]:
    """The replay buffer over a batch that is given it instead of verl's queue."""
    rows: list[RolloutRow] = []
    groups: dict[str, str] = {}

    def sample(self: object, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        tags = [{"seq_len": 9 - place} for place in range(len(rows))]
        return KVBatchMeta(keys=[entry.key for entry in rows], tags=tags, partition_id=partition_id), {"verl": 1.0}

    def get(keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        chosen = [next(entry for entry in rows if entry.key == key) for key in keys]
        scores = [torch.tensor([0.0] * place + [entry.reward]) for place, entry in enumerate(chosen)]
        nested = torch.nested.nested_tensor(scores, layout=torch.jagged)
        uids = [groups.get(entry.key, entry.group) for entry in chosen]
        found = {"rm_scores": nested, "extra_fields": [extra_fields(entry) for entry in chosen], "uid": uids}
        return {name: found[name] for name in select_fields}

    monkeypatch.setattr("verl.trainer.ppo.v1.replay_buffer.ReplayBuffer.__init__", lambda self, **_: None)
    monkeypatch.setattr("verl.trainer.ppo.v1.replay_buffer.ReplayBuffer.sample", sample)

    def put(keys: list[str], partition_id: str, fields: TensorDict) -> None:
        for key, scores, uid in zip(keys, fields["rm_scores"].unbind(), list(fields["uid"]), strict=True):
            place = next(place for place, entry in enumerate(rows) if entry.key == key)
            rows[place], groups[key] = replace(rows[place], reward=float(scores.sum())), uid

    monkeypatch.setattr("deltamem.training.replay_buffer.tq", SimpleNamespace(kv_batch_get=get, kv_batch_put=put))
    options = {"poll_seconds": 0.1, "max_failure_rate": 0.3, "sort_by_length": True}
    options |= {"train_rollouts": 2, "heldout_rollouts": 2}
    options |= {"validation_folder": str(tmp_path / "validation"), "stop_file": str(tmp_path / "stop")}
    options |= {"started_file": str(tmp_path / "started")}
    trainer = SimpleNamespace(config=SimpleNamespace(trainer=SimpleNamespace(save_freq=5)))
    refill = SimpleNamespace(__self__=trainer)
    made = replay_buffer.DeltaMemReplayBuffer(sampler_kwargs=options, refill_fn=refill, trainer_mode="sync")  # type: ignore
    with pytest.raises(DeltaMemError, match="trainer_mode=colocate_async: only sync is supported"):
        replay_buffer.DeltaMemReplayBuffer(sampler_kwargs=options, refill_fn=refill, trainer_mode="colocate_async")  # type: ignore
    return made, rows


Buffer = tuple[Any, list[RolloutRow]]


def test_the_replay_buffer_hands_verl_the_figures_of_the_batch_and_refuses_one_that_lost_rollouts(buffer, tmp_path):
    sampler, rows = buffer
    assert not (tmp_path / "started").exists()
    rows += a_batch()
    batch, metrics = sampler.sample(3, "train", 2)
    assert (tmp_path / "started").exists(), "the launcher waits no longer"
    expected = {"verl": 1.0} | {f"deltamem/{name}": value for name, value in batch_metrics(rows, 4).items()}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert 0.0 < metrics["deltamem/memory/rss_gb"] < 100.0 and metrics["deltamem/memory/processes"] >= 1
    assert [tag["seq_len"] for tag in batch.tags] == [6, 7, 8, 9], "sorted by length"
    del rows[2:]
    with pytest.raises(DeltaMemError, match=r"2 of 4 rollouts .*was lost"):
        sampler.sample(3, "train", 2)


def verl_advantages(rows: list[RolloutRow], deviation: bool) -> dict[str, float]:
    """What verl makes of the rewards that are in its queue, by key; a rollout that broke has no token of the model."""
    keys = [entry.key for entry in rows]
    queue = replay_buffer.tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["rm_scores", "uid"])
    scores = torch.tensor([[float(one.sum())] for one in queue["rm_scores"].unbind()])
    mask = torch.tensor([[float(entry.failure is None)] for entry in rows])
    batch = {"token_level_rewards": scores, "response_mask": mask}
    data = DataProto.from_dict(batch, non_tensors={"uid": np.array(queue["uid"], dtype=object)})
    found = compute_advantage_for_multi_trajectories(data, keys, "grpo", norm_adv_by_std_in_grpo=deviation)
    return dict(zip(keys, found.batch["advantages"][:, 0].tolist(), strict=True))


@pytest.mark.parametrize("deviation", [False, True])
def test_a_rollout_that_broke_moves_no_advantage(buffer: Buffer, deviation: bool) -> None:
    sampler, rows = buffer
    rows += [*a_batch(), row("alone", 0, labelled_session(4), None), row("alone", 1, labelled_session(4), None)]
    expected = verl_advantages(rows, deviation)
    assert expected["a_0_0"] > 0.1 and expected["alone_0_0"] == 0.0
    del rows[-1]
    for group, session, numbers in (("a", 1, (2, 3, 4)), ("alone", 4, (1, 2, 3)), ("lost", 3, (0, 1))):
        rows += [failed(group, number, labelled_session(session)) for number in numbers]
    rows += [row("c", number, labelled_session(5), None) for number in range(16)]
    before = {entry.key: entry.reward for entry in rows if entry.failure is None}
    sampler.sample(3, "train", 14)
    found = verl_advantages(rows, deviation)
    assert {key: found[key] for key in before if key in expected} == pytest.approx(
        {key: value for key, value in expected.items() if key in before}, abs=1e-6
    )
    assert all(found[entry.key] == 0.0 for entry in rows if entry.failure is not None)
    assert {entry.key: entry.reward for entry in rows if entry.failure is None} == before


def test_validation_keeps_the_generations_of_all_batches(buffer: Buffer, tmp_path: Path) -> None:
    sampler, rows = buffer
    folder = tmp_path / "validation"
    items = [labelled_session(number, "heldout") for number in (1, 2)]
    rows += [row("a", number, items[0], items[0].operations, keep=number == 1) for number in (0, 1)]
    assert sampler.sample(18, "val", 1)[1] == {"verl": 1.0}
    rows[:] = [row("b", number, items[1], None, keep=True) for number in (1, 0)]
    sampler.sample(18, "val", 1)
    (path,) = folder.iterdir()
    assert path.name == "step_000018.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(record["key"], record["rollout"]) for record in records] == [("p1/0", 1), ("p2/0", 0), ("p2/0", 1)]
    assert records[0]["score"]["reward"] == 1.0 and records[1]["operations"] is None
    assert records[0]["dialogue"][0]["role"] == "user" and records[0]["target_operations"][0]["keywords"]
    assert [turn["role"] for turn in records[0]["turns"]] == ["assistant", "tool", "assistant"]
    # Another process that makes the step again replaces what was written; a step without generations has no file.
    ValidationFolder(folder).add(18, generation_records(rows[:1]))
    ValidationFolder(folder).add(36, [])
    assert [len(file.read_text().splitlines()) for file in folder.iterdir()] == [1]


WORKER = """
import psutil, subprocess, sys, time
from deltamem.training.machine import memory_figures, run_processes
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
found = run_processes(psutil.Process())
print(len(found), found[0].name(), child.pid in [process.pid for process in found])
child.kill()
child.wait()
gone = memory_figures([*found, psutil.Process(child.pid)] if psutil.pid_exists(child.pid) else found)
print(gone["processes"] == len(found) - 1, 0 < gone["pss_gb"] <= gone["rss_gb"])
"""


@pytest.mark.parametrize("driver", [True, False])
def test_all_processes_of_a_run_are_found_from_a_worker(tmp_path: Path, driver: bool) -> None:
    raylet = tmp_path / "raylet"
    raylet.symlink_to("/bin/sh")
    # The second command keeps the shell from becoming the worker.
    start = [str(raylet), "-c", f'"{sys.executable}" -c "$WORKER"; true']
    command = (
        [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *start]
        if driver
        else ["/bin/sh", "-c", '"$@"; true', "sh", *start]
    )
    done = subprocess.run(command, env=os.environ | {"WORKER": WORKER}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    count, name, *found = done.stdout.split()
    assert (int(count), name.startswith("python")) == ((4, True) if driver else (3, False))
    assert found == ["True", "True", "True"]
