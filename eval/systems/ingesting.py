"""Sessions into a store, one after the other: what is known is skipped, what fails is noted, each has its record."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence

from deltamem.errors import EmbedderUnavailableError, reason_of
from eval.results.record_file import RecordFile
from eval.results.records import Cost, IngestRecord
from eval.systems.protocol import DialogueSession, Memory, StoreKey, SystemUnavailableError


async def ingest_sessions(
    memory: Memory,
    key: StoreKey,
    sessions: Sequence[DialogueSession],
    log: RecordFile[IngestRecord],
    told: Callable[[IngestRecord], None] = lambda record: None,
) -> AsyncIterator[tuple[DialogueSession, IngestRecord]]:
    """Take in sessions in order and yield after each, so that the memory can be searched as it is then.

    A session that fails is noted and the next one goes on without it; the same command tries it again. An unreadable
    session is not asked for again. A system that keeps nothing on disk takes in all sessions again, which is not noted
    twice. A session that is in the store but was not noted (the process was killed in between) costs nothing now; what it
    cost is lost.

    Args:
        memory: The store.
        key: Its key.
        sessions: In order.
        log: Where each session is noted.
        told: Told of each session, those of earlier runs included.

    Yields:
        The session and its record.

    Raises:
        SystemUnavailableError: If the system cannot take in anything.
        EmbedderUnavailableError: If the embedder cannot be loaded.
    """
    applied = [number for number, session in enumerate(sessions) if session.id in memory.known]
    last = max(applied, default=-1)
    for number, session in enumerate(sessions):
        noted = log.get(f"{key.id}/{session.id}")
        if noted is not None and noted.outcome == "failed":
            noted = None
        known = session.id in memory.known
        if noted is None or (noted.outcome == "applied" and not known):
            record = await _ingest(memory, key, session, number, late=number < last, lost=known)
            if noted is not None and record.outcome == "applied":
                record = noted  # the same again, in a store that did not last
            else:
                log.add(record)
        else:
            record = noted
        told(record)
        yield session, record


async def _ingest(
    memory: Memory, key: StoreKey, session: DialogueSession, number: int, *, late: bool, lost: bool
) -> IngestRecord:
    started = time.perf_counter()
    try:
        ingested = await memory.ingest(session)
    except (SystemUnavailableError, EmbedderUnavailableError):
        raise
    except Exception as error:  # one broken session must not lose the others
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
