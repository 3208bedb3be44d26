"""How much room the checkpoints and the policy of a run need: one estimate for the preflight and for the start of GRPO."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from deltamem.errors import DeltaMemError
from deltamem.training.model_shape import ModelShape

_TRAINED_BYTES = 12
"""A float32 weight and Adam's two moments."""
_EXPORTED_BYTES = 4


@dataclass(frozen=True)
class Space:
    """Room on the disk, in bytes.

    Attributes:
        checkpoints: How many there are at once: those that are kept, and the next while it is written.
        checkpoint: Size of one.
        policy: Size of the exported policy.
        there: What the run has written before.
        free: What the file system has left.
        place: An existing folder of that file system.
    """

    checkpoints: int
    checkpoint: int
    policy: int
    there: int
    free: int
    place: Path

    @property
    def missing(self) -> int:
        """What is still to be written."""
        return max(self.checkpoints * self.checkpoint + self.policy - self.there, 0)


def space_of(config: DictConfig, shape: ModelShape) -> Space:
    """Estimate the room that a run needs, and look at what there is.

    Args:
        config: The whole configuration.
        shape: Of the starting model.
    """
    actor, rank = config.actor_rollout_ref.actor, config.actor_rollout_ref.model.lora_rank
    checkpoint = (shape.adapters(rank) if rank else shape.parameters) * _TRAINED_BYTES
    if rank and not actor.checkpoint.get("save_lora_only", False):
        checkpoint += shape.parameters * (2 if actor.fsdp_config.model_dtype in ("bf16", "bfloat16", "fp16") else 4)
    keep = config.trainer.max_actor_ckpt_to_keep
    folder = Path(config.trainer.default_local_dir)
    place = next(path for path in (folder, *folder.parents) if path.is_dir())
    return Space(
        checkpoints=2 if keep is None else int(keep) + 1,
        checkpoint=checkpoint,
        policy=_EXPORTED_BYTES * shape.parameters,
        there=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        free=shutil.disk_usage(place).free,
        place=place,
    )


def check_space(space: Space) -> None:
    """Refuse to begin a run whose checkpoints will not fit.

    Raises:
        DeltaMemError: If there is too little room.
    """
    if space.missing > space.free:
        raise DeltaMemError(
            f"{space.place}: the checkpoints and the exported policy need about {_size(space.missing)}, but only "
            f"{_size(space.free)} are free; make room or choose another deltamem.out"
        )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
