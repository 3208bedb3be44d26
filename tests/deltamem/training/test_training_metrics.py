"""What the trainer makes of a batch of rollouts; metrics.jsonl from verl's log, warnings and the progress line."""

from __future__ import annotations

import io
import json
import os
import re
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
from omegaconf import OmegaConf
from rich.console import Console
from rollout_cases import SCORER, a_batch, a_trainer, embed, extra_fields, failed, info, row, trajectory_of
from training_cases import labelled_session

from deltamem.errors import DeltaMemError
from deltamem.training.metrics import (
    PREFIX,
    Alarms,
    GrpoProgress,
    MetricsFile,
    RolloutRow,
    Tail,
    batch_metrics,
    convert,
    data_order,
    episode_shape,
    group_signal,
    read_metrics,
)
from rewards.diagnostics import RATES as DIAGNOSTIC_RATES

ROOT = Path(__file__).resolve().parents[3]
RATES: dict[str, tuple[str, str]] = {
    name: tuple(pair)  # type: ignore[misc]
    for name, pair in OmegaConf.load(ROOT / "configs" / "train.yaml").deltamem.rates.items()
}
SECONDS = {"gen": 2.0, "old_log_prob": 0.5, "adv": 0.25, "update_actor": 3.0, "update_weights": 0.125, "step": 6.0}
FIGURES: dict[str, float | None] = {
    **dict.fromkeys(("actor/lr", "actor/pg_loss", "actor/pg_clipfrac", "actor/perf/max_memory_allocated_gb"), 0.25),
    **dict.fromkeys(("perf/total_num_tokens", "perf/time_per_step", "response_length/mean"), 24.0),
    **{"training/global_step": 4, "val-aux/num_turns/mean": 2.0, "critic/advantages/mean": None},
    **{"actor/grad_norm": 0.5, "actor/ppo_kl": 0.001, "perf/mfu/actor": 0.4, "perf/throughput": 851.0},
    **{"actor/perf/max_memory_reserved_gb": 40.0, "actor/perf/cpu_memory_used_gb": 5.0},
}


def verl_log() -> dict[str, Any]:
    """What verl logs of a step with a validation, its names written down from a run of verl 0.9.1."""
    item = labelled_session(1, "heldout")
    heldout, _ = SCORER(item, trajectory_of(item.operations), embed)
    return {
        **FIGURES,
        **{f"{PREFIX}{name}": value for name, value in batch_metrics(a_batch(), 4).items()},
        **{f"timing_s/{phase}": value for phase, value in SECONDS.items()},
        "timing_s/testing": 9.0,
        **{f"val-aux/deltamem/{name}/mean@1": value for name, value in heldout.items() if name != "reward"},
        "val-core/deltamem/reward/mean@1": heldout["reward"],
    }


def test_verls_names_become_ours_with_shares_of_the_counts() -> None:
    record = convert(4, verl_log(), RATES)
    assert record["step"] == 4
    assert record.items() >= batch_metrics(a_batch(), 4).items()
    expected = {
        "heldout": {"reward": 1.0, "recall": 1.0, "count/target_operations": 2.0, "wrong_target": 0.0, "update_recall": 1.0},
        "train": {"grad_norm": 0.5, "kl_to_sampler": 0.001, "wrong_target": 0.25, "update_recall": 0.75, "add_recall": 1.0},
        "speed": {"tokens_per_second_per_gpu": 851.0, "mfu": 0.4},
        "memory": {"gpu_reserved_gb": 40.0, "node_used_gb": 5.0},
        "seconds": {"other": 0.125, "testing": 9.0},
    }
    for part, figures in expected.items():
        assert {name: record[f"{part}/{name}"] for name in figures} == pytest.approx(figures)
    assert "train/none_recall" not in record, "there was no NONE to find"


def test_the_configured_shares_are_those_of_the_diagnostics() -> None:
    counts = {(f"count/{top}", f"count/{bottom}") for top, bottom in DIAGNOSTIC_RATES.values()}
    per_episode = {pair for pair in counts if pair[1] in ("count/answered", "count/episodes")}
    assert set(RATES.values()) == counts - per_episode


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # The sampler is compared with the recomputed log-probs, where there are any.
        ({"actor/ppo_kl": 0.5, "rollout_corr/kl": 0.25}, {"train/kl_to_sampler": 0.25}),
        # Of several rollouts a session the mean over most is taken.
        (
            {f"val-aux/deltamem/format/{name}": 0.1 for name in ("mean@9", "best@16/mean", "std@16")}
            | {"val-aux/deltamem/format/mean@16": 0.4},
            {"heldout/format": 0.4},
        ),
        # What is no number is left out.
        ({f"{PREFIX}a": float("nan"), f"{PREFIX}b": None, f"{PREFIX}c": 1, "actor/lr": float("inf")}, {"c": 1}),
    ],
)
def test_which_values_are_taken(data: dict[str, Any], expected: dict[str, float]) -> None:
    assert convert(2, data, {}) == {"step": 2} | expected


def test_every_metric_is_described() -> None:
    table = re.findall(r"^\| `([^`]+)` \| \S", (ROOT / "docs/metrics.md").read_text("utf-8"), re.MULTILINE)
    described = re.compile("|".join(re.sub(r"<\w+>", ".+", name) for name in table))
    assert [name for name in convert(4, verl_log(), RATES) if not described.fullmatch(name)] == []
    assert not described.fullmatch("train/nonsense")


def test_metrics_are_not_repeated_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, from_step=None)
    for step in range(6):
        first.add({"step": step, "value": 1})
    second = MetricsFile(path, from_step=3)  # steps 4 and 5 were lost with the process
    for step in (3, 4, 5):
        second.add({"step": step, "value": 2})
    second.add({"step": 3, "value": 3, "new": 4})
    entries = read_metrics(path)
    assert [(entry["step"], entry["value"]) for entry in entries] == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert [entry.get("new") for entry in entries] == [None, None, None, 4, None, None]
    assert read_metrics(tmp_path / "none") == []


def test_tail_takes_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "verl.jsonl"
    tail = Tail(path, {"share": ("a", "b")})
    assert list(tail.records()) == []
    line = json.dumps({"step": 1, "data": {"deltamem/train/a": 1.0, "deltamem/train/b": 2.0}}) + "\n"
    path.write_text(line + '{"step": 2, "da')
    assert [record["train/share"] for record in tail.records()] == [0.5]
    path.write_text(line + json.dumps({"step": 2, "data": {}}) + "\n")
    assert [record["step"] for record in tail.records()] == [2]


@pytest.mark.parametrize(
    ("name", "values", "sounds_at"),
    [
        ("train/no_signal", [0.9] * 14, [9]),
        ("train/no_signal", [0.9] * 9 + [0.5] + [0.9] * 9, []),  # ten steps must follow each other
        ("train/truncated", [0.2, 0.25, 0.25], [1]),
        ("train/add_for_update", [0.5, 0.6, 0.6], [1]),
        ("train/kl_to_sampler", [0.05, -0.06, 0.06], [1]),
    ],
)
def test_each_alarm_sounds_once_beyond_its_limit(name: str, values: list[float], sounds_at: list[int]) -> None:
    alarms = Alarms()
    said = [alarms.check({"step": step, name: value}) for step, value in enumerate(values)]
    assert [step for step, sentences in enumerate(said) if sentences] == sounds_at
    assert all(sentence.startswith(f"step {step}: ") for step in sounds_at for sentence in said[step])


def test_the_console_shows_rewards_rates_the_time_left_and_warnings() -> None:
    output = io.StringIO()
    with GrpoProgress(Console(file=output, width=60), total=10, start=0) as progress:
        progress.add({"step": 0, "heldout/reward": 0.25})
        progress.add({"step": 1, "train/reward": 0.5, "seconds/step": 6.0, "train/truncated": 0.4})
    *_, line, warning = output.getvalue().splitlines()
    assert line == "grpo 1/10: reward 0.500, held-out 0.250, 6.0 s/step, truncated 0.40, about 0.9 min left"
    assert warning.startswith("warning: step 1: a token limit ended 40%")


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
    options |= {"pulse_file": str(tmp_path / "pulse"), "stall_minutes": 60.0}
    refill = SimpleNamespace(__self__=a_trainer(tmp_path))
    made = replay_buffer.DeltaMemReplayBuffer(sampler_kwargs=options, refill_fn=refill, trainer_mode="sync")  # type: ignore
    with pytest.raises(DeltaMemError, match="trainer_mode=colocate_async: only sync is supported"):
        replay_buffer.DeltaMemReplayBuffer(sampler_kwargs=options, refill_fn=refill, trainer_mode="colocate_async")  # type: ignore
    return made, rows


Buffer = tuple[Any, list[RolloutRow]]


def test_the_replay_buffer_hands_verl_the_figures_of_the_batch_and_refuses_one_that_lost_rollouts(buffer, tmp_path):
    sampler, rows = buffer
    assert not (tmp_path / "pulse").exists()
    rows += a_batch()
    batch, metrics = sampler.sample(3, "train", 2)
    assert (tmp_path / "pulse").exists(), "the launcher waits no longer"
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
