"""What saves tests of synthesis most of their time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltamem.runs import JsonLinesStore
from synth.__main__ import main


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of handmade people that tests only read."""
    from output_cases import write  # pyarrow takes a second, which few tests need

    folder = tmp_path_factory.mktemp("data") / "new" / "folder"
    write(folder)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JsonLinesStore]:
    """An empty store of a language model's answers."""
    with JsonLinesStore(tmp_path / "answers.jsonl") as opened:
        yield opened


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``python -m synth`` in this process: what it ends with, and what it says."""
    # Both are set by the program itself, which a process of its own would take with it.
    monkeypatch.setenv("TQDM_DISABLE", "1")
    # Hydra would compose everything twice, the first time to see whether it says by itself that it is a sweep.
    monkeypatch.setattr("hydra._internal.hydra.Hydra.get_mode", lambda *_, **__: None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
        monkeypatch.setattr(sys, "argv", ["synth", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(arguments, ended.value.code or 0, *capsys.readouterr())

    return run
