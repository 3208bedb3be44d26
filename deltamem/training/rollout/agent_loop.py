"""The DeltaMem episode as a verl agent loop: token in, token out, with the reward of the finished trajectory."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from uuid import uuid4

import hydra
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.utils.profiler import simple_timer

from deltamem.bank.protocol import merge_hits
from deltamem.bank.snapshot import SnapshotBank
from deltamem.embedding import Vectors
from deltamem.episode import Episode, EpisodeConfig, Search, Trajectory
from deltamem.memory import apply
from deltamem.protocol import Violation
from deltamem.scoring import Scorer
from deltamem.sessions import LabelledSession, from_json_line
from deltamem.training.embeddings.actor import EmbeddingClient, Lookup, connect

logger = logging.getLogger(__name__)

FAILURE = "failure"
"""Key of the reward figures: 1 if our own machinery broke."""


@dataclass
class _Tokens:
    """The growing sequence; mask and log-probs cover what follows the prompt."""

    ids: list[int]
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def prompt_ids(self) -> list[int]:
        return self.ids[: len(self.ids) - len(self.mask)]

    @property
    def response_ids(self) -> list[int]:
        return self.ids[len(self.ids) - len(self.mask) :]


@dataclass(frozen=True)
class Services:
    """What all rollouts of a worker share.

    Attributes:
        episode: Prompts and limits.
        turn_tokens: Most tokens of one assistant turn.
        scorer: Scores a finished episode.
        embeddings: Gives vectors.
    """

    episode: EpisodeConfig
    turn_tokens: int
    scorer: Scorer
    embeddings: EmbeddingClient


@cache
def services(settings: str) -> Services:
    """Build what the rollouts share, once a worker process.

    Args:
        settings: JSON with `episode` (fields of `EpisodeConfig`), `turn_tokens`, `scorer` (a Hydra ``_target_``) and
            `embedder` (arguments of `deltamem.training.embeddings.actor.connect`).
    """
    values = json.loads(settings)
    fields = values["episode"]
    return Services(
        episode=EpisodeConfig(**{**fields, "memory_fields": tuple(fields["memory_fields"])}),
        turn_tokens=values["turn_tokens"],
        scorer=hydra.utils.instantiate(values["scorer"]),
        embeddings=connect(**values["embedder"]),
    )


class DeltaMemAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Drives an `Episode` with verl's server and scores it."""

    def __init__(self, *args: Any, settings: str | None = None, shared: Services | None = None, **kwargs: Any) -> None:
        """Make a loop for one trajectory.

        verl instantiates it with Hydra for every rollout, which takes a while for each key of a nested configuration;
        therefore the settings come as one string.

        Args:
            args: What verl passes on.
            settings: See `services`.
            shared: The services themselves, instead of `settings`.
            kwargs: What verl passes on.

        Raises:
            ValueError: If there are neither settings nor services.
        """
        super().__init__(*args, **kwargs)
        if shared is None and settings is None:
            raise ValueError("the agent loop needs settings")
        self._shared = shared or services(settings or "")

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Run one episode over a row of the data set.

        Whatever breaks is logged and becomes a failed trajectory without a gradient: verl would swallow the exception and
        go on with fewer rollouts. `deltamem.training.rollout.replay_buffer` counts the failures and ends the run if they
        are many.

        Args:
            sampling_params: Of verl.
            kwargs: The row.
        """
        metrics: dict[str, float] = {}
        versions: list[int] = []
        tokens = _Tokens([])
        try:
            labelled = from_json_line(kwargs["extra_info"]["session"])
            trajectory = await self._drive(labelled, tokens, sampling_params, metrics, versions)
            with simple_timer("compute_score", metrics):
                figures = {**await self._score(labelled, trajectory), FAILURE: 0.0}
        except Exception as error:
            logger.exception("episode failed: %s", kwargs.get("extra_info", {}).get("key", "unreadable row"))
            end = self.tokenizer.eos_token_id
            tokens = _Tokens([*(tokens.prompt_ids or [end]), end], mask=[0], log_probs=[0.0])
            trajectory = Trajectory(messages=(), failure=f"{type(error).__name__}: {error}")
            figures = {"reward": 0.0, FAILURE: 1.0}
        step = max(int(kwargs.get("global_steps", 1)) - 1, 0)
        return AgentLoopOutput(
            prompt_ids=tokens.prompt_ids,
            response_ids=tokens.response_ids,
            response_mask=tokens.mask,
            response_logprobs=tokens.log_probs,
            reward_score=figures["reward"],
            num_turns=max(len(trajectory.messages) - 1, 1),
            metrics=AgentLoopMetrics(**metrics),
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                "min_global_steps": min(versions, default=step),
                "max_global_steps": max(versions, default=step),
                "failure": trajectory.failure,
                # "reward" itself is added by verl.
                "reward_extra_info": {name: value for name, value in figures.items() if name != "reward"},
            },
        )

    async def _drive(
        self,
        labelled: LabelledSession,
        tokens: _Tokens,
        sampling_params: dict[str, Any],
        metrics: dict[str, float],
        versions: list[int],
    ) -> Trajectory:
        episode = Episode(labelled.session, labelled.prior_state.keys(), self._shared.episode)
        tokens.ids = await self.ct_build_initial_tokens(list(episode.messages))
        if len(tokens.ids) >= self.rollout_config.prompt_length:
            # verl cuts longer prompts on the left, which would take the instructions away.
            raise ValueError(f"the prompt does not fit into data.max_prompt_length={self.rollout_config.prompt_length}")
        bank: SnapshotBank | None = None
        request = uuid4().hex
        while True:
            room = min(self._shared.turn_tokens, self.rollout_config.response_length - len(tokens.mask))
            with simple_timer("generate_sequences", metrics):
                answer = await self.server_manager.generate(
                    request_id=request, prompt_ids=tokens.ids, sampling_params={**sampling_params, "max_tokens": room}
                )
            if (version := answer.extra_fields.get("global_steps")) is not None:
                versions.append(int(version))
            merged, tokens.mask, log_probs = await self.ct_merge_assistant_token(
                tokens.ids, answer.token_ids, tokens.mask, tokens.log_probs, assistant_logprobs=answer.log_probs
            )
            tokens.ids, tokens.log_probs = merged.token_ids, log_probs or []
            text, stopped = self._text(answer.token_ids)
            step = episode.read(text, truncated=not stopped)
            if not isinstance(step, Search):
                return episode.trajectory
            with simple_timer("tool_calls", metrics):
                bank = bank or await self._bank(labelled)
                found = bank.search(await self._shared.embeddings.queries(step.queries), self._shared.episode.k)
                before = list(episode.messages)
                episode.answer(merge_hits(found))
                merged, mask, log_probs = await self.ct_merge_context_msg(
                    before, list(episode.messages), tokens.ids, tokens.mask, tokens.log_probs
                )
            if len(mask) >= self.rollout_config.response_length:
                # The sequence ends with the model's own last token: what did not fit was never seen by it.
                episode.stop(Violation.TOKEN_LIMIT)
                return episode.trajectory
            tokens.ids, tokens.mask, tokens.log_probs = merged.token_ids, mask, log_probs or []

    def _text(self, token_ids: list[int]) -> tuple[str, bool]:
        """The assistant text without its end-of-turn token, and whether there was one."""
        stopped = bool(token_ids) and token_ids[-1] == self.tokenizer.eos_token_id
        body = token_ids[:-1] if stopped else token_ids
        # Special tokens stay visible: a stray one is text outside the tags, not nothing.
        text = self.tokenizer.decode(body, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text), stopped

    async def _bank(self, labelled: LabelledSession) -> SnapshotBank:
        texts = [memory.text for memory in labelled.prior_state.memories]
        return SnapshotBank(
            labelled.session.person_id, labelled.prior_state, Lookup(await self._shared.embeddings.documents(texts))(texts)
        )

    async def _score(self, labelled: LabelledSession, trajectory: Trajectory) -> dict[str, float]:
        predicted = apply(labelled.prior_state, trajectory.operations or (), labelled.session.time)
        texts = {
            memory.text for state in (labelled.prior_state, predicted, labelled.next_state) for memory in state.memories
        }
        texts |= {operation.text for operation in (*labelled.operations, *(trajectory.operations or ()))}
        vectors: Mapping[str, Vectors] = await self._shared.embeddings.documents(sorted(texts))
        return self._shared.scorer(labelled, trajectory, Lookup(vectors))
