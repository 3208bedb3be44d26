"""BEAM's parquet files: chats of dated batches, and questions with rubrics and the messages that they rest on."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, PositiveInt

from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256
from eval.config import RecallConfig
from eval.data import BEAM, Groups, draw, noted, nothing_usable, reading, require
from eval.records import QuestionRecord
from eval.systems.base import DialogueSession, DialogueTurn, FolderName

Size = Literal["100k", "500k", "1m", "10m"]

ABSTENTION = "abstention"
EVENT_ORDERING = "event_ordering"

ABILITIES = (
    "information_extraction",
    "multi_session_reasoning",
    "knowledge_update",
    "temporal_reasoning",
    ABSTENTION,
    "contradiction_resolution",
    EVENT_ORDERING,
    "instruction_following",
    "preference_following",
    "summarization",
)
"""Of each chat two questions ask for each."""

BATCH_TURNS = 2
"""Messages an add call: what a user said and the reply to it."""

_ANSWERS = ("answer", "ideal_answer", "ideal_response", "ideal_summary", "expected_compliance")
"""Keys of a question that hold its reference answer, which no score uses; one of them is there."""


class BeamConfig(RecallConfig):
    """All keys of the command; ``configs/beam.yaml`` says what they mean."""

    size: Size
    k: PositiveInt
    conversations: Groups


class _ChatMessage(BaseModel):
    id: int
    role: Literal["user", "assistant"]
    content: str
    time_anchor: str | None = None
    question_type: str | None = None


class _ProbingQuestion(BaseModel, extra="allow"):
    ability: Literal[ABILITIES]  # type: ignore[valid-type]
    question: str
    rubric: Annotated[list[str], Field(min_length=1)]
    source_chat_ids: Any = None


def _batches(raw: Any) -> list[Any]:
    """The batches of a chat, each a list of messages.

    The sizes up to 1M have just these. A chat of 10M is a list of plans, each under a key of its own (``plan-1``; the keys
    of the other plans are null), and its batches have their messages under ``turns``, one list for each main question.
    """
    batches: list[Any] = []
    for one in raw or ():
        if not isinstance(one, dict):
            batches.append(one)
        elif "turns" in one:
            messages = [message for turn in one["turns"] or () for message in turn]
            dated = any(message.get("time_anchor") for message in messages)
            batches.append(
                messages if dated else [message | {"time_anchor": one.get("time_anchor")} for message in messages]
            )
        else:
            plans = [plan for plan in one.values() if plan is not None]
            batches += [batch for plan in plans for batch in _batches(plan)]
    return batches


def _probes(text: Any) -> Any:
    """The questions by ability, written as a Python literal; a single one may stand without a list."""
    try:
        found = ast.literal_eval(text)
        return {ability: asked if isinstance(asked, list) else [asked] for ability, asked in found.items()}
    except (AttributeError, SyntaxError, TypeError) as error:
        raise ValueError(f"no Python literal of a dictionary: {error}") from error


class _Row(BaseModel):
    """A conversation; the other columns tell how it was written."""

    conversation_id: Annotated[FolderName, BeforeValidator(str)]
    chat: Annotated[list[list[_ChatMessage]], BeforeValidator(_batches)]
    probing_questions: Annotated[dict[str, list[Any]], BeforeValidator(_probes)]


@dataclass(frozen=True, slots=True)
class BeamQuestion:
    """A question of a chat."""

    record: QuestionRecord  # Before anything was searched for; its category is the ability
    rubric: tuple[str, ...]  # What an answer must show; of event ordering the events in their order


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat with its questions."""

    id: str
    sessions: tuple[DialogueSession, ...]
    questions: tuple[BeamQuestion, ...]


@dataclass(frozen=True)
class BeamData:
    """What was read."""

    size: str
    hashes: dict[str, str]  # sha256 by name of the file
    chats: tuple[Chat, ...]
    asked: tuple[Chat, ...]  # Those that are asked about, with what is asked
    sample: str | None  # How the questions were drawn; None if they are all
    problems: tuple[str, ...]  # What could not be read, one sentence each

    def description(self) -> dict[str, Any]:
        """What the summary says about the data."""
        questions = [question.record for chat in self.chats for question in chat.questions]
        return {
            "files": list(self.hashes),
            "sha256": self.hashes,
            "published": set(self.hashes.values()) == {dataset.sha256 for dataset in BEAM[self.size]},
            "sample": self.sample,
            "chats": len(self.chats),
            "questions": len(questions),
            "sessions": sum(len(chat.sessions) for chat in self.chats),
            "messages": sum(len(session.turns) for chat in self.chats for session in chat.sessions),
            "unreadable": len(self.problems),
            "questions_without_evidence": sum(not (one.evidence or one.category == ABSTENTION) for one in questions),
            "by_ability": dict(Counter(question.category for question in questions)),
        }


def read_data(config: BeamConfig) -> BeamData:
    """Read the chats of a size and choose what is asked."""
    if config.data is None:
        paths = [require(dataset) for dataset in BEAM[config.size]]
    else:
        paths = sorted(config.data.glob("*.parquet")) if config.data.is_dir() else [config.data]
        if not paths:
            raise DeltaMemError(f"{config.data}: the folder holds no parquet file")
    problems: list[str] = []
    chats: dict[str, Chat] = {}
    for path in paths:
        for row in _rows(path):
            place = f"{path.name}: conversation {row['conversation_id']}"
            with noted(problems, place):
                chat = _chat(_Row.model_validate(row), place, problems)
                if chat.id in chats:
                    raise DeltaMemError("occurs twice")
                chats[chat.id] = chat
    every = [(chat.id, question.record) for chat in chats.values() for question in chat.questions]
    sample = draw(every, list(chats), config, len(every), "conversations")
    if not sample.questions:
        raise nothing_usable(f"{paths[0]}: nothing can be asked", problems)
    keys = {record.key for record in sample.questions}
    asked = [
        replace(chat, questions=tuple(one for one in chat.questions if one.record.key in keys)) for chat in chats.values()
    ]
    return BeamData(
        size=config.size,
        hashes={path.name: file_sha256(path) for path in paths},
        chats=tuple(chats.values()),
        asked=tuple(chat for chat in asked if chat.questions),
        sample=sample.note,
        problems=tuple(problems),
    )


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file one by one, with the columns that are read."""
    columns = list(_Row.model_fields)
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise DeltaMemError("BEAM's files need pyarrow; install it with: pip install 'deltamem[eval]'") from error
    try:
        with reading(path), parquet.ParquetFile(path) as file:
            if lacking := set(columns) - set(file.schema_arrow.names):
                raise DeltaMemError(f"{path} is not one of BEAM's files: it has no column {sorted(lacking)[0]}")
            for batch in file.iter_batches(batch_size=1, columns=columns):
                yield from batch.to_pylist()
    except ArrowException as error:
        raise DeltaMemError(f"{path} is not a parquet file: {error}") from error


def _chat(row: _Row, place: str, problems: list[str]) -> Chat:
    if not any(row.chat):
        raise DeltaMemError("it has no messages")
    turns = _turns(row.chat)
    sessions = tuple(_sessions(row.chat, iter(turns)))
    named: dict[int, list[DialogueTurn]] = {}
    for number, turn in turns:
        named.setdefault(number, []).append(turn)
    questions = []
    for ability, asked in row.probing_questions.items():
        for number, value in enumerate(asked, start=1):
            with noted(problems, f"{place}: question {number} of {ability}"):
                given = value | {"ability": ability} if isinstance(value, dict) else value
                questions.append(_question(row.conversation_id, number, _ProbingQuestion.model_validate(given), named))
    return Chat(row.conversation_id, sessions, tuple(questions))


def _turns(batches: Sequence[Sequence[_ChatMessage]]) -> list[tuple[int, DialogueTurn]]:
    """All messages in order, by the numbers that questions name them by.

    Where the numbers begin again with 0, as in the plans of a chat of 10M, they go on instead, as in the official script.
    """
    turns: list[tuple[int, DialogueTurn]] = []
    shift = 0
    seen: Counter[int] = Counter()
    for message in (message for batch in batches for message in batch):
        if message.id == 0 and turns:
            shift = turns[-1][0] + 1
        number = message.id + shift
        seen[number] += 1
        name = str(number) if seen[number] == 1 else f"{number}#{seen[number]}"
        turns.append((number, DialogueTurn(name, message.role, "", message.content)))
    return turns


def _sessions(
    batches: Sequence[Sequence[_ChatMessage]], turns: Iterator[tuple[int, DialogueTurn]]
) -> Iterator[DialogueSession]:
    """A session for each main question of the user with all that follows from it, on the day of its batch.

    A batch without a day is of that before it. The sessions of a day are a second apart, so that they keep their order.
    """
    days = [next((day for message in batch if (day := _day(message.time_anchor))), None) for batch in batches]
    day = next((day for day in days if day is not None), None)
    if day is None:
        raise DeltaMemError("it has no dates")
    for number, (batch, own) in enumerate(zip(batches, days, strict=True), start=1):
        day = own or day
        groups: list[list[DialogueTurn]] = []
        for message, (_, turn) in zip(batch, turns, strict=False):
            if not groups or message.question_type == "main_question":
                groups.append([])
            groups[-1].append(turn)
        for position, group in enumerate(groups):
            yield DialogueSession(f"{number}-{position + 1}", day + timedelta(seconds=position), tuple(group))


def _day(anchor: str | None) -> datetime | None:
    try:
        return datetime.strptime(anchor or "", "%B-%d-%Y")
    except ValueError:
        return None


def _leaves(sources: Any) -> list[Any]:
    """The ids that are named, in order; some abilities group them by what they are evidence of."""
    if isinstance(sources, dict | list):
        parts = sources.values() if isinstance(sources, dict) else sources
        return [leaf for part in parts for leaf in _leaves(part)]
    return [] if sources is None else [sources]


def _question(chat: str, number: int, probe: _ProbingQuestion, named: dict[int, list[DialogueTurn]]) -> BeamQuestion:
    evidence: dict[str, None] = {}
    notes = []
    for source in _leaves(probe.source_chat_ids):
        turns = named.get(source, []) if isinstance(source, int) else []
        if len(turns) == 1:
            evidence[turns[0].id] = None
        else:
            notes.append(f"evidence {source!r} names {'several messages' if turns else 'no message'}")
    if not evidence and probe.ability != ABSTENTION:
        notes.append("no usable evidence")
    gold = next((value for key in _ANSWERS if (value := (probe.model_extra or {}).get(key))), None)
    record = QuestionRecord(
        key=f"{chat}/{probe.ability}/{number}",
        group=chat,
        category=probe.ability,
        question=probe.question,
        gold=None if gold is None else str(gold),
        evidence=tuple(evidence),
        notes=tuple(notes),
    )
    return BeamQuestion(record, tuple(probe.rubric))
