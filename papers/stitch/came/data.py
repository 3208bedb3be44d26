"""The data sets of `papers.stitch.writer`: what systems read, what is asked, and the log that answers are derived from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, PositiveInt

from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256, read_records
from eval.config import RecallConfig
from eval.data import draw, reading
from eval.records import QuestionRecord
from eval.systems.base import DialogueSession, DialogueTurn
from papers.stitch.came.records import FILES, CameQuestion, CameTrajectory, ClosedWorld, Domain, GoldIntents, Storyboard
from papers.stitch.labeller import GoldStep
from papers.stitch.records import Intent
from papers.stitch.system import OracleIntents

SPEAKERS: dict[Domain, tuple[str, str]] = {"travel": ("User", "Agent"), "debate": ("Pro", "Con")}
"""By domain who is the user of a memory, and who the other one; systems with a memory for each speaker have both."""

BATCH_TURNS = 2
"""Messages an add call."""


class CameConfig(RecallConfig):
    """All keys of the command; ``configs/came.yaml`` says what they mean."""

    k: PositiveInt


def dialogue(trajectory: CameTrajectory, user: str) -> tuple[DialogueSession, ...]:
    """The sessions of a trajectory, as the memory of one speaker reads them."""
    return tuple(
        DialogueSession(
            session.id,
            session.time,
            tuple(
                DialogueTurn(turn.id, "user" if turn.role == user else "assistant", turn.role, turn.text, turn.time)
                for turn in session.turns
            ),
        )
        for session in trajectory.sessions
    )


Record = TypeVar("Record", bound=BaseModel)


@dataclass(frozen=True)
class CameData:
    """What was read."""

    folder: Path
    worlds: dict[str, ClosedWorld]
    trajectories: dict[str, CameTrajectory]
    logs: dict[str, Storyboard]
    questions: dict[str, CameQuestion]
    asked: tuple[QuestionRecord, ...]
    hashes: dict[str, str]
    sample: str | None

    def world_of(self, question: CameQuestion) -> ClosedWorld:
        """The world that a question is about."""
        return self.worlds[self.trajectories[question.trajectory].world]

    def user_of(self, trajectory: str) -> str:
        """Whose memory a store of one trajectory is."""
        return SPEAKERS[self.trajectories[trajectory].domain][0]

    def intents(self) -> dict[str, OracleIntents]:
        """The gold intents by trajectory; nothing but the oracle and diagnostics may ask for them."""
        found = _read(self.folder, "intents", GoldIntents, lambda one: one.trajectory)
        return {
            name: OracleIntents(
                {
                    turn: GoldStep(Intent(step.scope, step.event, step.entity_types), step.resolved, step.summary)
                    for turn, step in one.steps.items()
                },
                one.queries,
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
    worlds = _read(folder, "worlds", ClosedWorld, lambda one: one.id)
    trajectories = _read(folder, "trajectories", CameTrajectory, lambda one: one.id)
    logs = _read(folder, "storyboard", Storyboard, lambda one: one.trajectory)
    questions = _read(folder, "questions", CameQuestion, lambda one: one.id)
    for name, one in trajectories.items():
        turns = {turn.id for session in one.sessions for turn in session.turns}
        if one.world not in worlds:
            raise DeltaMemError(f"{folder}: the world of trajectory {name} is not known")
        if name not in logs or {turn.id for turn in logs[name].turns} != turns:
            raise DeltaMemError(f"{folder}: the storyboard of trajectory {name} is not that of its turns")
    for question in questions.values():
        if question.trajectory not in logs or not set(question.evidence) <= logs[question.trajectory].operation_of.keys():
            raise DeltaMemError(f"{folder}: question {question.id} names a trajectory or turns that are not there")
    every = [(question.trajectory, _record(question)) for question in questions.values()]
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


def _record(question: CameQuestion) -> QuestionRecord:
    """Before anything was searched for."""
    return QuestionRecord(
        key=question.id,
        group=question.trajectory,
        category=question.type,
        question=question.question,
        gold=", ".join(question.answers),
        evidence=question.evidence,
    )
