"""What verl's trainer calls after every checkpoint (``trainer.checkpoint_callback_class``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from deltamem.training.run.checkpoints import remove_old
from deltamem.training.run.manifest import write_manifest


class ManifestCallback(CheckpointCallback):  # type: ignore[misc]
    """Declares a checkpoint whole, and only then removes old ones."""

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_context: Any
    ) -> None:
        """List the files of a checkpoint that all ranks have written.

        Raises:
            DeltaMemError: If a file is missing.
        """
        checkpoint = Path(checkpoint_dir)
        contents = self.config.actor_rollout_ref.actor.checkpoint.save_contents
        write_manifest(checkpoint, list(contents), trainer.replay_buffer.figures)
        remove_old(checkpoint.parent, keep=self.config.deltamem.keep_checkpoints)
