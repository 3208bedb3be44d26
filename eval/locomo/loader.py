"""Reading ``locomo10.json`` into typed objects; what is irregular in the file is repaired here and counted, nowhere else."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from deltamem.errors import DeltaMemError
from eval.data import LOCOMO

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
"""Category ids and their names, settled by the counts 282 / 321 / 96 / 841 / 446 that the benchmark's own table prints."""

DATE_FORMAT = "%I:%M %p on %d %B, %Y"


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance.

    Attributes:
        id: ``D<session>:<number>``, unique within the conversation.
        speaker: Name of the speaker.
        text: What was said.
        caption: Machine caption of the picture that was sent along.
        has_url: Whether the address of the picture is there; 316 captions of the released file have lost theirs.
    """

    id: str
    speaker: str
    text: str
    caption: str | None
    has_url: bool = False


@dataclass(frozen=True, slots=True)
class DatedSession:
    """One sitting; turns have no times of their own."""

    number: int
    time: datetime
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its gold answer.

    Attributes:
        index: Position among the questions of the conversation. It is the key: some questions occur twice.
        category: 1 to 5, see `CATEGORIES`.
        text: The question.
        answer: Gold answer as text; None for most of category 5, which has none.
        adversarial_answer: The wrong answer that category 5 suggests.
        evidence: Ids of the turns that hold the answer; each exists in the conversation and is named once.
        repaired: Evidence strings that are not an id but from which ids could be read.
        unusable: Evidence strings that name no turn of the conversation.
    """

    index: int
    category: int
    text: str
    answer: str | None
    adversarial_answer: str | None
    evidence: tuple[str, ...]
    repaired: tuple[str, ...]
    unusable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """All sessions of one pair of people, and the questions about them."""

    id: str
    speakers: tuple[str, str]
    sessions: tuple[DatedSession, ...]
    questions: tuple[Question, ...]

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns in order."""
        return tuple(turn for session in self.sessions for turn in session.turns)


class _TurnRecord(BaseModel):
    speaker: str
    dia_id: str
    text: str
    blip_caption: str | None = None
    img_url: list[str] = []


class _QuestionRecord(BaseModel):
    question: str
    answer: str | int | None = None
    adversarial_answer: str | None = None
    evidence: list[str]
    category: int = Field(ge=1, le=5)


class _ConversationRecord(BaseModel):
    sample_id: str
    conversation: dict[str, Any]
    qa: list[_QuestionRecord]


_RECORDS = TypeAdapter(list[_ConversationRecord])
_TURNS = TypeAdapter(list[_TurnRecord])
_SESSION_KEY = re.compile(r"session_(\d+)")
_EVIDENCE_ID = re.compile(r"D:?(\d+):(\d+)")


def load_locomo(path: Path) -> list[Conversation]:
    """Read the benchmark.

    Args:
        path: ``locomo10.json``.

    Returns:
        The conversations in file order.

    Raises:
        DeltaMemError: If the file cannot be read or has another shape; names the file and the place.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DeltaMemError(f"{path}: {error.strerror}") from error
    if content.startswith(b"PK"):
        raise DeltaMemError(f"{path}: an archive; expected the single file locomo10.json, which replaced it")
    try:
        records = _RECORDS.validate_json(content)
    except ValidationError as error:
        raise DeltaMemError(f"{path} is not LoCoMo's locomo10.json: {_first(error)}") from error
    if not records:
        raise DeltaMemError(f"{path}: holds no conversation")
    conversations = []
    for record in records:
        try:
            conversations.append(_conversation(record))
        except DeltaMemError as error:
            raise DeltaMemError(f"{path}: {record.sample_id}: {error}") from error
    if len({conversation.id for conversation in conversations}) != len(conversations):
        raise DeltaMemError(f"{path}: two conversations have the same sample_id")
    return conversations


def version_name(conversations: Sequence[Conversation], sha256: str) -> str:
    """Name the version of the benchmark, by its bytes.

    Args:
        conversations: What the file holds.
        sha256: Of the file.
    """
    count = sum(len(conversation.questions) for conversation in conversations)
    if sha256 == LOCOMO.sha256:
        return f"LoCoMo-{len(conversations)} ({count:,} questions)"
    return f"unknown version ({len(conversations)} conversations, {count:,} questions)"


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def _conversation(record: _ConversationRecord) -> Conversation:
    raw = record.conversation
    # There are dates without a session, so the sessions lead and the dates are looked up.
    numbers = sorted(int(match[1]) for key in raw if (match := _SESSION_KEY.fullmatch(key)))
    sessions = tuple(_session(raw, number) for number in numbers)
    ids = [turn.id for session in sessions for turn in session.turns]
    if len(set(ids)) != len(ids):
        raise DeltaMemError("two turns have the same dia_id")
    known = frozenset(ids)
    speakers = _text(raw, "speaker_a"), _text(raw, "speaker_b")
    if speakers[0] == speakers[1]:
        raise DeltaMemError(f"both speakers are called {speakers[0]!r}")
    for name in (record.sample_id, *speakers):
        if not name.strip(".") or set(name) & set("/\\\0"):
            raise DeltaMemError(f"{name!r} cannot be part of the name of a folder")
    return Conversation(
        id=record.sample_id,
        speakers=speakers,
        sessions=sessions,
        questions=tuple(_question(index, question, known) for index, question in enumerate(record.qa)),
    )


def _text(raw: dict[str, Any], key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str):
        raise DeltaMemError(f"conversation.{key} is missing or not a text")
    return value


def _session(raw: dict[str, Any], number: int) -> DatedSession:
    key = f"session_{number}"
    date = _text(raw, f"{key}_date_time")
    try:
        time = datetime.strptime(date, DATE_FORMAT)
    except ValueError as error:
        raise DeltaMemError(f"{key}_date_time {date!r} is not like '1:56 pm on 8 May, 2023'") from error
    try:
        turns = _TURNS.validate_python(raw[key])
    except ValidationError as error:
        raise DeltaMemError(f"{key}: {_first(error)}") from error
    return DatedSession(
        number, time, tuple(Turn(t.dia_id, t.speaker, t.text, t.blip_caption, bool(t.img_url)) for t in turns)
    )


def _question(index: int, record: _QuestionRecord, known: Collection[str]) -> Question:
    evidence: list[str] = []
    repaired: list[str] = []
    unusable: list[str] = []
    for text in record.evidence:
        if text in known:
            evidence.append(text)
            continue
        # Seen in the file: several ids in one string, a colon after the D, a number with a leading zero.
        read = [f"D{int(session)}:{int(turn)}" for session, turn in _EVIDENCE_ID.findall(text)]
        found = [turn_id for turn_id in read if turn_id in known]
        evidence += found
        (repaired if found else unusable).append(text)
    return Question(
        index=index,
        category=record.category,
        text=record.question,
        answer=None if record.answer is None else str(record.answer),
        adversarial_answer=record.adversarial_answer,
        evidence=tuple(dict.fromkeys(evidence)),
        repaired=tuple(repaired),
        unusable=tuple(unusable),
    )
