"""Trials: a user, an agent, what it recalls and the service; and the databases, models and scripts that all trials share."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from deltamem.errors import DeltaMemError, reason_of
from eval.benchmark import AskContext
from eval.models import CANARY, find_window
from eval.records import QuestionRecord
from eval.systems.base import Memory
from papers.momento.agent import (
    DONE,
    LLMAgent,
    LLMUser,
    Model,
    ScriptedAgent,
    ScriptedUser,
    Toolbox,
    check_room,
    with_images,
)
from papers.momento.data import GIVEN_SUMMARIES, MomentoConfig
from papers.momento.facts import FactReader
from papers.momento.judge import judge_of
from papers.momento.policies import DatabaseFailedError
from papers.momento.recall import MemoryRecall, Recall, SummaryRecall, summary_rows
from papers.momento.scores import ExchangeRecord, TrialRecord, TrialScores, answer_of, recalled_tokens, score_trial
from papers.momento.tasks import MomentoTask
from papers.momento.world import Catalogue, World


class Trial:
    """A user and an agent who talk, in a world that was reset for them."""

    def __init__(self, shared: Trials, task: MomentoTask, number: int, world: World, memory: Memory) -> None:
        config, context = shared.config, shared.context
        prompts, scope = context.prompts, f"task {task.task_id}"
        self.task, self.world, self.config, self.toolbox = task, world, config, Toolbox(world)
        self.agent: LLMAgent | ScriptedAgent = ScriptedAgent(self.toolbox, task, shared.reader)
        self.user: LLMUser | ScriptedUser = ScriptedUser(task)
        self.models: dict[str, Model] = {}  # By the part that they play; none where a script plays it
        if context.answer is not None and shared.user is not None:
            model, writer = (Model(context.answer, config.answer, config.seed, scope, number) for _ in range(2))
            self.models = {"answer": model, "recall": writer, "user": shared.user.of_trial(scope, number)}
            shown = prompts["answer"], prompts["momento_summary"]
            self.agent = LLMAgent(model, self.toolbox, task, *shown, config.rounds, shared.window)
            self.user = LLMUser(self.models["user"], task, prompts["momento_user"])
        fixed = task.opening if config.system == "oracle" else None
        self.recall: Recall = MemoryRecall(memory, config.k, config.with_time, fixed)
        if config.system == GIVEN_SUMMARIES:
            written_by = self.models.get("recall")
            self.recall = SummaryRecall(world, task, context.embedder, written_by, prompts["momento_recall"])
        if (judge := judge_of(context, config, scope, number)) is not None:
            self.models["judge"] = judge.model
        self.judge = judge

    async def run(self) -> TrialRecord:
        """Let them talk, and score what is left; what breaks is noted, but for a database that has gone away."""
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
        for _ in range(self.config.turns):
            text = await self.user.say(reply)
            if DONE in text:
                return True
            message = with_images(text, self.task, self.config.images)
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
        old, new = (Counter(json.dumps(row, default=str) for row in state) for state in (before[table], rows))
        if lines := [f"- {row}" for row in (old - new).elements()] + [f"+ {row}" for row in (new - old).elements()]:
            changes[table] = lines
    return changes


@asynccontextmanager
async def open_trials(
    config: MomentoConfig, tasks: Mapping[str, MomentoTask], catalogue: Catalogue, context: AskContext
) -> AsyncIterator[Trials]:
    """Open databases, and the model that plays the user if models play.

    Raises:
        DeltaMemError: If a server or model cannot be used, or the agent's window has no room for a conversation.
    """
    try:
        from papers.momento.database import open_databases
    except ImportError as error:
        raise DeltaMemError(f"Momento needs {error.name}; install it with: pip install 'deltamem[momento]'") from error
    async with AsyncExitStack() as stack:
        trials = Trials(config, tasks, context, FactReader(catalogue), asyncio.Queue(), config.context_tokens)
        if context.answer is not None:
            served = await find_window("answer", context.answer, config.answer)
            trials.window = min(trials.window, served or trials.window)
            check_room(context.prompts["answer"], config.answer, trials.window)
            llm = config.user.client("user", context.cache)
            stack.push_async_callback(llm.close)
            await llm.check([{"role": "user", "content": CANARY}])  # the other models were asked just now
            trials.user = Model(llm, config.user, config.seed)
        count = min(config.stores_at_once, len(tasks))
        for database in stack.enter_context(open_databases(config.database, count)):
            trials.worlds.put_nowait(World(database, catalogue))
        yield trials


@dataclass
class Trials:
    """What trials share; each takes place in the next world that is free."""

    config: MomentoConfig
    tasks: Mapping[str, MomentoTask]  # By key of the question
    context: AskContext
    reader: FactReader
    worlds: asyncio.Queue[World]
    window: int  # Of the agent, in tokens
    user: Model | None = None  # None if a script plays

    async def __call__(self, question: QuestionRecord, memory: Memory) -> AsyncIterator[QuestionRecord]:
        """See `eval.benchmark.Asker`: the trials that are missing or failed, one after the other."""
        task, made = self.tasks[question.key], self.context.made
        answers = dict(enumerate(question.answers, start=1))
        world = await self.worlds.get()
        try:
            for number in range(1, self.config.trials + 1):
                if number in answers and answers[number].error is None:
                    continue
                answers[number] = answer_of(await self._trial(task, number, world, memory), made)
                kept = tuple(answers[number] for number in sorted(answers))
                tokens = recalled_tokens([TrialRecord.model_validate(answer.details) for answer in kept])
                yield question.model_copy(update={"answers": kept, "context_tokens": tokens, "made": made})
        finally:
            self.worlds.put_nowait(world)

    async def _trial(self, task: MomentoTask, number: int, world: World, memory: Memory) -> TrialRecord:
        rows: Sequence[Mapping[str, object]] = ()
        shown_to = task.user_id if self.config.shows_sessions else None
        try:
            if self.config.system == GIVEN_SUMMARIES or shown_to is not None:
                rows = await asyncio.to_thread(summary_rows, task, self.context.embedder)
            await asyncio.to_thread(world.reset, task.current_date, task.seed_data, rows, sessions_of=shown_to)
        except DatabaseFailedError:
            raise
        except Exception as error:  # rows of this task that the database refuses must not lose the others
            return TrialRecord(error=f"its state could not be made: {reason_of(error)}")
        return await Trial(self, task, number, world, memory).run()
