"""What an agent is shown of earlier conversations: of the memory system under test, or of the summaries in the data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from deltamem.config import StrictModel
from deltamem.embedding import Embedder
from deltamem.errors import DeltaMemError
from deltamem.prompts import Prompt
from deltamem.replies import without_thinking
from eval.answer import cost_of
from eval.records import Cost
from eval.systems.base import DialogueSession, DialogueTurn, Memory, WithTime, dated
from papers.momento.agent import Model
from papers.momento.database import Database, Row
from papers.momento.mini import turn_id
from papers.momento.policies import CallError, PolicyViolationError
from papers.momento.tasks import PastSession, Task

GIVEN_SUMMARIES = "given_summaries"
"""The system that builds no memory and searches the summaries of the data set, as the benchmark's own agent does."""

NEAREST = (
    "SELECT id, user_id, started_at, ended_at, summary, extracted_facts FROM sessions WHERE user_id = :user_id "
    "ORDER BY embedding <=> :query_embedding::vector LIMIT 3"
)
"""What is asked where no model writes a query, or the one that it wrote is refused."""


class Recalled(StrictModel):
    """What was recalled for a message."""

    texts: tuple[str, ...] = ()  # Oldest first, as the agent is shown them
    how: str = "search"  # Of the memory system; else `query`, which a model wrote, or `nearest`
    query: str = ""  # What the model wrote
    refused: str = ""  # Why its query was not used


class Recall(Protocol):
    """Recalls what helps with a message."""

    cost: Cost

    async def __call__(self, message: str) -> Recalled:
        """Recall.

        Raises:
            DeltaMemError: If memory or model fail, which ends the trial.
        """
        ...


def dialogue_sessions(task: Task) -> list[DialogueSession]:
    """The past sessions as memory systems read them: what user and assistant said, without the tools' results."""
    ordered = sorted(task.sessions, key=lambda session: session.started_at)
    return [
        DialogueSession(
            session.id,
            session.started_at.replace(tzinfo=None),
            tuple(
                DialogueTurn(turn_id(session.id, message.seq), message.role, "", message.text)
                for message in sorted(session.messages, key=lambda message: message.seq)
                if message.role != "tool" and message.text.strip()
            ),
        )
        for session in ordered
    ]


@dataclass
class MemoryRecall:
    """Searches the memory that a system has built from the messages."""

    memory: Memory
    k: int
    with_time: WithTime
    fixed: str | None = None  # Searched for in place of the message
    cost: Cost = field(default_factory=Cost)

    async def __call__(self, message: str) -> Recalled:
        """See `Recall`."""
        found = await self.memory.search(self.fixed or message, self.k)
        ordered = sorted(found, key=lambda passage: (passage.time is not None, passage.time))
        return Recalled(texts=tuple(dated(passage.text, passage.time, self.with_time) for passage in ordered))


@dataclass
class SummaryRecall:
    """Has a model write a query over the summaries; the database shows it those of this user alone."""

    database: Database
    task: Task
    embedder: Embedder
    model: Model | None
    prompt: Prompt
    cost: Cost = field(default_factory=Cost)

    async def __call__(self, message: str) -> Recalled:
        """See `Recall`."""
        (vector,) = await asyncio.to_thread(self.embedder.queries, [message])
        embedding = [float(value) for value in vector]
        query = refused = ""
        if self.model is not None:
            content = self.prompt.fill(date=str(self.task.current_date), message=message)
            answer = await self.model.chat([{"role": "user", "content": content}])
            self.cost += cost_of(answer)
            query = _bare(without_thinking(answer.text))
            try:
                rows = await self._rows(query, embedding)
                return Recalled(texts=_shown(rows), how="query", query=query)
            except (PolicyViolationError, CallError) as error:
                refused = str(error)
        rows = await self._rows(NEAREST, embedding)
        return Recalled(texts=_shown(rows), how="nearest", query=query, refused=refused)

    async def _rows(self, query: str, embedding: Sequence[float]) -> list[Row]:
        return await asyncio.to_thread(self.database.recall, query, self.task.user_id, embedding)


def _bare(text: str) -> str:
    """A query without the fence around it."""
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0]
    return text.strip().rstrip(";").strip()


def _shown(rows: Sequence[Row]) -> tuple[str, ...]:
    ordered = sorted(rows, key=lambda row: str(row.get("started_at", "")))
    return tuple(
        "\n".join(
            [
                f"[{str(row.get('started_at', ''))[:16]}] {row.get('summary') or ''}".strip(),
                *(f"{key}: {value}" for key, value in _facts(row).items() if value),
            ]
        )
        for row in ordered
    )


def _facts(row: Row) -> Mapping[str, Any]:
    facts = row.get("extracted_facts")
    return facts if isinstance(facts, dict) else {}


def summary_rows(task: Task, embedder: Embedder) -> list[dict[str, Any]]:
    """Rows of the table of sessions, with embeddings of summary and facts.

    Raises:
        DeltaMemError: If the embedder fails.
    """
    if not task.sessions:
        return []
    vectors = embedder.documents([_embedded(session) for session in task.sessions])
    return [
        {
            **session.model_dump(include={"id", "user_id", "started_at", "ended_at", "summary", "extracted_facts"}),
            "embedding": [float(value) for value in vector],
        }
        for session, vector in zip(task.sessions, vectors, strict=True)
    ]


def _embedded(session: PastSession) -> str:
    return "\n".join([session.summary, *(f"{key}: {value}" for key, value in session.extracted_facts.items())])


def judge_conversation(transcript: Sequence[tuple[str, str]]) -> str:
    """A conversation as a judge reads it."""
    return "\n".join(f"{role}: {text}" for role, text in transcript)


def read_verdicts(text: str, count: int) -> list[bool]:
    """What a judge said of each piece of information.

    Raises:
        DeltaMemError: If that cannot be read, or a piece is missing.
    """
    decoder, start = json.JSONDecoder(strict=False), text.find("{")
    while start >= 0:
        try:
            value, _ = decoder.raw_decode(text, start)
            verdicts = {int(one["index"]): one["covered"] for one in value["results"]}
            if set(verdicts) == set(range(count)) and all(isinstance(one, bool) for one in verdicts.values()):
                return [verdicts[number] for number in range(count)]
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        start = text.find("{", start + 1)
    raise DeltaMemError(f"the judge's reply cannot be read: {text[:200]!r}")
