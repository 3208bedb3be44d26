"""mem0 under test: the package ``mem0ai`` as it is, with the embedder and the endpoint that all systems share.

mem0 2.2.1 asks the model once for each group of messages and only adds: corrected memories stay beside their corrections.
It resolves relative dates against an "observation date", which it takes from the clock of the machine and which its `add`
lets nobody set (``timestamp`` is refused outside the hosted service). So each call carries a custom instruction with the
date of the session. Without the optional packages fastembed and spaCy it ranks by similarity alone; the summary says which
of them there were.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import re
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai

from deltamem.embedding import Embedder
from deltamem.errors import DeltaMemError
from deltamem.llm_cache import ResponseCache
from eval.settings import ManagerModel
from eval.systems.answer_shelf import AnswerShelf
from eval.systems.embedding_lock import one_at_a_time
from eval.systems.mem0_store import Mem0Store
from eval.systems.metered_transport import Meter, MeteredTransport
from eval.systems.peer_endpoint import PeerEndpoint, require_peer
from eval.systems.protocol import StoreKey
from eval.systems.store_folder import store_folder

_TODAY = re.compile(r"(?:(?<=## Observation Date\n)|(?<=## Current Date\n))\d{4}-\d\d-\d\d")
"""Where mem0's prompt shows the day on which it runs; the same request on another day is still the same."""

_MAX_TOKENS = 2000
"""mem0's own default, for configurations that set no limit: it cannot leave the limit to the endpoint."""


class Mem0System:
    """mem0, with one store of its own kind (a local Qdrant collection and a history) for each store key."""

    name = "mem0"
    per_speaker = True
    ranked = True

    def __init__(
        self, folder: Path, embedder: Embedder, model: ManagerModel, cache: ResponseCache | None, *, seed: int
    ) -> None:
        """Describe the system; nothing is imported or sent yet.

        Args:
            folder: Holds a folder for each store.
            embedder: Used in place of mem0's own, so that queries get the prompts that they get in all systems.
            model: The model that extracts memories.
            cache: Where its answers are kept.
            seed: Of its sampling.

        Raises:
            DeltaMemError: If mem0 is not installed, or the model's settings cannot be right.
        """
        require_peer(self.name, "mem0")
        if importlib.util.find_spec("spacy") and not importlib.util.find_spec("en_core_web_sm"):
            raise DeltaMemError(
                "system=mem0 would download the spaCy model en_core_web_sm; install it first with: "
                "python -m spacy download en_core_web_sm"
            )
        self._folder = folder
        self._endpoint = PeerEndpoint.of(model)
        self._embedder = one_at_a_time(embedder)
        self._cache = cache
        self._seed = seed
        self._slots = threading.Semaphore(model.slots)
        self._loading = threading.Lock()

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[Mem0Store]:
        """Open a store. All its work is done in one thread, because mem0's local Qdrant is bound to one."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"mem0 {key.id}") as thread:
            store = Mem0Store(
                store_folder(self._folder, key), key, thread, lambda meter: self._make(key, meter), self._endpoint
            )
            try:
                await store.run(store.load)
                yield store
            finally:
                await store.run(store.close)

    def facts(self) -> dict[str, Any]:
        """Version, and what mem0 could not do for want of optional packages."""
        return {
            "package": f"mem0ai {importlib.metadata.version('mem0ai')}",
            "model": self._endpoint.model,
            "embedder": self._embedder.name,
            "keyword_search": importlib.util.find_spec("fastembed") is not None,
            "entity_links": importlib.util.find_spec("spacy") is not None,
            "session_date": "as metadata and as a custom instruction",
        }

    def _make(self, key: StoreKey, meter: Meter) -> Any:
        """A mem0 memory in the folder of a store."""
        with self._loading:
            memory_class = _load_mem0(self._folder)
            dimension = self._embedder.documents(["dimension"]).shape[1]
        settings = self._endpoint.settings
        folder = store_folder(self._folder, key) / "memory"
        folder.mkdir(parents=True, exist_ok=True)
        memory = memory_class.from_config(
            {
                "vector_store": {
                    "provider": "qdrant",
                    "config": {
                        "collection_name": "memories",
                        "path": str(folder / "qdrant"),
                        "embedding_model_dims": dimension,
                        "on_disk": True,
                    },
                },
                "embedder": {"provider": "openai", "config": {"api_key": "none", "embedding_dims": dimension}},
                "llm": {
                    "provider": "openai",
                    "config": {
                        "model": self._endpoint.model,
                        "temperature": settings.temperature,
                        "max_tokens": settings.max_tokens or _MAX_TOKENS,
                        "openai_base_url": self._endpoint.base_url,
                        "api_key": self._endpoint.api_key,
                    },
                },
                "history_db_path": str(folder / "history.sqlite"),
            }
        )
        shelf = AnswerShelf(self._cache, key.id, passing=_TODAY, fields={"seed": self._seed})
        memory.embedding_model = _Embedding(self._embedder)
        memory.llm.client.close()
        # mem0 needs httpx, and openai takes a client of it, whatever later versions of openai annotate.
        http_client: Any = httpx.Client(
            transport=MeteredTransport(meter, shelf, slots=self._slots), timeout=settings.timeout
        )
        memory.llm.client = openai.OpenAI(
            base_url=self._endpoint.base_url,
            api_key=self._endpoint.api_key,
            timeout=settings.timeout,
            max_retries=settings.max_retries,
            http_client=http_client,
        )
        return memory


class _Embedding:
    """Our embedder in the place of mem0's; memories are documents, what is searched for is a query."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.searches = 0
        self.failure: Exception | None = None

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        return self.embed_batch([text], memory_action)[0]

    def embed_batch(self, texts: list[str], memory_action: str | None = "add") -> list[list[float]]:
        if not texts:
            return []
        searching = memory_action == "search"
        self.searches += searching * len(texts)
        try:
            vectors = (self._embedder.queries if searching else self._embedder.documents)(texts)
        except Exception as error:
            self.failure = error
            raise
        numbers: list[list[float]] = vectors.tolist()
        return numbers


def _load_mem0(home: Path) -> Any:
    """mem0's class `Memory`. What it reads when it is imported: no telemetry, no notices, no files in the user's home."""
    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(home / ".mem0")}
    if os.environ.get("DELTAMEM_ALLOW_HUB") != "1":
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from mem0 import Memory
    from mem0.memory import main, telemetry

    main.MEM0_TELEMETRY = telemetry.MEM0_TELEMETRY = False  # if something else has imported mem0 before
    logging.getLogger("mem0").setLevel(logging.CRITICAL)  # what it logs is raised too, or told by `facts`
    return Memory
