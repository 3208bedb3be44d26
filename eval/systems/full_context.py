"""No memory at all: the answering model is shown the whole dialogue, as far as it fits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from eval.systems.kept_sessions import KeptSessions
from eval.systems.protocol import DialogueTurn, Passage, StoreKey


class FullContext:
    """Every session is one passage, and a search returns all of them whatever it asks for and whatever `k` is.

    The newest session comes first, so that a budget of context tokens leaves out the oldest; what is left is shown by time.
    """

    name = "full_context"
    per_speaker = False
    ranked = False

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[Transcript]:
        """Begin a store, which ends with the block."""
        yield Transcript()

    def facts(self) -> dict[str, Any]:
        """What is shown."""
        return {"shown": "the newest sessions that fit the budget, by time"}


class Transcript(KeptSessions):
    """The sessions of one store."""

    async def search(self, query: str, k: int) -> list[Passage]:
        """All sessions that have turns, the newest first; the last one taken in comes first of those at the same time."""
        by_time = sorted(self.sessions.values(), key=lambda session: session.time)
        return [
            Passage("\n".join(map(_line, session.turns)), session.time, tuple(turn.id for turn in session.turns))
            for session in reversed(by_time)
            if session.turns
        ]


def _line(turn: DialogueTurn) -> str:
    return turn.spoken if turn.speaker else f"{turn.role}: {turn.text}"
