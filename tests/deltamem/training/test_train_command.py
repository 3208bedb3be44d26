"""Bad input to ``train.py``: one sentence, exit code 2, and nothing made."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lazy import names
from omegaconf import DictConfig, OmegaConf
from preflight_cases import composed, placed, read_once
from training_cases import write_sessions

from deltamem.errors import DeltaMemError
from deltamem.training.pipeline import check_options

AutoTokenizer = names("transformers", "AutoTokenizer")

ROOT = Path(__file__).resolve().parents[3]


def train(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "train.py", *arguments], capture_output=True, text=True, cwd=ROOT, env=env)


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """``python train.py`` in this process, which has loaded verl already: exit code, output, errors."""
    # Hydra would compose everything twice, the first time to see whether it says by itself that it is a sweep.
    monkeypatch.setattr("hydra._internal.hydra.Hydra.get_mode", lambda *_, **__: None)
    monkeypatch.setattr(OmegaConf, "load", read_once)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
        return int(ended.value.code or 0), *capsys.readouterr()

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["actor_rollout_ref.rollout.typo=3"], "unknown config key 'actor_rollout_ref.rollout.typo'"),
        (["reward=demanding"], "choose the reward of the memory with reward@deltamem.reward=repaired"),
    ],
)
def test_bad_input_is_one_sentence_at_once(command, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    code, out, err = command("+experiment=tiny", f"deltamem.out={tmp_path / 'run'}", *arguments)
    assert (code, out) == (2, "")
    assert sentence in err and err.count("\n") == 1
    assert not (tmp_path / "run" / "synth").exists()


@pytest.fixture(scope="session")
def main() -> Callable[[DictConfig], int]:
    """What ``train.py`` does with a composed configuration."""
    return runpy.run_path(str(ROOT / "train.py"), run_name="train")["main"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, main: Callable[[DictConfig], int]) -> Callable[..., int]:
    """The same without Hydra, which composes each experiment once; without handlers of signals."""
    monkeypatch.setitem(main.__globals__, "listen", lambda: None)
    return lambda *overrides: main(composed(*overrides).copy())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["deltamem.synth=null", "deltamem.sessions=/nowhere/sessions.jsonl"], "/nowhere/sessions.jsonl: no such file"),
        (["preflight=maybe"], "preflight=maybe: expected true, false or skip"),
        # Without a file the run would make its data first, which takes minutes.
        (["deltamem.reward.tau=3"], "deltamem.reward: tau must be at least 0 and at most 1, not 3"),
    ],
)
def test_bad_values_are_one_sentence_before_anything_is_made(started, tmp_path, arguments, sentence):
    with pytest.raises(DeltaMemError, match=re.escape(sentence)):
        started("+experiment=tiny", f"deltamem.out={tmp_path / 'run'}", *arguments)
    assert not (tmp_path / "run" / "synth").exists()


def test_a_run_on_gpus_that_would_fail_ends_before_its_first_stage(started, tmp_path: Path, capsys) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=64, heldout=1)
    paths = (f"deltamem.out={tmp_path / 'run'}", f"deltamem.sessions={sessions}", "actor_rollout_ref.model.path=No/Model")
    assert started("+experiment=qwen0_6b", *paths) == 2
    out = capsys.readouterr().out
    assert "vLLM is not installed" in out and "hf download No/Model" in out
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_process_of_its_own_ends_with_the_same(tmp_path: Path) -> None:
    done = train("+experiment=tiny", f"deltamem.out={tmp_path / 'run'}", "deltamem.turn_token=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown config key 'deltamem.turn_token'" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("deltamem.out", "???", "config key 'deltamem.out' has no value"),
        ("trainer.logger", ["swanlab"], "trainer.logger: swanlab is not installed; run: pip install swanlab"),
        ("trainer.logger", "swanlab", "trainer.logger: swanlab is not installed; run: pip install swanlab"),
        ("algorithm.filter_groups.enable", True, "algorithm.filter_groups needs max_num_gen_batches"),
        ("trainer.v1.sampler.sync_refill_failed_groups", True, "sync_refill_failed_groups: a rollout that fails keeps its"),
        ("actor_rollout_ref.nccl_timeout", 1800, "nccl_timeout=1800: verl reads it nowhere"),
        ("deltamem.reward.stale_weight", 0.5, "deltamem.reward: stale_weight must be"),
        ("deltamem.episode.system_prompt", "poem", "prompt 'poem' does not exist"),
        ("deltamem.model.layer", 3, "unknown config key 'model.layer'; --cfg job"),
        ("deltamem.warm_start.steps", "many", "config key 'warm_start.steps': "),
        ("deltamem.episode.max_turns", 1, "needs two deltamem.episode.max_turns: its teacher searches, then answers"),
    ],
)
def test_what_a_stage_would_refuse_is_refused_before_any_runs(key: str, value: object, sentence: str) -> None:
    with pytest.raises(DeltaMemError, match=sentence):
        check_options(*placed(Path("/"), "+experiment=tiny", values={key: value}))


SMOL = ("+experiment=smollm135m", "deltamem.out=/PLACE/run", "actor_rollout_ref.model.path=/PLACE/model")


def lack(folder: Path, name: str) -> None:
    (folder / name).unlink()


def cut(folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:300])


def grow(folder: Path, name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"<{name}{number}>" for number in range(9)])
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    ("spoil", "name", "sentence"),
    [
        (lack, "config.json", "no model that can be loaded"),
        (cut, "config.json", "no model that can be loaded"),
        (lack, "model.safetensors", "model.safetensors is missing"),
        (cut, "model.safetensors", "fetch it again"),
        (cut, "tokenizer.json", "no model that can be loaded"),
        (lack, "chat_template.jinja", "the tokenizer has no chat template"),
        (grow, "tokenizer", "; it is of another model"),
    ],
)
def test_a_broken_model_is_refused_before_the_data_are_made(tmp_path, model_folder, spoil, name, sentence):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    spoil(folder, name)
    with pytest.raises(DeltaMemError) as refused:
        check_options(*placed(tmp_path, *SMOL))
    assert str(folder) in str(refused.value) and sentence in str(refused.value) and "\n" not in str(refused.value)


def test_a_missing_model_is_refused_and_a_name_of_the_hub_is_not(started, tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match=f"{tmp_path / 'model'}: no model that can be loaded"):
        started(*(one.replace("/PLACE", str(tmp_path)) for one in SMOL))
    assert not (tmp_path / "run").exists()
    check_options(*placed(tmp_path, *SMOL, values={"actor_rollout_ref.model.path": "Nobody/Nothing-1B"}))


def test_what_does_not_fit_the_data_ends_the_run_before_anything_is_trained(started, tmp_path):
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=40, heldout=4)
    folders = (f"deltamem.out={tmp_path / 'few'}", f"deltamem.sessions={sessions}", "deltamem.synth=null")
    given = ("deltamem.data.heldout_sessions=4", "deltamem.data.skip_people=8", "data.train_batch_size=64")
    with pytest.raises(DeltaMemError, match=r"32 training sessions are fewer than data\.train_batch_size=64"):
        started("+experiment=tiny", *folders, *given)
    assert not (tmp_path / "few" / "grpo").exists()


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


def test_stages_that_need_no_gpu_run_where_there_is_none(started, tmp_path: Path, model_folder: Path, capsys) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=64, heldout=1)
    paths = (
        f"deltamem.out={tmp_path / 'run'}",
        f"deltamem.sessions={sessions}",
        f"actor_rollout_ref.model.path={model_folder}",
    )
    short = (
        "deltamem.limits.thinking_tokens=8",
        "deltamem.episode.max_turns=2",
        "deltamem.episode.system_prompt=manager_compact",
    )
    given = ("+experiment=qwen0_6b", *paths, *short)
    with pytest.raises(DeltaMemError, match="stages: lengths needs data, which is not done and not among them"):
        started(*given, "stages=[lengths]")
    for wrong in ("[data,length]", "length"):
        with pytest.raises(DeltaMemError, match="stages=length: expected some of synth, data, embeddings"):
            started(*given, f"stages={wrong}")
    with pytest.raises(
        DeltaMemError, match="stages=model: no stage of this run; it has data, embeddings, lengths, grpo, export"
    ):
        started(*given, "stages=model")
    assert started(*given, "stages=[data,lengths]") == 0
    out = capsys.readouterr().out
    assert "stage 1/5 data: 0 s" in out and "stage 2/5" not in out and "stage 3/5 lengths: " in out
    assert "stages: yet to run are embeddings, grpo, export; the same command with stages=null goes on with them" in out
    assert (tmp_path / "run" / "lengths.json").is_file() and not (tmp_path / "run" / "grpo").exists()
    # With the stage that needs them, the checks of GPUs come first.
    assert started(*given, "stages=[embeddings,grpo]") == 2


def test_a_run_that_ends_with_its_warm_start_says_where_the_model_is(
    started, tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=12, heldout=2)
    given = (
        "+experiment=smollm135m_everyday",
        f"deltamem.out={tmp_path / 'run'}",
        "deltamem.synth=null",
        f"deltamem.sessions={sessions}",
        f"actor_rollout_ref.model.path={model_folder}",
        "deltamem.data.heldout_sessions=2",
        "deltamem.warm_start.heldout_sessions=2",
        "deltamem.warm_start.steps=2",
        "deltamem.warm_start.layers=1",
        "stages=[data,warm_start]",
    )
    for _ in range(2):  # Made, and found made
        assert started(*given) == 0
        assert f"warm start: {tmp_path / 'run' / 'warm_start' / 'model'}" in capsys.readouterr().out.splitlines()
    assert list((tmp_path / "run" / "warm_start" / "model").glob("*.safetensors"))
