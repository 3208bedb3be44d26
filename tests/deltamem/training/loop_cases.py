"""The agent loop with a scripted server, under the chat templates of several models."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from chat_cases import OPENED, QWEN3, qwen_tokenizer
from lazy import names
from omegaconf import OmegaConf
from training_cases import labelled_session

from deltamem.embedding import Vectors
from deltamem.episode import EpisodeConfig, Trajectory
from deltamem.sessions import LabelledSession, to_json_line
from deltamem.training.chatml import CHAT_TEMPLATE as TINY

PreTrainedTokenizerFast = names("transformers", "PreTrainedTokenizerFast")
AgentLoopOutput, DictConfigWrap = names("verl.experimental.agent_loop.agent_loop", "AgentLoopOutput DictConfigWrap")
RLHFDataset = names("verl.utils.dataset.rl_dataset", "RLHFDataset")
TokenOutput = names("verl.workers.rollout.replica", "TokenOutput")
DeltaMemAgentLoop, Services = names("deltamem.training.agent_loop", "DeltaMemAgentLoop Services")
EmbeddingClient, TextVectors = names("deltamem.training.embedding_service", "EmbeddingClient TextVectors")

CALL = '<tool_call>{"name": "search_memory", "arguments": {"query_list": ["home"]}}</tool_call>'
SEARCH = f"<think>look</think>{CALL}"
FIRST_WEIGHTS = 6
"""Training step whose weights the scripted server says it has."""


def answer(*operations: dict[str, str]) -> str:
    return f"<think>so</think><outputs>{json.dumps({'operations': list(operations)})}</outputs>"


@dataclass(frozen=True)
class Chat:
    """A way to talk to a model."""

    template: str
    options: dict[str, Any]  # of the template
    opening: str  # what the template writes of the assistant's turn
    search: str  # what the model writes to search
    final: str  # what the model writes to answer
    results: tuple[str, str] = ("<tool_response>\n", "\n</tool_response>")  # written around the tool's answer

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return qwen_tokenizer(self.template)

    @property
    def thinking(self) -> bool:
        return "</think>" not in self.opening


ADDED = '<outputs>{"operations": [{"text": "Person0 has a cat.", "event": "ADD"}]}</outputs>'
THOUGHT = "<think>\nWhat is known of the home? 家\n</think>\n\n"
CHATS = {
    "tiny": Chat(TINY, {}, "", SEARCH, f"<think>so</think>{ADDED}", ("<tool_response>", "</tool_response>")),
    "qwen3": Chat(QWEN3, {"enable_thinking": True}, "", THOUGHT + CALL, THOUGHT + ADDED),
    "qwen3_direct": Chat(QWEN3, {"enable_thinking": False}, "<think>\n\n</think>\n\n", CALL, ADDED),
    "opened": Chat(OPENED, {}, "<think>\n", THOUGHT[8:] + CALL, THOUGHT[8:] + ADDED),
}


NEVER: list[int] = []
"""What the scripted server takes for ever to write."""
ABORTED = [5, 6]
"""Tokens after which the scripted server breaks a turn off."""


class ScriptedServer:
    """Plays given assistant turns, as texts or tokens, and remembers what it was asked."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, script: Sequence[str | list[int]]) -> None:
        self.tokenizer = tokenizer
        self.script = list(script)
        self.prompts: list[list[int]] = []
        self.answers: list[list[int]] = []
        self.sampling: list[dict[str, Any]] = []
        self.requests: list[str] = []

    async def generate(self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        written = self.script[len(self.answers)]
        if written is NEVER:
            await asyncio.Event().wait()
        if isinstance(written, str):
            written = [*self.tokenizer.encode(written, add_special_tokens=False), self.tokenizer.eos_token_id]
        # Like an engine: it stops at the first end of a turn, and at the limit.
        ends = [place for place, token in enumerate(written) if token in sampling_params["stop_token_ids"]]
        ids = written[: ends[0] + 1] if ends else written
        assert sampling_params["max_tokens"] >= 1
        ids = ids[: sampling_params["max_tokens"]]
        self.requests.append(request_id)
        self.prompts.append(list(prompt_ids))
        self.answers.append(list(ids))
        self.sampling.append(dict(sampling_params))
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids) if sampling_params.get("logprobs") else None,
            stop_reason="aborted" if written is ABORTED else None,
            extra_fields={"global_steps": FIRST_WEIGHTS},
        )


@dataclass(frozen=True)
class Score:
    reward: float = 0.25


class RecordingScorer:
    """Embeds what a reward would and keeps the trajectory."""

    def __init__(self) -> None:
        self.trajectory: Trajectory | None = None
        self.threads: set[str] = set()

    @property
    def seen(self) -> Trajectory:
        """The trajectory that was scored."""
        assert self.trajectory is not None
        return self.trajectory

    def __call__(
        self, labelled: LabelledSession, trajectory: Trajectory, embed: Callable[[Sequence[str]], Any]
    ) -> tuple[dict[str, float], Score]:
        self.trajectory = trajectory
        self.threads.add(threading.current_thread().name)
        texts = [memory.text for memory in labelled.prior_state.memories]
        texts += [operation.text for operation in (*labelled.operations, *(trajectory.operations or ()))]
        assert embed(texts).shape == (len(texts), 8)
        return {"reward": 0.25, "format": float(not trajectory.violations), "count/episodes": 1.0}, Score()


async def toy_vectors(texts: list[str]) -> Vectors:
    """Two directions: what has to do with a home, and the rest."""
    rows = np.zeros((len(texts), 8), dtype=np.float32)
    for row, text in zip(rows, texts, strict=True):
        row[0 if "lives" in text or "home" in text else 1] = 1.0
    return rows


def make_loop(
    chat: Chat,
    script: Sequence[str | list[int]],
    *,
    prompt_length: int = 4096,
    response_length: int = 2048,
    max_model_len: int | None = None,
    model: str | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    max_turns: int = 3,
    max_invalid_calls: int = 0,
    turn_tokens: int = 512,
    thinking: bool | None = None,
    model_type: str = "qwen3",
    **shared: Any,
) -> tuple[DeltaMemAgentLoop, ScriptedServer, RecordingScorer]:
    """A loop over what the script writes; `shared` are further fields of `Services`."""
    lengths = {"prompt_length": prompt_length, "response_length": response_length, "max_model_len": max_model_len}
    actor = {"model": {"path": model}, "rollout": lengths}
    config = OmegaConf.create({"actor_rollout_ref": actor, "data": {"apply_chat_template_kwargs": chat.options}})
    tokenizer = tokenizer or chat.tokenizer
    server, scorer = ScriptedServer(tokenizer, script), RecordingScorer()
    episode = EpisodeConfig(
        "manager_compact",
        "session_compact",
        k=1,
        max_turns=max_turns,
        thinking=chat.thinking if thinking is None else thinking,
        max_invalid_calls=max_invalid_calls,
    )
    loop = DeltaMemAgentLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=server,
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        hf_model_type=model_type,
        shared=Services(
            episode=episode,
            turn_tokens=turn_tokens,
            scorer=scorer,
            embeddings=EmbeddingClient(documents=TextVectors(toy_vectors), queries=TextVectors(toy_vectors)),
            **shared,
        ),
    )
    return loop, server, scorer


async def run(
    loop: DeltaMemAgentLoop, session: str | None = None, *, log_probs: bool = True, rollout: int = 0, **row: Any
) -> AgentLoopOutput:
    fields = {"session": session or to_json_line(labelled_session(0)), "key": "p0/0", "split": "train", "index": 0, **row}
    return await loop.run(
        {"temperature": 1.0, "logprobs": log_probs},
        extra_info=fields,
        global_steps=7,
        session_id=rollout,
        uid="of the prompt",
    )
