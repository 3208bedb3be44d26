"""The stores of a run: sessions go in in order, each with a record; queries are timed and their passages merged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import chain, zip_longest

from deltamem.errors import EmbedderUnavailableError, reason_of
from deltamem.runs import RecordFile
from eval.records import Cost, IngestRecord
from eval.systems.base import DialogueSession, Memory, Passage, StoreKey, SystemUnavailableError


async def search_stores(
    memories: Sequence[Memory], query: str, k: int, slots: asyncio.Semaphore, *, ranked: bool
) -> tuple[list[list[Passage]], float, str | None]:
    """Search all stores at the same time, holding `slots` while it is timed; see `eval.models.Models.timed`.

    Of a system that is `ranked` at most `k` passages of each store count, however many it returns.

    Returns:
        Passages of each store, best first; wall time; why it failed.

    Raises:
        SystemUnavailableError: If the system cannot search at all.
        EmbedderUnavailableError: If the embedder cannot be loaded.
    """
    async with slots:
        started = time.perf_counter()
        try:
            found = await asyncio.gather(*(memory.search(query, k) for memory in memories))
        except (SystemUnavailableError, EmbedderUnavailableError):
            raise
        except Exception as error:  # one failed search must not lose the other questions
            return [], 0.0, f"search: {reason_of(error)}"
        kept = [passages[: k if ranked else None] for passages in found]
        return kept, round(time.perf_counter() - started, 4), None


def merged(found: Sequence[Sequence[Passage]]) -> list[Passage]:
    """Bring the passages of several stores into one order.

    By similarity, the earlier store first where it is equal; where a system gives no similarities, the best of each
    store come first, then the second of each, and so on.
    """
    together = list(chain.from_iterable(found))
    if len(found) > 1 and all(passage.similarity is not None for passage in together):
        return sorted(together, key=lambda passage: -(passage.similarity or 0.0))
    return [passage for row in zip_longest(*found) for passage in row if passage is not None]


async def ingest_sessions(
    memory: Memory,
    key: StoreKey,
    sessions: Sequence[DialogueSession],
    log: RecordFile[IngestRecord],
    on_record: Callable[[IngestRecord], None] = lambda record: None,
    made: str = "",
) -> AsyncGenerator[IngestRecord]:
    """Ingest sessions in order and yield the record of each, so that the memory can be searched as it is then.

    A failed session is recorded and the next one goes on without it; the same command tries it again. An unreadable
    session is not tried again. A system that keeps nothing on disk ingests all sessions again, which is not recorded
    twice. A session that is in the store but was not recorded (the process was killed in between) costs nothing now; what
    it cost is lost.

    Raises:
        SystemUnavailableError: If the system cannot ingest anything.
        EmbedderUnavailableError: If the embedder cannot be loaded.
    """
    applied = [number for number, session in enumerate(sessions) if session.id in memory.known]
    last = max(applied, default=-1)
    for number, session in enumerate(sessions):
        record = log.get(f"{key.id}/{session.id}")
        if record is not None and record.outcome == "failed":
            record = None
        known = session.id in memory.known
        if record is None or (record.outcome == "applied" and not known):
            fresh = await _ingest(memory, key, session, number, late=number < last, lost=known)
            if record is None or fresh.outcome != "applied":  # else the same again, in a store that did not last
                record = fresh.model_copy(update={"made": made})
                log.add(record)
        on_record(record)
        yield record


async def _ingest(
    memory: Memory, key: StoreKey, session: DialogueSession, number: int, *, late: bool, lost: bool
) -> IngestRecord:
    started = time.perf_counter()
    try:
        ingested = await memory.ingest(session)
    except (SystemUnavailableError, EmbedderUnavailableError):
        raise
    except Exception as error:  # one failed session must not lose the others
        return IngestRecord(
            store=key.id,
            owner=key.owner,
            session=session.id,
            number=number,
            outcome="failed",
            late=late,
            reason=reason_of(error),
        )
    seconds = time.perf_counter() - started
    record = IngestRecord.of(key.id, key.owner, session.id, number, ingested, seconds, late=late)
    return record.model_copy(update={"cost": Cost(), "cost_lost": True}) if lost else record
