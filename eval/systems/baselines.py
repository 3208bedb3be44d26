"""Systems without a model that keeps memories: closed book, full context, naive RAG, a copier, gold evidence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deltamem.embedding import Embedder, Vectors
from deltamem.errors import DeltaMemError
from eval.systems.base import DialogueSession, Ingested, Passage, SessionBuffer, StoreKey, WithTime, dated
from eval.systems.kinds import MEMORY_TOKENS, SystemContext, SystemKind, session_tokens, turns_shown
from rewards.cues import sentences


@dataclass(slots=True)
class Baseline:
    """A system without a model, whose stores end with their block."""

    name: str
    said: dict[str, Any]  # See `System.facts`
    store: Callable[[StoreKey], SessionBuffer]  # Makes a new one
    ranked: bool = False
    embedder: Embedder | None = None
    per_speaker: bool = False

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[SessionBuffer]:
        """Begin a store."""
        if self.embedder is not None:
            await asyncio.to_thread(self.embedder.queries, [])  # a missing model is found before work is half done
        yield self.store(key)

    def facts(self) -> dict[str, Any]:
        """What is shown or embedded."""
        return self.said


@dataclass(frozen=True)
class BaselineKind(SystemKind):
    """A baseline by its name; `build` makes its system of the context."""

    name: str
    build: Callable[[SystemContext], Baseline]
    ranked: bool = False
    per_speaker: bool = False
    reads: bool = True
    embedded: Callable[[DialogueSession], float] = lambda session: 0
    tokens: Callable[[Sequence[DialogueSession], int], float] | None = None

    def make(self, context: SystemContext) -> Baseline:
        """Raises `DeltaMemError` if the benchmark lacks what it needs."""
        return self.build(context)

    def texts(self, session: DialogueSession) -> float:
        """Turns or sentences."""
        return self.embedded(session)

    def shown(self, sessions: Sequence[DialogueSession], passages: int) -> float:
        """By the kind of its passages."""
        return super().shown(sessions, passages) if self.tokens is None else self.tokens(sessions, passages)


def _closed_book(context: SystemContext) -> Baseline:
    return Baseline("none", {"shown": "nothing: the model answers from what it knows"}, lambda key: SessionBuffer())


NONE = BaselineKind("none", _closed_book, reads=False, tokens=lambda sessions, passages: 0)
"""Remembers nothing: what the model gets right says nothing of a memory."""


def full_context() -> Baseline:
    """Every session is one passage, and a search returns all of them whatever it asks for and whatever `k` is.

    The newest session comes first, so that a budget of context tokens leaves out the oldest; what is left is shown by time.
    """
    said = {"shown": "the newest sessions that fit the budget, by time"}
    return Baseline("full_context", said, lambda key: Transcript())


FULL_CONTEXT = BaselineKind(
    "full_context", lambda context: full_context(), tokens=lambda sessions, passages: sum(map(session_tokens, sessions))
)

Evidence = Mapping[str, Mapping[str, Sequence[str | Passage]]]
"""By id of the store and text of the question: ids of turns, or passages where the benchmark's evidence is not turns."""


def oracle(evidence: Evidence) -> Baseline:
    """Returns the evidence that the benchmark names. All of it, whatever `k` is."""
    said = {"shown": "the gold evidence of the question"}
    return Baseline("oracle", said, lambda key: GoldEvidence(evidence.get(key.id, {})))


def _oracle_of(context: SystemContext) -> Baseline:
    if (evidence := context.extra("evidence")) is None:
        raise DeltaMemError("system=oracle needs gold evidence, and this benchmark names none")
    return oracle(evidence)


ORACLE = BaselineKind("oracle", _oracle_of, tokens=lambda sessions, passages: 4 * MEMORY_TOKENS)

_TIMES: dict[WithTime, str] = {False: "", True: "date and ", "hour": "hour, date and "}


def naive_rag(embedder: Embedder, *, with_time: WithTime) -> Baseline:
    """The baseline of every memory system: the turns with the most similar embeddings. No language model.

    The embedder may see the time of the session, as in ``[8 May 2023] Ana: Look!``.
    """
    said = {"embedder": embedder.name, "embedded": f"a turn with its {_TIMES[with_time]}speaker"}
    return Baseline("naive_rag", said, lambda key: TurnIndex(embedder, with_time=with_time), True, embedder)


NAIVE_RAG = BaselineKind(
    "naive_rag",
    lambda context: naive_rag(context.embedder, with_time=context.config.with_time),
    ranked=True,
    embedded=lambda session: len(session.turns),
    tokens=turns_shown,
)


def copy_all(embedder: Embedder, *, with_time: WithTime) -> Baseline:
    """The probe ``copy_all`` as a system: every sentence of the user is a memory; nothing is rewritten or left out.

    What a trained manager scores is worth what it scores above this one, which reads nothing.
    """
    said = {"embedder": embedder.name, "embedded": f"a sentence of the user with its {_TIMES[with_time]}speaker"}
    return Baseline("copy_all", said, lambda key: SentenceIndex(embedder, with_time=with_time), True, embedder, True)


_SENTENCES_A_TURN = 2
"""Assumed, for estimates; every other turn is the user's."""

COPY_ALL = BaselineKind(
    "copy_all",
    lambda context: copy_all(context.embedder, with_time=context.config.with_time),
    ranked=True,
    per_speaker=True,
    embedded=lambda session: _SENTENCES_A_TURN * len(session.turns) / 2,
)


class Transcript(SessionBuffer):
    """The sessions of one store."""

    async def search(self, query: str, k: int) -> list[Passage]:
        """All sessions that have turns, the newest first; of those at the same time, the last one ingested comes first."""
        found = []
        for session in sorted(self.sessions.values(), key=lambda session: session.time)[::-1]:
            lines = [f"{turn.speaker or turn.role}: {turn.text}" for turn in session.turns]
            found.append(Passage("\n".join(lines), session.time, tuple(turn.id for turn in session.turns)))
        return [passage for passage in found if passage.sources]


_DECIMALS = 6
"""Of a similarity. Sums of float32 differ in the seventh by where a row stands in the matrix, which would break ties."""

_AT_ONCE = 128  # Turns a call of the embedder: a command that is interrupted ends with the call


class TurnIndex(SessionBuffer):
    """The turns of one store. They are embedded at the first search after they came."""

    def __init__(self, embedder: Embedder, *, with_time: WithTime) -> None:
        super().__init__()
        self._embedder = embedder
        self._with_time = with_time
        self._vectors: Vectors | None = None
        self._embedding = asyncio.Lock()

    async def search(self, query: str, k: int) -> list[Passage]:
        """The `k` most similar turns; equal similarities keep the order of the turns."""
        turns = [(session.time, turn) for session in self.sessions.values() for turn in session.turns]
        if not turns or k < 1:
            return []
        async with self._embedding:
            known = 0 if self._vectors is None else len(self._vectors)
            if texts := [dated(turn.spoken, time, self._with_time) for time, turn in turns[known:]]:
                fresh = [
                    await asyncio.to_thread(self._embedder.documents, texts[begin : begin + _AT_ONCE])
                    for begin in range(0, len(texts), _AT_ONCE)
                ]
                self._vectors = np.concatenate(fresh if self._vectors is None else [self._vectors, *fresh])
        vectors = self._vectors
        assert vectors is not None  # there are turns
        (wanted,) = await asyncio.to_thread(self._embedder.queries, [query])
        similarity = np.round(vectors[: len(turns)] @ wanted, _DECIMALS)
        found = []
        for position in np.argsort(-similarity, kind="stable")[:k]:
            time, turn = turns[position]
            found.append(Passage(turn.spoken, time, (turn.id,), float(similarity[position])))
        return found

    async def reset(self) -> None:
        """Forget everything."""
        await super().reset()
        self._vectors = None


class SentenceIndex(TurnIndex):
    """The user's sentences of one store, each as a turn of its own under the id of the turn that it comes from."""

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Copy what the user says."""
        said = (turn for turn in session.turns if turn.role == "user")
        copied = tuple(replace(turn, text=sentence) for turn in said for sentence in sentences(turn.text))
        self.sessions.setdefault(session.id, replace(session, turns=copied))
        return Ingested(tuple(turn.spoken for turn in copied), {"ADD": len(copied)} if copied else {})


class GoldEvidence(SessionBuffer):
    """The evidence of one store."""

    def __init__(self, evidence: Mapping[str, Sequence[str | Passage]]) -> None:
        super().__init__()
        self._evidence = evidence

    async def search(self, query: str, k: int) -> list[Passage]:
        """The evidence of a question in its order; turns that were not ingested yet are left out."""
        named = self._evidence.get(query, ())
        ids = {item for item in named if isinstance(item, str)}
        said = {
            turn.id: Passage(turn.spoken, session.time, (turn.id,))
            for session in self.sessions.values()
            for turn in session.turns
            if turn.id in ids
        }
        return [passage for item in named if (passage := said.get(item) if isinstance(item, str) else item) is not None]
