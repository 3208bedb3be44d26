"""How often the judge of what a customer was told is wrong, on conversations of which it is known.

Each is one message and one reply about a task of the data. A right reply says every piece of information that is
expected; a wrong one says what another task expects, or nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval.judge import error_rates, failures, words
from eval.records import Verdict
from papers.momento.tasks import Task
from papers.momento.trial import InformationJudge

JUDGE = "information"
"""Name of the judge in summaries."""

MOST_TASKS = 20
"""Tasks that the judge is asked about, twice each."""

NOTHING = "I am sorry, I do not know what you mean."


@dataclass(frozen=True)
class KnownReply:
    """A reply, and whether it gives the customer all of the information or none."""

    task: Task
    kind: str
    reply: str
    right: bool


def known_replies(tasks: Sequence[Task], seed: int) -> list[KnownReply]:
    """A right and a wrong reply to each of some tasks, drawn from those that expect information."""
    asked = [task for task in tasks if task.expected_information and all(map(words, _answers(task)))]
    drawn = random.Random(seed).sample(asked, min(MOST_TASKS, len(asked)))
    found = []
    for number, task in enumerate(drawn):
        found.append(KnownReply(task, "all of it", _told(task, _answers(task)), right=True))
        own = set().union(*map(words, _answers(task)))
        others = (answer for other in drawn for answer in _answers(other) if own.isdisjoint(words(answer)))
        other = next(others, None) if number % 2 else None
        if other is None:
            found.append(KnownReply(task, "nothing", NOTHING, right=False))
        else:
            found.append(KnownReply(task, "another's", _told(task, [other] * len(task.expected_information)), right=False))
    return found


async def calibrate(judge: InformationJudge, tasks: Sequence[Task], seed: int) -> dict[str, Any]:
    """Let the judge judge known replies, all at once.

    Returns:
        As `eval.judge.measure`: ``false_accept`` is the share of the wrong replies that were said to give something, and
        ``false_reject`` that of the right ones that were said to leave something out.
    """
    replies = known_replies(tasks, seed)
    asked = [[("customer", one.task.opening or one.task.instruction), ("assistant", one.reply)] for one in replies]
    judged = await asyncio.gather(*(judge.judge(one.task, said) for one, said in zip(replies, asked, strict=True)))
    known = [
        (one, all(verdicts) if one.right else any(verdicts))
        for one, (verdicts, _, _) in zip(replies, judged, strict=True)
        if verdicts is not None
    ]
    wrong = [one for one, accepted in known if accepted is not one.right]
    verdicts = [Verdict(label=None if given is None else JUDGE, error=problem, cost=cost) for given, problem, cost in judged]
    return {
        "judge": JUDGE,
        **error_rates((one.kind, one.right, accepted) for one, accepted in known),
        "wrong": [{"task": one.task.task_id, "kind": one.kind, "answer": one.reply} for one in wrong],
    } | failures(verdicts)


def _answers(task: Task) -> list[str]:
    return [item.reference_answer or "" for item in task.expected_information]


def _told(task: Task, answers: Sequence[str]) -> str:
    pieces = zip(task.expected_information, answers, strict=True)
    return " ".join(f"You asked {item.description}: {answer}." for item, answer in pieces)
