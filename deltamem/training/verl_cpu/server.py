"""The CPU rollout: the server that samples requests in batches, its replica, and the adapter that sends it weights."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from deltamem.local_policy import BatchGenerator, Generated, check_architecture
from deltamem.training.verl_cpu import thread_count

_QUIET_SECONDS = 0.02
"""A batch starts when no request came for this long; rollouts of one step ask almost at once."""


@dataclass(frozen=True)
class _Request:
    prompt: list[int]
    limit: int
    temperature: float
    seed: int | None
    answer: asyncio.Future[Generated]


class CpuServer:
    """Holds a copy of the policy in float32 and answers verl's token requests; runs as a ray actor."""

    def __init__(self, *, model_path: str, max_length: int, max_batch: int, seed: int, threads: int) -> None:
        """Build the model without weights; the trainer sends them before the first request.

        `max_length` limits prompt and response together, `max_batch` the requests sampled at once; `seed` is for requests
        without one of their own.
        """
        torch.set_num_threads(threads)
        config = AutoConfig.from_pretrained(model_path)
        check_architecture(config, model_path)
        self._model = AutoModelForCausalLM.from_config(config).float().eval()
        self._eos_ids = eos_ids(model_path)
        self._generator = BatchGenerator(self._model, eos_ids=self._eos_ids, seed=seed)
        self._max_length = max_length
        self._max_batch = max_batch
        self._global_steps: int | None = None
        self._queue: asyncio.Queue[_Request] = asyncio.Queue()
        self._pump: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1)

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_ignored: Any
    ) -> TokenOutput:
        """Continue a prompt; the interface of verl's servers. An option that the sampler does not have is refused."""
        if sampling_params.get("top_p", 1.0) != 1.0 or sampling_params.get("top_k", -1) not in (-1, 0):
            raise ValueError(f"the CPU rollout samples from the whole distribution, got {sampling_params}")
        if unknown := set(sampling_params.get("stop_token_ids") or ()) - self._eos_ids:
            raise ValueError(f"{sorted(unknown)}: no end-of-turn tokens of the tokenizer or the generation configuration")
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())
        room = self._max_length - len(prompt_ids)
        request = _Request(
            prompt=list(prompt_ids),
            limit=max(1, min(int(sampling_params.get("max_tokens") or room), room)),
            temperature=float(sampling_params.get("temperature", 1.0)),
            seed=sampling_params.get("seed"),
            answer=asyncio.get_running_loop().create_future(),
        )
        self._queue.put_nowait(request)
        generated = await request.answer
        return TokenOutput(
            token_ids=generated.token_ids,
            log_probs=generated.log_probs,
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": self._global_steps},
        )

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._collect()
            try:
                generated = await loop.run_in_executor(self._thread, self._sample, batch)
            except Exception as error:
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
                continue
            for request, answer in zip(batch, generated, strict=True):
                # A request that was cancelled meanwhile must not end the pump for all others.
                if not request.answer.done():
                    request.answer.set_result(answer)

    async def _collect(self) -> list[_Request]:
        batch = [await self._queue.get()]
        while len(batch) < self._max_batch:
            await asyncio.sleep(_QUIET_SECONDS)
            if self._queue.empty():
                break
            while not self._queue.empty() and len(batch) < self._max_batch:
                batch.append(self._queue.get_nowait())
        return batch

    def _sample(self, batch: list[_Request]) -> list[Generated]:
        return self._generator.generate(
            [request.prompt for request in batch],
            [request.limit for request in batch],
            [request.temperature for request in batch],
            [request.seed for request in batch],
        )

    async def load_weights(self, named: dict[str, torch.Tensor], global_steps: int | None) -> None:
        """Take new weights, all parameters by name, made by a training step that is reported with every answer."""
        missing, unexpected = self._model.load_state_dict(named, strict=False)
        if self._model.config.tie_word_embeddings:
            missing = [name for name in missing if name != "lm_head.weight"]
        if missing or unexpected:
            raise ValueError(f"weights do not fit the model: missing {missing[:3]}, unexpected {unexpected[:3]}")
        self._global_steps = global_steps

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Do nothing: weights and caches of a small model stay in memory, and no cache outlives a batch."""

    sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = resume_generation = wake_up

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Do nothing: a batch ends by itself, and answers that nobody waits for are dropped."""


def eos_ids(model_path: str) -> set[int]:
    """Tokens that end a turn: the tokenizer's and those of the generation configuration, if there is one."""
    ids = {AutoTokenizer.from_pretrained(model_path).eos_token_id}
    try:
        listed = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:
        listed = None
    ids |= set(listed) if isinstance(listed, list) else {listed}
    return {int(token) for token in ids if token is not None}


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
