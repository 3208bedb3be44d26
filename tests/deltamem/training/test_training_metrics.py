"""metrics.jsonl from verl's log, warnings and the progress line."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from rich.console import Console
from rollout_cases import SCORER, a_batch, embed, trajectory_of
from training_cases import labelled_session

from deltamem.training.metrics import PREFIX, Alarms, GrpoProgress, MetricsFile, Tail, batch_metrics, convert, read_metrics
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
        first.add({"step": step})
    second = MetricsFile(path, from_step=3)  # steps 4 and 5 were lost with the process
    for step in (3, 4, 5):
        second.add({"step": step, "again": True})
    assert [(entry["step"], "again" in entry) for entry in read_metrics(path)] == [
        *((step, False) for step in range(4)),
        (4, True),
        (5, True),
    ]
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
