"""The records that all benchmarks share: a session that was taken in, a question that was answered and judged."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from eval.systems.protocol import Ingested, Passage, Usage


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Cost(_Record):
    """What calls of one kind came to; see `eval.systems.protocol.Usage`.

    Attributes:
        calls: Answers obtained, cached ones included; repeats after a failure are not counted.
        cached: How many of them the response cache gave.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens written.
        searches: Queries of a system to its own memory.
        seconds: Wall time.
    """

    calls: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    searches: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, usage: Usage, seconds: float) -> Self:
        """The cost of some usage."""
        return cls(
            calls=usage.calls,
            cached=usage.cached,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            searches=usage.searches,
            seconds=round(seconds, 4),
        )

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in Cost.model_fields})


class IngestRecord(_Record):
    """What became of one session in one store; one line of ``sessions.jsonl``.

    Attributes:
        store: Id of the store.
        owner: Whose memory it is.
        session: Id of the session.
        number: Its position among the sessions of the store, from 0.
        outcome: ``applied``; ``unreadable`` if no answer of the model could be understood; ``failed`` if something broke.
        memories: Texts that were added or rewritten; None for systems that extract nothing.
        operations: Changes by kind.
        violations: Departures from the system's protocol, by name.
        cost: What it cost; nothing for a session that failed.
        cost_lost: Whether its cost is not known, because the process was killed before it could be noted.
        parts: Into how many parts it was split because it was too long for the system's model.
        late: Whether later sessions were taken in before this one (it had failed, and was tried again by a later run).
        reason: Why it failed.
    """

    store: str
    owner: str
    session: str
    number: int
    outcome: Literal["applied", "unreadable", "failed"]
    memories: tuple[str, ...] | None = None
    operations: dict[str, int] = {}
    violations: dict[str, int] = {}
    cost: Cost = Cost()
    cost_lost: bool = False
    parts: int = 1
    late: bool = False
    reason: str | None = None

    @property
    def key(self) -> str:
        """Names the record: store and session."""
        return f"{self.store}/{self.session}"

    @classmethod
    def of(
        cls, store: str, owner: str, session: str, number: int, ingested: Ingested, seconds: float, *, late: bool
    ) -> Self:
        """The record of a session that was taken in."""
        return cls(
            store=store,
            owner=owner,
            session=session,
            number=number,
            outcome="applied" if ingested.readable else "unreadable",
            memories=ingested.memories,
            operations=dict(ingested.operations),
            violations=dict(ingested.violations),
            cost=Cost.of(ingested.usage, seconds),
            parts=ingested.parts,
            late=late,
        )


class PassageRecord(_Record):
    """A passage that was found for some question; one line of ``passages.jsonl``. See `eval.systems.protocol.Passage`.

    Attributes:
        id: Hash of the rest; questions name passages by it, because many questions find the same.
        store: The store that it comes from.
        text: What is remembered.
        time: Its time.
        sources: Ids of the turns that it comes from.
    """

    id: str
    store: str
    text: str
    time: datetime | None = None
    sources: tuple[str, ...] = ()

    @classmethod
    def of(cls, passage: Passage, store: str) -> Self:
        """The record of a passage."""
        content = json.dumps([store, passage.text, str(passage.time), passage.sources], ensure_ascii=False)
        name = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return cls(id=name, store=store, text=passage.text, time=passage.time, sources=passage.sources)


class Found(_Record):
    """That a passage was found.

    Attributes:
        passage: Id of the `PassageRecord`.
        similarity: To the query; None if the system does not tell.
    """

    passage: str
    similarity: float | None = None


class Verdict(_Record):
    """What a judge said about one answer.

    Attributes:
        label: One of the labels of the judge; None if the judge failed.
        flags: Further answers of the judge, for judges that are asked for more than a label.
        reason: The judge's own words.
        error: Why there is no label. A failure is never a zero: the answer has no verdict from this judge.
        cost: All attempts.
    """

    label: str | None
    flags: dict[str, str] = {}
    reason: str = ""
    error: str | None = None
    cost: Cost = Cost()


class AnswerRecord(_Record):
    """One answer to a question.

    Attributes:
        text: What the answerer said; None if it failed.
        scores: Lexical scores, and for multiple choice ``correct``.
        verdicts: By name of the judge.
        error: Why there is no answer.
        cost: Of the answer, without the judges.
    """

    text: str | None
    scores: dict[str, float] = {}
    verdicts: dict[str, Verdict] = {}
    error: str | None = None
    cost: Cost = Cost()


class QuestionRecord(_Record):
    """One question; one line of ``questions.jsonl``.

    Attributes:
        key: Unique in the run, by position and not by text, for example ``conv-26/17``.
        group: What is resampled together: conversation, user, persona.
        category: Name of the category or type.
        question: As it was asked.
        gold: The reference answer; None if there is none.
        evidence: What holds the answer: ids of turns, or texts of memory points.
        session: Number of the session after which it was asked, from 0; None if after all.
        retrieved: What the system found, best first; with several stores, one store after the other.
        ranks: Ranks from 1 at which each evidence was found, in the order of `evidence`; None where it was not.
        shown: How many passages fitted the budget of context tokens.
        context_tokens: Estimated tokens of the context that was shown.
        search_seconds: Wall time of the search, all stores together.
        answers: One for each answer run; empty if no answerer was asked.
        notes: What is unusual about the question in the data, for example evidence that names no turn.
        error: Why the question could not be asked or searched for.
    """

    key: str
    group: str
    category: str
    question: str
    gold: str | None = None
    evidence: tuple[str, ...] = ()
    session: int | None = None
    retrieved: tuple[Found, ...] = ()
    ranks: tuple[int | None, ...] = ()
    shown: int = 0
    context_tokens: int = 0
    search_seconds: float = 0.0
    answers: tuple[AnswerRecord, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing failed, so that a later run need not ask again."""
        return self.error is None and not any(
            answer.error or any(verdict.error for verdict in answer.verdicts.values()) for answer in self.answers
        )
