"""One trial: a user, an agent, what it recalls, the service; and the record of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from deltamem.config import StrictModel
from deltamem.errors import DeltaMemError, reason_of
from deltamem.prompts import Prompt
from deltamem.replies import without_thinking
from eval.answer import cost_of
from eval.records import Cost
from papers.momento.agent import DONE, Agent, Model, Toolbox, User, with_images
from papers.momento.recall import Recall, Recalled, judge_conversation, read_verdicts
from papers.momento.scores import Action, TrialScores, score_trial
from papers.momento.tasks import Task
from papers.momento.tools import VIOLATION
from papers.momento.world import World


class TurnRecord(StrictModel):
    """A message and the reply to it."""

    said: str
    recalled: Recalled
    reply: str
    actions: int  # How many calls had been made after it


class TrialRecord(StrictModel):
    """One trial of one task; one line of ``trials.jsonl``."""

    task: int
    trial: int  # From 1
    kind: str = ""
    turns: tuple[TurnRecord, ...] = ()
    actions: tuple[Action, ...] = ()
    repeated_calls: int = 0  # Answered from the cache of their round
    unreadable_calls: int = 0  # No actions, because their arguments were no JSON object
    finished: bool = False  # Whether the user was done before the turns were used up
    changes: dict[str, list[str]] = Field(default={})  # By table the rows of the user that came (+) and went (-)
    hashes: dict[str, str] = Field(default={})
    scores: TrialScores | None = None  # None if the trial failed
    error: str | None = None  # Why it did
    agent_cost: Cost = Cost()  # Here and below: of calls of models
    recall_cost: Cost = Cost()
    user_cost: Cost = Cost()
    judge_cost: Cost = Cost()
    cut: dict[str, int] = Field(default={})  # By model, how many of its replies were stopped by the limit of tokens
    seconds: float = 0.0
    made: str = ""  # Short hash of the fingerprint under which it was made

    @property
    def key(self) -> str:
        """Names the record."""
        return f"{self.task}/{self.trial}"

    @property
    def violations(self) -> int:
        """How many calls broke a rule."""
        return sum(action.result.startswith(VIOLATION) for action in self.actions)


@dataclass(frozen=True)
class InformationJudge:
    """Asks a model which pieces of information the user was given."""

    model: Model
    prompt: Prompt
    attempts: int

    async def judge(self, task: Task, transcript: Sequence[tuple[str, str]]) -> tuple[list[bool] | None, str | None, Cost]:
        """The verdicts, or why there are none; and what they cost."""
        items = [
            {"index": number, **item.model_dump(include={"description", "reference_answer"})}
            for number, item in enumerate(task.expected_information)
        ]
        content = self.prompt.fill(
            instruction=task.instruction,
            conversation=judge_conversation(transcript),
            items=json.dumps(items, ensure_ascii=False, indent=1),
        )
        messages: list[dict[str, object]] = [{"role": "user", "content": content}]
        cost, problem = Cost(), ""
        for _ in range(self.attempts):
            try:
                answer = await self.model.chat(messages)
                cost += cost_of(answer)
                return read_verdicts(without_thinking(answer.text), len(items)), None, cost
            except DeltaMemError as error:
                problem = str(error)
                messages = [
                    *messages[:1],
                    {"role": "user", "content": "That cannot be read. Reply with the JSON object only."},
                ]
        return None, problem, cost


@dataclass
class Trial:
    """What a trial is made of."""

    task: Task
    number: int
    world: World  # Reset for it
    toolbox: Toolbox
    agent: Agent
    user: User
    recall: Recall
    judge: InformationJudge | None
    most_turns: int
    images: Path | None
    made: str
    models: Mapping[str, Model | None] = field(default_factory=dict)  # By the configuration group of the part they play

    async def run(self) -> TrialRecord:
        """Let them talk, and score what is left; what breaks is noted."""
        started = time.perf_counter()
        before = self.world.state(self.task.user_id)
        turns: list[TurnRecord] = []
        finished, scores, error, judge_cost = False, None, None, Cost()
        try:
            finished = await self._talk(turns)
            scores, judge_cost = await self._scores(turns)
        except Exception as problem:  # one failed trial must not lose the others
            error = reason_of(problem)
        after = self.world.state(self.task.user_id)
        return TrialRecord(
            task=self.task.task_id,
            trial=self.number,
            kind=self.task.kind,
            turns=tuple(turns),
            actions=tuple(self.toolbox.actions),
            repeated_calls=self.toolbox.repeated,
            unreadable_calls=self.toolbox.unreadable,
            finished=finished,
            changes=_changes(before, after),
            hashes=self.world.hashes(self.task.user_id),
            scores=scores,
            error=error,
            agent_cost=self.agent.cost,
            recall_cost=self.recall.cost,
            user_cost=self.user.cost,
            judge_cost=judge_cost,
            cut={part: model.cut for part, model in self.models.items() if model is not None and model.cut},
            seconds=round(time.perf_counter() - started, 3),
            made=self.made,
        )

    async def _talk(self, turns: list[TurnRecord]) -> bool:
        reply = None
        for _ in range(self.most_turns):
            said = await self.user.say(reply)
            if DONE in said:
                return True
            message = with_images(said, self.task, self.images)
            recalled = await self.recall(message.text)
            reply = await self.agent.turn(message, recalled.texts)
            turns.append(TurnRecord(said=said, recalled=recalled, reply=reply, actions=len(self.toolbox.actions)))
        return False

    async def _scores(self, turns: Sequence[TurnRecord]) -> tuple[TrialScores, Cost]:
        judged, problem, cost = None, None, Cost()
        if self.judge is not None and self.task.expected_information:
            transcript = [part for turn in turns for part in (("customer", turn.said), ("assistant", turn.reply))]
            judged, problem, cost = await self.judge.judge(self.task, transcript)
        replies = [turn.reply for turn in turns]
        hashes = self.world.hashes(self.task.user_id)
        return score_trial(self.task, hashes, self.toolbox.actions, replies, judged=judged, judge_error=problem), cost


def _changes(before: Mapping[str, Sequence[Any]], after: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    found = {}
    for table, rows in after.items():
        old, new = ([json.dumps(row, default=str) for row in one] for one in (before[table], rows))
        lines = [f"- {row}" for row in _less(old, new)] + [f"+ {row}" for row in _less(new, old)]
        if lines:
            found[table] = lines
    return found


def _less(rows: Sequence[str], others: Sequence[str]) -> list[str]:
    left = list(rows)
    for row in others:
        if row in left:
            left.remove(row)
    return left
