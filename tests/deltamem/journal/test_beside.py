"""What plug-ins keep beside the journal: no way of erasing misses it, whatever happens between the two files."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from deltamem import plugins
from deltamem.errors import DeltaMemError, StorageError
from deltamem.journal.beside import PluginStore, file_kind
from deltamem.journal.journal import Journal
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import Change, ChangeEvent, EntryKind, Forgotten
from deltamem.journal.rows import create_owner
from deltamem.journal.transfer import export_owner, import_owner
from deltamem.memory import Memory

TIME = datetime(2026, 4, 5, 20, 1)
SECRET = "Ann hides xyzzy."


class Notes(PluginStore):
    """Keeps a text of each owner."""

    name = "notes"
    kind = file_kind(
        "notes",
        1,
        "CREATE TABLE notes (owner_id INTEGER NOT NULL REFERENCES owners (id) ON DELETE CASCADE, text TEXT NOT NULL);\n",
    )

    def note(self, owner: str, text: str) -> None:
        with self.write() as connection:
            connection.execute("INSERT INTO notes VALUES (?, ?)", (create_owner(connection, owner), text))

    def notes(self) -> list[tuple[str, str]]:
        with self.database.read() as connection:
            query = "SELECT name, text FROM notes JOIN owners ON owners.id = owner_id"
            return [tuple(row) for row in connection.execute(query)]

    def forget(self, owner: str, forgotten: Forgotten) -> None:
        with self.database.write() as connection:
            for row in connection.execute("SELECT notes.rowid AS id, text FROM notes").fetchall():
                if forgotten.repeated_in(row["text"]):
                    connection.execute("DELETE FROM notes WHERE rowid = ?", (row["id"],))
                    self.database.purge_after()


KINDS: dict[str, type[PluginStore]] = {"notes": Notes}


def load(group: str, name: str) -> type[PluginStore]:
    if name not in KINDS:
        raise DeltaMemError(f"{name!r} is none of the {group}; there are: none")
    return KINDS[name]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, type[PluginStore]]]:
    """The plug-ins that there are."""
    monkeypatch.setattr(plugins, "load", load)
    yield KINDS
    KINDS["notes"] = Notes


def remember(journal: OwnerJournal, text: str = SECRET) -> None:
    memory = Memory(f"m{journal.next_id_number()}", text, TIME)
    journal.append(EntryKind.EDIT, [Change(ChangeEvent.ADD, memory.id, None, memory)], actor="test")


def holds(folder: Path, text: str) -> bool:
    return any(text.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def fill(journal: Journal) -> None:
    remember(journal.owner("ann"))
    remember(journal.owner("bob"), "Bob swims.")
    for number in range(50):
        journal.beside(Notes).note("ann", f"{number}: she says that ANN HIDES  xyzzy. {'x' * 200}")
    journal.beside(Notes).note("ann", "Ann swims.")
    journal.beside(Notes).note("carl", "Carl is known by a note alone.")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Journal.open(tmp_path / "j") as journal:
        fill(journal)
    assert holds(tmp_path / "plugins", "xyzzy")
    return tmp_path


@pytest.mark.parametrize("opened", ["before", "by erasing"])
def test_forgetting_reaches_the_stores_to_the_byte(folder: Path, opened: str) -> None:
    with Journal.open(folder / "j") as journal:
        if opened == "before":
            assert len(journal.beside(Notes).notes()) == 52
        journal.owner("ann").forget("m1")
        assert not holds(folder, "xyzzy") and not journal.purge_pending and journal.integrity_check() == []
        assert journal.beside(Notes).notes() == [("ann", "Ann swims."), ("carl", "Carl is known by a note alone.")]


def test_an_owner_that_only_a_store_knows_is_one_and_can_be_erased(folder: Path) -> None:
    with Journal.open(folder / "j", read_only=True) as reader:
        assert reader.owners() == ["ann", "bob", "carl"] and reader.knows("carl") and not reader.knows("dora")
    with Journal.open(folder / "j") as journal:
        assert journal.erase_owner("carl").entries == 0 and journal.erase_owner("ann").memories == 1
        assert journal.owners() == ["bob"] and journal.beside(Notes).notes() == []
        assert not holds(folder, "xyzzy") and not holds(folder, "Carl")


def test_a_journal_in_memory_has_its_stores_there() -> None:
    with Journal.open(None) as journal:
        fill(journal)
        journal.owner("ann").forget("m1")
        assert len(journal.beside(Notes).notes()) == 2 and journal.owners() == ["ann", "bob", "carl"]
        assert Journal.open(None).owners() == []


def test_a_file_of_a_plug_in_that_is_not_installed_lets_nothing_be_erased(
    folder: Path, installed: dict[str, type[PluginStore]]
) -> None:
    installed.clear()
    with Journal.open(folder / "j") as journal:
        remember(journal.owner("ann"), "Ann dives.")  # everything else works
        assert journal.owners() == ["ann", "bob"]
        for erase in (lambda: journal.owner("ann").forget("m1"), lambda: journal.erase_owner("ann")):
            with pytest.raises(DeltaMemError, match=r"plugins/notes\.sqlite3: nothing can be erased .* 'notes' is none of"):
                erase()
        assert len(journal.owner("ann").state()) == 2 and journal.erasures() == []
    installed["notes"] = Notes
    with Journal.open(folder / "j") as journal:
        journal.owner("ann").forget("m1")
    assert not holds(folder, "xyzzy")


def erase(journal: Journal, whole: bool) -> None:
    journal.erase_owner("ann") if whole else journal.owner("ann").forget("m1")


def erase_and_be_killed(path: Path, place: str, whole: bool) -> None:
    """In a process of its own: erase what "ann" has, and be killed before or after her notes are erased."""
    method = "erase_owner" if whole else "forget"
    there = getattr(Notes, method)

    def killed(self: Notes, *given: object) -> None:
        if place == "after":
            there(self, *given)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(plugins, "load", load)  # noqa: B010
    setattr(Notes, method, killed)
    with Journal.open(path) as journal:
        erase(journal, whole)


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("whole", [False, True])
def test_an_erasure_that_is_killed_between_the_files_was_not_acknowledged_and_is_completed(
    folder: Path, place: str, whole: bool
) -> None:
    # A fork of a process with threads may wait for ever for a lock of theirs.
    process = multiprocessing.get_context("spawn").Process(target=erase_and_be_killed, args=(folder / "j", place, whole))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with Journal.open(folder / "j") as journal:
        assert journal.owner("ann").state()["m1"].text == SECRET  # neither here nor there is it said to be gone
        erase(journal, whole)
    assert not holds(folder, "xyzzy")


def test_what_another_process_notes_while_something_is_forgotten_waits_or_is_forgotten(folder: Path) -> None:
    with Journal.open(folder / "j") as journal, Journal.open(folder / "j") as other:
        notes = other.beside(Notes)
        for database in (notes.database, other._database):
            database._connection.execute("PRAGMA busy_timeout = 50")

        class Meddling(Notes):
            def forget(self, owner: str, forgotten: Forgotten) -> None:
                super().forget(owner, forgotten)
                with pytest.raises(StorageError, match="locked"):  # who finds the memory in the journal may not write it
                    notes.note("ann", SECRET)

        journal._files._opened["notes"] = Meddling(journal._files, Journal.open(folder / "j").beside(Notes).database)
        journal.owner("ann").forget("m1")
        notes.note("ann", "Ann is free.")
    assert not holds(folder, "xyzzy") and holds(folder, "Ann is free.")


@pytest.mark.parametrize("by", ["erasure", "opening"])
def test_a_reader_of_a_store_delays_its_purge_until_the_next(folder: Path, by: str) -> None:
    with Journal.open(folder / "j") as journal:
        journal.beside(Notes).database._connection.execute("PRAGMA busy_timeout = 50")
        with closing(sqlite3.connect(folder / "plugins" / "notes.sqlite3", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM notes").fetchall()
            journal.owner("ann").forget("m1")
            assert journal.purge_pending
        if by == "erasure":
            journal.owner("bob").forget("m1")
            assert not journal.purge_pending and not holds(folder, "xyzzy")
    with Journal.open(folder / "j") as journal:
        assert not journal.purge_pending and not holds(folder, "xyzzy")


def test_lines_of_a_plug_in_that_has_none_or_is_not_there_are_refused() -> None:
    with Journal.open(None) as journal:
        remember(journal.owner("ann"))
        stream = io.StringIO()
        export_owner(journal.owner("ann"), stream)
    text = stream.getvalue()
    assert '"plugins":{}' in text
    for name, sentence in {"notes": "'notes' has no lines in an export", "songs": "^line 1: .*'songs' is none of"}.items():
        with Journal.open(None) as journal, pytest.raises(DeltaMemError, match=sentence):
            import_owner(
                journal.owner("ann"), io.StringIO(text.replace('"plugins":{}', f'"plugins":{{"{name}":1}}') + "{}\n")
            )
        with Journal.open(None) as journal:
            assert journal.owners() == []
