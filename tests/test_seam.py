"""The seam: a copy of the checkout without papers/ and integrations/ collects all its tests, and they pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOT_COPIED = (".*", "__pycache__", "papers", "integrations", "runs", "data", "models", "outputs", "build", "dist")

# An editable installation would find the folders in the checkout that this is a copy of.
_BLOCKED = "import sys\nfor name in ('papers', 'integrations'):\n    sys.modules[name] = None\n"
# In one process, because starting one costs more than all that it does here.
_COMMANDS = """
import runpy, sys
from deltamem.plugins import load_all
groups = ("benchmarks", "commands", "routes", "stores", "systems")
print("plug-ins:", *(name for group in groups for name in load_all(group)))
for module, *arguments in (["deltamem.cli", "--help"], ["eval", "run", "benchmark=came", "systems=[none]"]):
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        print("ended with", end.code)
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy."""
    folder = tmp_path_factory.mktemp("checkout") / "core"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
    (folder / "sitecustomize.py").write_text(_BLOCKED, encoding="utf-8")
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True)


def test_plug_ins_whose_folder_is_removed_are_not_there_and_commands_say_what_there_is(core: Path) -> None:
    done = run(core, "-c", _COMMANDS)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    there = set(first.split())
    assert {"locomo", "halumem", "personamem", "naive_rag", "deltamem"} <= there
    assert there.isdisjoint({"came", "momento", "stitch", "episodic", "episodes", "mem0_clients", "openai_proxy"})
    helped = "\n".join(rest)
    assert "search" in helped and "episodes" not in helped
    assert [line for line in rest if line.startswith("ended")] == ["ended with 0", "ended with 2"]
    assert done.stderr.startswith("error: ") and "locomo" in done.stderr


@pytest.mark.slow
def test_every_test_of_the_core_is_collected(core: Path) -> None:
    done = run(core, "-m", "pytest", "--collect-only", "-q", "tests")
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.slow
def test_tests_demo_and_benchmarks_of_the_core_pass(core: Path) -> None:
    """A part of them, one of each kind; the whole takes as long as ``make test``."""
    parts = ("deltamem/journal", "deltamem/cli", "deltamem/server", "eval/test_demo.py", "eval/test_locomo_run.py", "trust")
    done = run(core, "-m", "pytest", "-q", "-x", "-m", "not slow", *(f"tests/{part}" for part in parts))
    assert done.returncode == 0, done.stdout[-4000:]
