"""The records of a run on disk: one a session, passage, question and memory point."""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field

from deltamem.config import StrictModel
from deltamem.errors import DeltaMemError, EmbedderUnavailableError, reason_of
from deltamem.llm import Usage
from deltamem.runs import RecordFile
from eval.systems.base import DialogueSession, Memory, Passage, StoreKey, SystemUnavailableError

Record = TypeVar("Record", bound=BaseModel)

MemoryType = Literal["Persona Memory", "Event Memory", "Relationship Memory"]
MemorySource = Literal["primary", "system", "secondary", "interference"]


LATE = "searched after later sessions were taken in"
"""Note on what was searched for again, or late, because the search or its session had failed."""

LACKING = "searched without earlier sessions that failed: "
"""Beginning of the note on what was searched for in a memory that lacks sessions; their ids follow."""


class Cost(Usage):
    """What calls of one kind came to, and how long they took."""

    seconds: float = 0.0  # Wall time


class IngestRecord(StrictModel):
    """What became of one session in one store; one line of ``sessions.jsonl``."""

    store: str  # Id of the store
    owner: str  # Whose memory it is
    session: str  # Id of the session
    number: int  # Its position among the sessions of the store, from 0
    # `applied`; `unreadable` if no answer of the model could be understood; `failed` if something broke
    outcome: Literal["applied", "unreadable", "failed"]
    memories: tuple[str, ...] | None = None  # Texts that were added or rewritten; None for systems that extract nothing
    operations: dict[str, int] = Field(default={})  # Changes by kind
    violations: dict[str, int] = Field(default={})  # Departures from the system's protocol, by name
    cost: Cost = Cost()  # What it cost; nothing for a session that failed
    cost_lost: bool = False  # Whether its cost is not known, because the process was killed before it could be noted
    parts: int = 1  # Into how many parts it was split because it was too long for the system's model
    made: str = ""  # Short hash of the fingerprint under which it was made, here and below
    # Whether later sessions were ingested before this one (it had failed, and was tried again by a later run)
    late: bool = False
    reason: str | None = None  # Why it failed

    @property
    def key(self) -> str:
        """Names the record: store and session."""
        return f"{self.store}/{self.session}"


class PassageRecord(StrictModel):
    """A passage that was found for some question; one line of ``passages.jsonl``. See `eval.systems.base.Passage`."""

    id: str  # Hash of the rest; questions name passages by it, because many questions find the same
    store: str  # The store that it comes from
    text: str  # What is remembered
    time: datetime | None = None  # Its time
    sources: tuple[str, ...] = ()  # Ids of the turns that it comes from

    @classmethod
    def of(cls, passage: Passage, store: str) -> Self:
        """The record of a passage."""
        content = json.dumps([store, passage.text, str(passage.time), passage.sources], ensure_ascii=False)
        name = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return cls(id=name, store=store, text=passage.text, time=passage.time, sources=passage.sources)


class Found(StrictModel):
    """That a passage was found."""

    passage: str  # Id of the `PassageRecord`
    similarity: float | None = None  # To the query; None if unknown


GOOD_LABELS = frozenset({"correct", "abstained"})
"""Labels of judges that count as 1, in lower case; any other label counts as 0."""


class Verdict(StrictModel):
    """What a judge said about one answer."""

    label: str | None  # One of the labels of the judge; None if the judge failed
    # Further answers of the judge, for judges that are asked for more than a label
    flags: dict[str, str] = Field(default={})
    reason: str = ""  # The judge's own words
    error: str | None = None  # Why there is no label: a failure is told from a bad label, though both count as wrong
    cost: Cost = Cost()  # All attempts
    made: str = ""

    @property
    def worth(self) -> float | None:
        """1 for a good label, or a number above 0 of a judge that counts or finds; 0 for another; None without a label."""
        if self.label is None:
            return None
        return float(int(self.label) > 0 if self.label.isdecimal() else self.label.lower() in GOOD_LABELS)


def judge_name(key: str) -> str:
    """The judge of a verdict: `name`, `name/3` (its third item, where it judges item by item), or a further run `name#2`."""
    return key.partition("#")[0].partition("/")[0]


class AnswerRecord(StrictModel):
    """One answer to a question."""

    text: str | None  # What the answerer said; None if it failed
    # Lexical scores, and for multiple choice `correct`; all 0 if there is no answer
    scores: dict[str, float] = Field(default={})
    # By name of the judge, see `judge_name`; without labels if there is no answer
    verdicts: dict[str, Verdict] = Field(default={})
    error: str | None = None  # Why there is no answer
    # Whether the model itself left it out (nothing, or thinking that was cut); else endpoint, search or ingestion failed
    silent: bool = False
    cut: bool = False  # Whether the model was stopped by the limit of tokens, in its thinking or in the answer
    cost: Cost = Cost()  # Of the answer, without the judges
    details: dict[str, Any] = Field(default={})  # What else a benchmark notes that asks its questions itself
    made: str = ""

    def without_cost(self) -> Self:
        """The same answer where it was not asked for again."""
        verdicts = {name: verdict.model_copy(update={"cost": Cost()}) for name, verdict in self.verdicts.items()}
        return self.model_copy(update={"verdicts": verdicts, "cost": Cost()})

    @property
    def costs(self) -> list[Cost]:
        """Its own and those of its judges."""
        return [self.cost, *(verdict.cost for verdict in self.verdicts.values())]

    @property
    def complete(self) -> bool:
        """Whether nothing failed."""
        return self.error is None and all(verdict.error is None for verdict in self.verdicts.values())


class BudgetRecord(StrictModel):
    """Answers to a question from as many of its passages as fit a budget of context tokens."""

    budget: int  # Estimated tokens
    shown: int  # How many passages fitted
    context_tokens: int  # What they came to
    answers: tuple[AnswerRecord, ...]  # One for each answer run


class QuestionRecord(StrictModel):
    """One question; one line of ``questions.jsonl``."""

    key: str  # Unique in the run, by position and not by text, for example `conv-26/17`
    group: str  # What is resampled together: conversation, user, persona
    category: str  # Name of the category or type
    question: str  # As it was asked
    time: datetime | None = None  # When it was asked, where the benchmark says so: answerers are shown it, searches are not
    gold: str | None = None  # The reference answer; None if there is none
    evidence: tuple[str, ...] = ()  # What holds the answer: ids of turns, or texts of memory points
    session: int | None = None  # Number of the session after which it was asked, from 0; None if after all
    retrieved: tuple[Found, ...] = ()  # What the system found, best first; with several stores, one store after the other
    deeper: tuple[Found, ...] = ()  # What it found below, likewise, for budgets that have room for it
    # Ranks from 1 at which each evidence was found, in the order of `evidence`; None where it was not
    ranks: tuple[int | None, ...] = ()
    gold_words_shown: float | None = None  # Share of the words of the evidence that `retrieved` shows; None without evidence
    shown: int = 0  # How many passages fitted the budget of context tokens
    context_tokens: int = 0  # Estimated tokens of the context that was shown
    search_seconds: float = 0.0  # Wall time of the search, all stores together
    # One for each answer run, also if none could be asked because something failed; empty if there is no answerer
    answers: tuple[AnswerRecord, ...] = ()
    budgets: tuple[BudgetRecord, ...] = ()  # The same at other budgets
    notes: tuple[str, ...] = ()  # What is unusual about the question in the data, for example evidence that names no turn
    error: str | None = None  # Why the question could not be asked or searched for
    made: str = ""

    @property
    def at_budgets(self) -> list[AnswerRecord]:
        """The answers at all further budgets."""
        return [answer for budget in self.budgets for answer in budget.answers]

    @property
    def complete(self) -> bool:
        """Whether nothing failed, so that a later run need not ask again."""
        return self.error is None and all(answer.complete for answer in (*self.answers, *self.at_budgets))


PointKind = Literal["integrity", "accuracy", "update"]


class PointRecord(StrictModel):
    """One memory point of the benchmark, or one extracted memory.

    Every point has exactly one record, of kind ``update`` or ``integrity`` (PROTOCOLS 2.5, routing); every extracted memory
    has one of kind ``accuracy``.
    """

    key: str  # Unique in the run: user, session and position, for example `<uuid>/S4/p7`; `m` for extracted memories
    kind: PointKind  # Which judge it is for
    user: str  # Whose it is; what is resampled together
    session: int  # Number of the session, from 0
    text: str  # The point, or the extracted memory
    memory_type: MemoryType | None = None  # Of a point
    source: MemorySource | None = None  # Of a point; `interference` must not be remembered
    importance: float | None = None  # Of a point
    is_update: bool = False  # Whether the point replaces older ones
    searched: bool = False  # Whether the memory was searched for the point
    retrieved: tuple[Found, ...] = ()  # What was found, best first
    turns: tuple[str, ...] = ()  # Ids of the turns that a searched point comes from; empty if unknown
    # Rank from 1 of the first passage that holds a searched point; None if none does, or if ranks mean nothing
    rank: int | None = None
    search_seconds: float = 0.0  # Wall time of the search
    verdict: Verdict | None = None  # None if no judge was asked: offline, or a system that extracts nothing
    notes: tuple[str, ...] = ()  # What is unusual about the record
    error: str | None = None  # Why the memory could not be searched or the session not be ingested

    @property
    def complete(self) -> bool:
        """Whether nothing failed, so that a later run need not judge it again; True also for what no judge was asked."""
        return self.error is None and (self.verdict is None or self.verdict.error is None)


@dataclass(frozen=True)
class RunFiles:
    """The records of a run: what is done, and where the rest is written."""

    sessions: RecordFile[IngestRecord]  # One for each store and session
    passages: RecordFile[PassageRecord]  # Each passage that was found for something
    retrieved: RecordFile[QuestionRecord]  # Questions as they were searched for, without answers
    questions: RecordFile[QuestionRecord]  # Questions with answers and verdicts
    points: RecordFile[PointRecord] | None = None  # Memory points and extracted memories, for benchmarks that have them

    def keep(self, passages: Iterable[Passage], store: str) -> tuple[Found, ...]:
        """Write passages that were found, each once, and return their names."""
        found = []
        for passage in passages:
            record = PassageRecord.of(passage, store)
            if record.id not in self.passages:
                self.passages.add(record)
            found.append(Found(passage=record.id, similarity=passage.similarity))
        return tuple(found)

    def by_store(self, found: Iterable[Found]) -> dict[str, list[Passage]]:
        """The passages that `keep` named, by store, in order.

        Raises:
            DeltaMemError: If one is not there.
        """
        stores: dict[str, list[Passage]] = defaultdict(list)
        for one in found:
            record = self.passages.get(one.passage)
            if record is None:
                raise DeltaMemError(f"{self.passages.path} does not hold the passage {one.passage}")
            stores[record.store].append(Passage(record.text, record.time, record.sources, one.similarity))
        return stores


@contextmanager
def open_files(folder: Path, *, points: bool = False) -> Iterator[RunFiles]:
    """Open the records of an output folder, or begin them.

    Raises:
        DeltaMemError: If a line of a file is not a record, or another run has the folder open.
        OSError: If a file cannot be read or written.
    """
    with ExitStack() as stack:

        def opened(name: str, model: type[Record], key: Callable[[Record], str]) -> RecordFile[Record]:
            return stack.enter_context(RecordFile(folder / f"{name}.jsonl", model, key))

        yield RunFiles(
            opened("sessions", IngestRecord, lambda record: record.key),
            opened("passages", PassageRecord, lambda record: record.id),
            opened("retrieved", QuestionRecord, lambda record: record.key),
            opened("questions", QuestionRecord, lambda record: record.key),
            opened("points", PointRecord, lambda record: record.key) if points else None,
        )


async def ingest_session(
    memory: Memory,
    key: StoreKey,
    sessions: Sequence[DialogueSession],
    number: int,
    log: RecordFile[IngestRecord],
    made: str = "",
) -> IngestRecord:
    """Ingest one of the sessions of a store, by its position among them, unless that is done, and record it.

    A failed session is recorded, so that the next one can go on without it; the same command tries it again. An unreadable
    session is not tried again. A system that keeps nothing on disk ingests all sessions again, which is not recorded
    twice. A session that is in the store but was not recorded (the process was killed in between) costs nothing now; what
    it cost is lost.

    Raises:
        SystemUnavailableError: If the system cannot ingest anything.
        EmbedderUnavailableError: If the embedder cannot be loaded.
    """
    session, known = sessions[number], memory.known
    before, there = log.get(f"{key.id}/{session.id}"), session.id in known
    if before is not None and before.outcome == "failed":
        before = None
    if before is not None and (there or before.outcome == "unreadable"):
        return before
    late = any(later.id in known for later in sessions[number + 1 :])
    named: dict[str, Any] = {"store": key.id, "owner": key.owner, "session": session.id, "number": number}
    named |= {"late": late, "made": made}
    started = time.perf_counter()
    try:
        ingested = await memory.ingest(session)
    except (SystemUnavailableError, EmbedderUnavailableError):
        raise
    except Exception as error:  # one failed session must not lose the others
        record = IngestRecord(**named, outcome="failed", reason=reason_of(error))
    else:
        seconds = round(time.perf_counter() - started, 4)
        record = IngestRecord(
            **named,
            outcome="applied" if ingested.readable else "unreadable",
            memories=ingested.memories,
            operations=dict(ingested.operations),
            violations=dict(ingested.violations),
            cost=Cost() if there else Cost(**ingested.usage.model_dump(), seconds=seconds),
            cost_lost=there,
            parts=ingested.parts,
        )
    if before is not None and record.outcome == "applied":  # the same again, in a store that did not last
        return before
    log.add(record)
    return record
