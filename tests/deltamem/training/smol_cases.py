"""The pretrained model for tests: the folder of ``make smol``, or one made now; without its package they skip."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import pytest

from deltamem.training.pretrained import SOURCES, convert, verified

SMOL = "smollm2-135m"
FOLDER = Path(__file__).resolve().parents[3] / "models" / SMOL

needs_smol = pytest.mark.skipif(
    not FOLDER.is_dir() and any(importlib.util.find_spec(name) is None for name in (SOURCES[SMOL].module, "gguf")),
    reason="no pretrained model: run `make smol`",
)


@cache
def smol_folder() -> Path:
    """The model's folder, verified; for tests with the mark above."""
    if not verified(SMOL, FOLDER):
        convert(SMOL, FOLDER)
    return FOLDER


def gguf_file() -> Path | None:
    """The file in the package, if that is installed."""
    spec = importlib.util.find_spec(SOURCES[SMOL].module)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / SOURCES[SMOL].file
