"""Taskset, harness and environment for verifiers 0.4: our sessions, our `Episode` and our reward under its loop.

The harness runs in the environment's process. Every turn of the model is a request to verifiers' interception, which samples
as it is configured to and keeps the tokens for a trainer; nothing else of the episode leaves the process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import verifiers.v1 as vf
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError
from pydantic import Field

from deltamem.bank.base import Hit, SnapshotBank
from deltamem.config import composed
from deltamem.embedding import CachedEmbedder, EmbedderSettings, load_embedder
from deltamem.episode import (
    Episode,
    EpisodeConfig,
    EpisodeSettings,
    Message,
    Trajectory,
    Violation,
    opening_messages,
    trajectory_fields,
)
from deltamem.errors import DeltaMemError
from deltamem.memory import Event, Operation
from deltamem.policy import Completion, ToolRole, drive, sent_as, turn_text
from deltamem.sessions import from_json_line, read_sessions, to_json_line
from rewards.scorer import DeltaMemScorer

PLUGIN = "deltamem_verifiers"
"""The id of taskset, harness and environment: a module beside the packages of this project."""

TRAJECTORY = "trajectory"
"""Key of what a trace keeps of the episode besides its messages."""


class DeltaMemData(vf.TaskData):  # type: ignore[misc]
    """One session, and what shapes its episode and its search."""

    session: str  # A line of sessions.jsonl
    episode: EpisodeConfig
    embedder: EmbedderSettings


class DeltaMemTaskConfig(vf.TaskConfig):  # type: ignore[misc]
    """How episodes are scored."""

    reward: str = "paper"
    """A file of ``configs/reward``, by its name."""


class DeltaMemTask(vf.Task[DeltaMemData, vf.State, DeltaMemTaskConfig]):  # type: ignore[misc]
    """A session whose episode is rewarded by how near the memories come to its target."""

    @property
    def key(self) -> str:
        """That of the session."""
        return str(self.data.id)

    @vf.reward  # type: ignore[untyped-decorator]
    async def reward(self, trace: vf.Trace) -> float:
        """What a policy is trained on; the scorer's other figures become metrics.

        Reads what the trace keeps of the episode, so that ``vf-replay`` can score saved ones, perhaps by another reward.

        Raises:
            TaskError: If the episode was led by another harness.
        """
        if TRAJECTORY not in trace.info:
            raise vf.TaskError(f"no episode to score: the taskset {PLUGIN} is for the harness {PLUGIN}")
        score, embed = scorer(self.config.reward), embedder(self.data.embedder).documents
        trajectory, labelled = _trajectory(trace.info[TRAJECTORY]), from_json_line(self.data.session)
        figures, _ = await asyncio.to_thread(score, labelled, trajectory, embed)
        trace.record_metrics({name: value for name, value in figures.items() if name != "reward"})
        return figures["reward"]


def _trajectory(fields: Mapping[str, Any]) -> Trajectory:
    """What `deltamem.episode.trajectory_fields` says of a trajectory, without its conversation."""
    operations = None
    if (done := fields["operations"]) is not None:
        operations = tuple(Operation(Event(one["event"]), one["text"], one["target_memory_id"]) for one in done)
    queries, retrieved = (tuple(map(tuple, fields[name])) for name in ("queries", "retrieved_ids"))
    return Trajectory((), queries, retrieved, operations, tuple(map(Violation, fields["violations"])))


@cache
def scorer(name: str) -> DeltaMemScorer:
    """The reward of a file of ``configs/reward``.

    Raises:
        DeltaMemError: If there is no such file.
    """
    options = composed("heldout", [f"reward={name}", "sessions=none", "out=none"]).reward
    return DeltaMemScorer(**{str(key): value for key, value in options.items() if key != "_target_"})


@cache
def embedder(settings: EmbedderSettings) -> CachedEmbedder:
    """The embedder of all episodes of a process, loaded once."""
    return load_embedder(settings.name, device=settings.device, batch_size=settings.batch_size)


class DeltaMemTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Which sessions, and what shapes their episodes."""

    id: vf.ID = PLUGIN
    task: DeltaMemTaskConfig = DeltaMemTaskConfig()
    sessions: Path = Path("sessions.jsonl")
    """As ``python -m synth`` writes it; the parquet files of training hold the same lines."""
    split: Literal["train", "heldout"] = "train"
    embedder: str = "Qwen/Qwen3-Embedding-0.6B"
    """Of search and reward, the paper's; also ``http://host:port/v1#model``. A hub name must have been fetched before."""
    device: str = "cpu"
    """Of the embedder."""
    batch_size: int = 32
    """Of the embedder."""
    episode: dict[str, Any] = Field(default_factory=dict)
    """Keys of `deltamem.episode.EpisodeSettings`."""


class DeltaMemTaskset(vf.Taskset[DeltaMemTask, DeltaMemTasksetConfig]):  # type: ignore[misc]
    """The sessions of one split, in the order of the file."""

    def load(self) -> Iterator[DeltaMemTask]:
        """A task for each session.

        Raises:
            DeltaMemError: If the file, a line of it, a key of the episode or the reward cannot be read, or no session is of
                the split.
        """
        config = self.config
        episode = EpisodeSettings.model_validate(config.episode).config()
        settings = EmbedderSettings(name=config.embedder, device=config.device, batch_size=config.batch_size)
        scorer(config.task.reward)
        empty = True
        for labelled in read_sessions(config.sessions, split=config.split):
            system, asked = opening_messages(labelled.session, episode)
            data = DeltaMemData(
                id=labelled.key,
                name=labelled.key,
                system_prompt=system["content"],
                prompt=asked["content"],
                session=to_json_line(labelled),
                episode=episode,
                embedder=settings,
            )
            empty = False
            yield DeltaMemTask(data, config.task)
        if empty:
            raise DeltaMemError(f"{config.sessions}: no session is of the split {config.split!r}")


class DeltaMemHarnessConfig(vf.HarnessConfig):  # type: ignore[misc]
    """How the model is asked."""

    id: vf.ID = PLUGIN
    tool_role: ToolRole = "tool"
    """``user`` for services that tie tool messages to their own function calling."""


class DeltaMemHarness(vf.Harness[DeltaMemHarnessConfig]):  # type: ignore[misc]
    """Drives an `Episode`: the model writes turns, the session's memories are searched, nothing is executed."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Run one episode.

        Raises:
            HarnessError: If the task is no session of ours, or the model gives no answer; what went before is kept.
        """
        if not isinstance(data, DeltaMemData):
            raise vf.HarnessError(f"the harness {PLUGIN} is for the taskset {PLUGIN}")
        labelled = from_json_line(data.session)
        embedded, state = embedder(data.embedder), labelled.prior_state
        vectors = await asyncio.to_thread(embedded.documents, [memory.text for memory in state.memories])
        bank = SnapshotBank(labelled.session.person_id, state, vectors)
        episode = Episode(labelled.session, state.keys(), data.episode)
        # As verifiers has them: a system prompt may be under optimisation there.
        opening = zip(episode.messages, self.resolve_text_prompt(data), strict=True)
        episode.messages[:] = [Message(role=message["role"], content=text or "") for message, text in opening]

        async def search(queries: Sequence[str]) -> list[list[Hit]]:
            asked = await asyncio.to_thread(embedded.queries, queries)
            return bank.search(asked, data.episode.k)

        # Loading all certificates would take longer than the rest; the interception is on this machine, as the harness is.
        async with DefaultAsyncHttpxClient(verify=endpoint.startswith("https"), timeout=None) as http:
            client = AsyncOpenAI(base_url=endpoint, api_key=secret, http_client=http)
            try:
                await drive(episode, _Intercepted(client, ctx.model, self.config.tool_role, data.episode.thinking), search)
            except OpenAIError as error:
                raise vf.HarnessError(f"the model gave no answer: {error}") from error
            finally:
                fields = trajectory_fields(episode.trajectory)
                trace.info[TRAJECTORY] = {name: of for name, of in fields.items() if name != "turns"}
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class _Intercepted:
    """A `deltamem.policy.Policy` whose requests go through verifiers' interception.

    What the model wrote is sent back as it came, thinking and calls in fields of their own where a server takes them apart:
    only so does verifiers know the turns again, and a rollout stays one sequence of tokens.
    """

    def __init__(self, client: AsyncOpenAI, model: str, tool_role: ToolRole, thinking: bool) -> None:
        self.name = model
        self._client = client
        self._tool_role = tool_role
        self._thinking = thinking
        self._written: list[dict[str, Any]] = []

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Write the next assistant text."""
        written, sent = iter(self._written), list[Any]()
        for message in messages:
            if message["role"] == "assistant":
                sent.append(next(written))
            elif message["role"] == "tool" and self._tool_role == "tool":
                calls = sent[-1].get("tool_calls") or [{"id": ""}]
                sent.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": message["content"]})
            else:
                sent.append(sent_as(message, self._tool_role))
        extra = None if self._thinking else {"chat_template_kwargs": {"enable_thinking": False}}
        answer = await self._client.chat.completions.create(model=self.name, messages=sent, extra_body=extra)
        choice = answer.choices[0]
        said: dict[str, Any] = choice.message.model_dump(exclude_none=True)
        self._written.append(said)
        return Completion(
            text=turn_text(_text(said), said.get("reasoning_content") or "", thinking=self._thinking),
            truncated=choice.finish_reason == "length",
            tokens=0 if answer.usage is None else answer.usage.completion_tokens,
        )


def _text(message: Mapping[str, Any]) -> str:
    """What a model wrote, with the calls that a server has taken out of the text put back."""
    parts = [message.get("content") or ""]
    for call in message.get("tool_calls") or ():
        name, arguments = json.dumps(call["function"]["name"]), call["function"]["arguments"]
        parts.append(f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>')
    return "\n".join(filter(None, parts))


class DeltaMemEnvConfig(vf.SingleAgentEnvConfig):  # type: ignore[misc]
    """One agent, whose harness needs no sandbox."""

    taskset: DeltaMemTasksetConfig = DeltaMemTasksetConfig()
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class DeltaMemEnv(vf.SingleAgentEnv, vf.Env[DeltaMemEnvConfig]):  # type: ignore[misc]
    """One episode of one agent over one session."""


def load_environment(
    sessions: Path | str,
    *,
    reward: str = "paper",
    tool_role: ToolRole = "tool",
    agent: Mapping[str, Any] | None = None,
    **taskset: Any,
) -> DeltaMemEnv:
    """The environment over a file of sessions.

    Args:
        sessions: ``sessions.jsonl``, as ``python -m synth`` writes it.
        reward: A file of ``configs/reward``, by its name.
        tool_role: How search results are sent, see `DeltaMemHarnessConfig`.
        agent: Further keys of verifiers' ``AgentConfig``, for example ``{"max_turns": 4}``.
        taskset: Further keys of `DeltaMemTasksetConfig`, for example ``split="heldout"`` or ``episode={"k": 5}``.

    Raises:
        ValidationError: If a key is unknown or has the wrong type.
    """
    values = {
        "taskset": {"id": PLUGIN, "sessions": sessions, "task": {"reward": reward}, **taskset},
        "agent": {"harness": {"id": PLUGIN, "tool_role": tool_role}, **(agent or {})},
    }
    made: DeltaMemEnv = vf.load_environment(vf.resolve_env_config(values))
    return made
