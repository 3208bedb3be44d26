"""Momento's tasks in the form of the published data set, checked as they are read."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from deltamem.config import StrictModel
from deltamem.errors import DeltaMemError
from deltamem.sessions import json_objects
from eval.data import noted, nothing_usable, reading
from papers.momento.tools import TOOLS
from papers.momento.world import HASHES, TRIAL_TABLES

LICENCE = "CC BY-SA, says the paper; the data set is adrilmanurung/momento on the Hugging Face hub, split test"


PUBLISHED_TASKS = 161
"""In the published file, says the paper."""


class _Published(StrictModel):
    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_padding(cls, value: Any) -> Any:
        """Parquet gives every object the keys of all others, with nothing in them, and may hold objects as JSON texts."""
        if isinstance(value, dict):
            return {key: _unpacked(of) if key in _JSON_FIELDS else of for key, of in value.items() if of is not None}
        return value


_JSON_FIELDS = frozenset({"arguments", "expected_result", "extracted_facts", "action_dags", "seed_data"})


def _unpacked(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    if isinstance(value, dict):
        return {key: _unpacked(of) if isinstance(of, dict | list) else of for key, of in value.items() if of is not None}
    return [_unpacked(of) if isinstance(of, dict | list) else of for of in value] if isinstance(value, list) else value


class ActionNode(_Published):
    """An action that is expected, after others of its DAG."""

    id: str
    tool: str
    evaluation_type: Literal["arguments", "results"] = "arguments"
    arguments: dict[str, Any] = Field(default={})
    expected_result: Any = None
    is_subset: bool = False  # Whether the expected result is part of the actual one, and not the reverse
    predecessors: tuple[str, ...] = ()

    @field_validator("tool")
    @classmethod
    def _known(cls, tool: str) -> str:
        if tool not in TOOLS:
            raise ValueError(f"there is no tool {tool!r}")
        return tool


class ExpectedInformation(_Published):
    """What the agent has to tell the user."""

    description: str
    reference_answer: str = ""


class Image(_Published):
    """A picture that the user may send."""

    id: int
    path: str
    description: str = ""


class PastMessage(_Published):
    """One message of a past session."""

    seq: int
    role: Literal["user", "assistant", "tool"]
    content: Any

    @property
    def text(self) -> str:
        """What was said; of messages in parts the texts."""
        content = self.content
        if isinstance(content, list):
            return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict)).strip()
        return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


class PastSession(_Published):
    """An earlier session, with the summary that the data set gives."""

    id: str
    user_id: str
    started_at: datetime
    ended_at: datetime
    summary: str
    extracted_facts: dict[str, Any] = Field(default={})
    messages: tuple[PastMessage, ...] = ()


class MomentoTask(_Published):
    """What a simulated user wants, what came before, and what has to come of it."""

    task_id: int
    user_id: str
    instruction: str
    current_date: date
    orders_hashed: str = ""
    reservations_hashed: str = ""
    order_items_hashed: str = ""
    memberships_hashed: str = ""
    action_dags: tuple[tuple[ActionNode, ...], ...] = ()  # Alternatives
    expected_information: tuple[ExpectedInformation, ...] = ()
    images: tuple[Image, ...] = ()
    sessions: tuple[PastSession, ...] = ()
    seed_data: dict[str, list[dict[str, Any]]] = Field(default={})
    kind: str = ""  # Of `momento-mini`, here and below: what has to be remembered
    opening: str = ""  # What a scripted user says first
    evidence: tuple[str, ...] = ()  # Ids of the turns that say what has to be remembered

    @field_validator("current_date", mode="before")
    @classmethod
    def _day(cls, value: Any) -> Any:
        return value[:10] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> MomentoTask:
        for name in HASHES:
            if not re.fullmatch(r"([0-9a-f]{32})?", getattr(self, name)):
                raise ValueError(f"{name} is no MD5")
        for dag in self.action_dags:
            check_dag(dag)
        if unknown := set(self.seed_data) - set(TRIAL_TABLES):
            raise ValueError(f"seed_data has the table {min(unknown)!r}; there are: {', '.join(TRIAL_TABLES)}")
        if len({session.id for session in self.sessions}) < len(self.sessions):
            raise ValueError("two sessions have one id")
        return self

    @property
    def expected_hashes(self) -> dict[str, str]:
        """By name; an empty one is not compared."""
        return {name: getattr(self, name) for name in HASHES}


def check_dag(dag: Sequence[ActionNode]) -> None:
    """Refuse what is no DAG, with a ValueError."""
    named = {node.id for node in dag}
    if len(named) < len(dag):
        raise ValueError("two nodes of a DAG have one id")
    for node in dag:
        if missing := set(node.predecessors) - named:
            raise ValueError(f"node {node.id!r} comes after {min(missing)!r}, which does not exist")
    try:
        sorted_nodes(dag)
    except CycleError as error:
        raise ValueError(f"the nodes {', '.join(sorted(set(error.args[1])))} of a DAG wait for each other") from error


def sorted_nodes(dag: Sequence[ActionNode]) -> list[ActionNode]:
    """Each node after its predecessors, otherwise in the order of the DAG (breadth first)."""
    named = {node.id: node for node in dag}
    sorter = TopologicalSorter(dict.fromkeys(named, ()))  # before any is named as a predecessor: this decides the order
    for node in dag:
        sorter.add(node.id, *node.predecessors)
    return [named[name] for name in sorter.static_order()]


@dataclass(frozen=True)
class TaskSet:
    """Tasks and where they come from."""

    name: str
    sha256: str
    licence: str
    tasks: tuple[MomentoTask, ...]
    problems: tuple[str, ...] = ()  # What could not be read, one sentence each

    @property
    def published(self) -> bool | None:
        """Whether these are the published tasks, of which only the number is known; None if that differs."""
        return False if self.licence != LICENCE else len(self.tasks) == PUBLISHED_TASKS or None

    def description(self) -> dict[str, Any]:
        """What the summary says of them."""
        tasks = self.tasks
        nodes = [node for task in tasks for dag in task.action_dags for node in dag]
        return {
            "file": self.name,
            "sha256": self.sha256,
            "licence": self.licence,
            "questions": len(tasks),
            "users": len({task.user_id for task in tasks}),
            "sessions": sum(len(task.sessions) for task in tasks),
            "messages": sum(len(session.messages) for task in tasks for session in task.sessions),
            "action_dags": sum(len(task.action_dags) for task in tasks),
            "actions": len(nodes),
            "tools": len({node.tool for node in nodes}),
            "expected_information": sum(len(task.expected_information) for task in tasks),
            "images": sum(len(task.images) for task in tasks),
            "by_kind": dict(Counter(task.kind for task in tasks if task.kind)),
            "unreadable": len(self.problems),
        }


def read_tasks(path: Path) -> TaskSet:
    """Read a file of the published form: parquet as the hub has it, JSON lines, or a JSON list.

    A record that is no task is noted and the others are kept.

    Raises:
        DeltaMemError: If the file cannot be read, or nothing in it is a task.
    """
    with reading(path):
        content = path.read_bytes()
    problems: list[str] = []
    tasks: dict[int, MomentoTask] = {}
    for number, value in enumerate(_values(path, content), start=1):
        with noted(problems, f"{path.name}: record {number}"):
            task = MomentoTask.model_validate(value)
            if task.task_id in tasks:
                raise DeltaMemError(f"task_id {task.task_id} occurs twice")
            tasks[task.task_id] = task
    if not tasks:
        raise nothing_usable(f"{path}: no record is a task of Momento", problems)
    ordered = tuple(tasks[name] for name in sorted(tasks))
    return TaskSet(path.name, hashlib.sha256(content).hexdigest(), LICENCE, ordered, tuple(problems))


def _values(path: Path, content: bytes) -> Iterable[Any]:
    if content[:4] == b"PAR1":
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        try:
            return list(parquet.read_table(arrow.BufferReader(content)).to_pylist())
        except (arrow.ArrowException, OSError) as error:
            raise DeltaMemError(f"{path}: not a parquet file that can be read: {error}") from error
    return [value for _, value in json_objects(path, "task")]
