"""GRPO in a process of its own: verl's trainer over a composed configuration.

python -m deltamem.training.trainer_process CONFIG.yaml
"""

from __future__ import annotations

import errno
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from omegaconf import OmegaConf
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from deltamem.errors import DeltaMemError
from deltamem.training.checkpoints import heldout_rewards, remove_old, write_manifest
from deltamem.training.interruption import NOT_FINISHED, StoppedError, end_with_parent


class ManifestCallback(CheckpointCallback):  # type: ignore[misc]
    """Declares a checkpoint whole, and only then removes old ones."""

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_context: Any
    ) -> None:
        """List the files of a checkpoint that all ranks have written."""
        checkpoint = Path(checkpoint_dir)
        contents = self.config.actor_rollout_ref.actor.checkpoint.save_contents
        write_manifest(checkpoint, list(contents), trainer.replay_buffer.figures)
        # The launcher has long noted what earlier steps earned; this one is yet to be validated, and is the newest.
        rewards = heldout_rewards(Path(self.config.deltamem.out))
        remove_old(checkpoint.parent, keep=self.config.deltamem.keep_checkpoints, rewards=rewards)


def main(path: Path) -> int:
    """Run verl's trainer with a complete configuration file; returns the exit code."""
    config = OmegaConf.load(path)
    OmegaConf.set_struct(config, True)
    try:
        auto_set_device(config)
        validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
        run_ppo(config, task_runner_class=TaskRunnerV1)
    except Exception as error:
        if any(isinstance(cause, StoppedError) for cause in _causes(error)):
            return NOT_FINISHED
        traceback.print_exc()
        print(f"error: {reason(error)}", file=sys.stderr, flush=True)
        return 1
    finally:
        ray.shutdown()
    return 0


def reason(error: BaseException) -> str:
    """What went wrong, in one line: the innermost sentence meant for people, else the innermost exception."""
    chain = list(_causes(error))
    for cause in chain:
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
            return "no space left on the device while a checkpoint was written; the last complete checkpoint remains"
    ours = [cause for cause in chain if isinstance(cause, DeltaMemError)]
    cause = ours[-1] if ours else chain[-1]
    lines = str(cause).strip().splitlines() or [""]
    # A ray error repeats the remote stack trace; its last line is the exception itself.
    return lines[-1] if ours else f"{type(cause).__name__}: {lines[-1]}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        remote = getattr(current, "cause", None)
        current = remote if isinstance(remote, BaseException) else current.__cause__


if __name__ == "__main__":
    # Slurm may send the request to all processes of a job; it is the launcher's, which has started this process with the
    # signal blocked. Ray's processes inherit that it is ignored, and may still make another use of it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    end_with_parent()
    sys.exit(main(Path(sys.argv[1])))
