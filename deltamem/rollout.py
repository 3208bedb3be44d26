"""Running episodes with any policy over snapshots of memory states: the driver of evaluation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from deltamem.bank.protocol import merge_hits
from deltamem.bank.snapshot import SnapshotBank
from deltamem.embedding import Embedder, Vectors
from deltamem.episode import Episode, EpisodeConfig, Finished, Message, Search, Trajectory
from deltamem.memory import Memory
from deltamem.policy import Completion, Policy
from deltamem.sessions import LabelledSession, Session


class Rollout(NamedTuple):
    """A finished episode and what it took.

    Attributes:
        trajectory: The episode; its `failure` is set if our own machinery broke.
        tokens: Tokens that the policy generated.
        seconds: Wall time, including waiting for other episodes.
    """

    trajectory: Trajectory
    tokens: int
    seconds: float


class QueryBatcher:
    """Embeds the queries of concurrent episodes together, off the event loop.

    What arrives while one batch is computed waits and forms the next batch, so nobody is delayed to fill a batch and the
    embedding model is never called from two threads at once.
    """

    def __init__(self, embedder: Embedder) -> None:
        """Wrap an embedder; use one batcher within one running event loop."""
        self._embedder = embedder
        self._lock = asyncio.Lock()
        self._waiting: list[tuple[Sequence[str], asyncio.Future[Vectors]]] = []

    async def embed(self, queries: Sequence[str]) -> Vectors:
        """Embed queries; returns float32 of shape ``(len(queries), dim)``."""
        result: asyncio.Future[Vectors] = asyncio.get_running_loop().create_future()
        self._waiting.append((queries, result))
        async with self._lock:
            if not result.done():
                batch, self._waiting = self._waiting, []
                await self._embed_batch(batch)
        return await result

    async def _embed_batch(self, batch: Sequence[tuple[Sequence[str], asyncio.Future[Vectors]]]) -> None:
        try:
            vectors = await asyncio.to_thread(self._embedder.queries, [text for texts, _ in batch for text in texts])
        except asyncio.CancelledError:
            for _, result in batch:
                result.cancel()
            raise
        except Exception as error:
            # Every waiting episode learns why, and records it as its own failure.
            for _, result in batch:
                if not result.done():
                    result.set_exception(error)
            return
        start = 0
        for texts, result in batch:
            if not result.done():
                result.set_result(vectors[start : start + len(texts)])
            start += len(texts)


async def drive(episode: Episode, policy: Policy, search: Callable[[Sequence[str]], Awaitable[Sequence[Memory]]]) -> None:
    """Run an episode to its end.

    Args:
        episode: Has just begun.
        policy: Writes the assistant texts.
        search: Finds memories for a list of queries.

    Raises:
        Exception: Whatever the policy or the search raises; the episode keeps what went before.
    """
    while True:
        completion = await policy.complete(episode.messages)
        step = episode.read(completion.text, truncated=completion.truncated)
        if isinstance(step, Finished):
            return
        if isinstance(step, Search):
            episode.answer(await search(step.queries))


async def run_episode(
    session: Session, bank: SnapshotBank, policy: Policy, queries: QueryBatcher, config: EpisodeConfig
) -> Trajectory:
    """Run one episode to its end.

    Args:
        session: The dialogue to read.
        bank: The person's memories before the session.
        policy: Writes the assistant texts.
        queries: Embeds the search queries.
        config: Prompts and limits.

    Returns:
        The trajectory. Whatever the policy or the search raises becomes its `failure`; what went before is kept.
    """
    episode = Episode(session, bank.state.keys(), config)

    async def search(texts: Sequence[str]) -> list[Memory]:
        return merge_hits(bank.search(await queries.embed(texts), config.k))

    try:
        await drive(episode, policy, search)
    except Exception as error:  # one broken episode must not lose the others
        episode.fail(f"{type(error).__name__}: {error}")
    return episode.trajectory


class _TokenCount:
    """Passes requests on to a policy and counts the tokens of one episode."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.tokens = 0
        self._policy = policy

    async def complete(self, messages: Sequence[Message]) -> Completion:
        completion = await self._policy.complete(messages)
        self.tokens += completion.tokens
        return completion


async def run_episodes(
    labelled: Sequence[LabelledSession],
    policy: Policy,
    embedder: Embedder,
    config: EpisodeConfig,
    *,
    max_concurrency: int = 64,
    on_done: Callable[[Rollout], None] | None = None,
) -> list[Rollout]:
    """Run one episode over each session, each against its own prior state.

    Args:
        labelled: The sessions.
        policy: Writes the assistant texts; called concurrently.
        embedder: Embeds memories and queries; best a `CachedEmbedder`, since persons share texts between sessions.
        config: Prompts and limits.
        max_concurrency: Episodes under way at once.
        on_done: Called after each episode, in order of completion.

    Returns:
        One rollout a session, in the order of the sessions.
    """
    banks = await asyncio.to_thread(_build_banks, labelled, embedder)
    queries = QueryBatcher(embedder)
    slots = asyncio.Semaphore(max_concurrency)

    async def one(session: Session, bank: SnapshotBank) -> Rollout:
        async with slots:
            counted = _TokenCount(policy)
            begin = time.perf_counter()
            trajectory = await run_episode(session, bank, counted, queries, config)
            rollout = Rollout(trajectory, counted.tokens, time.perf_counter() - begin)
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
    return [
        SnapshotBank(
            item.session.person_id,
            item.prior_state,
            vectors[[row[memory.text] for memory in item.prior_state.memories]],
        )
        for item in labelled
    ]
