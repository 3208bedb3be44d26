"""The evaluation: the configuration becomes a run, and its records a summary."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from deltamem.event_loop import run_tasks
from eval.answering.asking import Asking
from eval.answering.opening import Models, check_models, make_answerer, open_models
from eval.answering.probes import ProbeResult, load_probes, measure
from eval.answering.protocol import Answerer
from eval.data import LOCOMO
from eval.locomo.benchmark import ADVERSARIAL, COLUMNS, Benchmark, read_benchmark
from eval.locomo.dialogues import dialogues
from eval.locomo.judging import ANSWER_FIELDS, ANSWER_PROMPT, Judges, Prompts, load_prompts, make_judges
from eval.locomo.run import Part, Run
from eval.locomo.scoring import lexical_scores, run_scores, to_judge
from eval.locomo.settings import LocomoConfig
from eval.metrics.lexical import load_nltk
from eval.results.making import check_making
from eval.results.summary import build_summary, write_summary
from eval.running.files import RunFiles, open_files
from eval.running.progress import Shown
from eval.systems.embedding_lock import make_embedder
from eval.systems.opening import WITH_MODEL, check_system, open_system
from eval.systems.protocol import System

MEMORY_FOLDER = "memory"


def evaluate(config: LocomoConfig, console: Console) -> dict[str, Any]:
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
    benchmark = read_benchmark(config)
    return run_tasks(lambda: _evaluate(config, benchmark, prompts, console))


async def _evaluate(config: LocomoConfig, benchmark: Benchmark, prompts: Prompts, console: Console) -> dict[str, Any]:
    started = time.perf_counter()
    embedder = make_embedder(config.embedder)
    folder = config.out / MEMORY_FOLDER
    async with (
        open_models(config) as models,
        open_system(config, folder, embedder, models, evidence=_evidence(benchmark)) as system,
    ):
        answerer = make_answerer(config, models, embedder, ANSWER_PROMPT, ANSWER_FIELDS)
        judges = make_judges(config, models, prompts)
        with open_files(config.out) as files:
            parts = _parts(config, benchmark, system)
            sessions = sum(len(dialogue.sessions) for part in parts for dialogue in part.dialogues)
            shown = Shown(console, sessions=sessions, questions=len(benchmark.asked))
            asking = _asking(config, benchmark, answerer, judges)
            k = config.k if system.per_speaker else 2 * config.k
            run = Run(
                system,
                files,
                parts,
                asking,
                shown,
                k=k,
                stores_at_once=config.stores_at_once,
                searches=embedder.turns,
            )
            await _check(config, models, run)
            if answerer is not None and run.questions_missing():
                load_nltk()
            check_making(config.out, _making(config, benchmark, prompts))  # a model that is not there makes nothing
            with shown.progress:
                await run.do()
            ran = time.perf_counter()
            probes = await _probes(config, judges)
            seconds = {"run": ran - started, "probes": time.perf_counter() - ran}
            summary = _summary(config, benchmark, prompts, files, parts, system, models, probes, seconds)
    write_summary(config.out, summary)
    return summary


def _making(config: LocomoConfig, benchmark: Benchmark, prompts: Prompts) -> dict[str, Any]:
    audit = benchmark.audit.sha256 if benchmark.audit is not None and benchmark.audited else None
    return {
        "benchmark": LOCOMO.name,
        **config.making(),
        **config.locomo_making(),
        "data_sha256": benchmark.sha256,
        "audit_sha256": audit,
        "prompts": prompts.hashes,
    }


def _parts(config: LocomoConfig, benchmark: Benchmark, system: System) -> list[Part]:
    parts = [
        Part(
            dialogues(conversation, per_speaker=system.per_speaker, captions=config.captions),
            tuple(asked for asked in benchmark.asked if asked.conversation.id == conversation.id),
        )
        for conversation in benchmark.conversations
    ]
    return [part for part in parts if part.asked]


def _asking(config: LocomoConfig, benchmark: Benchmark, answerer: Answerer | None, judges: Judges) -> Asking | None:
    if answerer is None:
        return None
    by_key = {asked.key: asked for asked in benchmark.asked}
    return Asking(
        answerer,
        runs=config.answer.runs,
        context_tokens=config.answer.context_tokens,
        with_time=config.with_time,
        score=lambda record, text: lexical_scores(by_key[record.key], text),
        to_judge=lambda record, text: to_judge(by_key[record.key], text, judges.graded, judges.abstention),
    )


def _evidence(benchmark: Benchmark) -> dict[str, dict[str, tuple[str, ...]]]:
    """Gold evidence by conversation and question; a question that occurs twice has that of both."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for conversation in benchmark.conversations:
        named = found.setdefault(conversation.id, {})
        for question in conversation.questions:
            both = (*named.get(question.text, ()), *question.evidence)
            named[question.text] = tuple(dict.fromkeys(both))
    return found


async def _check(config: LocomoConfig, models: Models, run: Run) -> None:
    """Make sure that the models answer that will be asked."""
    needed = []
    if run.questions_missing():
        needed += ["answer", "judge"]
    if config.system in WITH_MODEL and run.sessions_missing():
        needed.append("manager")
    if needed:
        await check_models(models, needed)


async def _probes(config: LocomoConfig, judges: Judges) -> list[ProbeResult]:
    if not config.judge.probes:
        return []
    return [await measure(judge, load_probes()) for judge in judges.graded]


def _summary(
    config: LocomoConfig,
    benchmark: Benchmark,
    prompts: Prompts,
    files: RunFiles,
    parts: Sequence[Part],
    system: System,
    models: Models,
    probes: Sequence[ProbeResult],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    questions = [record for asked in benchmark.asked if (record := files.questions.get(asked.key)) is not None]
    stores = {dialogue.key.id for part in parts for dialogue in part.dialogues}
    failed = sum(not record.complete for record in questions)
    return build_summary(
        config.model_copy(update={"audit": None}),  # a path of this machine; the data has name and hash
        benchmark=LOCOMO.name,
        protocol={
            "k": config.k,
            "stores_per_conversation": 2 if system.per_speaker else 1,
            "k_each_store": config.k if system.per_speaker else 2 * config.k,
            "cutoffs": sorted(set(config.cutoffs)),
            "captions": config.captions,
            "gold": config.gold,
            "pooled": COLUMNS,
            "judges": list(prompts.judges),
        },
        data=benchmark.description(),
        questions=questions,
        sessions=[record for record in files.sessions if record.store in stores],
        scores=run_scores(
            questions,
            cutoffs=config.cutoffs,
            traced=any(passage.sources for passage in files.passages),
            judges=list(prompts.judges),
            resamples=config.resamples,
            seed=config.seed,
        ),
        system_facts=system.facts(),
        usage=models.usage(),
        probes=[probe.as_dict() for probe in probes],
        prompt_hashes=prompts.hashes,
        seconds=seconds,
        problems=(),
        order=(*COLUMNS, ADVERSARIAL),
        more={
            "version": benchmark.version,
            "accounting": {
                "total": benchmark.total,
                "asked": len(questions) - failed,
                "failed": failed,
                "not_asked": dict(benchmark.not_asked),
            },
            "ceiling": benchmark.ceiling(),
        },
    )
