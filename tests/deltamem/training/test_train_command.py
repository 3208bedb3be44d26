"""Bad input to ``train.py``: one sentence, exit code 2, and nothing made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from preflight_cases import composed, resolved
from training_cases import write_sessions

from deltamem.config import validated
from deltamem.errors import DeltaMemError
from deltamem.training.config import TrainSettings
from deltamem.training.pipeline import check_options

ROOT = Path(__file__).resolve().parents[3]


def train(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "train.py", *arguments], capture_output=True, text=True, cwd=ROOT, env=env)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["deltamem.turn_token=3"], "unknown config key 'deltamem.turn_token'"),
        (["+deltamem.nonsense=3", "deltamem.out=x", "deltamem.sessions=y"], "unknown config key 'nonsense'"),
        (["actor_rollout_ref.rollout.typo=3"], "unknown config key 'actor_rollout_ref.rollout.typo'"),
        (["deltamem.synth=null", "deltamem.sessions=/nowhere/sessions.jsonl"], "/nowhere/sessions.jsonl: no such file"),
        (["deltamem.out=???"], "'deltamem.out' has no value"),
        # Without a file the run would make its data first, which takes minutes.
        (["deltamem.reward.tau=3"], "deltamem.reward: tau must be at least 0 and at most 1, not 3"),
    ],
)
def test_bad_input_is_one_sentence_at_once(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    done = train("+experiment=tiny", f"deltamem.out={tmp_path / 'run'}", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "run" / "synth").exists()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("deltamem.reward.stale_weight=0.5", "deltamem.reward: stale_weight must be"),
        ("deltamem.episode.system_prompt=poem", "prompt 'poem' does not exist"),
        ("+deltamem.model.layer=3", "unknown config key 'model.layer'; --cfg job"),
        ("deltamem.warm_start.steps=many", "config key 'warm_start.steps': "),
    ],
)
def test_what_a_stage_would_refuse_is_refused_before_any_runs(override: str, sentence: str) -> None:
    config = resolved(composed("+experiment=tiny", override))
    with pytest.raises(DeltaMemError, match=sentence):
        check_options(validated(config.deltamem, TrainSettings))


def test_too_few_sessions_for_one_batch(tmp_path: Path) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=3, heldout=2)
    done = train(
        "+experiment=tiny",
        f"deltamem.out={tmp_path / 'run'}",
        f"deltamem.sessions={sessions}",
        "deltamem.synth=null",
        "deltamem.data.heldout_sessions=2",
        "deltamem.data.skip_people=0",
    )
    assert done.returncode == 2
    assert "3 training sessions are fewer than data.train_batch_size=16" in done.stderr


@pytest.mark.slow
def test_a_preflight_of_a_sweep_ends_with_2_and_makes_nothing(tmp_path: Path) -> None:
    done = train(
        "-m",
        "+experiment=tiny",
        "+ablation=tau",
        "deltamem.reward.tau=0.5,0.9",
        "preflight=true",
        f"hydra.sweep.dir={tmp_path / 'sweep'}",
        "deltamem.synth=null",
        "deltamem.sessions=/nowhere/sessions.jsonl",
        f"deltamem.out={tmp_path}/run_${{deltamem.reward.tau}}",
    )
    assert done.returncode == 2, done.stderr
    # The first failing run ends a sweep: the same command again goes on with it.
    assert done.stdout.count("preflight: ") == 1
    assert done.stdout.strip().splitlines()[-1].endswith("the run would not work")
    assert "tau=0.5" in done.stdout
    assert "/nowhere/sessions.jsonl: no such file" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["sweep"]
