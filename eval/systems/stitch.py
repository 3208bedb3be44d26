"""STITCH as a system under test: every turn is a step of one trajectory, found by its contextual intent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from deltamem.embedding import Embedder
from deltamem.intent.index import IntentIndex
from deltamem.intent.labeller import IntentLabeller, Part
from deltamem.intent.records import Step
from eval.systems.base import DialogueSession, DialogueTurn, Ingested, Passage, StoreKey


class StitchSystem:
    """One intent index a store; a passage is a turn with its references resolved."""

    name = "stitch"
    per_speaker = False
    ranked = True

    def __init__(
        self, labellers: Callable[[StoreKey], IntentLabeller], embedder: Embedder, without: Collection[Part] = ()
    ) -> None:
        """Label with what `labellers` makes for each store; `without` names the parts that an ablation leaves out."""
        self._labellers = labellers
        self._embedder = embedder
        self._without = tuple(dict.fromkeys(without))
        self._labeller_name: str | None = None

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[StitchMemory]:
        """Begin a store.

        Raises:
            EmbedderUnavailableError: If the embedder is missing.
        """
        await asyncio.to_thread(self._embedder.queries, [])  # a missing model is found before work is half done
        labeller = self._labellers(key)
        self._labeller_name = labeller.name
        yield StitchMemory(IntentIndex(labeller, self._embedder, without=self._without))

    def facts(self) -> dict[str, Any]:
        """The labeller, the embedder, and what was left out."""
        return {"labeller": self._labeller_name, "embedder": self._embedder.name, "without": list(self._without)}


class StitchMemory:
    """The steps of one store."""

    def __init__(self, index: IntentIndex) -> None:
        """Bind an index."""
        self._index = index
        self._known: dict[str, None] = {}
        self._spoken: dict[str, DialogueTurn] = {}  # By id of the turn

    @property
    def known(self) -> Collection[str]:
        """Ids of the sessions whose turns are all in the index."""
        return self._known.keys()

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Label the turns of a session.

        Raises:
            DeltaMemError: If one could not be labelled; those before it are kept, and the session may be given again.
        """
        if session.id not in self._known:
            await self._index.add([step_of(turn, session) for turn in session.turns])
            self._spoken |= {turn.id: turn for turn in session.turns}
            self._known[session.id] = None
        return Ingested()

    async def search(self, query: str, k: int) -> list[Passage]:
        """The `k` turns that meet most of what a query asks for; similarities only break ties, so none is told.

        Raises:
            DeltaMemError: If the query could not be labelled.
        """
        found = await self._index.search(query, k)
        return [self._passage(hit.snippet.step.id, hit.snippet.step, hit.snippet.resolved) for hit in found.hits]

    async def reset(self) -> None:
        """Forget everything."""
        self._index.clear()
        self._known.clear()
        self._spoken.clear()

    def _passage(self, turn: str, step: Step, resolved: str) -> Passage:
        speaker = self._spoken[turn].speaker
        return Passage(f"{speaker}: {resolved}" if speaker else resolved, step.time, (turn,))


def step_of(turn: DialogueTurn, session: DialogueSession) -> Step:
    """A turn as a step: who speaks acts, at the time of the turn or else of its session."""
    return Step(turn.id, turn.speaker or turn.role, turn.text, turn.time or session.time)
