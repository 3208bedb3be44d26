"""Room on the disk: the same estimate for the preflight and for the start of GRPO."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from omegaconf import OmegaConf

from deltamem.errors import DeltaMemError
from deltamem.training.checkpoints import Space, check_space, space_of
from deltamem.training.resources import ModelShape

SHAPE = ModelShape(layers=2, hidden=64, heads=2, kv_heads=1, head_dim=32, mlp=128, vocabulary=500, tied=True)


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def space(folder: Path, *, lora_rank: int = 0, only_lora: bool = False, keep: int | None = 2) -> Space:
    actor = {"checkpoint": {"save_lora_only": only_lora}, "fsdp_config": {"model_dtype": "bf16"}}
    config = {
        "actor_rollout_ref": {"model": {"lora_rank": lora_rank}, "actor": actor},
        "trainer": {"default_local_dir": str(folder / "checkpoints"), "max_actor_ckpt_to_keep": keep},
    }
    return space_of(OmegaConf.create(config), SHAPE)


def test_no_space_is_one_sentence_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need = SHAPE.parameters * (12 * 3 + 4)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**9, 0, need - 1))
    with pytest.raises(DeltaMemError, match="need about"):
        check_space(space(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**9, 0, need))
    check_space(space(tmp_path))


def test_what_is_there_needs_no_more_room(tmp_path: Path) -> None:
    before = space(tmp_path).missing
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "model.pt").write_bytes(bytes(1000))
    assert space(tmp_path).missing == before - 1000


def test_adapters_are_small_and_their_base_is_counted_where_it_is_saved(tmp_path: Path) -> None:
    assert space(tmp_path, lora_rank=4, only_lora=True).checkpoint == 12 * SHAPE.adapters(4) < 12 * SHAPE.parameters
    assert space(tmp_path, lora_rank=4).checkpoint == 12 * SHAPE.adapters(4) + 2 * SHAPE.parameters
    assert space(tmp_path, lora_rank=4).policy == 4 * SHAPE.parameters


def test_how_many_are_there_at_once(tmp_path: Path) -> None:
    assert [space(tmp_path, keep=keep).checkpoints for keep in (None, 1, 3)] == [2, 2, 4]
