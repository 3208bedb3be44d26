"""``python -m papers.momento``: a memory system under an agent that has to do the right thing, by models or by a script.

Exit code 0; 1 if trials failed or records could not be read (they are counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

import asyncio
import time
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
from deltamem.intervals import percent_text
from deltamem.llm import LLM
from deltamem.prompts import Prompt
from deltamem.runs import RecordFile, atomic_writer, run_tasks
from eval.answer import load_prompt
from eval.benchmark import Results
from eval.config import BenchmarkConfig, ModelSettings
from eval.data import nothing_usable
from eval.fingerprint import RunManifest
from eval.headline import warning_lines
from eval.models import CANARY, Models, find_window, make_embedder, open_models
from eval.records import IngestRecord, ingest_session
from eval.runner import FAILED, FEW_RESAMPLES, MEMORY_FOLDER, REPORT_FILE
from eval.summary import ALL, build_summary, failure_lines, probe_line, unreadable_parts, write_summary
from eval.systems.base import Memory, SessionBuffer, StoreKey, System
from eval.systems.baselines import Baseline
from eval.systems.kinds import asks_model, make_system, system_names
from papers.momento.agent import LLMAgent, LLMUser, Model, ScriptedAgent, ScriptedUser, Toolbox, check_room
from papers.momento.calibration import calibrate
from papers.momento.database import open_database
from papers.momento.facts import FactReader
from papers.momento.mini import mini_catalogue, mini_tasks
from papers.momento.recall import GIVEN_SUMMARIES, MemoryRecall, Recall, SummaryRecall, dialogue_sessions, summary_rows
from papers.momento.summary import SCRIPTED, as_questions, calls_line, run_report, trial_costs, trial_warnings
from papers.momento.tasks import Task, TaskSet, read_tasks
from papers.momento.trial import InformationJudge, Trial, TrialRecord
from papers.momento.world import Catalogue, World, read_catalogue

if TYPE_CHECKING:
    from omegaconf import DictConfig

_STOCK = Baseline(GIVEN_SUMMARIES, {"shown": "the summaries that come with the tasks"}, lambda key: SessionBuffer())
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
        super().check()
        if self.system not in (*system_names(), GIVEN_SUMMARIES):
            raise DeltaMemError(
                f"system {self.system!r} does not exist; there are: {', '.join((*system_names(), GIVEN_SUMMARIES))}"
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
    context_tokens: int  # Window of the agent

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
                key = StoreKey(_store_id(task), task.user_id, batch_turns=2)
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
        playing = self._model(self.user_llm, config.user, task, number)
        judging = self._model(self.models.judge, config.judge, task, number)
        if model is None or playing is None:
            agent: LLMAgent | ScriptedAgent = ScriptedAgent(toolbox, task, self.reader)
            user: LLMUser | ScriptedUser = ScriptedUser(task)
        else:
            limits = {"rounds": config.rounds, "context_tokens": self.context_tokens}
            agent = LLMAgent(model, toolbox, task, prompts["momento_agent"], prompts["momento_summary"], **limits)
            user = LLMUser(playing, task, prompts["momento_user"])
        if memory is None:
            recall: Recall = SummaryRecall(world.database, task, self.embedder, model, prompts["momento_recall"])
        else:
            recall = MemoryRecall(memory, config.k, config.with_time, task.opening if config.system == "oracle" else None)
        judge = None if judging is None else InformationJudge(judging, prompts["momento_judge"], config.judge.attempts)
        models = {"answer": model, "user": playing, "judge": judging}
        turns, images = config.turns, config.images
        return Trial(task, number, world, toolbox, agent, user, recall, judge, turns, images, self.made, models)

    def _model(self, llm: LLM | None, settings: ModelSettings, task: Task, trial: int) -> Model | None:
        return None if llm is None else Model(llm, settings, self.config.seed, f"task {task.task_id}", trial)

    def _tell(self) -> None:
        keys = self._keys()
        total, done = len(keys), sum(key in self.trials for key in keys)
        if done == total or done % max(1, total // 20) == 0:
            self.console.print(f"trials {done:,}/{total:,}", markup=False, highlight=False)

    async def calibrated(self) -> list[dict[str, Any]]:
        """How often the judge is wrong on replies that are known to be right or wrong, if there is one to be measured."""
        if self.models.judge is None or not self.config.judge.probes:
            return []
        model = Model(self.models.judge, self.config.judge, self.config.seed, "calibration", 1)
        judge = InformationJudge(model, self.prompts["momento_judge"], self.config.judge.attempts)
        return [await calibrate(judge, self.tasks.tasks, self.config.seed)]

    def summary(
        self, manifest: RunManifest, seconds: float, *, probes: Sequence[dict[str, Any]] = (), going_on: bool = False
    ) -> dict[str, Any]:
        """Write ``summary.json`` and ``questions.jsonl``, which `python -m eval compare` reads; returns the summary.

        Args:
            manifest: What the records were made with.
            seconds: Of this call.
            probes: How often the judge is wrong, of `calibrated`.
            going_on: Whether trials will follow, so that a run that is killed never looks finished.
        """
        config = self.config
        records = self.records()
        questions = as_questions(records)
        agent = config.answer.model or SCRIPTED
        report = run_report(
            self.tasks,
            records,
            questions,
            chosen=len(self.chosen),
            published=None if config.data is not None else False,
            agent=agent,
            user=(config.user.model if config.by_model else None) or SCRIPTED,
            # Of a run that goes on they are rough, so that they cost little.
            config=config.model_dump() | ({"resamples": FEW_RESAMPLES} if going_on else {}),
        )
        stores = {_store_id(task) for task in self.chosen}
        sessions = [record for record in self.sessions if record.store in stores]
        done = sum(len(question.answers) == config.trials for question in questions)
        whole = done == len(self.chosen) and not going_on
        summary = build_summary(
            config,
            report,
            Results(self.system or _STOCK, questions, sessions, (), {}),
            usage=self.models.usage(),
            probes=probes,
            prompt_hashes={name: prompt.sha256 for name, prompt in self.prompts.items()},
            seconds={"run": seconds},
            partial=None if whole else {"done": done, "questions": len(self.chosen)},
            warnings=[*trial_warnings(records, {"user": config.user, "judge": config.judge}), *manifest.warnings()],
            fingerprint=manifest.as_dict(),
        )
        summary["cost"] |= trial_costs(records)
        summary["making"]["models"]["answer"] = agent
        with atomic_writer(config.out / "questions.jsonl") as file:
            file.writelines(f"{question.model_dump_json()}\n" for question in questions)
        write_summary(config.out, summary)
        return summary

    def records(self) -> list[TrialRecord]:
        """The trials that are done, of those that are asked for: the folder may hold others, of an earlier call."""
        return [record for key in self._keys() if (record := self.trials.get(key)) is not None]

    def _keys(self) -> list[str]:
        return [f"{task.task_id}/{number + 1}" for task in self.chosen for number in range(self.config.trials)]


def _store_id(task: Task) -> str:
    return f"task-{task.task_id}"


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
    prompts = {name: load_prompt(f"papers.momento.prompts:{name}", fields) for name, fields in PROMPTS.items()}
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
        evidence = {_store_id(task): {task.opening: task.evidence} for task in chosen}
        system = None
        if config.system != GIVEN_SUMMARIES:
            extras = {"evidence": lambda: evidence, "vocabulary": lambda: catalogue.vocabulary}
            system = make_system(config, config.out / MEMORY_FOLDER, embedder, models, extras)
        manifest = RunManifest(config.out, run_config, mixed=config.mixed)
        files = stack.enter_context(ExitStack())
        sessions = files.enter_context(RecordFile(config.out / "sessions.jsonl", IngestRecord, lambda record: record.key))
        trials = files.enter_context(RecordFile(config.out / "trials.jsonl", TrialRecord, lambda record: record.key))
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
                config.context_tokens,
            )
        )
        left = [task for task in chosen if run.missing(task)]
        needed = ["answer", "judge", *(["manager"] if asks_model(config) else [])] if left else None
        await manifest.resume(config, models, needed)
        run.made = manifest.made
        if left and models.answer is not None:
            served = await find_window("answer", models.answer, config.answer)
            run.context_tokens = min(config.context_tokens, served or config.context_tokens)
            check_room(prompts["momento_agent"], config.answer, run.context_tokens)
        if left:
            if user_llm is not None:  # the other models were asked just now
                await user_llm.check([{"role": "user", "content": CANARY}])
            for database in _databases(config, min(config.parallel, len(left)), files):
                worlds.put_nowait(World(database, catalogue))
        manifest.write()  # not before, so that the command can be corrected
        if left:
            run.summary(manifest, 0.0, going_on=True)
            try:
                await run.do()
            except* DeltaMemError as group:
                first = next(_leaves(group))
                raise first from group
        seconds = time.perf_counter() - started
        summary = run.summary(manifest, seconds, probes=await run.calibrated())
        write_page(config.out / REPORT_FILE, page(summary, run.records()))
    return summary


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
        from papers.momento.postgres import private_postgres

        name = stack.enter_context(private_postgres())
    return [stack.enter_context(open_database(name)) for _ in range(count)]


def page(summary: Mapping[str, Any], records: Sequence[TrialRecord]) -> str:
    """The report: scores, and every trial with what was said, recalled, called and changed."""
    ordered = sorted(records, key=lambda record: (record.task, record.trial))
    template = Path(__file__).with_name("report.html.j2")
    return render_page(
        template,
        summary=summary,
        records=ordered,
        percent=partial(_percent, summary),
        cost=cost_line(summary),
        calls=calls_line(summary["trials"]),
        warnings=[*map(probe_line, summary["probes"]), *warning_lines(summary)],
    )


def lines(summary: Mapping[str, Any]) -> list[str]:
    """The result in a few lines."""
    scores, trials, data = summary["scores"], summary["trials"], summary["data"]
    said = []
    for scope in ("", "(valid)"):
        if of_scope := [name for name in scores if name.endswith("(valid)") == bool(scope)]:
            shown = ", ".join(f"{name} {_percent(summary, name)}" for name in of_scope)
            said.append(f"{summary['system']}{scope}: {shown} (%)")
    kinds = ", ".join(f"{kind} {100 * of['estimate']:.0f}" for kind, of in scores["passed"].items() if of and kind != ALL)
    said.append(f"passed by kind: {'withheld' if 'passed' in summary['withheld'] else kinds}")
    said.append(
        f"{trials['done']} trials of {data['chosen']} tasks ({data['file']}), {trials['failed']} failed; "
        f"{calls_line(trials)}; "
        f"{summary['seconds']['run']:.0f} s"
    )
    said += [costs] if (costs := cost_line(summary)) else []
    return [*said, *map(probe_line, summary["probes"]), *warning_lines(summary)]


def _percent(summary: Mapping[str, Any], metric: str, kind: str = ALL) -> str:
    """A score in percent with its interval; not if it is withheld."""
    interval = summary["scores"][metric].get(kind)
    if interval is None:
        return ""
    return "withheld" if metric in summary["withheld"] else percent_text(interval, brackets=True)


def cost_line(summary: Mapping[str, Any]) -> str:
    """What models were asked for, by the part that they play."""
    parts = [
        f"{part}: {cost['calls']:,} calls ({cost['cached']:,} cached), "
        f"{cost['prompt_tokens']:,} + {cost['completion_tokens']:,} tokens, {cost['seconds']:,.0f} s"
        for part, cost in summary["cost"].items()
        if cost.get("calls")
    ]
    return "; ".join([*parts, *unreadable_parts(summary)])


def main(config: MomentoConfig) -> int:
    """Run, and say what came of it; returns the exit code."""
    console = Console()
    summary = evaluate(config, console)
    for line in [*lines(summary), f"every trial: {config.out / REPORT_FILE}"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not summary["failures"]["count"]:
        return 0
    stderr = Console(stderr=True)
    for line in failure_lines(summary):
        stderr.print(line, markup=False, highlight=False, soft_wrap=True)
    return FAILED


if __name__ == "__main__":

    def task(config: DictConfig) -> int:
        """Validate and run."""
        return main(validated(config, MomentoConfig))

    run_hydra(task, "momento", Path(__file__).parent / "configs")
