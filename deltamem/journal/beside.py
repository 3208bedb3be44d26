"""Room beside the journal: a plug-in keeps what it knows of owners in an SQLite file of its own, and erasing reaches it.

The files lie in ``plugins/`` in the folder of the journal, one for each plug-in, named after its entry point in the group
``deltamem.stores``. Whatever the journal erases it erases there first, inside its own transaction: should the process end
between the two, nothing was acknowledged, and erasing again completes it.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from deltamem import plugins
from deltamem.errors import DeltaMemError
from deltamem.journal import rows
from deltamem.journal.lines import ExportLine, ExportLines
from deltamem.journal.records import Forgotten
from deltamem.sqlite import Database, FileKind

FOLDER = "plugins"
"""Name of the folder of the files, in that of the journal."""
_APPLICATION_ID = 0x444D706C  # "DMpl"


def file_kind(name: str, version: int, schema: str) -> FileKind:
    """The file of a plug-in, which has a table of owners like the journal, and the tables of a schema.

    Their rows hang on ``owners (id) ON DELETE CASCADE``, so that an owner can be erased.
    """
    return FileKind(f"what the plug-in {name!r} keeps", _APPLICATION_ID, version, rows.OWNERS + schema)


class PluginStore(ABC):
    """What a plug-in keeps. One object serves all threads of a process."""

    name: ClassVar[str]
    """Of the plug-in in the group ``deltamem.stores``."""
    kind: ClassVar[FileKind]
    """See `file_kind`."""

    def __init__(self, files: JournalFiles, database: Database) -> None:
        """Bind a file; called by `JournalFiles.beside` only."""
        self.files = files
        self.database = database

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Change the file as a whole or not at all, while nobody in any process changes the journal or erases from it.

        So whoever finds a text in the journal may keep it, without bringing back what is erased just now.
        """
        with self.files.journal.write(), self.database.write() as connection:
            yield connection

    def owners(self) -> list[str]:
        """Everybody who has something here."""
        with self.database.read() as connection:
            return [row["name"] for row in connection.execute("SELECT name FROM owners")]

    def erase_owner(self, owner: str) -> None:
        """Erase everything about an owner, for good; not an error if there is nothing."""
        with self.database.write() as connection:
            connection.execute("DELETE FROM owners WHERE name = ?", (owner,))
            self.database.purge_after()

    @abstractmethod
    def forget(self, owner: str, forgotten: Forgotten) -> None:
        """Erase for good all that comes from some memories of an owner, or repeats their texts.

        Called while the journal is being written and before that is committed: the same may be forgotten again. Must write
        in a transaction of `database`, not with `write`.
        """

    def exported(self, owner: str) -> list[ExportLine]:
        """What an export of the owner is to hold, one line of JSON each."""
        return []

    def read(self, lines: ExportLines, count: int) -> Any:
        """Read the `count` lines that `exported` gave once, for `restore`.

        Raises:
            DeltaMemError: If they are none of this plug-in's.
        """
        raise DeltaMemError(f"the plug-in {self.name!r} has no lines in an export, but the file has {count}")

    def restore(self, owner: str, records: Any) -> None:
        """Keep what was `read`, for an owner whose entries were restored in the journal just now, in the same transaction.

        The same may be restored again, should the process end before the journal's transaction does.

        Raises:
            DeltaMemError: If something else is there, or the records contradict the journal.
        """
        raise NotImplementedError


S = TypeVar("S", bound=PluginStore)


class JournalFiles:
    """The file of a journal, and those of plug-ins beside it; all in memory if the journal is."""

    def __init__(self, journal: Database, *, read_only: bool = False) -> None:
        """Bind the journal; the other files are opened when they are needed."""
        self.journal = journal
        self.read_only = read_only
        self._folder = None if journal.path is None else journal.path.parent / FOLDER
        self._opened: dict[str, PluginStore] = {}

    def beside(self, kind: type[S]) -> S:
        """The store of a plug-in; its file is made if there is none.

        Raises:
            DeltaMemError: If its file cannot be opened.
        """
        # Reading locks the journal for other threads, and in this order: those who write hold it when they come here.
        with self.journal.read():
            store = self._opened.get(kind.name)
            if store is None:
                path = None
                if self._folder is not None:
                    path = self._folder / f"{kind.name}.sqlite3"
                    if not self.read_only:
                        self._folder.mkdir(mode=0o700, exist_ok=True)
                store = kind(self, Database.open(path, kind.kind, read_only=self.read_only))
                self._opened[kind.name] = store
            assert isinstance(store, kind)
            return store

    def stores(self, *, erasing: bool = False) -> list[PluginStore]:
        """The stores that there are. Those of plug-ins that are not installed are left out; `erasing` completes purges.

        Raises:
            DeltaMemError: If a file cannot be opened, or `erasing` would miss one.
        """
        with self.journal.read():
            for file in sorted(self._folder.glob("*.sqlite3")) if self._folder is not None else ():
                if file.stem in self._opened:
                    continue
                try:
                    kind: type[PluginStore] = plugins.load("stores", file.stem)
                except DeltaMemError as error:
                    if erasing:
                        raise DeltaMemError(
                            f"{file}: nothing can be erased while this file of a plug-in is here and the plug-in is not:"
                            f" {error}"
                        ) from error
                    continue
                self.beside(kind)
            opened = list(self._opened.values())
            for store in opened if erasing else ():
                # A reader had delayed it, and this erasure may find nothing to erase there.
                if store.database.purge_pending:
                    store.database.purge()
            return opened

    def close(self) -> None:
        """Close all files; closing twice is fine."""
        for store in self._opened.values():
            store.database.close()
        self.journal.close()
