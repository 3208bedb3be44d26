"""LoCoMo's file: conversations, sessions, questions, and the audit of its gold answers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from deltamem.config import first_error
from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256
from deltamem.text_files import decoded, read_text
from eval.config import JudgedConfig
from eval.data import LOCOMO, LOCOMO_AUDIT, Groups, draw, find, missing, reading, require
from eval.protocols import LOCOMO as LOCOMO_PROTOCOLS
from eval.protocols import Protocol
from eval.records import QuestionRecord
from eval.systems.base import DialogueSession, DialogueTurn, FolderName, StoreKey

Captions = Literal["all", "with_url", "none"]
Gold = Literal["original", "audited"]
JudgeName = Literal["lenient", "strict"]


class LocomoConfig(JudgedConfig[JudgeName]):
    """All keys of the command; ``configs/locomo.yaml`` says what they mean."""

    protocols: ClassVar[Mapping[str, Protocol]] = LOCOMO_PROTOCOLS
    most_stores: ClassVar[int] = 2
    decisive: ClassVar[frozenset[str]] = frozenset({"k", "captions", "gold"})

    protocol: Literal["default", "paper", "mem0", "memos"]  # type: ignore[assignment]
    k: PositiveInt
    categories: Annotated[list[Annotated[int, Field(ge=1, le=5)]], Field(min_length=1)]
    captions: Captions
    gold: Gold
    audit: Path | None
    conversations: Groups

    def reported(self) -> dict[str, Any]:
        """The settings as the summary has them; the data says which audit it is."""
        return super().reported() | {"audit": None}


ADVERSARIAL_NUMBER = 5
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
"""Category ids and their names, settled by the counts 282 / 321 / 96 / 841 / 446 that the benchmark's own table prints."""

DATE_FORMAT = "%I:%M %p on %d %B, %Y"  # Such as `1:56 pm on 8 May, 2023`


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)


class LocomoTurn(_Frozen):
    """One utterance."""

    id: str = Field(alias="dia_id")  # `D<session>:<number>`, unique within the conversation
    speaker: str
    text: str
    caption: str | None = Field(default=None, alias="blip_caption")  # Machine caption of the picture that was sent along
    # Addresses of the picture; 316 captions of the released file have lost theirs
    urls: tuple[str, ...] = Field(default=(), alias="img_url")


def _time(text: str) -> datetime:
    try:
        return datetime.strptime(text, DATE_FORMAT)
    except ValueError as error:
        raise ValueError(f"{text!r} is not like '1:56 pm on 8 May, 2023'") from error


class DatedSession(_Frozen):
    """One sitting; turns have no times of their own."""

    number: int
    time: Annotated[datetime, BeforeValidator(_time)]
    turns: tuple[LocomoTurn, ...]


class LocomoQuestion(_Frozen):
    """A question with its gold answer."""

    index: int = 0  # Position among the questions of the conversation. It is the key: some questions occur twice
    category: int = Field(ge=1, le=5)  # See `CATEGORIES`
    text: str = Field(alias="question")
    answer: str | None = None  # Gold answer as text; None for most of category 5, which has none
    adversarial_answer: str | None = None  # The wrong answer that category 5 suggests
    evidence: tuple[str, ...]  # Ids of the turns that hold the answer; each exists in the conversation and is named once
    repaired: tuple[str, ...] = ()  # Evidence strings that are not an id but from which ids could be read
    unusable: tuple[str, ...] = ()  # Evidence strings that name no turn of the conversation


_EVIDENCE_ID = re.compile(r"D:?(\d+):(\d+)")
_SESSION_KEY = re.compile(r"session_(\d+)")


class Conversation(_Frozen):
    """All sessions of one pair of people, and the questions about them."""

    id: FolderName = Field(alias="sample_id")
    speakers: tuple[FolderName, FolderName]
    sessions_by_name: dict[str, DatedSession]
    questions: tuple[LocomoQuestion, ...] = Field(alias="qa")

    @model_validator(mode="before")
    @classmethod
    def _of_file(cls, record: Any) -> Any:
        raw = record.get("conversation") if isinstance(record, dict) else None
        if not isinstance(raw, dict):
            raise ValueError("not an object with a conversation")
        # There are dates without a session, so the sessions lead and the dates are looked up.
        sessions = {}
        for number, key in sorted((int(match[1]), key) for key in raw if (match := _SESSION_KEY.fullmatch(key))):
            time = raw.get(f"{key}_date_time")
            if not isinstance(time, str):
                raise ValueError(f"conversation.{key}_date_time is missing or not a text")
            sessions[key] = {"number": number, "time": time, "turns": raw[key]}
        return record | {"speakers": (raw.get("speaker_a"), raw.get("speaker_b")), "sessions_by_name": sessions}

    @model_validator(mode="after")
    def _unambiguous(self) -> Conversation:
        ids = [turn.id for turn in self.turns]
        if len(set(ids)) != len(ids):
            raise ValueError("two turns have the same dia_id")
        if self.speakers[0] == self.speakers[1]:
            raise ValueError(f"both speakers are called {self.speakers[0]!r}")
        return self

    @property
    def sessions(self) -> tuple[DatedSession, ...]:
        """In numerical order."""
        return tuple(self.sessions_by_name.values())

    @property
    def turns(self) -> tuple[LocomoTurn, ...]:
        """All turns in order."""
        return tuple(turn for session in self.sessions for turn in session.turns)


def load_locomo(path: Path) -> list[Conversation]:
    """Read the benchmark.

    Raises:
        DeltaMemError: If the file cannot be read or has another shape; names the file and the place.
    """
    with reading(path):
        content = path.read_bytes()
    if content.startswith(b"PK"):
        raise DeltaMemError(f"{path}: an archive; expected the single file locomo10.json, which replaced it")
    try:
        conversations = TypeAdapter(list[Conversation]).validate_json(decoded(content, str(path)))
    except ValidationError as error:
        raise DeltaMemError(f"{path} is not LoCoMo's locomo10.json: {first_error(error)}") from error
    if not conversations:
        raise DeltaMemError(f"{path}: holds no conversation")
    if len({conversation.id for conversation in conversations}) != len(conversations):
        raise DeltaMemError(f"{path}: two conversations have the same sample_id")
    return [one.model_copy(update={"questions": tuple(_with_ids(one))}) for one in conversations]


def version_name(conversations: Sequence[Conversation], sha256: str, sample: str | None = None) -> str:
    """Name the version of the benchmark, by its bytes, and the sample of it if it is one."""
    if sample is not None:
        return f"{version_name(conversations, sha256)}, a sample: {sample}"
    count = sum(len(conversation.questions) for conversation in conversations)
    if sha256 == LOCOMO.sha256:
        return f"LoCoMo-{len(conversations)} ({count:,} questions)"
    return f"unknown version ({len(conversations)} conversations, {count:,} questions)"


def _with_ids(conversation: Conversation) -> Iterator[LocomoQuestion]:
    """The questions with their indices, and with ids in place of the evidence strings of the file."""
    known = {turn.id for turn in conversation.turns}
    for index, question in enumerate(conversation.questions):
        evidence: list[str] = []
        repaired: list[str] = []
        unusable: list[str] = []
        for text in question.evidence:
            if text in known:
                evidence.append(text)
                continue
            # Seen in the file: several ids in one string, a colon after the D, a number with a leading zero.
            read = [f"D{int(session)}:{int(turn)}" for session, turn in _EVIDENCE_ID.findall(text)]
            found = [turn_id for turn_id in read if turn_id in known]
            evidence += found
            (repaired if found else unusable).append(text)
        lists = {"evidence": tuple(dict.fromkeys(evidence)), "repaired": tuple(repaired), "unusable": tuple(unusable)}
        yield question.model_copy(update={"index": index} | lists)


BATCH_TURNS = 2
"""Messages an add call, as Mem0 and MemOS feed them."""


def dialogues(
    conversation: Conversation, *, per_speaker: bool, captions: Captions
) -> dict[StoreKey, tuple[DialogueSession, ...]]:
    """Lay a conversation out for the stores of a system: what each of them ingests.

    With two stores the owner of each is its user and the other speaker its assistant. In a single store both speakers are
    users, because neither is there to help the other.
    """
    if not per_speaker:
        both = StoreKey(conversation.id, " and ".join(conversation.speakers), BATCH_TURNS)
        return {both: _sessions(conversation, None, captions)}
    return {
        StoreKey(f"{conversation.id}.{owner}", owner, BATCH_TURNS): _sessions(conversation, owner, captions)
        for owner in conversation.speakers
    }


def _sessions(conversation: Conversation, owner: str | None, captions: Captions) -> tuple[DialogueSession, ...]:
    def turn(said: LocomoTurn) -> DialogueTurn:
        shown = captions == "all" or (captions == "with_url" and said.urls)
        text = f"{said.text} [image: {said.caption}]".lstrip() if shown and said.caption else said.text
        return DialogueTurn(said.id, "user" if owner in (None, said.speaker) else "assistant", said.speaker, text)

    sessions = (session for session in conversation.sessions if session.turns)
    return tuple(DialogueSession(f"session_{one.number}", one.time, tuple(map(turn, one.turns))) for one in sessions)


class Correction(BaseModel):
    """What the audit says about one question."""

    question_id: str
    question: str
    kind: str = Field(alias="error_type")
    right: str = Field(alias="correct_answer")
    evidence: tuple[str, ...] = Field(alias="correct_evidence")  # Turns that hold the answer; empty if one does not exist

    @property
    def answer(self) -> str | None:
        """The right answer; None if that of the file is right."""
        return None if self.kind == "WRONG_CITATION" else self.right


@dataclass(frozen=True, slots=True)
class LocomoAudit:
    """An audit that fits the benchmark."""

    file: str  # Name of the file
    sha256: str  # Of the file
    corrections: dict[tuple[str, int], Correction]  # By id of the conversation and index of the question

    def gold_is_right(self, conversation: str, question: LocomoQuestion) -> bool | None:
        """Whether the file's own answer is right; None for category 5, which was not audited."""
        if question.category == ADVERSARIAL_NUMBER:
            return None
        correction = self.corrections.get((conversation, question.index))
        return correction is None or correction.answer is None

    def apply(self, conversation: Conversation) -> Conversation:
        """Replace wrong answers and wrong evidence."""
        questions = list(conversation.questions)
        for number, question in enumerate(questions):
            if correction := self.corrections.get((conversation.id, question.index)):
                answer = question.answer if correction.answer is None else correction.answer
                changes = {"answer": answer, "evidence": correction.evidence or question.evidence}
                questions[number] = question.model_copy(update=changes)
        return conversation.model_copy(update={"questions": tuple(questions)})


def load_audit(path: Path, conversations: Sequence[Conversation]) -> LocomoAudit:
    """Read an audit, ``errors.json``, and make sure that it is one of this benchmark file.

    Raises:
        DeltaMemError: If the file cannot be read, has another shape, or names other questions; says where.
    """
    try:
        with reading(path):
            entries = TypeAdapter(list[Correction]).validate_json(read_text(path))
    except ValidationError as error:
        raise DeltaMemError(f"{path}: {first_error(error)}") from error
    audited = {
        (f"locomo_{number}_qa{question.index}", question.text): (conversation, question.index)
        for number, conversation in enumerate(conversations)
        for question in conversation.questions
        if question.category != ADVERSARIAL_NUMBER
    }
    corrections: dict[tuple[str, int], Correction] = {}
    for entry in entries:
        if (entry.question_id, entry.question) not in audited:
            raise DeltaMemError(
                f"{path}: {entry.question_id} is another question in the benchmark file, so the audit is not one of it"
            )
        conversation, index = audited[entry.question_id, entry.question]
        if (conversation.id, index) in corrections:
            raise DeltaMemError(f"{path}: {entry.question_id} occurs twice")
        known = {turn.id for turn in conversation.turns}
        evidence = tuple(dict.fromkeys(entry.evidence)) if known.issuperset(entry.evidence) else ()
        corrections[conversation.id, index] = entry.model_copy(update={"evidence": evidence})
    return LocomoAudit(path.name, file_sha256(path), corrections)


COLUMNS = ("single-hop", "multi-hop", "open-domain", "temporal")
"""Categories that are pooled, in the order of the paper's table."""

ADVERSARIAL = CATEGORIES[5]


@dataclass(frozen=True)
class LocomoData:
    """What was read."""

    file: str  # Name of the benchmark file
    sha256: str  # Of the file
    released: tuple[Conversation, ...]  # The conversations as the file has them
    conversations: tuple[Conversation, ...]  # The same with the gold answers as configured
    audit: LocomoAudit | None  # The audit, if there is one
    audited: bool  # Whether it was applied
    asked: Mapping[str, tuple[LocomoQuestion, ...]]  # By conversation the questions that are asked, in file order
    not_asked: Mapping[str, int]  # How many are not, by reason
    sample: str | None  # How the asked ones were drawn; None if they are all of their categories

    def ceiling(self) -> dict[str, float] | None:
        """Share of the asked questions whose answer in the file is right, by category and in all; None without an audit."""
        if self.audit is None:
            return None
        right: dict[str, list[bool]] = defaultdict(list)
        for conversation, question in ((name, one) for name, questions in self.asked.items() for one in questions):
            if (is_right := self.audit.gold_is_right(conversation, question)) is not None:
                for name in (CATEGORIES[question.category], "all"):
                    right[name].append(is_right)
        return {name: fmean(right[name]) for name in (*COLUMNS, "all") if name in right}

    def description(self) -> dict[str, Any]:
        """What the summary says about the data."""
        questions = [question for conversation in self.released for question in conversation.questions]
        categories = Counter(CATEGORIES[question.category] for question in questions)
        turns = [turn for conversation in self.released for turn in conversation.turns]
        distinct = {(one.id, asked.text, asked.answer, asked.category) for one in self.released for asked in one.questions}
        described: dict[str, Any] = {
            "file": self.file,
            "sha256": self.sha256,
            "conversations": len(self.released),
            "sessions": sum(len(conversation.sessions) for conversation in self.released),
            "turns": len(turns),
            "captions": sum(turn.caption is not None for turn in turns),
            "captions_with_url": sum(turn.caption is not None and bool(turn.urls) for turn in turns),
            "questions": len(questions),
            "sample": self.sample,
            "by_category": {name: categories[name] for name in (*COLUMNS, ADVERSARIAL)},
            "evidence_strings_repaired": sum(len(question.repaired) for question in questions),
            "evidence_strings_unusable": sum(len(question.unusable) for question in questions),
            "questions_without_usable_evidence": sum(not question.evidence for question in questions),
            "questions_that_occur_again": len(questions) - len(distinct),
        }
        if self.audit is not None:
            kinds = Counter(correction.kind for correction in self.audit.corrections.values())
            described["audit"] = {
                "file": self.audit.file,
                "sha256": self.audit.sha256,
                "applied": self.audited,
                "wrong_answers": sum(correction.answer is not None for correction in self.audit.corrections.values()),
                "by_kind": dict(kinds.most_common()),
            }
        return described


def question_record(conversation: str, question: LocomoQuestion) -> QuestionRecord:
    """The record of a question before anything was searched for."""
    notes = [f"evidence {text!r} was repaired" for text in question.repaired]
    notes += [f"evidence {text!r} names no turn" for text in question.unusable]
    if not question.evidence:
        notes.append("no usable evidence")
    if question.category == ADVERSARIAL_NUMBER:
        notes.append(f"suggests the wrong answer {question.adversarial_answer!r}")
    elif question.answer is None:
        notes.append("no gold answer")
    return QuestionRecord(
        key=f"{conversation}/{question.index}",
        group=conversation,
        category=CATEGORIES[question.category],
        question=question.text,
        gold=question.answer,
        evidence=question.evidence,
        notes=tuple(notes),
    )


def read_data(config: LocomoConfig) -> LocomoData:
    """Read the benchmark and the audit and choose the questions."""
    path = config.data or require(LOCOMO)
    released = tuple(load_locomo(path))
    sha256 = file_sha256(path)
    audit: LocomoAudit | None = None
    audited = config.gold == "audited"
    if config.audit or audited or sha256 == LOCOMO.sha256:  # The list that happens to lie there is of the released file
        listed = config.audit or find(LOCOMO_AUDIT)
        if listed is None and audited:
            raise DeltaMemError(missing(LOCOMO_AUDIT))
        audit = None if listed is None else load_audit(listed, released)
    conversations = tuple(map(audit.apply, released)) if audited and audit is not None else released
    every = [(one.id, question) for one in conversations for question in one.questions]
    wanted = [(name, question_record(name, question)) for name, question in every if question.category in config.categories]
    sample = draw(wanted, [one.id for one in conversations], config, len(every), "conversations")
    drawn = {record.key for record in sample.questions}
    if not drawn:
        raise DeltaMemError(f"{path}: has no question of the categories {sorted(set(config.categories))}")
    there = sum(name in sample.groups for name, _ in every)
    wanted_there = sum(name in sample.groups for name, _ in wanted)
    return LocomoData(
        path.name,
        sha256,
        released,
        conversations,
        audit,
        audited=conversations is not released,
        asked={one.id: tuple(q for q in one.questions if f"{one.id}/{q.index}" in drawn) for one in conversations},
        not_asked={
            "conversations": len(every) - there,
            "category": there - wanted_there,
            "limit": wanted_there - len(drawn),
        },
        sample=sample.note,
    )
