"""Real runs of ``train.py`` for the benchmarks of training: start, follow, read verl's own figures of each step."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from deltamem.runs import git_commit, versions

ROOT = Path(__file__).resolve().parents[1]

PHASES = {
    "generate": "timing_s/gen",
    "old log-prob": "timing_s/old_log_prob",
    "reference log-prob": "timing_s/ref",
    "advantage": "timing_s/adv",
    "update": "timing_s/update_actor",
    "weight sync": "timing_s/update_weights",
    "checkpoint": "timing_s/save_checkpoint",
    "validation": "timing_s/testing",
}
"""Phases of a step, one after the other, and verl's names of them. Search and reward lie within ``generate``."""
STEP = "timing_s/step"


class Step(NamedTuple):
    """One training step as verl logged it."""

    number: int
    figures: dict[str, float]


def train(
    out: Path,
    overrides: Sequence[str],
    *,
    watch: Callable[[subprocess.Popen[bytes]], None] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Run ``train.py``; the same call again goes on where it stopped.

    Args:
        out: Run folder.
        overrides: Experiment and overrides.
        watch: Called every second while it runs.
        enough: Whether the run has brought what it was for, however it ended.

    Raises:
        SystemExit: If it fails, with what it printed last.
    """
    out.mkdir(parents=True, exist_ok=True)
    printed = out / "printed.txt"
    command = [sys.executable, str(ROOT / "train.py"), f"deltamem.out={out}", *overrides]
    with printed.open("ab") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=file, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                try:
                    process.wait(1.0)
                except subprocess.TimeoutExpired:
                    if watch is not None:
                        watch(process)
        finally:
            if process.poll() is None:
                # train.py ends verl and ray itself when it is asked to.
                process.terminate()
                process.wait()
    if process.returncode and not enough():
        last = printed.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        raise SystemExit(f"train.py ended with exit code {process.returncode}: {' | '.join(last)} (see {printed})")


def environment() -> dict[str, str]:
    """Environment of ``train.py``: this repository first, then what the caller has on his path."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def logged_steps(out: Path) -> list[Step]:
    """All training steps that verl logged in a run folder, resumed runs included; a step made twice counts as made last."""
    found: dict[int, Step] = {}
    for log in sorted((out / "logs").glob("grpo_*.jsonl"), key=lambda path: path.stat().st_mtime):
        for line in log.read_text(encoding="utf-8").splitlines():
            # The last line may be cut off while the run goes on.
            if line.endswith("}"):
                entry = json.loads(line)
                if STEP in entry["data"]:
                    found[entry["step"]] = Step(entry["step"], entry["data"])
    return [found[number] for number in sorted(found)]


def made_on() -> dict[str, Any]:
    """Machine, versions and commit, for the result file."""
    if torch.cuda.is_available():
        name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory / 2**30
        accelerator: dict[str, Any] | None = {"name": name, "GiB": round(memory, 1), "count": torch.cuda.device_count()}
    else:
        accelerator = None
    commit = git_commit(ROOT)
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "memory_GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "accelerator": accelerator,
        },
        "load": [round(value, 2) for value in os.getloadavg()],
        "versions": {"python": platform.python_version(), **versions()},
        "git_commit": commit,
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
