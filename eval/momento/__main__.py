"""``python -m eval.momento``: a memory system under an agent that has to do the right thing, by models or by a script.

Exit code 0; 1 if trials failed or records could not be read (they are counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PositiveInt
from rich.console import Console

from deltamem.config import run_hydra, validated
from deltamem.embedding import CachedEmbedder, Embedder
from deltamem.errors import DeltaMemError, reason_of
from deltamem.html import render_page, write_page
from deltamem.llm import LLM
from deltamem.prompts import Prompt
from deltamem.runs import RecordFile, run_tasks, versions
from eval.answer import load_prompt
from eval.config import BenchmarkConfig, ModelSettings
from eval.data import nothing_usable
from eval.fingerprint import Makings
from eval.models import CANARY, SYSTEMS, WITH_MODEL, Models, make_embedder, make_system, open_models
from eval.momento.agent import LLMAgent, LLMUser, Model, ScriptedAgent, ScriptedUser, Toolbox
from eval.momento.compared import SCORES, TRIALS_FILE, as_questions, interval_scores
from eval.momento.database import open_database
from eval.momento.facts import FactReader
from eval.momento.mini import mini_catalogue, mini_tasks
from eval.momento.recall import GIVEN_SUMMARIES, MemoryRecall, Recall, SummaryRecall, dialogue_sessions, summary_rows
from eval.momento.scores import aggregate
from eval.momento.tasks import Task, TaskSet, read_tasks
from eval.momento.trial import InformationJudge, Trial, TrialRecord
from eval.momento.world import Catalogue, World, read_catalogue
from eval.records import Cost, IngestRecord, ingest_session
from eval.runner import FAILED, MEMORY_FOLDER, REPORT_FILE
from eval.summary import ALL, write_summary
from eval.systems.base import Memory, StoreKey, System

if TYPE_CHECKING:
    from omegaconf import DictConfig

PROMPTS: Mapping[str, tuple[str, ...]] = {
    "momento_agent": ("user_id", "date", "memory", "rounds"),
    "momento_user": ("date", "instruction", "images"),
    "momento_recall": ("date", "message"),
    "momento_judge": ("instruction", "conversation", "items"),
    "momento_summary": ("messages",),
}
"""Prompts with their fields."""


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
    parallel: PositiveInt
    user: ModelSettings

    def check(self) -> None:
        """Refuse what cannot be run."""
        if self.system not in (*SYSTEMS, GIVEN_SUMMARIES):
            raise DeltaMemError(
                f"system {self.system!r} does not exist; there are: {', '.join((*SYSTEMS, GIVEN_SUMMARIES))}"
            )
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

    def run_config(self) -> dict[str, Any]:
        """What decides the records, apart from data and prompts."""
        user = self.user.run_config() if self.by_model else None
        names = {"turns", "rounds", "k", "context_tokens"}
        # The databases give the same, but hashes of one run shall come of one of them.
        kind = self.database.partition(":")[0]
        return super().run_config() | self.model_dump(mode="json", include=names) | {"user": user, "database": kind}


@dataclass
class Run:
    """What a run works with."""

    config: MomentoConfig
    tasks: TaskSet
    chosen: Sequence[Task]
    models: Models
    user_llm: LLM | None
    prompts: Mapping[str, Prompt]
    embedder: Embedder
    system: System | None  # None for the given summaries
    sessions: RecordFile[IngestRecord]
    trials: RecordFile[TrialRecord]
    made: str
    worlds: asyncio.Queue[World]
    reader: FactReader
    console: Console

    def missing(self, task: Task) -> list[int]:
        """The trials of a task that are not done."""
        found = {number: self.trials.get(f"{task.task_id}/{number}") for number in range(1, self.config.trials + 1)}
        return [number for number, record in found.items() if record is None or record.error is not None]

    async def do(self) -> None:
        """Run what is missing."""
        slots = asyncio.Semaphore(self.config.parallel)

        async def one(task: Task) -> None:
            async with slots:
                await self._task(task)

        async with asyncio.TaskGroup() as group:
            for task in self.chosen:
                if self.missing(task):
                    group.create_task(one(task))

    async def _task(self, task: Task) -> None:
        """Build the memory once, and run the missing trials one after the other."""
        async with AsyncExitStack() as stack:
            memory, rows = None, []
            if self.system is None:
                rows = await asyncio.to_thread(summary_rows, task, self.embedder)
            else:
                key = StoreKey(f"task-{task.task_id}", task.user_id, batch_turns=2)
                memory = await stack.enter_async_context(self.system.open(key))
                sessions = dialogue_sessions(task)
                for number in range(len(sessions)):
                    record = await ingest_session(memory, key, sessions, number, self.sessions, self.made)
                    if record.outcome == "failed":
                        self._failed(task, f"session {record.session} could not be ingested: {record.reason}")
                        return
            world = await self.worlds.get()
            try:
                for number in self.missing(task):
                    try:
                        await asyncio.to_thread(world.reset, task.current_date, task.seed_data, rows)
                    except Exception as error:  # rows of this task that a database refuses must not lose the others
                        self._failed(task, f"its state could not be made: {reason_of(error)}")
                        return
                    self.trials.add(await self._trial(task, number, world, memory).run())
                    self._tell()
            finally:
                self.worlds.put_nowait(world)

    def _failed(self, task: Task, reason: str) -> None:
        """Note that none of the missing trials could be run."""
        for number in self.missing(task):
            self.trials.add(TrialRecord(task=task.task_id, trial=number, kind=task.kind, error=reason, made=self.made))

    def _trial(self, task: Task, number: int, world: World, memory: Memory | None) -> Trial:
        config, prompts, toolbox = self.config, self.prompts, Toolbox(world)
        model = self._model(self.models.answer, config.answer, task, number)
        if model is None or self.user_llm is None:
            agent: LLMAgent | ScriptedAgent = ScriptedAgent(toolbox, task, self.reader)
            user: LLMUser | ScriptedUser = ScriptedUser(task)
        else:
            limits = {"rounds": config.rounds, "context_tokens": config.context_tokens}
            agent = LLMAgent(model, toolbox, task, prompts["momento_agent"], prompts["momento_summary"], **limits)
            user = LLMUser(
                Model(self.user_llm, config.user, config.seed, model.scope, number), task, prompts["momento_user"]
            )
        if memory is None:
            recall: Recall = SummaryRecall(world.database, task, self.embedder, model, prompts["momento_recall"])
        else:
            recall = MemoryRecall(memory, config.k, config.with_time, task.opening if config.system == "oracle" else None)
        judging = self._model(self.models.judge, config.judge, task, number)
        judge = None if judging is None else InformationJudge(judging, prompts["momento_judge"], config.judge.attempts)
        return Trial(task, number, world, toolbox, agent, user, recall, judge, config.turns, config.images, self.made)

    def _model(self, llm: LLM | None, settings: ModelSettings, task: Task, trial: int) -> Model | None:
        return None if llm is None else Model(llm, settings, self.config.seed, f"task {task.task_id}", trial)

    def _tell(self) -> None:
        total = len(self.chosen) * self.config.trials
        done = len(self.trials)
        if done == total or done % max(1, total // 20) == 0:
            self.console.print(f"trials {done:,}/{total:,}", markup=False, highlight=False)

    def summary(self, seconds: float) -> dict[str, Any]:
        """What the run came to so far."""
        wanted = {
            task.task_id: [self.trials.get(f"{task.task_id}/{n + 1}") for n in range(self.config.trials)]
            for task in self.chosen
        }
        records = [record for of in wanted.values() for record in of if record is not None]
        by_kind: dict[str, dict[int, list[TrialRecord]]] = defaultdict(lambda: defaultdict(list))
        for record in records:
            by_kind[record.kind or "all"][record.task].append(record)
        done = {task: [one for one in of if one is not None] for task, of in wanted.items()}
        failures = [f"trial {record.key}: {record.error}" for record in records if record.error is not None]
        unjudged = [record.key for record in records if record.scores is not None and record.scores.judge_error is not None]
        return {
            "benchmark": "Momento",
            "system": self.config.system,
            "agent": self.config.answer.model or "scripted",
            "user": (self.config.user.model if self.config.by_model else None) or "scripted",
            "database": self.config.database.partition(":")[0],
            "data": self.tasks.description() | {"chosen": len(self.chosen)},
            "config": self.config.reported() | {"database": self.config.database.partition(":")[0]},
            "prompts": {name: prompt.sha256 for name, prompt in self.prompts.items()},
            "scores": _scores({task: of for task, of in done.items() if of}),
            "by_kind": {kind: _scores(of) for kind, of in sorted(by_kind.items())},
            "intervals": interval_scores(as_questions(records), resamples=self.config.resamples, seed=self.config.seed),
            "violations": sum(record.violations for record in records),
            "calls_of_tools": sum(len(record.actions) for record in records),
            "repeated_calls": sum(record.repeated_calls for record in records),
            "unfinished_conversations": sum(not record.finished for record in records if record.error is None),
            "judged_by_words_after_a_failure": len(unjudged),
            "cost": {
                part: sum((getattr(record, f"{part}_cost") for record in records), Cost()).model_dump()
                for part in ("agent", "recall", "user", "judge")
            }
            | {"ingest": sum((record.cost for record in self.sessions), Cost()).model_dump()},
            "seconds_a_trial": round(sum(record.seconds for record in records) / len(records), 3) if records else None,
            "seconds": round(seconds, 1),
            "partial": len(records) < len(self.chosen) * self.config.trials,
            "failures": {"count": len(failures) + len(self.tasks.problems), "first": [*self.tasks.problems, *failures][:5]},
            "versions": versions(("sqlglot", "psycopg", "pgserver")),
        }


def _scores(records: Mapping[int, Sequence[TrialRecord]]) -> dict[str, Any]:
    return aggregate({task: [record.scores for record in of] for task, of in records.items()})


def load_tasks(config: MomentoConfig) -> tuple[TaskSet, Catalogue]:
    """The tasks and the world that they take place in.

    Raises:
        DeltaMemError: If a file cannot be read.
    """
    if config.data is None or config.world is None:
        return mini_tasks(config.seed), mini_catalogue(config.seed)
    tasks, catalogue = read_tasks(config.data), read_catalogue(config.world)
    known = {str(user["id"]) for user in catalogue.users}
    if not any(task.user_id in known for task in tasks.tasks):
        raise nothing_usable(f"no user of {config.data} lives in {config.world}", ())
    return tasks, catalogue


def evaluate(config: MomentoConfig, console: Console) -> dict[str, Any]:
    """Run what is not done yet and return the summary; records, summary and page are in the output folder.

    Raises:
        DeltaMemError: If something that is needed is missing or wrong, or the folder holds another run.
        OSError: If the output folder cannot be written.
    """
    config.check()
    prompts = {name: load_prompt(name, fields) for name, fields in PROMPTS.items()}
    tasks, catalogue = load_tasks(config)
    return run_tasks(lambda: _evaluate(config, tasks, catalogue, prompts, console))


async def _evaluate(
    config: MomentoConfig, tasks: TaskSet, catalogue: Catalogue, prompts: Mapping[str, Prompt], console: Console
) -> dict[str, Any]:
    started = time.perf_counter()
    chosen = tasks.tasks[: config.limit]
    hashes = {name: prompt.sha256 for name, prompt in prompts.items()}
    run_config = {"benchmark": "Momento", **config.run_config(), "data_sha256": tasks.sha256, "prompts": hashes}
    embedder = CachedEmbedder(make_embedder(config.embedder))
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(open_models(config))
        user_llm = None
        if config.by_model:
            user_llm = config.user.client("user", models.cache)
            stack.push_async_callback(user_llm.close)
        evidence = {f"task-{task.task_id}": {task.opening: task.evidence} for task in chosen}
        system = None
        if config.system != GIVEN_SUMMARIES:
            system = make_system(config, config.out / MEMORY_FOLDER, embedder, models, evidence=evidence)
        makings = Makings(config.out, run_config, mixed=config.mixed)
        files = stack.enter_context(ExitStack())
        sessions = files.enter_context(RecordFile(config.out / "sessions.jsonl", IngestRecord, lambda record: record.key))
        trials = files.enter_context(RecordFile(config.out / TRIALS_FILE, TrialRecord, lambda record: record.key))
        worlds: asyncio.Queue[World] = asyncio.Queue()
        run = Run(
            *(
                config,
                tasks,
                chosen,
                models,
                user_llm,
                prompts,
                embedder,
                system,
                sessions,
                trials,
                "",
                worlds,
                FactReader(catalogue),
                console,
            )
        )
        left = [task for task in chosen if run.missing(task)]
        needed = ["answer", "judge", *(["manager"] if config.system in WITH_MODEL else [])] if left else None
        await makings.go_on(config, models, needed)
        run.made = makings.made
        if left:
            if user_llm is not None:  # the other models were asked just now
                await user_llm.check([{"role": "user", "content": CANARY}])
            for database in _databases(config, min(config.parallel, len(left)), files):
                worlds.put_nowait(World(database, catalogue))
        makings.write()  # not before, so that the command can be corrected
        if left:
            write_summary(config.out, run.summary(0.0) | {"partial": True})  # a run that is killed never looks finished
            try:
                await run.do()
            except* DeltaMemError as group:
                first = next(_leaves(group))
                raise first from group
        summary = run.summary(time.perf_counter() - started) | {"fingerprint": makings.as_dict()}
        summary["warnings"] = list(makings.warnings())
        write_summary(config.out, summary)
        write_page(config.out / REPORT_FILE, page(summary, [record for record in trials if record.task in _ids(chosen)]))
    return summary


def _ids(tasks: Sequence[Task]) -> set[int]:
    return {task.task_id for task in tasks}


def _leaves(group: BaseExceptionGroup[DeltaMemError]) -> Any:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _databases(config: MomentoConfig, count: int, stack: ExitStack) -> list[Any]:
    """One for each task at a time; a private server is started once."""
    name = config.database
    if name == "postgres":
        from eval.momento.postgres import private_postgres

        name = stack.enter_context(private_postgres())
    return [stack.enter_context(open_database(name)) for _ in range(count)]


def page(summary: Mapping[str, Any], records: Sequence[TrialRecord]) -> str:
    """The report: scores, and every trial with what was said, recalled, called and changed."""
    ordered = sorted(records, key=lambda record: (record.task, record.trial))
    template = Path(__file__).with_name("report.html.j2")
    return render_page(
        template, summary=summary, records=ordered, shown=SCORES, bounds=partial(_bounds, summary), cost=cost_line(summary)
    )


def lines(summary: Mapping[str, Any]) -> list[str]:
    """The result in a few lines."""
    scores = summary["scores"]
    said = []
    for scope in ("all", "valid") if scores["failed"] else ("all",):
        of = scores[scope]
        if not of["tasks"]:
            continue
        ends = {name: f"{name}(valid)" if scope == "valid" else name for name in SCORES}
        shown = ", ".join(f"{name} {100 * of[name]:.1f} {_bounds(summary, ends[name])}" for name in SCORES)
        k_of = "; ".join(
            f"{name.replace('k', str(k))} {100 * value:.1f}"
            for name in ("pass@k", "pass^k")
            for k, value in of[name].items()
        )
        said.append(f"{summary['system']}{' (valid)' if scope == 'valid' else ''}: {shown}; {k_of} (%)")
    kinds = ", ".join(f"{kind} {100 * of['all']['passed']:.0f}" for kind, of in summary["by_kind"].items())
    said.append(f"passed by kind: {kinds}")
    said.append(
        f"{scores['trials']} trials of {summary['data']['chosen']} tasks ({summary['data']['file']}), "
        f"{scores['failed']} failed; "
        f"{summary['calls_of_tools']:,} calls of tools, {summary['violations']:,} against a rule; {summary['seconds']:.0f} s"
    )
    said += [cost_line(summary)] if any(cost["calls"] for cost in summary["cost"].values()) else []
    return [*said, *summary["warnings"]]


def _bounds(summary: Mapping[str, Any], metric: str, kind: str = ALL) -> str:
    """The interval of a score, in percent."""
    interval = summary["intervals"].get(metric, {}).get(kind)
    return f"[{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]" if interval else ""


def cost_line(summary: Mapping[str, Any]) -> str:
    """What models were asked for, by the part that they play."""
    return "; ".join(
        f"{part}: {cost['calls']:,} calls ({cost['cached']:,} cached), "
        f"{cost['prompt_tokens']:,} + {cost['completion_tokens']:,} tokens, {cost['seconds']:,.0f} s"
        for part, cost in summary["cost"].items()
        if cost["calls"]
    )


def main(config: MomentoConfig) -> int:
    """Run, and say what came of it; returns the exit code."""
    console = Console()
    summary = evaluate(config, console)
    for line in [*lines(summary), f"every trial: {config.out / REPORT_FILE}"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not summary["failures"]["count"]:
        return 0
    stderr = Console(stderr=True)
    for line in [f"{summary['failures']['count']} failures; the first:", *summary["failures"]["first"]]:
        stderr.print(line, markup=False, highlight=False, soft_wrap=True)
    return FAILED


if __name__ == "__main__":

    def task(config: DictConfig) -> int:
        """Validate and run."""
        return main(validated(config, MomentoConfig))

    run_hydra(task, "momento")
