"""Checkpoints: complete or not, which may go, and the room that they need on the disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from checkpoint_cases import CONTENTS, write_checkpoint, write_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from deltamem.errors import DeltaMemError
from deltamem.training.checkpoints import (
    Space,
    best_complete,
    check_space,
    heldout_rewards,
    is_whole,
    latest_complete,
    metrics_of,
    remove_incomplete,
    remove_old,
    space_of,
    write_manifest,
)
from deltamem.training.resources import ModelShape

SHAPE = ModelShape(layers=2, hidden=64, heads=2, kv_heads=1, head_dim=32, mlp=128, vocabulary=500, tied=True)


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def space(
    folder: Path,
    *,
    lora_rank: int = 0,
    only_lora: bool = False,
    keep: int | None = 2,
    shards: int = -1,
    test: int = -1,
) -> Space:
    actor = {"checkpoint": {"save_lora_only": only_lora}, "fsdp_config": {"model_dtype": "bf16", "fsdp_size": shards}}
    trainer = {"default_local_dir": str(folder / "checkpoints"), "max_actor_ckpt_to_keep": keep, "test_freq": test}
    config = {
        "actor_rollout_ref": {"model": {"lora_rank": lora_rank}, "actor": actor},
        "trainer": trainer | {"nnodes": 2, "n_gpus_per_node": 8},
    }
    return space_of(OmegaConf.create(config), SHAPE)


def test_no_space_is_one_sentence_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need = SHAPE.parameters * (12 * 3 + 4)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**9, 0, need - 1))
    with pytest.raises(DeltaMemError, match="need about"):
        check_space(space(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**9, 0, need))
    check_space(space(tmp_path))


def test_what_is_counted(tmp_path: Path) -> None:
    assert [space(tmp_path, keep=keep).checkpoints for keep in (None, 1, 3)] == [2, 2, 4]
    assert space(tmp_path, keep=1, test=5).checkpoints == 3, "the best one, too"
    # Adapters are small; their base is counted where it is saved.
    assert space(tmp_path, lora_rank=4, only_lora=True).checkpoint == 12 * SHAPE.adapters(4) < 12 * SHAPE.parameters
    assert space(tmp_path, lora_rank=4).checkpoint == 12 * SHAPE.adapters(4) + 2 * SHAPE.parameters
    assert space(tmp_path, lora_rank=4).policy == 4 * SHAPE.parameters
    # Replicas of a sharded model (qwen8b_2node) are all saved.
    plain, adapters = space(tmp_path).checkpoint, 12 * SHAPE.adapters(4)
    assert [space(tmp_path, shards=count).checkpoint // plain for count in (1, 8, 16, 32)] == [16, 2, 1, 1]
    assert space(tmp_path, lora_rank=4, only_lora=True, shards=8).checkpoint == 2 * adapters
    # What is there needs no more room.
    before = space(tmp_path).missing
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "model.pt").write_bytes(bytes(1000))
    assert space(tmp_path).missing == before - 1000


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("whole"), 7, ranks=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_file_is_cut_off_or_missing_the_checkpoint_is_not_whole(data: st.DataObject, whole: Path) -> None:
    assert is_whole(whole)
    path = data.draw(st.sampled_from(files_of(whole)))
    content = path.read_bytes()
    length = data.draw(st.none() | st.integers(0, len(content) - 1))
    try:
        if length is None:
            path.unlink()
        else:
            path.write_bytes(content[:length])
        assert not is_whole(whole)
        assert latest_complete(whole.parent) is None
    finally:
        path.write_bytes(content)
    assert is_whole(whole)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_writer_that_is_killed_anywhere_leaves_no_whole_checkpoint(data: st.DataObject, whole: Path) -> None:
    # Files appear in any order and grow; the manifest comes last.
    files = data.draw(st.permutations([path for path in files_of(whole) if path.name != "manifest.json"]))
    written = data.draw(st.integers(0, len(files) - 1))
    target = whole.parent / "copy" / "global_step_7"
    try:
        for place, path in enumerate(files[: written + 1]):
            content = path.read_bytes()
            part = content if place < written else content[: data.draw(st.integers(0, len(content)))]
            copy = target / path.relative_to(whole)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(part)
        assert not is_whole(target)
    finally:
        shutil.rmtree(target.parent, ignore_errors=True)


def test_a_checkpoint_under_another_name_is_not_whole(whole: Path, tmp_path: Path) -> None:
    assert not is_whole(shutil.copytree(whole, tmp_path / "global_step_8"))
    assert is_whole(shutil.copytree(whole, tmp_path / "global_step_7"))
    assert metrics_of(tmp_path / "global_step_7") == {"deltamem/train/reward": 0.5}


@pytest.mark.parametrize("lost", ["model_world_size_2_rank_1.pt", "optim_world_size_2_rank_0.pt", "fsdp_config.json"])
def test_no_manifest_without_the_files_of_every_rank(tmp_path: Path, lost: str) -> None:
    checkpoint = write_files(tmp_path, 3, ranks=2)
    (checkpoint / "actor" / lost).unlink()
    with pytest.raises(DeltaMemError, match=lost):
        write_manifest(checkpoint, CONTENTS, {}, patience=0.0)
    assert not is_whole(checkpoint)


def steps_in(folder: Path) -> list[str]:
    return sorted(path.name.removeprefix("global_step_") for path in folder.iterdir() if path.is_dir())


def test_only_incomplete_and_old_checkpoints_are_removed(tmp_path: Path) -> None:
    for step in (2, 9, 10):
        write_checkpoint(tmp_path, step)
    write_files(tmp_path, 11)
    (tmp_path / "global_step_x").mkdir()
    assert latest_complete(tmp_path) == tmp_path / "global_step_10"
    remove_old(tmp_path, keep=2, rewards={})
    assert steps_in(tmp_path) == ["10", "11", "9", "x"]
    remove_incomplete(tmp_path)
    assert steps_in(tmp_path) == ["10", "9", "x"]
    for everything in (None, 0):  # as in verl
        remove_old(tmp_path, keep=everything, rewards={})
    assert latest_complete(tmp_path) == tmp_path / "global_step_10"


def test_the_best_checkpoint_outlives_the_newest(tmp_path: Path) -> None:
    assert heldout_rewards(tmp_path) == {} and best_complete(tmp_path, {}) is None
    # As in a run that saves at every step and validates at every second: what a step earned is known after it is saved.
    earned, kept = {0: 0.9, 2: 0.3, 4: 0.6, 6: 0.6, 8: 0.1, 10: 0.2}, {}
    lines = [f'{{"step": {step}, "heldout/reward": {reward}}}\n' for step, reward in earned.items()]
    for step in range(1, 11):
        write_checkpoint(tmp_path, step)
        remove_old(tmp_path, keep=1, rewards=heldout_rewards(tmp_path))
        kept[step] = sorted(map(int, steps_in(tmp_path)))
        (tmp_path / "metrics.jsonl").write_text("".join(lines[: step // 2 + 1]) + '{"step": 1, "train/reward": 1.0}\n{"st')
    expected = {1: [1], 2: [2], 3: [2, 3], 4: [2, 4], 5: [4, 5], 6: [4, 6], 7: [6, 7], 8: [6, 8], 9: [6, 9], 10: [6, 10]}
    assert kept == expected, "of equal ones the newest"
    rewards = heldout_rewards(tmp_path)
    assert best_complete(tmp_path, rewards) == tmp_path / "global_step_6"
    (tmp_path / "global_step_6" / "data.pt").unlink()
    assert best_complete(tmp_path, rewards) == tmp_path / "global_step_10", "what is cut off is no candidate"
