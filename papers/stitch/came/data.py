"""The data sets of `papers.stitch.writer`: what systems read, what is asked, and the log that answers are derived from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, PositiveInt

from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256, read_records
from eval.benchmark import OracleIntents
from eval.config import RecallConfig
from eval.data import draw, reading
from eval.records import QuestionRecord
from eval.systems.base import DialogueSession, DialogueTurn
from papers.stitch.labeller import GoldStep
from papers.stitch.records import Intent, IntentFilter

TYPES = ("revision", "recall", "multi_hop", "synthesis")
SPEAKERS = {"travel": ("User", "Agent"), "debate": ("Pro", "Con")}
"""By domain who is the user of a memory, and who the other one; systems with a memory for each speaker have both."""

FILES = ("worlds", "trajectories", "questions", "storyboard", "intents")
BATCH_TURNS = 2
"""Messages an add call."""


class CameConfig(RecallConfig):
    """All keys of the command; ``configs/came.yaml`` says what they mean."""

    k: PositiveInt


class Entity(BaseModel):
    """Of a world."""

    name: str
    kind: str


class World(BaseModel):
    """What the answers to questions are made of."""

    id: str
    entities: tuple[Entity, ...]


class Operation(BaseModel):
    """A step of the symbolic log."""

    id: str
    action: str
    role: str
    goal: str
    slot: str
    entities: tuple[str, ...]
    attribute: str
    value: str
    answers: str


class Reference(BaseModel):
    """That a turn does not name an entity."""

    entity: str


class LogTurn(BaseModel):
    """Which operation a turn says."""

    id: str
    operation: str
    core: bool
    reference: Reference | None


class Log(BaseModel):
    """The symbolic log of a trajectory."""

    trajectory: str
    operations: tuple[Operation, ...]
    turns: tuple[LogTurn, ...]

    @cached_property
    def said(self) -> dict[str, Operation]:
        """The operation of each turn that says one."""
        by_id = {done.id: done for done in self.operations}
        return {turn.id: by_id[turn.operation] for turn in self.turns if turn.core}


class _Turn(BaseModel):
    id: str
    role: str
    text: str
    time: datetime


class _Session(BaseModel):
    id: str
    time: datetime
    turns: tuple[_Turn, ...]


class Trajectory(BaseModel):
    """What systems read."""

    id: str
    domain: str
    size: str
    world: str
    sessions: tuple[_Session, ...]

    def dialogue(self, user: str) -> tuple[DialogueSession, ...]:
        """The sessions, as the memory of one speaker reads them."""
        return tuple(
            DialogueSession(
                session.id,
                session.time,
                tuple(
                    DialogueTurn(turn.id, "user" if turn.role == user else "assistant", turn.role, turn.text, turn.time)
                    for turn in session.turns
                ),
            )
            for session in self.sessions
        )


class Question(BaseModel):
    """What is asked, and what is known of the answer."""

    id: str
    trajectory: str
    type: str
    form: str
    question: str
    arguments: dict[str, str]
    kind: str
    answers: tuple[str, ...]
    evidence: tuple[str, ...]

    def record(self) -> QuestionRecord:
        """Before anything was searched for."""
        return QuestionRecord(
            key=self.id,
            group=self.trajectory,
            category=self.type,
            question=self.question,
            gold=", ".join(self.answers),
            evidence=self.evidence,
        )


class _Step(BaseModel):
    scope: str
    event: str
    entity_types: tuple[str, ...]
    resolved: str
    summary: str


class _Filter(BaseModel):
    scopes: tuple[str, ...]
    events: tuple[str, ...]
    entity_types: tuple[str, ...]


class _Intents(BaseModel):
    trajectory: str
    steps: dict[str, _Step]
    queries: dict[str, _Filter]


Record = TypeVar("Record", bound=BaseModel)


@dataclass(frozen=True)
class CameData:
    """What was read."""

    folder: Path
    worlds: dict[str, World]
    trajectories: dict[str, Trajectory]
    logs: dict[str, Log]
    questions: dict[str, Question]
    asked: tuple[QuestionRecord, ...]
    hashes: dict[str, str]
    sample: str | None

    def world_of(self, question: Question) -> World:
        """The world that a question is about."""
        return self.worlds[self.trajectories[question.trajectory].world]

    def user_of(self, trajectory: str) -> str:
        """Whose memory a store of one trajectory is."""
        return SPEAKERS[self.trajectories[trajectory].domain][0]

    def intents(self) -> dict[str, OracleIntents]:
        """The gold intents by trajectory; nothing but the oracle and diagnostics may ask for them."""
        found = _read(self.folder, "intents", _Intents, lambda one: one.trajectory)
        return {
            name: OracleIntents(
                {
                    turn: GoldStep(Intent(step.scope, step.event, step.entity_types), step.resolved, step.summary)
                    for turn, step in one.steps.items()
                },
                {text: IntentFilter(q.scopes, q.events, q.entity_types) for text, q in one.queries.items()},
            )
            for name, one in found.items()
        }

    def description(self) -> dict[str, Any]:
        """What the summary says of the data."""
        sizes = sorted({one.size for one in self.trajectories.values()})
        return {
            "files": self.folder.name,
            "sha256": self.hashes,
            "published": None,
            "size": "+".join(sizes),
            "trajectories": len(self.trajectories),
            "questions": len(self.questions),
            "sample": self.sample,
        }


def _read(folder: Path, name: str, model: type[Record], key: Callable[[Record], str]) -> dict[str, Record]:
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        raise DeltaMemError(f"{path} is missing; python -m papers.stitch.writer out={folder} makes a data set")
    with reading(path):
        found = read_records(path, model, key)
    if not found:
        raise DeltaMemError(f"{path} holds nothing")
    return found


def read_data(config: CameConfig) -> CameData:
    """Read a data set and choose what is asked.

    Raises:
        DeltaMemError: If a file is missing or broken, or the files do not belong together.
    """
    if config.data is None:
        raise DeltaMemError("data=DIR is needed: a folder that python -m papers.stitch.writer has written")
    folder = config.data
    worlds = _read(folder, "worlds", World, lambda one: one.id)
    trajectories = _read(folder, "trajectories", Trajectory, lambda one: one.id)
    logs = _read(folder, "storyboard", Log, lambda one: one.trajectory)
    questions = _read(folder, "questions", Question, lambda one: one.id)
    for name, one in trajectories.items():
        turns = {turn.id for session in one.sessions for turn in session.turns}
        if one.world not in worlds or one.domain not in SPEAKERS:
            raise DeltaMemError(f"{folder}: the world or the domain of trajectory {name} is not known")
        if name not in logs or {turn.id for turn in logs[name].turns} != turns:
            raise DeltaMemError(f"{folder}: the storyboard of trajectory {name} is not that of its turns")
    for question in questions.values():
        if question.trajectory not in logs or not set(question.evidence) <= logs[question.trajectory].said.keys():
            raise DeltaMemError(f"{folder}: question {question.id} names a trajectory or turns that are not there")
    every = [(one.trajectory, one.record()) for one in questions.values()]
    sample = draw(every, list(trajectories), config, len(every))
    return CameData(
        folder=folder,
        worlds=worlds,
        trajectories=trajectories,
        logs=logs,
        questions=questions,
        asked=tuple(sample.questions),
        hashes={name: file_sha256(folder / f"{name}.jsonl") for name in FILES if (folder / f"{name}.jsonl").is_file()},
        sample=sample.note,
    )
