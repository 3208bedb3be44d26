"""The evaluation: the configuration becomes a run, and its records a summary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from deltamem.event_loop import run_tasks
from eval.answering.asking import Asking, ToJudge
from eval.answering.opening import Models, check_models, make_answerer, open_models
from eval.answering.probes import ProbeResult, load_probes, measure
from eval.answering.protocol import Answerer
from eval.data import HALUMEM_LONG, HALUMEM_MEDIUM, require
from eval.halumem.evaluating import Evaluating
from eval.halumem.files import open_point_files
from eval.halumem.judging import (
    ANSWER_FIELDS,
    ANSWER_PROMPT,
    Judges,
    ProbedJudge,
    Prompts,
    load_prompts,
    make_judges,
    qa_fields,
)
from eval.halumem.linking import gold_passages
from eval.halumem.loader import Halumem, Question, load_halumem
from eval.halumem.parts import Part
from eval.halumem.progress import ShownPoints
from eval.halumem.run import Run
from eval.halumem.scoring import lexical_scores
from eval.halumem.searching import Searching
from eval.halumem.settings import HalumemConfig
from eval.halumem.summary import summarise
from eval.metrics.lexical import load_nltk
from eval.results.making import check_making
from eval.results.records import QuestionRecord
from eval.results.summary import write_summary
from eval.systems.embedding_lock import make_embedder
from eval.systems.opening import WITH_MODEL, check_system, open_system

MEMORY_FOLDER = "memory"


def evaluate(config: HalumemConfig, console: Console) -> dict[str, Any]:
    """Run the evaluation; records and ``summary.json`` are in the output folder.

    Args:
        config: The validated configuration.
        console: Where progress is shown.

    Returns:
        The summary. ``failures.count`` is not 0 if something broke.

    Raises:
        DeltaMemError: If something that is needed is missing or wrong, or the folder holds another run.
        OSError: If the output folder cannot be written.
    """
    check_system(config.system)
    config.check()
    prompts = load_prompts(config)
    path = config.data or require({"medium": HALUMEM_MEDIUM, "long": HALUMEM_LONG}[config.version])
    benchmark = load_halumem(path)
    return run_tasks(lambda: _evaluate(config, path, benchmark, prompts, console))


async def _evaluate(
    config: HalumemConfig, path: Path, benchmark: Halumem, prompts: Prompts, console: Console
) -> dict[str, Any]:
    started = time.perf_counter()
    embedder = make_embedder(config.embedder)
    parts = [Part.of(user, config.limit) for user in benchmark.users]
    evidence = {user.id: gold_passages(user) for user in benchmark.users} if config.system == "oracle" else None
    async with (
        open_models(config) as models,
        open_system(config, config.out / MEMORY_FOLDER, embedder, models, evidence=evidence) as system,
    ):
        answerer = make_answerer(config, models, embedder, ANSWER_PROMPT, ANSWER_FIELDS)
        judges = make_judges(config, models, prompts)
        check_making(config.out, _making(config, benchmark, prompts))
        with open_point_files(config.out) as files:
            shown = ShownPoints(
                console,
                sessions=sum(len(part.sessions) for part in parts),
                questions=sum(len(part.asked) for part in parts),
                points=sum(part.points for part in parts),
            )
            searching = Searching(files, embedder.turns, system.ranked, config.update_k, config.question_k)
            asking = _asking(config, benchmark, answerer, judges)
            budget = config.answer.context_tokens
            evaluating = Evaluating(files, asking, judges, shown, budget, config.with_time, system.ranked)
            run = Run(system, files, parts, searching, evaluating, shown, stores_at_once=config.stores_at_once)
            await _check(config, models, run)
            if answerer is not None and run.verdicts_missing():
                load_nltk()
            with shown.progress:
                await run.do()
            ran = time.perf_counter()
            probes = await _probes(config, judges)
            summary = summarise(
                config,
                file=path.name,
                benchmark=benchmark,
                parts=parts,
                files=files,
                system=system,
                usage=models.usage(),
                probes=probes,
                prompts=prompts,
                seconds={"run": ran - started, "probes": time.perf_counter() - ran},
            )
    write_summary(config.out, summary)
    return summary


def _making(config: HalumemConfig, benchmark: Halumem, prompts: Prompts) -> dict[str, Any]:
    return {
        "benchmark": "HaluMem",
        **config.making(),
        **config.halumem_making(),
        "data_sha256": benchmark.sha256,
        "prompts": prompts.hashes,
    }


def _asking(config: HalumemConfig, benchmark: Halumem, answerer: Answerer | None, judges: Judges) -> dict[str, Asking]:
    if answerer is None:
        return {}
    questions = {question.key: question for user in benchmark.users for question in user.questions}

    def score(record: QuestionRecord, text: str) -> dict[str, float]:
        return lexical_scores(questions[record.key].answer, text)

    def to_judge(record: QuestionRecord, text: str) -> list[ToJudge]:
        question: Question = questions[record.key]
        return [ToJudge(judge, qa_fields(question, text)) for judge in judges.answers.values()]

    asking = Asking(
        answerer,
        runs=config.answer.runs,
        context_tokens=config.answer.context_tokens,
        with_time=config.with_time,
        score=score,
        to_judge=to_judge,
    )
    return dict.fromkeys(questions, asking)


async def _check(config: HalumemConfig, models: Models, run: Run) -> None:
    """Make sure that the models answer that will be asked."""
    needed = []
    if run.verdicts_missing():
        needed += ["answer", "judge"]
    if config.system in WITH_MODEL and run.sessions_missing():
        needed.append("manager")
    if needed:
        await check_models(models, needed)


async def _probes(config: HalumemConfig, judges: Judges) -> Sequence[ProbeResult]:
    if not config.judge.probes:
        return []
    return [await measure(ProbedJudge(judge), load_probes()) for judge in judges.answers.values()]
