"""The DeltaMem episode as a verl agent loop: token in, token out, with the reward of the finished trajectory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from typing import Any
from uuid import uuid4

import hydra
from omegaconf import OmegaConf
from transformers import GenerationConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.utils.profiler import simple_timer

from deltamem.bank.base import SnapshotBank, merge_hits
from deltamem.chat_template import ChatTokenizer, TurnFormat, turn_format
from deltamem.episode import (
    Episode,
    EpisodeConfig,
    EpisodeSettings,
    Finished,
    Scorer,
    Search,
    Trajectory,
    Violation,
    trajectory_fields,
)
from deltamem.sessions import LabelledSession, from_json_line
from deltamem.training.config import Overlong
from deltamem.training.embedding_service import EmbeddingClient, Lookup, connect
from deltamem.training.metrics import ROLLOUT_INFO, RolloutInfo

logger = logging.getLogger(__name__)

FAILURE = "failure"
"""Key of the reward figures: 1 if our own machinery broke."""

GIVEN_UP = "the episode was given up"
"""How the failure of an episode begins whose time was over; its request to the engine may still be under way."""


@dataclass
class TokenSequence:
    """Prompt and response as one growing list of ids."""

    ids: list[int] = field(default_factory=list)  # prompt and response
    mask: list[int] = field(default_factory=list)  # of the response: 1 where the model wrote the token
    # Of the response: the server's log-probabilities, 0 where the model did not write; None if the trainer wants none.
    log_probs: list[float] | None = None

    @property
    def prompt_ids(self) -> list[int]:
        """All before the first token of the model."""
        return self.ids[: len(self.ids) - len(self.mask)]

    @property
    def response_ids(self) -> list[int]:
        """The model's turns and the tool's answers."""
        return self.ids[len(self.ids) - len(self.mask) :]

    def closed(self, closing: int | None) -> TokenSequence:
        """The sequence with the end of the last turn as the chat template writes it (`TurnFormat.closing`).

        A model may end its turn with another token, Qwen3 with ``<|endoftext|>``. That one stays, for it was sampled.
        """
        if closing is None or self.ids[-1] == closing:
            return self
        log_probs = None if self.log_probs is None else [*self.log_probs, 0.0]
        return TokenSequence([*self.ids, closing], [*self.mask, 0], log_probs)

    def without_response(self, end: int) -> TokenSequence:
        """A failed rollout as the trainer gets it: the prompt (or `end`) and `end`, from which nothing is learned."""
        return TokenSequence([*(self.prompt_ids or [end]), end], [0], None if self.log_probs is None else [0.0])


def turn_seed(run_seed: int, key: str, step: int, rollout: int, turn: int) -> int:
    """The seed of one assistant turn (63 bits), the same whenever and wherever it is sampled.

    `key` names the session, `step` is the trainer's, `rollout` counts within the group and `turn` within the rollout.
    """
    named = json.dumps([run_seed, key, step, rollout, turn]).encode("utf-8")
    return int.from_bytes(hashlib.sha256(named).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class Services:
    """What all rollouts of a worker share."""

    episode: EpisodeConfig
    turn_tokens: int  # most tokens of one assistant turn
    scorer: Scorer
    embeddings: EmbeddingClient
    seconds: float | None = None  # that an episode may take, with its waiting for the engine; None: as long as it likes
    seed: int | None = None  # of the run; None leaves the sampling to the server
    overlong: Overlong | None = None
    shown_sessions: int = 0  # one rollout of each of the first held-out sessions becomes a validation generation


@cache
def services(settings: str) -> Services:
    """Build what the rollouts share, once a worker process, from the JSON of `launch.agent_loop_config`."""
    values = json.loads(settings)
    return Services(
        episode=EpisodeSettings.model_validate(values["episode"]).config(),
        turn_tokens=values["turn_tokens"],
        scorer=hydra.utils.instantiate(values["scorer"]),
        embeddings=connect(**values["embedder"]),
        seconds=values["seconds"],
        seed=values["seed"],
        overlong=None if values["overlong"] is None else Overlong(**values["overlong"]),
        shown_sessions=values["shown_sessions"],
    )


@lru_cache(maxsize=8)
def frame_of(tokenizer: ChatTokenizer, options: str, model: str | None) -> TurnFormat:
    """The frame of a turn, worked out once a process.

    `options` are the chat template's, as JSON; the generation configuration of `model` may list more end-of-turn tokens.
    """
    listed = None
    if model is not None:
        try:
            listed = GenerationConfig.from_pretrained(model).eos_token_id
        except OSError:  # most models made from scratch have none
            logger.info("%s: no generation configuration", model)
    return turn_format(tokenizer, template_options=json.loads(options), eos_ids=listed)


@dataclass
class _Rollout:
    """What is known of a rollout while it runs, and still is if it fails."""

    sampling: Mapping[str, Any]
    key: str  # of the session
    step: int  # the trainer's
    number: int  # within the group
    tokens: TokenSequence
    metrics: dict[str, float] = field(default_factory=dict)  # verl's names
    request: str = ""  # by which verl finds the engine again
    longest_turn: int = 0  # tokens
    versions: list[int] = field(default_factory=list)  # training step of the weights behind each turn


class DeltaMemAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Drives an `Episode` with verl's server and scores it."""

    def __init__(self, *args: Any, settings: str | None = None, shared: Services | None = None, **kwargs: Any) -> None:
        """Make a loop for one trajectory from the settings (see `services`) or from ready services.

        verl instantiates it with Hydra for every rollout, which takes a while for each key of a nested configuration;
        therefore the settings come as one string.
        """
        super().__init__(*args, **kwargs)
        if shared is None and settings is None:
            raise ValueError("the agent loop needs settings")
        self._shared = shared or services(settings or "")

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Run one episode over a row of the data set; `kwargs` are the row, and verl's ``global_steps`` and ``session_id``.

        Whatever breaks is logged and becomes a failed trajectory without a gradient: verl would swallow the exception and
        go on with fewer rollouts. `DeltaMemReplayBuffer` counts the failures and ends the run if there are many.
        """
        row: Mapping[str, Any] = kwargs.get("extra_info") or {}
        rollout = _Rollout(
            sampling=sampling_params,
            key=str(row.get("key", "unreadable row")),
            step=int(kwargs.get("global_steps", 1)),
            number=int(kwargs.get("session_id", 0)),
            tokens=TokenSequence(log_probs=[] if sampling_params.get("logprobs") else None),
            request=self._request(kwargs.get("uid")),
        )
        heldout = row.get("split") == "heldout"
        shown = self._shared.shown_sessions
        generation: dict[str, Any] | None = None
        deadline = asyncio.timeout(self._shared.seconds)
        try:
            async with deadline:
                labelled = from_json_line(row["session"])
                trajectory = await self._drive(labelled, rollout)
                with simple_timer("compute_score", rollout.metrics):
                    figures, score = await self._score(labelled, trajectory)
            figures = {**figures, FAILURE: 0.0}
            if self._shared.overlong is not None and not heldout:
                penalty = self._too_long(self._shared.overlong, trajectory, rollout)
                figures |= {"reward": figures["reward"] - penalty, "overlong": penalty}
            if heldout and rollout.number == 0 and int(row.get("index", shown)) < shown:
                generation = {"session": row["session"], **trajectory_fields(trajectory), "score": asdict(score)}
        except Exception as error:
            logger.exception("episode failed: %s", rollout.key)
            rollout.tokens = rollout.tokens.without_response(self.tokenizer.eos_token_id)
            reason = f"{type(error).__name__}: {error}"
            if deadline.expired():
                minutes = (self._shared.seconds or 0.0) / 60.0
                reason = f"{GIVEN_UP} after {minutes:.3g} minutes; deltamem.stall_minutes allows no more"
            trajectory = Trajectory(messages=(), failure=reason)
            figures = {"reward": 0.0, FAILURE: 1.0}
        tokens, metrics = rollout.tokens, rollout.metrics
        before = max(rollout.step - 1, 0)
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
                "min_global_steps": min(rollout.versions, default=before),
                "max_global_steps": max(rollout.versions, default=before),
                "failure": trajectory.failure,
                # "reward" itself is added by verl.
                "reward_extra_info": {name: value for name, value in figures.items() if name != "reward"},
                ROLLOUT_INFO: RolloutInfo(
                    key=rollout.key,
                    heldout=heldout,
                    truncated=Violation.TOKEN_LIMIT in trajectory.violations,
                    turns=sum(message["role"] == "assistant" for message in trajectory.messages),
                    model_tokens=sum(tokens.mask),
                    tool_tokens=tokens.mask.count(0) if trajectory.failure is None else 0,
                    queries=sum(len(queries) for queries in trajectory.queries),
                    retrieved=sum(len(ids) for ids in trajectory.retrieved_ids),
                    seconds={
                        "generate": metrics.get("generate_sequences", 0.0),
                        "search": metrics.get("tool_calls", 0.0),
                        "reward": metrics.get("compute_score", 0.0),
                    },
                    generation=generation,
                ),
            },
        )

    async def _drive(self, labelled: LabelledSession, rollout: _Rollout) -> Trajectory:
        frame = self._frame()
        frame.check(thinking=self._shared.episode.thinking)
        episode = Episode(labelled.session, labelled.prior_state.keys(), self._shared.episode)
        # Not verl's ct_build_initial_tokens: it cuts long prompts on the left, which would take the instructions away.
        prompt = await asyncio.to_thread(self.continuous_token_builder.build_initial_tokens, list(episode.messages))
        if len(prompt) > (most := self.rollout_config.prompt_length):
            raise ValueError(f"the prompt has {len(prompt)} tokens, it does not fit into data.max_prompt_length={most}")
        if (most := self.rollout_config.get("max_model_len")) is not None and len(prompt) >= most:
            raise ValueError(f"the prompt has {len(prompt)} tokens, it leaves no room in rollout.max_model_len={most}")
        rollout.tokens.ids = list(prompt)
        bank: SnapshotBank | None = None
        while True:
            with simple_timer("generate_sequences", rollout.metrics):
                written = await self._generate(rollout, frame, turn=(len(episode.messages) - 2) // 2)
            text, stopped = self._text(written, frame)
            step = episode.read(text, truncated=not stopped)
            if isinstance(step, Finished):
                return episode.trajectory
            with simple_timer("tool_calls", rollout.metrics):
                if isinstance(step, Search):
                    bank = bank or await self._bank(labelled)
                    found = bank.search(await self._shared.embeddings.queries(step.queries), self._shared.episode.k)
                    episode.answer(merge_hits(found))
                before, messages = rollout.tokens.closed(frame.closing), list(episode.messages)
                merged, mask, log_probs = await self.ct_merge_context_msg(
                    messages[:-1], messages, before.ids, before.mask, before.log_probs
                )
                longer = TokenSequence(merged.token_ids, mask, log_probs)
            if self._room(longer) < 1:
                # The sequence ends with the model's own last token: what did not fit was never seen by it.
                episode.stop(Violation.TOKEN_LIMIT)
                return episode.trajectory
            rollout.tokens = longer

    def _request(self, uid: str | None) -> str:
        """The name by which verl routes: that of the prompt, so that one engine reads it once for the whole group."""
        # With this option verl hands the name on to vLLM, where it must be unique.
        return uuid4().hex if uid is None or self.rollout_config.get("full_determinism") else uid

    def _frame(self) -> TurnFormat:
        """How the chat template frames a turn; computed here so that a broken template is a counted failure."""
        options = self.apply_chat_template_kwargs
        plain = OmegaConf.to_container(options) if OmegaConf.is_config(options) else dict(options)
        return frame_of(self.tokenizer, json.dumps(plain), OmegaConf.select(self.config, "actor_rollout_ref.model.path"))

    def _room(self, tokens: TokenSequence) -> int:
        """How many tokens the next turn may have; not positive if the sequence is full."""
        room: int = min(self._shared.turn_tokens, self.rollout_config.response_length - len(tokens.mask))
        window = self.rollout_config.get("max_model_len")
        return room if window is None else min(room, window - len(tokens.ids))

    def _too_long(self, overlong: Overlong, trajectory: Trajectory, rollout: _Rollout) -> float:
        """The penalty of a rollout: of its longest turn or of the whole response, whichever is larger."""
        if Violation.TOKEN_LIMIT in trajectory.violations:  # also where the answer to a search did not fit
            return overlong.weight
        return max(
            overlong.penalty(rollout.longest_turn, self._shared.turn_tokens),
            overlong.penalty(len(rollout.tokens.mask), self.rollout_config.response_length),
        )

    async def _generate(self, rollout: _Rollout, frame: TurnFormat, *, turn: int) -> list[int]:
        """Let the model write a turn, append it to the rollout's sequence and return its tokens."""
        # The server must stop where this loop sees the end of a turn, whatever its own configuration lists.
        sampling = {**rollout.sampling, "max_tokens": self._room(rollout.tokens), "stop_token_ids": sorted(frame.ends)}
        if self._shared.seed is not None:
            sampling["seed"] = turn_seed(self._shared.seed, rollout.key, rollout.step, rollout.number, turn)
        tokens, metrics = rollout.tokens, rollout.metrics
        answer = await self.server_manager.generate(
            request_id=rollout.request, prompt_ids=tokens.ids, sampling_params=sampling
        )
        if not answer.token_ids or answer.stop_reason in ("aborted", "abort"):
            raise RuntimeError(f"the server broke a turn off after {len(answer.token_ids)} tokens ({answer.stop_reason})")
        if (version := answer.extra_fields.get("global_steps")) is not None:
            rollout.versions.append(int(version))
        if answer.num_preempted is not None:
            metrics["num_preempted"] = metrics.get("num_preempted", 0) + answer.num_preempted
        merged, mask, log_probs = await self.ct_merge_assistant_token(
            tokens.ids,
            answer.token_ids,
            tokens.mask,
            tokens.log_probs,
            assistant_logprobs=None if tokens.log_probs is None else answer.log_probs,
        )
        rollout.tokens = TokenSequence(merged.token_ids, mask, log_probs)
        rollout.longest_turn = max(rollout.longest_turn, len(answer.token_ids))
        return list(answer.token_ids)

    def _text(self, written: Sequence[int], frame: TurnFormat) -> tuple[str, bool]:
        """The assistant turn without its end-of-turn token, and whether it had one."""
        stopped = written[-1] in frame.ends
        # Special tokens stay visible: a stray one is text outside the tags, not nothing.
        text = self.tokenizer.decode(
            written[:-1] if stopped else written, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return f"{frame.opening}{text}", stopped

    async def _bank(self, labelled: LabelledSession) -> SnapshotBank:
        texts = [memory.text for memory in labelled.prior_state.memories]
        return SnapshotBank(
            labelled.session.person_id, labelled.prior_state, Lookup(await self._shared.embeddings.documents(texts))(texts)
        )

    async def _score(self, labelled: LabelledSession, trajectory: Trajectory) -> tuple[dict[str, float], Any]:
        # Operations only ever write their own texts, so these are all that either side's next state can hold.
        texts = {memory.text for memory in labelled.prior_state.memories}
        texts |= {operation.text for operation in (*labelled.operations, *(trajectory.operations or ()))}
        vectors = Lookup(await self._shared.embeddings.documents(sorted(texts)))
        # In a thread: the event loop belongs to all rollouts of the worker.
        return await asyncio.to_thread(self._shared.scorer, labelled, trajectory, vectors)
