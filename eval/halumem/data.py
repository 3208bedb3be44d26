"""HaluMem's files: users, sessions, memory points, questions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeFloat, PositiveInt

from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256
from deltamem.sessions import Turn
from deltamem.text import SourceFinder
from deltamem.text_files import read_lines
from eval.config import JudgedConfig
from eval.data import Groups, draw, noted, nothing_usable, reading
from eval.evidence import EvidenceFinder
from eval.protocols import HALUMEM as HALUMEM_PROTOCOLS
from eval.protocols import Protocol
from eval.records import MemorySource, MemoryType, PointRecord, QuestionRecord
from eval.systems.base import DialogueSession, DialogueTurn, FolderName, Passage

JudgeName = Literal["qa", "qa_strict"]


class HalumemConfig(JudgedConfig[JudgeName]):
    """All keys of the command; ``configs/halumem.yaml`` says what they mean."""

    protocols: ClassVar[Mapping[str, Protocol]] = HALUMEM_PROTOCOLS
    depth: ClassVar[str] = "question_k"
    decisive: ClassVar[frozenset[str]] = frozenset({"question_k", "update_k"})

    protocol: Literal["default", "paper"]  # type: ignore[assignment]
    version: Literal["medium", "long"]
    update_k: PositiveInt
    question_k: PositiveInt
    users: Groups


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


class _RawPoint(_Raw):
    text: str = Field(alias="memory_content", min_length=1)
    memory_type: Annotated[MemoryType, BeforeValidator(_memory_type)]
    source: MemorySource = Field(alias="memory_source")
    is_update: Literal["True", "False"]
    original_memories: tuple[str, ...] = Field(strict=False)
    importance: NonNegativeFloat


class _RawTurn(_Raw):
    role: Literal["user", "assistant"]
    content: str
    timestamp: Date | None = None


class _RawEvidence(_Raw):
    memory_content: str


class _RawQuestion(_Raw):
    question: str = Field(min_length=1)
    gold: str = Field(alias="answer")
    evidence: list[_RawEvidence]
    category: Literal[QUESTION_TYPES] = Field(alias="question_type")  # type: ignore[valid-type]


class _RawSession(_Raw):
    start_time: Date
    dialogue: list[_RawTurn] = Field(min_length=1)
    memory_points: list[_RawPoint] = []
    questions: list[_RawQuestion] = []
    is_generated_qa_session: bool = False


_NAME = re.compile(r"Name:\s*(\S.*?)\s*; Gender:")


def _name(info: Any) -> Any:
    """The name in a text such as ``Name: Ana Lee; Gender: Female; ...``."""
    found = _NAME.search(info) if isinstance(info, str) else None
    if found is None:
        raise ValueError("names no one; expected 'Name: ...; Gender: ...'")
    return found[1]


class _RawUser(_Raw):
    uuid: FolderName
    name: Annotated[str, BeforeValidator(_name)] = Field(alias="persona_info")
    sessions: list[_RawSession] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """A fact that a memory should hold after its session, or, if it is an interference, should not."""

    record: PointRecord  # Before anything was searched for; its key is for example `<uuid>/S4/p7`
    originals: tuple[str, ...]  # The facts that it replaces

    @property
    def searched(self) -> bool:
        """Whether the memory is searched for it after its session."""
        return self.record.is_update and bool(self.originals)


@dataclass(frozen=True, slots=True)
class HalumemSession:
    """One sitting with what is asked and expected after it."""

    number: int  # Position among the sessions of the user, from 0
    dialogue: DialogueSession  # As a system takes it in
    points: tuple[MemoryPoint, ...]  # Expected and interfering facts
    # Asked right after it; the evidence of each is the texts of memory points, none for questions that cannot be answered
    questions: tuple[QuestionRecord, ...]
    generated: bool  # Whether it is a distraction of the long version, ingested but not evaluated


@dataclass(frozen=True, slots=True)
class User:
    """One person with all sessions, in order."""

    id: str
    name: str
    sessions: tuple[HalumemSession, ...]

    @property
    def questions(self) -> tuple[QuestionRecord, ...]:
        """All questions in the order in which they are asked."""
        return tuple(question for session in self.sessions for question in session.questions)

    def asked(self, keys: Collection[str]) -> User:
        """The user with only these questions, and the sessions up to the last of them; as it is if all are asked."""
        sessions = [
            replace(session, questions=tuple(question for question in session.questions if question.key in keys))
            for session in self.sessions
        ]
        last = max((session.number for session in sessions if session.questions), default=-1)
        whole = len([key for session in sessions for key in session.questions]) == len(self.questions)
        return self if whole else replace(self, sessions=tuple(sessions[: last + 1]))


@dataclass(frozen=True, slots=True)
class HalumemData:
    """The usable part of a file."""

    users: tuple[User, ...]  # In file order
    problems: tuple[str, ...]  # One sentence for each line that could not be used
    sha256: str  # Of the file

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind there are."""
        sessions = [session for user in self.users for session in user.sessions]
        return {
            "users": len(self.users),
            "sessions": len(sessions),
            "messages": sum(len(session.dialogue.turns) for session in sessions),
            "memory_points": sum(len(session.points) for session in sessions),
            "questions": sum(len(session.questions) for session in sessions),
        }

    @property
    def version(self) -> str:
        """``HaluMem-Medium`` or ``HaluMem-Long``, with ``(part)`` if users, sessions, points or questions are missing.

        Generated sessions occur in the long version only.
        """
        generated = any(session.generated for user in self.users for session in user.sessions)
        name = "HaluMem-Long" if generated else "HaluMem-Medium"
        return name if self.counts.items() >= _COMPLETE[name].items() else f"{name} (part)"

    @property
    def published(self) -> bool | None:
        """False if something is missing; None if all is there, as no sum of the published files is known."""
        return False if self.version.endswith("(part)") else None


_COMPLETE = {
    "HaluMem-Medium": {"users": 20, "sessions": 1387, "memory_points": 14_948, "questions": 3467},
    "HaluMem-Long": {"users": 20, "sessions": 2417, "memory_points": 14_948, "questions": 3467},
}


def load_halumem(path: Path) -> HalumemData:
    """Read a file of the benchmark, or some lines of one: the users, and what is wrong with the lines that are left out.

    Raises:
        DeltaMemError: If the file cannot be read or holds no usable user.
    """
    users: dict[str, User] = {}
    problems: list[str] = []
    with reading(path):
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip():
                continue
            with noted(problems, f"{path}, line {number}"):
                raw = _RawUser.model_validate_json(line)
                if raw.uuid in users:
                    raise DeltaMemError(f"the user {raw.uuid} occurs twice")
                users[raw.uuid] = User(raw.uuid, raw.name, tuple(_sessions(raw)))
    if not users:
        raise nothing_usable(f"{path} holds no user of HaluMem, whose files have one JSON object a line", problems)
    return HalumemData(tuple(users.values()), tuple(problems), file_sha256(path))


def _sessions(raw: _RawUser) -> Iterable[HalumemSession]:
    for number, session in enumerate(raw.sessions):
        id = f"S{number + 1}"
        key = f"{raw.uuid}/{id}"
        turns = tuple(
            DialogueTurn(f"{id}:{position}", turn.role, "", turn.content, turn.timestamp)
            for position, turn in enumerate(session.dialogue, start=1)
        )
        points = tuple(
            PointRecord(
                key=f"{key}/p{position}",
                kind="integrity",
                user=raw.uuid,
                session=number,
                is_update=point.is_update != "False",
                **point.model_dump(exclude={"is_update", "original_memories"}),
            )
            for position, point in enumerate(session.memory_points, start=1)
        )
        originals = (point.original_memories for point in session.memory_points)
        questions = tuple(
            QuestionRecord(
                key=f"{key}/q{position}",
                group=raw.uuid,
                session=number,
                evidence=tuple(evidence.memory_content for evidence in question.evidence),
                **question.model_dump(exclude={"evidence"}),
            )
            for position, question in enumerate(session.questions, start=1)
        )
        dialogue = DialogueSession(id, session.start_time, turns)
        pairs = tuple(map(MemoryPoint, points, originals))
        yield HalumemSession(number, dialogue, pairs, questions, session.is_generated_qa_session)


def sampled(data: HalumemData, config: HalumemConfig) -> tuple[dict[str, User], str | None]:
    """By id the users of whom something is asked, with what is asked and the sessions that takes; how they were drawn."""
    questions = [(user.id, question) for user in data.users for question in user.questions]
    sample = draw(questions, [user.id for user in data.users], config, len(questions), "users")
    keys = {question.key for question in sample.questions}
    users = {user.id: user.asked(keys) for user in data.users if user.id in sample.groups}
    return {name: user for name, user in users.items() if user.sessions}, sample.note


class LinkedPoints:
    """The memory points of one user by the turns that they come from, which `finder` finds in passages."""

    def __init__(self, user: User) -> None:
        self._user = user
        self.finder = EvidenceFinder.of((session.dialogue for session in user.sessions), [user.name])
        self._sources = lru_cache(maxsize=None)(self._make_finder)
        self.turns = lru_cache(maxsize=None)(self._turns)
        self._homes: dict[str, list[tuple[HalumemSession, MemoryPoint]]] = defaultdict(list)
        for session in user.sessions:
            for point in session.points:
                self._homes[point.record.text].append((session, point))

    def _turns(self, text: str, session: int) -> tuple[str, ...]:
        """Ids of the turns that a memory point of the first sessions comes from; none if no session or no turn says it."""
        found: list[str] = []
        for home, point in self._homes.get(text, ()):
            if home.number <= session:
                # Of an update the words that its session is the first to say.
                numbers = self._sources(home.number).turns(text, " ".join(point.originals))
                found += (home.dialogue.turns[number - 1].id for number in numbers)
        return tuple(found)

    def passage(self, text: str, session: HalumemSession) -> Passage:
        """A memory point as a passage of the session that says it last, as known after a session."""
        homes = [home for home, _ in self._homes.get(text, ()) if home.number <= session.number]
        time = max((home.dialogue.time for home in homes), default=session.dialogue.time)
        return Passage(text, time, self.turns(text, session.number))

    def _make_finder(self, number: int) -> SourceFinder:
        dialogue = self._user.sessions[number].dialogue
        turns = [Turn("user" if turn.role == "user" else "assistant", turn.text) for turn in dialogue.turns]
        return SourceFinder(turns, self._user.name)


def gold_passages(user: User) -> dict[str, list[Passage]]:
    """The memory points that questions rest on, and the new texts of updated points, as passages by what is searched for.

    A question that is asked twice has the evidence of both.
    """
    linked = LinkedPoints(user)
    found: dict[str, dict[str, Passage]] = defaultdict(dict)
    for session in user.sessions:
        for question in session.questions:
            for text in question.evidence:
                found[question.question][text] = linked.passage(text, session)
        for text in (point.record.text for point in session.points if point.searched):
            found[text][text] = linked.passage(text, session)
    return {sought: list(passages.values()) for sought, passages in found.items()}
