"""Searching the stores of a conversation for a question, and which ranks its evidence was found at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from deltamem.errors import DeltaMemError, EmbedderUnavailableError
from eval.answering.protocol import ContextBlock
from eval.locomo.dialogues import Dialogue
from eval.results.record_file import RecordFile
from eval.results.records import Found, PassageRecord, QuestionRecord
from eval.systems.protocol import Memory, Passage, SystemUnavailableError


@dataclass(frozen=True)
class OpenStore:
    """A store that can be searched."""

    dialogue: Dialogue
    memory: Memory


async def search(
    record: QuestionRecord,
    stores: Sequence[OpenStore],
    k: int,
    passages: RecordFile[PassageRecord],
    *,
    ranked: bool,
) -> QuestionRecord:
    """Search all stores of a conversation.

    Args:
        record: The question.
        stores: One, or one for each speaker.
        k: Passages from each store.
        passages: Where passages are kept.
        ranked: Whether the system orders by relevance, so that the ranks of the evidence are noted.

    Returns:
        The record with what was found, one store after the other, or with the error.

    Raises:
        SystemUnavailableError: If the system cannot search at all.
        EmbedderUnavailableError: If the embedder cannot be loaded.
    """
    started = time.perf_counter()
    try:
        found = await asyncio.gather(*(store.memory.search(record.question, k) for store in stores))
    except (SystemUnavailableError, EmbedderUnavailableError):
        raise
    except Exception as error:  # one broken search must not lose the other questions
        reason = str(error) if isinstance(error, DeltaMemError) else f"{type(error).__name__}: {error}"
        return record.model_copy(update={"error": f"search: {reason}"})
    seconds = round(time.perf_counter() - started, 4)
    retrieved: list[Found] = []
    for store, of_store in zip(stores, found, strict=True):
        for passage in of_store:
            kept = PassageRecord.of(passage, store.dialogue.key.id)
            if kept.id not in passages:
                passages.add(kept)
            retrieved.append(Found(passage=kept.id, similarity=passage.similarity))
    ranks = evidence_ranks(record.evidence, merged(found)) if ranked else ()
    return record.model_copy(update={"retrieved": tuple(retrieved), "ranks": ranks, "search_seconds": seconds})


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
    record: QuestionRecord, dialogues: Sequence[Dialogue], passages: RecordFile[PassageRecord]
) -> tuple[ContextBlock, ...]:
    """What was found as the answering model is shown it: a block for each store, under the names of its people.

    Raises:
        DeltaMemError: If a passage is not among those that were kept.
    """
    blocks: dict[str, list[Passage]] = {dialogue.key.id: [] for dialogue in dialogues}
    for found in record.retrieved:
        kept = passages.get(found.passage)
        if kept is None:
            raise DeltaMemError(f"question {record.key}: passage {found.passage} is not in the file of passages")
        blocks[kept.store].append(Passage(kept.text, kept.time, kept.sources, found.similarity))
    return tuple(ContextBlock(dialogue.title, tuple(blocks[dialogue.key.id])) for dialogue in dialogues)
