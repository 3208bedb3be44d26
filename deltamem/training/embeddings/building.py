"""Filling an embedding store: each text once, in large batches of like length, resumable after any interruption."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deltamem.embedding import Embedder, Vectors
from deltamem.errors import DeltaMemError
from deltamem.files import atomic_writer
from deltamem.training.embeddings.store import (
    KEY_BYTES,
    KINDS,
    META_FILE,
    Index,
    Kind,
    Meta,
    check_model,
    index_of,
    index_path,
    keys_of,
    read_meta,
    vectors_path,
)

CHUNK = 4_096
"""Texts that are embedded, written and made safe together."""

Report = Callable[[int, int], None]
"""Told how many texts of how many have a vector."""


class Built(NamedTuple):
    """What a build did.

    Attributes:
        texts: Distinct texts that were asked for.
        embedded: Those that had no vector yet.
        stored: Rows of the store now.
    """

    texts: int
    embedded: int
    stored: int


class _Chunk(BaseModel):
    """One line of ``<kind>.chunks.jsonl``; it is written after the rows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    dim: int = Field(ge=1)
    rows: int = Field(ge=1)
    crc32: int


def build_store(
    folder: Path,
    texts: Iterable[str],
    embedder: Embedder,
    *,
    kind: Kind = "documents",
    chunk: int = CHUNK,
    report: Report = lambda done, total: None,
) -> Built:
    """Make sure that a store has the vector of every text; make the store if there is none.

    Only missing texts are embedded, the longest first, so that a lack of memory shows at once. Finished chunks survive an
    interruption at any moment. Several runs may share the folder: one builds at a time.

    Args:
        folder: Of the store.
        texts: Any number of texts, repeated or not.
        embedder: Embeds what is missing; its name is the store's.
        kind: Memory texts or search queries.
        chunk: Texts that are embedded and made safe together.
        report: Follows the progress.

    Raises:
        DeltaMemError: If the folder holds the vectors of another model or is damaged, or the embedder's answer is unusable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        meta = read_meta(folder, embedder.name) or Meta(model=embedder.name)
        for other in KINDS:
            for finished in _chunks(folder, other):
                check_model(folder, finished.model, embedder.name)
        keys, dim = _recover(folder, kind, meta)
        wanted = _distinct(texts)
        stored = set(_pairs(keys))
        missing = sorted((text for key, text in wanted.items() if key not in stored), key=len, reverse=True)
        report(len(wanted) - len(missing), len(wanted))
        dim = dim or meta.dim
        for start in range(0, len(missing), chunk):
            part = missing[start : start + chunk]
            vectors = _embed(part, embedder, kind, dim)
            dim = vectors.shape[1]
            fresh = keys_of(part)
            _append(folder, kind, embedder.name, fresh, vectors)
            keys = np.concatenate([keys, fresh])
            report(len(wanted) - len(missing) + start + len(part), len(wanted))
        if meta.count(kind) != len(keys) or not (folder / META_FILE).exists():
            _commit(folder, kind, keys, meta.model_copy(update={"dim": dim, kind: len(keys)}))
        return Built(len(wanted), len(missing), len(keys))


def _distinct(texts: Iterable[str]) -> dict[tuple[int, int], str]:
    # By text first: a data set repeats each of its texts a hundredfold.
    distinct = list(dict.fromkeys(texts))
    return dict(zip(_pairs(keys_of(distinct)), distinct, strict=True))


def _pairs(keys: Index) -> Iterator[tuple[int, int]]:
    return zip(keys[:, 0].tolist(), keys[:, 1].tolist(), strict=True)


def _embed(texts: Sequence[str], embedder: Embedder, kind: Kind, dim: int) -> Vectors:
    embed = embedder.documents if kind == "documents" else embedder.queries
    vectors = np.ascontiguousarray(embed(texts), dtype="<f4")
    expected = (len(texts), dim or (vectors.shape[-1] if vectors.ndim else 0))
    if vectors.shape != expected or not vectors.size:
        raise DeltaMemError(f"embedder {embedder.name} gave vectors of shape {vectors.shape}, expected {expected}")
    if not np.isfinite(vectors).all():
        raise DeltaMemError(f"embedder {embedder.name} gave vectors that are not finite numbers")
    return vectors


def _keys_path(folder: Path, kind: Kind) -> Path:
    return folder / f"{kind}.keys"


def _chunks_path(folder: Path, kind: Kind) -> Path:
    return folder / f"{kind}.chunks.jsonl"


def _chunks(folder: Path, kind: Kind) -> Iterator[_Chunk]:
    """The finished chunks; a last line that was cut off is none."""
    try:
        lines = _chunks_path(folder, kind).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    for line in lines:
        if not line.endswith(b"\n"):
            return
        try:
            yield _Chunk.model_validate_json(line)
        except ValidationError:
            return


def _recover(folder: Path, kind: Kind, meta: Meta) -> tuple[Index, int]:
    """Cut the files back to the chunks that are whole.

    Returns:
        The keys of the rows that remain, and the length of their vectors (0 if there is none).

    Raises:
        DeltaMemError: If rows that ``meta.json`` counts are not as they were written.
    """
    keys_file, vectors_file, chunks_file = _keys_path(folder, kind), vectors_path(folder, kind), _chunks_path(folder, kind)
    for path in (keys_file, vectors_file, chunks_file):
        path.touch()
    kept: list[_Chunk] = []
    keys, dim = b"", 0
    with keys_file.open("rb") as key_stream, vectors_file.open("rb") as vector_stream:
        for chunk in _chunks(folder, kind):
            key_bytes, vector_bytes = key_stream.read(KEY_BYTES * chunk.rows), vector_stream.read(4 * chunk.dim * chunk.rows)
            whole = len(key_bytes) == KEY_BYTES * chunk.rows and chunk.dim == (dim or chunk.dim)
            if not whole or zlib.crc32(vector_bytes, zlib.crc32(key_bytes)) != chunk.crc32:
                break
            kept.append(chunk)
            keys += key_bytes
            dim = chunk.dim
    rows = sum(chunk.rows for chunk in kept)
    if rows < meta.count(kind):
        raise DeltaMemError(f"{vectors_file}: only {rows} of {meta.count(kind)} rows are intact; remove the folder")
    _cut(keys_file, KEY_BYTES * rows)
    _cut(vectors_file, 4 * dim * rows)
    _cut(chunks_file, sum(len(_line(chunk)) for chunk in kept))
    return np.frombuffer(keys, dtype="<u8").astype(np.uint64).reshape(-1, 2), dim


def _cut(path: Path, size: int) -> None:
    if path.stat().st_size > size:
        os.truncate(path, size)


def _line(chunk: _Chunk) -> bytes:
    return json.dumps(chunk.model_dump()).encode() + b"\n"


def _append(folder: Path, kind: Kind, model: str, keys: Index, vectors: Vectors) -> None:
    """Add a chunk; its line comes last, so a chunk that has one was written whole."""
    key_bytes, vector_bytes = keys.astype("<u8").tobytes(), vectors.tobytes()
    checksum = zlib.crc32(vector_bytes, zlib.crc32(key_bytes))
    chunk = _Chunk(model=model, dim=vectors.shape[1], rows=len(vectors), crc32=checksum)
    for path, content in (
        (vectors_path(folder, kind), vector_bytes),
        (_keys_path(folder, kind), key_bytes),
        (_chunks_path(folder, kind), _line(chunk)),
    ):
        with path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _commit(folder: Path, kind: Kind, keys: Index, meta: Meta) -> None:
    """Write the index and then ``meta.json``, from where on the new rows count."""
    path = index_path(folder, kind, len(keys))
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.save(file, index_of(keys))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    with atomic_writer(folder / META_FILE) as text:
        text.write(meta.model_dump_json(indent=2))
    # A reader that has just read the former `meta.json` looks again (`EmbeddingStore`).
    for old in folder.glob(f"{kind}.*.index.npy"):
        if old != path:
            old.unlink()
