"""Judges: a model labels an answer, and what it labels can be read or is an error, never a zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deltamem.errors import DeltaMemError
from deltamem.llm import LLM, Answer
from eval.answering.prompts import Prompt
from eval.answering.replies import cost_of, last_object, without_thinking
from eval.results.records import Cost, Verdict

CORRECT, WRONG = QUESTION_LABELS = ("correct", "wrong")
"""Labels of the judges of answers, ``lenient`` and ``strict``."""

QUESTION_FIELDS = ("question", "gold", "answer")
"""Fields of their prompts."""

ABSTAINED, FOOLED, OTHER = ABSTENTION_LABELS = ("abstained", "fooled", "other")
"""Labels of the judge of answers to questions that have none: it says so; it gives the suggested wrong answer; neither."""

ABSTENTION_FIELDS = ("question", "trap", "answer")
"""Fields of its prompt."""

_LONGEST_QUOTED = 200
_LONGEST_REPEATED = 4_000
"""Characters of an unreadable reply that are shown in an error, and to the model when it is asked again."""


class LLMJudge:
    """Asks a model for a JSON object with ``reason``, ``label`` and perhaps more.

    The reply is read with tolerance for what surrounds the object, and strictly as to what it says. A reply that cannot be
    read is shown to the model with a sentence on what is expected; after `attempts` replies the verdict is an error.

    Attributes:
        name: Of the judge, as verdicts are filed.
        prompt: Its own.
    """

    def __init__(
        self,
        name: str,
        llm: LLM,
        prompt: Prompt,
        labels: Sequence[str],
        *,
        flags: Mapping[str, Sequence[str]] | None = None,
        temperature: float,
        max_tokens: int | None,
        seed: int | None,
        attempts: int,
    ) -> None:
        """Describe the judge.

        Args:
            name: See the class.
            llm: The model.
            prompt: Asks for the labels and flags; its fields are what `judge` is given.
            labels: What ``label`` may be; case does not matter, and a number counts as its digits.
            flags: Further keys of the object with what each may be.
            temperature: Of the sampling.
            max_tokens: Limit of a reply, thinking included.
            seed: Of the sampling; the nth attempt adds n to it.
            attempts: Replies to ask for, at most.
        """
        self.name = name
        self.prompt = prompt
        self._llm = llm
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._seed = seed
        self._attempts = attempts
        allowed = {"label": labels, **(flags or {})}
        self._allowed = {key.casefold(): (key, {value.casefold(): value for value in allowed[key]}) for key in allowed}
        self._expected = "Reply with one JSON object only, in which " + ", ".join(
            f'"{key}" is {" or ".join(map(repr, values))}' for key, values in allowed.items()
        )

    async def judge(self, fields: Mapping[str, str], scope: str) -> Verdict:
        """Judge once. See `Judge`."""
        asked = {"role": "user", "content": self.prompt.fill(**fields)}
        messages = [asked]
        cost = Cost()
        problem = ""
        for attempt in range(self._attempts):
            try:
                answer = await self._llm.chat(
                    messages,
                    temperature=self._temperature,
                    max_tokens=self._max_tokens,
                    seed=self._seed,
                    scope=scope,
                    sample=attempt,
                )
            except DeltaMemError as error:
                return Verdict(label=None, error=str(error), cost=cost)
            cost += cost_of(answer)
            text = without_thinking(answer.text)
            verdict = self._read(text, cost)
            if verdict is not None:
                return verdict
            problem = self._problem(answer, text)
            messages = [asked]
            if text:  # servers refuse empty messages, and two of the user's in a row
                messages.append({"role": "assistant", "content": text[:_LONGEST_REPEATED]})
                messages.append({"role": "user", "content": f"That cannot be read. {self._expected}."})
        replies = f"{self._attempts} replies, the last" if self._attempts > 1 else "its reply"
        return Verdict(label=None, error=f"the judge {self.name!r} gave no verdict in {replies}: {problem}", cost=cost)

    def _read(self, text: str, cost: Cost) -> Verdict | None:
        found = last_object(text, self._allowed)
        if found is None:
            return None
        values = {}
        for lowered, (key, allowed) in self._allowed.items():
            value = allowed.get(found[lowered].strip(" .").casefold())
            if value is None:
                return None
            values[key] = value
        return Verdict(label=values.pop("label"), flags=values, reason=found.get("reason", ""), cost=cost)

    def _problem(self, answer: Answer, text: str) -> str:
        said = repr(text if len(text) <= _LONGEST_QUOTED else text[:_LONGEST_QUOTED] + "...") if text else "nothing"
        return f"{said} (stopped at {self._max_tokens} tokens)" if answer.truncated else said
