"""What a run does of one user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eval.halumem.loader import HalumemSession, Question, User
from eval.systems.protocol import StoreKey


@dataclass(frozen=True)
class Part:
    """What is done of one user.

    Attributes:
        user: The user.
        sessions: The sessions that are taken in, in order from the first.
        asked: Keys of the questions that are asked.
    """

    user: User
    sessions: tuple[HalumemSession, ...]
    asked: frozenset[str]

    @classmethod
    def of(cls, user: User, limit: int | None) -> Part:
        """All of a user; with a limit the first so many questions and the sessions up to the last of them."""
        asked = frozenset(question.key for question in user.questions[:limit])
        if limit is None or len(asked) == len(user.questions):
            return cls(user, user.sessions, asked)
        last = max(session.number for session in user.sessions for question in session.questions if question.key in asked)
        return cls(user, user.sessions[: last + 1], asked)

    @property
    def key(self) -> StoreKey:
        """The user's one store; whole sessions are handed over."""
        return StoreKey(self.user.id, self.user.name)

    @property
    def evaluated(self) -> tuple[HalumemSession, ...]:
        """The sessions whose points count; generated ones are only taken in."""
        return tuple(session for session in self.sessions if not session.generated)

    @property
    def points(self) -> int:
        """How many memory points are evaluated."""
        return sum(len(session.points) for session in self.evaluated)

    def questions(self, session: HalumemSession) -> Iterator[Question]:
        """The questions of a session that are asked."""
        return (question for question in session.questions if question.key in self.asked)
