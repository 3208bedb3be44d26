"""Names of vLLM that are classes without anything: verl's modules around it can be imported where there is none.

    python vllm_stub.py NODE...

prints both ends of the channel for new weights, as runs on Ray nodes of these ids name them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch


class Stub(ModuleType):
    """A package in which every name is a class."""

    __version__ = "0.24.0"
    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds everything below ``vllm``."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "vllm" else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def ends(node: str) -> tuple[str, str]:
    """The names that trainer and engine have for the channel of the fourth GPU, an engine of its own."""
    import ray
    from omegaconf import OmegaConf
    from verl.workers.rollout.base import BaseRollout, get_rollout_class
    from verl.workers.rollout.replica import get_rollout_replica_class
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    rollout = {"tensor_model_parallel_size": 1, "data_parallel_size": 1, "pipeline_model_parallel_size": 1}
    config = OmegaConf.create(rollout | {"layered_summon": False})
    here = SimpleNamespace(get_job_id=lambda: "01000000", get_node_id=lambda: node)
    os.environ |= {"RANK": "3", "RAY_LOCAL_WORLD_SIZE": "8", "VERL_REPLICA_RANK": "3"}
    with (
        patch.object(ray, "get_runtime_context", lambda: here),
        patch.object(BaseRollout, "__init__", lambda self, *_: setattr(self, "config", config)),
        patch.object(ray, "remote", lambda kind: kind),
        patch.object(vLLMHttpServer, "_post_init", lambda *_: None),
        patch("verl.workers.rollout.replica.omega_conf_to_dataclass", lambda given: given),
    ):
        adapter = get_rollout_class("vllm")(config, None, None)
        # What verl's server does when it is made, and what the worker in its engine's process then reads.
        os.environ["VERL_RAY_JOB_ID"] = here.get_job_id()
        server = get_rollout_replica_class("vllm")(3, config, None).server_class
        server._post_init(object.__new__(server), "3")
        worker = SimpleNamespace(model_runner=None, local_rank=0)
        return adapter.zmq_handle, vLLMColocateWorkerExtension._get_zmq_handle(worker)


if __name__ == "__main__":
    sys.meta_path.insert(0, Finder())
    real = importlib.metadata.version
    with patch.object(importlib.metadata, "version", lambda name: Stub.__version__ if name == "vllm" else real(name)):
        for node in sys.argv[1:]:
            print(*ends(node))
