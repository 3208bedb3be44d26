"""An engine on a CPU that never answers a request where a file asks for it, and a reward that is thrown like a coin.

verl imports this module where ``VERL_USE_EXTERNAL_MODULES`` names it.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl.workers.rollout.replica import RolloutReplicaRegistry

from deltamem.episode import Trajectory
from deltamem.sessions import LabelledSession

FILE = "DELTAMEM_TEST_STALL"
"""Environment variable: the file; it is gone when a request has been taken."""


def _load_replica() -> type:
    from deltamem.training.verl_cpu import server

    class StallingServer(server.CpuServer):
        """Takes one request for ever."""

        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            """Continue a prompt, or do not."""
            try:
                Path(os.environ[FILE]).unlink()
            except FileNotFoundError:
                return await super().generate(*args, **kwargs)
            await asyncio.Event().wait()

    server.CpuServer = StallingServer  # type: ignore[misc]
    return server.CpuReplica


# `deltamem.training.verl_cpu.platform.ROLLOUT`; where that module is what imports verl, it is not complete yet.
RolloutReplicaRegistry.register("deltamem_cpu", _load_replica)


@dataclass(frozen=True)
class Thrown:
    """The detail of a reward."""

    reward: float


def coin(**_options: Any) -> Callable[..., tuple[dict[str, float], Thrown]]:
    """A scorer that gives 0 or 1, whatever was written and always the same for it."""

    def score(labelled: LabelledSession, trajectory: Trajectory, _embed: Any) -> tuple[dict[str, float], Thrown]:
        written = "".join(message["content"] for message in trajectory.messages)
        reward = float(zlib.crc32(written.encode("utf-8")) % 2)
        return {"reward": reward, "format": 0.0}, Thrown(reward)

    return score
