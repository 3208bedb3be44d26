"""One question from retrieval to verdicts: the context is cut to the budget, answered, scored and judged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from eval.answering.context import cut_to_budget
from eval.answering.protocol import Answerer, AnswerRequest, ContextBlock, Judge
from eval.results.records import AnswerRecord, QuestionRecord, Verdict


class ToJudge(NamedTuple):
    """That an answer is to be shown to a judge, with the fields of the judge's prompt."""

    judge: Judge
    fields: Mapping[str, str]


@dataclass(frozen=True)
class Asking:
    """How questions are answered and judged.

    Attributes:
        answerer: Answers.
        runs: Answers to each question.
        context_tokens: Budget of estimated tokens for all blocks together.
        with_time: Whether dates are shown, and therefore counted.
        score: Lexical scores of an answer, given the question's record.
        to_judge: Who judges an answer, given the question's record and the answer's text.
    """

    answerer: Answerer
    runs: int
    context_tokens: int
    with_time: bool
    score: Callable[[QuestionRecord, str], Mapping[str, float]]
    to_judge: Callable[[QuestionRecord, str], Sequence[ToJudge]] = field(default=lambda record, text: ())

    async def ask(
        self, record: QuestionRecord, question: str, blocks: Sequence[ContextBlock], options: tuple[str, ...] = ()
    ) -> QuestionRecord:
        """Answer a question in all runs at once and judge the answers.

        Answers and verdicts of an earlier attempt that did not fail are kept.

        Args:
            record: The question, with what was retrieved.
            question: The question as the answerer is asked.
            blocks: The passages, best first in each block.
            options: Of a multiple-choice question.

        Returns:
            The record with its answers; failures are in it.
        """
        shown = cut_to_budget(blocks, self.context_tokens, with_time=self.with_time)
        request = AnswerRequest(question, shown.blocks, options, scope=record.group)
        before = {run: answer for run, answer in enumerate(record.answers) if answer.error is None}
        answers = await asyncio.gather(*(self._run(record, request, run, before.get(run)) for run in range(self.runs)))
        return record.model_copy(update={"answers": tuple(answers), "shown": shown.passages, "context_tokens": shown.tokens})

    async def _run(
        self, record: QuestionRecord, request: AnswerRequest, run: int, before: AnswerRecord | None
    ) -> AnswerRecord:
        answer = before or await self.answerer.answer(request, run)
        if answer.text is None:
            return answer
        missing = [
            asked
            for asked in self.to_judge(record, answer.text)
            if asked.judge.name not in answer.verdicts or answer.verdicts[asked.judge.name].error
        ]
        verdicts: list[Verdict] = await asyncio.gather(
            *(asked.judge.judge(asked.fields, request.scope) for asked in missing)
        )
        judged = {asked.judge.name: verdict for asked, verdict in zip(missing, verdicts, strict=True)}
        return answer.model_copy(
            update={"scores": dict(self.score(record, answer.text)), "verdicts": answer.verdicts | judged}
        )
