"""Both ends of the socket that new weights take from verl's trainer to vLLM, under a name that no other run has.

verl names it by the id of Ray's job, which begins at 1 in every Ray instance: on a node that two jobs of Slurm share, a run
would get the other's weights.
"""

from __future__ import annotations

import os
from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter


def channel() -> str:
    """The name of this run on this node; only Ray's workers may ask for it.

    A Ray instance has a node id of its own, and the runs that share one have different job ids. The first half of the id
    must do: the path of a socket has at most 107 characters.
    """
    context = ray.get_runtime_context()
    return f"{context.get_job_id()}-{context.get_node_id()[:28]}"


class ChannelAdapter(ServerAdapter):  # type: ignore[misc]
    """The trainer's end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Find the replica of this rank; verl calls this."""
        super().__init__(*args, **kwargs)
        self.zmq_handle: str = self.zmq_handle.replace(f"-{ray.get_runtime_context().get_job_id()}-", f"-{channel()}-")


class ChannelServer(vLLMHttpServer):  # type: ignore[misc]
    """Runs vLLM, whose processes are no workers of Ray and read the name from the environment; a Ray actor."""

    def _post_init(self, cuda_visible_devices: str) -> None:
        super()._post_init(cuda_visible_devices)
        os.environ["VERL_RAY_JOB_ID"] = channel()


class ChannelReplica(vLLMReplica):  # type: ignore[misc]
    """Starts the server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Prepare a replica; verl calls this."""
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(ChannelServer)
