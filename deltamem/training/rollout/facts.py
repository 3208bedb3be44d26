"""What the agent loop tells the trainer of a rollout, besides its tokens and its reward.

Plain types, because verl sends them between processes and keeps them with the batch.
"""

from __future__ import annotations

from typing import Any, TypedDict

FACTS = "facts"
"""Key of the `RolloutFacts` in verl's ``extra_fields``."""


class ShownEpisode(TypedDict):
    """A whole episode, kept for people to read.

    Attributes:
        session: The line of ``sessions.jsonl``.
        turns: Assistant texts and tool answers in order, each with ``role`` and ``content``.
        queries: The queries of each search.
        retrieved_ids: The ids that each search returned.
        operations: ``event, text, target_memory_id`` of each; None if the outputs could not be read.
        violations: Names of `deltamem.protocol.Violation`.
        score: What `deltamem.scoring.Scorer.detail` says.
    """

    session: str
    turns: list[dict[str, str]]
    queries: list[list[str]]
    retrieved_ids: list[list[str]]
    operations: list[dict[str, Any]] | None
    violations: list[str]
    score: dict[str, Any]


class RolloutFacts(TypedDict):
    """Facts of one rollout.

    Attributes:
        key: Of the session, see `deltamem.sessions.LabelledSession.key`.
        heldout: Whether the session is of the held-out split.
        truncated: Whether a token limit ended the episode.
        turns: Assistant turns.
        model_tokens: Tokens that the model wrote.
        tool_tokens: Tokens of the tool's answers with their markup.
        queries: Search queries.
        retrieved: Memories that the searches returned.
        seconds: Wall time by phase: ``generate``, ``search``, ``reward``.
        shown: The episode itself, of the few that are kept for people.
    """

    key: str
    heldout: bool
    truncated: bool
    turns: int
    model_tokens: int
    tool_tokens: int
    queries: int
    retrieved: int
    seconds: dict[str, float]
    shown: ShownEpisode | None
