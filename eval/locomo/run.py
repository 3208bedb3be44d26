"""A run of LoCoMo."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from deltamem.errors import EmbedderUnavailableError, reason_of
from deltamem.runs import run_tasks
from eval.answer import Answerer, QAGrader
from eval.data import LOCOMO
from eval.judge import ProbeResult, load_probes, measure
from eval.locomo.data import ADVERSARIAL, COLUMNS, Asked, Benchmark, Dialogue, LocomoConfig, dialogues, read_benchmark
from eval.locomo.scores import (
    ANSWER_FIELDS,
    ANSWER_PROMPT,
    Judges,
    OpenStore,
    Prompts,
    context,
    lexical_scores,
    load_prompts,
    make_judges,
    run_scores,
    search,
    to_judge,
)
from eval.metrics import load_nltk
from eval.models import Models, check_models, make_answerer, open_models
from eval.records import QuestionRecord, check_run_config
from eval.runner import ProgressBars, RunFiles, ingest_sessions, open_files
from eval.summary import build_summary, write_summary
from eval.systems.base import System, SystemUnavailableError
from eval.systems.embedding_lock import make_embedder
from eval.systems.factory import WITH_MODEL, check_system, open_system

_OUTDATED = "searched for before all sessions were taken in"


@dataclass(frozen=True)
class Part:
    """One conversation of a run: its stores, and the questions about it."""

    dialogues: tuple[Dialogue, ...]
    asked: tuple[Asked, ...]


class Run:
    """Does what is not done yet."""

    def __init__(
        self,
        system: System,
        files: RunFiles,
        parts: Sequence[Part],
        asking: QAGrader | None,
        shown: ProgressBars,
        *,
        k: int,
        stores_at_once: int,
        searches: asyncio.Semaphore,
    ) -> None:
        """Prepare a run; nothing is done yet.

        Args:
            system: The system under test.
            files: What is done, and where the rest is written.
            parts: The conversations.
            asking: How questions are answered; None if they are not.
            shown: Told of sessions and questions, those of earlier runs included.
            k: Passages from each store.
            stores_at_once: Stores that may be open at the same time.
            searches: Held by each search while it is timed, see `eval.systems.embedding_lock.ThreadSafeEmbedder.turns`.
        """
        self._system = system
        self._files = files
        self._parts = parts
        self._asking = asking
        self._shown = shown
        self._k = k
        stores = max(len(part.dialogues) for part in parts)
        self._conversations = asyncio.Semaphore(max(1, stores_at_once // stores))
        self._searches = searches
        self._twins: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    def sessions_missing(self) -> bool:
        """Whether some session has to be taken in."""
        return any(self._missing(part) for part in self._parts)

    def questions_missing(self) -> bool:
        """Whether some question has to be answered or judged."""
        return any(self._done(asked) is None for part in self._parts for asked in part.asked)

    async def do(self) -> None:
        """Take in, search, answer and judge, all at the same time.

        Raises:
            SystemUnavailableError: If the system cannot work at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
            OSError: If a record cannot be written.
        """
        async with asyncio.TaskGroup() as answers, asyncio.TaskGroup() as conversations:
            for part in self._parts:
                conversations.create_task(self._part(part, answers))

    async def _part(self, part: Part, answers: asyncio.TaskGroup) -> None:
        missing = self._missing(part)
        if not missing:
            waiting = self._answer_what_was_found(part, answers)
            if not waiting:
                self._tell_sessions(part)
                return
        async with self._conversations, AsyncExitStack() as stack:
            try:
                stores = [
                    OpenStore(dialogue, await stack.enter_async_context(self._system.open(dialogue.key)))
                    for dialogue in part.dialogues
                ]
            except (SystemUnavailableError, EmbedderUnavailableError):
                raise
            except Exception as error:  # one broken store must not lose the other conversations
                reason = reason_of(error)
                if missing:
                    waiting = self._answer_what_was_found(part, answers)
                for asked in waiting:
                    self._finish(asked.record().model_copy(update={"error": f"the store cannot be opened: {reason}"}))
                return
            if missing:
                await self._complete(part, stores)
                waiting = self._answer_what_was_found(part, answers)
            else:
                await asyncio.gather(*(self._ingest(store) for store in stores))
            async with asyncio.TaskGroup() as searches:
                for asked in waiting:
                    searches.create_task(self._search(asked, part, stores, answers))

    async def _complete(self, part: Part, stores: Sequence[OpenStore]) -> None:
        """Take in the missing sessions. What was found without them is outdated, even if this process is killed now."""
        before = [found for asked in part.asked if (found := self._found(asked)) is not None]
        for found in before:
            self._files.retrieved.add(found.model_copy(update={"error": _OUTDATED}))
        if not any(await asyncio.gather(*(self._ingest(store) for store in stores))):
            for found in before:
                self._files.retrieved.add(found)

    def _missing(self, part: Part) -> bool:
        for dialogue in part.dialogues:
            for session in dialogue.sessions:
                noted = self._files.sessions.get(f"{dialogue.key.id}/{session.id}")
                if noted is None or noted.outcome == "failed":
                    return True
        return False

    def _found(self, asked: Asked) -> QuestionRecord | None:
        record = self._files.retrieved.get(asked.key)
        return None if record is None or record.error is not None else record

    def _done(self, asked: Asked) -> QuestionRecord | None:
        record = self._files.questions.get(asked.key)
        return None if record is None or not record.complete or self._found(asked) is None else record

    def _answer_what_was_found(self, part: Part, answers: asyncio.TaskGroup) -> list[Asked]:
        """Go on with questions that were searched for; returns the others."""
        waiting = []
        for asked in part.asked:
            if done := self._done(asked):
                self._shown.question(done)
            elif found := self._found(asked):
                answers.create_task(self._answer(found, part))
            else:
                waiting.append(asked)
        return waiting

    def _tell_sessions(self, part: Part) -> None:
        for dialogue in part.dialogues:
            for session in dialogue.sessions:
                if noted := self._files.sessions.get(f"{dialogue.key.id}/{session.id}"):
                    self._shown.session(noted)

    async def _ingest(self, store: OpenStore) -> bool:
        """Take in all sessions of a store; returns whether some were taken in that were not there before."""
        key = store.dialogue.key
        missing = {
            session.id
            for session in store.dialogue.sessions
            if (noted := self._files.sessions.get(f"{key.id}/{session.id}")) is None or noted.outcome == "failed"
        }
        changed = False
        sessions = store.dialogue.sessions
        async for session, record in ingest_sessions(store.memory, key, sessions, self._files.sessions, self._shown.session):
            changed |= session.id in missing and record.outcome == "applied"
        return changed

    async def _search(self, asked: Asked, part: Part, stores: Sequence[OpenStore], answers: asyncio.TaskGroup) -> None:
        ranked = self._system.ranked
        found = await search(asked.record(), stores, self._k, self._files, self._searches, ranked=ranked)
        if found.error is not None:
            self._finish(found)
            return
        self._files.retrieved.add(found)
        answers.create_task(self._answer(found, part))

    async def _answer(self, found: QuestionRecord, part: Part) -> None:
        """Answer and judge; answers to the same passages from an earlier run are kept."""
        earlier = self._files.questions.get(found.key)
        if earlier is not None and earlier.retrieved == found.retrieved:
            found = found.model_copy(update={"answers": earlier.answers})
        if self._asking is not None:
            blocks = context(found, part.dialogues, self._files, ranked=self._system.ranked)
            # Some questions occur twice: the second then finds the answers to the first in the cache.
            async with self._twins[found.group, found.question]:
                found = await self._asking.ask(found, found.question, blocks)
        self._finish(found)

    def _finish(self, record: QuestionRecord) -> None:
        self._files.questions.add(record)
        self._shown.question(record)


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
            shown = ProgressBars(console, sessions=sessions, questions=len(benchmark.asked))
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
            check_run_config(config.out, _making(config, benchmark, prompts))  # a model that is not there makes nothing
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


def _asking(config: LocomoConfig, benchmark: Benchmark, answerer: Answerer | None, judges: Judges) -> QAGrader | None:
    if answerer is None:
        return None
    by_key = {asked.key: asked for asked in benchmark.asked}
    return QAGrader(
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
