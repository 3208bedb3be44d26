"""A CPU as a verl platform.

verl reaches its accelerator through a platform object and a "device module" with the functions of ``torch.cuda``. Both are
answered here for a CPU, with what verl 0.9.1 really calls.
"""

from __future__ import annotations

import os
import types
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry

ROLLOUT = "deltamem_cpu"
"""The value of ``actor_rollout_ref.rollout.name`` that selects the rollout of this package."""


class _DeviceModule(types.ModuleType):
    """``torch.cpu`` with the memory and random-state functions of ``torch.cuda``."""

    def __init__(self) -> None:
        super().__init__("deltamem.training.verl_cpu.device")
        for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
            setattr(self, name, lambda *_arguments: 0)
        for name in ("empty_cache", "reset_peak_memory_stats", "set_device", "synchronize", "ipc_collect"):
            setattr(self, name, _nothing)
        self.is_available = lambda: False
        self.device_count = lambda: 1
        self.current_device = lambda: "cpu"
        self.get_device_name = lambda *_args, **_kwargs: "CPU"
        self.mem_get_info = lambda *_args, **_kwargs: (0, 0)
        # verl's checkpoints store and restore the accelerator's random state.
        self.get_rng_state = torch.get_rng_state
        self.set_rng_state = torch.set_rng_state

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def _nothing(*_args: object, **_kwargs: object) -> None:
    return None


class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """What verl asks of an accelerator, answered for a CPU."""

    _module = _DeviceModule()

    device_name = vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: self._module)
    is_available = staticmethod(lambda: True)
    is_ipc_supported = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: "cpu")  # no index: verl calls ``tensor.to(get_device_id())``
    get_device_capability = staticmethod(lambda device_index=0: (None, None))
    visible_devices_envvar = staticmethod(lambda: "CUDA_VISIBLE_DEVICES")  # nothing reads it here
    ray_resource_name = staticmethod(lambda: "GPU")  # verl counts only GPUs and NPUs: the ray instance pretends to have one
    ray_noset_envvars = staticmethod(lambda: list[str]())
    nvtx_range = staticmethod(lambda msg: nullcontext())
    set_device = synchronize = set_allocator_settings = empty_cache = staticmethod(_nothing)
    profiler_start = profiler_stop = cudart = staticmethod(_nothing)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)

    def communication_backend_name(self) -> str:
        """Return "gloo", after making the process group.

        verl would ask torch for the backend ``cpu:gloo,cpu:gloo``, a duplicate key; it asks for this name first and leaves
        a group that exists alone.
        """
        if os.environ.get("WG_BACKEND") == "ray" and not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                "cpu:gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
            )
        return "gloo"


def register() -> None:
    """Make platform "cpu" and the rollout of this package known to verl."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    PlatformRegistry.register(platform="cpu")(CpuPlatform)
    RolloutReplicaRegistry.register(ROLLOUT, _load_replica)
    _ROLLOUT_REGISTRY[(ROLLOUT, "async")] = "deltamem.training.verl_cpu.server.CpuServerAdapter"


def _load_replica() -> type:
    from deltamem.training.verl_cpu.server import CpuReplica

    return CpuReplica
