"""Asking a running trainer for a checkpoint and an end.

The launcher writes a file; verl's trainer, a process of its own and perhaps on another node of the same file system, looks
for it at every step. verl has no hook for that, but its replay buffer is called once a step in the trainer's process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from deltamem.errors import DeltaMemError


class StoppedError(DeltaMemError):
    """The trainer has saved a checkpoint because it was asked to, and ends."""


class StopRequest:
    """The request as a file."""

    def __init__(self, path: Path) -> None:
        """Name the file; it need not exist."""
        self.path = path

    def make(self) -> None:
        """Ask for a checkpoint and an end."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()

    def made(self) -> bool:
        """Whether somebody asked."""
        return self.path.exists()

    def clear(self) -> None:
        """Forget the request, for the next run."""
        self.path.unlink(missing_ok=True)


class SaveAndStop:
    """Makes the trainer save at the end of the step in which it was asked to, and end before the next."""

    def __init__(self, request: StopRequest, config: DictConfig | Any) -> None:
        """Watch for a request.

        Args:
            request: The file.
            config: The trainer's own configuration, the very object, whose ``trainer.save_freq`` it reads after every step.
        """
        self._request = request
        self._config = config
        self._saves = False

    def before_step(self) -> None:
        """Call before a training step.

        Raises:
            StoppedError: If the step before was the last, and was saved.
        """
        if self._saves:
            raise StoppedError("a checkpoint was asked for and saved; the same command goes on from there")

    def during_step(self) -> None:
        """Call while a training step is under way, before its end."""
        if self._request.made():
            self._saves = True
            # verl saves where the step is a multiple of this.
            self._config.trainer.save_freq = 1
