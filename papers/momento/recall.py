"""What an agent is shown of earlier conversations: of the memory system under test, or of the summaries in the data."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from deltamem.embedding import Embedder
from deltamem.errors import DeltaMemError
from deltamem.prompts import Prompt
from deltamem.replies import without_thinking
from eval.systems.base import DialogueSession, DialogueTurn, Memory, SessionBuffer, WithTime, dated
from eval.systems.baselines import Baseline, BaselineKind
from eval.systems.kinds import SystemContext
from papers.momento.agent import Model
from papers.momento.data import GIVEN_SUMMARIES
from papers.momento.mini import turn_id
from papers.momento.policies import CallError, PolicyViolationError, Row
from papers.momento.scores import RecallRecord
from papers.momento.tasks import MomentoTask
from papers.momento.world import World


def _given(context: SystemContext) -> Baseline:
    if context.extra(GIVEN_SUMMARIES) is None:
        raise DeltaMemError(f"system={GIVEN_SUMMARIES} is for Momento, whose data has summaries")
    return Baseline(GIVEN_SUMMARIES, {"shown": "the summaries that come with the tasks"}, lambda key: SessionBuffer())


GIVEN = BaselineKind(GIVEN_SUMMARIES, _given, reads=False)
"""Its stores hold nothing, because trials recall from the database (`SummaryRecall`)."""

NEAREST = (
    "SELECT id, user_id, started_at, ended_at, summary, extracted_facts FROM sessions WHERE user_id = :user_id "
    "ORDER BY embedding <=> :query_embedding::vector LIMIT 3"
)
"""What is asked where no model writes a query, or the one that it wrote is refused."""


Recall = Callable[[str], Awaitable[RecallRecord]]
"""Recalls what helps with a message; a `DeltaMemError` ends the trial."""


def dialogue_sessions(task: MomentoTask) -> list[DialogueSession]:
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

    async def __call__(self, message: str) -> RecallRecord:
        """What the memory finds, oldest first."""
        found = await self.memory.search(self.fixed or message, self.k)
        ordered = sorted(found, key=lambda passage: (passage.time is not None, passage.time))
        return RecallRecord(texts=tuple(dated(passage.text, passage.time, self.with_time) for passage in ordered))


@dataclass
class SummaryRecall:
    """Has a model write a query over the summaries; the database shows it those of this user alone."""

    world: World
    task: MomentoTask
    embedder: Embedder
    model: Model | None
    prompt: Prompt

    async def __call__(self, message: str) -> RecallRecord:
        """What the query of the model finds, or the nearest."""
        (vector,) = await asyncio.to_thread(self.embedder.queries, [message])
        embedding = [float(value) for value in vector]
        query = refused = ""
        if self.model is not None:
            content = self.prompt.fill(date=str(self.task.current_date), message=message)
            answer = await self.model.chat([{"role": "user", "content": content}])
            query = without_thinking(answer.text)
            if query.startswith("```"):
                query = query.partition("\n")[2].rpartition("```")[0]
            query = query.strip().rstrip(";").strip()
            try:
                rows = await self._rows(query, embedding)
                return RecallRecord(texts=_shown(rows), how="query", query=query)
            except (PolicyViolationError, CallError) as error:
                refused = str(error)
        rows = await self._rows(NEAREST, embedding)
        return RecallRecord(texts=_shown(rows), how="nearest", query=query, refused=refused)

    async def _rows(self, query: str, embedding: Sequence[float]) -> list[Row]:
        return await asyncio.to_thread(self.world.database.recall, query, self.task.user_id, embedding)


def _shown(rows: Sequence[Row]) -> tuple[str, ...]:
    texts = []
    for row in sorted(rows, key=lambda row: str(row.get("started_at", ""))):
        facts = row.get("extracted_facts")
        lines = [f"[{str(row.get('started_at', ''))[:16]}] {row.get('summary') or ''}".strip()]
        lines += [f"{key}: {value}" for key, value in (facts if isinstance(facts, dict) else {}).items() if value]
        texts.append("\n".join(lines))
    return tuple(texts)


def summary_rows(task: MomentoTask, embedder: Embedder) -> list[Row]:
    """Rows of the table of sessions, with embeddings of summary and facts and all that was said.

    Raises:
        DeltaMemError: If the embedder fails.
    """
    if not task.sessions:
        return []
    texts = [
        "\n".join([session.summary, *(f"{key}: {value}" for key, value in session.extracted_facts.items())])
        for session in task.sessions
    ]
    columns = {"id", "user_id", "started_at", "ended_at", "summary", "extracted_facts"}
    return [
        {
            **session.model_dump(include=columns),
            "embedding": [float(value) for value in vector],
            "messages": [{"seq": one.seq, "role": one.role, "content": one.text} for one in session.messages],
        }
        for session, vector in zip(task.sessions, embedder.documents(texts), strict=True)
    ]
