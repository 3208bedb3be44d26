"""``python -m papers.momento``: a memory system under an agent that has to do the right thing, by models or by a script.

Exit code 0; 1 if trials failed or records could not be read (they are counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PositiveInt

from deltamem.config import run_hydra, validated
from deltamem.errors import DeltaMemError, reason_of
from deltamem.html import write_page
from deltamem.llm import LLM
from eval import runner
from eval.benchmark import AskContext, Asker, Benchmark, Report, Results, Step, Timeline
from eval.config import BenchmarkConfig, ModelSettings
from eval.data import nothing_usable
from eval.models import CANARY, find_window
from eval.records import QuestionRecord
from eval.summary import Summary
from eval.systems.base import Memory, StoreKey, System
from eval.systems.baselines import Evidence
from papers.momento.agent import Agent, LLMAgent, LLMUser, Model, ScriptedAgent, ScriptedUser, Toolbox, User, check_room
from papers.momento.facts import FactReader
from papers.momento.judge import InformationJudge, calibrate
from papers.momento.mini import mini_catalogue, mini_tasks
from papers.momento.recall import GIVEN_SUMMARIES, MemoryRecall, Recall, SummaryRecall, dialogue_sessions, summary_rows
from papers.momento.report import (
    SCORES,
    answer_of,
    context_tokens,
    further_costs,
    judged_by,
    page,
    run_scores,
    table,
    trial_counts,
    trial_line,
    trial_warnings,
    trials_of,
)
from papers.momento.tasks import Task, read_tasks
from papers.momento.trial import Trial, TrialRecord
from papers.momento.world import World, read_catalogue

if TYPE_CHECKING:
    from omegaconf import DictConfig

TRIALS_PAGE = "trials.html"
_PROMPTS = "papers.momento.prompts:momento_"
_SCRIPTED = "scripted"


class MomentoConfig(BenchmarkConfig):
    """All keys of the command; ``configs/momento.yaml`` says what they mean."""

    database: str
    world: Path | None
    images: Path | None
    trials: PositiveInt
    turns: PositiveInt
    rounds: PositiveInt
    k: PositiveInt
    context_tokens: PositiveInt
    user: ModelSettings

    def check(self) -> None:
        """Refuse what cannot be run."""
        super().check()
        if (self.data is None) != (self.world is None):
            raise DeltaMemError("data=FILE and world=FOLDER go together: published tasks take place in the published world")
        if self.data is not None and not self.by_model:
            raise DeltaMemError("the script knows momento-mini only; published tasks need base_url=... answer.model=...")
        if self.data is not None and self.system == "oracle":
            raise DeltaMemError("system=oracle needs gold evidence, which the published tasks do not have")
        if self.estimate or self.budgets or self.answers_from:
            raise DeltaMemError("estimate, budgets and answers_from are not for this benchmark")

    @property
    def by_model(self) -> bool:
        """Whether the agent is a model."""
        return self.answer.model is not None

    @property
    def runs(self) -> int:
        """Trials of each task."""
        return self.trials

    def run_config(self) -> dict[str, Any]:
        """What decides the records, apart from data and prompts."""
        own = self.model_dump(mode="json", include={"trials", "turns", "rounds", "k", "context_tokens"})
        return super().run_config() | own | {"user": self.user.run_config() if self.by_model else None}


class Momento(Benchmark[MomentoConfig]):
    """A timeline for each task: its past sessions, then the task, whose answers are conversations of an agent."""

    name = "Momento"
    config_type = MomentoConfig
    config_dir = Path(__file__).parent / "configs"
    search_state = "session"
    answer_prompt = f"{_PROMPTS}agent"
    answer_fields = ("user_id", "date", "memory", "rounds")
    prompts: Mapping[str, Sequence[str]] = {
        f"{_PROMPTS}user": ("date", "instruction", "images"),
        f"{_PROMPTS}recall": ("date", "message"),
        f"{_PROMPTS}judge": ("instruction", "conversation", "items"),
        f"{_PROMPTS}summary": ("messages",),
    }
    asks = True
    tables = (table,)

    def __init__(self, config: MomentoConfig) -> None:
        self.config, self.k = config, config.k
        if config.data is None or config.world is None:
            self.tasks, self.catalogue = mini_tasks(config.seed), mini_catalogue(config.seed)
        else:
            self.tasks, self.catalogue = read_tasks(config.data), read_catalogue(config.world)
            known = {str(user["id"]) for user in self.catalogue.users}
            if not any(task.user_id in known for task in self.tasks.tasks):
                raise nothing_usable(f"no user of {config.data} lives in {config.world}", ())
        self.asked = {str(task.task_id): task for task in self.tasks.tasks[: config.limit]}

    def data_hashes(self) -> dict[str, str]:
        """Of the tasks."""
        return {"data_sha256": self.tasks.sha256}

    def timelines(self, system: System) -> list[Timeline]:
        """One store for each task; nothing is ingested where the summaries of the data are recalled."""
        reads = self.config.system != GIVEN_SUMMARIES
        return [
            Timeline(
                (StoreKey(_store_id(task), task.user_id, batch_turns=2),),
                (Step((tuple(dialogue_sessions(task)) if reads else (),), (_question(key, task),)),),
            )
            for key, task in self.asked.items()
        ]

    def evidence(self) -> Evidence:
        """By task and the user's first message."""
        return {_store_id(task): {task.opening: task.evidence} for task in self.asked.values()}

    def vocabulary(self) -> list[str]:
        """Names of restaurants and dishes, and of where they are."""
        return self.catalogue.vocabulary

    def extras(self) -> dict[str, Callable[[], Any]]:
        """That the data has summaries, besides the usual."""
        return {**super().extras(), GIVEN_SUMMARIES: lambda: True}

    def score(self, question: QuestionRecord, answer: str) -> dict[str, float]:
        """The names of the scores: those of conversations are computed when they end."""
        return dict.fromkeys(SCORES, 0.0)

    @asynccontextmanager
    async def asking(self, context: AskContext) -> AsyncIterator[Asker]:
        """Databases and the user's model, as long as there are trials to run."""
        try:
            from papers.momento.database import open_databases
        except ImportError as error:
            raise DeltaMemError(f"Momento needs {error.name}; install it with: pip install 'deltamem[momento]'") from error
        config, window, user = self.config, self.config.context_tokens, None
        async with AsyncExitStack() as stack:
            if context.answer is not None:
                window = min(window, await find_window("answer", context.answer, config.answer) or window)
                check_room(context.prompts["answer"], config.answer, window)
                user = config.user.client("user", context.cache)
                stack.push_async_callback(user.close)
                await user.check([{"role": "user", "content": CANARY}])  # the other models were asked just now
            count = min(config.stores_at_once, len(self.asked))
            databases = stack.enter_context(open_databases(config.database, count))
            worlds: asyncio.Queue[World] = asyncio.Queue()
            for database in databases:
                worlds.put_nowait(World(database, self.catalogue))
            yield Trials(self, context, worlds, user, window)

    async def probes(self, context: AskContext) -> list[dict[str, Any]]:
        """How often the judge is wrong on replies that are known to be right or wrong."""
        if context.judge is None:
            return []
        model = Model(context.judge, self.config.judge, self.config.seed, "calibration", 1)
        judge = InformationJudge(model, context.prompts["momento_judge"], self.config.judge.attempts)
        return [await calibrate(judge, self.tasks.tasks, self.config.seed)]

    def report(self, results: Results) -> Report:
        """Scores over tasks; writes the page of all trials."""
        config, questions = self.config, results.questions
        trials = [trial for _, _, trial in trials_of(questions)]
        scores = run_scores(questions, resamples=config.resamples, seed=config.seed)
        agent, user = (config.answer.model, config.user.model) if config.by_model else (_SCRIPTED, _SCRIPTED)
        protocol = {name: getattr(config, name) for name in ("trials", "turns", "rounds", "k", "context_tokens")}
        report = Report(
            benchmark=self.name,
            protocol=protocol
            | {"database": config.database.partition(":")[0], "agent": agent, "user": user}
            | {"intervals": "95%, bootstrap over tasks; trials of one task do not count as more"},
            data=self.tasks.description()
            | {"chosen": len(self.asked), "published": None if config.data is not None else False},
            scores=scores,
            headline=("passed",),
            judged_by=judged_by(scores),
            problems=self.tasks.problems,
            warnings=[*trial_warnings(trials, {"user": config.user.max_tokens, "judge": config.judge.max_tokens})],
            costs=further_costs(trials),
            more={"mode": "answered" if config.by_model else _SCRIPTED, "trials": trial_counts(trials)},
        )
        write_page(config.out / TRIALS_PAGE, page(config.system, report, questions))
        return report

    @classmethod
    def lines(cls, summary: Summary) -> Iterable[str]:
        """What trials came to."""
        yield f"{trial_line(summary.more['trials'])}; every trial: {TRIALS_PAGE}"


def _store_id(task: Task) -> str:
    return f"task-{task.task_id}"


def _question(key: str, task: Task) -> QuestionRecord:
    text = task.opening or task.instruction
    return QuestionRecord(key=key, group=key, category=task.kind or "tasks", question=text)


class Trials:
    """Runs the trials of tasks, each in the next world that is free."""

    def __init__(
        self, benchmark: Momento, context: AskContext, worlds: asyncio.Queue[World], user: LLM | None, window: int
    ) -> None:
        self._benchmark, self._config, self._context = benchmark, benchmark.config, context
        self._worlds, self._user, self._window = worlds, user, window
        self._reader = FactReader(benchmark.catalogue)

    async def __call__(self, question: QuestionRecord, memory: Memory) -> AsyncIterator[QuestionRecord]:
        """See `eval.benchmark.Asker`: the trials that are missing or failed, one after the other."""
        config, context = self._config, self._context
        task = self._benchmark.asked[question.key]
        answers = dict(enumerate(question.answers, start=1))
        world = await self._worlds.get()
        try:
            for number in range(1, config.trials + 1):
                if number in answers and answers[number].error is None:
                    continue
                rows = []
                try:
                    if config.system == GIVEN_SUMMARIES:
                        rows = await asyncio.to_thread(summary_rows, task, context.embedder)
                    await asyncio.to_thread(world.reset, task.current_date, task.seed_data, rows)
                except Exception as error:  # rows of this task that the database refuses must not lose the others
                    trial = TrialRecord(error=f"its state could not be made: {reason_of(error)}")
                else:
                    trial = await self._trial(task, number, world, memory).run()
                answers[number] = answer_of(trial, context.made)
                kept = tuple(answers[number] for number in sorted(answers))
                shown = [TrialRecord.model_validate(answer.details) for answer in kept]
                yield question.model_copy(
                    update={"answers": kept, "context_tokens": context_tokens(shown), "made": context.made}
                )
        finally:
            self._worlds.put_nowait(world)

    def _trial(self, task: Task, number: int, world: World, memory: Memory) -> Trial:
        config, prompts, toolbox = self._config, self._context.prompts, Toolbox(world)

        models: dict[str, Model] = {}

        def model(part: str, llm: LLM | None, settings: ModelSettings) -> Model | None:
            if llm is not None:
                models[part] = Model(llm, settings, config.seed, f"task {task.task_id}", number)
            return models.get(part)

        serving, playing = model("answer", self._context.answer, config.answer), model("user", self._user, config.user)
        if serving is None or playing is None:
            agent: Agent = ScriptedAgent(toolbox, task, self._reader)
            user: User = ScriptedUser(task)
        else:
            limits = {"rounds": config.rounds, "context_tokens": self._window}
            agent = LLMAgent(serving, toolbox, task, prompts["answer"], prompts["momento_summary"], **limits)
            user = LLMUser(playing, task, prompts["momento_user"])
        if config.system == GIVEN_SUMMARIES:
            writing = model("recall", self._context.answer, config.answer)
            recall: Recall = SummaryRecall(world, task, self._context.embedder, writing, prompts["momento_recall"])
        else:
            recall = MemoryRecall(memory, config.k, config.with_time, task.opening if config.system == "oracle" else None)
        judging = model("judge", self._context.judge, config.judge)
        judge = None if judging is None else InformationJudge(judging, prompts["momento_judge"], config.judge.attempts)
        return Trial(task, world, toolbox, agent, user, recall, judge, config.turns, config.images, models)


def main(config: MomentoConfig) -> int:
    """Run, and show the result; see `eval.runner.main`."""
    config.check()  # what the runner only finds after an estimate
    return runner.main(Momento, config)


if __name__ == "__main__":

    def task(config: DictConfig) -> int:
        """Validate and run."""
        return main(validated(config, MomentoConfig))

    run_hydra(task, "momento", Momento.config_dir)
