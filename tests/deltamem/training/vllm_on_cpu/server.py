"""verl's own vLLM server on a CPU, and both ends of the way that weights take to it."""

from __future__ import annotations

import os
from typing import Any

import ray
import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from deltamem.training.verl_cpu import thread_count

SOCKET = "DELTAMEM_VLLM_SOCKET"
"""Environment variable: where vLLM's process, which is no ray worker, receives weights."""


def socket_name(replica_rank: int) -> str:
    """Address on which a replica receives weights; only ray workers may ask for it.

    verl's own name holds ray's job id, which is the same in every ray instance that serves one job: two runs on a machine
    would meet. A node's id is unique. The name is an abstract one, so a run that is killed leaves no file behind.
    """
    return f"ipc://@deltamem-{ray.get_runtime_context().get_node_id()}-{replica_rank}"


class CpuVllmAdapter(ServerAdapter):  # type: ignore[misc]
    """The trainer's end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Find the replica of this rank; verl calls this."""
        super().__init__(*args, **kwargs)
        self.zmq_handle = socket_name(self.replica_rank)


class CpuVllmWorker(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """vLLM's end: methods that vLLM's worker inherits, in the process that holds the model."""

    def __new__(cls, **kwargs: Any) -> CpuVllmWorker:
        """Set the thread count, which vLLM forbids to change later; the environment gives every process one thread."""
        torch.set_num_threads(thread_count())
        worker: CpuVllmWorker = super().__new__(cls, **kwargs)
        return worker

    def _get_zmq_handle(self) -> str:
        return os.environ[SOCKET]

    def update_weights_from_ipc(
        self, peft_config: dict[str, Any] | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Take new weights, layer by layer as after a start.

        On a CPU vLLM packs the weights of a layer for oneDNN and drops the originals, so nothing is left that verl's own
        method could write to. vLLM's layerwise reload brings the parameters back and packs them again.
        """
        if peft_config and base_sync_done:
            # An adapter on its own is not packed.
            super().update_weights_from_ipc(peft_config, base_sync_done, use_shm)
            return
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        model = self.model_runner.model

        def load(weights: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            # The reload keeps a layer's tensors until all have come; the shared memory they lie in is used again sooner.
            model.load_weights([(name, tensor.clone()) for name, tensor in weights])

        initialize_layerwise_reload(model)
        BucketedWeightReceiver(zmq_handle=self._get_zmq_handle(), device=self.device, use_shm=use_shm).receive_weights(load)
        finalize_layerwise_reload(model, self.model_runner.vllm_config.model_config)


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
