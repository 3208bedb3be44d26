"""What an interruption may leave behind: a request to stop, a trainer without its launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from checkpoint_cases import write_checkpoint
from preflight_cases import placed
from process_cases import INTERRUPTIBLE

from deltamem.errors import DeltaMemError
from deltamem.training.checkpoints import latest_complete, step_of
from deltamem.training.interruption import NOT_FINISHED, StoppedError, apart, locked, on_request


@contextmanager
def trainer(folder: Path, when: str, **values: Any) -> Iterator[Any]:
    """verl's own training loop over four steps, with our replay buffer; a request to stop comes in the phase `when`.

    What the loop calls does nothing but to note where it is (``phases``) and to write checkpoints.
    """
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    values = {"trainer.total_training_steps": 4, "trainer.save_freq": 3, "trainer.test_freq": 2, **values}
    values |= {"deltamem.max_failure_rate": 1.0, "trainer.logger": ["console"]}
    config, _ = placed(folder, "+experiment=tiny", "deltamem.out=/PLACE", values=values)
    config.trainer.v1.sampler.sampler_kwargs.update(poll_seconds=0.0, max_failure_rate=1.0, train_rollouts=0)
    config.trainer.v1.sampler.sampler_kwargs.heldout_rollouts = 0

    class Loop(PPOTrainerSync):  # type: ignore[misc]
        def __init__(self) -> None:
            self.phases: list[str] = []
            self.config, self.trainer_mode, self.parameter_sync_step = config, "sync", 1
            self.global_steps, self.total_training_steps, self.steps_per_epoch = 0, 4, 4
            self.train_dataloader = SimpleNamespace(state_dict=dict)
            self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
            self.use_reference_policy, self.use_critic = False, False
            self.checkpoint_manager = SimpleNamespace(
                update_weights=lambda *_: self.phase("weights"), sleep_replicas=lambda: None
            )
            self.replay_buffer = self._build_replay_buffer()

        def phase(self, name: str, result: Any = None) -> Any:
            self.phases.append(f"{name} {self.global_steps}")
            if self.phases[-1] == when:
                os.kill(os.getpid(), signal.SIGUSR1)
                os.kill(os.getpid(), signal.SIGUSR1)  # a repetition changes nothing
            return result

        def _save_checkpoint(self) -> None:
            self.phase("save")
            write_checkpoint(Path(config.trainer.default_local_dir), self.global_steps)

        def _validate(self) -> dict[str, float]:
            self.replay_buffer.sample(global_steps=self.global_steps, partition_id="val", batch_size=1)
            return {"val-core/deltamem/reward/mean@1": 0.5}

        def _update_actor(self, batch: Any, metrics: Any) -> Any:
            return self.phase("update", batch)

        def prepare_step(self) -> dict[str, float]:
            return {}

        def _balance_batch(self, batch: Any, metrics: Any) -> Any:
            return batch

        _compute_old_log_prob = _compute_advantage = _balance_batch

        def _compute_metrics(self, *given: Any, **named: Any) -> None:
            pass

        def _start_profiling(self) -> None:
            pass

        _stop_profiling = _shutdown_dump_executor = _start_profiling
        curr_step_profile = False

    def sample(self: Any, step: int, partition: str, size: int) -> Any:
        loop.phase(partition)
        self._wait_for_next_poll(partition, 0.0)
        return KVBatchMeta(partition_id=partition, keys=[], tags=[]), {}

    request = Path(config.trainer.v1.sampler.sampler_kwargs.stop_file)
    request.parent.mkdir(parents=True, exist_ok=True)
    request.unlink(missing_ok=True)
    loop = Loop()
    none = {"batch_metrics": lambda *_: {}, "_check_alive": lambda _: None}
    without = patch.multiple("deltamem.training.replay_buffer", **none)
    with on_request(request.touch), patch.object(ReplayBuffer, "sample", sample), patch("transfer_queue.kv_clear"), without:
        yield loop


@pytest.mark.parametrize(
    ("when", "last", "saved"),
    [
        # Nothing is learned yet: the run ends at once.
        ("val 0", "val 0", []),
        ("train 1", "train 1", []),
        # What the step has learned, and what is not saved from the steps before it, is saved when it ends.
        ("update 1", "weights 1", [1]),
        ("train 2", "val 2", [2]),
        ("update 2", "val 2", [2]),
        # After the look at `save_freq` it is the next step that is saved, and no step is done after that.
        ("weights 1", "val 2", [2]),
        ("val 2", "weights 3", [3]),
        # The step before is saved anyway: the sampling of the next one is given up.
        ("save 3", "weights 3", [3]),
        ("weights 3", "weights 3", [3]),
        ("train 4", "train 4", [3]),
        # In the last step there is nothing to stop.
        ("update 4", "val 4", [3, 4]),
    ],
)
def test_a_request_is_heard_in_every_phase_of_a_step(tmp_path: Path, when: str, last: str, saved: list[int]) -> None:
    with trainer(tmp_path, when) as loop:
        if when == "update 4":
            loop.fit(SimpleNamespace(agent_loop_workers=[]))
        else:
            with pytest.raises(StoppedError, match="what was learned is saved"):
                loop.fit(SimpleNamespace(agent_loop_workers=[]))
    assert loop.phases[-1] == last
    assert [int(phase.removeprefix("save ")) for phase in loop.phases if phase.startswith("save")] == saved
    whole = latest_complete(Path(loop.config.trainer.default_local_dir))
    assert (0 if whole is None else step_of(whole)) == (saved or [0])[-1]


def test_a_process_that_only_makes_up_for_the_last_validation_takes_no_step(tmp_path: Path) -> None:
    with trainer(tmp_path, "never") as loop:
        loop.global_steps = 4  # as loaded from the checkpoint
        loop.fit(SimpleNamespace(agent_loop_workers=[]))
    assert loop.phases == ["val 4"]


@pytest.mark.parametrize(("name", "code"), [("SIGUSR1", NOT_FINISHED), ("SIGTERM", 143)])
def test_outside_of_grpo_a_signal_ends_with_one_sentence(name: str, code: int) -> None:
    program = (
        "import time; from deltamem.training.interruption import listen; listen(); print(1, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=300)
    assert process.returncode == code
    assert errors.count("\n") == 1 and "the same command goes on" in errors


def refuse() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGINT)
    raise DeltaMemError("no")


def test_work_apart_gives_its_result_its_error_or_a_sentence_of_its_end() -> None:
    assert apart(os.getpid) != os.getpid()
    with pytest.raises(DeltaMemError, match="no"):  # and signals do not reach it
        apart(refuse)
    with pytest.raises(DeltaMemError, match="was killed, perhaps because memory ran out"):
        apart(os._exit, 1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def await_end(process: int) -> None:
    """Return when a process has ended, also if nobody waits for it."""
    with suppress(OSError):  # it may go between two looks, or while it is looked at
        while ") Z " not in Path(f"/proc/{process}/stat").read_text():
            time.sleep(0.1)


_APART = """
from deltamem.training.interruption import apart, listen
listen()
apart(exec, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGINT"])
def test_work_apart_ends_with_whoever_began_it(name: str) -> None:
    program = [sys.executable, "-c", _APART]
    process = subprocess.Popen(
        program,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=INTERRUPTIBLE,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(getattr(signal, name))
    process.wait()
    await_end(child)


_LAUNCHER = """
import subprocess, sys, time
from pathlib import Path
from deltamem.training.interruption import locked
with locked(Path(sys.argv[1]), patience=0.0) as lock:
    command = [sys.executable, "-c", sys.argv[2]]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(lock,), start_new_session=True)
    print(child.pid, flush=True)
    time.sleep(600)
"""
_CHILD = "import deltamem.training.interruption as parent, time; parent.end_with_parent(); time.sleep(600)"


def launch(path: Path, child: str) -> tuple[subprocess.Popen[str], int]:
    """A launcher that holds the lock, and the id of its child."""
    command = [sys.executable, "-c", _LAUNCHER, str(path), child]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    return launcher, int(launcher.stdout.readline())


@pytest.mark.slow
def test_a_trainer_ends_with_its_launcher_and_holds_the_lock_until_then(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    end = tmp_path / "end"
    launcher, _ = launch(path, f"import os, time\nwhile not os.path.exists({str(end)!r}): time.sleep(0.05)")
    launcher.kill()
    launcher.wait()
    with pytest.raises(DeltaMemError, match="another run is at work"), locked(path, patience=0.0):
        pass
    end.touch()
    with locked(path, patience=120.0):
        pass

    launcher, child = launch(path, _CHILD)
    time.sleep(0.5)
    assert Path(f"/proc/{child}").exists()
    launcher.kill()
    launcher.wait()
    with locked(path, patience=120.0):
        await_end(child)
