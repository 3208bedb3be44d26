"""How tests run `deltamem` in a process of its own: the code of this checkout, and nothing of whoever runs the tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHEAP = """
import deltamem.embedding
from episode_texts import WordEmbedder
from deltamem.cli.app import main
deltamem.embedding.load_embedder = lambda name, **settings: WordEmbedder()
main()
"""
"""A program that runs the command, and spares itself the seconds that loading an embedding model takes."""
COMMAND = (sys.executable, "-c", CHEAP)
INTERRUPTIBLE = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
"""For `preexec_fn`: what a shell puts into the background may be deaf to interrupts, and that is inherited."""


def environment(further: Mapping[str, str] = {}) -> dict[str, str]:
    """The variables of a process; scripted models write the turns of episodes."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DELTAMEM_")}
    own = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    return clean | own | {"DELTAMEM_MODE": "react"} | dict(further)
