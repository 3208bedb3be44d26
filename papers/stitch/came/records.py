"""What a data set of CAME-Bench is made of: worlds, operations, turns, questions and gold labels; one file of each."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Literal

from pydantic import Field

from deltamem.config import StrictModel
from papers.stitch.records import IntentFilter

Domain = Literal["travel", "debate"]
Size = Literal["S", "M", "L"]
Action = Literal[
    "indicate_date", "propose", "inquire", "inform", "compare", "decide",  # travel; inform is the answer to an inquiry
    "attack", "defend", "concede", "background", "summarize",  # debate, and propose
]  # fmt: skip
QuestionType = Literal["revision", "recall", "multi_hop", "synthesis"]
FILES = ("worlds", "trajectories", "questions", "storyboard", "intents")
"""Files of a data set, JSON lines."""

TYPES: tuple[QuestionType, ...] = ("revision", "recall", "multi_hop", "synthesis")
"""The four types of section 3.2: incremental memory revision, context-aware factual recall, multi-hop, synthesis."""
SETS = frozenset({"open", "day_plan", "range_plan", "backing", "attacks", "cited"})
"""Forms of questions whose answer may be more than one."""
AnswerKind = Literal["accommodation", "restaurant", "attraction", "place", "source", "price", "time", "deposit", "figure"]
"""What an answer is a set of; a place is any of the first three."""


class WorldEntity(StrictModel):
    """Something of a closed world."""

    name: str  # Unique among all worlds of a data set, and so is its first word
    kind: str  # `accommodation`, `restaurant`, `attraction` or `source`
    details: dict[str, str]  # What is said of it in passing


class ClosedWorld(StrictModel):
    """A closed world: nothing else is talked about in the trajectories over it."""

    id: str
    domain: Domain
    topic: str  # Of a debate: the motion; of travel: the town
    entities: tuple[WorldEntity, ...]


class LogOperation(StrictModel):
    """A step of the symbolic storyboard: a role, a latent goal and a payload."""

    id: str
    action: Action
    role: str  # Who acts
    goal: str  # The thematic scope: `Day 2 itinerary`, `Pro case on air quality`
    slot: str = ""  # Of travel: what of the day is planned
    entities: tuple[str, ...] = ()  # Names
    attribute: str = ""  # What is asked or said of the entity: `price`, `time`, `deposit`, `figure`
    value: str = ""  # Of the attribute; of a decision: `book` or `drop`
    answers: str = ""  # Id of the operation that this one answers: an inquiry, an attack


class TurnReference(StrictModel):
    """How a turn refers to an entity that it does not name."""

    phrase: str
    entity: str
    goal: str  # Where the entity was introduced
    slot: str = ""
    number: int = 0  # The how-manyth entity that was introduced there; 0 for the one mentioned last


class LogTurn(StrictModel):
    """What is said; an operation is said in its core turn, and elaborated on in the turns that follow."""

    id: str
    operation: str
    role: str
    text: str
    time: datetime
    core: bool
    reference: TurnReference | None = None
    resolved: str = ""  # The text with the reference replaced by the name; empty if there is none


class Storyboard(StrictModel):
    """The symbolic log of a trajectory."""

    trajectory: str
    operations: tuple[LogOperation, ...]
    turns: tuple[LogTurn, ...]

    @cached_property
    def operation_of(self) -> dict[str, LogOperation]:
        """By core turn the operation that it says."""
        by_id = {operation.id: operation for operation in self.operations}
        return {turn.id: by_id[turn.operation] for turn in self.turns if turn.core}


class SpokenTurn(StrictModel):
    """A turn as memory systems read it."""

    id: str
    role: str
    text: str
    time: datetime


class Sitting(StrictModel):
    """Turns in a row."""

    id: str
    time: datetime
    turns: tuple[SpokenTurn, ...]


class CameTrajectory(StrictModel):
    """What memory systems read."""

    id: str
    domain: Domain
    size: Size
    world: str
    topic: str
    sessions: tuple[Sitting, ...]


class CameQuestion(StrictModel):
    """A question about the end of a trajectory."""

    id: str
    trajectory: str
    type: QuestionType
    form: str  # Which of the questions in came.yaml
    question: str
    arguments: dict[str, str]  # What the question's form was filled with
    kind: AnswerKind
    answers: tuple[str, ...]  # The gold set
    evidence: tuple[str, ...]  # Ids of the core turns that it takes
    # Labels that it asks for; not in the file of questions, but in that of intents
    wanted: IntentFilter = Field(IntentFilter(), exclude=True)


class StepLabels(StrictModel):
    """Labels of a turn."""

    scope: str
    event: str
    entity_types: tuple[str, ...]
    resolved: str
    summary: str


class GoldIntents(StrictModel):
    """Gold intents of a trajectory, which only ``labeller=oracle`` and diagnostics may read."""

    trajectory: str
    steps: dict[str, StepLabels]  # By id of the turn
    queries: dict[str, IntentFilter]  # By text of the question
