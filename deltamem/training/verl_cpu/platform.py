"""A CPU as a verl platform.

verl reaches its accelerator through a platform object and a "device module" with the functions of ``torch.cuda``. Both are
answered here for a CPU, with what verl 0.9.1 really calls.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
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
            setattr(self, name, _zero)
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


def _zero(*_args: object, **_kwargs: object) -> int:
    return 0


def _nothing(*_args: object, **_kwargs: object) -> None:
    return None


class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """What verl asks of an accelerator, answered for a CPU."""

    _module = _DeviceModule()

    set_device = synchronize = set_allocator_settings = empty_cache = staticmethod(_nothing)
    profiler_start = profiler_stop = cudart = staticmethod(_nothing)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)

    @property
    def device_name(self) -> str:
        """Name of the torch device."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """Name of the vendor."""
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        """The stand-in for ``torch.cuda``."""
        return self._module

    def is_available(self) -> bool:
        """There is always a CPU."""
        return True

    def current_device(self) -> Any:
        """Return "cpu", not an index: verl calls ``tensor.to(get_device_id())``."""
        return "cpu"

    def device_count(self) -> int:
        """One device a process."""
        return 1

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """No compute capability."""
        return None, None

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

    def visible_devices_envvar(self) -> str:
        """The variable that would hide devices; nothing reads it here."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Mark nothing."""
        yield

    def ray_resource_name(self) -> str:
        """Return "GPU": verl counts only GPUs and NPUs, so the ray instance pretends to have one."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """None."""
        return []

    def is_ipc_supported(self) -> bool:
        """No device memory to share."""
        return False


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
