"""Bringing an owner's collection in step with the journal: by the changes it missed, or by building it anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from deltamem.bank.chroma.collection import EMBEDDER, POSITION, TEXTS, CommittedBank, batches
from deltamem.bank.chroma.fingerprint import of_texts
from deltamem.embedding import Vectors
from deltamem.memory import MemoryState

Embed = Callable[[Sequence[str]], Vectors]
Progress = Callable[[int, int], None]
"""Told how many of how many memories are embedded."""

_EMBED_BATCH = 512


@dataclass(frozen=True, slots=True)
class Target:
    """Where a collection has to get to.

    Attributes:
        state: The state as the journal tells it.
        position: The journal position that it stands for.
        changed_since: The ids of memories that the journal changed, or removed, after a position.
        embed: Embeds memory texts.
        embedder_name: Vectors of another embedder are not used.
        progress: Told how far the embedding is.
    """

    state: MemoryState
    position: int
    changed_since: Callable[[int], Collection[str]]
    embed: Embed
    embedder_name: str
    progress: Progress | None


class Step(Enum):
    """What became of catching up."""

    KEPT = auto()
    """In step."""
    REMOVED = auto()
    """In step, after vectors were removed from the collection."""
    LOST = auto()
    """The collection cannot be used."""


def catch_up(committed: CommittedBank, target: Target) -> Step:
    """Bring an existing collection in step if it can be.

    Raises:
        IndexUnavailableError: If Chroma fails.
    """
    metadata, count = committed.inspect()
    stored = metadata.get(POSITION)
    if not isinstance(stored, int) or not 0 <= stored <= target.position:
        return Step.LOST
    if metadata.get(EMBEDDER) != target.embedder_name:
        return Step.LOST
    if stored == target.position:
        if count != len(target.state) or metadata.get(TEXTS) != of_texts(target.state.memories):
            return Step.LOST
        committed.adopt(target.state, stored, metadata)
        return Step.KEPT
    held = committed.held_ids()
    changed = frozenset(target.changed_since(stored))
    removed = held - target.state.keys()
    if not target.state.keys() - changed <= held or not removed <= changed:
        return Step.LOST
    committed.adopt(MemoryState(), stored, metadata)
    vectors: dict[str, Vectors] = {}
    for ids, rows in _embedded(target, [memory_id for memory_id in target.state if memory_id in changed]):
        vectors.update(zip(ids, rows, strict=True))
    committed.write(target.state, target.position, vectors, removed)
    return Step.REMOVED if removed else Step.KEPT


def build(committed: CommittedBank, target: Target) -> None:
    """Fill an empty collection; until the end it counts as incomplete.

    Raises:
        IndexUnavailableError: If Chroma fails.
    """
    for ids, rows in _embedded(target, list(target.state)):
        committed.fill(ids, rows)
    nothing: Mapping[str, Vectors] = {}
    committed.write(target.state, target.position, nothing, ())


def _embedded(target: Target, memory_ids: Sequence[str]) -> Iterator[tuple[list[str], Vectors]]:
    """Embed memories batch by batch, telling how far it is."""
    done = 0
    for batch in batches(memory_ids, _EMBED_BATCH):
        if target.progress is not None:
            target.progress(done, len(memory_ids))
        vectors = target.embed([target.state[memory_id].text for memory_id in batch])
        yield batch, np.asarray(vectors, dtype=np.float32)
        done += len(batch)
    if target.progress is not None and memory_ids:
        target.progress(done, len(memory_ids))
