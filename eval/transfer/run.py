"""Lets a memory system read the sessions, and searches it; every result is a record on disk, so a run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from deltamem.config import StrictModel
from deltamem.errors import EmbedderUnavailableError, reason_of
from deltamem.progress import ProgressDisplay
from deltamem.runs import RecordFile
from eval.records import IngestRecord, ingest_session
from eval.systems.base import Memory, Passage, System, SystemUnavailableError
from eval.transfer.data import TransferConfig, TransferPerson


class SearchRecord(StrictModel):
    """What was found for an updated point or a question; one line of ``searches.jsonl``."""

    key: str  # Of the point or question
    query: str
    after: tuple[str, ...]  # Ids of the sessions that had been read; another search is made once there are others
    passages: tuple[Passage, ...] = ()  # Best first
    error: str | None = None  # Why nothing could be searched


class TransferFiles:
    """The records of a run."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        """Open them, or begin them; the stack closes them."""
        sessions = RecordFile(folder / "sessions.jsonl", IngestRecord, lambda record: record.key)
        self.sessions = stack.enter_context(sessions)
        self.searches = stack.enter_context(RecordFile(folder / "searches.jsonl", SearchRecord, lambda record: record.key))

    def session(self, person: TransferPerson, number: int) -> IngestRecord | None:
        """What became of a session; None if it was not read yet."""
        return self.sessions.get(f"{person.store.id}/{person.sessions[number].dialogue.id}")

    def read(self, person: TransferPerson, count: int) -> tuple[str, ...]:
        """Ids of those of the first sessions that did not fail."""
        records = (self.session(person, number) for number in range(count))
        return tuple(record.session for record in records if record is not None and record.outcome != "failed")

    def search(self, key: str, after: tuple[str, ...]) -> SearchRecord | None:
        """What was found in a memory of these sessions; None if that has to be searched for."""
        record = self.searches.get(key)
        return record if record is not None and record.error is None and record.after == after else None


class _Search(NamedTuple):
    key: str
    query: str
    reads: int  # After how many sessions
    k: int


@dataclass
class TransferRun:
    """Does what is not done yet."""

    config: TransferConfig
    people: Sequence[TransferPerson]
    system: System
    files: TransferFiles
    progress: ProgressDisplay
    made: str = ""  # What records are marked with

    def unfinished(self, person: TransferPerson) -> bool:
        """Whether a session has to be read, or something searched for."""
        if len(self.files.read(person, len(person.sessions))) < len(person.sessions):
            return True
        return None in self.searches(person)

    def searches(self, person: TransferPerson) -> list[SearchRecord | None]:
        """What was found for each updated point and question; None for what has to be searched for."""
        return [self.files.search(one.key, self.files.read(person, one.reads)) for one in self._due(person)]

    def _due(self, person: TransferPerson) -> Iterator[_Search]:
        """Everything that is searched for, in order."""
        for reads, session in enumerate(person.sessions, start=1):
            for update in session.updates:
                yield _Search(update.key, update.text, reads, self.config.update_k)
        for question in person.questions:
            yield _Search(question.key, question.text, len(person.sessions), self.config.budget_k)

    async def do(self) -> None:
        """Read and search.

        Raises:
            SystemUnavailableError: If the system cannot work at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
            OSError: If a record cannot be written.
        """
        slots = asyncio.Semaphore(self.config.stores_at_once)
        with self.progress:
            watch = asyncio.create_task(self.progress.watch())
            try:
                async with asyncio.TaskGroup() as group:
                    for person in self.people:
                        group.create_task(self._person(person, slots))
            finally:
                watch.cancel()
                with suppress(asyncio.CancelledError):
                    await watch

    async def _person(self, person: TransferPerson, slots: asyncio.Semaphore) -> None:
        async with slots:
            if not self.unfinished(person):
                for number in range(len(person.sessions)):
                    self._count(self.files.session(person, number))
                return
            try:
                async with self.system.open(person.store) as memory:
                    await self._read(person, memory)
            except (SystemUnavailableError, EmbedderUnavailableError, OSError):
                raise
            except Exception as error:  # one broken store must not lose the others
                self.progress.say(f"{person.store.id}: the store cannot be used: {reason_of(error)}")

    async def _read(self, person: TransferPerson, memory: Memory) -> None:
        dialogues = [session.dialogue for session in person.sessions]
        for number in range(len(dialogues)):
            record = await ingest_session(memory, person.store, dialogues, number, self.files.sessions, self.made)
            self._count(record)
            after = self.files.read(person, number + 1)
            for one in self._due(person):
                if one.reads == number + 1 and self.files.search(one.key, after) is None:
                    self.files.searches.add(await self._search(memory, one, after))

    async def _search(self, memory: Memory, one: _Search, after: tuple[str, ...]) -> SearchRecord:
        named: dict[str, Any] = {"key": one.key, "query": one.query, "after": after}
        try:
            found = await memory.search(one.query, one.k)
        except (SystemUnavailableError, EmbedderUnavailableError):
            raise
        except Exception as error:  # one failed search must not lose the others
            return SearchRecord(**named, error=reason_of(error))
        return SearchRecord(**named, passages=tuple(found[: one.k if self.system.ranked else None]))

    def _count(self, record: IngestRecord | None) -> None:
        if record is not None:
            cost = record.cost
            tokens = cost.prompt_tokens + cost.completion_tokens
            self.progress.advance("sessions", tokens=tokens, seconds=cost.seconds, failed=record.outcome == "failed")
