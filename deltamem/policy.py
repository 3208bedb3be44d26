"""What writes the assistant texts of an episode: protocols, and the completion they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from deltamem.episode import Message


class Completion(NamedTuple):
    """One assistant text.

    Attributes:
        text: The text without the end-of-turn token.
        truncated: Whether generation stopped at a token limit.
        tokens: How many tokens were generated.
        prompt_tokens: How many tokens were read; 0 where nobody counts them.
        cached: Whether the text comes from a cache, so that no tokens were spent now.
    """

    text: str
    truncated: bool
    tokens: int
    prompt_tokens: int = 0
    cached: bool = False


class Policy(Protocol):
    """A language model that continues a conversation; called concurrently for many episodes."""

    name: str

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Write the next assistant text."""
        ...


@runtime_checkable
class ScopedPolicy(Policy, Protocol):
    """A policy that may keep answers; they are kept apart by scope (the owner), so that they can be erased."""

    def for_scope(self, scope: str, sample: int = 0) -> Policy:
        """The policy with its answers bound to a scope; another `sample` gets a fresh answer to the same request."""
        ...

    def forget_scope(self, scope: str) -> int:
        """Erase what is kept for a scope; returns how many answers there were."""
        ...
