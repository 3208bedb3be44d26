"""Runs of ``python -m synth`` for tests: settings, processes, and what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from handmade import edit
from hydra import compose, initialize_config_dir

from deltamem.config import CONFIGS, validated
from synth.config import SynthSettings

ROOT = Path(__file__).resolve().parents[2]
TINY = ("shape=demanding_tiny", "people=6", "sessions=2", "seed=3", "embedder=null")


def settings(out: Path, shape: str = "demanding_tiny", **changes: Any) -> SynthSettings:
    """The settings that the command would make of its arguments, tiny ones; `changes` are by key, ``llm__slots=7`` too."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return edit(_composed(shape), {"out": out, **named})


@cache
def _composed(shape: str) -> SynthSettings:
    """Hydra takes a fifth of a second each time."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        composed = compose("synth", overrides=[*TINY, f"shape={shape}", "out=unused"])
    return validated(composed, SynthSettings)


def synth(*arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "synth", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


def slow(out: Path, *overrides: str, seconds: float, first: int = 0) -> subprocess.Popen[str]:
    """The command in a process of its own, in which sets have another order.

    It announces each person and waits so many seconds before each from the `first` on.
    """
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
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def files(out: Path) -> dict[str, bytes]:
    """The final files of a data set."""
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
