"""Training: ``python train.py +experiment=tiny``, or ``+experiment=qwen8b deltamem.sessions=FILE deltamem.out=FOLDER``.

The same command again goes on where an interrupted run stopped. ``--cfg job`` prints the whole configuration.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from deltamem.cli import run_hydra, validated
from deltamem.files import atomic_writer
from deltamem.provenance import git_commit, versions
from deltamem.stages import run_stages
from deltamem.training.pipeline import stages, synthesis
from deltamem.training.run.launch import TrainingFailedError
from deltamem.training.settings import TrainSettings


def main(config: DictConfig) -> int:
    """Run all stages that are not done yet.

    Returns:
        0, or 1 if training failed.
    """
    # A batch system ends jobs with SIGTERM: treat it like Ctrl-C, so that the child and its ray instance end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = validated(config.deltamem, TrainSettings)
    # Ray workers run in folders of their own: paths must be absolute before they are spread over the configuration.
    config.deltamem.out = str(settings.out.absolute())
    config.deltamem.sessions = str(settings.sessions.absolute())
    OmegaConf.resolve(config)
    settings = validated(config.deltamem, TrainSettings)
    console = Console(highlight=False)
    settings.out.mkdir(parents=True, exist_ok=True)
    seconds = run_stages(synthesis(settings), settings.out / "stages", console.print)
    todo = stages(config, settings, console)
    try:
        seconds |= run_stages(todo, settings.out / "stages", console.print)
    except TrainingFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with atomic_writer(settings.out / "train.json") as file:
        made = {"seconds": seconds, "seed": settings.seed, "git_commit": git_commit(), "versions": versions()}
        json.dump(made, file, indent=2)
    console.print(f"policy: {settings.out / 'policy'}")
    return 0


if __name__ == "__main__":
    run_hydra(main, "train", Path(__file__).resolve().parent / "configs")
