"""Runs any benchmark (`eval.benchmark`): ingests, searches, answers and judges what is not done yet, then reports.

Every result is a record on disk before anything rests on it, so the same command goes on where a run was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console

from deltamem.config import run_hydra, validated
from deltamem.errors import DeltaMemError
from deltamem.runs import run_tasks
from eval.benchmark import Benchmark, Config
from eval.compare.page import report_folders
from eval.estimate import estimate, estimate_table
from eval.fingerprint import RunManifest, TakenAnswers
from eval.metrics import load_nltk
from eval.models import make_embedder, open_models
from eval.parts import CONFIGURED, GivenParts, Prompts, load_prompts, make_answerer, make_judges
from eval.records import open_files
from eval.run import ProgressBars, Run
from eval.summary import (
    Summary,
    brief_table,
    budget_lines,
    closing_lines,
    failure_lines,
    headline_line,
    write_summary,
)
from eval.systems.kinds import make_system, system_kind

if TYPE_CHECKING:
    from omegaconf import DictConfig

MEMORY_FOLDER = "memory"
REPORT_FILE = "report.html"
LINES = 40
"""Lines that the result of a run takes at most on the terminal, as long as its tables have few enough rows."""
FAILED = 1
"""Exit code of a run in which something failed."""


def command(benchmark: type[Benchmark[Any]], name: str) -> NoReturn:
    """The command of a benchmark, whose configuration has this name."""

    def task(config: DictConfig) -> int:
        return main(benchmark, validated(config, benchmark.config_type))

    run_hydra(task, name)


def main(benchmark: type[Benchmark[Config]], config: Config) -> int:
    """Run a benchmark, show the result and write its page.

    Returns:
        The exit code: 0, or 1 if something failed.

    Raises:
        DeltaMemError: As `evaluate`; or if the page cannot be written, when the records are there all the same.
    """
    console = Console()
    if config.estimate:
        console.print(estimate_table([estimate(benchmark, config)], config))
        return 0
    summary = evaluate(benchmark, config, console)
    _print(console, [headline_line(summary)])
    tables = [table for made in benchmark.tables if (table := made(summary)) is not None]
    page = config.out / REPORT_FILE
    report_folders([config.out], page)
    lines = [*closing_lines(summary, benchmark.lines(summary)), f"{summary.version}; every question: {page}"]
    budgets = list(budget_lines(summary))
    if sum(len(console.render_lines(table)) for table in tables) + len(lines) + len(budgets) >= LINES:
        tables = [brief_table(table) for table in tables]
        budgets = ["intervals, budgets, and what each table leaves out, are on the page"]
    for table in tables:
        console.print(table)
    _print(console, [*budgets, *lines])
    if not summary.failures.count:
        return 0
    _print(Console(stderr=True), [*benchmark.failure_lines(summary), *failure_lines(summary)])
    return FAILED


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def evaluate(
    benchmark: type[Benchmark[Config]], config: Config, console: Console, parts: GivenParts = CONFIGURED
) -> Summary:
    """Run a benchmark and return the summary, whose ``failures.count`` is not 0 if something failed.

    Records and ``summary.json`` are in the output folder; progress is shown on the console. `parts` are used instead of
    what the configuration would make.

    Raises:
        DeltaMemError: If something that is needed is missing or wrong, or the folder holds another run.
        OSError: If the output folder cannot be written.
    """
    config = parts.named(config)
    if parts.system is None:
        system_kind(config.system)
    config.check()
    specs = benchmark.judges(config) if config.judged else {}
    prompts = load_prompts(config, benchmark.answer_prompt, benchmark.answer_fields, specs, benchmark.prompts)
    loaded = benchmark(config)
    return run_tasks(lambda: _evaluate(loaded, prompts, parts, console))


def check_ready(benchmark: type[Benchmark[Config]], config: Config) -> None:
    """Refuse a run for want of a prompt, the data or the embedder, before anything else is started for it.

    Raises:
        DeltaMemError: If one of them is missing or wrong.
    """
    specs = benchmark.judges(config) if config.judged else {}
    load_prompts(config, benchmark.answer_prompt, benchmark.answer_fields, specs, benchmark.prompts)
    benchmark(config)
    make_embedder(config.embedder).queries(["memory"])


async def _evaluate(benchmark: Benchmark[Config], prompts: Prompts, parts: GivenParts, console: Console) -> Summary:
    started = time.perf_counter()
    config = benchmark.config
    run_config = {"benchmark": benchmark.name, **config.run_config(), **benchmark.data_hashes(), "prompts": prompts.hashes}
    taken = TakenAnswers(config, run_config, prompts.answer) if config.answers_from is not None else None
    embedder = make_embedder(config.embedder)
    without = parts.names | ({"answer"} if taken is not None else set())
    async with open_models(config, without) as models, AsyncExitStack() as stack:
        system = parts.system or make_system(config, config.out / MEMORY_FOLDER, embedder, models, benchmark.extras())
        answerer = taken or parts.answerer or make_answerer(config, models, embedder, prompts.answer, prompts.further)
        judges = make_judges(benchmark, prompts, parts, models)
        manifest = RunManifest(config.out, run_config, mixed=config.mixed, taken=taken)
        timelines = benchmark.timelines(system)
        if taken is not None:
            unaskable = {record.key for record in benchmark.unaskable()}
            taken.check_complete([key for key in benchmark.question_keys(timelines) if key not in unaskable])
            if manifest.last is None:
                taken.copy(config.out)
        with open_files(config.out, points=benchmark.points is not None) as files:
            progress = ProgressBars(console, timelines, points=benchmark.points is not None)
            run = Run(
                *(benchmark, system, timelines, files, answerer, judges, progress, models, embedder, prompts, manifest),
                started,
            )
            if taken is not None and run.needs_stores():
                raise DeltaMemError(f"answers_from={config.answers_from} lacks sessions or searches; finish that run first")
            needed = run.models_needed()
            await manifest.resume(config, models, needed)
            if benchmark.asks and run.unfinished():
                run.asker = await stack.enter_async_context(benchmark.asking(run.context))
            for sentence in run.training_departures():  # now, as the run may take hours
                progress.say(sentence)
            manifest.write()  # not before, so that the command can be corrected
            if needed is not None:  # so that a run that is killed is never taken for a finished one
                run.write_partial()
            if answerer is not None and benchmark.uses_nltk and run.unfinished():
                load_nltk()
            await run.do()
            summary = await run.measured_summary()
    write_summary(config.out, summary)
    return summary
