"""LangMem under test: its memory store manager as it is, over LangGraph's store in memory.

LangMem asks the model with tools: ``Memory`` adds a memory, ``PatchDoc``, once there are memories, changes one (then
``tool_choice`` is ``required``, before it is left to the model). A call that does not fit its schema is sent back with the
error, up to three times. The endpoint must support such calls; vLLM does with ``--enable-auto-tool-choice`` and a
``--tool-call-parser``. LangMem knows no dates, so each group of messages begins with a system message that names the date
of the session. The store is gone with the process: a run that is continued ingests all sessions again, from cached
answers.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import re
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import httpx

from deltamem.embedding import Embedder
from deltamem.llm import ResponseCache, Usage
from eval.config import BenchmarkConfig, ManagerModel
from eval.systems.base import DialogueSession, Ingested, Passage, StoreKey
from eval.systems.http_cache import PEER_WRITTEN, AsyncMeteredTransport, Meter, Peer, PeerKind, message_groups, spoken_date
from eval.systems.kinds import Calls, SystemContext, session_tokens

_QUERY_LIMIT = 5  # Memories that the model is shown of what is known already: LangMem's own default
_NAMESPACE = ("memories",)  # Each store has a LangGraph store of its own, so one namespace does for all


class LangMemSystem(Peer):
    """LangMem, with a volatile store for each store key."""

    name = "langmem"
    modules = ("langmem", "langchain_openai")
    # LangMem gives memories and sessions random ids, and shows them to the model.
    volatile = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")

    def __init__(
        self, embedder: Embedder, settings: ManagerModel, cache: ResponseCache | None, *, seed: int, degraded: bool = False
    ) -> None:
        """As `Peer`.

        The model writes LangMem's queries for what is known already, which costs a call for each group of messages.
        A `degraded` one searches for the last message instead, as LangMem does when it is not given a model for queries.
        """
        super().__init__(embedder, settings, cache, seed=seed)
        self.writes_queries = not degraded
        self._slots = asyncio.Semaphore(settings.slots)

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[LangMemStore]:
        """Make a store."""
        await asyncio.to_thread(importlib.import_module, "langmem")  # takes seconds
        await asyncio.to_thread(importlib.import_module, "langchain_openai")
        meter = Meter()
        transport = AsyncMeteredTransport(meter, self.http_cache(key), slots=self._slots)
        async with httpx.AsyncClient(transport=transport, timeout=self.settings.timeout) as client:
            store = LangMemStore(self, key, self._chat_model(client), meter)
            await store.reset()
            yield store

    def facts(self) -> dict[str, Any]:
        """Versions and choices."""
        packages = ("langmem", "langgraph", "trustcall", "langchain-openai")
        return {
            "package": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages),
            "model": self.model,
            "embedder": self.embedder.name,
            "embedded": "the text of each memory",
            "query_generation": self.writes_queries,
            "query_limit": _QUERY_LIMIT,
            "warnings": [] if self.writes_queries else ["langmem works without generated queries: below its best"],
            "session_date": "as a system message before each group",
        }

    def _chat_model(self, client: httpx.AsyncClient) -> Any:
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(
            model=self.model,
            base_url=self.base_url,
            api_key=self.api_key,
            temperature=self.settings.temperature,
            max_tokens=self.settings.max_tokens,
            timeout=self.settings.timeout,
            max_retries=self.settings.max_retries,
            http_async_client=client,
            http_client=httpx.Client(transport=_NoTransport()),
            use_responses_api=False,
        )


class LangMemStore:
    """One store."""

    def __init__(self, system: LangMemSystem, key: StoreKey, chat_model: Any, meter: Meter) -> None:
        """Describe the store; `reset` makes it."""
        self._system = system
        self._key = key
        self._chat_model = chat_model
        self._meter = meter
        self._manager: Any = None
        self._times: dict[str, datetime] = {}
        self._ingested: dict[str, Ingested] = {}

    @property
    def known(self) -> Collection[str]:
        """Sessions that were ingested since the store was made."""
        return self._ingested.keys()

    async def reset(self) -> None:
        """Begin with an empty store."""
        from langgraph.store.memory import InMemoryStore
        from langmem import create_memory_store_manager

        dimension = (await asyncio.to_thread(self._system.embedder.documents, ["dimension"])).shape[1]
        embeddings = _embeddings(self._system.embedder, self._meter)
        index: Any = {"dims": dimension, "embed": embeddings, "fields": ["content.content"]}
        self._manager = create_memory_store_manager(
            self._chat_model,
            query_model=self._chat_model if self._system.writes_queries else None,
            query_limit=_QUERY_LIMIT,
            namespace=_NAMESPACE,
            store=InMemoryStore(index=index),
        )
        self._times = {}
        self._ingested = {}

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Let LangMem enrich its memories from a session, in groups if the protocol has groups."""
        if session.id in self._ingested:
            return replace(self._ingested[session.id], usage=Usage())
        self._meter.take()
        texts: list[str] = []
        operations: Counter[str] = Counter()
        groups = message_groups(session.turns, self._key.batch_turns)
        date = {"role": "system", "content": f"This conversation took place on {spoken_date(session.time)}."}
        for group in groups:
            messages = [date, *({"role": turn.role, "content": turn.spoken} for turn in group)]
            for put in await self._enrich(messages):
                operations["UPDATE" if put["key"] in self._times else "ADD"] += 1
                self._times[put["key"]] = session.time
                texts.append(str(put["value"]["content"]["content"]))
        ingested = Ingested(memories=tuple(texts), operations=operations, usage=self._system.usage(self._meter))
        self._ingested[session.id] = ingested
        return ingested

    async def search(self, query: str, k: int) -> list[Passage]:
        """LangMem's own search."""
        try:
            found = await self._manager.asearch(query=query, limit=k)
        except Exception as error:  # whatever its parts raise
            raise self._system.explain(error, "langmem's search") from error
        return [Passage(str(item.value.content), time=self._times.get(item.key), similarity=item.score) for item in found]

    async def _enrich(self, messages: list[dict[str, str]]) -> list[dict[str, Any]]:
        """What LangMem puts into its store."""
        from langsmith import tracing_context

        failure = _first_failure()
        with tracing_context(enabled=False):  # nothing leaves the machine, whatever the environment says
            work = asyncio.ensure_future(self._manager.ainvoke({"messages": messages}, config={"callbacks": [failure]}))
        failure.work = work
        try:
            return list(await work)
        except asyncio.CancelledError:
            if failure.error is None:
                raise
            raise self._system.explain(failure.error, "langmem") from failure.error
        except Exception as error:
            raise self._system.explain(error, "langmem") from error


class _NoTransport(httpx.BaseTransport):
    """LangMem is used asynchronously; a call by another way must not go out uncounted."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.UnsupportedProtocol(f"{request.url} was asked for synchronously")


def _first_failure() -> Any:
    """Ends the work when the model fails: LangMem would show the model any failure as its mistake and go on asking."""
    from langchain_core.callbacks import AsyncCallbackHandler

    class FirstFailure(AsyncCallbackHandler):
        error: BaseException | None = None
        work: asyncio.Future[Any]

        async def on_llm_error(self, error: BaseException, **named: Any) -> None:
            self.error = error
            self.work.cancel()

    return FirstFailure()


def _embeddings(embedder: Embedder, meter: Meter) -> Any:
    """Our embedder as LangChain's interface; its asynchronous methods run these in threads."""
    from langchain_core.embeddings import Embeddings

    class Ours(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            vectors: list[list[float]] = embedder.documents(texts).tolist()
            return vectors

        def embed_query(self, text: str) -> list[float]:
            meter.add(Usage(searches=1))
            vector: list[float] = embedder.queries([text])[0].tolist()
            return vector

    return Ours()


class LangMemKind(PeerKind):
    """LangMem on the manager's model."""

    name = "langmem"
    packages = ("langmem", "langgraph", "langchain-core", "langchain-openai")
    prompt_tokens = 2_500

    def make(self, context: SystemContext) -> LangMemSystem:
        """Raises `DeltaMemError` if a package is missing."""
        config = context.config
        of = context.embedder, config.manager, context.models.cache
        return LangMemSystem(*of, seed=config.seed, degraded=config.peers_degraded)

    def calls(self, session: DialogueSession, store: StoreKey, config: BenchmarkConfig) -> Iterator[Calls]:
        """Those of its queries too."""
        yield from super().calls(session, store, config)
        if not config.peers_degraded:
            groups = len(message_groups(session.turns, store.batch_turns))
            yield Calls(groups, session_tokens(session), PEER_WRITTEN)


LANGMEM = LangMemKind()
