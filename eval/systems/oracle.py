"""Perfect retrieval: a question finds its gold evidence and nothing else, which is the ceiling for every memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from eval.systems.kept_sessions import KeptSessions
from eval.systems.protocol import Passage, StoreKey

Evidence = Mapping[str, Mapping[str, Sequence[str | Passage]]]
"""By id of the store and text of the question: ids of turns, or passages where the benchmark's evidence is not turns."""


class Oracle:
    """Returns the evidence that the benchmark names. All of it, whatever `k` is."""

    name = "oracle"
    per_speaker = False
    ranked = False

    def __init__(self, evidence: Evidence) -> None:
        """Take the benchmark's evidence."""
        self._evidence = evidence

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[GoldEvidence]:
        """Begin a store, which ends with the block."""
        yield GoldEvidence(self._evidence.get(key.id, {}))

    def facts(self) -> dict[str, Any]:
        """What is shown."""
        return {"shown": "the gold evidence of the question"}


class GoldEvidence(KeptSessions):
    """The evidence of one store."""

    def __init__(self, evidence: Mapping[str, Sequence[str | Passage]]) -> None:
        """Take the evidence by question."""
        super().__init__()
        self._evidence = evidence

    async def search(self, query: str, k: int) -> list[Passage]:
        """The evidence of a question in its order; turns that were not taken in yet are left out."""
        named = self._evidence.get(query, ())
        ids = {item for item in named if isinstance(item, str)}
        said = {
            turn.id: Passage(turn.spoken, session.time, (turn.id,))
            for session in self.sessions.values()
            for turn in session.turns
            if turn.id in ids
        }
        return [passage for item in named if (passage := said.get(item) if isinstance(item, str) else item) is not None]
