"""The rehearsal of a run: what of it is small and what is not, its table, and that nothing of it is left."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from episode_texts import WordEmbedder
from lazy import lazy, names
from omegaconf import OmegaConf
from preflight_cases import placed, whole
from rich.console import Console
from run_cases import BATCH, SMALL, Run, await_true
from training_cases import write_sessions

from deltamem.errors import DeltaMemError
from deltamem.runs import RunStoppedError
from deltamem.training import pipeline, preflight, rehearsal
from deltamem.training.checkpoints import Space
from deltamem.training.interruption import locked
from deltamem.training.launch import TrainingFailedError
from deltamem.training.machine import Gpu
from deltamem.training.rehearsal import RunSize, Took, in_small, judge, rehearse, rows_of, size_of, small_batch

torch, DataProto = lazy("torch"), names("verl", "DataProto")
compute_rollout_correction_and_add_to_batch = names(
    "verl.trainer.ppo.rollout_corr_helper", "compute_rollout_correction_and_add_to_batch"
)

QWEN = ("+experiment=qwen8b", "deltamem.out=/PLACE/run", "deltamem.sessions=/PLACE/sessions.jsonl")


def values(config: Any, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= values(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return found


def test_what_decides_about_memory_is_as_in_the_run(tmp_path: Path) -> None:
    write_sessions(tmp_path / "sessions.jsonl", train=2, heldout=1)
    config, settings = placed(tmp_path, *QWEN)
    small, own = in_small(config, settings, tmp_path / ".run.rehearsal", rows=(6750, 750))
    before, after = (values(OmegaConf.to_container(one)) for one in (config, small))
    moved = {key for key in before if str(tmp_path / "run") in str(before[key])}
    assert moved and all(str(after[key]).startswith(str(tmp_path / ".run.rehearsal")) for key in moved)
    changed = {key: after[key] for key in after if before[key] != after[key] and key not in moved}
    assert changed == {
        "data.train_batch_size": 16,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 16,
        "deltamem.data.train_sessions": 48,
        "deltamem.data.heldout_sessions": 188,
        **dict.fromkeys(f"deltamem.gates.{gate}" for gate in ("truncated", "unreadable", "no_signal", "heldout_drop")),
        "trainer.total_epochs": 1000,
        "trainer.total_training_steps": 2,
        "trainer.save_freq": 2,
        "trainer.test_freq": 2,
        "trainer.val_before_train": False,
    }
    assert own.out == tmp_path / ".run.rehearsal" and own.sessions == settings.sessions
    below = placed(tmp_path, *QWEN, values={"actor_rollout_ref.model.path": str(tmp_path / "run" / "start")})
    assert in_small(*below, tmp_path / "other", rows=(6750, 750))[0].actor_rollout_ref.model.path == str(
        tmp_path / "run" / "start"
    )


def test_data_and_models_of_the_run_itself_are_made_small_too(tmp_path: Path) -> None:
    config, settings = placed(tmp_path, "+experiment=tiny", "deltamem.out=/PLACE/run")
    small, own = in_small(config, settings, tmp_path / "other", rows=(40, 40))
    assert own.sessions == tmp_path / "other" / "synth" / "sessions.jsonl" and small.deltamem.synth.people == 40
    assert (own.data.skip_people, own.data.train_sessions, small.data.train_batch_size) == (0, None, 4)
    assert (small.deltamem.warm_start.steps, small.deltamem.warm_start.copy_steps) == (2, 1)
    warm = placed(tmp_path, "+experiment=smollm135m", "deltamem.out=/PLACE/run")
    assert in_small(*warm, tmp_path / "other", rows=(40, 40))[0].deltamem.warm_start.steps == 2


@pytest.mark.parametrize(
    ("batch", "n", "gpus", "expected"), [(64, 8, 8, 16), (64, 8, 16, 16), (64, 1, 24, 24), (3, 1, 2, 2), (1, 2, 4, 1)]
)
def test_the_rollouts_of_a_small_step_divide_among_the_gpus(
    tmp_path: Path, batch: int, n: int, gpus: int, expected: int
) -> None:
    rollouts = {"data.train_batch_size": batch, "actor_rollout_ref.rollout.n": n, "trainer.n_gpus_per_node": gpus}
    assert small_batch(placed(tmp_path, *QWEN, values=rollouts)[0]) == expected


def test_the_size_of_the_papers_run(tmp_path: Path) -> None:
    config, _ = placed(tmp_path, *QWEN)
    assert size_of(config, (6750, 750)) == RunSize(sessions=64, heldout=750, steps=105, validations=8, saves=7, gpus=8)


def test_the_size_of_a_run_whose_data_are_yet_to_be_made(tmp_path: Path) -> None:
    demanding = placed(tmp_path, "+experiment=qwen8b", "+variant=demanding", "deltamem.out=/PLACE/run")
    rows = rows_of(demanding[1])
    assert rows == (6750, 750)
    assert size_of(demanding[0], rows) == RunSize(sessions=64, heldout=750, steps=105, validations=8, saves=7, gpus=8)
    smol = placed(tmp_path, "+experiment=smollm135m_gpu", "deltamem.out=/PLACE/run")[1]
    assert rows_of(smol) == ((450 - 60) * 25, 50 * 25), "the first people are the warm start's"


def steps(**changed: float) -> list[dict[str, Any]]:
    """Two steps and one after a resume: 10 s of sampling, 20 s that grow with the rollouts, 2 s that do not."""
    usual = {"seconds/step": 32.0, "seconds/gen": 10.0, "seconds/update_actor": 15.0, "seconds/ref": 5.0}
    usual |= {"train/grad_norm": 0.5, "train/truncated": 0.01, "train/count/unreadable": 0.1, "train/no_signal": 0.2}
    listed = [usual | {"train/kl_to_sampler": 0.001} | changed | {"step": number} for number in (1, 2, 3)]
    listed[1] |= {"seconds/testing": 12.0, "seconds/save_checkpoint": 40.0, "seconds/step": 72.0}
    return listed


GPUS = [Gpu("A100", 80 << 30, "580", 60 << 30), Gpu("A100", 80 << 30, "580", 62 << 30)]


def table(
    tmp_path: Path,
    records: list[dict[str, Any]],
    gpus: list[Gpu] = GPUS,
    free: int = 10**12,
    resume: float = 332.0,
    experiment: tuple[str, ...] = QWEN,
) -> Any:
    _, settings = placed(tmp_path, *experiment)
    took = Took({"data": 9.0, "grpo": 500.0, "export": 60.0}, resume=resume, checkpoint=98 * 10**9, gpus=gpus)
    space = Space(3, 98 * 10**9, 33 * 10**9, there=0, free=free, place=tmp_path)
    found = judge(records, took, RunSize(64, 750, 105, 8, 7, 8), space, settings, batch=16, heldout=188)
    return {name: (one.state.value, one.found) for name, one in found.items()}


def test_the_table_reckons_the_whole_run(tmp_path: Path) -> None:
    found = table(tmp_path, steps())
    assert {state for state, _ in found.values()} == {"ok"}, found
    # At best 2 + 10 + 4 * 20 s, at worst 2 + 4 * 30 s.
    assert found["step"][1].startswith("32 s of 16 sessions; 92 to 122 s of 64")
    low, high = (300 + 60 + 7 * 40 + 105 * step + 8 * tested for step, tested in ((92, 12.0), (122, 12.0 * 750 / 188)))
    assert (
        f": {low / 3600:.1f} to {high / 3600:.1f} hours, {low / 450:.0f} to {high / 450:.0f} GPU-hours"
        in found["to the end"][1]
    )
    assert found["memory"][1].startswith("GPU 1 had 66.6 GB of 85.9 GB")
    assert "up to 210 s: sbatch" in found["stops"][1]


@pytest.mark.parametrize(
    ("line", "changed", "state", "said"),
    [
        ("cut", {"train/truncated": 0.06}, "warn", "6% of the episodes were ended by a token limit; raise"),
        ("cut", {"train/truncated": 0.6}, "fail", "60%"),
        ("readable", {"train/count/unreadable": 0.9}, "fail", "90% of the episodes have no answer that can be read; "),
        ("spread", {"train/no_signal": 0.99}, "fail", "99% of the prompts"),
        ("spread", {"train/no_signal": 0.9}, "warn", "90% of the prompts have rollouts of one reward"),
        ("sampler", {"train/kl_to_sampler": -0.2}, "fail", "KL 0.2000"),
        ("steps", {"train/grad_norm": 0.0}, "warn", "gradients of norm 0, 0, 0"),
        ("stops", {"train/failure": 0.01}, "warn", "1.0% of the rollouts broke; above deltamem.max_failure_rate=0.02"),
        ("stops", {"seconds/gen": 500.0}, "warn", "2000 s of sampling come near deltamem.stall_minutes=60"),
        # Between two batches the launcher hears nothing.
        (
            "stops",
            {"seconds/step": 632.0, "seconds/update_actor": 600.0},
            "warn",
            "1877 s of updating and saving come near deltamem.stall_minutes=60",
        ),
        ("stops", {"seconds/update_actor": 2000.0}, "warn", "3600 s of slurm/train.sbatch are too few"),
    ],
)
def test_what_speaks_against_a_run(tmp_path: Path, line: str, changed: dict[str, float], state: str, said: str) -> None:
    found = table(tmp_path, steps(**changed))
    assert found[line][0] == state and said in found[line][1], found[line]


def test_what_a_warm_start_of_two_steps_cannot_know_speaks_against_nothing(tmp_path: Path) -> None:
    untaught = {"train/truncated": 1.0, "train/count/unreadable": 1.0, "train/no_signal": 1.0, "train/grad_norm": 0.0}
    smol = ("+experiment=smollm135m_gpu", "deltamem.out=/PLACE/run")
    found = table(tmp_path, steps(**untaught), experiment=smol)
    assert not [name for name, (state, _) in found.items() if state == "fail"], found
    assert {found[name][1] for name in ("cut", "readable", "spread")} == {"not known: the warm start was cut to a few steps"}


def test_machines_that_are_too_small_or_too_slow(tmp_path: Path) -> None:
    assert table(tmp_path, steps(), gpus=[Gpu("A100", 80 << 30, "580", 79 << 30)])["memory"][0] == "warn"
    assert table(tmp_path, steps(), free=200 * 10**9)["checkpoint"][0] == "fail"
    assert "start of 1468 s comes near" in table(tmp_path, steps(), resume=1500.0)["stops"][1]
    assert "on the CPU" in table(tmp_path, steps(), gpus=[])["memory"][1]


def test_the_correction_that_the_table_names_weighs_each_token() -> None:
    config = whole("+experiment=qwen8b", "algorithm.rollout_correction.rollout_is=token").algorithm.rollout_correction
    assert not config.bypass_mode, "else verl leaves it to the loss"
    sampled, trained = torch.tensor([[-1.0, -1.5, -4.0, -9.0]]), torch.full((1, 4), -1.0)
    batch = {"old_log_probs": trained, "rollout_log_probs": sampled, "response_mask": torch.tensor([[1, 1, 1, 0]])}
    corrected, _ = compute_rollout_correction_and_add_to_batch(DataProto.from_dict(tensors=batch), config)
    # What verl's loss multiplies each token with: the ratio of both policies, at most 2.
    assert corrected.batch["rollout_is_weights"][0].tolist() == pytest.approx([1.0, math.exp(0.5), 2.0, 0.0])


def test_micro_batches_of_so_many_rollouts_are_full(tmp_path: Path) -> None:
    sizes = {"data.train_batch_size": 4, "actor_rollout_ref.rollout.n": 2}
    micro = {"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4}
    tiny = ("+experiment=tiny", "deltamem.out=/PLACE/run")
    assert small_batch(placed(tmp_path, *tiny, values=sizes | micro)[0]) == 2


@pytest.fixture
def scripted(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A whole rehearsal whose GRPO is scripted: exit code, what is printed, and what GRPO was told."""
    sessions, calls = write_sessions(tmp_path / "sessions.jsonl", train=16, heldout=4), []
    monkeypatch.setattr(preflight, "load_embedder", lambda *given, **named: WordEmbedder())
    monkeypatch.setattr(pipeline, "embed_data", lambda files, embedder, console: embedder.store.mkdir())
    monkeypatch.setattr(pipeline, "META_FILE", ".")
    monkeypatch.setattr(pipeline, "_export", lambda run, *rest: shutil.copytree(model_folder, run / "policy"))

    def run(ending: Exception | None = None, **changed: float) -> tuple[int, str, list[Any]]:
        def grpo(config: Any, settings: Any, console: Any) -> None:
            calls.append((config.trainer.total_training_steps, config.trainer.save_freq, os.environ["RAY_TMPDIR"]))
            (settings.out / "logs").mkdir(exist_ok=True)
            (settings.out / "logs" / "grpo_1.log").write_text("what verl said")
            if ending is not None:
                raise ending
            Path(config.trainer.default_local_dir, "global_step_2").mkdir(parents=True, exist_ok=True)
            told = steps(**changed)[: config.trainer.total_training_steps]
            (settings.out / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in told))

        for module in (pipeline, rehearsal):
            monkeypatch.setattr(module, "run_grpo", grpo)
        given = [one.partition("=") for one in SMALL]
        values = {key: yaml.safe_load(value) for key, _, value in given}
        values["actor_rollout_ref.actor.ppo_mini_batch_size"] = BATCH
        values |= {"deltamem.sessions": str(sessions), "actor_rollout_ref.model.path": str(model_folder)}
        config, settings = placed(tmp_path, "+experiment=tiny", "deltamem.out=/PLACE/runs/one", values=values)
        console = Console(record=True, width=300, file=io.StringIO())
        return rehearse(config, settings, console), console.export_text(), calls

    return run


def test_a_rehearsal_ends_with_go_and_leaves_nothing(scripted, tmp_path: Path) -> None:
    code, text, calls = scripted()
    assert code == 0, text
    assert text.strip().splitlines()[-1] == "rehearsal: go; start with the same command without rehearse=true"
    assert [call[:2] for call in calls] == [(2, 2), (3, -1)] and not Path(calls[0][2]).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["sessions.jsonl"] and "RAY_TMPDIR" not in os.environ


@pytest.mark.parametrize(
    ("ending", "code", "said", "left"),
    [
        (TrainingFailedError("CUDA out of memory"), 1, "rehearsal: no-go: CUDA out of memory; kept: ", ["runs"]),
        (RunStoppedError("saved"), 75, "rehearsal: stopped on request; nothing of it is left", []),
    ],
)
def test_a_rehearsal_that_does_not_reach_its_end(scripted, tmp_path: Path, ending, code, said, left) -> None:
    # What one that was killed has left is no reason to refuse.
    (tmp_path / "runs" / ".one.rehearsal" / "data").mkdir(parents=True)
    found, text, _ = scripted(ending)
    assert (found, said in text) == (code, True), text
    kept = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "runs").rglob("*"))
    assert kept == [f"{folder}/one.rehearsal.log" for folder in left]


def test_a_second_rehearsal_is_refused_and_leaves_the_first_alone(scripted, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / ".one.rehearsal"
    with locked(folder / "lock", patience=0.0):
        (folder / "data").mkdir()
        with pytest.raises(DeltaMemError, match="another run is at work there"):
            scripted()
    assert (folder / "data").is_dir() and "RAY_TMPDIR" not in os.environ


@pytest.mark.slow
def test_a_rehearsal_of_a_model_that_cannot_answer_says_so_and_leaves_nothing(tmp_path: Path, model_folder: Path) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=16, heldout=4)
    run = Run(tmp_path / "runs" / "one", sessions, model_folder)
    done = run.finish(50, "rehearse=true", "actor_rollout_ref.actor.entropy_coeff=0.05")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "going on after step 2" in done.stdout and "50 steps, 26 validations" in " ".join(done.stdout.split())
    assert done.stdout.strip().splitlines()[-1].startswith("rehearsal: no-go: cut, readable")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sessions.jsonl"]
    await_true(lambda: not run.processes(), 120.0)
