"""Scripts of benchmarks: all can say what they do, and what needs a GPU must at least compose and fit together."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from types import ModuleType

import offline_people
import pytest

from deltamem.config import validated
from deltamem.episode import EpisodeConfig

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = (
    "against_mem0 embedding evaluation gpu haystacks ingest intent micro_batch opening plateau pretrained reward "
    "reward_options search serving synthesis training_step"
)


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts lie beside what they share."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def loaded(name: str) -> ModuleType:
    """A module of the benchmarks; most import torch."""
    return importlib.import_module(name)


def composed(plan: list[str]):
    """The configuration of a plan; unknown keys raise."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from deltamem.training.config import TrainSettings, register_search_path

    register_search_path()
    with initialize_config_dir(str(ROOT / "configs"), version_base=None):
        config = compose("train", [*plan, "deltamem.out=out"])
    OmegaConf.resolve(config)
    return config, validated(config.deltamem, TrainSettings)


@pytest.mark.parametrize("name", COMMANDS.split())
def test_a_script_imports_what_there_is_and_describes_itself(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "micro_batch":
        pytest.importorskip("verl")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 0 and "usage:" in capsys.readouterr().out
    assert f"{name}.py" in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8"), "a page quotes its figures"


def test_a_speed_plan_trains_the_published_size_on_one_gpu_and_saves_nothing() -> None:
    gpu_plan = loaded("gpu_plan")
    sizes = {"0.6b": 596_049_920, "8b": 8_190_735_360}
    assert {shape: gpu_plan.SHAPES[shape].parameters(151_936) for shape in sizes} == sizes
    run = gpu_plan.Run(Path("out"), "cuda", shape := "0.6b")
    plan = gpu_plan.speed_plan(run, steps=5, prompt_length=3072, turn_tokens=1024, prompts=None, attention="sdpa")
    config, settings = composed(plan)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    longest = config.data.max_prompt_length + config.data.max_response_length
    assert (config.trainer.device, config.trainer.n_gpus_per_node, config.trainer.save_freq) == ("cuda", 1, -1)
    assert (
        settings.cpu_threads is None and not settings.limits.fit and settings.turn_tokens < config.data.max_response_length
    )
    assert rollout.name == "vllm" and rollout.max_model_len >= longest and actor.ppo_max_token_len_per_gpu >= longest
    assert actor.ppo_mini_batch_size == config.data.train_batch_size == gpu_plan.SHAPES[shape].prompts


def test_a_model_from_scratch_is_learnt_on_the_gpu() -> None:
    gpu_plan = loaded("gpu_plan")
    run = gpu_plan.Run(Path("out"), "cuda", "100m", extra=("trainer.test_freq=7",))
    config, settings = composed(
        gpu_plan.learning_plan(run, people=400, warm_steps=50, max_steps=90, every=10, attention="sdpa")
    )
    assert settings.model is not None and settings.warm_start is not None and settings.synth is not None
    assert settings.warm_start.device == "cuda" and settings.model.layers == gpu_plan.SHAPES["100m"].layers
    assert settings.data.skip_people < settings.synth["people"] and config.trainer.test_freq == 7
    assert config.actor_rollout_ref.model.external_lib is None and config.actor_rollout_ref.rollout.name == "vllm"


def test_the_plan_trains_a_pretrained_model_on_one_gpu() -> None:
    run = loaded("gpu_plan").Run(Path("out"), "cuda", "tiny", None, ("data.train_batch_size=16",))
    overrides = loaded("pretrained").plan(run, Path("smol"), people=300, steps=24, lr=2e-5, max_steps=40, every=8)
    config, settings = composed(overrides)
    assert settings.warm_start is not None and (settings.warm_start.kind, settings.warm_start.steps) == ("pretrained", 24)
    assert settings.model is None and not settings.episode.thinking and settings.data.skip_people == 100
    assert config.actor_rollout_ref.model.path == "smol" and config.trainer.test_freq == 8
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == 16 and config.trainer.n_gpus_per_node == 1


def test_every_id_of_the_model_has_one_entry_in_the_tokenizer(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    gpu_plan = loaded("gpu_plan")
    sessions = offline_people.labelled(4, 3)
    shape = gpu_plan.Shape(64, 1, 2, 1, 32, 64, vocabulary=3000)
    longest = gpu_plan.make_model(tmp_path, shape, sessions, EpisodeConfig(), "cpu")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert sorted(tokenizer.get_vocab().values()) == list(range(3000)) and len(tokenizer) == 3000
    assert tokenizer.decode([2999]) == "<|unused_2999|>" and longest > 100


@pytest.mark.parametrize(
    ("rewards", "reached"),
    [
        ([0.3, 0.4, 0.5], False),
        ([0.3, 0.5, 0.5, 0.49, 0.502], True),
        ([0.5, 0.4, 0.4, 0.52], False),
        ([0.5, 0.5, 0.5], False),
    ],
)
def test_a_plateau_is_no_rise_over_the_best_before(tmp_path: Path, rewards: list[float], reached: bool) -> None:
    lines = [f'{{"step": {step}, "heldout/reward": {reward}}}\n' for step, reward in enumerate(rewards)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    assert loaded("gpu").Plateau(tmp_path, patience=3, rise=0.01).reached() is reached


def test_attention_and_log_probs_without_flash_attn() -> None:
    import torch

    torch_varlen = loaded("torch_varlen")
    ends, longest = torch_varlen.lengths(torch.tensor([[0, 1, 2, 0, 0, 1, 2, 3]]))
    assert ends.tolist() == [0, 3, 4, 8] and longest == 4
    torch.manual_seed(0)
    logits, labels = torch.randn(70, 50).bfloat16(), torch.randint(50, (70,))
    weights = torch.randn(70)
    exact = logits.float().requires_grad_()
    expected = torch.log_softmax(exact, -1).gather(-1, labels[:, None])[:, 0]
    (expected * weights).sum().backward()
    ours = logits.clone().requires_grad_()
    found = torch_varlen.logprobs(ours, labels)
    (found * weights).sum().backward()
    assert found.dtype == torch.float32 and torch.allclose(found, expected, atol=1e-5)
    assert ours.grad is not None and exact.grad is not None
    assert torch.allclose(ours.grad.float(), exact.grad, atol=2e-2)
