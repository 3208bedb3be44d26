"""The exported policy: weights as trained, everything a server needs, and a card that says what it is."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder
from hub_cases import Hub
from hydra import compose, initialize_config_dir
from lazy import lazy, names
from omegaconf import OmegaConf
from training_cases import write_sessions

from deltamem.config import CONFIGS
from deltamem.episode import EpisodeSettings, load_episode_config, load_trained
from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256
from deltamem.training import data as dataset
from deltamem.training.checkpoints import write_manifest
from deltamem.training.model_card import model_card
from eval import heldout

torch = lazy("torch")
dist = lazy("torch.distributed")
LoraConfig, get_peft_model = names("peft", "LoraConfig get_peft_model")
init_device_mesh = names("torch.distributed.device_mesh", "init_device_mesh")
DTensor, Replicate, Shard = names("torch.distributed.tensor", "DTensor Replicate Shard")
FakeStore = names("torch.testing._internal.distributed.fake_pg", "FakeStore")
AutoModelForCausalLM, AutoTokenizer, GenerationConfig = names(
    "transformers", "AutoModelForCausalLM AutoTokenizer GenerationConfig"
)
export_run, main = names("deltamem.training.export", "export_run main")

EPISODE: dict[str, Any] = {
    "system_prompt": "manager_compact",
    "session_prompt": "session_compact",
    "k": 3,
    "max_turns": 4,
    "memory_fields": ["time", "text", "id"],
    "thinking": True,
    "max_invalid_calls": 0,
}
CHECKPOINT = Path("grpo/checkpoints/global_step_2")


def make_run(folder: Path, model: Path, state: dict[str, torch.Tensor]) -> Path:
    """A run folder with one complete checkpoint of one rank."""
    sessions = write_sessions(folder / "sessions.jsonl", train=5, heldout=2)
    episode = EpisodeSettings.model_validate(EPISODE).config()
    dataset.export(sessions, folder / "data", episode, train_sessions=None, heldout_sessions=None, skip_people=0, seed=1)
    config = {
        "deltamem": {"model": None, "sessions": str(sessions), "episode": EPISODE, "seed": 1, "reward": {"tau": 0.75}},
        "actor_rollout_ref": {"model": {"path": str(model), "lora_rank": 4}, "rollout": {"n": 8}},
        "data": {"max_prompt_length": 320, "max_response_length": 448, "train_batch_size": 4},
        "trainer": {"experiment_name": "tiny", "total_training_steps": 36},
    }
    config["deltamem"] |= {"embedder": {"name": "/models/Qwen3-Embedding-0.6B"}, "turn_tokens": 200}
    (folder / "grpo").mkdir()
    OmegaConf.save(OmegaConf.create(config), folder / "grpo" / "config.yaml")
    lines = [{"step": 0, "heldout/reward": 0.25}, {"step": 2, "train/reward": 0.5}, {"step": 3, "train/reward": 0.9}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    checkpoint = folder / CHECKPOINT
    actor = checkpoint / "actor"
    shutil.copytree(model, actor / "huggingface", ignore=shutil.ignore_patterns("*.safetensors"))
    GenerationConfig(do_sample=True, temperature=0.6, top_p=0.95, eos_token_id=2).save_pretrained(actor / "huggingface")
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    torch.save(state, actor / "model_world_size_1_rank_0.pt")
    write_manifest(checkpoint, ["model"], {})
    return folder


def logits(model: Any) -> Any:
    return model(torch.tensor([[5, 6, 7, 8, 9, 10]])).logits


def trained(model: Path) -> Any:
    """The model after some training."""
    actor = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in actor.parameters():
            weight.add_(torch.randn_like(weight) * 0.02)
    return actor.eval()


def test_a_policy_is_the_trained_actor_with_all_that_a_server_needs(tmp_path: Path, model_folder: Path) -> None:
    actor = trained(model_folder)
    run = make_run(tmp_path, model_folder, actor.state_dict())
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "of_an_older_export").write_text("")
    export_run(run, policy)
    loaded = AutoModelForCausalLM.from_pretrained(policy).eval()
    assert loaded.dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(logits(loaded), logits(actor))
    assert loaded.generation_config.temperature == 0.6
    tokenizer = AutoTokenizer.from_pretrained(policy)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(model_folder).chat_template
    assert load_episode_config(policy) == EpisodeSettings.model_validate(EPISODE).config()
    assert load_trained(policy).embedder == "Qwen3-Embedding-0.6B", "a folder of this machine says nothing to others"
    assert load_trained(policy).turn_tokens == 200
    assert not (policy / "of_an_older_export").exists()
    assert not list(tmp_path.glob(".*.partial"))


def test_the_card_tells_what_the_policy_is(tmp_path: Path, model_folder: Path) -> None:
    run = make_run(tmp_path, model_folder, {})
    config = OmegaConf.load(run / "grpo" / "config.yaml")

    def card(**changed: object) -> tuple[Any, str]:
        """Front matter and text after these keys of the configuration have changed."""
        for key, value in changed.items():
            OmegaConf.update(config, key.replace("__", "."), value)
        _, front, body = model_card(run, config, 2, "policy").split("---\n", 2)
        return OmegaConf.create(front), body

    front, body = card()
    assert front.license == "unknown" and "base_model" not in front, "the name of a local folder says nothing to others"
    assert f"a folder named {model_folder.name}" in body and str(model_folder.parent) not in body
    assert file_sha256(tmp_path / "sessions.jsonl") in body
    assert f"| train.parquet | 5 | {file_sha256(tmp_path / 'data' / 'train.parquet')} |" in body
    assert "| held-out reward | 0.250 (step 0) | 0.250 (step 0) | 2 |" in body
    assert "0.900" not in body, "a later step is not this policy's"
    assert "--embedder Qwen3-Embedding-0.6B\n" in body and "checkpoint=policy sessions=FILE" in body
    assert "max_new_tokens=200\n" in body and "manager.checkpoint=policy manager.max_tokens=200\n" in body
    assert (
        "| steps of GRPO | 2 of 36 |" in body
        and "| weights trained by GRPO | LoRA of rank 4, added to the base |" in body
        and "--max-model-len 768\n" in body
        and "prompt manager_compact, sha256" in body
    )
    (base := run / "base").mkdir()
    (base / "README.md").write_text("---\nlicense: apache-2.0\ntags: [a]\n---\n# Base\n")
    front, body = card(deltamem__episode__thinking=False, actor_rollout_ref__model__path=str(base))
    assert """--default-chat-template-kwargs '{"enable_thinking": false}'""" in body
    assert front.license == "apache-2.0"
    assert card(actor_rollout_ref__model__path="Qwen/Qwen3-8B")[0].base_model == "Qwen/Qwen3-8B"


def test_lora_matrices_are_added_to_the_base(tmp_path: Path, model_folder: Path) -> None:
    lora = LoraConfig(r=4, lora_alpha=32, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    actor = get_peft_model(trained(model_folder), lora)
    with torch.no_grad():
        for name, weight in actor.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    run = make_run(tmp_path, model_folder, actor.state_dict())
    meta = run / CHECKPOINT / "actor" / "lora_train_meta.json"
    meta.write_text('{"r": 4, "lora_alpha": 32, "task_type": "CAUSAL_LM"}')
    export_run(run, tmp_path / "policy")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "policy").eval()
    with torch.no_grad():
        merged, base = logits(loaded), logits(trained(model_folder))
        assert torch.allclose(merged, logits(actor.eval()), atol=1e-5)
        assert not torch.allclose(merged, base, atol=1e-2)

    only = {name: value for name, value in actor.state_dict().items() if "lora_" in name}
    torch.save(only, meta.parent / "model_world_size_1_rank_0.pt")
    write_manifest(meta.parents[1], ["model"], {})
    start = run / "start"
    trained(model_folder).save_pretrained(start)
    config = OmegaConf.load(run / "grpo" / "config.yaml")
    # The run's folder was moved after it.
    OmegaConf.update(config, "deltamem.out", "/elsewhere/run")
    OmegaConf.update(config, "actor_rollout_ref.model.path", "/elsewhere/run/start")
    OmegaConf.save(config, run / "grpo" / "config.yaml")
    export_run(run, tmp_path / "only")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "only").eval()
    with torch.no_grad():
        assert torch.allclose(logits(loaded), merged, atol=1e-5), "with the matrices alone the start is read"

    # The model's path only contains the one that the run had.
    (tmp_path / "elsewhere" / "run").mkdir(parents=True)
    start = Path(shutil.move(start, tmp_path / "elsewhere" / "run" / "start"))
    OmegaConf.update(config, "actor_rollout_ref.model.path", str(start))
    OmegaConf.save(config, run / "grpo" / "config.yaml")
    export_run(run, tmp_path / "only")

    shutil.rmtree(start)
    with pytest.raises(DeltaMemError, match="only LoRA matrices are there, and the model that they belong to"):
        export_run(run, tmp_path / "only")
    assert (tmp_path / "only" / "model.safetensors").is_file(), "the export before stays"


def write_shards(actor: Path, state: dict[str, torch.Tensor], ranks: int, copies: int) -> None:
    """The model's file of every rank, sharded as FSDP2 does; with `copies` on a mesh of two dimensions."""
    world = ranks * copies
    shape, names = ((copies, ranks), ("ddp", "fsdp")) if copies > 1 else ((ranks,), ("fsdp",))
    for rank in range(world):
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
            shard = {}
            for name, tensor in state.items():
                local = [*tensor.chunk(ranks), *[tensor[:0]] * ranks][rank % ranks].clone()
                placements = [*[Replicate()] * (copies > 1), Shard(0)]
                whole = {"run_check": False, "shape": tensor.shape, "stride": tensor.stride()}
                shard[name] = DTensor.from_local(local, mesh, placements, **whole)
            torch.save(shard, actor / f"model_world_size_{world}_rank_{rank}.pt")
        finally:
            dist.destroy_process_group()
    (actor / "model_world_size_1_rank_0.pt").unlink()
    (actor / "fsdp_config.json").write_text(f'{{"FSDP_version": 2, "world_size": {world}}}')
    write_manifest(actor.parent, ["model"], {})


@pytest.mark.parametrize(("ranks", "copies"), [(3, 1), (2, 2)])
def test_shards_of_several_ranks_are_put_together(tmp_path: Path, model_folder: Path, ranks: int, copies: int) -> None:
    actor = trained(model_folder)
    run = make_run(tmp_path, model_folder, actor.state_dict())
    write_shards(run / CHECKPOINT / "actor", actor.state_dict(), ranks, copies)
    export_run(run, tmp_path / "policy")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "policy").eval()
    with torch.no_grad():
        assert torch.equal(logits(loaded), logits(actor))


def test_a_checkpoint_is_exported_by_command(tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, model_folder, trained(model_folder).state_dict())
    assert main([str(run), "--step", "2", "--out", str(tmp_path / "new"), "--dtype", "bfloat16"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'new'}: step 2\n"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "new").dtype == torch.bfloat16
    for folder, options, said in (
        (run, ["--step", "2", "--out", "new"], "is there already"),
        (run, ["--step", "3", "--out", "other"], r"there are those of steps \[2\]"),
        (run / "data", ["--out", "other"], "no complete checkpoint to export"),
    ):
        with pytest.raises(DeltaMemError, match=said):
            main([str(folder), *options[:-1], str(tmp_path / options[-1])])
    (run / "grpo" / "config.yaml").unlink()
    with pytest.raises(DeltaMemError, match="expected the folder of a training run"):
        main([str(run), "--out", str(tmp_path / "other")])
    assert not (tmp_path / "other").exists()
    with pytest.raises(SystemExit):
        main([str(run), "--step", "best of all", "--out", str(tmp_path / "other")])


def test_the_best_checkpoint_is_exported_and_the_newest_on_request(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, model_folder, trained(model_folder).state_dict())
    newest = run / CHECKPOINT.parent / "global_step_4"
    shutil.copytree(run / CHECKPOINT, newest)
    write_manifest(newest, ["model"], {})
    for step in ("best", "newest", "2"):
        assert main([str(run), "--step", step, "--out", str(tmp_path / f"plain_{step}")]) == 0
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": step, "heldout/reward": 1.0 / step}) + "\n" for step in (2, 4))
    assert main([str(run), "--out", str(tmp_path / "best")]) == 0
    exported = [line.rpartition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert exported == ["4", "4", "2", "2"], "the newest where no step was validated"
    flatters = "Of 2 validated steps this one has the highest held-out reward"
    assert flatters in (tmp_path / "best" / "README.md").read_text()
    assert flatters not in model_card(run, OmegaConf.load(run / "grpo" / "config.yaml"), 4, "policy")


def test_what_a_warm_start_made_is_exported_before_any_grpo(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, model_folder, {})
    (run / "grpo").rename(run / "warm_start")
    shutil.rmtree(run / "warm_start" / "checkpoints")
    arguments = [str(run), "--step", "0", "--out", str(tmp_path / "policy")]
    with pytest.raises(DeltaMemError, match="step 0 is the model of a finished warm start"):
        main(arguments)
    folder, warm = run / "warm_start", trained(model_folder)
    warm.save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(folder / "model")
    config = OmegaConf.load(folder / "config.yaml")
    OmegaConf.update(config, "deltamem.warm_start", {"steps": 9, "layers": 2, "lora_rank": 3})
    OmegaConf.save(config, folder / "config.yaml")
    lines = [{"step": 1, "accuracy": 0.25}, {"step": 9, "accuracy": 0.5, "heldout/accuracy": 0.75}]
    (run / "warm_start.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DeltaMemError, match=r"no complete checkpoint .*--step 0 exports the model of the warm start"):
        main([str(run), "--out", str(tmp_path / "policy")])
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'policy'}: step 0\n"
    policy = tmp_path / "policy"
    with torch.no_grad():
        assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(policy).eval()), logits(warm))
    assert load_trained(policy).turn_tokens == 200
    card = (policy / "README.md").read_text()
    taught = "9 steps on target trajectories, supervised, the last 2 layers, LoRA of rank 3, added to the base"
    assert f"| warm start | {taught} |" in card
    assert "Fine-tuned on labels by" in card and "| steps of GRPO | none |" in card and "grpo" not in card.split("---")[1]
    assert "| deltamem.warm_start.steps | `9` |" in card and "clip_ratio" not in card, "nothing that was not done"
    assert "| share of tokens foretold | 0.250 (step 1) | 0.500 (step 9) |" in card and "0.750 (step 9)" in card
    assert main([*arguments[:-1], str(tmp_path / "again")]) == 0
    assert file_sha256(policy / "model.safetensors") == file_sha256(tmp_path / "again" / "model.safetensors"), (
        "can be measured"
    )


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        # Its own transfer of large files goes by other servers; the older one is plain HTTP.
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "secret")
        yield server


def test_a_policy_is_pushed_with_its_card_to_a_repository_that_is_private(
    tmp_path: Path, model_folder: Path, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    run, policy = make_run(tmp_path, model_folder, trained(model_folder).state_dict()), tmp_path / "policy"
    assert main([str(run), "--out", str(policy), "--push", "me/memory"]) == 0
    assert hub.created == [{"name": "memory", "organization": "me", "visibility": "private"}]
    assert hub.files == {path.name: path.read_bytes() for path in policy.iterdir()} and "README.md" in hub.files
    assert capsys.readouterr().out.splitlines()[-1] == f"{hub.url}/me/memory/commit/{'0' * 40}"


def test_what_a_hub_refuses_is_one_sentence(
    tmp_path: Path, model_folder: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, policy = make_run(tmp_path, model_folder, trained(model_folder).state_dict()), tmp_path / "policy"
    command = [str(run), "--out", str(policy), "--push"]
    with pytest.raises(DeltaMemError, match=r"--push a/b/c: Repo id must be"):
        main([*command, "a/b/c"])
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(DeltaMemError, match=r"--push me/memory: .*401"):
        main([*command, "me/memory"])
    assert not policy.exists(), "before anything is written"
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.full = True
    with pytest.raises(DeltaMemError, match=r"--push me/memory: .*403.*; .*policy is complete, push it with: hf upload"):
        main([*command, "me/memory"])
    assert (policy / "model.safetensors").is_file()


def test_the_card_shows_evaluations_of_these_weights_alone(tmp_path, model_folder, monkeypatch):
    monkeypatch.setattr(heldout, "load_embedder", lambda *given, **named: WordEmbedder())
    run = make_run(tmp_path, model_folder, trained(model_folder).state_dict())
    policy, sessions, own = tmp_path / "policy", tmp_path / "sessions.jsonl", tmp_path / "own"
    export_run(run, policy)
    before = (policy / "README.md").read_text()
    assert "Evaluations of these weights" not in before and "- Held-out people with intervals" in before
    overrides = [f"checkpoint={policy}", f"sessions={sessions}", f"out={own}", "max_new_tokens=8", "resamples=50"]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        assert heldout.main(compose("heldout", overrides)) == 0
    assert main([str(run), "--out", str(tmp_path / "card"), "--measured", str(own)]) == 0
    card = (tmp_path / "card" / "README.md").read_text()
    found = json.loads((own / "summary.json").read_text())
    reward = found["metrics"]["reward"]
    assert f"| this policy | {reward['estimate']:.3f} [{reward['low']:.3f}, {reward['high']:.3f}] |" in card
    assert "2 sessions of 2 people" in card and file_sha256(sessions)[:12] in card
    for name, probe in found["probes"].items():
        assert f"\n| {name.replace('_', ' ')}: {probe['description']}" in card
    assert "- LoCoMo: no run was given." in card and "- Held-out people with intervals" not in card
    found["provenance"]["checkpoint_sha256"] = dict.fromkeys(found["provenance"]["checkpoint_sha256"], "0" * 64)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "summary.json").write_text(json.dumps(found))
    for folder, said in (("other", "other: measured another model"), ("none", "none/summary.json: cannot be read")):
        arguments = [str(run), "--out", str(tmp_path / "new"), "--measured", str(own), str(tmp_path / folder)]
        with pytest.raises(DeltaMemError, match=said):
            main(arguments)
        assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".*.partial"))


def test_a_full_disk_leaves_nothing(tmp_path: Path, model_folder: Path) -> None:
    run = make_run(tmp_path, model_folder, trained(model_folder).state_dict())
    largest = max(path.stat().st_size for path in model_folder.iterdir() if path.suffix != ".safetensors")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 1000, hard))
    try:
        with pytest.raises(DeltaMemError, match="policy: the policy could not be written"):
            export_run(run, tmp_path / "policy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "policy").exists() and not list(tmp_path.glob(".*"))
