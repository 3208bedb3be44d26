"""What the agent loop tells the trainer of a rollout, besides its tokens and its reward.

Plain types, because verl sends them between processes and keeps them with the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from deltamem.episode import Trajectory
from deltamem.protocol import Violation
from deltamem.training.rollout.sequence import TokenSequence
from deltamem.trajectory_record import trajectory_fields

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


def rollout_facts(
    trajectory: Trajectory,
    tokens: TokenSequence,
    *,
    key: str,
    heldout: bool,
    seconds: Mapping[str, float],
    shown: tuple[str, Mapping[str, Any]] | None,
) -> RolloutFacts:
    """Collect the facts of a rollout.

    Args:
        trajectory: The episode; one that failed has no messages.
        tokens: What is handed to the trainer.
        key: Of the session.
        heldout: Whether the session is of the held-out split.
        seconds: Wall time by phase.
        shown: The line of ``sessions.jsonl`` and the score in detail, if the episode is kept.
    """
    model_tokens = sum(tokens.mask)
    return RolloutFacts(
        key=key,
        heldout=heldout,
        truncated=Violation.TOKEN_LIMIT in trajectory.violations,
        turns=sum(message["role"] == "assistant" for message in trajectory.messages),
        model_tokens=model_tokens,
        tool_tokens=len(tokens.mask) - model_tokens if trajectory.failure is None else 0,
        queries=sum(len(queries) for queries in trajectory.queries),
        retrieved=sum(len(ids) for ids in trajectory.retrieved_ids),
        seconds=dict(seconds),
        shown=None if shown is None else _shown(trajectory, *shown),
    )


def _shown(trajectory: Trajectory, session: str, score: Mapping[str, Any]) -> ShownEpisode:
    fields = trajectory_fields(trajectory)
    return ShownEpisode(
        session=session,
        turns=fields["turns"],
        queries=fields["queries"],
        retrieved_ids=fields["retrieved_ids"],
        operations=fields["operations"],
        violations=[str(violation) for violation in trajectory.violations],
        score=dict(score),
    )
