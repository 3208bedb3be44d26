"""The process that is killed: ``python ingest_child.py JOB FOLDER SESSIONS``.

Jobs: ``ingest`` (checks the store, then ingests what is missing), ``edit`` (writes without a model), ``work`` (takes
sessions on, then runs their jobs), ``export``, ``import`` and ``forget``. It tells what it is doing in FOLDER.stage, which
stays readable when it is killed, and acknowledges sessions, fsynced, in FOLDER.acks.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent), str(Path(__file__).parent.parent.parent)]

from episode_texts import WordEmbedder
from rule_model import RulePolicy
from trust_checks import replay_journal

import deltamem.manager
from deltamem.bank.base import SnapshotBank
from deltamem.bank.store import MemoryStore, UserStore
from deltamem.edits import Add, Update
from deltamem.jobs import Worker, WorkerSettings
from deltamem.journal.jobs import JobQueue, JobState
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import EntryKind
from deltamem.journal.transfer import import_owner
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.runs import atomic_writer
from deltamem.sessions import Session, Turn

OWNERS = ("ann", "bob")
START = datetime(2026, 4, 5, 20, 1)
FLUSH_EVERY = 7
TOPICS = 40


class Stage:
    """What the process is doing, in a file: a name, and how often something began."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(f"{folder}.stage", os.O_RDWR | os.O_CREAT, 0o600)
        self._stack = ["start"]
        self._count = 0
        self._write()

    def _write(self) -> None:
        os.pwrite(self._file, f"{self._count:08d} {self._stack[-1]:<12}".encode(), 0)

    def during(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def told(*args: Any, **kwargs: Any) -> Any:
            self._stack.append(name)
            self._count += 1
            self._write()
            try:
                return call(*args, **kwargs)
            finally:
                self._stack.pop()
                self._write()

        return told


def a_session(number: int) -> Session:
    """Session `number` of all; owners take turns. Its facts rewrite or repeat some that earlier ones stated."""
    owner, day = OWNERS[number % len(OWNERS)], number // len(OWNERS)
    facts = [f"My thing{day % TOPICS} is value{number}.", f"My other{day % 7} is same{day % 14}."]
    turns = [Turn("user", fact) for fact in facts]
    return Session(owner, owner.title(), START + timedelta(hours=number), tuple(turns), f"session-{number}")


def expected_sessions(owner: str, count: int) -> list[Session]:
    return [session for session in map(a_session, range(count)) if session.person_id == owner]


def check(store: MemoryStore, owner: str) -> None:
    """The journal is sound, the bank stands for it, and the index finds what exact search finds."""
    opened = store.bank(owner)
    assert opened.journal.verify() == [], opened.journal.verify()
    state = opened.journal.state()
    assert replay_journal(opened.journal) == dict(state) == dict(opened.bank.state)
    assert opened.bank.position == opened.journal.head
    exact = SnapshotBank(owner, state, store.embedder.documents([memory.text for memory in state.memories]), 0)
    queries = store.embedder.queries(
        [memory.text for memory in state.memories] + [f"{owner.title()}'s thing1 is", "other3 same"]
    )
    found, wanted = opened.bank.search(queries, 5), exact.search(queries, 5)
    for mine, theirs in zip(found, wanted, strict=True):
        similarities = [[hit.similarity for hit in hits] for hits in (mine, theirs)]
        assert len(mine) == len(theirs) and np.allclose(*similarities, atol=1e-4), similarities
        assert all(state[hit.memory.id] == hit.memory for hit in mine)


async def ingest(store: MemoryStore, count: int, acks: int) -> None:
    managers = {
        owner: MemoryManager(store, owner, RulePolicy(), ManagerSettings(person_name=owner.title())) for owner in OWNERS
    }
    for owner in OWNERS:
        check(store, owner)
    os.write(acks, b"checked\n")
    for session in map(a_session, range(count)):
        if managers[session.person_id].owned.journal.session_position(session.id) is None:
            done = await managers[session.person_id].ingest(session)
            assert done.outcome == "applied" and not done.violations, done
            os.write(acks, f"{session.id}\n".encode())
            os.fsync(acks)
    for session in map(a_session, range(max(0, count - 4), count)):
        assert (await managers[session.person_id].ingest(session)).outcome == "known"


async def edit(memory: MemoryManager, count: int, acks: int) -> None:
    """Edits of two changes each: one rewrites m1, the other adds a memory."""
    journal = memory.owned.journal
    for number in range(sum(entry.kind is EntryKind.EDIT for entry in journal.entries()), count):
        said = f"{memory.person_name}'s edit is edit{number}."
        await memory.write([Update("m1", said, metadata={"n": number}), Add(said, START, {"n": number})], "child")
        os.write(acks, f"edit-{number}\n".encode())
        os.fsync(acks)


async def work(store: MemoryStore, count: int, acks: int) -> None:
    """Take all sessions on, and run the jobs until none is left."""

    def of(owner: str) -> MemoryManager:
        return MemoryManager(store, owner, RulePolicy(), ManagerSettings(person_name=owner.title()))

    for session in map(a_session, range(count)):
        await of(session.person_id).enqueue(session)
        os.write(acks, f"{session.id}\n".encode())
        os.fsync(acks)
    async with Worker(store.journal.queue, of, WorkerSettings(poll=0.01)):
        while any(of(owner).journal.jobs(JobState.QUEUED, JobState.RUNNING) for owner in OWNERS):
            await asyncio.sleep(0.01)


def main(job: str, folder: Path, count: int) -> None:
    from deltamem.bank import chroma
    from deltamem.bank.chroma import ChromaBank

    stage = Stage(folder)
    chroma.ChromaIndex.flush_every = FLUSH_EVERY
    OwnerJournal.append = stage.during("commit", OwnerJournal.append)  # type: ignore[method-assign]
    MemoryManager.ingest_job = stage.during("read", MemoryManager.ingest_job)  # type: ignore[method-assign]
    JobQueue._end = stage.during("end", JobQueue._end)  # type: ignore[method-assign]
    JobQueue.claim = stage.during("claim", JobQueue.claim)  # type: ignore[method-assign]
    OwnerJournal.forget_all = stage.during("forget", OwnerJournal.forget_all)  # type: ignore[method-assign]
    ChromaBank._flush = stage.during("flush", ChromaBank._flush)  # type: ignore[method-assign]
    ChromaBank.purge = stage.during("purge", ChromaBank.purge)  # type: ignore[method-assign]
    deltamem.journal.transfer.import_owner = stage.during("import", import_owner)  # type: ignore[attr-defined]
    UserStore.reload = stage.during("reload", UserStore.reload)  # type: ignore[method-assign]
    chroma.ChromaIndex._replace = stage.during("rebuild", chroma.ChromaIndex._replace)  # type: ignore[method-assign]
    acks = os.open(f"{folder}.acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with stage.during("open", MemoryStore.open)(folder, WordEmbedder()) as store:
        bank = stage.during("open", store.bank)
        store.bank = bank  # type: ignore[method-assign]
        if job == "ingest":
            asyncio.run(ingest(store, count, acks))
            return
        if job == "work":
            asyncio.run(work(store, count, acks))
            return
        check(store, OWNERS[0])
        memory = MemoryManager(store, OWNERS[0], RulePolicy())
        exported = folder.with_suffix(".jsonl")
        if job == "export":
            while True:  # again and again until it is killed
                with atomic_writer(exported) as stream:
                    stage.during("export", memory.export)(stream)
        elif job == "import":
            with exported.open(encoding="utf-8") as stream:
                asyncio.run(memory.import_from(stream))
        elif job == "edit":
            asyncio.run(edit(memory, count, acks))
        elif job == "forget":
            asyncio.run(memory.forget("m1"))
        check(store, OWNERS[0])
        os.write(acks, f"{job} done\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
