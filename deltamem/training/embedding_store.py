"""A folder of vectors keyed by text and model, memory-mapped, and the stage that fills it.

``meta.json`` names the model. A chunk of texts is one file, such as ``documents.000003.npy``: rows of a digest and a vector,
in the order of the digests, written whole or not at all. So nothing that a killed build leaves has to be repaired.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from filelock import FileLock
from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress

from deltamem.config import StrictModel
from deltamem.embedding import Embedder, Vectors, is_endpoint
from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer, partial_file, remove_partial
from deltamem.training.config import StoredEmbedderSettings
from deltamem.training.interruption import apart

Kind = Literal["documents", "queries"]
KINDS: tuple[Kind, ...] = get_args(Kind)

META_FILE = "meta.json"
CHUNK = 4_096
"""Texts that are embedded and written together."""

_KEY = "S16"  # 128 bits; numpy compares such strings as the padded bytes that they are
_ROWS = 256  # of a parquet file that are in memory at a time


class Meta(StrictModel):
    """The content of ``meta.json``."""

    model: str
    finished: bool = False  # whether a build has come to its end


def read_meta(folder: Path, model: str) -> Meta | None:
    """Read ``meta.json``; None if no build has begun, a `DeltaMemError` if it names another model."""
    path = folder / META_FILE
    try:
        meta = Meta.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise DeltaMemError(f"{path}: not the description of an embedding store; remove the folder") from error
    if meta.model != model:
        raise DeltaMemError(
            f"{folder}: holds the vectors of {meta.model!r}, expected those of {model!r}; choose another embedder.store"
        )
    return meta


def keys_of(texts: Iterable[str]) -> npt.NDArray[Any]:
    """The digests of texts, of shape ``(texts,)``."""
    # A model may write lone surrogates; they have no vector here, but must not break the lookup.
    encoded = (text.encode("utf-8", "surrogatepass") for text in texts)
    return np.array([hashlib.blake2b(text, digest_size=16).digest() for text in encoded], dtype=_KEY)


class _Chunk(NamedTuple):
    """A mapped file."""

    keys: npt.NDArray[Any]  # sorted
    vectors: Vectors


def _chunks(folder: Path, kind: Kind) -> Iterator[_Chunk]:
    for path in sorted(folder.glob(f"{kind}.*.npy")):
        try:
            rows = np.load(path, mmap_mode="r")
            # In memory, for numpy would copy the strided column at every search. The class memmap makes every slice slower.
            yield _Chunk(np.ascontiguousarray(rows["key"]), np.asarray(rows["vector"]))
        except (ValueError, EOFError, IndexError) as error:
            raise DeltaMemError(f"{path}: not a file of an embedding store; remove it") from error


class EmbeddingStore:
    """Reads a finished store as it is now. The vectors are mapped; pickling sends the path."""

    def __init__(self, folder: Path, model: str) -> None:
        """Open the finished store of a model that `build_store` wrote."""
        self.folder, self.model = folder, model
        meta = read_meta(folder, model)
        if meta is None or not meta.finished:
            raise DeltaMemError(f"{folder}: no finished embedding store there; the stage 'embeddings' of train.py makes it")
        self._chunks = {kind: list(_chunks(folder, kind)) for kind in KINDS}
        # The rollouts of one prompt ask for the same texts: digests are computed once a process.
        self._places: dict[Kind, dict[str, tuple[int, int]]] = {kind: {} for kind in KINDS}

    def __reduce__(self) -> tuple[type[EmbeddingStore], tuple[Path, str]]:
        return EmbeddingStore, (self.folder, self.model)

    def find(self, texts: Sequence[str], kind: Kind = "documents") -> dict[str, Vectors]:
        """The vectors of the texts that the store knows, each of shape ``(dim,)``, by text."""
        chunks, places = self._chunks[kind], self._places[kind]
        if unsure := [text for text in texts if text not in places]:
            keys = keys_of(unsure)
            for number, chunk in enumerate(chunks):
                rows = np.minimum(np.searchsorted(chunk.keys, keys), len(chunk.keys) - 1)
                for at in np.flatnonzero(chunk.keys[rows] == keys).tolist():
                    places[unsure[at]] = number, int(rows[at])
        known = {text: places[text] for text in texts if text in places}
        return {text: np.array(chunks[number].vectors[row]) for text, (number, row) in known.items()}


class Built(NamedTuple):
    """What a build did."""

    texts: int  # distinct texts that were given
    embedded: int  # those that had no vector yet
    stored: int  # rows of the store now


def build_store(
    folder: Path,
    texts: Iterable[str],
    embedder: Embedder,
    *,
    kind: Kind = "documents",
    chunk: int = CHUNK,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Built:
    """Add the missing vectors of texts to a store, which is created if it does not exist.

    Only missing texts are embedded, the longest first, so that a lack of memory shows at once. Finished chunks survive an
    interruption at any moment. Several runs may share the folder: one builds at a time. `report` is called with the number
    of texts that have a vector, and of all texts.
    """

    def write_meta(meta: Meta) -> None:
        with atomic_writer(folder / META_FILE) as file:
            file.write(meta.model_dump_json(indent=2))

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        meta = read_meta(folder, embedder.name)
        if meta is None:
            write_meta(Meta(model=embedder.name))
        remove_partial(folder)
        dims = {one.vectors.shape[1] for each in KINDS for one in _chunks(folder, each)}
        stored = {key for one in _chunks(folder, kind) for key in one.keys.tolist()}
        # By text first: a data set repeats each of its texts a hundredfold.
        distinct = list(dict.fromkeys(texts))
        wanted = dict(zip(keys_of(distinct).tolist(), distinct, strict=True))
        missing = sorted((text for key, text in wanted.items() if key not in stored), key=len, reverse=True)
        there, number = len(wanted) - len(missing), len(list(folder.glob(f"{kind}.*.npy")))
        report(there, len(wanted))
        for start in range(0, len(missing), chunk):
            part = missing[start : start + chunk]
            vectors = _embed(part, embedder, kind, max(dims, default=0))
            dims.add(vectors.shape[1])
            rows = np.empty(len(part), dtype=[("key", _KEY), ("vector", "<f4", (vectors.shape[1],))])
            rows["key"], rows["vector"] = keys_of(part), vectors
            with partial_file(folder / f"{kind}.{number:06d}.npy") as partial, partial.open("wb") as file:
                np.save(file, rows[np.argsort(rows["key"])])
            number += 1
            report(there + start + len(part), len(wanted))
        if meta is None or not meta.finished:
            write_meta(Meta(model=embedder.name, finished=True))
        return Built(len(wanted), len(missing), len(stored) + len(missing))


def _embed(texts: Sequence[str], embedder: Embedder, kind: Kind, dim: int) -> Vectors:
    embed = embedder.documents if kind == "documents" else embedder.queries
    vectors = np.ascontiguousarray(embed(texts), dtype="<f4")
    expected = (len(texts), dim or (vectors.shape[-1] if vectors.ndim else 0))
    if vectors.shape != expected or not vectors.size:
        raise DeltaMemError(f"embedder {embedder.name} gave vectors of shape {vectors.shape}, expected {expected}")
    if not np.isfinite(vectors).all():
        raise DeltaMemError(f"embedder {embedder.name} gave vectors that are not finite numbers")
    return vectors


def embed_data(files: Sequence[Path], settings: StoredEmbedderSettings, console: Console) -> Built:
    """Add the vectors of all memory texts of the data set's parquet files to the store.

    With a GPU it happens in a process of its own: what CUDA takes of the GPU stays taken until a process ends, and this one
    goes on for as long as the training.
    """
    if settings.device.startswith("cuda") and not is_endpoint(settings.name):
        built = apart(_embed_files, files, settings, None)
    else:
        built = _embed_files(files, settings, console)
    console.print(f"embeddings: {built.texts} texts, {built.embedded} of them new, {built.stored} in {settings.store}")
    return built


def _embed_files(files: Sequence[Path], settings: StoredEmbedderSettings, console: Console | None) -> Built:
    if not is_endpoint(settings.name):
        import torch

        torch.set_num_threads(settings.threads)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("embeddings", total=None)
        return build_store(
            settings.store,
            (text for file in files for text in memory_texts(file)),
            settings.lazy(max_texts=0),
            report=lambda done, total: bar.update(task, completed=done, total=total),
        )


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
