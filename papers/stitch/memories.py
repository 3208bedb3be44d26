"""An owner's memories with their contextual intents: labelled as they come, searched by intent."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from deltamem.bank.base import Hit
from deltamem.bank.store import Ranking, UserStore
from deltamem.embedding import Embedder
from deltamem.errors import ConflictError
from deltamem.filters import meeting, read_filter
from deltamem.journal.records import memory_number
from deltamem.memory import Memory, MemoryState
from papers.stitch.embedding_labeller import EmbeddingLabeller
from papers.stitch.index import IntentIndex
from papers.stitch.labeller import CachingLabeller, IntentLabeller
from papers.stitch.records import Step
from papers.stitch.store import MEMORIES, IntentLog, StaleIntentsError

_CONTEXT = 2_000  # Characters of the turns that a memory comes from


class MemoryIntents:
    """The intents of one owner's memories. A memory whose text changes is labelled again; older versions are not found."""

    def __init__(
        self, owned: UserStore, labeller: IntentLabeller, embedder: Embedder, person_name: str, *, relabel: bool = False
    ) -> None:
        """Bind an owner's store.

        Args:
            owned: The store.
            labeller: Labels memories and queries.
            embedder: Embeds their summaries and queries.
            person_name: How memories name the person.
            relabel: Label all memories again if another labeller labelled them; else that is refused.
        """
        self._owned = owned
        self._labeller = labeller
        self._embedder = embedder
        self._person_name = person_name
        self._relabel = relabel
        self._index: IntentIndex | None = None
        self._steps: dict[str, Memory] = {}  # By the id of the step, what the state holds
        self._position: int | None = None

    async def catch_up(self) -> int:
        """Label the memories that have no intent yet, in the order of their ids.

        Returns:
            How many there were.

        Raises:
            ConflictError: If another labeller labelled the others.
            DeltaMemError: If one cannot be labelled; those before it are kept.
        """
        _, _, count = await self._caught_up()
        return count

    async def search(
        self,
        query: str,
        k: int,
        filters: Mapping[str, object] | None = None,
        among: AbstractSet[str] | None = None,
    ) -> Ranking:
        """The `k` memories that meet most of what a query asks for; memories without intents are labelled first.

        Args:
            query: What to look for.
            k: How many memories at most.
            filters: What their metadata must meet, see `deltamem.filters`.
            among: Ids of the only memories that may be found; None for all.

        Raises:
            FilterError: If the filters cannot be understood.
            DeltaMemError: If the query, or a memory, cannot be labelled.
        """
        read_filter(filters or {})  # a mistake in it is reported before anything is labelled
        index, steps, _ = await self._caught_up()
        chosen: AbstractSet[str] = steps.keys()
        if filters is not None or among is not None:
            fitting = {memory.id for memory in meeting(list(steps.values()), filters or {})}
            chosen = {id for id, memory in steps.items() if memory.id in fitting and (among is None or memory.id in among)}
        found = await index.search(query, k, chosen)
        hits = tuple(Hit(steps[hit.snippet.step.id], hit.similarity) for hit in found.hits)
        return Ranking(hits, tuple(hit.explanation(found.wanted) for hit in found.hits))

    def forget_answers(self) -> None:
        """Remove what a labeller's cache keeps: its answers repeat what was said."""
        if isinstance(self._labeller, CachingLabeller):
            self._labeller.forget_answers()

    def _current(self) -> dict[str, Memory]:
        bank = self._owned.bank
        if bank.position != self._position:
            self._steps, self._position = _steps(bank.state), bank.position
        return self._steps

    async def _opened(self) -> IntentIndex:
        log = IntentLog(self._owned.journal, MEMORIES)
        try:
            if self._index is None:
                self._index = await asyncio.to_thread(IntentIndex, self._labeller, self._embedder, log)
            self._index.refresh()
        except ConflictError:
            if not self._relabel:
                raise
            await asyncio.to_thread(log.clear)
            self._index = await asyncio.to_thread(IntentIndex, self._labeller, self._embedder, log)
        return self._index

    async def _caught_up(self) -> tuple[IntentIndex, dict[str, Memory], int]:
        """The index with all memories of the state, these by the ids of their steps, and how many had to be labelled."""
        while True:
            index, current = await self._opened(), self._current()
            if current.keys() <= index.ids:
                return index, current, 0
            # What is forgotten from here on is noticed; neither it nor its session may be labelled then
            since, current = await index.begin(), self._current()
            missing = {id: memory for id, memory in current.items() if id not in index}
            contexts = await asyncio.to_thread(self._contexts, missing)
            steps = [
                Step(id, self._person_name, memory.text, memory.time, contexts.get(id, "")) for id, memory in missing.items()
            ]
            try:
                return index, current, await index.add(steps, since=since)
            except StaleIntentsError:
                continue

    def _contexts(self, memories: Mapping[str, Memory]) -> dict[str, str]:
        """What was said in the turns that the texts come from, as far as it is stored."""
        contexts = {}
        with self._owned.journal.snapshot():
            present = self._owned.journal.state()
            for id, memory in memories.items():
                if memory.id in present:
                    *_, origin = self._owned.journal.blame(memory.id)
                    said = " ".join(turn.content for turn in origin.turns if turn.content)
                    contexts[id] = said[:_CONTEXT]
        return contexts


def by_intent(
    owned: UserStore,
    embedder: Embedder,
    person_name: str,
    *,
    relabel: bool = False,
    labeller: IntentLabeller | None = None,
) -> MemoryIntents:
    """What makes a manager search by intent; by default with the labeller that needs no model."""
    return MemoryIntents(owned, labeller or EmbeddingLabeller(embedder), embedder, person_name, relabel=relabel)


def _steps(state: MemoryState) -> dict[str, Memory]:
    ordered = sorted(state.memories, key=lambda memory: memory_number(memory.id) or 0)
    digests = [hashlib.sha256(memory.text.encode("utf-8", "surrogatepass")).hexdigest() for memory in ordered]
    return {f"{memory.id}/{digest[:12]}": memory for memory, digest in zip(ordered, digests, strict=True)}
