"""Memory systems under test: what a system must do, and the one that needs no language model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from deltamem.embedding import Embedder
from eval.locomo.loader import Conversation, DatedSession, Turn


@dataclass(frozen=True, slots=True)
class Passage:
    """Something a system remembers.

    Attributes:
        text: What an answering model would be shown.
        sources: Ids of the turns that it comes from.
    """

    text: str
    sources: tuple[str, ...]


class Retriever(Protocol):
    """What a system remembers of one conversation."""

    async def retrieve(self, questions: Sequence[str], k: int) -> list[list[Passage]]:
        """Return at most `k` passages for each question, best first."""
        ...


class System(Protocol):
    """A memory system. Conversations are apart from each other and may be taken in at the same time."""

    name: str

    def ingest(self, conversation: Conversation) -> AbstractAsyncContextManager[Retriever]:
        """Take in a whole conversation, in order; what is remembered can be searched inside the ``with`` block."""
        ...

    def report(self) -> dict[str, Any]:
        """What the summary says about how the conversations were taken in, beyond the settings."""
        ...

    @property
    def failed(self) -> int:
        """How many sessions are missing in the memory because something broke."""
        ...


@dataclass(frozen=True, slots=True)
class TurnText:
    """What is written of a turn besides speaker and text.

    Attributes:
        with_time: The date of the session.
        with_captions: The caption of a picture.
    """

    with_time: bool = True
    with_captions: bool = True

    def render(self, session: DatedSession, turn: Turn) -> str:
        """Write a turn as it is indexed, for example ``[8 May 2023] Ana: Look! [image: a red bicycle]``."""
        return self.dated(session.time, self.spoken(turn))

    def dated(self, time: datetime, text: str) -> str:
        """Put the date before a text, for example ``[8 May 2023] Ana has a dog.``."""
        return f"[{time.day} {time:%B %Y}] {text}" if self.with_time else text

    def spoken(self, turn: Turn) -> str:
        """Write a turn without the date."""
        caption = f" [image: {turn.caption}]" if self.with_captions and turn.caption else ""
        return f"{turn.speaker}: {turn.text}{caption}"


class NaiveRag:
    """Every turn is a passage; a question finds the turns with the most similar embedding. No language model."""

    name = "naive_rag"
    failed = 0

    def __init__(self, embedder: Embedder, turn_text: TurnText) -> None:
        """Begin with nothing known.

        Args:
            embedder: Embeds turns and questions.
            turn_text: What of a turn is indexed.
        """
        self._embedder = embedder
        self._turn_text = turn_text

    @asynccontextmanager
    async def ingest(self, conversation: Conversation) -> AsyncIterator[Retriever]:
        """Index all turns; embeds them in one call."""
        passages = [
            Passage(self._turn_text.render(session, turn), (turn.id,))
            for session in conversation.sessions
            for turn in session.turns
        ]
        yield _Turns(self._embedder, passages)

    def report(self) -> dict[str, Any]:
        """Nothing: the settings say it all."""
        return {}


class _Turns:
    def __init__(self, embedder: Embedder, passages: Sequence[Passage]) -> None:
        self._embedder = embedder
        self._passages = passages
        self._vectors = embedder.documents([passage.text for passage in passages])

    async def retrieve(self, questions: Sequence[str], k: int) -> list[list[Passage]]:
        """Return the `k` most similar turns; equal similarities keep the order of the conversation."""
        if not questions or not self._passages:
            return [[] for _ in questions]
        similarity = self._embedder.queries(questions) @ self._vectors.T
        ranked = (-similarity).argsort(axis=1, kind="stable")[:, :k]
        return [[self._passages[int(position)] for position in row] for row in ranked]
