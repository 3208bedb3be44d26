"""metrics.jsonl from verl's log, warnings, the progress line, and trackers that may fail."""

from __future__ import annotations

import importlib.util
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from omegaconf import OmegaConf
from rich.console import Console
from rollout_cases import SCORER, a_batch, embed, trajectory_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_cases import labelled_session

from deltamem.errors import DeltaMemError
from deltamem.training.metrics import (
    Alarms,
    GrpoProgress,
    MetricsFile,
    Tail,
    Trackers,
    check_trackers,
    convert,
    open_trackers,
    read_metrics,
)
from deltamem.training.rollout_metrics import PREFIX, batch_metrics
from rewards.diagnostics import RATES as DIAGNOSTIC_RATES

ROOT = Path(__file__).resolve().parents[3]
RATES: dict[str, tuple[str, str]] = {
    name: tuple(pair)  # type: ignore[misc]
    for name, pair in OmegaConf.load(ROOT / "configs" / "train.yaml").deltamem.rates.items()
}
SECONDS = {"gen": 2.0, "old_log_prob": 0.5, "adv": 0.25, "update_actor": 3.0, "update_weights": 0.125, "step": 6.0}


def verl_log() -> dict[str, Any]:
    """What verl logs of a step with a validation, its names written down from a run of verl 0.9.1."""
    data: dict[str, Any] = {f"{PREFIX}{name}": value for name, value in batch_metrics(a_batch(), 4).items()}
    data |= {f"timing_s/{phase}": value for phase, value in SECONDS.items()} | {"timing_s/testing": 9.0}
    data |= {
        "actor/grad_norm": 0.5,
        "actor/lr": 1e-6,
        "actor/pg_loss": -0.01,
        "actor/ppo_kl": 0.001,
        "actor/pg_clipfrac": 0.0,
        "actor/perf/max_memory_allocated_gb": 30.0,
        "actor/perf/max_memory_reserved_gb": 40.0,
        "actor/perf/cpu_memory_used_gb": 5.0,
        "perf/mfu/actor": 0.4,
        "perf/throughput": 851.0,
        "perf/total_num_tokens": 704,
        "perf/time_per_step": 6.0,
        "response_length/mean": 24.0,
        "critic/advantages/mean": None,
        "training/global_step": 4,
        "val-aux/num_turns/mean": 2.0,
    }
    item = labelled_session(1, "heldout")
    figures = SCORER(item, trajectory_of(item.operations), embed)
    data |= {f"val-aux/deltamem/{name}/mean@1": value for name, value in figures.items()}
    data |= {"val-core/deltamem/reward/mean@1": data.pop("val-aux/deltamem/reward/mean@1")}
    return data


def test_verls_names_become_ours() -> None:
    record = convert(4, verl_log(), RATES)
    assert record["step"] == 4
    for name, value in batch_metrics(a_batch(), 4).items():
        assert record[name] == value
    assert record["heldout/reward"] == record["heldout/recall"] == 1.0
    assert record["heldout/count/target_operations"] == 2.0
    assert (record["train/grad_norm"], record["train/kl_to_sampler"]) == (0.5, 0.001)
    assert (record["speed/tokens_per_second_per_gpu"], record["speed/mfu"]) == (851.0, 0.4)
    assert (record["memory/gpu_reserved_gb"], record["memory/node_used_gb"]) == (40.0, 5.0)
    assert record["seconds/other"] == pytest.approx(0.125)
    assert record["seconds/testing"] == 9.0


def test_shares_by_kind_of_operation_of_training_and_of_the_held_out() -> None:
    record = convert(4, verl_log(), RATES)
    assert record["train/wrong_target"] == 0.25 and record["train/update_recall"] == 0.75
    assert record["train/queries_per_memory"] == 1.0 and record["train/add_recall"] == 1.0
    assert record["heldout/wrong_target"] == 0.0 and record["heldout/update_recall"] == 1.0
    assert "train/none_recall" not in record, "there was no NONE to find"


def test_the_configured_shares_are_those_of_the_diagnostics() -> None:
    counts = {(f"count/{top}", f"count/{bottom}") for top, bottom in DIAGNOSTIC_RATES.values()}
    per_episode = {pair for pair in counts if pair[1] in ("count/answered", "count/episodes")}
    assert set(RATES.values()) == counts - per_episode


def test_the_sampler_is_compared_with_the_recomputed_log_probs_where_there_are_any() -> None:
    assert convert(1, {"actor/ppo_kl": 0.5, "rollout_corr/kl": 0.25}, {})["train/kl_to_sampler"] == 0.25
    assert convert(1, {"actor/ppo_kl": 0.5}, {})["train/kl_to_sampler"] == 0.5


def test_of_several_rollouts_a_session_the_mean_over_most_is_taken() -> None:
    data = {f"val-aux/deltamem/format/{name}": value for name, value in {"mean@9": 0.3, "mean@16": 0.4}.items()}
    data |= {"val-aux/deltamem/format/best@16/mean": 1.0, "val-aux/deltamem/format/std@16": 2.0}
    assert convert(0, data, {}) == {"step": 0, "heldout/format": 0.4}


def test_what_is_no_number_is_left_out() -> None:
    data = {"deltamem/train/a": float("nan"), "deltamem/train/b": None, "deltamem/train/c": 1, "actor/lr": float("inf")}
    assert convert(2, data, {}) == {"step": 2, "train/c": 1}


def test_every_metric_is_described() -> None:
    table = re.findall(r"^\| `([^`]+)` \| \S", (ROOT / "docs/metrics.md").read_text("utf-8"), re.MULTILINE)
    described = re.compile("|".join(re.sub(r"<\w+>", ".+", name) for name in table))
    assert [name for name in convert(4, verl_log(), RATES) if not described.fullmatch(name)] == []
    assert not described.fullmatch("train/nonsense")


def test_metrics_are_not_repeated_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, from_step=None)
    assert all(first.add({"step": step}) for step in range(6))
    second = MetricsFile(path, from_step=3)  # steps 4 and 5 were lost with the process
    assert [second.add({"step": step, "again": True}) for step in (3, 4, 5)] == [False, True, True]
    assert [entry["step"] for entry in read_metrics(path)] == [0, 1, 2, 3, 4, 5]
    assert [entry["step"] for entry in read_metrics(path) if "again" in entry] == [4, 5]
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


def test_each_alarm_sounds_once() -> None:
    alarms = Alarms()
    assert alarms.check({"step": 0, "heldout/reward": 0.1}) == []
    said = [alarms.check({"step": step, "train/no_signal": 0.9}) for step in range(1, 15)]
    assert [step for step, sentences in enumerate(said, start=1) if sentences] == [10]
    for name, fine, bad, word in (
        ("train/truncated", 0.2, 0.25, "25% of the episodes"),
        ("train/add_for_update", 0.5, 0.6, "60% of the due UPDATEs"),
        ("train/kl_to_sampler", 0.05, -0.06, "-0.060"),
    ):
        assert alarms.check({"step": 20, name: fine}) == []
        (sentence,) = alarms.check({"step": 21, name: bad})
        assert sentence.startswith("step 21: ") and word in sentence and "\n" not in sentence
        assert alarms.check({"step": 22, name: bad}) == []


def test_ten_steps_without_signal_must_follow_each_other() -> None:
    alarms = Alarms()
    shares = [0.9] * 9 + [0.5] + [0.9] * 9
    assert not any(alarms.check({"step": step, "train/no_signal": share}) for step, share in enumerate(shares))


def test_the_console_tells_what_matters() -> None:
    output = io.StringIO()
    with GrpoProgress(Console(file=output, width=60), total=10, start=0) as progress:
        progress.show({"step": 0, "heldout/reward": 0.25})
        progress.show(
            {
                "step": 1,
                "train/reward": 0.5,
                "seconds/step": 6.0,
                "train/wrong_target": 0.31,
                "train/add_for_update": 0.1,
                "train/no_signal": 0.125,
                "train/truncated": 0.4,
            }
        )
    lines = output.getvalue().splitlines()
    assert lines[2] == (
        "grpo 1/10: reward 0.500, held-out 0.250, 6.0 s/step, wrong target 0.31, add for update 0.10, no signal 0.12, "
        "truncated 0.40, about 0.9 min left"
    )
    assert lines[3].startswith("warning: step 1: a token limit ended 40%") and len(lines) == 4


def run(names: list[str], out: Path, steps: range, first_step: int, offset: float = 0.0) -> list[str]:
    """An attempt of a run that logs these steps; returns the warnings."""
    warnings: list[str] = []
    trackers = open_trackers(names, out, first_step=first_step, config={"seed": 1}, warn=warnings.append)
    for step in steps:
        trackers.add({"step": step, "train/reward": step / 10 + offset, "seconds/step": 2.0})
    trackers.close()
    return warnings


def shown(folder: Path) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"train/reward", "seconds/step"}
    return [(event.step, round(event.value, 3)) for event in events.Scalars("train/reward")]


def test_tensorboard_shows_no_step_twice_after_a_resume(tmp_path: Path) -> None:
    assert run(["tensorboard"], tmp_path, range(6), first_step=0) == []
    # The checkpoint was that of step 3; steps 4 and 5 are made again.
    assert run(["tensorboard"], tmp_path, range(4, 8), first_step=4, offset=1.0) == []
    assert shown(tmp_path / "tensorboard") == [
        (0, 0.0),
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
        (4, 1.4),
        (5, 1.5),
        (6, 1.6),
        (7, 1.7),
    ]


def test_tensorboard_begins_anew_with_the_run(tmp_path: Path) -> None:
    run(["tensorboard"], tmp_path, range(3), first_step=0)
    run(["tensorboard"], tmp_path, range(2), first_step=0, offset=1.0)
    assert shown(tmp_path / "tensorboard") == [(0, 1.0), (1, 1.1)]


@pytest.fixture
def fresh_wandb() -> Iterator[None]:
    """wandb reads its environment once in a process."""
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.mark.usefixtures("fresh_wandb")
def test_wandb_goes_on_with_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert run(["wandb"], tmp_path, range(2), first_step=0) == []
    run_id = (tmp_path / "wandb_id").read_text()
    assert run(["wandb"], tmp_path, range(2, 4), first_step=2) == []
    assert (tmp_path / "wandb_id").read_text() == run_id
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert {path.name for path in files} == {f"run-{run_id}.wandb"}
    written = b"".join(path.read_bytes() for path in files)
    assert b"train/reward" in written and b"seconds/step" in written


@pytest.mark.usefixtures("fresh_wandb")
def test_a_wandb_that_nobody_is_logged_in_to_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (warning,) = run(["wandb"], tmp_path, range(2), first_step=0)
    assert warning.startswith("wandb does not start, training goes on without it:") and "\n" not in warning


class Broken:
    """Fails from its second step on."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def log(self, step: int, values: Any) -> None:
        self.calls.append(step)
        if step > 0:
            raise OSError(28, "No space\nleft")

    def close(self) -> None:
        raise RuntimeError("closed already")


def test_a_tracker_that_breaks_is_given_up_with_one_warning() -> None:
    warnings: list[str] = []
    broken = Broken()
    trackers = Trackers(warnings.append)
    trackers.start("it", lambda: broken)
    for step in range(4):
        trackers.add({"step": step})
    trackers.close()
    assert broken.calls == [0, 1]
    assert warnings == ["it failed at step 1, training goes on without it: OSError: [Errno 28] No space left"]


def test_a_tracker_that_cannot_be_closed_is_told() -> None:
    warnings: list[str] = []
    trackers = Trackers(warnings.append)
    trackers.start("it", Broken)
    trackers.close()
    assert warnings == ["it could not be closed: RuntimeError: closed already"]


def test_a_missing_package_is_told_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    check_trackers(["tensorboard", "wandb"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else name)
    with pytest.raises(DeltaMemError, match=r"'deltamem.trackers': wandb is not installed; run: pip install wandb"):
        check_trackers(["tensorboard", "wandb"])
