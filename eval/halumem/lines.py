"""The lines of HaluMem's files as they are (PROTOCOLS 2.3), checked; `eval.halumem.loader` makes users of them."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeFloat

QUESTION_TYPES = (
    "Basic Fact Recall",
    "Multi-hop Inference",
    "Dynamic Update",
    "Memory Boundary",
    "Memory Conflict",
    "Generalization & Application",
)
"""In the order of the tables."""

DATE_FORMAT = "%b %d, %Y, %H:%M:%S"

MemoryType = Literal["Persona Memory", "Event Memory", "Relationship Memory"]
MemorySource = Literal["primary", "system", "secondary", "interference"]

_MEMORY_TYPE = re.compile(r"(Persona|Event|Relationship) Memory")


def _memory_type(value: Any) -> Any:
    """Types come decorated, for example ``[Persona Memory]``."""
    match = _MEMORY_TYPE.search(value) if isinstance(value, str) else None
    return match[0] if match else value


def _date(value: Any) -> Any:
    return datetime.strptime(value, DATE_FORMAT) if isinstance(value, str) else value


Date = Annotated[datetime, BeforeValidator(_date)]


class _Raw(BaseModel):
    model_config = ConfigDict(strict=True)  # other keys are ignored: the versions differ in them


class RawPoint(_Raw):
    """A memory point."""

    memory_content: str = Field(min_length=1)
    memory_type: Annotated[MemoryType, BeforeValidator(_memory_type)]
    memory_source: MemorySource
    is_update: Literal["True", "False"]
    original_memories: list[str]
    importance: NonNegativeFloat


class RawTurn(_Raw):
    """One message."""

    role: Literal["user", "assistant"]
    content: str
    timestamp: Date | None = None


class RawEvidence(_Raw):
    """A memory point that a question rests on; its text is enough."""

    memory_content: str


class RawQuestion(_Raw):
    """A question."""

    question: str = Field(min_length=1)
    answer: str
    evidence: list[RawEvidence]
    question_type: Literal[QUESTION_TYPES]  # type: ignore[valid-type]
    difficulty: str = ""


class RawSession(_Raw):
    """A session; without questions it lacks their key."""

    start_time: Date
    dialogue: list[RawTurn] = Field(min_length=1)
    memory_points: list[RawPoint] = []
    questions: list[RawQuestion] = []
    is_generated_qa_session: bool = False


class RawUser(_Raw):
    """A line."""

    uuid: str
    persona_info: str
    sessions: list[RawSession] = Field(min_length=1)
