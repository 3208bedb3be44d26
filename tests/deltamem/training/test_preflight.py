"""What the preflight accepts and what it refuses, check by check."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import shutil
import socket
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_cases import OPENED, QWEN3, qwen_tokenizer
from episode_texts import WordEmbedder
from preflight_cases import CONFIGS, check, context, finding, placed
from preflight_cases import changed as configured
from rich.console import Console
from training_cases import labelled_session, write_sessions

from deltamem.sessions import to_json_line
from deltamem.training import cluster, machine
from deltamem.training.chatml import CHAT_TEMPLATE
from deltamem.training.config import unknown_keys
from deltamem.training.machine import Gpu, Imports, gpus, try_imports
from deltamem.training.preflight import CHECKS, Check, Context, check_start, preflight, run_checks
from deltamem.training.resources import ModelShape

GPU = Gpu("A GPU", 24 << 30, "580.159")
ACTOR, MODEL, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("actor", "model", "rollout"))
ROOMY = {
    f"{ACTOR}.ppo_max_token_len_per_gpu": 65536,
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 65536,
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 65536,
}
SHORT = {
    "deltamem.limits.fit": False,
    "data.max_prompt_length": 16,
    "data.max_response_length": 256,
    "deltamem.turn_tokens": 64,
}
LAST = "(message.content if loop.last else message.content[-20:])"
_Usage = namedtuple("_Usage", "total used free")


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    """No real embedder: loading it takes longer than all checks together."""
    monkeypatch.setattr("deltamem.training.preflight.load_embedder", lambda *given, **named: WordEmbedder())


@pytest.fixture
def values(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A run that is all right, on a machine with one GPU."""
    monkeypatch.setattr(machine, "gpus", lambda: [GPU])
    monkeypatch.setattr(machine, "cpus", lambda: 8)
    monkeypatch.setattr(machine, "shared_memory", lambda: 8 << 30)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return {
        "deltamem.out": str(tmp_path / "run"),
        "deltamem.embedder.store": str(tmp_path / "run" / "embeddings"),
        "trainer.default_local_dir": str(tmp_path / "run" / "grpo" / "checkpoints"),
        "deltamem.sessions": str(write_sessions(tmp_path / "sessions.jsonl", train=8, heldout=2)),
        "deltamem.embedder.name": "all-MiniLM-L6-v2",
        "deltamem.limits.thinking_tokens": 8,
        "deltamem.limits.multiple": 8,
        "deltamem.episode.max_turns": 2,
        "deltamem.episode.system_prompt": "manager_compact",
        "deltamem.episode.session_prompt": "session_compact",
        f"{MODEL}.path": str(model_folder),
        f"{MODEL}.override_config.attn_implementation": "sdpa",
        "data.train_batch_size": 4,
        f"{ACTOR}.ppo_mini_batch_size": 4,
        "trainer.save_freq": 1,
    }


def test_a_gpu_run_without_gpus_is_refused_and_nothing_is_written(values, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(machine, "installed", lambda package: package != "vllm")
    before = sorted(tmp_path.rglob("*"))
    rows = run_checks(context(tmp_path / "scratch", values))
    states = {name: found.state.value for name, found in rows.items()}
    assert {name for name, state in states.items() if state == "fail"} == {"GPUs", "packages"}, rows
    assert finding("packages", rows)[1].startswith("vLLM is not installed")
    state, estimate = finding("GPU memory", rows)
    assert state == "warn" and "update" in estimate, "the estimate is shown all the same"
    assert {name for name, state in states.items() if state == "warn"} == {"GPU memory"}, rows
    assert "8 training sessions of 8 persons, 2 steps; 2 held-out sessions of 2 persons" in finding("data", rows)[1]
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before and "scratch" not in path.parts] == []


def test_the_command_ends_with_its_verdict_and_exit_code_2(values: dict[str, Any], tmp_path: Path) -> None:
    prepared = context(tmp_path, values | {"deltamem.embedder.name": "http://127.0.0.1:9/v1#none"})
    console = Console(record=True, width=200, file=(tmp_path / "table.txt").open("w"))
    assert preflight(prepared.config, prepared.settings, console) == 2
    text = console.export_text()
    assert "gave no vectors" in text and "Traceback" not in text
    assert text.strip().splitlines()[-1].endswith("the run would not work")


def test_what_the_run_makes_itself_is_not_missed(tmp_path: Path) -> None:
    rows = run_checks(Context(*placed(tmp_path, "+experiment=tiny", "deltamem.out=/PLACE/run"), tmp_path))
    assert [found for found in rows.values() if found.state != "ok"] == []
    assert all(finding(name, rows)[1].startswith("made by the run") for name in ("data", "model"))


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("configuration", {"data.max_promt_length": 3}, "'data.max_promt_length'"),
        ("configuration", {f"{ROLLOUT}.gpu_util": 0.5}, f"'{ROLLOUT}.gpu_util'"),
        ("configuration", {"ray_kwargs.ray_init.adress": "x"}, "'ray_kwargs.ray_init.adress'"),
        (
            "configuration",
            {f"{ACTOR}.loss_agg_mode": "token-median"},
            "verl refuses the configuration: Invalid loss_agg_mode",
        ),
        ("batches", {f"{ACTOR}.ppo_mini_batch_size": 3}, "not a multiple of ppo_mini_batch_size=3"),
        ("batches", {"trainer.n_gpus_per_node": 3}, "do not divide among 3 data-parallel ranks"),
        ("batches", {f"{ROLLOUT}.tensor_model_parallel_size": 2}, "tensor_model_parallel_size=2"),
        ("batches", {f"{ROLLOUT}.n": 1}, "expected at least 2"),
        ("batches", {"deltamem.limits.fit": False, f"{ROLLOUT}.max_model_len": 64}, "max_model_len=64 is less"),
        (
            "batches",
            {"deltamem.limits.fit": False, "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 64},
            "ref.log_prob_max_token_len_per_gpu=64 is less than one sequence",
        ),
        ("model", {f"{MODEL}.path": "Nobody/Nothing-1B"}, "fetch it with: hf download Nobody/Nothing-1B"),
        ("data", {"deltamem.sessions": "/nowhere/sessions.jsonl"}, "no such file; make one with: python -m synth"),
        ("lengths", SHORT, "10 of 10 prompts do not fit into data.max_prompt_length=16, which ends the run"),
        ("lengths", {"deltamem.overlong": {"buffer": 4000, "weight": 0.2}}, "overlong.buffer=4000 is more than a turn may"),
        ("lengths", {"deltamem.limits.thinking_tokens": 4096}, "10 of 10 sessions need more than the 2048 tokens"),
        ("reward", {"deltamem.reward.format_weight": 0.5}, "deltamem.reward: the reward weights"),
        ("reward", {"deltamem.reward.nonsense": 1}, "nonsense"),
        ("ray", {"ray_kwargs.ray_init.address": "127.0.0.1:9"}, "does not answer"),
        ("ray", {"ray_kwargs.ray_init.address": "auto"}, "slurm/train_multinode.sbatch"),
        ("ray", {"trainer.nnodes": 2}, "no cluster: 2 nodes need one"),
        ("configuration", {"trainer.v1.trainer_mode": "colocate_async"}, "trainer_mode=colocate_async: only sync"),
        ("CPUs", {"transfer_queue.backend.SimpleStorage.num_data_storage_units": 8}, "ray_kwargs.ray_init.num_cpus=12"),
        ("CPUs", {"ray_kwargs.ray_init.num_cpus": 2}, "Ray counts 2, verl asks for 5: it would wait for ever"),
        ("GPUs", {"trainer.n_gpus_per_node": 2}, "1 x A GPU, 24 GiB each; expected 2"),
        ("GPU memory", {f"{ACTOR}.ppo_max_token_len_per_gpu": 50_000_000}, f"lower {ACTOR}.ppo_max_token_len_per_gpu"),
        ("GPU memory", {f"{ROLLOUT}.gpu_memory_utilization": 0.99}, f"lower {ROLLOUT}.gpu_memory_utilization"),
    ],
)
def test_what_is_refused(values: dict[str, Any], tmp_path: Path, name: str, changed: dict[str, Any], said: str) -> None:
    state, found = check(name, context(tmp_path, values | (ROOMY if name == "batches" else {}) | changed))
    assert state == "fail" and said in found, found


def test_all_nodes_must_have_the_same_code_and_packages(values, tmp_path, monkeypatch):
    here = {"deltamem": "code 0123", "torch": "2.11.0"}
    nodes = {"n1": here, "n2": here}
    monkeypatch.setattr(cluster, "installed_here", lambda: here)
    monkeypatch.setattr(cluster, "installed_on_nodes", lambda address: nodes)
    # More processors than this node has: only the cluster knows whether they are there.
    asked = values | {"transfer_queue.backend.SimpleStorage.num_data_storage_units": 40, "trainer.nnodes": 2}
    assert check("nodes", context(tmp_path, values)) == ("ok", "one node")
    assert check("nodes", context(tmp_path, asked)) == ("ok", "no cluster to ask")
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = "{}:{}".format(*server.getsockname())
        monkeypatch.setenv("RAY_ADDRESS", place)
        prepared = context(tmp_path, asked | {"ray_kwargs.ray_init.address": "auto"})
        assert check("ray", prepared) == ("ok", f"{place} answers")
        assert check("CPUs", prepared) == ("ok", "47 of the cluster are needed")
        assert check("nodes", prepared) == ("ok", "2 nodes have the code and the packages of this one")
        nodes["n2"] = here | {"torch": "2.10.0"}
        state, found = check("nodes", prepared)
        assert state == "fail" and found.startswith("node n2 has torch 2.10.0 (here 2.11.0): install the same there")
        del nodes["n2"]
        assert check("nodes", prepared) == ("fail", f"1 of 2 nodes have joined {place}: n1")
    prepared = context(tmp_path, asked | {"ray_kwargs.ray_init.address": "local"})
    assert check("ray", prepared)[0] == "fail"
    assert check("CPUs", prepared)[0] == "fail" and "Ray counts 8" in check("CPUs", prepared)[1]


def test_what_is_accepted(values: dict[str, Any], tmp_path: Path) -> None:
    prepared = context(tmp_path, values)
    names = ("GPUs", "GPU memory", "host memory", "ray", "disk", "CPUs", "finished stages")
    assert {check(name, prepared)[0] for name in names} == {"ok"}
    unusual = {"ray_kwargs.ray_init.address": "auto", f"{ACTOR}.checkpoint.save_lora_only": True}
    assert unknown_keys(context(tmp_path, values | unusual).config) == []
    assert check("lengths", context(tmp_path / "b", values | SHORT | {"deltamem.max_failure_rate": 1.0}))[0] == "warn"


def test_disk(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = CONFIGS / "warm_start" / "pretrained.yaml"
    options = yaml.safe_load(group.read_text(encoding="utf-8"))["deltamem"]["warm_start"]
    parameters = ModelShape.of(context(tmp_path, values).model_config).parameters

    def disk(free: int, **changed: Any) -> tuple[str, str]:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(free, 0, free))
        return check("disk", context(tmp_path, values | changed))

    unsaved, warm = {"trainer.save_freq": -1}, {"deltamem.warm_start": options}
    state, found = disk(10**5)
    assert state == "fail" and "4 checkpoints of" in found
    assert disk(10**5, **unsaved) == ("ok", "nothing is saved, as trainer.save_freq says")
    # A checkpoint of float32 weights and two moments beside the one before; later the model beside the last one.
    assert disk(2 * 12 * parameters, **unsaved, **warm)[0] == "ok"
    state, found = disk(2 * 12 * parameters - 1, **unsaved, **warm)
    assert state == "fail" and found.startswith("warm start ")
    # GRPO's four checkpoints and the policy come to the model that stays.
    assert disk((4 + 4 * 12 + 4) * parameters, **warm)[0] == "ok"
    assert disk((4 + 4 * 12 + 4) * parameters - 1, **warm)[0] == "fail"
    (tmp_path / "run" / "warm_start" / "model").mkdir(parents=True)
    assert disk((4 * 12 + 4) * parameters, **warm)[0] == "ok"


def test_little_shared_memory(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "shared_memory", lambda: 64 << 20)
    state, found = check("host memory", context(tmp_path, values))
    assert state == "warn" and "/dev/shm has only 67.1 MB" in found and "--shm-size" in found


def test_a_model_that_no_smaller_batch_makes_fit(values, copied, tmp_path, monkeypatch):
    large = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "layer_types": None}
    config = json.loads((copied / "config.json").read_text())
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False}
    (copied / "config.json").write_text(json.dumps(config | large | heads))
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu("A GPU", 80 << 30, "580.159")])
    state, found = check("GPU memory", context(tmp_path, values))
    assert state == "fail" and "that no smaller batch saves: use more GPUs or LoRA" in found
    assert "ppo_max_token_len_per_gpu" not in found


@pytest.fixture
def copied(values: dict[str, Any], model_folder: Path, tmp_path: Path) -> Path:
    """A copy of the model, which the run starts from."""
    values[f"{MODEL}.path"] = str(tmp_path / "copied")
    return shutil.copytree(model_folder, tmp_path / "copied")


def lack_a_part(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def small_vocabulary(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("model", lack_a_part, "model-00002-of-00002.safetensors is missing"),
        ("model", cut_weights, "; fetch it again"),
        ("tokenizer", small_vocabulary, "tokens and the weights 100; it is of another model"),
    ],
)
def test_a_broken_model(values, copied, tmp_path, name, spoil, said):
    assert check(name, context(tmp_path, values))[0] == "ok"
    spoil(copied)
    state, found = check(name, context(tmp_path, values))
    assert state == "fail" and said in found, found


def test_rows_of_an_earlier_start_that_are_cut(values: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run" / "data" / "train.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PAR1 and not to the end")
    state, found = check("finished stages", context(tmp_path, values | {"data.train_files": str(path)}))
    assert (state, found) == ("fail", f"{path}: cannot be read; remove {path.parent} to make it again")


PACKAGES = {"verl": "0.9.1", "torch": "2.11.0+cu130", "transformers": "5.9.0", "vllm": "0.24.0", "flash-attn": "2.8.3"}
FINE = Imports(errors={}, cuda="13.0", usable=True, architectures=frozenset({"Qwen3ForCausalLM"}))


@pytest.mark.parametrize(
    ("versions", "imports", "state", "said"),
    [
        ({}, {}, "ok", "flash-attn 2.8.3"),
        ({"transformers": "5.10.4"}, {}, "warn", "verl 0.9.1 was made with transformers 5.9.0"),
        ({"vllm": "0.5.0"}, {}, "fail", "vllm 0.5.0 is too old for verl 0.9.1, which was made with 0.24.0"),
        ({"torch": "2.13.0+cpu"}, {"cuda": None, "usable": False}, "fail", "torch 2.13.0+cpu is built for processors only"),
        (
            {},
            {"errors": {"flash_attn": "ImportError: undefined symbol"}},
            "fail",
            "flash_attn cannot be imported: ImportError",
        ),
        (
            {},
            {"usable": False},
            "fail",
            "torch 2.11.0+cu130 (CUDA 13.0) cannot use the GPUs with driver 550.1; CUDA 13 needs 580",
        ),
    ],
)
def test_packages(values, tmp_path, monkeypatch, versions, imports, state, said):
    monkeypatch.setattr(machine, "gpus", lambda: [GPU._replace(driver="550.1")])
    monkeypatch.setattr(machine, "installed", lambda _: True)
    monkeypatch.setattr(importlib.metadata, "version", (PACKAGES | versions).__getitem__)
    asked: list[str] = []

    def imported(packages: list[str]) -> Imports:
        asked.extend(packages)
        return FINE.model_copy(update=imports)

    monkeypatch.setattr(machine, "try_imports", imported)
    prepared = context(tmp_path, values | {f"{MODEL}.override_config.attn_implementation": "flash_attention_2"})
    found = check("packages", prepared)
    assert found[0] == state and said in found[1], found
    if versions.get("vllm") is None and versions.get("flash-attn") is None:
        assert {"torch", "vllm", "flash_attn"} <= set(asked)
    other = FINE.model_copy(update={"architectures": frozenset({"OtherForCausalLM"})})
    prepared.imports = other
    assert check("model", prepared)[1].endswith("vLLM does not know the architecture Qwen3ForCausalLM")


def test_packages_are_imported_in_a_process_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_engine.py").write_text("print('hello')\nraise ImportError('libcudart.so.13: cannot\\nopen')\n")
    (tmp_path / "rude_engine.py").write_text("import os, sys\nprint('bye', file=sys.stderr, flush=True)\nos._exit(7)\n")
    # Of what the process needs of torch itself, which takes seconds to load.
    (tmp_path / "torch.py").write_text(
        "class version: cuda = None\nclass cuda: is_available = staticmethod(lambda: False)\n"
    )
    (tmp_path / "vllm.py").write_text(
        "class ModelRegistry:\n    @staticmethod\n    def get_supported_archs():\n        return ['Qwen3ForCausalLM']\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = try_imports(["broken_engine", "json", "vllm"])
    assert found.errors == {"broken_engine": "ImportError: libcudart.so.13: cannot open"}
    assert found.architectures == {"Qwen3ForCausalLM"} and not found.usable
    assert try_imports(["rude_engine"]).errors == {"rude_engine": "the process ended with 7: bye"}


def test_a_run_on_gpus_begins_with_the_checks_that_take_seconds(values, tmp_path, monkeypatch):
    def start(changed: dict[str, Any]) -> tuple[int, str]:
        with (tmp_path / "said.txt").open("w") as file:
            console = Console(record=True, width=200, file=file)
            return check_start(*configured(values | changed), console), console.export_text()

    monkeypatch.setattr(machine, "installed", lambda package: package != "vllm")
    code, said = start({"deltamem.sessions": "/nowhere/sessions.jsonl"})
    assert code == 2 and "vLLM is not installed" in said and "preflight=skip" in said
    assert "/nowhere" not in said, "the data are the first stages' own matter"
    monkeypatch.setattr(machine, "installed", lambda _: True)
    monkeypatch.setattr(importlib.metadata, "version", PACKAGES.__getitem__)
    monkeypatch.setattr(machine, "try_imports", lambda _: FINE)
    assert start({}) == (0, "")
    code, said = start({f"{ACTOR}.ppo_max_token_len_per_gpu": 50_000_000})
    assert code == 0 and "warn" in said and "GPU memory" in said, "an estimate keeps no run from starting"
    monkeypatch.setattr(machine, "gpus", list)
    code, said = start({})
    assert code == 2 and "no GPU found" in said
    assert start({"deltamem.cpu_threads": 2}) == (0, ""), "a run on the CPU"


def broken(old: str, new: str) -> str:
    assert old in CHAT_TEMPLATE
    return CHAT_TEMPLATE.replace(old, new)


@pytest.mark.parametrize(
    ("template", "thinking", "switch", "said"),
    [
        (CHAT_TEMPLATE, True, True, None),
        (CHAT_TEMPLATE, False, True, None),
        (QWEN3, True, True, None),
        (QWEN3, False, False, None),
        (OPENED, True, True, None),
        (QWEN3, True, False, "the episode asks for thinking"),
        (QWEN3, False, True, "needs data.apply_chat_template_kwargs.enable_thinking=false"),
        (None, True, True, "no chat template; name one in"),
        (broken("message.content + '</tool_", "'</tool_"), True, True, "leaves out what the tool answers"),
        (broken("{%- for message", "{{ messages|length }}{%- for message"), True, True, "cannot render an episode"),
        (broken("+ message.content + '<|im", f"+ {LAST} + '<|im"), True, True, "append-only"),
        (broken("message.role == 'tool'", "message.rolle.x == 'tool'"), True, True, "cannot render an episode"),
    ],
)
def test_chat_templates(values, tmp_path, template, thinking, switch, said):
    options = {"deltamem.episode.thinking": thinking, "data.apply_chat_template_kwargs.enable_thinking": switch}
    prepared = context(tmp_path, values | options)
    prepared.tokenizer = copy.copy(qwen_tokenizer(QWEN3))
    prepared.tokenizer.chat_template = template
    state, found = check("chat template", prepared)
    assert state == ("ok" if said is None else "fail") and (said or "") in found, found


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda lines: [*lines, '{"person_id": 3}'], "line 11"),
        (lambda lines: [*lines, to_json_line(labelled_session(0, "heldout"))], "1 persons are trained on and held out, p0"),
        (lambda lines: [*lines, lines[0]], "1 sessions are there twice"),
        (lambda lines: lines[-5:], "fewer than data.train_batch_size=4"),
    ],
)
def test_bad_rows(values: dict[str, Any], tmp_path: Path, edit: Callable[[list[str]], list[str]], said: str) -> None:
    path = Path(values["deltamem.sessions"])
    path.write_text("".join(f"{line}\n" for line in edit(path.read_text().splitlines())))
    state, found = check("data", context(tmp_path, values))
    assert state == "fail" and said in found


def test_gpus_are_asked_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    row = "NVIDIA A100-SXM4-80GB, 81920, 580.95, 512"
    tool.write_text(f"#!/bin/sh\necho '0, {row}'\necho '1, {row}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus() == [Gpu("NVIDIA A100-SXM4-80GB", 81920 << 20, "580.95", 512 << 20)] * 2
    for visible, count in (("1", 1), ("", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert len(gpus()) == count
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert gpus() == []


def test_a_check_that_breaks_is_a_failed_one_and_what_several_need_is_explained_once(values, tmp_path):
    def broken_check(_: Context) -> Any:
        raise ZeroDivisionError("division by zero")

    rows = run_checks(context(tmp_path, values), [Check("odd", broken_check)])
    assert finding("odd", rows) == ("fail", "the check itself broke: ZeroDivisionError: division by zero")
    prepared = context(tmp_path, values)
    prepared.tokenizer = copy.copy(qwen_tokenizer(QWEN3))
    prepared.tokenizer.chat_template = None
    rows = run_checks(
        prepared, [entry for entry in CHECKS if entry.name in ("chat template", "lengths", "batches", "GPU memory")]
    )
    failed = [(name, found.found.partition(";")[0]) for name, found in rows.items() if found.state == "fail"]
    told = "the tokenizer has no chat template"
    assert failed == [("chat template", told), ("lengths", "needs what 'chat template' did not find")]
    both = [entry for entry in CHECKS if entry.name in ("model", "tokenizer")]
    rows = run_checks(context(tmp_path, values | {f"{MODEL}.path": "Nobody/Nothing-1B"}), both)
    assert finding("tokenizer", rows) == ("fail", "needs what 'model' did not find")


def test_a_warm_start_must_fit(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = CONFIGS / "warm_start" / "pretrained.yaml"
    # Of fewer tokens: what is planned, and tokenized for it, grows with them.
    options = {**yaml.safe_load(group.read_text(encoding="utf-8"))["deltamem"]["warm_start"], "tokens": 1024}

    def found(gpu: int = 24 << 30, memory: int = 8 << 30, threads: int | None = None, **changed: Any) -> tuple[str, str]:
        monkeypatch.setattr(machine, "gpus", lambda: [GPU._replace(memory=gpu)])
        monkeypatch.setattr(machine, "memory", lambda: memory)
        given = {"deltamem.warm_start": options | changed, "deltamem.cpu_threads": threads}
        return check("warm start", context(tmp_path, values | given))

    assert check("warm start", context(tmp_path, values)) == ("ok", "none")
    state, said = found()
    assert state == "ok" and said.startswith("60 steps on 2 x 1024 tokens; trajectories of up to ")
    assert "deltamem.warm_start.tokens has 50" in found(tokens=50)[1]
    assert found(gpu=1 << 20)[1].endswith(": set deltamem.warm_start.lora_rank or deltamem.warm_start.layers")
    # The weights leave room, 1024 tokens do not.
    for keeps in (True, False):
        said = found(gpu=1_003_000_000, gradient_checkpointing=keeps)[1]
        assert "lower deltamem.warm_start.tokens" in said
        assert ("or set deltamem.warm_start.gradient_checkpointing=true" in said) is not keeps
    assert found(threads=2)[0] == "ok"
    assert "the machine has 1.0 MB" in found(memory=1 << 20, threads=2)[1]
    assert found(lora_rank=8)[0] == "ok"
    monkeypatch.setattr(machine, "installed", lambda package: package != "peft")
    assert found(lora_rank=8) == ("fail", "adapters need the package peft; install it with: pip install peft")
