"""The judge of what a customer was told, and how often it is wrong on conversations of which it is known."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, StrictBool, ValidationError

from deltamem.errors import DeltaMemError
from deltamem.prompts import Prompt
from deltamem.replies import last_object, without_thinking
from eval.benchmark import AskContext
from eval.judge import error_rates, failures, words
from eval.records import Verdict
from papers.momento.agent import Model
from papers.momento.data import MomentoConfig
from papers.momento.tasks import MomentoTask

JUDGE = "information"
"""Name of the judge in summaries."""

MOST_TASKS = 20
"""Tasks that the judge is measured on, twice each."""

NOTHING = "I am sorry, I do not know what you mean."


@dataclass(frozen=True)
class InformationJudge:
    """Asks a model which pieces of information the user was given."""

    model: Model
    prompt: Prompt
    attempts: int

    async def judge(self, task: MomentoTask, transcript: Sequence[tuple[str, str]]) -> tuple[list[bool] | None, str | None]:
        """The verdicts, or why there are none."""
        items = [
            {"index": number, **item.model_dump(include={"description", "reference_answer"})}
            for number, item in enumerate(task.expected_information)
        ]
        content = self.prompt.fill(
            instruction=task.instruction,
            conversation="\n".join(f"{role}: {text}" for role, text in transcript),
            items=json.dumps(items, ensure_ascii=False, indent=1),
        )
        messages: list[dict[str, object]] = [{"role": "user", "content": content}]
        problem = ""
        for _ in range(self.attempts):
            try:
                answer = await self.model.chat(messages)
                return read_verdicts(without_thinking(answer.text), len(items)), None
            except DeltaMemError as error:
                problem = str(error)
                messages[1:] = [{"role": "user", "content": "That cannot be read. Reply with the JSON object only."}]
        return None, problem


def judge_of(context: AskContext, config: MomentoConfig, scope: str, trial: int = 1) -> InformationJudge | None:
    """The judge of a run in a scope of its own; None where none is asked."""
    if context.judge is None:
        return None
    model = Model(context.judge, config.judge, config.seed, scope, trial)
    return InformationJudge(model, context.prompts["momento_judge"], config.judge.attempts)


class _Covered(BaseModel):
    index: int
    covered: StrictBool


class _Coverage(BaseModel):
    results: list[_Covered]


def read_verdicts(text: str, count: int) -> list[bool]:
    """What a judge said of each piece of information; a `DeltaMemError` if that cannot be read, or a piece is missing."""

    def accept(value: dict[str, Any]) -> list[bool] | None:
        try:
            covered = {one.index: one.covered for one in _Coverage.model_validate(value).results}
        except ValidationError:
            return None
        return [covered[number] for number in range(count)] if set(covered) == set(range(count)) else None

    if (verdicts := last_object(text, accept)) is None:
        raise DeltaMemError(f"the judge's reply cannot be read: {text[:200]!r}")
    return verdicts


@dataclass(frozen=True)
class KnownReply:
    """A reply to one message, and whether it gives the customer all of the information or none."""

    task: MomentoTask
    kind: str
    reply: str
    right: bool


def known_replies(tasks: Sequence[MomentoTask], seed: int) -> list[KnownReply]:
    """A right and a wrong reply to each of some tasks, drawn from those that expect information.

    A right one says all that is expected; a wrong one says nothing, or in every second task what another task expects.
    """
    asked = [task for task in tasks if task.expected_information and all(map(words, _answers(task)))]
    drawn = random.Random(seed).sample(asked, min(MOST_TASKS, len(asked)))
    replies = []
    for number, task in enumerate(drawn):
        replies.append(KnownReply(task, "all of it", _reply(task, _answers(task)), right=True))
        own = set().union(*map(words, _answers(task)))
        others = (answer for other in drawn for answer in _answers(other) if own.isdisjoint(words(answer)))
        if number % 2 and (other := next(others, None)) is not None:
            wrong = _reply(task, [other] * len(task.expected_information))
            replies.append(KnownReply(task, "another's", wrong, right=False))
        else:
            replies.append(KnownReply(task, "nothing", NOTHING, right=False))
    return replies


def _answers(task: MomentoTask) -> list[str]:
    return [item.reference_answer or "" for item in task.expected_information]


def _reply(task: MomentoTask, answers: Sequence[str]) -> str:
    pieces = zip(task.expected_information, answers, strict=True)
    return " ".join(f"You asked {item.description}: {answer}." for item, answer in pieces)


async def calibrate(judge: InformationJudge, tasks: Sequence[MomentoTask], seed: int) -> dict[str, Any]:
    """Let the judge judge known replies, all at once.

    Returns:
        As `eval.judge.measure`: ``false_accept`` is the share of the wrong replies that were said to give something, and
        ``false_reject`` that of the right ones that were said to leave something out.
    """
    replies = known_replies(tasks, seed)
    talks = [[("customer", one.task.opening or one.task.instruction), ("assistant", one.reply)] for one in replies]
    judged = await asyncio.gather(*(judge.judge(one.task, talk) for one, talk in zip(replies, talks, strict=True)))
    known = [
        (one, all(verdicts) if one.right else any(verdicts))
        for one, (verdicts, _) in zip(replies, judged, strict=True)
        if verdicts is not None
    ]
    wrong = [one for one, accepted in known if accepted is not one.right]
    verdicts = [Verdict(label=None if given is None else JUDGE, error=problem) for given, problem in judged]
    return {
        "judge": JUDGE,
        **error_rates((one.kind, one.right, accepted) for one, accepted in known),
        "wrong": [{"task": one.task.task_id, "kind": one.kind, "answer": one.reply} for one in wrong],
        **failures(verdicts),
        "cost": judge.model.cost.model_dump(),
    }
