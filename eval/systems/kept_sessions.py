"""A memory that keeps the sessions as they are, in this process only; what a search makes of them differs by system."""

from __future__ import annotations

from collections.abc import Collection

from eval.systems.protocol import DialogueSession, Ingested


class KeptSessions:
    """The part of `eval.systems.protocol.Memory` that systems without a language model share.

    Attributes:
        sessions: In the order in which they were taken in.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.sessions: dict[str, DialogueSession] = {}

    @property
    def known(self) -> Collection[str]:
        """Ids of the sessions that were taken in."""
        return self.sessions.keys()

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Keep a session; nothing is extracted from it."""
        self.sessions.setdefault(session.id, session)
        return Ingested()

    async def reset(self) -> None:
        """Forget everything."""
        self.sessions.clear()
