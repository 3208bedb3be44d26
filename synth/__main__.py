"""``python -m synth people=20 sessions=25 writer=offline seed=1 out=DIR``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deltamem.cli import run_hydra, validated
from deltamem.episode import EpisodeConfig
from deltamem.training.dataset import export
from synth.offline import OfflineConfig, offline_writer
from synth.pipeline import SESSIONS_FILE, write_dataset
from synth.settings import SynthSettings

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(config: DictConfig) -> None:
    """Write a data set."""
    settings = validated(config, SynthSettings)
    started = time.monotonic()
    console = Console(stderr=True)
    for name in ("train.parquet", "heldout.parquet"):  # of an earlier data set in the same folder
        (settings.out / name).unlink(missing_ok=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("people", total=settings.people)
        manifest = write_dataset(
            settings.out,
            offline_writer(OfflineConfig(seed=settings.seed, **settings.offline.model_dump())),
            people=settings.people,
            sessions=settings.sessions,
            heldout_share=settings.heldout_share,
            config=settings.model_dump(mode="json", exclude={"out"}),
            progress=lambda done: progress.update(task, completed=done),
        )
    counts = manifest["counts"]
    if counts.get("heldout/people"):
        export(
            settings.out / SESSIONS_FILE,
            settings.out,
            EpisodeConfig(**settings.episode.model_dump()),
            train_sessions=None,
            heldout_sessions=None,
            skip_people=0,
            seed=settings.seed,
        )
    for split in ("train", "heldout"):
        figures = ", ".join(
            f"{counts.get(f'{split}/{name}', 0):,} {name}" for name in ("people", "sessions", "ADD", "UPDATE", "NONE")
        )
        print(f"{split}: {figures}")
    print(f"written to {settings.out} in {time.monotonic() - started:.1f} s; every session passed the invariant checks")


if __name__ == "__main__":
    run_hydra(main, "synth")
