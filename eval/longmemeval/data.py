"""LongMemEval's file: questions, each with its haystack of dated sessions, which stay in the file until they are read."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, PositiveInt, model_validator

from deltamem.errors import DeltaMemError
from deltamem.text_files import decoded
from eval.config import RecallConfig
from eval.data import LONGMEMEVAL, LONGMEMEVAL_RECORD, draw, find, missing, noted, nothing_usable, reading
from eval.protocols import DEFAULT, Protocol
from eval.records import QuestionRecord
from eval.systems.base import DialogueSession, DialogueTurn, FolderName

Variant = Literal["s", "m", "oracle"]
TYPES = {
    "single-session-user": 70,
    "single-session-assistant": 56,
    "single-session-preference": 30,
    "multi-session": 133,
    "knowledge-update": 78,
    "temporal-reasoning": 133,
}
"""Types of questions and how many each has in the published files, 30 abstention questions among them."""

BATCH_TURNS = 2
"""Messages an add call: what a user said and the reply to it."""


STITCH = "stitch"
"""The protocol of the STITCH paper's columns (its Table 1): its budget, its samples, one judge for all questions."""
_SAMPLES: dict[str, int] = {"oracle": 50, "s": 50, "m": 15}

_DEFAULT = {"k": 20, "answer.context_tokens": 200_000, "answer.cut": "passage", "judge.extra_body": {}}
PROTOCOLS = {
    DEFAULT: Protocol(_DEFAULT),
    STITCH: Protocol(
        {
            "k": 40,
            "answer.context_tokens": 4096,
            "answer.cut": "sentence",
            "answer.tokenizer": "auto",
            "judge.extra_body": {"top_p": 0.9},
        },
        (
            "the answerer is also told the date of the question",
            "which questions the paper drew is not known: the sample has the shares of types of the whole",
            "every system has the same embedder ({embedder.name}), not the one that it was published with",
        ),
        answered_by="gpt-5-mini",
        judged_by="gpt-4.1-mini",
    ),
}


class LongMemEvalConfig(RecallConfig):
    """All keys of the command; ``configs/longmemeval.yaml`` says what they mean."""

    protocols: ClassVar[Mapping[str, Protocol]] = PROTOCOLS

    protocol: Literal["default", "stitch"]  # type: ignore[assignment]
    version: Variant
    k: PositiveInt

    @model_validator(mode="before")
    @classmethod
    def _sample_of_protocol(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("protocol") == STITCH and values.get("limit") is None:
            values = values | {"limit": _SAMPLES.get(str(values.get("version")))}
        return values

    def departures(self) -> list[str]:
        """Where the run departs from the published protocol that it names, whose sample goes by the version."""
        told = super().departures()
        if self.protocol == STITCH and self.limit != _SAMPLES[self.version]:
            told.insert(0, f"limit={self.limit}, where the protocol has {_SAMPLES[self.version]}")
        return told


class _Turn(BaseModel):
    role: Literal["user", "assistant"]
    content: str
    has_answer: bool | None = None


class _QuestionRecord(BaseModel):
    question_id: FolderName
    question_type: Literal[tuple(TYPES)]  # type: ignore[valid-type]
    question: str
    answer: str | int | float
    question_date: str
    haystack_session_ids: list[str]
    haystack_dates: list[str]
    haystack_sessions: list[list[_Turn]]
    answer_session_ids: list[str]


Haystack = Callable[[], list[list[dict[str, Any]]]]
"""Reads the messages of all sessions of a question."""


def read_haystack(path: Path, start: int, length: int) -> list[list[dict[str, Any]]]:
    """That of the record at a place in a file."""
    with path.open("rb") as file:
        file.seek(start)
        sessions: list[list[dict[str, Any]]] = json.loads(file.read(length))["haystack_sessions"]
    return sessions


class StoredSession(DialogueSession):
    """A session that stays in the file until its turns are asked for: LongMemEval-M has 2.7 GB of them."""

    __slots__ = ("_haystack", "_number")
    _haystack: Haystack
    _number: int  # From 0

    def __init__(self, id: str, time: datetime, haystack: Haystack, number: int) -> None:
        for name, value in (("id", id), ("time", time), ("_haystack", haystack), ("_number", number)):
            object.__setattr__(self, name, value)

    @property
    def turns(self) -> tuple[DialogueTurn, ...]:
        """What was said, read anew each time."""
        return tuple(
            DialogueTurn(turn_id(self.id, number), turn["role"], "", turn["content"])
            for number, turn in enumerate(self._haystack()[self._number], start=1)
        )


def turn_id(session: str, number: int) -> str:
    """Id of a turn by its number from 1 in the session, as officially."""
    return f"{session}_{number}"


def session_of(turn: str) -> str:
    """The session of a turn by its id."""
    return turn.rpartition("_")[0]


def is_abstention(question: str) -> bool:
    """Whether a question has no answer, by its id, which is the official rule."""
    return "_abs" in question


@dataclass(frozen=True, slots=True)
class LongMemEvalQuestion:
    """A question with its haystack.

    Its gold answer is a rubric if it is about preferences, and says why there is no answer if it is one of abstention. Its
    evidence is what counts for recall: turns of the user, as officially, and the assistant's where only it has the answer.
    Abstention questions have none, as officially.
    """

    record: QuestionRecord  # Before anything was searched for; its time is when it is asked
    sessions: tuple[DialogueSession, ...]  # By date
    answers: tuple[str, ...]  # Ids of all turns that hold the answer, in order


@dataclass(frozen=True)
class LongMemEvalData:
    """What was read."""

    file: str
    sha256: str
    variant: str  # Which published file it is; empty if none
    questions: tuple[LongMemEvalQuestion, ...]  # All that can be asked, in file order
    asked: tuple[LongMemEvalQuestion, ...]  # Those that are
    sample: str | None  # How these were drawn; None if they are all
    problems: tuple[str, ...]  # Records that cannot be asked, one sentence each
    turns: int

    def description(self) -> dict[str, Any]:
        """What the summary says about the data."""
        records = [question.record for question in self.questions]
        counts = Counter(record.category for record in records)
        return {
            "file": self.file,
            "sha256": self.sha256,
            "published": bool(self.variant),
            "sample": self.sample,
            "questions": len(records),
            "abstention_questions": sum(is_abstention(record.key) for record in records),
            "sessions": sum(len(question.sessions) for question in self.questions),
            "turns": self.turns,
            "unreadable_records": len(self.problems),
            "questions_without_evidence": sum(not (one.evidence or is_abstention(one.key)) for one in records),
            "by_type": {name: counts[name] for name in TYPES if counts[name]},
        }


def read_data(config: LongMemEvalConfig) -> LongMemEvalData:
    """Read the questions and where their haystacks lie, and choose those that are asked."""
    dataset = LONGMEMEVAL[config.version]
    path = config.data or find(dataset) or (find(LONGMEMEVAL_RECORD) if config.version == "s" else None)
    if path is None:
        raise DeltaMemError(missing(dataset))
    read = lru_cache(maxsize=config.stores_at_once)(partial(read_haystack, path))
    questions: dict[str, LongMemEvalQuestion] = {}
    problems: list[str] = []
    turns = 0
    digest = hashlib.sha256()
    for number, (value, place) in enumerate(_records(path, digest), start=1):
        with noted(problems, f"{path.name}: record {number}"):
            record = _QuestionRecord.model_validate(value)
            question = _question(record, partial(read, *place))
            if record.question_id in questions:
                raise DeltaMemError(f"question_id {record.question_id} occurs twice")
            questions[record.question_id] = question
            turns += sum(map(len, record.haystack_sessions))
    if not questions:
        raise nothing_usable(f"{path}: no record is a question of LongMemEval", problems)
    every = tuple(questions.values())
    sample = draw([(key, one.record) for key, one in questions.items()], list(questions), config, len(every))
    asked = tuple(questions[record.key] for record in sample.questions)
    sha256 = digest.hexdigest()
    variant = next((name for name, published in LONGMEMEVAL.items() if published.sha256 == sha256), "")
    return LongMemEvalData(path.name, sha256, variant, every, asked, sample.note, tuple(problems), turns)


_DATE = re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2}) *(?:\(\w+\))? *(\d{1,2}):(\d{2})")


def _time(date: str) -> datetime:
    match = _DATE.fullmatch(date.strip())
    try:
        return datetime(*map(int, match.groups()))  # type: ignore[union-attr, arg-type]
    except (AttributeError, ValueError) as error:
        raise DeltaMemError(f"the date {date!r} is not like '2023/05/30 (Tue) 23:40'") from error


def _question(record: _QuestionRecord, haystack: Haystack) -> LongMemEvalQuestion:
    counts = len(record.haystack_session_ids), len(record.haystack_dates), len(record.haystack_sessions)
    if len(set(counts)) != 1:
        raise DeltaMemError("{} session ids, {} dates and {} sessions in its haystack".format(*counts))
    times = [_time(date) for date in record.haystack_dates]
    seen: Counter[str] = Counter()
    names = []
    for name in record.haystack_session_ids:  # some may occur again
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    order = [number for number in sorted(range(len(names)), key=times.__getitem__) if record.haystack_sessions[number]]
    answers = [
        (turn_id(names[number], position), turn.role)
        for number in order
        for position, turn in enumerate(record.haystack_sessions[number], start=1)
        if turn.has_answer
    ]
    abstention = is_abstention(record.question_id)
    said = [name for name, role in answers if role == "user"] or [name for name, _ in answers]
    return LongMemEvalQuestion(
        QuestionRecord(
            key=record.question_id,
            group=record.question_id,
            category=record.question_type,
            question=record.question,
            time=_time(record.question_date),
            gold=str(record.answer),
            evidence=() if abstention else tuple(said),
            notes=() if said or abstention else ("no turn is marked as holding the answer",),
        ),
        tuple(StoredSession(names[number], times[number], haystack, number) for number in order),
        tuple(name for name, _ in answers),
    )


_CHUNK = 1 << 25
_BETWEEN = re.compile(r"[\s,]*")
_LONGEST_TOKEN = 16


def _records(path: Path, digest: Any) -> Iterator[tuple[Any, tuple[int, int]]]:
    """The elements of a file's JSON array one by one, each with its place (first byte, length); `digest` gets all bytes."""
    utf8 = codecs.getincrementaldecoder("utf-8")()
    decoder = json.JSONDecoder()
    text, offset, number = "", 0, 0  # `text` is what is left of the chunks so far, and begins at `offset`
    try:
        with reading(path), path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                text += utf8.decode(chunk)
                position = 0
                if not number and not offset:
                    decoded(chunk.partition(b'"')[0], str(path))  # raises
                    if not text.lstrip("\ufeff \t\r\n").startswith("["):
                        raise DeltaMemError(f"{path} is not one of LongMemEval's files: it does not hold a JSON array")
                    position = text.index("[") + 1
                    offset = len(text[:position].encode())
                while True:
                    start = _BETWEEN.match(text, position).end()  # type: ignore[union-attr]
                    if text[start : start + 1] in ("", "]"):
                        break
                    try:
                        value, end = decoder.raw_decode(text, start)
                    except json.JSONDecodeError as error:
                        if not (error.msg.startswith("Unterminated") or error.pos > len(text) - _LONGEST_TOKEN):
                            raise DeltaMemError(f"{path}: record {number + 1} is not valid JSON: {error.msg}") from error
                        break  # the rest is in the next chunk
                    length = len(text[start:end].encode())
                    offset += len(text[position:start].encode())
                    yield value, (offset, length)
                    offset += length
                    position, number = end, number + 1
                text = text[position:]
            utf8.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DeltaMemError(f"{path}: not UTF-8 text; save it as UTF-8") from error
    if text.strip(", \t\r\n") != "]":
        raise DeltaMemError(f"{path} ends within record {number + 1}; fetch it again")
