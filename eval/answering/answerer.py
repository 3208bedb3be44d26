"""A model that answers a question from the passages it is shown."""

from __future__ import annotations

from deltamem.errors import DeltaMemError
from deltamem.llm import LLM
from eval.answering.context import render_all
from eval.answering.prompts import Prompt
from eval.answering.protocol import AnswerRequest
from eval.answering.replies import cost_of, without_thinking
from eval.results.records import AnswerRecord, Cost

NOTHING_FOUND = "(nothing was found)"
"""Shown to the model in place of passages if there are none."""

_DRAWS = 2
"""How often a model that says nothing is asked."""

_REDRAW = 1_000
"""Added to the number of the run for the second draw, so that it is no other run's first."""


class LLMAnswerer:
    """Sends one user message for each answer.

    Attributes:
        name: ``llm``.
        prompt: With the fields ``context`` and ``question``, and ``options`` if questions are multiple choice.
    """

    name = "llm"

    def __init__(
        self, llm: LLM, prompt: Prompt, *, temperature: float, max_tokens: int | None, seed: int | None, with_time: bool
    ) -> None:
        """Describe how questions are asked.

        Args:
            llm: The model.
            prompt: See the class.
            temperature: Of the sampling.
            max_tokens: Limit of an answer, thinking included. An answer that reaches it is kept as far as it goes.
            seed: Of the sampling; run n adds n to it.
            with_time: Whether the passages are shown with their dates.
        """
        self.prompt = prompt
        self._llm = llm
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._seed = seed
        self._with_time = with_time

    async def answer(self, request: AnswerRequest, run: int) -> AnswerRecord:
        """Answer once; an answer without a word is drawn once more and then an error. See `Answerer`."""
        context = render_all(request.context, with_time=self._with_time) or NOTHING_FOUND
        content = self.prompt.fill(context=context, question=request.question, options="\n".join(request.options))
        cost = Cost()
        truncated = False
        for draw in range(_DRAWS):
            try:
                answer = await self._llm.chat(
                    [{"role": "user", "content": content}],
                    temperature=self._temperature,
                    max_tokens=self._max_tokens,
                    seed=self._seed,
                    scope=request.scope,
                    sample=run + draw * _REDRAW,
                )
            except DeltaMemError as error:
                return AnswerRecord(text=None, error=str(error), cost=cost)
            cost += cost_of(answer)
            text = without_thinking(answer.text)
            if text:
                return AnswerRecord(text=text, cost=cost)
            truncated = answer.truncated
        why = f" within {self._max_tokens} tokens" if truncated else ""
        return AnswerRecord(text=None, error=f"the answerer returned nothing{why}", cost=cost)
