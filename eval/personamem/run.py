"""A run of PersonaMem."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from deltamem.errors import EmbedderUnavailableError, reason_of
from deltamem.runs import run_tasks
from eval.answer import Answerer, ContextBlock, QAGrader
from eval.data import PERSONAMEM_CONTEXTS
from eval.models import Models, answer_prompt, check_models, make_answerer, open_models
from eval.personamem.data import (
    BATCH_TURNS,
    FIRST_DAY,
    Asked,
    ContextFile,
    History,
    Lost,
    PersonaMemConfig,
    Question,
    QuestionFile,
    group_of,
    histories,
    in_order,
    load_contexts,
    load_questions,
    record_key,
    size_of,
    without_history,
)
from eval.personamem.scores import block_rank, letters_named, question_record, run_scores, score_answer, spread_over_runs
from eval.records import IngestRecord, QuestionRecord, check_run_config
from eval.runner import ProgressBars, RunFiles, ingest_sessions, open_files, search_stores
from eval.summary import build_summary, write_summary
from eval.systems.base import DialogueSession, Memory, System, SystemUnavailableError
from eval.systems.embedding_lock import make_embedder
from eval.systems.factory import WITH_MODEL, check_system, open_system

BENCHMARK = "PersonaMem"


@dataclass(frozen=True)
class Benchmark:
    """The data of a run.

    Attributes:
        questions: The questions file.
        contexts: The contexts file.
        histories: One for each context that some question can be asked about.
        selected: The questions that the run accounts for.
        lost: Those of them that cannot be asked, with the reason.
    """

    questions: QuestionFile
    contexts: ContextFile
    histories: tuple[History, ...]
    selected: tuple[Question, ...]
    lost: dict[str, Lost]

    @property
    def asked(self) -> dict[str, Asked]:
        """By key all questions that can be asked."""
        return {asked.key: asked for history in self.histories for asked in history.asked}

    @property
    def parts(self) -> list[Part]:
        """What is asked of each context."""
        keys = {record_key(question) for question in self.selected}
        parts = [Part(history, tuple(asked for asked in history.asked if asked.key in keys)) for history in self.histories]
        return [part for part in parts if part.asked]

    @property
    def size(self) -> str:
        """Which release the questions are of."""
        return size_of(question.type for question in self.questions.questions) or "of unknown size"


def read_benchmark(config: PersonaMemConfig) -> Benchmark:
    """Read both files and lay the contexts out.

    Raises:
        DeltaMemError: If a file is missing or is not what it should be.
    """
    questions_path, contexts_path = config.files()
    questions, contexts = load_questions(questions_path), load_contexts(contexts_path)
    reasons = {question.row: without_history(question, contexts) for question in questions.questions}
    usable = [question for question in questions.questions if reasons[question.row] is None]
    selected: list[Question] = []
    taken: Counter[str] = Counter()
    for question in questions.questions:
        taken[question.persona] += 1
        if config.limit is None or taken[question.persona] <= config.limit:
            selected.append(question)
    return Benchmark(
        questions=questions,
        contexts=contexts,
        histories=tuple(histories(usable, contexts.contexts, keep_system=config.system_messages == "keep")),
        selected=tuple(selected),
        lost={record_key(question): lost for question in selected if (lost := reasons[question.row])},
    )


@dataclass(frozen=True)
class Part:
    """One context of a run, and those of its questions that the run asks."""

    history: History
    asked: tuple[Asked, ...]

    @property
    def sessions(self) -> tuple[DialogueSession, ...]:
        """What has to be taken in for the last of the questions."""
        return self.history.before(max(asked.question.end for asked in self.asked))


class Run:
    """Does what is not done yet."""

    def __init__(
        self,
        system: System,
        files: RunFiles,
        parts: Sequence[Part],
        asking: QAGrader | None,
        shown: ProgressBars,
        tell: Callable[[str], None],
        *,
        k: int,
        stores_at_once: int,
        searches: asyncio.Semaphore,
    ) -> None:
        """Prepare a run; nothing is done yet.

        Args:
            system: The system under test.
            files: What is done, and where the rest is written.
            parts: The contexts, each with at least one question.
            asking: How questions are answered; None if they are not.
            shown: Told of sessions and questions, those of earlier runs included.
            tell: Told in a sentence of each store that begins anew.
            k: Passages that a question is searched for.
            stores_at_once: Stores that may be open at the same time.
            searches: Held by each search while it is timed, see `eval.systems.embedding_lock.ThreadSafeEmbedder.turns`.
        """
        self._system = system
        self._files = files
        self._parts = parts
        self._asking = asking
        self._shown = shown
        self._tell = tell
        self._k = k
        self._stores = asyncio.Semaphore(stores_at_once)
        self._searches = searches

    def searches_missing(self) -> bool:
        """Whether some question has to be searched for, so that its history has to be in a store."""
        return any(self._waits(asked) for part in self._parts for asked in part.asked)

    def questions_missing(self) -> bool:
        """Whether some question has to be answered."""
        return any(not self._done(asked) for part in self._parts for asked in part.asked)

    async def do(self) -> None:
        """Take in, search and answer, all at the same time.

        Raises:
            SystemUnavailableError: If the system cannot work at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
            OSError: If a record cannot be written.
        """
        async with asyncio.TaskGroup() as answers, asyncio.TaskGroup() as contexts:
            for part in self._parts:
                contexts.create_task(self._part(part, answers))

    async def _part(self, part: Part, answers: asyncio.TaskGroup) -> None:
        for asked in part.asked:
            found = self._files.retrieved.get(asked.key)
            if self._done(asked):
                self._shown.question(self._files.questions.get(asked.key) or question_record(asked))
            elif found is not None:
                answers.create_task(self._answer(asked, found))
        waiting = [asked for asked in part.asked if self._waits(asked)]
        if not waiting:
            for session in part.sessions:
                if noted := self._noted(part.history, session.id):
                    self._shown.session(noted)
            return
        async with self._stores, AsyncExitStack() as stack:
            try:
                memory = await stack.enter_async_context(self._system.open(part.history.key))
                await self._make_fit(part.history, memory, min(asked.question.end for asked in waiting))
            except (SystemUnavailableError, EmbedderUnavailableError):
                raise
            except Exception as error:  # one broken store must not lose the other contexts
                self._give_up(waiting, f"the store cannot be opened: {reason_of(error)}")
                return
            await self._feed(part.history, memory, waiting, answers)

    async def _make_fit(self, history: History, memory: Memory, end: int) -> None:
        """Make sure that a store holds a beginning of what comes before a question, without gaps, and nothing else."""
        if not self._fits(history, memory.known, end):
            self._tell(
                f"{history.key.id}: the store does not hold what comes before message {end} and nothing else, "
                "so it begins anew"
            )
            await memory.reset()

    def _fits(self, history: History, known: Collection[str], end: int) -> bool:
        gap = False
        wanted = [session.id for session in history.before(end)]
        for name in wanted:
            if name in known:
                if gap:
                    return False
            else:
                noted = self._noted(history, name)
                gap |= noted is None or noted.outcome != "unreadable"
        return set(known) <= set(wanted)

    async def _feed(self, history: History, memory: Memory, waiting: Sequence[Asked], answers: asyncio.TaskGroup) -> None:
        due: dict[str | None, list[Asked]] = {}
        for asked in waiting:
            before = history.before(asked.question.end)
            due.setdefault(before[-1].id if before else None, []).append(asked)
        sessions = history.before(max(asked.question.end for asked in waiting))
        await self._search_all(due.pop(None, ()), history, memory, answers)
        feed = ingest_sessions(memory, history.key, sessions, self._files.sessions, self._shown.session)
        async with aclosing(feed):  # type: ignore[type-var]
            async for session, record in feed:
                if record.outcome == "failed":
                    late = [asked for members in due.values() for asked in members]
                    self._give_up(late, f"messages {session.id} of its history could not be taken in: {record.reason}")
                    return
                await self._search_all(due.pop(session.id, ()), history, memory, answers)

    async def _search_all(
        self, questions: Sequence[Asked], history: History, memory: Memory, answers: asyncio.TaskGroup
    ) -> None:
        async with asyncio.TaskGroup() as searches:
            for asked in questions:
                searches.create_task(self._search(asked, history, memory, answers))

    async def _search(self, asked: Asked, history: History, memory: Memory, answers: asyncio.TaskGroup) -> None:
        record = question_record(asked)
        passages, seconds, error = await search_stores([memory], record.question, self._k, self._searches)
        if error is not None:
            self._finish(record.model_copy(update={"error": error}))
            return
        [best] = passages
        found = record.model_copy(
            update={
                "retrieved": self._files.keep(best, history.key.id),
                "ranks": block_rank(asked, best) if self._system.ranked and record.evidence else (),
                "search_seconds": seconds,
            }
        )
        self._files.retrieved.add(found)
        answers.create_task(self._answer(asked, found))

    async def _answer(self, asked: Asked, found: QuestionRecord) -> None:
        """Answer; answers from an earlier run that did not fail are kept."""
        earlier = self._files.questions.get(found.key)
        if earlier is not None and earlier.retrieved == found.retrieved:
            found = found.model_copy(update={"answers": earlier.answers})
        if self._asking is not None:
            # The data has no dates: only the order tells an answerer what came last.
            blocks = [ContextBlock("", self._files.found(found.retrieved), by_time=not self._system.ranked)]
            found = await self._asking.ask(found, asked.question.text, blocks, asked.question.options)
        self._finish(found)

    def _give_up(self, questions: Sequence[Asked], reason: str) -> None:
        for asked in questions:
            self._finish(question_record(asked).model_copy(update={"error": reason}))

    def _finish(self, record: QuestionRecord) -> None:
        self._files.questions.add(record)
        self._shown.question(record)

    def _done(self, asked: Asked) -> bool:
        record = self._files.questions.get(asked.key)
        return record is not None and record.complete

    def _waits(self, asked: Asked) -> bool:
        return not self._done(asked) and asked.key not in self._files.retrieved

    def _noted(self, history: History, session: str) -> IngestRecord | None:
        return self._files.sessions.get(f"{history.key.id}/{session}")


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
        check_run_config(config.out, _making(config, benchmark, prompts))
        with open_files(config.out) as files:
            parts = benchmark.parts
            shown = ProgressBars(
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


def _asking(config: PersonaMemConfig, answerer: Answerer | None) -> QAGrader | None:
    if answerer is None:
        return None
    return QAGrader(
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
