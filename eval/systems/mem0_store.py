"""One store of mem0: sessions in, passages out, and a journal that tells what is in it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from eval.results.record_file import RecordFile
from eval.systems.metered_transport import Meter
from eval.systems.peer_endpoint import PeerEndpoint, message_groups, spoken_date
from eval.systems.protocol import DialogueSession, DialogueTurn, Ingested, Passage, StoreKey, Usage

_USER = "owner"
"""mem0 forbids blanks in the names of users; each store has a mem0 of its own, so one name does for all."""

Result = TypeVar("Result")


class _Noted(BaseModel):
    """One line of a store's journal: a session was begun, or is in the store, with what it did there."""

    session: str
    done: bool = False
    memories: tuple[str, ...] = ()
    operations: dict[str, int] = {}
    violations: dict[str, int] = {}
    readable: bool = True

    def told(self, usage: Usage) -> Ingested:
        return Ingested(self.memories, self.operations, self.violations, usage, readable=self.readable)


class Mem0Store:
    """One store.

    A session that was begun and not finished, because it failed or the process was killed, may have left anything behind.
    So when the store is opened again it is emptied, and all sessions are taken in anew, from cached answers where there
    are any.
    """

    def __init__(
        self,
        folder: Path,
        key: StoreKey,
        thread: ThreadPoolExecutor,
        make: Callable[[Meter], Any],
        endpoint: PeerEndpoint,
    ) -> None:
        """Describe the store; `load` opens it, in the thread."""
        self._folder = folder
        self._key = key
        self._thread = thread
        self._make = make
        self._endpoint = endpoint
        self._meter = Meter()
        self._memory: Any = None
        self._journal: RecordFile[_Noted] | None = None

    @property
    def known(self) -> set[str]:
        """Sessions that are in the store."""
        return {noted.session for noted in self._journal or () if noted.done}

    async def run(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Do something in the thread of the store."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Give mem0 the messages of a session, in groups if the protocol has groups."""
        noted = self._journal.get(session.id) if self._journal is not None else None
        return noted.told(Usage()) if noted is not None and noted.done else await self.run(self._ingest, session)

    async def search(self, query: str, k: int) -> list[Passage]:
        """mem0's own search, with its default threshold; mem0 calls `k` ``top_k``."""
        return await self.run(self._search, query, k)

    async def reset(self) -> None:
        """Empty the store."""
        await self.run(self._wipe)

    def load(self) -> None:
        """Open the store, or make it."""
        self._journal = RecordFile(self._folder / "sessions.jsonl", _Noted, lambda noted: noted.session)
        if all(noted.done for noted in self._journal):
            self._memory = self._make(self._meter)
        else:
            self._wipe()

    def close(self) -> None:
        """Close all files and connections."""
        if self._memory is not None:
            self._memory.llm.client.close()
            self._memory.vector_store.client.close()
            self._memory.close()
            self._memory = None
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _wipe(self) -> None:
        self.close()
        # The journal goes last: a store without one must be empty.
        if (self._folder / "memory").exists():
            shutil.rmtree(self._folder / "memory")
        shutil.rmtree(self._folder)
        self.load()

    def _ingest(self, session: DialogueSession) -> Ingested:
        assert self._journal is not None
        self._journal.add(_Noted(session=session.id))
        self._meter.take()
        searches = self._memory.embedding_model.searches
        results: list[dict[str, Any]] = []
        groups = message_groups(session.turns, self._key.batch_turns)
        unreadable = 0
        for group in groups:
            added = self._add(group, session.time)
            unreadable += added is None
            results += added or []
        usage = self._meter.take() + Usage(searches=self._memory.embedding_model.searches - searches)
        self._endpoint.note(usage)
        noted = _Noted(
            session=session.id,
            done=True,
            memories=tuple(result["memory"] for result in results if result["event"] in ("ADD", "UPDATE")),
            operations=Counter(result["event"] for result in results),
            violations={"unreadable_answer": unreadable} if unreadable else {},
            readable=not groups or unreadable < len(groups),
        )
        self._journal.add(noted)
        return noted.told(usage)

    def _add(self, turns: Sequence[DialogueTurn], time: datetime) -> list[dict[str, Any]] | None:
        """What mem0 says that it changed; None if it could not read the model's answer, which it does not tell."""
        answers: list[str] = []
        embedding = self._memory.embedding_model
        embedding.failure = None
        self._memory.llm.config.response_callback = lambda llm, response, request: answers.append(_content(response))
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
            raise self._endpoint.told(error, "mem0's add") from error
        if embedding.failure is not None:  # mem0 would go on without what it could not embed
            raise self._endpoint.told(embedding.failure, "mem0's embedding") from embedding.failure
        return list(added["results"]) if added["results"] or all(map(_readable, answers)) else None

    def _search(self, query: str, k: int) -> list[Passage]:
        try:
            found = self._memory.search(query, top_k=k, filters={"user_id": _USER})["results"]
        except Exception as error:
            raise self._endpoint.told(error, "mem0's search") from error
        return [_passage(result) for result in found]


def _passage(result: dict[str, Any]) -> Passage:
    time = datetime.fromisoformat(result["metadata"]["timestamp"])
    return Passage(result["memory"], time=time, similarity=result["score"])


def _content(response: Any) -> str:
    return str(response.choices[0].message.content or "")


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
    if not isinstance(reply, dict):
        return False
    memories = reply.get("memory") or []
    return isinstance(memories, list) and all(
        isinstance(memory, dict) and isinstance(memory.get("text") or "", str) for memory in memories
    )
