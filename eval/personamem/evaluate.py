"""The evaluation: the configuration becomes a run, and its records a summary."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from rich.console import Console

from deltamem.event_loop import run_tasks
from eval.answering.asking import Asking
from eval.answering.opening import Models, answer_prompt, check_models, make_answerer, open_models
from eval.answering.protocol import Answerer
from eval.data import PERSONAMEM_CONTEXTS
from eval.personamem.benchmark import BENCHMARK, Benchmark, read_benchmark
from eval.personamem.histories import BATCH_TURNS, FIRST_DAY, group_of, record_key
from eval.personamem.question_types import in_order
from eval.personamem.run import Run
from eval.personamem.scoring import letters_named, run_scores, score_answer, spread_over_runs
from eval.personamem.settings import PersonaMemConfig
from eval.results.making import check_making
from eval.results.records import QuestionRecord
from eval.results.summary import build_summary, write_summary
from eval.running.files import RunFiles, open_files
from eval.running.progress import Shown
from eval.systems.embedding_lock import make_embedder
from eval.systems.opening import WITH_MODEL, check_system, open_system
from eval.systems.protocol import System

ANSWER_PROMPT = "answer_personamem"
ANSWER_FIELDS = ("context", "question", "options")
MEMORY_FOLDER = "memory"


def evaluate(config: PersonaMemConfig, console: Console) -> dict[str, Any]:
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
    prompt = answer_prompt(config, ANSWER_PROMPT, ANSWER_FIELDS)
    prompts = {prompt.name: prompt.sha256} if prompt is not None else {}
    benchmark = read_benchmark(config)
    return run_tasks(lambda: _evaluate(config, benchmark, prompts, console))


async def _evaluate(
    config: PersonaMemConfig, benchmark: Benchmark, prompts: dict[str, str], console: Console
) -> dict[str, Any]:
    started = time.perf_counter()
    embedder = make_embedder(config.embedder)
    folder = config.out / MEMORY_FOLDER
    async with (
        open_models(config) as models,
        open_system(config, folder, embedder, models, evidence=_evidence(benchmark)) as system,
    ):
        answerer = make_answerer(config, models, embedder, ANSWER_PROMPT, ANSWER_FIELDS)
        check_making(config.out, _making(config, benchmark, prompts))
        with open_files(config.out) as files:
            parts = benchmark.parts
            shown = Shown(
                console,
                sessions=sum(len(part.sessions) for part in parts),
                questions=sum(len(part.asked) for part in parts),
            )
            run = Run(
                system,
                files,
                parts,
                _asking(config, answerer),
                shown,
                lambda sentence: console.print(sentence, markup=False, highlight=False),
                k=config.k,
                stores_at_once=config.stores_at_once,
                searches=embedder.turns,
            )
            _account_for(benchmark, files)
            await _check(config, models, run)
            with shown.progress:
                await run.do()
            summary = _summary(config, benchmark, prompts, files, system, models, time.perf_counter() - started)
    write_summary(config.out, summary)
    return summary


def _account_for(benchmark: Benchmark, files: RunFiles) -> None:
    """Note the questions that cannot be asked."""
    for question in benchmark.selected:
        key = record_key(question)
        if lost := benchmark.lost.get(key):
            record = QuestionRecord(
                key=key,
                group=group_of(question),
                category=question.type,
                question=question.text,
                gold=question.gold,
                error=lost.reason,
            )
            if files.questions.get(key) != record:
                files.questions.add(record)


def _making(config: PersonaMemConfig, benchmark: Benchmark, prompts: dict[str, str]) -> dict[str, Any]:
    return {
        "benchmark": BENCHMARK,
        **config.personamem_making(),
        "questions_sha256": benchmark.questions.sha256,
        "contexts_sha256": benchmark.contexts.sha256,
        "prompts": prompts,
    }


def _asking(config: PersonaMemConfig, answerer: Answerer | None) -> Asking | None:
    if answerer is None:
        return None
    return Asking(
        answerer,
        runs=config.runs,
        context_tokens=config.answer.context_tokens,
        with_time=config.with_time,
        score=score_answer,
    )


def _evidence(benchmark: Benchmark) -> dict[str, dict[str, tuple[str, ...]]]:
    """Ids of the turns of the referenced block, by store and question; a question that occurs twice has those of both."""
    found: dict[str, dict[str, set[str]]] = {}
    for history in benchmark.histories:
        named = found.setdefault(history.key.id, {})
        for asked in history.asked:
            named.setdefault(asked.question.text, set()).update(asked.evidence)
    return {store: {text: tuple(sorted(ids, key=int)) for text, ids in named.items()} for store, named in found.items()}


async def _check(config: PersonaMemConfig, models: Models, run: Run) -> None:
    """Make sure that the models answer that will be asked."""
    needed = []
    if run.questions_missing():
        needed.append("answer")
    if config.system in WITH_MODEL and run.searches_missing():
        needed.append("manager")
    if needed:
        await check_models(models, needed)


def _summary(
    config: PersonaMemConfig,
    benchmark: Benchmark,
    prompts: dict[str, str],
    files: RunFiles,
    system: System,
    models: Models,
    seconds: float,
) -> dict[str, Any]:
    kept = [files.questions.get(record_key(question)) for question in benchmark.selected]
    questions = [record for record in kept if record is not None]
    taken_in = {(part.history.key.id, session.id) for part in benchmark.parts for session in part.sessions}
    scores = run_scores(
        questions,
        benchmark.asked,
        files.passages,
        runs=config.runs,
        cutoffs=config.cutoffs,
        resamples=config.resamples,
        seed=config.seed,
    )
    answers = {"accuracy_over_runs": spread_over_runs(questions, config.runs), "letters_named": letters_named(questions)}
    return build_summary(
        config,
        benchmark=f"{BENCHMARK} {benchmark.size}",
        protocol=_protocol(config),
        data=_data(benchmark),
        questions=questions,
        sessions=[record for record in files.sessions if (record.store, record.session) in taken_in],
        scores=scores,
        system_facts=system.facts(),
        usage=models.usage(),
        probes=(),
        prompt_hashes=prompts,
        seconds={"run": seconds},
        problems=(*benchmark.questions.problems, *benchmark.contexts.problems),
        order=in_order(record.category for record in questions),
        more={**answers, "referenced_block": _blocks(benchmark)},
    )


def _protocol(config: PersonaMemConfig) -> dict[str, Any]:
    return {
        "k": config.k,
        "stores": "one a context; each question is searched for when exactly the messages before it are in the store",
        "batch_turns": BATCH_TURNS,
        "system_messages": config.system_messages,
        "dates": f"made up, the data has none: session n is dated n days after {FIRST_DAY:%Y-%m-%d}",
        "runs": config.runs,
        "score": "the letter that the answer names, by the benchmark's own rule; accuracy is the mean over the runs",
        "std": "of the population of runs",
        "intervals": "95%, bootstrap over personas",
        "reference": "the session that lies distance_to_ref_in_blocks back; recall@k: some passage comes from it",
        "limit": config.limit,
    }


def _data(benchmark: Benchmark) -> dict[str, Any]:
    questions, contexts = benchmark.questions, benchmark.contexts
    known = questions.questions
    return {
        "release": f"{BENCHMARK} v1, {benchmark.size}",
        "files": [questions.name, contexts.name],
        "sha256": {questions.name: questions.sha256, contexts.name: contexts.sha256},
        "contexts_are_the_published_32k": contexts.sha256 == PERSONAMEM_CONTEXTS.sha256,
        "questions": questions.rows,
        "types": len({question.type for question in known}),
        "personas": len({question.persona for question in known}),
        "contexts": len({question.context for question in known}),
        "histories": len({(question.context, question.end) for question in known}),
        "questions_of_types": Counter(question.type for question in known),
        "unreadable_rows": len(questions.problems),
        "questions_without_history": Counter(lost.kind for lost in benchmark.lost.values()),
    }


def _blocks(benchmark: Benchmark) -> dict[str, int]:
    """How sure the referenced blocks are."""
    blocks = [asked.block for part in benchmark.parts for asked in part.asked]
    agreed = sum(block is not None and block.agrees for block in blocks)
    missing = sum(block is None for block in blocks)
    return {"both_distances_agree": agreed, "they_do_not": len(blocks) - agreed - missing, "none": missing}
