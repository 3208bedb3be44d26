"""How verl reaches the CPU sampling server: the replica that starts it and the adapter that sends it weights."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from deltamem.training.cpu import thread_count
from deltamem.training.cpu.server import CpuServer


def _server_name(replica_rank: int) -> str:
    return f"deltamem_cpu_server_{replica_rank}"


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    """One sampling server."""

    async def launch_servers(self) -> None:
        """Start the server as a named ray actor."""
        name = _server_name(self.replica_rank)
        server = (
            ray.remote(CpuServer)
            .options(name=name, num_cpus=0, max_concurrency=self.max_concurrency)
            .remote(
                model_path=self.model_config.path,
                max_length=self.config.prompt_length + self.config.response_length,
                max_batch=self.config.max_num_seqs,
                seed=self.config.seed + self.replica_rank,
                threads=thread_count(),
            )
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = name


class CpuServerAdapter(BaseRollout):  # type: ignore[misc]
    """Lives in the trainer's process and passes weights on to the server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_ignored: Any) -> None:
        """Find out which server belongs to this rank."""
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ["RANK"])
        ranks_a_replica = config.tensor_model_parallel_size * config.data_parallel_size
        self._server_name = _server_name(rank // ranks_a_replica if replica_rank == -1 else replica_rank)
        self._leads = rank % ranks_a_replica == 0

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """Nothing is released."""

    async def update_weights(
        self,
        weights: Iterator[tuple[str, torch.Tensor]] | AsyncIterator[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        **_ignored: Any,
    ) -> None:
        """Send all parameters at once; the models of this rollout are small."""
        named = {}
        # Every rank must exhaust the iterator, for it gathers the shards.
        async for name, tensor in ensure_async_iterator(weights):
            named[name] = tensor.detach().cpu().clone()
        if self._leads:
            await ray.get_actor(self._server_name).load_weights.remote(named, global_steps)
