"""Lets verl sample with its own vLLM server on a CPU: ``rollout=vllm`` (docs/vllm_on_cpu.md).

verl imports this package where ``VERL_USE_EXTERNAL_MODULES=vllm_on_cpu`` and its folder is on the ``PYTHONPATH``, after
`deltamem.training.verl_cpu`.
"""

from __future__ import annotations

from verl.workers.rollout.replica import RolloutReplicaRegistry

# Registers the server and the adapter of GPUs: the first is replaced below, the second serves here, too.
import deltamem.training.verl_gpu  # noqa: F401
from deltamem.training.verl_cpu.platform import CpuPlatform

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


def load_replica() -> type:
    """verl loads a replica only where it is used: importing vLLM takes long."""
    from vllm_on_cpu.server import CpuVllmReplica

    return CpuVllmReplica


CpuPlatform.rollout_env_vars = lambda self: ENVIRONMENT
RolloutReplicaRegistry.register("vllm", load_replica)
