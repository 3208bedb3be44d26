"""``python -m papers.stitch.writer``: write a data set of CAME-Bench."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from deltamem.config import run_hydra, validated

if TYPE_CHECKING:
    from omegaconf import DictConfig


def _write(config: DictConfig) -> None:
    from papers.stitch.writer.command import CameWriterConfig, write

    settings = validated(config, CameWriterConfig)
    manifest = write(settings)
    for name, counts in manifest["trajectories"].items():
        print(f"{name}: " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))
    print(f"written to {settings.out}")


if __name__ == "__main__":
    # Loading an embedding model would draw bars of its own, between ours.
    os.environ.setdefault("TQDM_DISABLE", "1")
    run_hydra(_write, "came_synth", Path(__file__).parents[1] / "configs")
