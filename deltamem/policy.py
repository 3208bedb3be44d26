"""What writes the assistant texts of an episode, the endpoint policy, and the driver of episodes over snapshots."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, pairwise
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from deltamem.assisted import AnyEpisode, AssistedConfig, AssistedEpisode, begin_episode
from deltamem.bank.base import Hit, SnapshotBank, merge_hits
from deltamem.embedding import Embedder, Vectors
from deltamem.endpoint import AnswerSchema
from deltamem.episode import Episode, EpisodeConfig, Finished, Message, Search, Trajectory, turn_pattern
from deltamem.llm import LLM, Answer, Usage
from deltamem.sessions import LabelledSession, Session


class Completion(NamedTuple):
    """One assistant text."""

    text: str  # Without the end-of-turn token
    truncated: bool  # Whether generation stopped at a token limit
    tokens: int  # How many were generated
    prompt_tokens: int = 0  # How many were read; 0 where nobody counts them
    cached: bool = False  # Whether the text comes from a cache, so that no tokens were spent now

    @property
    def usage(self) -> Usage:
        """What it cost."""
        return Usage(calls=1, cached=int(self.cached), prompt_tokens=self.prompt_tokens, completion_tokens=self.tokens)


class Policy(Protocol):
    """A language model that continues a conversation; called concurrently for many episodes."""

    name: str

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Write the next assistant text."""


@runtime_checkable
class ScopedPolicy(Policy, Protocol):
    """A policy that may keep answers; they are kept apart by scope (the owner), so that they can be erased."""

    def for_scope(self, scope: str, sample: int = 0) -> Policy:
        """The policy with its answers bound to a scope; another `sample` gets a fresh answer to the same request."""

    def forget_scope(self, scope: str) -> int:
        """Erase what is kept for a scope; returns how many answers there were."""


@runtime_checkable
class SchemaPolicy(Policy, Protocol):
    """A policy that can be kept to a schema."""

    async def complete_object(self, messages: Sequence[Message], schema: AnswerSchema) -> Completion:
        """Write one JSON object; thinking may precede it."""


@runtime_checkable
class ModelPolicy(Policy, Protocol):
    """A policy that knows whether its model was trained for the turns of `deltamem.episode.Episode`."""

    @property
    def trained(self) -> bool:
        """Whether it was."""


Mode = Literal["auto", "react", "assisted"]
"""How sessions are read: ``react`` by `deltamem.episode.Episode`, in whose turns the model searches by itself; ``assisted``
by `deltamem.assisted.AssistedEpisode`, which searches for the model; ``auto`` as the model was trained."""


class ModeChoice(NamedTuple):
    """The mode that is used, and why."""

    mode: Literal["react", "assisted"]
    reason: str  # A clause without a full stop


def choose_mode(mode: Mode, policy: Policy) -> ModeChoice:
    """Which mode a policy is asked in.

    With ``auto`` a model that was trained for our turns reads in ``react`` and another one in ``assisted``. A policy that is
    no `ModelPolicy`, such as a script or an application's own class, is taken to write the turns itself: ``react``.
    """
    if mode != "auto":
        return ModeChoice(mode, f"{mode} was asked for")
    if not isinstance(policy, ModelPolicy):
        reason = f"{policy.name} does not say how it was trained, so it is taken to write the turns itself"
        return ModeChoice("react", reason)
    if policy.trained:
        return ModeChoice("react", f"{policy.name} was trained for the turns of an episode")
    return ModeChoice("assisted", f"{policy.name} is not known to be trained for DeltaMem")


async def complete_object(policy: Policy, messages: Sequence[Message], schema: AnswerSchema) -> Completion:
    """Have a policy write one JSON object, kept to the schema if it can be; else it is told the schema in words."""
    if isinstance(policy, SchemaPolicy):
        return await policy.complete_object(messages, schema)
    told = schema.in_words(messages)
    return await policy.complete([Message(role=str(each["role"]), content=str(each["content"])) for each in told])


ToolRole = Literal["tool", "user"]


class EndpointPolicy:
    """Continues conversations by calling ``/chat/completions``; a `ScopedPolicy`, `SchemaPolicy` and `ModelPolicy`."""

    def __init__(
        self,
        llm: LLM,
        *,
        temperature: float | None = 1.0,
        max_tokens: int | None = 2048,
        seed: int | None = None,
        tool_role: ToolRole = "tool",
        thinking: bool = True,
        guided: EpisodeConfig | None = None,
        extra_body: Mapping[str, object] | None = None,
        trained: bool = False,
    ) -> None:
        """Set how the model, which may be shared, is asked.

        Args:
            llm: The model.
            temperature: Of the sampling; None leaves it to the endpoint, as does one that it refuses.
            max_tokens: Of one assistant text; None leaves it to the endpoint.
            seed: Of the sampling, for endpoints that take one.
            tool_role: How search results are sent. ``tool`` is what models are trained with here; services that tie tool
                messages to their own function calling refuse it, for them ``user`` wraps the results in ``<tool_response>``.
            thinking: As in `deltamem.episode.EpisodeConfig`. If false, the chat template is told ``enable_thinking=false``,
                which vLLM and SGLang pass on; if true, nothing is said and the server's default holds.
            guided: The episode to whose turns the server keeps the model (`deltamem.episode.turn_pattern`), by vLLM's field
                ``structured_outputs``; for models that were not trained for the protocol. None leaves the model free.
            extra_body: Further fields of requests, outside the OpenAI protocol; they go before those of `thinking`.
            trained: Whether the model was trained for the turns of episodes, see `choose_mode`.
        """
        self.name = f"{llm.model} at {llm.base_url}"
        self.llm = llm
        self.trained = trained
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._seed = seed
        self._tool_role = tool_role
        self._thinking = thinking
        self._guided = guided
        direct: dict[str, object] = {} if thinking else {"chat_template_kwargs": {"enable_thinking": False}}
        self._extra_body = direct | dict(extra_body or {}) or None
        self._scope = ""
        self._sample = 0

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Write the next assistant text.

        Raises:
            ContextLengthError: If the conversation does not fit the model's window.
            LLMError: If the endpoint gives no usable answer, after the retries.
        """
        extra_body = self._extra_body
        if self._guided is not None:
            extra_body = {**(extra_body or {}), "structured_outputs": {"regex": turn_pattern(messages, self._guided)}}
        answer = await self.llm.chat(
            [sent_as(message, self._tool_role) for message in messages],
            temperature=self._temperature,
            max_tokens=self._max_tokens,
            seed=self._seed,
            extra_body=extra_body,
            scope=self._scope,
            sample=self._sample,
        )
        return self._completion(answer)

    async def complete_object(self, messages: Sequence[Message], schema: AnswerSchema) -> Completion:
        """Write one JSON object, as `LLM.chat_object`; `guided` does not count here.

        Raises:
            ContextLengthError: If the conversation does not fit the model's window.
            LLMError: If the endpoint gives no usable answer, after the retries.
        """
        answer = await self.llm.chat_object(
            [sent_as(message, self._tool_role) for message in messages],
            schema,
            temperature=self._temperature,
            max_tokens=self._max_tokens,
            seed=self._seed,
            extra_body=self._extra_body,
            scope=self._scope,
            sample=self._sample,
        )
        return self._completion(answer)

    def _completion(self, answer: Answer) -> Completion:
        return Completion(
            text=turn_text(answer.text, answer.reasoning, thinking=self._thinking),
            truncated=answer.truncated,
            tokens=answer.completion_tokens,
            prompt_tokens=answer.prompt_tokens,
            cached=answer.cached,
        )

    async def check(self, mode: Literal["react", "assisted"] = "react") -> None:
        """Send one tiny conversation of every kind of message that an episode sends in this mode.

        Raises:
            LLMError: If the endpoint cannot be reached or refuses it; the message says why.
        """
        conversation = [
            Message(role="system", content="Answer briefly."),
            Message(role="user", content="Hello."),
            Message(role="assistant", content="Hello."),
            Message(role="tool" if mode == "react" else "user", content="[]"),
        ]
        await self.llm.check([sent_as(message, self._tool_role) for message in conversation], extra_body=self._extra_body)

    def for_scope(self, scope: str, sample: int = 0) -> EndpointPolicy:
        """The same policy with its cached answers bound to a scope and to a number of the draw; shares the `LLM`.

        Any draw but the first has a seed, so that no cache on the way gives the first one again.
        """
        bound = copy.copy(self)
        bound._scope, bound._sample = scope, sample
        if sample and bound._seed is None:
            bound._seed = 0
        return bound

    def forget_scope(self, scope: str) -> int:
        """Erase the cached answers of a scope; returns how many there were.

        Raises:
            DeltaMemError: If the cache cannot be written.
        """
        return self.llm.cache.forget(scope) if self.llm.cache is not None else 0


def sent_as(message: Message, tool_role: ToolRole) -> Message:
    """A message as an endpoint gets it, search results in the role that it takes."""
    if message["role"] == "tool" and tool_role == "user":
        return Message(role="user", content=f"<tool_response>\n{message['content']}\n</tool_response>")
    return message


def turn_text(text: str, reasoning: str, *, thinking: bool) -> str:
    """The whole assistant turn.

    Servers with a reasoning parser deliver the thinking in a field of its own; without one, the beginning of the think block
    is missing where the chat template has written it.
    """
    if reasoning:
        return f"<think>{reasoning}</think>\n{text}"
    thought, end, _ = text.partition("</think>")
    return f"<think>{text}" if thinking and end and "<think>" not in thought else text


class Rollout(NamedTuple):
    """A finished episode and what it took."""

    trajectory: Trajectory  # Its `failure` is set if our own machinery broke
    tokens: int  # That the policy generated
    seconds: float  # Wall time, including waiting for other episodes


Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Computes together what concurrent tasks ask for, in a thread.

    What arrives while one batch is computed waits and forms the next batch, so `compute` never runs twice at once.
    """

    def __init__(self, compute: Callable[[list[Item]], Sequence[Result]], *, quiet_seconds: float = 0.0) -> None:
        """Set what a batch is computed by; use one batcher within one running event loop.

        A batch starts when nothing further has arrived for `quiet_seconds`.
        """
        self._compute = compute
        self._quiet_seconds = quiet_seconds
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1)  # one of its own, as torch keeps its workers by the thread that calls it

    async def ask(self, item: Item) -> Result:
        """The result for an item.

        Raises:
            Exception: What `compute` raises, to all whose items were in the batch.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self._waiting:
            count = 0
            while count != len(self._waiting):
                count = len(self._waiting)
                await asyncio.sleep(self._quiet_seconds)
            batch, self._waiting = self._waiting, []
            outcomes: Sequence[Result | Exception]
            try:
                items = [item for item, _ in batch]
                outcomes = await asyncio.get_running_loop().run_in_executor(self._thread, self._compute, items)
            except Exception as error:
                outcomes = [error] * len(batch)
            for (_, future), outcome in zip(batch, outcomes, strict=True):
                # Whoever gave up waiting has cancelled the future; the others must get theirs all the same.
                if future.done():
                    continue
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)


def _embed_queries(embedder: Embedder, asked: list[Sequence[str]]) -> list[Vectors]:
    """Embed several lists of queries in one call."""
    vectors = embedder.queries([text for texts in asked for text in texts])
    ends = list(accumulate(map(len, asked), initial=0))
    return [vectors[start:end] for start, end in pairwise(ends)]


Searcher = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[Hit]]]]
"""Finds the memories nearest to each of some queries."""


async def drive(episode: AnyEpisode, policy: Policy, search: Searcher) -> None:
    """Run an episode that has just begun to its end.

    Raises:
        Exception: Whatever the policy or the search raises; the episode keeps what went before.
    """
    while True:
        schema = episode.schema if isinstance(episode, AssistedEpisode) else None
        if schema is not None:
            completion = await complete_object(policy, episode.messages, schema)
        else:
            completion = await policy.complete(episode.messages)
        step = episode.read(completion.text, truncated=completion.truncated)
        if isinstance(step, Finished):
            return
        if not isinstance(step, Search):
            continue
        rankings = await search(step.queries)
        if isinstance(episode, Episode):
            episode.answer(merge_hits(rankings))
        elif episode.compare(rankings) is not None:
            return


class MeteredPolicy:
    """Passes requests on to a policy and adds up what they cost; a `SchemaPolicy`, whatever the policy."""

    def __init__(self, policy: Policy) -> None:
        """Wrap a policy for one episode."""
        self.name = policy.name
        self.usage = Usage()
        self._policy = policy

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Write the next assistant text."""
        completion = await self._policy.complete(messages)
        self.usage += completion.usage
        return completion

    async def complete_object(self, messages: Sequence[Message], schema: AnswerSchema) -> Completion:
        """Write one JSON object."""
        completion = await complete_object(self._policy, messages, schema)
        self.usage += completion.usage
        return completion


async def run_episodes(
    labelled: Sequence[LabelledSession],
    policy: Policy,
    embedder: Embedder,
    config: EpisodeConfig | AssistedConfig,
    *,
    max_concurrency: int = 64,
    on_done: Callable[[Rollout], None] | None = None,
) -> list[Rollout]:
    """Run one episode over each session, each against its own prior state; one rollout a session, in their order.

    Whatever the policy or a search raises becomes the `failure` of its trajectory; what went before is kept. `on_done` is
    called after each episode, in order of completion. Persons share texts between sessions, so a `CachedEmbedder` is best.
    """
    banks = await asyncio.to_thread(_build_banks, labelled, embedder)
    queries = Batcher(partial(_embed_queries, embedder))
    slots = asyncio.Semaphore(max_concurrency)

    async def one(session: Session, bank: SnapshotBank) -> Rollout:
        async with slots:
            metered = MeteredPolicy(policy)
            begin = time.perf_counter()
            episode = begin_episode(session, bank.state.keys(), config)

            async def search(texts: Sequence[str]) -> list[list[Hit]]:
                return bank.search(await queries.ask(texts), config.k)

            try:
                await drive(episode, metered, search)
            except Exception as error:  # one broken episode must not lose the others
                episode.fail(f"{type(error).__name__}: {error}")
            rollout = Rollout(episode.trajectory, metered.usage.completion_tokens, time.perf_counter() - begin)
        if on_done is not None:
            on_done(rollout)
        return rollout

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(item.session, bank)) for item, bank in zip(labelled, banks, strict=True)]
    return [task.result() for task in running]


def _build_banks(labelled: Sequence[LabelledSession], embedder: Embedder) -> list[SnapshotBank]:
    """Embed all prior memories in one call, every text once, then share the rows out to the banks."""
    texts = list(dict.fromkeys(memory.text for item in labelled for memory in item.prior_state.memories))
    vectors = embedder.documents(texts)
    row = {text: index for index, text in enumerate(texts)}
    states = [(item.session.person_id, item.prior_state) for item in labelled]
    return [SnapshotBank(owner, state, vectors[[row[memory.text] for memory in state.memories]]) for owner, state in states]
