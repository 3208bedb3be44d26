"""Memory systems under test: what a system must do, and those that exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from deltamem.embedding import Embedder, Vectors
from deltamem.errors import DeltaMemError
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


class System(Protocol):
    """A memory of one conversation at a time."""

    name: str

    def ingest(self, conversation: Conversation) -> None:
        """Take in a whole conversation, in order; what was known before is forgotten."""
        ...

    def retrieve(self, questions: Sequence[str], k: int) -> list[list[Passage]]:
        """Return at most `k` passages for each question, best first."""
        ...


@dataclass(frozen=True, slots=True)
class TurnText:
    """What of a turn is indexed besides speaker and text.

    Attributes:
        with_time: The date of the session.
        with_captions: The caption of a picture.
    """

    with_time: bool = True
    with_captions: bool = True

    def render(self, session: DatedSession, turn: Turn) -> str:
        """Write a turn as it is indexed, for example ``[8 May 2023] Ana: Look! [image: a red bicycle]``."""
        date = f"[{session.time.day} {session.time:%B %Y}] " if self.with_time else ""
        caption = f" [image: {turn.caption}]" if self.with_captions and turn.caption else ""
        return f"{date}{turn.speaker}: {turn.text}{caption}"


class NaiveRag:
    """Every turn is a passage; a question finds the turns with the most similar embedding. No language model."""

    name = "naive_rag"

    def __init__(self, embedder: Embedder, turn_text: TurnText) -> None:
        """Begin with nothing known.

        Args:
            embedder: Embeds turns and questions.
            turn_text: What of a turn is indexed.
        """
        self._embedder = embedder
        self._turn_text = turn_text
        self._passages: list[Passage] = []
        self._vectors: Vectors = embedder.documents([])

    def ingest(self, conversation: Conversation) -> None:
        """Index all turns; embeds them in one call."""
        self._passages = [
            Passage(self._turn_text.render(session, turn), (turn.id,))
            for session in conversation.sessions
            for turn in session.turns
        ]
        self._vectors = self._embedder.documents([passage.text for passage in self._passages])

    def retrieve(self, questions: Sequence[str], k: int) -> list[list[Passage]]:
        """Return the `k` most similar turns; equal similarities keep the order of the conversation."""
        if not questions or not self._passages:
            return [[] for _ in questions]
        similarity = self._embedder.queries(questions) @ self._vectors.T
        ranked = (-similarity).argsort(axis=1, kind="stable")[:, :k]
        return [[self._passages[int(position)] for position in row] for row in ranked]


SYSTEMS: dict[str, Callable[[Embedder, TurnText], System]] = {NaiveRag.name: NaiveRag}


def make_system(name: str, embedder: Embedder, turn_text: TurnText) -> System:
    """Make a system by name.

    Raises:
        DeltaMemError: If there is no such system; lists those that exist.
    """
    check_system(name)
    return SYSTEMS[name](embedder, turn_text)


def check_system(name: str) -> None:
    """Refuse an unknown name before anything expensive happens; raises `DeltaMemError` like `make_system`."""
    if name not in SYSTEMS:
        raise DeltaMemError(f"system {name!r} does not exist; there are: {', '.join(sorted(SYSTEMS))}")
