"""The journal: one SQLite file with the append-only entries of every owner. The truth that everything else derives from."""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

from deltamem.errors import DeltaMemError, NotFoundError
from deltamem.journal.beside import JournalFiles, PluginStore, S
from deltamem.journal.jobs import JobQueue
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import Erasure
from deltamem.journal.rows import JOURNAL, owner_id
from deltamem.sqlite import Database, insert_row

JOURNAL_FILE = "journal.sqlite3"
"""Name of the journal in the folder of a store."""


class Journal:
    """The journals of all owners in one file.

    The threads of a process may share one instance: they take turns on its only connection, so that a journal in memory
    works like one on disk. Other processes may read at the same time; writers take turns.
    """

    def __init__(self, files: JournalFiles) -> None:
        """Use `open`."""
        self._files = files
        self._database = files.journal

    @classmethod
    def open(cls, path: Path | None, *, read_only: bool = False) -> Journal:
        """Open or create a journal.

        Args:
            path: The SQLite file; its folder must exist. None keeps the journal in memory.
            read_only: Never create or change anything.

        Raises:
            DeltaMemError: If the file is missing (read only), no SQLite database, one of another application, or written
                by another version.
        """
        return cls(JournalFiles(Database.open(path, JOURNAL, read_only=read_only), read_only=read_only))

    @property
    def path(self) -> Path | None:
        """The SQLite file; None for a journal in memory."""
        return self._database.path

    @property
    def store_id(self) -> str:
        """A random name that the journal got when it was made, different for every journal."""
        with self._database.read() as connection:
            return str(connection.execute("SELECT id FROM store").fetchone()[0])

    @property
    def queue(self) -> JobQueue:
        """The jobs of all owners, for those who run them."""
        return JobQueue(self._database)

    @property
    def purge_pending(self) -> bool:
        """Whether erased bytes may still be in the files, because another process was reading them."""
        databases = [self._database, *(store.database for store in self._files.stores())]
        return any(database.purge_pending for database in databases)

    def owner(self, name: str) -> OwnerJournal:
        """The journal of one owner, who need not have any entry yet.

        Raises:
            DeltaMemError: If the name is empty or not valid Unicode.
        """
        return OwnerJournal(self._files, name)

    def beside(self, kind: type[S]) -> S:
        """What a plug-in keeps beside the journal, see `deltamem.journal.beside`.

        Raises:
            DeltaMemError: If its file cannot be opened.
        """
        return self._files.beside(kind)

    def knows(self, name: str) -> bool:
        """Whether an owner has entries or jobs, or a plug-in keeps something of them."""
        with self._database.read() as connection:
            return owner_id(connection, name) is not None or any(name in store.owners() for store in self._files.stores())

    def owners_of_memory(self, uuid: UUID) -> list[str]:
        """The owners that have a memory with a UUID: one, or several after an export was imported for somebody else too."""
        query = "SELECT name FROM changes JOIN owners ON owners.id = owner_id WHERE uuid = ? ORDER BY name"
        with self._database.read() as connection:
            return [row[0] for row in connection.execute(query, (str(uuid),))]

    def owner_of_job(self, job_id: str) -> str | None:
        """The owner of a job; None if there is no such job."""
        query = "SELECT name FROM jobs JOIN owners ON owners.id = owner_id WHERE jobs.id = ?"
        with self._database.read() as connection:
            found = connection.execute(query, (job_id,)).fetchone()
        return None if found is None else str(found[0])

    def owners(self) -> list[str]:
        """The owners that have entries or jobs, or of whom a plug-in keeps something, sorted."""
        with self._database.read() as connection:
            names = {row["name"] for row in connection.execute("SELECT name FROM owners")}
            return sorted(names.union(*(store.owners() for store in self._files.stores())))

    def remembered_owners(self) -> list[str]:
        """The owners who have a memory now, sorted."""
        query = (
            "SELECT name FROM owners WHERE EXISTS (SELECT 1 FROM changes AS newest WHERE owner_id = owners.id"
            " AND after_text IS NOT NULL AND seq = (SELECT max(seq) FROM changes WHERE owner_id = newest.owner_id"
            " AND memory_number = newest.memory_number AND event <> 'NONE' AND erased = 0)) ORDER BY name"
        )
        with self._database.read() as connection:
            return [row[0] for row in connection.execute(query)]

    def erase_owner(self, name: str) -> Erasure:
        """Erase everything about an owner for good and record that it was done.

        Returns:
            The record. It holds a hash of the name, so that a request can be answered for, and counts.

        Raises:
            DeltaMemError: If there is no such owner, or a plug-in that is not installed keeps something.
        """
        owner = self.owner(name)
        with self._database.write() as connection:
            stores = self.stores_to_erase()
            if not self.knows(name):
                raise NotFoundError(f"{name!r}: no such owner in this journal")
            erasure = Erasure(
                owner_sha256=hashlib.sha256(name.encode()).hexdigest(),
                erased_at=datetime.now(UTC),
                entries=owner.head,
                memories=len(owner.state()),
                dialogues=owner.dialogue_count,
            )
            connection.execute("DELETE FROM owners WHERE name = ?", (name,))
            insert_row(connection, "erasures", asdict(erasure) | {"erased_at": erasure.erased_at.isoformat()})
            # Before this transaction is committed: what is acknowledged is erased everywhere.
            for store in stores:
                store.erase_owner(name)
            self._database.purge_after()
        return erasure

    def stores_to_erase(self) -> list[PluginStore]:
        """What plug-ins keep.

        Raises:
            DeltaMemError: If there is a file of a plug-in that is not installed; then nothing can be erased.
        """
        return self._files.stores(erasing=True)

    def erasures(self) -> list[Erasure]:
        """The owners that were erased, oldest first, without their names."""
        query = "SELECT owner_sha256, erased_at, entries, memories, dialogues FROM erasures ORDER BY id"
        with self._database.read() as connection:
            found = connection.execute(query).fetchall()
        return [Erasure(**dict(row) | {"erased_at": datetime.fromisoformat(row["erased_at"])}) for row in found]

    def integrity_check(self) -> list[str]:
        """Let SQLite check the file, and those of plug-ins; what is wrong with it, a sentence each, empty if nothing is."""
        databases = [self._database]
        problems = []
        try:
            databases += (store.database for store in self._files.stores())
            for database in databases:
                with database.read() as connection:
                    problems += [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
                    broken = connection.execute("PRAGMA foreign_key_check").fetchall()
                problems += [f"row {row} of {table} refers to a missing row of {parent}" for table, row, parent, _ in broken]
        except (DeltaMemError, sqlite3.DatabaseError) as error:
            problems.append(str(error))
        return problems

    def close(self) -> None:
        """Close the files; closing twice is fine."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
