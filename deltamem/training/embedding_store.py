"""A folder of vectors keyed by text and model, memory-mapped, and the stage that fills it."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from filelock import FileLock
from pydantic import Field, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deltamem.config import StrictModel
from deltamem.embedding import Embedder, Vectors, is_endpoint
from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer, partial_file, remove_partial
from deltamem.training.config import StoredEmbedderSettings
from deltamem.training.interruption import apart

Kind = Literal["documents", "queries"]
KINDS: tuple[Kind, ...] = get_args(Kind)

KEY_BYTES = 16
META_FILE = "meta.json"

Index = npt.NDArray[np.uint64]

_OPEN_ATTEMPTS = 5


class Meta(StrictModel):
    """The content of ``meta.json``."""

    model: str
    dtype: Literal["float32"] = "float32"
    dim: int = Field(default=0, ge=0)  # 0 while there is no vector
    documents: int = Field(default=0, ge=0)  # rows
    queries: int = Field(default=0, ge=0)

    def count(self, kind: Kind) -> int:
        """Rows of a kind."""
        return self.documents if kind == "documents" else self.queries


class _Table(NamedTuple):
    """The mapped files of one kind."""

    sorted_keys: Index
    vectors: Vectors


class EmbeddingStore:
    """Reads a finished store. The files are mapped read-only; pickling it sends the path, not the vectors."""

    def __init__(self, folder: Path, model: str) -> None:
        """Open the store of a model that `build_store` wrote.

        Raises:
            DeltaMemError: If there is no finished store, it is of another model, or its files do not fit together.
        """
        self.folder = folder
        self.meta, self._tables = _open(folder, model)
        # The rollouts of one prompt ask for the same texts: digests are computed once a process.
        self._rows: dict[Kind, dict[str, int]] = {kind: {} for kind in KINDS}

    def __reduce__(self) -> tuple[type[EmbeddingStore], tuple[Path, str]]:
        return EmbeddingStore, (self.folder, self.meta.model)

    def find(self, texts: Sequence[str], kind: Kind = "documents") -> dict[str, Vectors]:
        """The vectors of the texts that the store knows, each of shape ``(dim,)``, by text."""
        table, rows = self._tables[kind], self._rows[kind]
        if unsure := [text for text in texts if text not in rows]:
            found = find_rows(table.sorted_keys, keys_of(unsure))
            rows.update((text, row) for text, row in zip(unsure, found.tolist(), strict=True) if row >= 0)
        known = [text for text in texts if text in rows]
        return dict(zip(known, table.vectors[[rows[text] for text in known]], strict=True)) if known else {}

    def missing(self, texts: Iterable[str], kind: Kind = "documents") -> list[str]:
        """The distinct texts that the store does not know, in their order."""
        distinct = list(dict.fromkeys(texts))
        known = self.find(distinct, kind)
        return [text for text in distinct if text not in known]


def _open(folder: Path, model: str) -> tuple[Meta, dict[Kind, _Table]]:
    for attempt in range(_OPEN_ATTEMPTS):
        meta = read_meta(folder, model)
        if meta is None:
            raise DeltaMemError(f"{folder}: no finished embedding store there; the stage 'embeddings' of train.py makes it")
        try:
            return meta, {kind: _table(folder, kind, meta) for kind in KINDS}
        except FileNotFoundError as error:
            # Another run may have put newer files in their place since `meta` was read.
            if attempt == _OPEN_ATTEMPTS - 1:
                raise DeltaMemError(f"{error.filename}: missing from the embedding store; remove the folder") from error
    raise AssertionError("unreachable")


def _table(folder: Path, kind: Kind, meta: Meta) -> _Table:
    count = meta.count(kind)
    if not count:
        return _Table(np.zeros((3, 0), dtype=np.uint64), np.zeros((0, meta.dim), dtype=np.float32))
    index_file, vector_file = _index_path(folder, kind, count), _vectors_path(folder, kind)
    try:
        index = np.load(index_file, mmap_mode="r")
    except (ValueError, EOFError) as error:
        raise DeltaMemError(f"{index_file}: not an index of an embedding store; remove the folder") from error
    if index.shape != (3, count) or index.dtype != np.uint64 or vector_file.stat().st_size < 4 * count * meta.dim:
        raise DeltaMemError(f"{folder}: the files hold fewer {kind} than the {count} of {META_FILE}; remove the folder")
    vectors = np.memmap(vector_file, dtype=np.float32, mode="r", shape=(count, meta.dim))
    # Plain views: the class memmap makes every slice slower.
    return _Table(np.asarray(index), np.asarray(vectors))


def read_meta(folder: Path, model: str) -> Meta | None:
    """Read ``meta.json``; None if no build has been finished.

    Raises:
        DeltaMemError: If the file cannot be read or names another model.
    """
    path = folder / META_FILE
    try:
        meta = Meta.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise DeltaMemError(f"{path}: not the description of an embedding store; remove the folder") from error
    _check_model(folder, meta.model, model)
    return meta


def _check_model(folder: Path, found: str, expected: str) -> None:
    if found != expected:
        raise DeltaMemError(
            f"{folder}: holds the vectors of {found!r}, expected those of {expected!r}; choose another embedder.store"
        )


def _vectors_path(folder: Path, kind: Kind) -> Path:
    return folder / f"{kind}.vectors"


def _index_path(folder: Path, kind: Kind, count: int) -> Path:
    """The index over the first `count` rows."""
    return folder / f"{kind}.{count}.index.npy"


def keys_of(texts: Iterable[str]) -> Index:
    """The 128-bit digests of texts as two numbers each, shape ``(texts, 2)``."""
    digests = b"".join(_digest(text) for text in texts)
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def _digest(text: str) -> bytes:
    # A model may write lone surrogates; they have no vector here, but must not break the lookup.
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def index_of(keys: Index) -> Index:
    """Put the keys of rows 0, 1, ... in order: first half, second half and row, shape ``(3, len(keys))``."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    return np.stack([keys[order, 0], keys[order, 1], order.astype(np.uint64)])


def find_rows(index: Index, keys: Index) -> npt.NDArray[np.int64]:
    """The row of every key of shape ``(wanted, 2)``, -1 where the index (see `index_of`) has none."""
    high, low, rows = index
    place = np.searchsorted(high, keys[:, 0])
    found = np.full(len(keys), -1, dtype=np.int64)
    unsure = np.flatnonzero(place < len(high))
    # One round, unless two keys share their first half.
    while unsure.size:
        unsure = unsure[high[place[unsure]] == keys[unsure, 0]]
        same = low[place[unsure]] == keys[unsure, 1]
        hit = unsure[same]
        found[hit] = rows[place[hit]]
        unsure = unsure[~same]
        place[unsure] += 1
        unsure = unsure[place[unsure] < len(high)]
    return found


CHUNK = 4_096
"""Texts that are embedded, written and fsynced together."""

Report = Callable[[int, int], None]
"""Called with the number of texts that have a vector, and of all texts."""


class Built(NamedTuple):
    """What a build did."""

    texts: int  # distinct texts that were given
    embedded: int  # those that had no vector yet
    stored: int  # rows of the store now


class _Chunk(StrictModel):
    """One line of ``<kind>.chunks.jsonl``; it is written after the rows."""

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
    """Add the missing vectors of texts to a store, which is created if it does not exist.

    Only missing texts are embedded, the longest first, so that a lack of memory shows at once. Finished chunks survive an
    interruption at any moment. Several runs may share the folder: one builds at a time.

    Args:
        folder: Of the store.
        texts: Any number of texts, repeated or not.
        embedder: Embeds what is missing; the store is named after its model.
        kind: Memory texts or search queries.
        chunk: Texts that are embedded and fsynced together.
        report: Follows the progress.

    Raises:
        DeltaMemError: If the folder holds the vectors of another model or is damaged, or the embedder's answer is unusable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        meta = read_meta(folder, embedder.name) or Meta(model=embedder.name)
        for other in KINDS:
            for finished in _chunks(folder, other):
                _check_model(folder, finished.model, embedder.name)
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
        _tidy(folder, kind, len(keys))
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
    """Cut the files back to the complete chunks; returns the remaining keys and the length of the vectors (0 without any).

    Raises:
        DeltaMemError: If rows that ``meta.json`` counts are not as they were written.
    """
    keys_file, vectors_file, chunks_file = _keys_path(folder, kind), _vectors_path(folder, kind), _chunks_path(folder, kind)
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
        (_vectors_path(folder, kind), vector_bytes),
        (_keys_path(folder, kind), key_bytes),
        (_chunks_path(folder, kind), _line(chunk)),
    ):
        with path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _commit(folder: Path, kind: Kind, keys: Index, meta: Meta) -> None:
    """Write the index and then ``meta.json``, from where on the new rows count."""
    path = _index_path(folder, kind, len(keys))
    with partial_file(path) as partial, partial.open("wb") as file:
        np.save(file, index_of(keys))
    with atomic_writer(folder / META_FILE) as text:
        text.write(meta.model_dump_json(indent=2))


def _tidy(folder: Path, kind: Kind, count: int) -> None:
    """Remove indexes of other numbers of rows, and what killed builds have left."""
    # A reader that has just read the former `meta.json` looks again (`EmbeddingStore`).
    for old in folder.glob(f"{kind}.*.index.npy"):
        if old != _index_path(folder, kind, count):
            old.unlink()
    remove_partial(folder)


_ROWS = 256
"""Rows that are in memory at a time."""


def embed_data(files: Iterable[Path], settings: StoredEmbedderSettings, console: Console) -> Built:
    """Add the vectors of all memory texts of the data set's parquet files to the store.

    With a GPU it happens in a process of its own: what CUDA takes of the GPU stays taken until a process ends, and this one
    goes on for as long as the training.

    Raises:
        DeltaMemError: If the model cannot be loaded, or the store is of another model or damaged.
    """
    if settings.device.startswith("cuda") and not is_endpoint(settings.name):
        built = apart(_embed_files, list(files), settings, None)
    else:
        built = _embed_files(files, settings, console)
    console.print(f"embeddings: {built.texts} texts, {built.embedded} of them new, {built.stored} in {settings.store}")
    return built


def _embed_files(files: Iterable[Path], settings: StoredEmbedderSettings, console: Console | None) -> Built:
    if not is_endpoint(settings.name):
        import torch

        torch.set_num_threads(settings.threads)
    embedder = settings.lazy(max_texts=0)
    bar = Progress(
        TextColumn("embeddings"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("embeddings", total=None)
        built = build_store(
            settings.store,
            (text for file in files for text in memory_texts(file)),
            embedder,
            report=lambda done, total: bar.update(task, completed=done, total=total),
        )
    return built


def memory_texts(file: Path) -> Iterator[str]:
    """The texts of the prior states and the target operations of a parquet file of the data set, with repetitions.

    The next states hold no other texts.
    """
    with pq.ParquetFile(file) as rows:
        for batch in rows.iter_batches(_ROWS, columns=["extra_info.session"]):
            for info in batch.column("extra_info").to_pylist():
                record = json.loads(info["session"])
                yield from (memory["text"] for memory in record["prior_state"].values())
                yield from (operation["text"] for operation in record["operations"])
