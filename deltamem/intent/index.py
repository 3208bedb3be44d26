"""The intent index of one trajectory: steps are labelled in order as they come, and found by what a query asks for."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from deltamem.embedding import Embedder, Vectors
from deltamem.intent.labeller import IntentLabeller, Labelled, Part, without_parts
from deltamem.intent.labels import Facet, LabelChange, LabelSpaces
from deltamem.intent.records import IntentFilter, Snippet, Step
from deltamem.intent.retrieval import (
    CONTEXT_TOKENS,
    K_RETRIEVE,
    IntentHit,
    LabelRows,
    densest,
    met,
    shown_lines,
    within_budget,
)

_AT_ONCE = 128  # Texts a call of the embedder


@dataclass(frozen=True, slots=True)
class Found:
    """What a query found."""

    wanted: IntentFilter  # What it asked for, in the labels of the inventories
    hits: tuple[IntentHit, ...]  # Best first

    def context(self, tokens: int = CONTEXT_TOKENS) -> str:
        """The hits as a model is shown them, one a line, as many as fit a budget of estimated tokens."""
        return "\n".join(within_budget(shown_lines(self.hits), tokens))


class IntentIndex:
    """Labels steps, keeps their snippets and finds them. Used from one event loop."""

    def __init__(self, labeller: IntentLabeller, embedder: Embedder, *, without: Collection[Part] = ()) -> None:
        """Begin an empty index; `without` leaves parts of the method out."""
        self._labeller = labeller
        self._embedder = embedder
        self._without = frozenset(without)
        self._writing = asyncio.Lock()
        self._embedding = asyncio.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.spaces = LabelSpaces()
        self.drafts: dict[str, str] = {}
        self._snippets: list[Snippet] = []  # With the labels they were given
        self._row: dict[str, int] = {}  # By id of the step
        self._rows = LabelRows()
        self._notes: defaultdict[str, list[str]] = defaultdict(list)
        self._vectors: Vectors = np.zeros((0, 0), dtype=np.float32)

    def __len__(self) -> int:
        """How many steps there are."""
        return len(self._snippets)

    def __contains__(self, step_id: object) -> bool:
        """Whether a step is in the index."""
        return step_id in self._row

    def snippet(self, row: int) -> Snippet:
        """A step in the order of their arrival, with the labels of today's inventories."""
        kept = self._snippets[row]
        return replace(kept, intent=self.spaces.relabelled(kept.intent))

    def latest(self, count: int) -> list[Snippet]:
        """The last `count` steps, in order."""
        return [self.snippet(row) for row in range(max(0, len(self) - count), len(self))]

    def aligned(self, scope: str, event: str, count: int) -> list[Snippet]:
        """The last `count` steps that share the scope or the event, in order; those of the scope come before others."""
        same_scope = self._rows.of(Facet.SCOPE, scope)[-count:] if count else ()
        chosen = set(map(int, same_scope))
        for row in self._rows.of(Facet.EVENT, event)[-count:][::-1] if count else ():
            if len(chosen) == count:
                break
            chosen.add(int(row))
        return [self.snippet(row) for row in sorted(chosen)]

    def notes(self, scope: str) -> Sequence[str]:
        """What was noted of a scope, in order."""
        return tuple(self._notes.get(scope, ()))

    async def add(self, steps: Sequence[Step]) -> int:
        """Label steps in order; those that are known already, by id, are left out. Each is kept before the next is labelled.

        Returns:
            How many were new.

        Raises:
            DeltaMemError: If one cannot be labelled; those before it are kept.
        """
        async with self._writing:
            new = [step for step in {step.id: step for step in steps}.values() if step.id not in self]
            for number, step in enumerate(new):
                self._write(await self._labeller.label(step, self, new[number + 1 :]))
            return len(new)

    async def search(self, query: str, k: int = K_RETRIEVE) -> Found:
        """Find the steps that meet most of what a query asks for; among equals the most similar come first.

        Raises:
            DeltaMemError: If the query cannot be labelled.
        """
        if not len(self) or k < 1:
            return Found(IntentFilter(), ())
        wanted = self._asked(await self._labeller.filter(query, self.spaces))
        vectors = await self._embedded()
        (vector,) = await asyncio.to_thread(self._embedder.queries, [query])
        found = densest(self._rows.density(wanted, len(self))[: len(vectors)], vectors, vector, k)
        snippets = [(self.snippet(row), similarity) for row, similarity in found]
        return Found(wanted, tuple(IntentHit(one, similarity, met(one.intent, wanted)) for one, similarity in snippets))

    def _asked(self, wanted: IntentFilter) -> IntentFilter:
        known = self.spaces.known(wanted)
        return IntentFilter(
            () if Part.SCOPE in self._without else known.scopes,
            () if Part.EVENT in self._without else known.events,
            () if Part.ENTITY in self._without else known.entity_types,
        )

    def _write(self, labelled: Labelled) -> None:
        labelled = without_parts(labelled, self._without)
        for change in labelled.changes:
            self._change(change)
        for change in self.spaces.unknown(labelled.snippet.intent):
            self._change(change)
        row = len(self._snippets)
        self._snippets.append(labelled.snippet)
        self._row[labelled.snippet.step.id] = row
        self._rows.add(row, self.spaces.relabelled(labelled.snippet.intent))
        for note in labelled.notes:
            self._notes[note.scope].append(note.text)
        self.drafts.clear()

    def _change(self, change: LabelChange) -> None:
        old = self.spaces.current(change.facet, change.label)
        self.spaces.apply(change)
        if change.into is not None and old is not None:
            new = self.spaces.current(change.facet, change.into)
            assert new is not None  # or the change would have been refused
            self._rows.merge(change.facet, old, new)
            if change.facet is Facet.SCOPE:
                self._notes[new] = [*self._notes.pop(new, []), *self._notes.pop(old, [])]

    async def _embedded(self) -> Vectors:
        """The vectors of all summaries; those that are missing are made."""
        async with self._embedding:
            while (known := len(self._vectors)) < len(self):
                texts = [snippet.summary for snippet in self._snippets[known : known + _AT_ONCE]]
                fresh = await asyncio.to_thread(self._embedder.documents, texts)
                self._vectors = np.concatenate([self._vectors, fresh]) if known else fresh
            return self._vectors
