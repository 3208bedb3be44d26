"""Real runs of train.py on a model of 0.1 million parameters, and what is left of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

ROOT = Path(__file__).resolve().parents[3]
_MARK = "DELTAMEM_RUN_UNDER_TEST"
BATCH = 4
SMALL = (
    *("deltamem.synth=null", "deltamem.model=null", "deltamem.warm_start=null", "deltamem.turn_tokens=24"),
    *("deltamem.data.heldout_sessions=4", "deltamem.data.skip_people=0", f"data.train_batch_size={BATCH}"),
    *("data.max_prompt_length=1024", "data.max_response_length=64", "actor_rollout_ref.rollout.n=2"),
    *("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", "trainer.save_freq=1", "trainer.test_freq=2"),
    # A random model writes nothing that can be read.
    *("deltamem.gates.truncated=null", "deltamem.gates.unreadable=null"),
)
TWO_RANKS = ("trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2", "deltamem.sort_by_length=false")


@dataclass(frozen=True)
class Run:
    """A run folder with the command that fills it; `mark` is in the environment of all its processes."""

    out: Path
    sessions: Path
    model: Path
    python: Path = Path(sys.executable)
    environment: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid4().hex)

    def start(self, steps: int, *overrides: str) -> subprocess.Popen[str]:
        """Start it in a process group of its own."""
        folders = (f"deltamem.out={self.out}", f"deltamem.sessions={self.sessions}")
        model = f"actor_rollout_ref.model.path={self.model}"
        command = [str(self.python), str(ROOT / "train.py"), "+experiment=tiny", *folders, model, *SMALL]
        return subprocess.Popen(
            [*command, f"trainer.total_training_steps={steps}", *overrides],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", _MARK: self.mark} | self.environment,
            start_new_session=True,
        )

    def finish(self, steps: int, *overrides: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        process = self.start(steps, *overrides)
        output, errors = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def records(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``."""
        path = self.out / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def verl_figure(self, name: str, step: int) -> float:
        """What verl itself logged of a step, the last time that it made it."""
        found = None
        for path in sorted((self.out / "logs").glob("grpo_*.jsonl")):
            for line in path.read_text().splitlines():
                if line.endswith("}") and (record := json.loads(line))["step"] == step:
                    found = record["data"].get(name, found)
        assert found is not None, (name, step)
        return float(found)

    def await_step(self, step: int, process: subprocess.Popen[str], seconds: float = 1200.0) -> None:
        """Return when a step is recorded."""
        await_true(lambda: any(record["step"] >= step for record in self.records()), seconds, process)

    def processes(self) -> list[int]:
        """Ids of the processes of this run that are alive: launcher, trainer, Ray and its workers."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def expected_orders(self, steps: int) -> list[float]:
        """The checksum of each step's sessions, from verl's own sampler without an interruption."""
        import pyarrow.parquet as pq
        from omegaconf import OmegaConf
        from torch.utils.data import BatchSampler
        from verl.trainer.ppo.utils import create_rl_sampler

        keys = [info["key"] for info in pq.read_table(self.out / "data" / "train.parquet")["extra_info"].to_pylist()]
        sampler = create_rl_sampler(OmegaConf.create({"shuffle": True, "seed": 1}), keys)
        batches: list[list[int]] = []
        while len(batches) < steps:
            batches += BatchSampler(sampler, BATCH, drop_last=True)
        sums = [zlib.crc32("\n".join(sorted({keys[row] for row in batch})).encode()) for batch in batches]
        return [float(value) for value in sums[:steps]]


def await_true(condition: Callable[[], bool], seconds: float, process: subprocess.Popen[str] | None = None) -> None:
    """Look until something holds.

    Raises:
        AssertionError: If it does not in time, or the process has ended before.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
