"""The command of a benchmark: in this process, or in one of its own that can be killed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from deltamem.config import run_hydra
from deltamem.embedding import CachedEmbedder

ROOT = Path(__file__).resolve().parents[2]


class Done(NamedTuple):
    code: int
    out: str
    err: str


def in_process(
    name: str,
    main: Callable,
    evaluation: ModuleType,
    embedder: Callable,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Done]:
    """The command with an embedder that needs no weights."""
    monkeypatch.setattr(evaluation, "make_embedder", lambda settings: CachedEmbedder(embedder()))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")

    def command(*overrides: str) -> Done:
        monkeypatch.setattr(sys, "argv", [f"eval.{name}", *overrides])
        with pytest.raises(SystemExit) as stopped:
            run_hydra(main, name)
        return Done(int(stopped.value.code or 0), *capsys.readouterr())

    return command


def start(name: str, folder: Path, *overrides: str, **pipes: int) -> subprocess.Popen[str]:
    """The command as a person runs it in a folder."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", f"eval.{name}", *overrides],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "100"},
        text=True,
        **pipes,
    )


def finish(name: str, folder: Path, *overrides: str) -> Done:
    """The same, to its end."""
    process = start(name, folder, *overrides, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=1200)
    return Done(process.returncode, out, err)
