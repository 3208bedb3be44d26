"""Stage 4: a session and its map from facts to turns."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from synth.records.base import Paragraph, Record


class Exchange(Record):
    """One turn of the paper's dialogues: an utterance of the user and the answer of the assistant."""

    user: Paragraph
    assistant: Paragraph


class PlannedFact(Record):
    """The work plan's entry of one fact; turns count from 1.

    Attributes:
        fact_id: The `SessionFact`.
        turn: Where the user says the fact.
        previous_turn: Where the user mentions what held before an UPDATE, not later than `turn`; 0 for other facts.
    """

    fact_id: Annotated[str, StringConstraints(pattern="^f[0-9]{1,3}$")]
    turn: Annotated[int, Field(ge=1, le=99)]
    previous_turn: Annotated[int, Field(ge=0, le=99)]


class Dialogue(Record):
    """A session with its map from facts to turns. The plan comes first, so that a model plans before it writes."""

    plan: Annotated[tuple[PlannedFact, ...], Field(max_length=40)]
    turns: Annotated[tuple[Exchange, ...], Field(max_length=40)]
