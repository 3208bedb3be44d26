"""Checkpoints of verl and folders of models: what makes one complete, which may go, and the room they need."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from safetensors import SafetensorError

from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer
from deltamem.training.config import SupervisedConfig
from deltamem.training.metrics import read_metrics
from deltamem.training.resources import ModelShape, gb, stored_bytes, trained_parameters


@contextmanager
def whole_folder(target: Path, what: str = "model") -> Iterator[Path]:
    """An empty folder that takes the place of the target when the block ends well; else nothing of it remains.

    What the operating system refuses is a `DeltaMemError` that says `what` could not be written.
    """
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        shutil.rmtree(target, ignore_errors=True)
        partial.replace(target)
    # safetensors has an exception of its own for it.
    except (OSError, SafetensorError) as error:
        raise DeltaMemError(f"{target}: the {what} could not be written: {' '.join(str(error).split())}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


MANIFEST_FILE = "manifest.json"

_CONTENTS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}
"""verl's name of a part of a checkpoint -> how its files are named."""
_LOOK_AGAIN_SECONDS = 1.0


def step_of(checkpoint: Path) -> int:
    """The training step of a checkpoint folder."""
    return int(checkpoint.name.removeprefix("global_step_"))


def write_manifest(
    checkpoint: Path, contents: Sequence[str], metrics: Mapping[str, float], *, patience: float = 120.0
) -> None:
    """List all files of a checkpoint with their sizes, after they have reached the disk.

    Args:
        checkpoint: A folder ``global_step_N`` that all ranks have finished.
        contents: What each rank saves: verl's ``actor.checkpoint.save_contents``.
        metrics: Of the step; a process that ends before it has logged them would lose them.
        patience: Seconds to wait until other nodes' files appear in a shared file system.
    """
    actor = checkpoint / "actor"
    deadline = time.monotonic() + patience
    while missing := _missing(actor, contents):
        if time.monotonic() >= deadline:
            raise DeltaMemError(
                f"{missing}: not there after all ranks have saved; checkpoints of several nodes need a shared file system"
            )
        time.sleep(_LOOK_AGAIN_SECONDS)
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)
    sizes = {str(path.relative_to(checkpoint)): _flush(path) for path in files}
    for folder in {path.parent for path in files}:
        _flush(folder)
    with atomic_writer(checkpoint / MANIFEST_FILE) as file:
        json.dump({"step": step_of(checkpoint), "files": sizes, "metrics": dict(metrics)}, file, indent=1)
    _flush(checkpoint)
    _flush(checkpoint.parent)


def _missing(actor: Path, contents: Sequence[str]) -> Path | None:
    description = actor / "fsdp_config.json"
    try:
        ranks = int(json.loads(description.read_text(encoding="utf-8"))["world_size"])
    except (OSError, ValueError, KeyError):
        return description
    kinds = [_CONTENTS[name] for name in contents if name in _CONTENTS]
    files = (actor / f"{kind}_world_size_{ranks}_rank_{rank}.pt" for kind in kinds for rank in range(ranks))
    return next((path for path in files if not path.is_file()), None)


def _flush(path: Path) -> int:
    """Bring a file or a folder to the disk; its size."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        # Of the open file: what a shared file system remembers of a name may be old.
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint was written to its end, and nothing of it was removed since."""
    manifest = _read(checkpoint)
    if manifest is None or manifest["step"] != step_of(checkpoint):
        return False
    try:
        return all((checkpoint / name).stat().st_size == size for name, size in manifest["files"].items())
    except FileNotFoundError:  # what cannot be looked at is an error, not a reason to throw a checkpoint away
        return False


def metrics_of(checkpoint: Path) -> dict[str, float]:
    """The metrics of the checkpoint's last step; empty without a manifest."""
    manifest = _read(checkpoint)
    return {} if manifest is None else dict(manifest["metrics"])


def _read(checkpoint: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((checkpoint / MANIFEST_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    whole = isinstance(manifest, dict) and {"step", "files", "metrics"} <= manifest.keys()
    return manifest if whole else None


def latest_complete(folder: Path) -> Path | None:
    """The newest complete checkpoint; None if there is none.

    verl's own note of its last step is not used: the note, or the folder that it names, may be cut off.
    """
    return next((path for path in _listed(folder) if is_whole(path)), None)


def heldout_rewards(run: Path) -> dict[int, float]:
    """Step -> held-out reward after it, of the steps of a run folder that were validated."""
    records = read_metrics(run / "metrics.jsonl")
    return {record["step"]: record["heldout/reward"] for record in records if "heldout/reward" in record}


def best_complete(folder: Path, rewards: Mapping[int, float]) -> Path | None:
    """The complete checkpoint of the highest held-out reward, of equal ones the newest; None if none was validated."""
    validated = [path for path in _listed(folder) if step_of(path) in rewards and is_whole(path)]
    return max(validated, key=lambda path: rewards[step_of(path)], default=None)


def remove_incomplete(folder: Path) -> None:
    """Remove what interrupted writes and removals have left."""
    for path in _listed(folder):
        if not is_whole(path):
            shutil.rmtree(path)


def remove_old(folder: Path, *, keep: int | None, rewards: Mapping[int, float]) -> None:
    """Remove all complete checkpoints but the newest `keep` and the best by their held-out `rewards`; None or 0 keeps all.

    verl's own rotation would remove the last one before the next is complete, and knows no best.
    """
    if keep:
        best = best_complete(folder, rewards)
        for path in [path for path in _listed(folder) if is_whole(path)][keep:]:
            if path != best:
                shutil.rmtree(path)


def _listed(folder: Path) -> list[Path]:
    """All checkpoint folders, the newest first."""
    listed = [path for path in folder.glob("global_step_*") if path.name.removeprefix("global_step_").isdigit()]
    return sorted(listed, key=step_of, reverse=True)


_TRAINED_BYTES = 12
"""A float32 weight and Adam's two moments."""
_EXPORTED_BYTES = 4


@dataclass(frozen=True)
class Space:
    """Room on the disk, in bytes."""

    checkpoints: int  # how many at once: those that are kept, the best, and the next while it is written
    checkpoint: int  # size of one
    policy: int  # the exported policy
    there: int  # written already
    free: int
    place: Path  # an existing folder of that file system

    @property
    def missing(self) -> int:
        """What is still to be written."""
        return max(self.checkpoints * self.checkpoint + self.policy - self.there, 0)


def space_of(config: DictConfig, shape: ModelShape) -> Space:
    """Estimate the disk space that a run from a model of this shape needs, and measure what is free."""
    actor, rank, trainer = config.actor_rollout_ref.actor, config.actor_rollout_ref.model.lora_rank, config.trainer
    checkpoint = (shape.adapters(rank) if rank else shape.parameters) * _TRAINED_BYTES
    if rank and not actor.checkpoint.get("save_lora_only", False):
        checkpoint += shape.parameters * stored_bytes(actor.fsdp_config)
    # Every rank saves what it holds: with HSDP each group of ranks that shards among itself saves a copy.
    ranks, shards = trainer.nnodes * trainer.n_gpus_per_node, actor.fsdp_config.fsdp_size
    checkpoint *= ranks // shards if 0 < shards < ranks else 1
    keep = trainer.max_actor_ckpt_to_keep
    folder = Path(trainer.default_local_dir)
    place = next(path for path in (folder, *folder.parents) if path.is_dir())
    return Space(
        checkpoints=2 if not keep else int(keep) + 1 + (trainer.test_freq > 0),
        checkpoint=checkpoint,
        policy=_EXPORTED_BYTES * shape.parameters,
        there=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        free=shutil.disk_usage(place).free,
        place=place,
    )


def warm_start_space(options: SupervisedConfig, shape: ModelShape, out: Path, *, on_gpu: bool) -> tuple[int, int]:
    """Bytes that a warm start still needs on the disk at its peak, and those of them that stay; 0 if its model is there."""
    if (out / "warm_start" / "model").is_dir():
        return 0, 0
    checkpoint = trained_parameters(shape, options) * _TRAINED_BYTES
    model = shape.parameters * (2 if options.lora_rank is not None and on_gpu else 4)
    # A checkpoint is written beside the one before it, the model beside the last one.
    return checkpoint + max(checkpoint, model), model


def check_space(space: Space) -> None:
    """Refuse to begin a run whose checkpoints will not fit."""
    if space.missing > space.free:
        raise DeltaMemError(
            f"{space.place}: the checkpoints and the exported policy need about {gb(space.missing)}, but only "
            f"{gb(space.free)} are free; make room or choose another deltamem.out"
        )
