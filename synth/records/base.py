"""What all records share: bounded texts, the words of the paper, the persona.

All records are immutable and bounded (every string, every list), so that they serve as schemas for structured output and as
lines of a file alike. Empty strings stand for "none": models handle them better than nulls.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from deltamem.sessions import Split

Name = Annotated[str, StringConstraints(strip_whitespace=True, max_length=80)]
Line = Annotated[str, StringConstraints(strip_whitespace=True, max_length=400)]
Paragraph = Annotated[str, StringConstraints(strip_whitespace=True, max_length=2_500)]
Keyword = Annotated[str, StringConstraints(strip_whitespace=True, max_length=80)]
Keywords = Annotated[tuple[Keyword, ...], Field(max_length=6)]


class Record(BaseModel):
    """Base of all records: unknown fields are refused, nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Track(StrEnum):
    """The four change streams of a life (paper, appendix A)."""

    CAREER = "career"
    HEALTH = "health"
    RELATIONSHIP = "relationship"
    PREFERENCE = "preference"


class Domain(StrEnum):
    """Where in life an event belongs (paper, appendix A)."""

    WORK = "work"
    SOCIAL = "social"
    HEALTH = "health"
    LEISURE = "leisure"
    ADMIN = "admin"
    FINANCE = "finance"


class Change(StrEnum):
    """What an event does to a fact (paper, appendix A, the operators O)."""

    NEW = "new"
    EXPAND = "expand"
    ADJUST = "adjust"
    SHIFT = "shift"
    PARTIAL_DELETION = "partial_deletion"


class Method(StrEnum):
    """How later events change the view of a memory anchor (paper, section 3.2, inter-event evolution)."""

    EMOTIONAL = "emotional_update"
    MEANING = "meaning_update"
    SELF_BELIEF = "self_belief"


class Persona(Record):
    """The seed of one synthetic person.

    Attributes:
        person_id: Unique in the data set.
        seed: A sentence to start from.
        source: Where the sentence comes from: ``generated``, ``file`` or ``personahub``.
        split: Whether the person is trained on or held out.
    """

    person_id: str
    seed: Line
    source: str
    split: Split
