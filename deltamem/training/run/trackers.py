"""TensorBoard and wandb: fed by the launcher with the lines of ``metrics.jsonl``, under the same names.

verl could write to both itself, but under its own names, and after a resume the lost steps would be there twice.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from deltamem.errors import DeltaMemError
from deltamem.files import atomic_writer

_START_SECONDS = 30.0
"""How long the start waits for wandb's server."""
_END_SECONDS = 60.0
"""How long the end waits until wandb has sent everything; what it has not sent stays in the run folder."""


class Tracker(Protocol):
    """Takes the metrics of a run elsewhere."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        ...

    def close(self) -> None:
        """Write what is left and end."""
        ...


class TensorBoard:
    """Event files in a folder, for ``tensorboard --logdir``."""

    def __init__(self, folder: Path, *, first_step: int) -> None:
        """Open a new event file.

        Args:
            folder: Where the event files of all attempts lie.
            first_step: What earlier attempts wrote of this step and later ones is not shown any more.
        """
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=first_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left and end."""
        self._writer.close()


class Wandb:
    """A run at wandb, which a later attempt goes on with; ``WANDB_MODE=offline`` keeps it in the run folder.

    wandb takes no step twice: of those that were lost with a process and made again it keeps the first.
    """

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        """Open the run whose id is in ``wandb_id`` in the run folder, or a new one.

        Args:
            out: The run folder.
            config: Shown with the run.
        """
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "deltamem"),
            name=out.name,
            id=_wandb_id(out / "wandb_id"),
            resume="allow",
            dir=str(out),
            config=dict(config),
            settings=wandb.Settings(
                init_timeout=_START_SECONDS,
                finish_timeout=_END_SECONDS,
                finish_timeout_raises=True,
                silent=True,
                console="off",
            ),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write what is left and end."""
        self._run.finish()


def _wandb_id(path: Path) -> str:
    if not path.exists():
        with atomic_writer(path) as file:
            file.write(uuid4().hex[:12])
    return path.read_text(encoding="utf-8").strip()


class Trackers:
    """The trackers of a run. One that fails is given up with a warning; none of them ends the training."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        """Begin without any.

        Args:
            warn: Shows one sentence.
        """
        self._warn = warn
        self._open: dict[str, Tracker] = {}

    def start(self, name: str, make: Callable[[], Tracker]) -> None:
        """Start a tracker, or say why it does not start."""
        try:
            self._open[name] = make()
        except Exception as error:
            self._warn(f"{name} does not start, training goes on without it: {_one_line(error)}")

    def add(self, record: Mapping[str, Any]) -> None:
        """Hand a line of ``metrics.jsonl`` to all of them."""
        values = {key: value for key, value in record.items() if key != "step"}
        for name, tracker in list(self._open.items()):
            try:
                tracker.log(record["step"], values)
            except Exception as error:
                del self._open[name]
                self._warn(f"{name} failed at step {record['step']}, training goes on without it: {_one_line(error)}")

    def close(self) -> None:
        """Write what is left and end all of them."""
        for name, tracker in self._open.items():
            try:
                tracker.close()
            except Exception as error:
                self._warn(f"{name} could not be closed: {_one_line(error)}")
        self._open.clear()


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are not installed; each is called like its package.

    Raises:
        DeltaMemError: Names the first of them.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise DeltaMemError(f"config key 'deltamem.trackers': {name} is not installed; run: pip install {name}")


def open_trackers(
    names: Sequence[str], out: Path, *, first_step: int, config: Mapping[str, Any], warn: Callable[[str], None]
) -> Trackers:
    """Start the trackers of a run.

    Args:
        names: Of ``tensorboard`` and ``wandb`` those that are wanted.
        out: The run folder.
        first_step: The first step that will be logged.
        config: The configuration, for wandb.
        warn: Shows one sentence.
    """
    trackers = Trackers(warn)
    makers: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(out / "tensorboard", first_step=first_step),
        "wandb": lambda: Wandb(out, config),
    }
    for name in names:
        trackers.start(name, makers[name])
    return trackers
