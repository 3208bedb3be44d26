from __future__ import annotations

from pathlib import Path

import pytest

from deltamem.errors import DeltaMemError
from eval.records import RUN_CONFIG_FILE, check_run_config, write_run_config


def test_the_same_settings_go_on_and_others_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    check_run_config(folder, {"k": 10})
    write_run_config(folder, {"k": 20, "models": ("a", "b"), "nested": {"x": None}})
    check_run_config(folder, {"nested": {"x": None}, "models": ["a", "b"], "k": 20})
    for changed in ({"k": 10}, {"models": ["a"]}, {"nested": {"x": 0}}, {"new": 1}):
        name = next(iter(changed))
        with pytest.raises(DeltaMemError, match=f"made with {name} = "):
            check_run_config(folder, {"k": 20, "models": ["a", "b"], "nested": {"x": None}} | changed)
    with pytest.raises(DeltaMemError, match="made with k = 20, not None"):
        check_run_config(folder, {"models": ["a", "b"], "nested": {"x": None}})


def test_the_benchmark_and_the_system_are_named_before_what_follows_from_them(tmp_path: Path) -> None:
    write_run_config(tmp_path, {"answer": 1, "benchmark": "LoCoMo", "system": "a"})
    with pytest.raises(DeltaMemError, match="made with benchmark = 'LoCoMo', not 'HaluMem'"):
        check_run_config(tmp_path, {"answer": 2, "benchmark": "HaluMem", "system": "b"})
    with pytest.raises(DeltaMemError, match="made with system = 'a', not 'b'"):
        check_run_config(tmp_path, {"answer": 2, "benchmark": "LoCoMo", "system": "b"})


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / RUN_CONFIG_FILE).write_text("{", encoding="utf-8")
    with pytest.raises(DeltaMemError, match=r"making\.json: not valid JSON"):
        check_run_config(tmp_path, {})
