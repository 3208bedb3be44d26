"""One trial: a user, an agent, what it recalls, the service; and the record of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from deltamem.config import StrictModel
from deltamem.errors import reason_of
from deltamem.window import estimate_tokens
from eval.records import AnswerRecord, Cost
from papers.momento.agent import DONE, Agent, Customer, Model, Toolbox, with_images
from papers.momento.judge import InformationJudge
from papers.momento.policies import DatabaseFailedError
from papers.momento.recall import Recall, RecallRecord
from papers.momento.scores import Action, TrialScores, score_trial
from papers.momento.tasks import MomentoTask
from papers.momento.tools import VIOLATION
from papers.momento.world import World


class ExchangeRecord(StrictModel):
    """A message and the reply to it."""

    message: str
    recalled: RecallRecord
    reply: str
    actions: int  # How many calls had been made after it


class TrialRecord(StrictModel):
    """What happened in one trial; the ``details`` of an answer in ``questions.jsonl``."""

    turns: tuple[ExchangeRecord, ...] = ()
    actions: tuple[Action, ...] = ()
    repeated_calls: int = 0  # Answered from the cache of their round
    unreadable_calls: int = 0  # No actions, because their arguments were no JSON object
    finished: bool = False  # Whether the user was done before the turns were used up
    changes: dict[str, list[str]] = Field(default={})  # By table the rows of the user that came (+) and went (-)
    hashes: dict[str, str] = Field(default={})
    scores: TrialScores | None = None  # None if the trial failed
    error: str | None = None  # Why it did
    costs: dict[str, Cost] = Field(default={})  # Of calls of models: `answer`, `recall`, `user`, `judge`
    cut: dict[str, int] = Field(default={})  # By model, how many of its replies were stopped by the limit of tokens
    seconds: float = 0.0

    @property
    def violations(self) -> int:
        """How many calls broke a rule."""
        return sum(action.result.startswith(VIOLATION) for action in self.actions)


SCORES = ("passed", "state", "coverage", "word_coverage", "tool_recall", "tool_recall_ordered")


def answer_of(trial: TrialRecord, made: str) -> AnswerRecord:
    """A trial as an answer to its task."""
    scores = trial.scores
    return AnswerRecord(
        text=None if scores is None else "\n".join(turn.reply for turn in trial.turns),
        scores={name: 0.0 if scores is None else float(getattr(scores, name)) for name in SCORES},
        error=trial.error,
        # What broke is not the agent's doing, also where it had said nothing before.
        silent=trial.error is None and bool(trial.turns) and not any(turn.reply for turn in trial.turns),
        cut=trial.cut.get("answer", 0) > 0,
        cost=trial.costs.get("answer", Cost()),
        details=trial.model_dump(mode="json"),
        made=made,
    )


def recalled_tokens(trials: Sequence[TrialRecord]) -> int:
    """Estimated tokens of what was recalled for a message, on average."""
    shown = [estimate_tokens("\n".join(turn.recalled.texts)) for trial in trials for turn in trial.turns]
    return round(sum(shown) / len(shown)) if shown else 0


@dataclass
class Trial:
    """What a trial is made of."""

    task: MomentoTask
    world: World  # Reset for it
    toolbox: Toolbox
    agent: Agent
    user: Customer
    recall: Recall
    judge: InformationJudge | None
    most_turns: int
    images: Path | None
    models: Mapping[str, Model]  # By the part that they play; none where a script plays it

    async def run(self) -> TrialRecord:
        """Let them talk, and score what is left; what breaks is noted.

        Raises:
            DatabaseFailedError: If the database has gone away: then no trial can be run.
        """
        started = time.perf_counter()
        before = self.world.state(self.task.user_id)
        turns: list[ExchangeRecord] = []
        finished, scores, error = False, None, None
        try:
            finished = await self._talk(turns)
            scores = await self._score(turns)
        except DatabaseFailedError:
            raise
        except Exception as problem:  # one failed trial must not lose the others
            error = reason_of(problem)
        return TrialRecord(
            turns=tuple(turns),
            actions=tuple(self.toolbox.actions),
            repeated_calls=self.toolbox.repeated,
            unreadable_calls=self.toolbox.unreadable,
            finished=finished,
            changes=_changes(before, self.world.state(self.task.user_id)),
            hashes=self.world.hashes(self.task.user_id),
            scores=scores,
            error=error,
            costs={part: model.cost for part, model in self.models.items()},
            cut={part: model.cut for part, model in self.models.items() if model.cut},
            seconds=round(time.perf_counter() - started, 3),
        )

    async def _talk(self, turns: list[ExchangeRecord]) -> bool:
        """Add turns until the user is done; returns whether that was so before they were used up."""
        reply = None
        for _ in range(self.most_turns):
            text = await self.user.say(reply)
            if DONE in text:
                return True
            message = with_images(text, self.task, self.images)
            recalled = await self.recall(message.text)
            reply = await self.agent.turn(message, recalled.texts)
            turns.append(ExchangeRecord(message=text, recalled=recalled, reply=reply, actions=len(self.toolbox.actions)))
        return False

    async def _score(self, turns: Sequence[ExchangeRecord]) -> TrialScores:
        judged, problem = None, None
        if self.judge is not None and self.task.expected_information:
            transcript = [part for turn in turns for part in (("customer", turn.message), ("assistant", turn.reply))]
            judged, problem = await self.judge.judge(self.task, transcript)
        replies = [turn.reply for turn in turns]
        hashes = self.world.hashes(self.task.user_id)
        return score_trial(self.task, hashes, self.toolbox.actions, replies, judged=judged, judge_error=problem)


def _changes(before: Mapping[str, Sequence[Any]], after: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    changes = {}
    for table, rows in after.items():
        old, new = ([json.dumps(row, default=str) for row in state] for state in (before[table], rows))
        if lines := [f"- {row}" for row in _without(old, new)] + [f"+ {row}" for row in _without(new, old)]:
            changes[table] = lines
    return changes


def _without(rows: Sequence[str], others: Sequence[str]) -> list[str]:
    """Rows without as many of the same as there are others."""
    left = list(rows)
    for row in others:
        if row in left:
            left.remove(row)
    return left
