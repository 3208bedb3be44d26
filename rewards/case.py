"""One case for people: a JSON file with a prior state, what the manager did and what it should have done.

The file format is described in ``docs/rewards.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deltamem.episode import Episode, EpisodeConfig, Search, Trajectory
from deltamem.errors import DeltaMemError
from deltamem.memory import Event, Memory, MemoryState, Operation, OperationProblem, check
from deltamem.sessions import Session


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Memory(_Strict):
    text: str
    time: datetime


class _Predicted(_Strict):
    event: Event
    text: str
    target_memory_id: str | None = None


class _Target(_Predicted):
    keywords: list[str] = []


class _CaseFile(_Strict):
    prior_state: dict[str, _Memory]
    predicted: list[_Predicted] | None = None
    target: list[_Target]
    assistant_turns: list[str] | None = Field(default=None, min_length=1)
    retrieved_ids: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A case, ready to be scored.

    Attributes:
        prior: The state before the session.
        target: The target operations.
        trajectory: What the manager did; its operations are None if they could not be read.
        has_turns: Whether the raw assistant turns are known, without which there is no format score.
        has_retrieval: Whether it is known what the searches returned.
        refused: Why predicted operations were left out.
    """

    prior: MemoryState
    target: tuple[Operation, ...]
    trajectory: Trajectory
    has_turns: bool
    has_retrieval: bool
    refused: tuple[OperationProblem, ...]


def read_case(path: Path, *, max_turns: int) -> Case:
    """Read a case file.

    Args:
        path: The JSON file.
        max_turns: Limit of assistant turns, for the format score.

    Raises:
        DeltaMemError: If the file is missing or something in it is wrong; the message names the key.
    """
    try:
        file = _CaseFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DeltaMemError(f"{path}: the case file cannot be read ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        raise DeltaMemError(f"{path}: {key}: {first['msg']}") from error
    try:
        return _to_case(file, max_turns)
    except DeltaMemError as error:
        raise DeltaMemError(f"{path}: {error}") from error


def _to_case(file: _CaseFile, max_turns: int) -> Case:
    prior = MemoryState(Memory(key, memory.text, memory.time) for key, memory in file.prior_state.items())
    target = tuple(Operation(op.event, op.text, op.target_memory_id, tuple(op.keywords)) for op in file.target)
    _check_target(prior, target)
    for index, memory_id in enumerate(file.retrieved_ids or ()):
        if memory_id not in prior:
            raise DeltaMemError(f"retrieved_ids.{index}: there is no memory {memory_id!r} in prior_state")
    retrieved = tuple(prior[memory_id] for memory_id in dict.fromkeys(file.retrieved_ids or ()))
    if file.assistant_turns is None and "predicted" not in file.model_fields_set:
        raise DeltaMemError("predicted: required where assistant_turns is not given (null: outputs that could not be read)")
    trajectory = _replay(file.assistant_turns or (), prior, retrieved, max_turns)
    operations = trajectory.operations
    refused: tuple[OperationProblem, ...] = ()
    if "predicted" in file.model_fields_set:
        operations = None
        if file.predicted is not None:
            given = [Operation(op.event, op.text, op.target_memory_id) for op in file.predicted]
            operations, refused = check(prior, given)
    return Case(
        prior=prior,
        target=target,
        trajectory=Trajectory(
            messages=trajectory.messages,
            queries=trajectory.queries,
            retrieved_ids=(tuple(memory.id for memory in retrieved),),
            operations=operations,
            violations=trajectory.violations,
        ),
        has_turns=file.assistant_turns is not None,
        has_retrieval=file.retrieved_ids is not None,
        refused=refused,
    )


def _check_target(prior: MemoryState, target: Sequence[Operation]) -> None:
    for index, op in enumerate(target):
        for problem in check(prior, [op]).problems:
            if problem is OperationProblem.UNKNOWN_TARGET:
                raise DeltaMemError(
                    f"target.{index}.target_memory_id: there is no memory {op.target_memory_id!r} in prior_state"
                )
            key = "text" if problem is OperationProblem.EMPTY_TEXT else "target_memory_id"
            raise DeltaMemError(f"target.{index}.{key}: required for {op.event}")
    if problems := check(prior, target).problems:
        raise DeltaMemError(f"target: the operations contradict or repeat each other ({problems[0]})")


def _replay(turns: Sequence[str], prior: MemoryState, retrieved: Sequence[Memory], max_turns: int) -> Trajectory:
    """Let the episode read the turns, as it does in training."""
    nowhere = Session(person_id="", person_name="", time=datetime.min, dialogue=())
    episode = Episode(nowhere, prior.keys(), EpisodeConfig(max_turns=max_turns))
    over = False
    for index, text in enumerate(turns):
        if over:
            raise DeltaMemError(f"assistant_turns.{index}: the episode was over with the turn before it")
        over = not isinstance(episode.read(text), Search)
        if not over:
            episode.answer(retrieved)
    return episode.trajectory
