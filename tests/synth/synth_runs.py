"""Runs of ``python -m synth`` for tests: settings, processes, and what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir

from deltamem.config import CONFIGS, validated
from synth.config import SynthSettings

ROOT = Path(__file__).resolve().parents[2]
TINY = ("shape=demanding_tiny", "people=6", "sessions=2", "seed=3", "embedder=null")


def settings(out: Path, *overrides: str) -> SynthSettings:
    """The settings that the command would make of its arguments; tiny ones if nothing else is said."""
    return _composed(overrides).model_copy(update={"out": out})


@cache
def _composed(overrides: tuple[str, ...]) -> SynthSettings:
    """Hydra takes a fifth of a second each time."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        return validated(compose("synth", overrides=[*TINY, "out=unused", *overrides]), SynthSettings)


def synth(*arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, in which sets have another order."""
    command, environment = [sys.executable, "-m", "synth", *arguments], {**os.environ, "PYTHONHASHSEED": "77"}
    given = {"capture_output": True, "text": True, "timeout": timeout, "check": False}
    return subprocess.run(command, cwd=ROOT, env=environment, **given)


def slow(out: Path, *overrides: str, seconds: float, first: int = 0) -> subprocess.Popen[str]:
    """The command in a process of its own, with so many seconds before each person from the `first` on; announces each."""
    script = (
        "import asyncio, sys\n"
        "import synth.pipeline\n"
        "write_person = synth.pipeline.write_person\n"
        "async def slowly(number, *arguments, **named):\n"
        "    print('person', number, flush=True)\n"
        f"    await asyncio.sleep({seconds} if number >= {first} else 0)\n"
        "    return await write_person(number, *arguments, **named)\n"
        "synth.pipeline.write_person = slowly\n"
        "from synth.__main__ import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, *TINY, f"out={out}", *overrides]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def files(out: Path) -> dict[str, bytes]:
    """The final files of a data set."""
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
