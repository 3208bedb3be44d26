"""verl's own vLLM server on a CPU, changed only through the methods that verl offers for that.

``docs/vllm_on_cpu.md`` says what differs from a GPU and why.
"""

from __future__ import annotations

import os
from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from deltamem.training.cpu.vllm_weights import SOCKET, CpuVllmWorker, socket_name

ENVIRONMENT = {
    # The operating system places the threads: pinned ones would share a core with the trainer's.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Lets the model live in the engine's own process (executor "uni"). A worker process would be one more import of vLLM,
    # and the shared memory between the two, /dev/shm/psm_*, outlives a run.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    # Nothing is compiled; without this the first request would wait for the compiler's start.
    "TORCHDYNAMO_DISABLE": "1",
}
"""Environment variables of the server and its engine."""


class CpuVllmServer(vLLMHttpServer):  # type: ignore[misc]
    """Runs vLLM; a ray actor."""

    def _post_init(self, cuda_visible_devices: str) -> None:
        super()._post_init(cuda_visible_devices)
        os.environ[SOCKET] = socket_name(self.replica_rank)

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)
        engine_kwargs["distributed_executor_backend"] = "uni"

    def _get_worker_extension_cls(self) -> str:
        return f"{CpuVllmWorker.__module__}.{CpuVllmWorker.__qualname__}"


class CpuVllmReplica(vLLMReplica):  # type: ignore[misc]
    """Starts the server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Prepare a replica; verl calls this."""
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(CpuVllmServer)
