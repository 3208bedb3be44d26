"""Each check of the preflight on what it must accept and what it must refuse."""

from __future__ import annotations

import copy
import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from chat_cases import OPENED, QWEN3, qwen_tokenizer
from preflight_cases import check, composed, context, finding, resolved
from rich.console import Console
from training_cases import CHAT_TEMPLATE, labelled_session, write_sessions

from deltamem.config import validated
from deltamem.errors import DeltaMemError
from deltamem.sessions import to_json_line
from deltamem.training import preflight as machine
from deltamem.training.config import TrainSettings, unknown_keys
from deltamem.training.preflight import (
    CHECKS,
    Context,
    Gpu,
    frame_of,
    gpus,
    preflight,
    run_checks,
    template_problem,
)

GPU = Gpu("A GPU", 24 << 30)
_Usage = namedtuple("_Usage", "total used free")


@pytest.fixture
def values(model_folder: Path, tmp_path: Path) -> dict[str, Any]:
    """A run that is all right but for the GPUs."""
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=8, heldout=2)
    return {
        "deltamem.out": str(tmp_path / "run"),
        "deltamem.embedder.store": str(tmp_path / "run" / "embeddings"),
        "trainer.default_local_dir": str(tmp_path / "run" / "grpo" / "checkpoints"),
        "deltamem.sessions": str(sessions),
        "deltamem.embedder.name": "all-MiniLM-L6-v2",
        "deltamem.limits.thinking_tokens": 8,
        "deltamem.limits.multiple": 8,
        "deltamem.episode.max_turns": 2,
        "deltamem.episode.system_prompt": "manager_compact",
        "deltamem.episode.session_prompt": "session_compact",
        "actor_rollout_ref.model.path": str(model_folder),
        "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "data.train_batch_size": 4,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
        "trainer.save_freq": 1,
    }


def test_a_gpu_run_without_gpus(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(machine, "installed", lambda package: package != "vllm")
    before = sorted(tmp_path.rglob("*"))
    rows = run_checks(context(tmp_path / "scratch", values))
    states = {row.check: row.finding.state.value for row in rows}
    assert finding("GPUs", rows) == ("fail", "no GPU found with nvidia-smi, expected 1 on each of 1 nodes")
    assert finding("packages", rows)[1].startswith("vLLM is not installed")
    memory = finding("GPU memory", rows)
    assert memory[0] == "warn"
    assert "update" in memory[1]  # the estimate is shown all the same
    others = {name: state for name, state in states.items() if name not in ("GPUs", "packages", "GPU memory")}
    assert set(others.values()) == {"ok"}, rows
    assert "2 training sessions" not in finding("data", rows)[1]
    assert "8 training sessions of 8 persons, 2 steps; 2 held-out sessions of 2 persons" in finding("data", rows)[1]
    written = [path for path in sorted(tmp_path.rglob("*")) if path not in before and "scratch" not in path.parts]
    assert written == []


def test_table_last_line_and_exit_code(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", list)
    prepared = context(tmp_path, values | {"deltamem.embedder.name": "http://127.0.0.1:9/v1#none"})
    console = Console(record=True, width=200, file=(tmp_path / "table.txt").open("w"))
    assert preflight(prepared.config, prepared.settings, console) == 2
    text = console.export_text()
    assert "embedder" in text and "gave no vectors" in text
    assert text.strip().splitlines()[-1].endswith("the run would not work")
    assert "Traceback" not in text


def test_tiny_is_made_by_the_run(tmp_path: Path) -> None:
    config = resolved(composed("+experiment=tiny", f"deltamem.out={tmp_path}/run"))
    rows = run_checks(Context(config, validated(config.deltamem, TrainSettings), tmp_path))
    assert [row for row in rows if row.finding.state != "ok"] == []
    assert finding("data", rows)[1].startswith("made by the run")
    assert finding("model", rows)[1].startswith("made by the run")


def test_wrong_keys_and_values(values: dict[str, Any], tmp_path: Path) -> None:
    wrong = {"data.max_promt_length": 3, "actor_rollout_ref.rollout.gpu_util": 0.5, "ray_kwargs.ray_init.adress": "x"}
    found = check("configuration", context(tmp_path, values | wrong))
    assert found[0] == "fail"
    for key in wrong:
        assert repr(key) in found[1]
    loss = {"actor_rollout_ref.actor.loss_agg_mode": "token-median"}
    assert check("configuration", context(tmp_path, values | loss)) == (
        "fail",
        "verl refuses the configuration: Invalid loss_agg_mode: token-median",
    )
    kept = {"ray_kwargs.ray_init.address": "auto", "actor_rollout_ref.actor.checkpoint.save_lora_only": True}
    assert unknown_keys(context(tmp_path, values | kept).config) == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"actor_rollout_ref.actor.ppo_mini_batch_size": 3}, "not a multiple of ppo_mini_batch_size=3"),
        ({"trainer.n_gpus_per_node": 3, "data.train_batch_size": 4}, "do not divide among 3 data-parallel ranks"),
        ({"actor_rollout_ref.rollout.tensor_model_parallel_size": 2}, "tensor_model_parallel_size=2"),
        ({"actor_rollout_ref.rollout.n": 1}, "expected at least 2"),
        ({"deltamem.limits.fit": False, "actor_rollout_ref.rollout.max_model_len": 64}, "max_model_len=64 is less"),
        (
            {"deltamem.limits.fit": False, "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 64},
            "ref.log_prob_max_token_len_per_gpu=64 is less than one sequence",
        ),
    ],
)
def test_batches_that_do_not_divide(values: dict[str, Any], tmp_path: Path, changed: dict[str, Any], sentence: str) -> None:
    roomy = {
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 65536,
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 65536,
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 65536,
    }
    found = check("batches", context(tmp_path, values | roomy | changed))
    assert found[0] == "fail"
    assert sentence in found[1]


def test_missing_model(values: dict[str, Any], model_folder: Path, tmp_path: Path) -> None:
    missing = context(tmp_path, values | {"actor_rollout_ref.model.path": "Nobody/Nothing-1B"})
    rows = {
        row.check: row.finding for row in run_checks(missing, [each for each in CHECKS if each[0] in ("model", "tokenizer")])
    }
    assert rows["model"].state == "fail"
    assert "fetch it with: hf download Nobody/Nothing-1B" in rows["model"].found
    assert rows["tokenizer"].found == "needs what 'model' did not find"
    half = tmp_path / "half"
    shutil.copytree(model_folder, half)
    (half / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (half / "model.safetensors.index.json").write_text(json.dumps(index))
    (half / "model-00001-of-00002.safetensors").touch()
    found = check("model", context(tmp_path, values | {"actor_rollout_ref.model.path": str(half)}))
    assert found[0] == "fail"
    assert "model-00002-of-00002.safetensors is missing" in found[1]


def problem(template: str, *, thinking: bool = True, **options: bool) -> str | None:
    tokenizer = qwen_tokenizer(template)
    try:
        frame = frame_of(tokenizer, options)
    except DeltaMemError as error:
        return str(error)
    return template_problem(tokenizer, options, "qwen3", frame, thinking=thinking)


def test_templates_that_carry_an_episode() -> None:
    assert problem(CHAT_TEMPLATE) is None
    assert problem(QWEN3, enable_thinking=True) is None
    assert problem(QWEN3, enable_thinking=False, thinking=False) is None
    assert problem(OPENED) is None


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("+ m.content + '</tool_response>", "+ '</tool_response>", "leaves out what the tool answers"),
        ("{%- for m in messages -%}", "{{ messages|length }}{%- for m in messages -%}", "cannot render an episode"),
        (
            "'\n' + m.content + '<|im_end|>",
            "'\n' + (m.content if loop.last else m.content[-20:]) + '<|im_end|>",
            "not append-only",
        ),
        ("m.role == 'tool'", "m.rolle.x == 'tool'", "cannot render an episode"),
    ],
)
def test_broken_templates(old: str, new: str, sentence: str) -> None:
    assert old in CHAT_TEMPLATE
    found = problem(CHAT_TEMPLATE.replace(old, new))
    assert found is not None
    assert sentence in found


@pytest.mark.parametrize(
    ("template", "thinking", "switch", "sentence"),
    [
        (QWEN3, True, True, None),
        (QWEN3, False, False, None),
        (CHAT_TEMPLATE, False, True, None),
        (QWEN3, True, False, "the episode asks for thinking"),
        (QWEN3, False, True, "needs data.apply_chat_template_kwargs.enable_thinking=false"),
        (None, True, True, "no chat template"),
    ],
)
def test_thinking_switch(
    values: dict[str, Any], tmp_path: Path, template: str | None, thinking: bool, switch: bool, sentence: str | None
) -> None:
    tokenizer = qwen_tokenizer(QWEN3)
    prepared = context(
        tmp_path,
        values
        | {
            "deltamem.episode.thinking": thinking,
            "data.apply_chat_template_kwargs.enable_thinking": switch,
        },
    )
    prepared.tokenizer = copy.copy(tokenizer)
    prepared.tokenizer.chat_template = template
    state, found = check("chat template", prepared)
    assert state == ("ok" if sentence is None else "fail"), found
    assert sentence is None or sentence in found


def test_vocabulary_that_does_not_fit(values: dict[str, Any], model_folder: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    shutil.copytree(model_folder, small)
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    found = check("tokenizer", context(tmp_path, values | {"actor_rollout_ref.model.path": str(small)}))
    assert found == ("fail", f"{config['vocab_size']} tokens do not fit into the model's vocabulary of 100")


def test_rows_beyond_the_limits(values: dict[str, Any], tmp_path: Path) -> None:
    written = {"deltamem.limits.fit": False, "data.max_prompt_length": 16, "data.max_response_length": 256}
    found = check("lengths", context(tmp_path / "a", values | written | {"deltamem.turn_tokens": 64}))
    assert found == ("fail", "10 of 10 prompts do not fit into data.max_prompt_length=16, which ends the run")
    tolerant = written | {"deltamem.turn_tokens": 64, "deltamem.max_failure_rate": 1.0}
    assert check("lengths", context(tmp_path / "b", values | tolerant))[0] == "warn"
    window = check("lengths", context(tmp_path / "c", values | {"deltamem.limits.thinking_tokens": 4096}))
    assert window[0] == "fail"
    assert "10 of 10 sessions need more than the 2048 tokens" in window[1]


def test_bad_rows(values: dict[str, Any], tmp_path: Path) -> None:
    path = Path(values["deltamem.sessions"])
    good = path.read_text()
    path.write_text(good + '{"person_id": 3}\n')
    found = check("data", context(tmp_path / "a", values))
    assert found[0] == "fail"
    assert "line 11" in found[1]
    path.write_text(good + to_json_line(labelled_session(0, "heldout")) + "\n")
    assert "1 persons are trained on and held out, p0" in check("data", context(tmp_path / "b", values))[1]
    path.write_text(good + good.splitlines()[0] + "\n")
    assert "1 sessions are there twice" in check("data", context(tmp_path / "c", values))[1]
    path.write_text("".join(f"{line}\n" for line in good.splitlines()[-5:]))
    few = check("data", context(tmp_path / "d", values))
    assert few[0] == "fail" and "fewer than data.train_batch_size=4" in few[1]
    path.unlink()
    assert "no such file; make one with: python -m synth" in check("data", context(tmp_path / "e", values))[1]


def test_too_little_disk(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check("disk", context(tmp_path, values))[0] == "ok"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(10**9, 10**9, 10**5))
    found = check("disk", context(tmp_path, values))
    assert found[0] == "fail"
    assert "3 checkpoints of" in found[1]


def test_gpu_memory_against_the_estimate(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: [GPU])
    assert check("GPUs", context(tmp_path, values)) == ("ok", "1 x A GPU, 24 GiB each")
    assert check("GPU memory", context(tmp_path, values))[0] == "ok"
    many = values | {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 50_000_000}
    found = check("GPU memory", context(tmp_path, many))
    assert found[0] == "fail" and "lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu" in found[1]
    greedy = values | {"actor_rollout_ref.rollout.gpu_memory_utilization": 0.99}
    found = check("GPU memory", context(tmp_path, greedy))
    assert found[0] == "fail" and "lower actor_rollout_ref.rollout.gpu_memory_utilization" in found[1]
    two = check("GPUs", context(tmp_path, values | {"trainer.n_gpus_per_node": 2}))
    assert two == ("fail", "1 x A GPU, 24 GiB each; expected 2")


def test_gpus_are_asked_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, NVIDIA A100-SXM4-80GB, 81920'\necho '1, NVIDIA A100-SXM4-80GB, 81920'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus() == [Gpu("NVIDIA A100-SXM4-80GB", 81920 << 20)] * 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert len(gpus()) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus() == []
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert gpus() == []


def test_ray_address(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert check("ray", context(tmp_path, values)) == ("ok", "the run starts its own")
    gone = check("ray", context(tmp_path, values | {"ray_kwargs.ray_init.address": "127.0.0.1:9"}))
    assert gone[0] == "fail" and "does not answer" in gone[1]
    nobody = check("ray", context(tmp_path, values | {"ray_kwargs.ray_init.address": "auto"}))
    assert nobody[0] == "fail" and "slurm/train_multinode.sbatch" in nobody[1]


def test_reward_that_cannot_be_made(values: dict[str, Any], tmp_path: Path) -> None:
    found = check("reward", context(tmp_path, values | {"deltamem.reward.format_weight": 0.5}))
    assert found[0] == "fail"
    assert found[1].startswith("deltamem.reward: ")
    found = check("reward", context(tmp_path, values | {"deltamem.reward.nonsense": 1}))
    assert "nonsense" in found[1]


def test_a_check_that_breaks_is_a_failed_one(values: dict[str, Any], tmp_path: Path) -> None:
    def broken(_: Context) -> Any:
        raise ZeroDivisionError("division by zero")

    rows = run_checks(context(tmp_path, values), [("odd", broken)])
    assert finding("odd", rows) == ("fail", "the check itself broke: ZeroDivisionError: division by zero")
