"""LoCoMo's file: conversations, sessions, questions, and the audit of its gold answers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from deltamem.config import first_error
from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256
from eval.config import JudgedConfig
from eval.data import LOCOMO, LOCOMO_AUDIT, Groups, draw, find, missing, reading, require
from eval.protocols import LOCOMO as LOCOMO_PROTOCOLS
from eval.protocols import Protocol
from eval.records import QuestionRecord
from eval.systems.base import DialogueSession, DialogueTurn, StoreKey

Captions = Literal["all", "with_url", "none"]
Gold = Literal["original", "audited"]
JudgeName = Literal["lenient", "strict"]


class LocomoConfig(JudgedConfig[JudgeName]):
    """All keys of the command; ``configs/locomo.yaml`` says what they mean."""

    protocols: ClassVar[Mapping[str, Protocol]] = LOCOMO_PROTOCOLS
    most_stores: ClassVar[int] = 2
    decisive: ClassVar[frozenset[str]] = frozenset({"k", "captions", "gold"})

    protocol: Literal["default", "mem0", "memos"]  # type: ignore[assignment]
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

DATE_FORMAT = "%I:%M %p on %d %B, %Y"


class LocomoTurn(BaseModel):
    """One utterance."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(alias="dia_id")  # `D<session>:<number>`, unique within the conversation
    speaker: str
    text: str
    caption: str | None = Field(default=None, alias="blip_caption")  # Machine caption of the picture that was sent along
    # Addresses of the picture; 316 captions of the released file have lost theirs
    urls: tuple[str, ...] = Field(default=(), alias="img_url")


@dataclass(frozen=True, slots=True)
class DatedSession:
    """One sitting; turns have no times of their own."""

    number: int
    time: datetime
    turns: tuple[LocomoTurn, ...]


class LocomoQuestion(BaseModel):
    """A question with its gold answer."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    index: int = 0  # Position among the questions of the conversation. It is the key: some questions occur twice
    category: int = Field(ge=1, le=5)  # See `CATEGORIES`
    text: str = Field(alias="question")
    answer: str | None = None  # Gold answer as text; None for most of category 5, which has none
    adversarial_answer: str | None = None  # The wrong answer that category 5 suggests
    evidence: tuple[str, ...]  # Ids of the turns that hold the answer; each exists in the conversation and is named once
    repaired: tuple[str, ...] = ()  # Evidence strings that are not an id but from which ids could be read
    unusable: tuple[str, ...] = ()  # Evidence strings that name no turn of the conversation


@dataclass(frozen=True, slots=True)
class Conversation:
    """All sessions of one pair of people, and the questions about them."""

    id: str
    speakers: tuple[str, str]
    sessions: tuple[DatedSession, ...]
    questions: tuple[LocomoQuestion, ...]

    @property
    def turns(self) -> tuple[LocomoTurn, ...]:
        """All turns in order."""
        return tuple(turn for session in self.sessions for turn in session.turns)


class _ConversationRecord(BaseModel):
    sample_id: str
    conversation: dict[str, Any]
    qa: list[LocomoQuestion]


_RECORDS = TypeAdapter(list[_ConversationRecord])
_TURNS = TypeAdapter(tuple[LocomoTurn, ...])
_SESSION_KEY = re.compile(r"session_(\d+)")
_EVIDENCE_ID = re.compile(r"D:?(\d+):(\d+)")


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
        records = _RECORDS.validate_json(content)
    except ValidationError as error:
        raise DeltaMemError(f"{path} is not LoCoMo's locomo10.json: {first_error(error)}") from error
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


def version_name(conversations: Sequence[Conversation], sha256: str, sample: str | None = None) -> str:
    """Name the version of the benchmark, by its bytes, and the sample of it if it is one."""
    if sample is not None:
        return f"{version_name(conversations, sha256)}, a sample: {sample}"
    count = sum(len(conversation.questions) for conversation in conversations)
    if sha256 == LOCOMO.sha256:
        return f"LoCoMo-{len(conversations)} ({count:,} questions)"
    return f"unknown version ({len(conversations)} conversations, {count:,} questions)"


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
        questions=tuple(_with_ids(index, question, known) for index, question in enumerate(record.qa)),
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
        return DatedSession(number, time, _TURNS.validate_python(raw[key]))
    except ValidationError as error:
        raise DeltaMemError(f"{key}: {first_error(error)}") from error


def _with_ids(index: int, question: LocomoQuestion, known: Collection[str]) -> LocomoQuestion:
    """The question with its index, and with ids in place of the evidence strings of the file."""
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
    return question.model_copy(update={"index": index} | lists)


BATCH_TURNS = 2
"""Messages an add call, as Mem0 and MemOS feed them."""


def dialogues(
    conversation: Conversation, *, per_speaker: bool, captions: Captions
) -> dict[StoreKey, tuple[DialogueSession, ...]]:
    """Lay a conversation out for the stores of a system: what each of them ingests.

    With two stores the owner of each is its user and the other speaker its assistant. In a single store both speakers are
    users, because neither is there to help the other.
    """
    if per_speaker:
        return {
            StoreKey(f"{conversation.id}.{owner}", owner, BATCH_TURNS): _sessions(conversation, owner, captions)
            for owner in conversation.speakers
        }
    both = StoreKey(conversation.id, " and ".join(conversation.speakers), BATCH_TURNS)
    return {both: _sessions(conversation, None, captions)}


def _sessions(conversation: Conversation, owner: str | None, captions: Captions) -> tuple[DialogueSession, ...]:
    sessions = (session for session in conversation.sessions if session.turns)
    return tuple(
        DialogueSession(f"session_{one.number}", one.time, tuple(_turn(turn, owner, captions) for turn in one.turns))
        for one in sessions
    )


def _turn(turn: LocomoTurn, owner: str | None, captions: Captions) -> DialogueTurn:
    shown = captions == "all" or (captions == "with_url" and turn.urls)
    text = f"{turn.text} [image: {turn.caption}]".lstrip() if shown and turn.caption else turn.text
    return DialogueTurn(turn.id, "user" if owner in (None, turn.speaker) else "assistant", turn.speaker, text)


ANSWER_IS_RIGHT = "WRONG_CITATION"
_QUESTION_ID = re.compile(r"locomo_(\d+)_qa(\d+)")


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
        return None if self.kind == ANSWER_IS_RIGHT else self.right


_CORRECTIONS = TypeAdapter(list[Correction])


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
        questions = tuple(self._corrected(conversation.id, question) for question in conversation.questions)
        return replace(conversation, questions=questions)

    def _corrected(self, conversation: str, question: LocomoQuestion) -> LocomoQuestion:
        correction = self.corrections.get((conversation, question.index))
        if correction is None:
            return question
        answer = question.answer if correction.answer is None else correction.answer
        return question.model_copy(update={"answer": answer, "evidence": correction.evidence or question.evidence})


def load_audit(path: Path, conversations: Sequence[Conversation]) -> LocomoAudit:
    """Read an audit, ``errors.json``, and make sure that it is one of this benchmark file.

    Raises:
        DeltaMemError: If the file cannot be read, has another shape, or names other questions; says where.
    """
    try:
        with reading(path):
            entries = _CORRECTIONS.validate_json(path.read_bytes())
    except ValidationError as error:
        raise DeltaMemError(f"{path}: {first_error(error)}") from error
    corrections: dict[tuple[str, int], Correction] = {}
    for entry in entries:
        conversation, question = _named(path, entry, conversations)
        key = conversation.id, question.index
        if key in corrections:
            raise DeltaMemError(f"{path}: {entry.question_id} occurs twice")
        known = {turn.id for turn in conversation.turns}
        evidence = tuple(dict.fromkeys(entry.evidence)) if known.issuperset(entry.evidence) else ()
        corrections[key] = entry.model_copy(update={"evidence": evidence})
    return LocomoAudit(path.name, file_sha256(path), corrections)


def _named(path: Path, entry: Correction, conversations: Sequence[Conversation]) -> tuple[Conversation, LocomoQuestion]:
    """The question that an entry names; the text must be the same."""
    match = _QUESTION_ID.fullmatch(entry.question_id)
    if match is None:
        raise DeltaMemError(f"{path}: question_id {entry.question_id!r} is not like 'locomo_0_qa17'")
    conversation_index, index = int(match[1]), int(match[2])
    if conversation_index < len(conversations) and index < len(conversations[conversation_index].questions):
        conversation = conversations[conversation_index]
        question = conversation.questions[index]
        if question.text == entry.question and question.category != ADVERSARIAL_NUMBER:
            return conversation, question
    raise DeltaMemError(
        f"{path}: {entry.question_id} is another question in the benchmark file, so the audit is not one of it"
    )


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
            "questions_that_occur_again": sum(_repeated(conversation) for conversation in self.released),
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


def _repeated(conversation: Conversation) -> int:
    seen = Counter((question.text, question.answer, question.category) for question in conversation.questions)
    return sum(count - 1 for count in seen.values())


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
    audit = _audit(config, released, published=sha256 == LOCOMO.sha256)
    conversations = released
    if config.gold == "audited" and audit is not None:
        conversations = tuple(map(audit.apply, released))
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


def _audit(config: LocomoConfig, released: Sequence[Conversation], *, published: bool) -> LocomoAudit | None:
    if config.audit is None and config.gold == "original" and not published:
        return None  # the list that happens to lie there is of the released file
    path: Path | None = config.audit or find(LOCOMO_AUDIT)
    if path is not None:
        return load_audit(path, released)
    if config.gold == "audited":
        raise DeltaMemError(missing(LOCOMO_AUDIT))
    return None
