"""The files of an embedded Chroma database: noticing damage before Chroma reads them, and erasing for good.

Damaged files can end the process that reads them, so they are examined in a child process:
``python -m deltamem.bank.chroma_files FOLDER``; exit code 0 means that all complete collections can be used.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

import chromadb
import numpy as np
from chromadb.config import Settings

from deltamem.embedding import Vectors
from deltamem.errors import StorageError

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

POSITION = "position"  # Key in a collection's metadata: the journal position that it stands for
BUILDING = -1  # Position of a collection that is not complete yet
_BATCH = 1_000  # Rows of one request; Chroma takes some thousands at most
_DATABASE_FILE = "chroma.sqlite3"
CLEAN_SHUTDOWN_FILE = "clean_shutdown.json"
_HNSW_HEADER = "header.bin"
_HNSW_IDS = "index_metadata.pickle"
"""Written with the first vectors of a collection's HNSW files; without it Chroma does not use what they contain."""
_CHECK_SECONDS = 120.0
_CHECK_BYTES_PER_SECOND = 2e6
"""Reading 100,000 vectors back takes seconds; garbage can also make the native code loop for ever."""
_SAMPLE = 200
_LEAST_FOUND = 0.97  # An undamaged graph finds all or nearly all
_UNIT = 1e-3  # How far the length of a stored vector may be from 1; garbage is further


def client_settings() -> Settings:
    """Settings of every client: no telemetry, and a file ``.env`` in the working directory is not for us."""
    return Settings(anonymized_telemetry=False, _env_file=None)  # type: ignore[call-arg]


def batches(items: Sequence[_T], size: int = _BATCH) -> Iterator[list[_T]]:
    """Cut a sequence into lists of at most `size`."""
    return (list(items[start : start + size]) for start in range(0, len(items), size))


def read_vectors(collection: chromadb.Collection, memory_ids: Sequence[str] | None = None) -> tuple[list[str], Vectors]:
    """Read vectors back, byte for byte as they were written: ids and vectors, shape ``(ids, dim)``, in no particular order.

    Ids that the collection does not hold are left out; without ids all are read.
    """
    wanted = collection.get(include=[])["ids"] if memory_ids is None else memory_ids
    ids: list[str] = []
    parts: list[Vectors] = []
    for batch in batches(wanted):
        found = collection.get(ids=batch, include=["embeddings"])
        if found["ids"]:
            ids += found["ids"]
            parts.append(np.asarray(found["embeddings"], dtype=np.float32))
    return ids, np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)


def _inventory(folder: Path) -> dict[str, list[int]]:
    """Size and modification time of every file."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != CLEAN_SHUTDOWN_FILE)
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, path.stat().st_mtime_ns] for path in files}


def mark_clean_shutdown(folder: Path) -> None:
    """Tidy up and note the inventory of a closed database. If that fails, it is examined when it is next opened."""
    try:
        _tidy(folder)
        (folder / CLEAN_SHUTDOWN_FILE).write_text(json.dumps(_inventory(folder)), encoding="utf-8")
    except (OSError, sqlite3.Error) as error:
        logger.warning("%s: the index could not be marked as cleanly shut down: %s", folder, error)


def is_sound(folder: Path) -> bool:
    """Whether a closed database can be read: the last orderly closing left it like this, or a child process has read it.

    Where files were cut or lost since, nobody reads them to find out: what is read past a cut may be harmless in one process
    and end the next.
    """
    now = _inventory(folder)
    with suppress(OSError, ValueError):
        noted: dict[str, list[int]] = json.loads((folder / CLEAN_SHUTDOWN_FILE).read_text(encoding="utf-8"))
        if noted == now or any(now.get(name, [0])[0] < size for name, (size, _) in noted.items()):
            return noted == now
    if not now:
        return True
    # The child must find the same packages, however this process found them.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "deltamem.bank.chroma_files", str(folder.resolve())]
    limit = _CHECK_SECONDS + sum(size for size, _ in now.values()) / _CHECK_BYTES_PER_SECOND
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired:
        logger.warning("%s: the examination did not end in %.0f seconds", folder, limit)
        return False
    if done.returncode:
        logger.warning("%s: the examination ended with %d: %s", folder, done.returncode, done.stderr.strip()[-200:])
    return done.returncode == 0


def erase_remains(folder: Path) -> None:
    """Make what was deleted unrecoverable from the files of a closed database; a `StorageError` if they are in use.

    Chroma leaves deleted rows in free pages of its SQLite file, and the HNSW folder of a deleted collection on disk.
    """
    try:
        with closing(sqlite3.connect(folder / _DATABASE_FILE)) as database:
            database.execute("VACUUM")
    except sqlite3.Error as error:
        raise StorageError(f"{folder / _DATABASE_FILE}: could not erase what was deleted ({error})") from error
    _tidy(folder)


def _tidy(folder: Path) -> None:
    """Remove what a closed database does not use.

    These are the HNSW folders of deleted collections, and the contents of HNSW files that only reserve space: Chroma
    writes those from memory it has not initialised, so bytes of anything that this process held, forgotten memories
    among them, can stand in them. The vectors of such a collection are in the SQLite file.
    """
    with closing(sqlite3.connect(folder / _DATABASE_FILE)) as database:
        known = {str(segment) for (segment,) in database.execute("SELECT id FROM segments")}
    for path in folder.iterdir():
        if path.is_dir() and path.name not in known:
            shutil.rmtree(path)
        elif path.is_dir() and not (path / _HNSW_IDS).exists():
            for reserved in path.glob("*.bin"):
                if reserved.name != _HNSW_HEADER:
                    size = reserved.stat().st_size
                    os.truncate(reserved, 0)
                    os.truncate(reserved, size)


def main(folder: Path) -> int:
    """Examine the complete collections; returns the exit code."""
    with closing(sqlite3.connect(folder / _DATABASE_FILE)) as database:
        if database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            return 1
    client = chromadb.PersistentClient(str(folder), settings=client_settings())
    for collection in client.list_collections():
        if (collection.metadata or {}).get(POSITION, BUILDING) != BUILDING and not _is_good(collection):
            print(f"{collection.name} is damaged", file=sys.stderr)
            return 1
    return 0


def _is_good(collection: chromadb.Collection) -> bool:
    """Whether all vectors are there and of length 1, and a search finds those of a sample by themselves."""
    ids, vectors = read_vectors(collection)
    if len(ids) != collection.count() or not np.all(np.abs(np.linalg.norm(vectors, axis=1) - 1.0) < _UNIT):
        return False
    sample = np.linspace(0, len(ids) - 1, min(len(ids), _SAMPLE)).astype(int)
    if not len(sample):
        return True
    found = collection.query(query_embeddings=vectors[sample], n_results=1, include=["distances"])["distances"] or []
    return float(np.mean([bool(near) and near[0] < 1e-3 for near in found])) >= _LEAST_FOUND


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
