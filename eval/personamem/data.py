"""PersonaMem's files: questions, shared contexts, and the history that each question sees."""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    StringConstraints,
    TypeAdapter,
)

from deltamem.errors import DeltaMemError
from deltamem.text_files import decoded, text_lines
from eval.config import RecallConfig
from eval.data import PERSONAMEM_CONTEXTS, PERSONAMEM_QUESTIONS, Groups, draw, noted, nothing_usable, reading, require
from eval.protocols import PERSONAMEM, Protocol
from eval.records import QuestionRecord
from eval.systems.base import DialogueSession, DialogueTurn, StoreKey

SystemMessages = Literal["keep", "drop"]


class PersonaMemConfig(RecallConfig):
    """All keys of the command; ``configs/personamem.yaml`` says what they mean."""

    protocols: ClassVar[Mapping[str, Protocol]] = PERSONAMEM
    decisive: ClassVar[frozenset[str]] = frozenset({"k", "system_messages"})

    protocol: Literal["default", "paper", "memos"]  # type: ignore[assignment]
    questions: Path | None
    contexts: Path | None
    k: PositiveInt
    system_messages: SystemMessages
    users: Groups

    @property
    def judged(self) -> bool:
        """Never: an answer is a letter, which is right or not, so ``judge`` means nothing here."""
        return False

    @property
    def runs(self) -> int:
        """Answers to each question; one if the answerer says the same every time."""
        return self.answer.runs if self.answer.answerer == "llm" else 1

    def check(self) -> None:
        """Refuse values that do not fit each other, and a folder of the data that is none."""
        super().check()
        if self.data is not None and not self.data.is_dir():
            raise DeltaMemError(
                f"data={self.data} is not a folder; expected one with {Path(PERSONAMEM_QUESTIONS.path).name} and "
                f"{Path(PERSONAMEM_CONTEXTS.path).name}, or questions=<file> and contexts=<file>"
            )

    def files(self) -> tuple[Path, Path]:
        """Where questions and contexts are; fails if one is neither named nor found."""
        questions, contexts = self.questions, self.contexts
        if self.data is not None:
            questions = questions or self.data / Path(PERSONAMEM_QUESTIONS.path).name
            contexts = contexts or self.data / Path(PERSONAMEM_CONTEXTS.path).name
        return questions or require(PERSONAMEM_QUESTIONS), contexts or require(PERSONAMEM_CONTEXTS)

    def run_config(self) -> dict[str, Any]:
        """What decides the records, apart from data and prompts; nothing is judged."""
        return {key: value for key, value in super().run_config().items() if key != "judge"}


TOLERANCE = 0.05
"""How far outside a block, as a share of the prefix, the reference may seem to be; tokens are estimated from characters."""


@dataclass(frozen=True, slots=True)
class Block:
    """The part of a session that a prefix holds."""

    start: int  # Index of its first message
    stop: int  # Index after its last message
    agrees: bool  # Whether the distance in tokens points to it too


def session_starts(messages: Sequence[ContextMessage]) -> list[int]:
    """Where the sessions of a context begin: at its first message and at system messages, of several in a row the first."""
    return [0] + [
        index
        for index, (before, message) in enumerate(pairwise(messages), start=1)
        if message.role == "system" and before.role != "system"
    ]


def referenced_block(messages: Sequence[ContextMessage], question: PersonaMemQuestion) -> Block | None:
    """The block that a question refers to, cut off where the prefix ends; None if the distance points to none."""
    starts = session_starts(messages)
    asked_in = []
    if question.end >= len(messages) - 1:
        asked_in.append(len(starts))
    if question.end < len(messages):
        asked_in.append(bisect_right(starts, question.end) - 1)
    bounds = [*starts, len(messages)]
    blocks = [
        (bounds[number], min(bounds[number + 1], question.end))
        for block in asked_in
        if 0 <= (number := block - question.blocks_back) < len(starts) and bounds[number] < question.end
    ]
    if not blocks:
        return None
    offsets = [0, *accumulate(len(message.content) for message in messages[: question.end])]
    share = 1 - question.tokens_back / question.tokens if question.tokens > 0 else -1.0
    position = share * offsets[-1]
    for start, stop in blocks:
        outside = max(offsets[start] - position, position - offsets[stop], 0)
        if outside <= TOLERANCE * offsets[-1]:
            return Block(start, stop, agrees=True)
    start, stop = blocks[0]
    return Block(start, stop, agrees=False)


LABELS = {
    "provide_preference_aligned_recommendations": "Pref-Rec",
    "recalling_the_reasons_behind_previous_updates": "Recall-Reason",
    "revisit_reasons_behind_preference_updates": "Recall-Reason",
    "suggest_new_ideas": "New-Ideas",
    "track_full_preference_evolution": "Pref-Evol",
    "track_full_preference_updates": "Pref-Evol",
    "recall_user_shared_facts": "Recall-User",
    "generalizing_to_new_scenarios": "Gen-New",
    "generalize_to_new_scenarios": "Gen-New",
    "recalling_facts_mentioned_by_the_user": "Recall-Facts",
    "acknowledge_latest_user_preferences": "Latest-Pref",
}
"""Short names of the types, in the order of the paper's table. Papers tell the two ``recall`` types of 32k apart."""

COUNTS_32K = {
    "provide_preference_aligned_recommendations": 55,
    "recalling_the_reasons_behind_previous_updates": 99,
    "suggest_new_ideas": 93,
    "track_full_preference_evolution": 139,
    "recall_user_shared_facts": 129,
    "generalizing_to_new_scenarios": 57,
    "recalling_facts_mentioned_by_the_user": 17,
}
"""Questions of each type in the 32k release; 589 in all."""

QUESTIONS_32K = frozenset(
    {
        "23f306a8d28b7ffcf133fe7dad09ade06fcb862fc7c3f19691362a5cd69409bd",
        "cccd34cf53e0bc4d9536c04cff5ca045156d9a4e227e83327112482840bbc93c",
    }
)
"""sha256 of the questions file of the 32k release, with either kind of line ends."""

TOTALS = {2_727: "128k", 2_674: "1M"}
"""The other releases by their number of questions."""


def size_of(types: Iterable[str]) -> str | None:
    """Which release questions come from: ``32k``, ``128k`` or ``1M``; None if the counts are of none of them."""
    counts = Counter(types)
    return "32k" if counts == COUNTS_32K else TOTALS.get(counts.total())


def in_order(types: Iterable[str]) -> list[str]:
    """Each type once, as the paper's table has them; types that it does not know come last, in alphabetical order."""
    there = set(types)
    return [name for name in LABELS if name in there] + sorted(there - set(LABELS))


class ContextMessage(BaseModel):
    """One message of a context; its text as it is in the file, with a prefix such as ``User:``."""

    model_config = ConfigDict(frozen=True)

    role: Literal["system", "user", "assistant"]
    content: str


_CONTEXT = TypeAdapter(Annotated[dict[str, tuple[ContextMessage, ...]], Field(min_length=1, max_length=1)])


def _literal(text: Any) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("not a list of texts as Python writes one") from error


def _lettered(options: tuple[str, ...]) -> tuple[str, ...]:
    if [option[:3] for option in options] != ["(a)", "(b)", "(c)", "(d)"]:
        raise ValueError("not a list of four texts that begin with (a), (b), (c) and (d)")
    return options


_Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Option = Annotated[str, StringConstraints(pattern=r"^\([a-d]\)")]  # which also refuses half of a surrogate pair


class PersonaMemQuestion(BaseModel):
    """One row of the questions file."""

    model_config = ConfigDict(frozen=True)

    row: int  # Number of the row, from 1, without the header
    persona: _Name = Field(alias="persona_id")
    type: _Name = Field(alias="question_type")  # As the file calls it
    text: str = Field(alias="user_question_or_message", pattern=r"\S")  # Some begin with `User:`
    # Four, each with its letter, for example `(a) Tea.`
    options: Annotated[tuple[_Option, ...], BeforeValidator(_literal), AfterValidator(_lettered)] = Field(
        alias="all_options"
    )
    gold: Annotated[str, AfterValidator(lambda text: text.strip(" ()"))] = Field(
        alias="correct_answer", pattern=r"^\s*\([a-d]\)\s*$"
    )
    context: str = Field(alias="shared_context_id", pattern=r"^[A-Za-z0-9_-]{1,128}$")
    # How many messages of the context come before the question, as the file has it: it may be out of range
    end: int = Field(alias="end_index_in_shared_context")
    blocks_back: int = Field(alias="distance_to_ref_in_blocks")
    tokens_back: int = Field(alias="distance_to_ref_in_tokens")  # With the question's own tokens, as the next
    tokens: int = Field(alias="context_length_in_tokens")


COLUMNS = tuple(str(field.alias) for field in PersonaMemQuestion.model_fields.values() if field.alias)
"""Of the questions file, those that are read. A file without one of them is another benchmark: v2 and v3 share the name."""

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class SourceFile(Generic[Content]):
    """One of the two files."""

    name: str
    sha256: str
    content: Content  # All that could be read
    problems: tuple[str, ...]  # One sentence for each broken row or line


Questions = SourceFile[tuple[PersonaMemQuestion, ...]]  # In order
Contexts = SourceFile[Mapping[str, tuple[ContextMessage, ...]]]  # Messages by id of the context


def load_questions(path: Path) -> Questions:
    """Read ``questions_32k.csv`` or one of its siblings.

    Raises:
        DeltaMemError: If the file cannot be read, is no CSV file, lacks columns or has no rows.
    """
    with reading(path):
        data = path.read_bytes()
    reader = csv.DictReader(io.StringIO(decoded(data, str(path)), newline=""))
    try:
        header = reader.fieldnames or ()
        if lacking := [column for column in COLUMNS if column not in header]:
            raise DeltaMemError(f"{path}: no questions of PersonaMem v1, the header lacks {', '.join(lacking)}")
        questions: list[PersonaMemQuestion] = []
        problems: list[str] = []
        for row, values in enumerate(reader, start=1):
            with noted(problems, f"{path.name}, row {row} (line {reader.line_num})"):
                if None in values:
                    raise DeltaMemError("more values than columns")
                questions.append(PersonaMemQuestion.model_validate(values | {"row": row}))
    except csv.Error as error:
        raise DeltaMemError(f"{path}, line {reader.line_num}: not a CSV file: {error}") from error
    if not questions and not problems:
        raise DeltaMemError(f"{path}: no rows below the header")
    return SourceFile(path.name, hashlib.sha256(data).hexdigest(), tuple(questions), tuple(problems))


def load_contexts(path: Path) -> Contexts:
    """Read ``shared_contexts_32k.jsonl`` or one of its siblings: an object with a single key on each line.

    Raises:
        DeltaMemError: If the file cannot be read, or no line of it is a context.
    """
    with reading(path):
        data = path.read_bytes()
    contexts: dict[str, tuple[ContextMessage, ...]] = {}
    problems: list[str] = []
    for number, line in enumerate(text_lines(data.splitlines(), f"{path}, "), start=1):
        if not line.strip():
            continue
        with noted(problems, f"{path.name}, line {number}"):
            ((name, messages),) = _CONTEXT.validate_json(line).items()
            if name in contexts:
                raise DeltaMemError(f"context {name} is in the file a second time; the first one counts")
            contexts[name] = messages
    if not contexts:
        raise nothing_usable(f"{path}: no line is a context of PersonaMem", problems)
    return SourceFile(path.name, hashlib.sha256(data).hexdigest(), contexts, tuple(problems))


BATCH_TURNS = 10
"""Messages an add call, as MemOS feeds them."""

FIRST_DAY = datetime(2024, 1, 1, 9)
"""The data has no dates. Session n is dated n days after this, and its pieces one minute after the other."""

PROFILE_MARK = "About me, written down before we talk: "
"""Before a persona text, which is a system message in the file. Not every memory system knows such a role, and those that do
read it differently, so for all of them the user says it."""

_SHORT = 12
_NAME = re.compile(r"Name:[ \t]*(\S[^\n]*)")


@dataclass(frozen=True, slots=True)
class PlacedQuestion:
    """A question at its place in a history."""

    # Before anything was searched for. Its session is that in which the history ends; its evidence is the referenced block
    # as one thing, so that recall at k tells whether any passage holds a turn of it
    record: QuestionRecord
    question: PersonaMemQuestion
    turns: int  # How many turns the history has
    block: Block | None  # What the question refers to; None if unknown
    evidence: frozenset[str]  # Ids of the turns of that block, those that were fed and are no persona text


class Piece(NamedTuple):
    """A session, or a part of one, and how many messages of the context are in the store when it has been ingested."""

    stop: int
    session: DialogueSession


@dataclass(frozen=True, slots=True)
class PersonaHistory:
    """One context: a store, what it ingests, and what it is asked."""

    key: StoreKey  # The store
    pieces: tuple[Piece, ...]  # In order, without gaps; messages that come after every question are left out
    samples: tuple[PlacedQuestion, ...]  # In the order of the questions file

    def steps(self, keys: Collection[str]) -> list[tuple[tuple[DialogueSession, ...], tuple[PlacedQuestion, ...]]]:
        """What is ingested before questions, and the questions that see that and all before, and nothing else."""
        asked = [sample for sample in self.samples if sample.record.key in keys]
        ends = sorted({sample.question.end for sample in asked})
        return [
            (
                tuple(session for stop, session in self.pieces if start < stop <= end),
                tuple(sample for sample in asked if sample.question.end == end),
            )
            for start, end in pairwise([0, *ends])
        ]


class Lost(NamedTuple):
    """Why a question cannot be asked."""

    kind: Literal["context_missing", "end_out_of_range"]
    reason: str  # In a sentence


def store_ids(contexts: Collection[str]) -> dict[str, str]:
    """Ids of stores by ids of contexts: their first characters, if those tell the contexts apart."""
    short = {context: context[:_SHORT] for context in contexts}
    return short if len(set(short.values())) == len(short) else {context: context for context in contexts}


def without_history(question: PersonaMemQuestion, contexts: Contexts) -> Lost | None:
    """Why a question has no history; None if it has one."""
    messages = contexts.content.get(question.context)
    if messages is None:
        return Lost("context_missing", f"its context {question.context[:_SHORT]} is not in {contexts.name}")
    if not 0 < question.end <= len(messages):
        reason = f"its end index {question.end} is not within its context, which has {len(messages)} messages"
        return Lost("end_out_of_range", reason)
    return None


def history(
    store: str, messages: Sequence[ContextMessage], questions: Sequence[PersonaMemQuestion], *, keep_system: bool
) -> PersonaHistory:
    """Cut one context at all of its questions, whose end indices are within it.

    All questions decide the cuts, whichever of them are asked, so that a store fits every run.
    """
    starts = session_starts(messages)
    ends = {question.end for question in questions}
    bounds = sorted({*(start for start in starts if start < max(ends)), *ends})
    pieces = []
    session, part = -1, 0
    for start, stop in pairwise(bounds):
        session, part = (session + 1, 0) if start in starts else (session, part + 1)
        if turns := _turns(messages, start, stop, keep_system=keep_system):
            time = FIRST_DAY + timedelta(days=session, minutes=part)
            pieces.append(Piece(stop, DialogueSession(f"{start}-{stop - 1}", time, turns)))
    samples = []
    for question in questions:
        block, notes = referenced_block(messages, question), []
        if block is None:
            notes.append(f"a distance of {question.blocks_back} blocks points to no session before the question")
        elif not block.agrees:
            back = f"{question.blocks_back} blocks and {question.tokens_back} tokens"
            notes.append(f"distances of {back} do not fit each other")
        held = () if block is None else _turns(messages, block.start, block.stop, keep_system=False)
        record = question_record(
            question,
            evidence=(f"messages {block.start}-{block.stop - 1}",) if block is not None and held else (),
            session=sum(start < question.end for start in starts) - 1,
            notes=tuple(notes),
        )
        before = len(_turns(messages, 0, question.end, keep_system=keep_system))
        samples.append(PlacedQuestion(record, question, before, block, frozenset(turn.id for turn in held)))
    named = _NAME.search(messages[0].content) if messages[0].role == "system" else None  # In the first persona text
    key = StoreKey(store, named[1].strip() if named else "the user", BATCH_TURNS)
    return PersonaHistory(key, tuple(pieces), tuple(samples))


def histories(
    questions: Sequence[PersonaMemQuestion], contexts: Mapping[str, Sequence[ContextMessage]], *, keep_system: bool
) -> list[PersonaHistory]:
    """The history of each context, in the order in which questions name them."""
    stores = store_ids(dict.fromkeys(question.context for question in questions))
    return [
        history(store, contexts[name], [one for one in questions if one.context == name], keep_system=keep_system)
        for name, store in stores.items()
    ]


def record_key(question: PersonaMemQuestion) -> str:
    """Names the record of a question: context and row of the file."""
    return f"{question.context[:_SHORT]}/{question.row}"


def question_record(question: PersonaMemQuestion, **fields: Any) -> QuestionRecord:
    """The record of a question; those of a persona are resampled together."""
    return QuestionRecord(
        key=record_key(question),
        group=f"persona_{question.persona}",
        category=question.type,
        question=question.text,
        gold=question.gold,
        **fields,
    )


def _turns(messages: Sequence[ContextMessage], start: int, stop: int, *, keep_system: bool) -> tuple[DialogueTurn, ...]:
    return tuple(
        DialogueTurn(str(index), "user", "", PROFILE_MARK + message.content)
        if message.role == "system"
        else DialogueTurn(str(index), message.role, "", message.content)
        for index, message in enumerate(messages[start:stop], start)
        if keep_system or message.role != "system"
    )


@dataclass(frozen=True)
class PersonaMemData:
    """The data of a run."""

    questions: Questions
    contexts: Contexts
    histories: tuple[PersonaHistory, ...]  # One for each context that some question can be asked about
    selected: tuple[PersonaMemQuestion, ...]  # The questions that the run accounts for
    sample: str | None  # How they were drawn; None if they are all
    lost: Mapping[str, Lost]  # By key those of them that cannot be asked, with the reason

    @property
    def size(self) -> str:
        """Which release the questions are of."""
        return size_of(question.type for question in self.questions.content) or "of unknown size"

    @property
    def published(self) -> bool | None:
        """Whether both files are those of the 32k release; None for other releases, whose sums are not known."""
        if self.size in TOTALS.values():
            return None
        return self.contexts.sha256 == PERSONAMEM_CONTEXTS.sha256 and self.questions.sha256 in QUESTIONS_32K


def read_data(config: PersonaMemConfig) -> PersonaMemData:
    """Read both files and lay the contexts out."""
    questions_path, contexts_path = config.files()
    questions, contexts = load_questions(questions_path), load_contexts(contexts_path)
    reasons = {question.row: without_history(question, contexts) for question in questions.content}
    usable = [question for question in questions.content if reasons[question.row] is None]
    personas = list(dict.fromkeys(question.persona for question in questions.content))
    records = {record_key(question): question for question in questions.content}
    asked = [(question.persona, question_record(question)) for question in records.values()]
    sample = draw(asked, personas, config, len(questions.content) + len(questions.problems), "users")
    return PersonaMemData(
        questions=questions,
        contexts=contexts,
        histories=tuple(histories(usable, contexts.content, keep_system=config.system_messages == "keep")),
        selected=tuple(records[record.key] for record in sample.questions),
        sample=sample.note,
        lost={record.key: lost for record in sample.questions if (lost := reasons[records[record.key].row])},
    )
