"""What answerers and judges are asked, and what they must do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from eval.results.records import AnswerRecord, Verdict
from eval.systems.protocol import Passage


@dataclass(frozen=True, slots=True)
class ContextBlock:
    """Passages of one store under a title, for example the memories of one of two speakers.

    Attributes:
        title: Shown above them.
        passages: Best first, which is what the budget keeps.
        by_time: Whether they are shown in the order of their times instead; for systems that do not rank.
    """

    title: str
    passages: tuple[Passage, ...]
    by_time: bool = False


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A question with what was retrieved for it and fits the budget of context tokens.

    Attributes:
        question: As it is asked.
        context: What is shown, in the order in which it is shown.
        options: Of a multiple-choice question, each with its letter, for example ``(a) Tea.``.
        scope: For whom answers are cached (see `deltamem.llm_cache`): the conversation, user or persona.
    """

    question: str
    context: tuple[ContextBlock, ...]
    options: tuple[str, ...] = ()
    scope: str = ""


class Answerer(Protocol):
    """Answers questions from retrieved passages; called concurrently."""

    name: str

    async def answer(self, request: AnswerRequest, run: int) -> AnswerRecord:
        """Answer once; a failure is in the record (`AnswerRecord.error`), never raised.

        Args:
            request: The question.
            run: Number of the answer run, from 0; another run draws anew.
        """
        ...


class Judge(Protocol):
    """Labels something by a prompt of its own; called concurrently."""

    name: str

    async def judge(self, fields: Mapping[str, str], scope: str) -> Verdict:
        """Judge once; a failure is in the verdict (`Verdict.error`), never raised.

        Args:
            fields: What the judge's prompt asks for, for example ``question``, ``gold``, ``answer``.
            scope: For whom verdicts are cached.
        """
        ...
