"""Runs the trials of tasks: databases, models and scripts that all of them share, and who plays in each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from deltamem.errors import DeltaMemError, reason_of
from eval.benchmark import AskContext
from eval.models import CANARY, find_window
from eval.records import QuestionRecord
from eval.systems.base import Memory
from papers.momento.agent import Agent, Customer, LLMAgent, LLMUser, Model, ScriptedAgent, ScriptedUser, Toolbox, check_room
from papers.momento.data import MomentoConfig
from papers.momento.facts import FactReader
from papers.momento.judge import InformationJudge
from papers.momento.policies import DatabaseFailedError
from papers.momento.recall import GIVEN_SUMMARIES, MemoryRecall, Recall, SummaryRecall, summary_rows
from papers.momento.tasks import MomentoTask
from papers.momento.trial import Trial, TrialRecord, answer_of, recalled_tokens
from papers.momento.world import Catalogue, World


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
        try:
            if self.config.system == GIVEN_SUMMARIES:
                rows = await asyncio.to_thread(summary_rows, task, self.context.embedder)
            await asyncio.to_thread(world.reset, task.current_date, task.seed_data, rows)
        except DatabaseFailedError:
            raise
        except Exception as error:  # rows of this task that the database refuses must not lose the others
            return TrialRecord(error=f"its state could not be made: {reason_of(error)}")
        return await self._cast(task, number, world, memory).run()

    def _cast(self, task: MomentoTask, number: int, world: World, memory: Memory) -> Trial:
        config, context, prompts, toolbox = self.config, self.context, self.context.prompts, Toolbox(world)
        scope, models = f"task {task.task_id}", {}
        agent: Agent = ScriptedAgent(toolbox, task, self.reader)
        user: Customer = ScriptedUser(task)
        if context.answer is not None and self.user is not None:
            models = {
                part: Model(context.answer, config.answer, config.seed, scope, number) for part in ("answer", "recall")
            }
            models["user"] = self.user.of_trial(scope, number)
            agent = LLMAgent(
                models["answer"],
                toolbox,
                task,
                prompts["answer"],
                prompts["momento_summary"],
                rounds=config.rounds,
                context_tokens=self.window,
            )
            user = LLMUser(models["user"], task, prompts["momento_user"])
        if config.system == GIVEN_SUMMARIES:
            prompt = prompts["momento_recall"]
            recall: Recall = SummaryRecall(world, task, context.embedder, models.get("recall"), prompt)
        else:
            recall = MemoryRecall(memory, config.k, config.with_time, task.opening if config.system == "oracle" else None)
        judge = None
        if context.judge is not None:
            models["judge"] = Model(context.judge, config.judge, config.seed, scope, number)
            judge = InformationJudge(models["judge"], prompts["momento_judge"], config.judge.attempts)
        return Trial(task, world, toolbox, agent, user, recall, judge, config.turns, config.images, models)
