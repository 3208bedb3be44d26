"""Every experiment, ablation and variant against verl's own keys, validation and dataclasses."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from packaging.specifiers import SpecifierSet
from preflight_cases import CONFIGS, composed, placed, read_once, resolved, whole
from rich.console import Console

from deltamem.config import validated
from deltamem.errors import DeltaMemError
from deltamem.training.config import (
    SupervisedConfig,
    TrainSettings,
    check_options_of_verl,
    folder_of_package,
    read_by_verl,
    unknown_keys,
)
from deltamem.training.launch import leaves
from deltamem.training.pipeline import stages
from deltamem.training.preflight import Context, check_batches
from eval.sweep.study import studies


def listed(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


EXPERIMENTS = listed("experiment")
ON_CPU = {"tiny": 1, "smollm135m": 2, "smollm135m_everyday": 2}
"""Experiments that are cut to two cores, and how many memories a search finds."""
GROUPS = {"smollm135m": 4, "smollm135m_everyday": 4}
"""Experiments whose groups are smaller than the paper's 8."""
CHANGES = [(group, name) for group in ("ablation", "algorithm", "variant") for name in listed(group)]


def test_what_is_read_once_is_the_file_that_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "same.yaml"
        path.write_text(f"x: {name}")
        monkeypatch.chdir(tmp_path / name)
        with path.open() as file:
            assert [read_once(given).x for given in (path, str(path), file, Path("same.yaml"))] == [name] * 4


def accepted(config: DictConfig, *, new_to_verl: bool = True) -> DictConfig:
    """Refuse a composition that verl or our settings refuse, or that has a key nobody reads."""
    settings = validated(config.deltamem, TrainSettings)
    settings.episode.config()
    assert unknown_keys(config) == []
    if new_to_verl:
        read_by_verl(config.copy())
    found = check_batches(Context(config, settings, Path()))
    several = config.actor_rollout_ref.actor.ppo_mini_batch_size < config.data.train_batch_size
    assert isinstance(found, str) or (several and "4 updates a step are off-policy" in found.found), "no other warning"
    return config


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiments(experiment: str) -> None:
    config = accepted(whole(f"+experiment={experiment}"))
    assert config.deltamem.out == f"runs/{experiment}"
    assert config.trainer.experiment_name == experiment
    model = config.actor_rollout_ref
    assert config.trainer.v1.sampler.sampler_kwargs.train_rollouts == model.rollout.n
    # The paper's settings. One update a step: strictly on-policy, as far as it says.
    assert config.data.train_batch_size == model.actor.ppo_mini_batch_size
    assert config.algorithm.adv_estimator == "grpo"
    assert (model.rollout.n, model.rollout.temperature, model.actor.clip_ratio) == (GROUPS.get(experiment, 8), 1.0, 0.2)
    assert (config.deltamem.episode.k, config.deltamem.reward.tau) == (ON_CPU.get(experiment, 5), 0.75)
    if experiment not in ON_CPU:
        assert config.deltamem.limits.fit
        assert config.data.train_batch_size == 64
        assert model.rollout.max_model_len == config.data.max_prompt_length + config.data.max_response_length
        # All steps of the paper's 6,750 sessions end in a checkpoint.
        assert 6750 // 64 % config.trainer.save_freq == 0


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_first_step_trains(experiment: str) -> None:
    """verl's schedules begin at 0 where there is a warm-up, unless told otherwise: a step whose rollouts are for nothing."""
    import torch
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    config = whole(f"+experiment={experiment}")
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=(rate := config.actor_rollout_ref.actor.optim.lr))
    settings = omega_conf_to_dataclass(config.actor_rollout_ref.actor.optim)
    settings.total_training_steps = 105
    schedule = FSDPEngine._build_lr_scheduler(SimpleNamespace(rank=1, optimizer_config=settings), optimiser)
    rates = []
    for _ in range(10):
        rates += schedule.get_last_lr()
        optimiser.step()
        schedule.step()
    assert 0.1 * rate < rates[0] <= max(rates) <= rate
    if experiment in ("qwen4b", "qwen8b"):
        assert set(rates) == {1e-6}, "the one rate of table 5"


@pytest.mark.parametrize(("group", "name"), CHANGES)
def test_ablations_and_variants(group: str, name: str) -> None:
    base, file = whole("+experiment=qwen8b"), OmegaConf.load(CONFIGS / group / f"{name}.yaml")
    if "defaults" in file:
        config = whole("+experiment=qwen8b", f"+{group}={name}")
    else:  # as Hydra merges it, which the next test but one shows
        changes = {key: file[key] for key in file if key != "hydra"}
        config = resolved(OmegaConf.merge(composed("+experiment=qwen8b"), changes))
    accepted(config, new_to_verl=file.keys() - {"deltamem", "defaults", "hydra"} != set())
    assert config.deltamem.out.startswith("runs/qwen8b_")
    assert config.deltamem.out == f"runs/{config.trainer.experiment_name}"
    if name != "tau":  # whose value comes from the command line
        model = ("actor", "model")
        pairs = [(base[key], config[key]) for key in ("deltamem", "algorithm")]
        pairs += [(base.actor_rollout_ref[key], config.actor_rollout_ref[key]) for key in model]
        assert any(different(*pair) for pair in pairs)


def test_any_experiment_may_have_a_warm_start() -> None:
    config = accepted(whole("+experiment=qwen8b", "+warm_start=pretrained"), new_to_verl=False)
    settings = validated(config.deltamem, TrainSettings)
    assert isinstance(settings.warm_start, SupervisedConfig)
    assert config.actor_rollout_ref.model.path == "Qwen/Qwen3-8B"


def different(one: DictConfig, other: DictConfig) -> bool:
    # These differ by the name of the run alone.
    return any(one[key] != other[key] for key in one if key not in ("name", "out", "embedder", "rollout"))


def test_an_ablation_and_a_variant_together() -> None:
    config = whole("+experiment=qwen4b", "+ablation=tau", "deltamem.reward.tau=0.5", "+variant=no_thinking")
    assert config.deltamem.out == "runs/qwen4b_tau_0.5_no_thinking"
    assert config.deltamem.reward.tau == 0.5
    assert config.data.apply_chat_template_kwargs.enable_thinking is False
    assert config.deltamem.limits.thinking_tokens == 0
    assert config.deltamem.episode.thinking is False


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("name", listed("algorithm"))
def test_every_experiment_takes_every_algorithm(experiment: str, name: str) -> None:
    config = whole(f"+experiment={experiment}", f"+algorithm={name}")
    check_options_of_verl(config)
    accepted(config, new_to_verl=False)
    actor, batch = config.actor_rollout_ref.actor, config.data.train_batch_size
    assert batch % actor.ppo_mini_batch_size == 0 and not actor.use_kl_loss
    assert (actor.loss_scale_factor is None) == (actor.loss_agg_mode != "seq-mean-token-sum-norm")
    if (overlong := config.deltamem.overlong) is not None:
        assert overlong.buffer <= config.deltamem.turn_tokens // 2, (
            "else every turn would lose reward, and each group have spread"
        )


def test_demanding_data_bring_their_reward() -> None:
    base, config = whole("+experiment=qwen8b"), whole("+experiment=qwen8b", "+variant=demanding")
    assert (base.deltamem.reward.stale_weight, config.deltamem.reward.stale_weight) == (1.0, 3.0)
    assert config.deltamem.reward.weigh_new_keywords and not config.deltamem.reward.match_overwritten
    validated(config.deltamem, TrainSettings).scorer()


def test_the_8b_experiments_differ_where_they_should() -> None:
    base, lora, nodes = (whole(f"+experiment={name}") for name in ("qwen8b", "qwen8b_lora", "qwen8b_2node"))
    assert (base.actor_rollout_ref.actor.optim.lr, base.trainer.total_epochs) == (1e-6, 1), "the paper's"
    assert lora.actor_rollout_ref.model.lora_rank > 0
    assert lora.trainer.n_gpus_per_node == 1
    assert nodes.trainer.nnodes == 2
    assert nodes.actor_rollout_ref.actor.fsdp_config.fsdp_size == nodes.trainer.n_gpus_per_node == 8
    assert nodes.actor_rollout_ref.actor.optim == base.actor_rollout_ref.actor.optim


def test_what_is_not_saved_is_not_exported(tmp_path: Path) -> None:
    (tmp_path / "sessions.jsonl").touch()

    def planned(save_freq: int) -> dict[str, Any]:
        folders = ("deltamem.out=/PLACE/run", "deltamem.sessions=/PLACE/sessions.jsonl")
        made = placed(tmp_path, "+experiment=tiny", *folders, values={"trainer.save_freq": save_freq})
        return {stage.name: stage.inputs for stage in stages(*made, Console())}

    often, seldom, never = planned(2), planned(400), planned(-1)
    assert list(often) == ["data", "embeddings", "model", "warm_start", "grpo", "export"]
    assert list(never) == [name for name in often if name != "export"]
    assert often == seldom, "how often a run saves is not what it computes"
    assert often["grpo"] != never["grpo"], "a run that saved nothing must be made again for an export"


def table(heading: str) -> list[list[str]]:
    """The cells of a table of docs/training.md that begins with these headings."""
    page = (CONFIGS.parent / "docs" / "training.md").read_text(encoding="utf-8")
    lines = page.partition(heading)[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" |")] for line in lines]


def test_the_table_of_settings_is_true() -> None:
    config, rows = whole("+experiment=qwen8b"), table("| key (`qwen8b`) |")
    assert len(rows) > 30
    for key, value, _ in rows:
        assert str(OmegaConf.select(config, key, throw_on_missing=True)) == value, key


def test_nothing_that_the_paper_names_differs_in_its_experiments() -> None:
    rows = table("| the paper | where | key | value |")
    named = [number for text, where, *_ in rows if where == "table 5" for number in re.findall(r"[\d.e-]*\d", text)]
    assert list(map(float, named)) == [1e-6, 64, 8, 1.0, 0.2, 5], "all of table 5 but the one epoch"
    for experiment, model in (("qwen8b", "Qwen/Qwen3-8B"), ("qwen4b", "Qwen/Qwen3-4B")):
        config = whole(f"+experiment={experiment}")
        for text, where, key, value in rows:
            found = str(OmegaConf.select(config, key, throw_on_missing=False))
            assert found == (model if key.endswith("model.path") else value), key
            if where == "table 5" and (number := re.search(r"[\d.e-]*\d", text)):
                assert float(found) == float(number[0]), key


def test_what_is_recommended_and_nothing_else_differs_from_the_paper() -> None:
    configs = (whole("+experiment=qwen8b", *more) for more in ((), ("+variant=recommended",)))
    before, after = (dict(leaves(OmegaConf.to_container(config))) for config in configs)
    changed = {key: [str(before[key]), str(value)] for key, value in after.items() if before[key] != value}
    changed = {key: values for key, values in changed.items() if "_recommended" not in values[1]}  # but for its name
    del changed["critic.loss_agg_mode"]  # which no critic reads
    assert changed == {key: values for key, *values, _, _ in table("| key | `qwen8b` | `+variant=recommended` |")}


def test_what_may_make_a_step_cheaper_is_accepted_by_verl() -> None:
    page = (CONFIGS.parent / "docs" / "training.md").read_text(encoding="utf-8")
    table = page.partition("## Towards a cheaper step")[2].partition("\n## ")[0]
    rows = [line.split("|")[2].strip().strip("`") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 7
    base = whole("+experiment=qwen8b")
    plain = [one for row in rows if "+" not in row for one in row.split()]
    together = accepted(OmegaConf.merge(base, OmegaConf.from_dotlist(plain)))
    for key, value in (one.split("=") for one in plain):
        assert str(OmegaConf.select(together, key)).lower() == value and OmegaConf.select(base, key) != value, key
    for row in rows:
        if "+" in row:  # which Hydra has to compose
            assert accepted(whole("+experiment=qwen8b", *row.split())) != base, row


def test_pythons_that_verl_refuses_are_refused() -> None:
    project = tomllib.loads((CONFIGS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ours, verls = SpecifierSet(project["requires-python"]), SpecifierSet(metadata("verl")["Requires-Python"])
    found = [f"3.{minor}" for minor in range(9, 16) if ours.contains(f"3.{minor}")]
    assert found == ["3.11", "3.12"] and all(map(verls.contains, found))


def test_the_folder_of_a_package() -> None:
    assert Path(folder_of_package("verl"), "trainer", "config", "ppo_trainer.yaml").is_file()
    with pytest.raises(DeltaMemError, match="needs the package no_such_engine; install it with"):
        folder_of_package("no_such_engine")


def test_what_a_sweep_evaluates_is_where_its_training_writes() -> None:
    points = {point.train: point for study in studies().values() for point in study.points.values() if point.train}
    assert len(points) >= 10
    for train, point in points.items():
        if point.x not in (None, 0.0, 0.75):
            continue  # to compose takes a second
        config = whole(*train.split())
        assert config.deltamem.out == f"runs/{point.policies[0]}"
        assert point.x is None or point.x == config.deltamem.reward.tau
