"""verl on GPUs: vLLM as verl runs it, but no two runs on a node share the way that new weights take.

verl imports this package where ``VERL_USE_EXTERNAL_MODULES`` names it. Nothing here needs vLLM before it is used.
"""

from __future__ import annotations

from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplicaRegistry


def _load_replica() -> type:
    from deltamem.training.verl_gpu.vllm import ChannelReplica

    return ChannelReplica


RolloutReplicaRegistry.register("vllm", _load_replica)
_ROLLOUT_REGISTRY[("vllm", "async")] = "deltamem.training.verl_gpu.vllm.ChannelAdapter"
