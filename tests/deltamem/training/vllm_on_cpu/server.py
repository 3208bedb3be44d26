"""verl's own vLLM server on a CPU; the weights come through the socket that runs on GPUs have."""

from __future__ import annotations

from typing import Any

import ray
import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from deltamem.training.verl_cpu import thread_count
from deltamem.training.verl_gpu.vllm import ChannelReplica, ChannelServer


class CpuVllmWorker(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """vLLM's end: methods that vLLM's worker inherits, in the process that holds the model."""

    def __new__(cls, **kwargs: Any) -> CpuVllmWorker:
        """Set the thread count, which vLLM forbids to change later; the environment gives every process one thread."""
        torch.set_num_threads(thread_count())
        worker: CpuVllmWorker = super().__new__(cls, **kwargs)
        return worker

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


class CpuVllmServer(ChannelServer):
    """Runs vLLM; a ray actor."""

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)
        engine_kwargs["distributed_executor_backend"] = "uni"

    def _get_worker_extension_cls(self) -> str:
        return f"{CpuVllmWorker.__module__}.{CpuVllmWorker.__qualname__}"


class CpuVllmReplica(ChannelReplica):
    """Starts the server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Prepare a replica; verl calls this."""
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(CpuVllmServer)
