"""Data sets of CAME-Bench, written without a model."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

from papers.stitch.writer.__main__ import TRAJECTORIES, CameWriterConfig, write

_MODEL = {"base_url": None, "model": None, "api_key_env": "OPENAI_API_KEY", "timeout": 5.0, "max_retries": 0, "slots": 8}
_MODEL |= {"temperature": 1.0, "max_tokens": 64, "attempts": 2}
OFFLINE: dict[str, Any] = {"entities": 100, "writer": "templates", "llm": _MODEL}


def written(out: Path, *, size: str = "S", domain: str = "both", seed: int = 1, trajectories: int = 1) -> Path:
    """A data set with fewer trajectories than the paper's."""
    with patch.dict(TRAJECTORIES, {size: trajectories}):
        write(CameWriterConfig(size=size, domain=domain, seed=seed, out=out, **OFFLINE))
    return out
