"""A context as a memory system takes it in: sessions that are cut wherever a question is asked (PROTOCOLS.md 4.4).

Every question has a history of its own, the messages before it. Histories of one context begin alike, so a store takes the
messages in once, in order, and each question is searched for when exactly its history is in the store.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Literal, NamedTuple

from eval.personamem.loader import ContextFile, Message, Question
from eval.personamem.reference import Block, referenced_block, session_starts
from eval.systems.protocol import DialogueSession, DialogueTurn, StoreKey

BATCH_TURNS = 10
"""Messages an add call, as MemOS feeds them."""

FIRST_DAY = datetime(2024, 1, 1, 9)
"""The data has no dates. Session n is dated n days after this, and its pieces one minute after the other."""

_SHORT = 12
_NAME = re.compile(r"Name:[ \t]*(\S[^\n]*)")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question at its place in a history.

    Attributes:
        key: Of its record.
        question: The question.
        session: Number of the session in which the history ends, from 0.
        turns: How many turns the history has.
        block: What the question refers to; None if that cannot be told.
        evidence: Ids of the turns of that block, those that were fed and are no persona text.
    """

    key: str
    question: Question
    session: int
    turns: int
    block: Block | None
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class Piece:
    """A session, or a part of one, and how many messages of the context are in the store when it has been taken in."""

    stop: int
    session: DialogueSession


@dataclass(frozen=True, slots=True)
class History:
    """One context: a store, what it takes in, and what it is asked.

    Attributes:
        key: The store.
        group: The persona.
        pieces: In order, without gaps; messages that come after every question are left out.
        asked: In the order of the questions file.
    """

    key: StoreKey
    group: str
    pieces: tuple[Piece, ...]
    asked: tuple[Asked, ...]

    def before(self, end: int) -> tuple[DialogueSession, ...]:
        """What the store must hold, and nothing else, when a question with that end index is searched for."""
        return tuple(piece.session for piece in self.pieces if piece.stop <= end)


class Lost(NamedTuple):
    """Why a question cannot be asked: in a word, and in a sentence."""

    kind: Literal["context_missing", "end_out_of_range"]
    reason: str


def store_ids(contexts: Collection[str]) -> dict[str, str]:
    """Ids of stores by ids of contexts: their first characters, if those tell the contexts apart."""
    short = {context: context[:_SHORT] for context in contexts}
    return short if len(set(short.values())) == len(short) else {context: context for context in contexts}


def without_history(question: Question, contexts: ContextFile) -> Lost | None:
    """Why a question has no history; None if it has one."""
    messages = contexts.contexts.get(question.context)
    if messages is None:
        return Lost("context_missing", f"its context {question.context[:_SHORT]} is not in {contexts.name}")
    if not 0 < question.end <= len(messages):
        reason = f"its end index {question.end} is not within its context, which has {len(messages)} messages"
        return Lost("end_out_of_range", reason)
    return None


def history(
    store: str,
    messages: Sequence[Message],
    questions: Sequence[tuple[str, Question]],
    *,
    keep_system: bool,
) -> History:
    """Cut one context at all of its questions.

    All questions decide the cuts, whichever of them are asked, so that a store fits every run.

    Args:
        store: Id of the store.
        messages: The whole context.
        questions: Key of the record and question, at least one; their end indices are within the context.
        keep_system: Whether persona texts are fed.
    """
    starts = session_starts(messages)
    ends = {question.end for _, question in questions}
    bounds = sorted({*(start for start in starts if start < max(ends)), *ends})
    pieces = []
    session, part = -1, 0
    for start, stop in pairwise(bounds):
        session, part = (session + 1, 0) if start in starts else (session, part + 1)
        if turns := _turns(messages, start, stop, keep_system=keep_system):
            time = FIRST_DAY + timedelta(days=session, minutes=part)
            pieces.append(Piece(stop, DialogueSession(f"{start}-{stop - 1}", time, turns)))
    asked = []
    for key, question in questions:
        block = referenced_block(messages, question)
        evidence = () if block is None else _turns(messages, block.start, block.stop, keep_system=False)
        asked.append(
            Asked(
                key=key,
                question=question,
                session=sum(start < question.end for start in starts) - 1,
                turns=len(_turns(messages, 0, question.end, keep_system=keep_system)),
                block=block,
                evidence=frozenset(turn.id for turn in evidence),
            )
        )
    return History(StoreKey(store, _owner(messages), BATCH_TURNS), group_of(questions[0][1]), tuple(pieces), tuple(asked))


def histories(
    questions: Sequence[Question], contexts: Mapping[str, Sequence[Message]], *, keep_system: bool
) -> list[History]:
    """The history of each context, in the order in which questions name them.

    Args:
        questions: Those that have a history, see `without_history`.
        contexts: By id.
        keep_system: Whether persona texts are fed.
    """
    stores = store_ids({question.context for question in questions})
    by_context: dict[str, list[tuple[str, Question]]] = {}
    for question in questions:
        by_context.setdefault(question.context, []).append((record_key(question), question))
    return [
        history(stores[context], contexts[context], members, keep_system=keep_system)
        for context, members in by_context.items()
    ]


def record_key(question: Question) -> str:
    """Names the record of a question: context and row of the file."""
    return f"{question.context[:_SHORT]}/{question.row}"


def group_of(question: Question) -> str:
    """The persona, whose questions are resampled together."""
    return f"persona_{question.persona}"


def _turns(messages: Sequence[Message], start: int, stop: int, *, keep_system: bool) -> tuple[DialogueTurn, ...]:
    return tuple(
        DialogueTurn(str(index), messages[index].role, "", messages[index].content)
        for index in range(start, stop)
        if keep_system or messages[index].role != "system"
    )


def _owner(messages: Sequence[Message]) -> str:
    """The name that the first persona text gives."""
    found = _NAME.search(messages[0].content) if messages[0].role == "system" else None
    return found[1].strip() if found else "the user"
