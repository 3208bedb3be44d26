"""Examines an embedded Chroma database: ``python -m deltamem.bank.chroma_check FOLDER [COLLECTION TO SKIP ...]``.

Runs in a process of its own, because damaged files can end the process that reads them. Prints ``begin NAME`` and then
``good NAME`` or ``bad NAME`` for each collection; exit code 1 means that the database as a whole cannot be used.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import chromadb
import numpy as np

from deltamem.bank.chroma import BUILDING, EMBEDDINGS, POSITION, client_settings, fingerprint, read_vectors
from deltamem.bank.chroma_files import DATABASE_FILE

_SAMPLE = 200
_LEAST_FOUND = 0.97
"""Share of sampled vectors that a search must find by themselves; an undamaged graph finds all or nearly all."""


def main(folder: Path, skip: Collection[str]) -> int:
    """Examine the collections one by one; returns the exit code."""
    with closing(sqlite3.connect(folder / DATABASE_FILE)) as database:
        if database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            return 1
    client = chromadb.PersistentClient(str(folder), settings=client_settings())
    for name in sorted(collection.name for collection in client.list_collections()):
        if name in skip:
            continue
        print(f"begin {name}", flush=True)
        print(f"{'good' if _is_good(client.get_collection(name, embedding_function=None)) else 'bad'} {name}", flush=True)
    return 0


def _is_good(collection: chromadb.Collection) -> bool:
    metadata = collection.metadata or {}
    if metadata.get(POSITION, BUILDING) == BUILDING:
        return False  # its building was interrupted
    try:
        ids, vectors = read_vectors(collection)
        written = fingerprint(zip(ids, vectors, strict=True))
        if written not in str(metadata.get(EMBEDDINGS)).split():
            return False
        sample = np.linspace(0, len(ids) - 1, min(len(ids), _SAMPLE)).astype(int)
        if not len(sample):
            return True
        found = collection.query(query_embeddings=vectors[sample], n_results=1, include=["distances"])["distances"] or []
        return float(np.mean([bool(near) and near[0] < 1e-3 for near in found])) >= _LEAST_FOUND
    except Exception:  # whatever Chroma raises: the collection cannot be read
        return False


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
