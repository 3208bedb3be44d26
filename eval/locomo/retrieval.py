"""Searching the stores of a conversation for a question, and which ranks its evidence was found at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from eval.answering.protocol import ContextBlock
from eval.locomo.dialogues import Dialogue
from eval.results.records import Found, QuestionRecord
from eval.running.files import RunFiles
from eval.running.searching import search_stores
from eval.systems.protocol import Memory, Passage


@dataclass(frozen=True)
class OpenStore:
    """A store that can be searched."""

    dialogue: Dialogue
    memory: Memory


async def search(
    record: QuestionRecord,
    stores: Sequence[OpenStore],
    k: int,
    files: RunFiles,
    slots: asyncio.Semaphore,
    *,
    ranked: bool,
) -> QuestionRecord:
    """Search all stores of a conversation.

    Args:
        record: The question.
        stores: One, or one for each speaker.
        k: Passages from each store.
        files: Where passages are kept.
        slots: Bounds the searches of the run.
        ranked: Whether the system orders by relevance, so that the ranks of the evidence are noted.

    Returns:
        The record with what was found, one store after the other, or with the error.

    Raises:
        SystemUnavailableError: If the system cannot search at all.
        EmbedderUnavailableError: If the embedder cannot be loaded.
    """
    found, seconds, error = await search_stores([store.memory for store in stores], record.question, k, slots)
    if error is not None:
        return record.model_copy(update={"error": error})
    kept = [files.keep(passages, store.dialogue.key.id) for store, passages in zip(stores, found, strict=True)]
    ranks = evidence_ranks(record.evidence, merged(found)) if ranked else ()
    retrieved = tuple(chain.from_iterable(kept))
    return record.model_copy(update={"retrieved": retrieved, "ranks": ranks, "search_seconds": seconds})


def merged(found: Sequence[Sequence[Passage]]) -> list[Passage]:
    """Bring the passages of several stores into one order.

    By similarity, the earlier store first where it is equal; where a system does not tell similarities, the best of each
    store come first, then the second of each, and so on.
    """
    together = list(chain.from_iterable(found))
    if all(passage.similarity is not None for passage in together):
        return sorted(together, key=lambda passage: -(passage.similarity or 0.0))
    return [passage for row in zip_longest(*found) for passage in row if passage is not None]


def evidence_ranks(evidence: Sequence[str], passages: Sequence[Passage]) -> tuple[int | None, ...]:
    """For each evidence turn the rank, from 1, of the first passage that comes from it; None if there is none."""
    first: dict[str, int] = {}
    for rank, passage in enumerate(passages, start=1):
        for turn in passage.sources:
            first.setdefault(turn, rank)
    return tuple(first.get(turn) for turn in evidence)


def context(
    record: QuestionRecord, dialogues: Sequence[Dialogue], files: RunFiles, *, ranked: bool
) -> tuple[ContextBlock, ...]:
    """What was found as the answering model is shown it: a block for each store, under the names of its people.

    Args:
        record: The question.
        dialogues: The stores in order.
        files: Where passages are kept.
        ranked: Whether the system orders by relevance; else passages are shown by time.

    Raises:
        DeltaMemError: If a passage is not among those that were kept.
    """
    blocks: dict[str, list[Found]] = {dialogue.key.id: [] for dialogue in dialogues}
    for found in record.retrieved:
        blocks[files.store_of(found)].append(found)
    return tuple(
        ContextBlock(dialogue.title, files.found(blocks[dialogue.key.id]), by_time=not ranked) for dialogue in dialogues
    )
