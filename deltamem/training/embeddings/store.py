"""A folder of vectors keyed by text and model, memory-mapped: all workers of a node share one copy in the page cache.

Documents and queries are kept apart, because some models embed queries with an instruction. For each kind the folder holds

- ``<kind>.vectors``: float32 rows, in the order in which they were embedded;
- ``<kind>.keys``: the 128-bit digest of each row's text;
- ``<kind>.chunks.jsonl``: which rows were finished together, with a checksum (see `deltamem.training.embeddings.building`);
- ``<kind>.<count>.index.npy``: the digests in order with their rows, uint64 of shape ``(3, count)``.

``meta.json`` is written last and names the model and how many rows count; what lies beyond belongs to a build under way. The
first two files only ever grow, so a reader keeps its view while another run adds texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deltamem.embedding import Vectors
from deltamem.errors import DeltaMemError

Kind = Literal["documents", "queries"]
KINDS: tuple[Kind, ...] = get_args(Kind)

KEY_BYTES = 16
META_FILE = "meta.json"

Index = npt.NDArray[np.uint64]

_OPEN_ATTEMPTS = 5


class Meta(BaseModel):
    """What ``meta.json`` says.

    Attributes:
        model: Name of the embedder.
        dtype: Of the vectors.
        dim: Length of a vector; 0 while there is none.
        documents: Rows of memory texts.
        queries: Rows of search queries.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    dtype: Literal["float32"] = "float32"
    dim: int = Field(default=0, ge=0)
    documents: int = Field(default=0, ge=0)
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
        """Open a store.

        Args:
            folder: Where `deltamem.training.embeddings.building.build_store` wrote it.
            model: Name of the embedder whose vectors are expected.

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
    index_file, vector_file = index_path(folder, kind, count), vectors_path(folder, kind)
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
    check_model(folder, meta.model, model)
    return meta


def check_model(folder: Path, found: str, expected: str) -> None:
    """Refuse the vectors of another model.

    Raises:
        DeltaMemError: If the names differ.
    """
    if found != expected:
        raise DeltaMemError(
            f"{folder}: holds the vectors of {found!r}, expected those of {expected!r}; choose another embedder.store"
        )


def vectors_path(folder: Path, kind: Kind) -> Path:
    """The file of the vectors."""
    return folder / f"{kind}.vectors"


def index_path(folder: Path, kind: Kind, count: int) -> Path:
    """The file of the index over the first `count` rows."""
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
    """The row of every key, -1 where the index has none.

    Args:
        index: See `index_of`.
        keys: Shape ``(wanted, 2)``.
    """
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
