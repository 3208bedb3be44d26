"""What writes the assistant texts of an episode: a protocol, and the completion it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from deltamem.episode import Message


class Completion(NamedTuple):
    """One assistant text.

    Attributes:
        text: The text without the end-of-turn token.
        truncated: Whether generation stopped at a token limit.
        tokens: How many tokens were generated.
    """

    text: str
    truncated: bool
    tokens: int


class Policy(Protocol):
    """A language model that continues a conversation; called concurrently for many episodes."""

    name: str

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Write the next assistant text."""
        ...
