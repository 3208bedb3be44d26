"""The opener of SQLite files: what its users, the journal above all, do not test."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from deltamem.sqlite import Database, FileKind

NOTES = FileKind("a file of notes", 7, 3, "CREATE TABLE notes (text TEXT NOT NULL);\nCREATE INDEX texts ON notes (text);\n")
SECRET = "xyzzy"


def texts(database: Database) -> list[str]:
    with database.read() as connection:
        return [row["text"] for row in connection.execute("SELECT text FROM notes")]


def fill(path: Path) -> Database:
    database = Database.open(path, NOTES)
    with database.write() as connection:
        connection.executemany("INSERT INTO notes VALUES (?)", ((f"{SECRET} {number} " * 40,) for number in range(200)))
    return database


def holds(folder: Path) -> bool:
    return any(SECRET.encode() in path.read_bytes() for path in folder.iterdir())


def test_what_is_erased_is_in_no_file_once_its_transaction_is_done(tmp_path: Path) -> None:
    database = fill(tmp_path / "notes")
    assert holds(tmp_path)
    with database.write() as connection:
        connection.execute("DELETE FROM notes")
        database.purge_after()
    assert not holds(tmp_path) and not database.purge_pending
    # Another transaction purges nothing.
    with database.write() as connection:
        connection.execute("INSERT INTO notes VALUES ('kept')")
    assert texts(database) == ["kept"]


def test_a_transaction_that_fails_erases_and_marks_nothing(tmp_path: Path) -> None:
    database = fill(tmp_path / "notes")
    with pytest.raises(ZeroDivisionError), database.write() as connection:
        connection.execute("DELETE FROM notes")
        database.purge_after()
        raise ZeroDivisionError
    assert len(texts(database)) == 200 and not database.purge_pending


def test_files_from_before_there_were_marks_are_opened_and_purged(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "notes", isolation_level=None)) as connection:
        for statement in (*NOTES.schema.split(";\n"), "PRAGMA application_id = 7", "PRAGMA user_version = 3"):
            connection.execute(statement)
    database = fill(tmp_path / "notes")
    with database.write() as connection:
        connection.execute("DELETE FROM notes")
        database.purge_after()
    assert not holds(tmp_path)
