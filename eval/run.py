"""What a run does with its timelines: ingests, searches, answers and judges what is not done yet.

Every result is a record on disk before anything rests on it. What is left to do with a question or a memory point follows
from its records alone (`QuestionState`), so a run goes on where it was stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from copy import copy
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import chain, islice, zip_longest
from typing import Any

from rich.console import Console

from deltamem.embedding import Embedder
from deltamem.errors import EmbedderUnavailableError, reason_of
from deltamem.progress import ProgressDisplay
from deltamem.runs import RecordFile
from eval.answer import Answerer, ContextBlock, Judge, QAGrader
from eval.benchmark import AskContext, Asker, Benchmark, PointChecks, Report, Results, Timeline, TimelineStep
from eval.fingerprint import RunManifest
from eval.judge import load_calibration, measure, measure_swapped
from eval.models import Models
from eval.parts import Prompts
from eval.records import (
    LACKING,
    LATE,
    Cost,
    Found,
    IngestRecord,
    PointRecord,
    QuestionRecord,
    RunFiles,
    Verdict,
    ingest_session,
)
from eval.summarise import build_summary
from eval.summary import Summary, write_summary
from eval.systems.base import ExpectantMemory, Memory, Passage, System, SystemUnavailableError
from eval.systems.kinds import asks_model

FEW_RESAMPLES = 20
"""Of intervals in the summary of a run that goes on."""

_PARTIAL_SECONDS, _PARTIAL_SHARE = 60.0, 50.0
"""Between two summaries of what is done so far: so many seconds, and so many times as long as writing one takes."""

_OUTDATED = "searched for before all sessions were ingested"


class QuestionState(IntEnum):
    """What has to be done next with a question or a memory point."""

    SEARCH = 0  # Nothing was found for it that still counts
    ANSWER = 1  # An answer is missing, failed, or is to something else than what was last found
    JUDGE = 2  # A verdict is missing or failed
    DONE = 3


class ProgressBars(ProgressDisplay):
    """How far a run is: sessions, questions and memory points."""

    def __init__(self, console: Console, timelines: Sequence[Timeline], *, points: bool) -> None:
        """Count what there is to do."""
        steps = [step for timeline in timelines for step in timeline.steps]
        totals = {
            "sessions": sum(len(sessions) for step in steps for sessions in step.sessions),
            "questions": sum(len(step.questions) for step in steps),
        }
        if points:
            totals["points"] = sum(len(step.points or ()) for step in steps)
        super().__init__(console, totals)

    def session(self, record: IngestRecord) -> None:
        """A session was ingested, or failed; its memories are checked like points."""
        self.expect("points", len(record.memories or ()))
        self._count("sessions", record.cost, failed=record.outcome == "failed")

    def question(self, record: QuestionRecord) -> None:
        """A question is done, or failed."""
        costs = (cost for answer in record.answers for cost in answer.costs)
        self._count("questions", sum(costs, Cost(seconds=record.search_seconds)), failed=not record.complete)

    def point(self, record: PointRecord) -> None:
        """A point or memory is done, or failed."""
        searched = Cost(seconds=record.search_seconds)
        cost = searched + record.verdict.cost if record.verdict else searched
        self._count("points", cost, failed=not record.complete)

    def _count(self, name: str, cost: Cost, *, failed: bool) -> None:
        self.advance(name, tokens=cost.prompt_tokens + cost.completion_tokens, seconds=cost.seconds, failed=failed)


@dataclass
class Run:
    """What a run works with; does what is not done yet and sums up.

    Without an `answerer` questions are only searched for; `judges` are those of points by kind too, none if nothing is
    judged.
    """

    benchmark: Benchmark[Any]
    system: System
    timelines: Sequence[Timeline]
    files: RunFiles
    answerer: Answerer | None
    judges: Mapping[str, Judge]
    progress: ProgressBars
    models: Models
    embedder: Embedder
    prompts: Prompts
    manifest: RunManifest
    started: float  # By `time.perf_counter`
    asker: Asker | None = None  # Of a benchmark that asks its questions itself

    def __post_init__(self) -> None:
        self.config = config = self.benchmark.config
        stores = max((len(timeline.stores) for timeline in self.timelines), default=1)
        self._slots = asyncio.Semaphore(max(1, config.stores_at_once // stores))
        # Without points they are never asked for, and then None.
        self.checks: PointChecks = self.benchmark.points  # type: ignore[assignment]
        self.points: RecordFile[PointRecord] = self.files.points  # type: ignore[assignment]
        self._twins: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    @cached_property
    def grader(self) -> QAGrader | None:
        """Answers and judges, from when it is known what the run is made with; None without an answerer."""
        if self.answerer is None:
            return None
        config, budget = self.config, self.config.answer.context_tokens
        of = self.benchmark.score, self.benchmark.judge_fields, sorted(set(config.budgets)), self.manifest.made
        cutting = config.answer.counted, config.answer.cut == "sentence"
        more = (*of, *cutting, self.benchmark.prompt_of)
        return QAGrader(self.answerer, self.judges, config.runs, budget, config.with_time, *more)

    @property
    def context(self) -> AskContext:
        """For a benchmark that asks its questions itself."""
        named = {prompt.name: prompt for prompt in self.prompts.further.values()}
        if self.prompts.answer is not None:
            named["answer"] = self.prompts.answer
        models = self.models
        return AskContext(models.answer, models.judge, models.cache, self.embedder, named, self.manifest.made)

    async def measured_summary(self) -> Summary:
        """The summary of a finished run, once the judges are calibrated."""
        seconds = {"run": time.perf_counter() - self.started}
        specs = self.benchmark.judges(self.config)
        probes: list[Mapping[str, Any]] = []
        swapped: Sequence[Mapping[str, Any]] = ()
        if self.config.judge.probes:
            if self.judges or self.benchmark.asks:  # takes its time
                self.write_partial()
            calibrated = [judge for name, judge in self.judges.items() if name in specs and specs[name].calibrated]
            probes = [await measure(judge, load_calibration()) for judge in calibrated]
            probes += await self.benchmark.probes(self.context)
            if self.grader is not None and self.judges:
                questions = self.results().questions
                swapped = await measure_swapped(self.judges, questions, self.benchmark.judge_fields, self.config.seed)
        if specs:
            seconds["probes"] = time.perf_counter() - self.started - seconds["run"]
        return self._summary(self.benchmark, probes=probes, swapped=swapped, seconds=seconds)

    def write_partial(self) -> None:
        """Write down what there is so far, for `compare`; its intervals are rough, so that it costs little."""
        rough = copy(self.benchmark)
        rough.config = self.config.model_copy(update={"resamples": FEW_RESAMPLES})
        keys = self.benchmark.question_keys(self.timelines)
        partial = {"done": sum(key in self.files.questions for key in keys), "questions": len(keys)}
        seconds = {"run": time.perf_counter() - self.started}
        write_summary(self.config.out, self._summary(rough, probes=(), seconds=seconds, partial=partial))

    def _summary(self, benchmark: Benchmark[Any], **measured: Any) -> Summary:
        results = self.results()
        budgets = self.grader.budgets if self.grader is not None else ()
        return build_summary(
            self.config,
            benchmark.report(results),
            results,
            usage=self.models.usage(),
            prompt_hashes=self.prompts.hashes,
            warnings=[*self.training_departures(), *self.manifest.warnings(), *self.models.warnings()],
            fingerprint=self.manifest.as_dict(),
            budgets=[_at_budget(benchmark, results, budget) for budget in budgets],
            **measured,
        )

    def training_departures(self) -> list[str]:
        """In what the policy is used otherwise than it was trained, once it is known what is served."""
        if not asks_model(self.config):
            return []
        served = self.manifest.last.served.get("manager", {}) if self.manifest.last is not None else {}
        found: list[str] = self.config.training_departures(served.get("root"))
        return found

    def models_needed(self) -> list[str] | None:
        """The parts of the models that will be asked something; None if nothing is left to do."""
        unfinished, searching = self.unfinished(), self.needs_stores()
        needed = ["answer", "judge"] if unfinished else []
        needed += ["manager"] if searching and asks_model(self.config) else []
        return needed if unfinished or searching else None

    def needs_stores(self) -> bool:
        """Whether something has to be ingested or searched for."""
        return any(map(self._needs_store, self.timelines))

    def unfinished(self) -> bool:
        """Whether something has to be answered or judged."""
        steps = ((timeline, step) for timeline in self.timelines for step in timeline.steps)
        return any(state < QuestionState.DONE for at in steps for state in self._states(*at))

    def state(self, key: str) -> QuestionState:
        """What has to be done next with a question."""
        record, found = self.files.questions.get(key), self._found(key)
        if found is None or self.benchmark.asks:  # which does all at once
            return QuestionState.SEARCH if found is None else QuestionState.DONE
        if record is None or (record.retrieved, record.deeper) != (found.retrieved, found.deeper):
            return QuestionState.ANSWER
        if self.answerer is not None and not {one.budget for one in record.budgets} >= set(self.config.budgets):
            return QuestionState.ANSWER
        if record.complete:
            return QuestionState.DONE
        answered = all(answer.error is None for answer in (*record.answers, *record.at_budgets))
        return QuestionState.JUDGE if answered and record.error is None else QuestionState.ANSWER

    def point_state(self, point: PointRecord, ingested: Sequence[IngestRecord] | None) -> QuestionState:
        """What has to be done next with a memory point or an extracted memory, which no one answers.

        `ingested` is what became of the sessions of its step; None if some are missing, without which nothing is judged.
        """
        kept = self.points.get(point.key)
        if self.checks.is_searched(point) and not (kept and kept.searched):
            return QuestionState.SEARCH
        if ingested is None or kept is None or not kept.complete:
            return QuestionState.JUDGE
        judged = kept.verdict is not None or not (self.judges and self.checks.is_judged(kept, ingested))
        return QuestionState.DONE if judged else QuestionState.JUDGE

    def _states(self, timeline: Timeline, step: TimelineStep) -> Iterable[QuestionState]:
        """Of all that is asked and checked in a step."""
        yield from (self.state(question.key) for question in step.questions)
        if step.points is not None:
            ingested = self._ingested(timeline, step)
            if ingested is None:  # what it extracts is not known yet
                yield QuestionState.JUDGE
            yield from (self.point_state(point, ingested) for point in self._point_records(step, ingested))

    async def do(self) -> None:
        """Ingest, search, answer and judge, all at the same time; what there is so far is written down now and then.

        Raises:
            SystemUnavailableError: If the system cannot work at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
            OSError: If a record cannot be written.
        """
        for record in self.benchmark.unaskable():
            if self.files.questions.get(record.key) != record:
                self.files.questions.add(record)
        with self.progress:
            watch = asyncio.create_task(self._watch())
            try:
                async with asyncio.TaskGroup() as later, asyncio.TaskGroup() as timelines:
                    for timeline in self.timelines:
                        timelines.create_task(self._timeline(timeline, later))
            except BaseException:
                with suppress(Exception):  # what ended the run is what must be told
                    self.write_partial()
                raise
            finally:
                watch.cancel()

    async def _watch(self) -> None:
        pause, last = _PARTIAL_SECONDS, time.monotonic()

        def partial() -> None:
            nonlocal pause, last
            if (began := time.monotonic()) - last >= pause:
                with suppress(OSError):  # the records are there; the next time may go well
                    self.write_partial()
                last = time.monotonic()
                pause = max(_PARTIAL_SECONDS, _PARTIAL_SHARE * (last - began))

        await self.progress.watch(partial)

    def results(self) -> Results:
        """All records that belong to the timelines."""
        sessions = {key for timeline in self.timelines for key in _session_keys(timeline)}
        steps = [(timeline, step) for timeline in self.timelines for step in timeline.steps]
        checked = (at for at in steps if at[1].points is not None)
        points = {one.key for at in checked for one in self._point_records(at[1], self._ingested(*at))}
        questions = map(self.files.questions.get, self.benchmark.question_keys(self.timelines))
        return Results(
            system=self.system,
            questions=[record for record in questions if record is not None],
            sessions=[record for record in self.files.sessions if record.key in sessions],
            points=[record for record in self.files.points or () if record.key in points],
            passages=self.files.passages,
        )

    async def _timeline(self, timeline: Timeline, later: asyncio.TaskGroup) -> None:
        ingested = [self._ingested(timeline, step) for step in timeline.steps]
        reached: set[int] = set()
        failure: str | None = None
        if self._needs_store(timeline):
            async with self._slots:
                try:
                    async with AsyncExitStack() as stack:
                        opened = (self.system.open(store) for store in timeline.stores)
                        memories = [await stack.enter_async_context(store) for store in opened]
                        failure = await self._walk(timeline, memories, reached, later)
                except (SystemUnavailableError, EmbedderUnavailableError, BaseExceptionGroup):
                    raise
                except Exception as error:  # one broken store must not lose the others
                    failure = f"the store cannot be used: {reason_of(error)}"
        for number, step in enumerate(timeline.steps):
            if number not in reached:
                for record in ingested[number] or ():
                    self.progress.session(record)
                self._finish_step(timeline, step, ingested[number], later, failure)

    async def _walk(
        self, timeline: Timeline, memories: Sequence[Memory], reached: set[int], later: asyncio.TaskGroup
    ) -> str | None:
        """Go through the steps, adding the numbers of those that were `reached`; returns why the others were not."""
        state = self.benchmark.search_state
        steps = timeline.steps
        if state == "exact":
            await self._reset_unless_exact(timeline, memories[0])
            steps = steps[: max(number for number, step in enumerate(steps) if self._to_search(step)) + 1]
        missing = self._missing(timeline)
        outdated = self._mark_outdated(timeline) if state == "latest" and missing else {}
        changed = False
        lacking: list[str] = []
        sessions = [[one for step in steps for one in step.sessions[store]] for store in range(len(memories))]
        numbers = [iter(range(len(own))) for own in sessions]

        async def ingest(store: int, count: int) -> list[IngestRecord]:
            """The next sessions of a store; in an exact state not beyond one that fails."""
            key, log, made = timeline.stores[store], self.files.sessions, self.manifest.made
            done: list[IngestRecord] = []
            for number in islice(numbers[store], count):
                done.append(await ingest_session(memories[store], key, sessions[store], number, log, made))
                self.progress.session(done[-1])
                if done[-1].outcome == "failed" and state == "exact":
                    break
            return done

        for number, step in enumerate(steps):
            for memory, coming in zip(memories, step.sessions, strict=True):
                if isinstance(memory, ExpectantMemory):
                    memory.expect(coming)
            counts = enumerate(map(len, step.sessions))
            taken = await asyncio.gather(*(ingest(store, count) for store, count in counts))
            records = list(chain.from_iterable(taken))
            failed = [record for record in records if record.outcome == "failed"]
            if failed and state != "latest":
                reason = f"session {failed[0].session} could not be ingested: {failed[0].reason}"
                if state == "exact":
                    return reason
                lacking += (record.session for record in failed)
                self._finish_step(timeline, step, None, later, reason)
            else:
                changed |= any(record.key in missing and record.outcome == "applied" for record in records)
                if not changed:
                    for question in step.questions:
                        if question.key in outdated:
                            self.files.retrieved.add(outdated[question.key])
                notes = self._notes(memories, steps[number + 1 :], lacking) if state == "session" else ()
                async with asyncio.TaskGroup() as searches:
                    for record in self._to_search(step):
                        search = self._search_point if isinstance(record, PointRecord) else self._search_question
                        searches.create_task(search(record, timeline, memories, notes))  # type: ignore[arg-type]
                self._finish_step(timeline, step, records, later)
            reached.add(number)
        return None

    def _notes(self, memories: Sequence[Memory], ahead: Sequence[TimelineStep], lacking: Sequence[str]) -> tuple[str, ...]:
        """In what way the memories are not what they should be after a step."""
        known = any(
            session.id in memory.known
            for step in ahead
            for memory, sessions in zip(memories, step.sessions, strict=True)
            for session in sessions
        )
        return ((LATE,) if known else ()) + ((LACKING + ", ".join(lacking),) if lacking else ())

    def _mark_outdated(self, timeline: Timeline) -> dict[str, QuestionRecord]:
        """Void what was found without the missing sessions, so that it is void even if this process is killed now."""
        found = [self._found(question.key) for step in timeline.steps for question in step.questions]
        outdated = {record.key: record for record in found if record is not None}
        for record in outdated.values():
            self.files.retrieved.add(record.model_copy(update={"error": _OUTDATED}))
        return outdated

    async def _reset_unless_exact(self, timeline: Timeline, memory: Memory) -> None:
        """Reset a store unless it holds, without gaps, a beginning of what comes before the next search and nothing else."""
        first = next(number for number, step in enumerate(timeline.steps) if self._to_search(step))
        wanted = [session.id for step in timeline.steps[: first + 1] for session in step.sessions[0]]
        key = timeline.stores[0].id
        exact, gap = set(memory.known) <= set(wanted), False
        for name in wanted:
            if name in memory.known:
                exact &= not gap
            else:
                record = self.files.sessions.get(f"{key}/{name}")
                gap |= record is None or record.outcome != "unreadable"
        if not exact:
            self.progress.say(
                f"{key}: the store does not hold exactly the sessions before the next question, so it is reset"
            )
            await memory.reset()

    async def _search_question(
        self, record: QuestionRecord, timeline: Timeline, memories: Sequence[Memory], notes: tuple[str, ...]
    ) -> None:
        record = self.benchmark.prepare(record)
        record = record.model_copy(update={"notes": record.notes + notes})
        if self.asker is not None:
            earlier = self.files.questions.get(record.key)
            asked = record if earlier is None else record.model_copy(update={"answers": earlier.answers})
            async for answered in self.asker(asked, memories[0]):
                self.files.questions.add(answered)
            return
        k, config, ranked = self.benchmark.k, self.config, self.system.ranked
        depth = max(k, config.budget_k) if config.budgets else k
        found, seconds, error = await self._search(memories, record.question, depth)
        if error is not None:
            self.files.questions.add(self._failed(record, error))
            return
        deeper = [passages[k:] if ranked else [] for passages in found]
        found = [passages[:k] if ranked else passages for passages in found]
        record = self.benchmark.recalled(record, merged(found)) if ranked else record
        kept = {"retrieved": self._keep(timeline, found), "deeper": self._keep(timeline, deeper)}
        more = {"search_seconds": seconds, "made": self.manifest.made}
        self.files.retrieved.add(record.model_copy(update=kept | more))

    async def _search(self, memories: Sequence[Memory], query: str, k: int) -> tuple[list[list[Passage]], float, str | None]:
        """Search all stores at the same time, one query after the other as searches are timed (`eval.models.Models.timed`).

        Returns:
            Passages of each store, best first, at most `k` of a ranked system however many it returns; wall time; why it
            failed.
        """
        async with self.models.timed:
            started = time.perf_counter()
            try:
                found = await asyncio.gather(*(memory.search(query, k) for memory in memories))
            except (SystemUnavailableError, EmbedderUnavailableError):
                raise
            except Exception as error:  # one failed search must not lose the other questions
                return [], 0.0, f"search: {reason_of(error)}"
            seconds = round(time.perf_counter() - started, 4)
            return [passages[: k if self.system.ranked else None] for passages in found], seconds, None

    def _failed(self, record: QuestionRecord, error: str) -> QuestionRecord:
        """The record of a question that could not be searched for: nothing was found, and every answer is wrong."""
        record = self.benchmark.recalled(record, ()) if self.system.ranked else record
        record = record.model_copy(update={"error": error})
        return record if self.grader is None else self.grader.failed(record)

    async def _search_point(
        self, record: PointRecord, timeline: Timeline, memories: Sequence[Memory], notes: tuple[str, ...]
    ) -> None:
        record = record.model_copy(update={"notes": notes})
        found, seconds, error = await self._search(memories, record.text, self.checks.k)
        if error is not None:
            self.points.add(self.checks.failed(record, error))
            return
        update = {"searched": True, "retrieved": self._keep(timeline, found), "search_seconds": seconds}
        self.points.add(self.checks.found(record.model_copy(update=update), merged(found), ranked=self.system.ranked))

    def _keep(self, timeline: Timeline, found: Sequence[Sequence[Passage]]) -> tuple[Found, ...]:
        kept = (self.files.keep(passages, store.id) for store, passages in zip(timeline.stores, found, strict=True))
        return tuple(chain.from_iterable(kept))

    def _finish_step(
        self,
        timeline: Timeline,
        step: TimelineStep,
        ingested: Sequence[IngestRecord] | None,
        later: asyncio.TaskGroup,
        failure: str | None = None,
    ) -> None:
        """Answer and judge what a step asks for, or record why that cannot be.

        `ingested` is what became of its sessions, None if some are missing; `later` takes what waits for models; `failure`
        is why the memory could not be searched.
        """
        for question in step.questions:
            record, found = self.files.questions.get(question.key), self._found(question.key)
            match self.state(question.key):
                case QuestionState.DONE:
                    assert record is not None  # as it is done
                    self.progress.question(record)
                case QuestionState.SEARCH if failure is not None:
                    self._finish_question(self._failed(self.benchmark.prepare(question), failure))
                case QuestionState.SEARCH if record is not None:  # the search failed just now
                    self.progress.question(record)
                case _ if found is not None:
                    later.create_task(self._answer(found, timeline))
        for point in self._point_records(step, ingested):
            kept, state = self.points.get(point.key), self.point_state(point, ingested)
            if state is QuestionState.SEARCH:
                self._finish_point(self.checks.failed(point, failure) if failure or kept is None else kept)
            elif ingested is None:
                self._finish_point(point.model_copy(update={"error": failure}))
            elif kept is not None and state is QuestionState.DONE:
                self._finish_point(kept)
            else:
                later.create_task(self._judge(kept if kept and kept.searched else point, ingested))

    async def _answer(self, found: QuestionRecord, timeline: Timeline) -> None:
        """Answer and judge; answers to the same passages from an earlier run are kept."""
        earlier = self.files.questions.get(found.key)
        if earlier is not None and earlier.retrieved == found.retrieved:
            found = found.model_copy(update={"answers": earlier.answers})
            if earlier.deeper == found.deeper:
                found = found.model_copy(update={"budgets": earlier.budgets})
        if self.grader is not None:
            blocks, deep = (
                self._blocks(timeline, passages) for passages in (found.retrieved, (*found.retrieved, *found.deeper))
            )
            # Some questions occur twice: the second then finds the answers to the first in the cache.
            async with self._twins[found.group, found.question]:
                found = await self.grader.ask(found, blocks, self.benchmark.options(found), deep)
        self._finish_question(found)

    def _blocks(self, timeline: Timeline, found: Sequence[Found]) -> list[ContextBlock]:
        """What was found, by store."""
        passages, by_time = self.files.by_store(found), not self.system.ranked
        return [
            ContextBlock(store.owner if timeline.titled else "", tuple(passages[store.id]), by_time)
            for store in timeline.stores
        ]

    async def _judge(self, record: PointRecord, ingested: Sequence[IngestRecord]) -> None:
        if self.judges and self.checks.is_judged(record, ingested):
            passages = list(chain.from_iterable(self.files.by_store(record.retrieved).values()))
            asked = self.checks.judge_fields(record, ingested, passages, ranked=self.system.ranked)
            if not isinstance(asked, Verdict):
                said = await self.judges[record.kind].judge(asked, record.user)
                asked = said.model_copy(update={"made": self.manifest.made})
            record = record.model_copy(update={"verdict": asked})
        self._finish_point(record)

    def _finish_question(self, record: QuestionRecord) -> None:
        self.files.questions.add(record)
        self.progress.question(record)

    def _finish_point(self, record: PointRecord) -> None:
        if self.points.get(record.key) != record:
            self.points.add(record)
        self.progress.point(record)

    def _needs_store(self, timeline: Timeline) -> bool:
        """Whether something has to be ingested or searched for."""
        if any(self._to_search(step) for step in timeline.steps):
            return True
        return self.benchmark.search_state != "exact" and bool(self._missing(timeline))

    def _to_search(self, step: TimelineStep) -> list[QuestionRecord | PointRecord]:
        """What the memory is to be searched for in a step and was not yet."""
        points = [point for point in step.points or () if self.point_state(point, None) is QuestionState.SEARCH]
        return [*points, *(one for one in step.questions if self.state(one.key) is QuestionState.SEARCH)]

    def _found(self, key: str) -> QuestionRecord | None:
        if self.benchmark.asks:  # then nothing is searched for on its own
            record = self.files.questions.get(key)
            return record if record is not None and record.complete and len(record.answers) == self.config.runs else None
        record = self.files.retrieved.get(key)
        return None if record is None or record.error is not None else record

    def _ingested(self, timeline: Timeline, step: TimelineStep) -> list[IngestRecord] | None:
        """What became of the sessions of a step; None if some have to be ingested."""
        keys = _session_keys(timeline, [step])
        records = [record for key in keys if (record := self._session(key)) is not None]
        return records if len(records) == len(keys) else None

    def _missing(self, timeline: Timeline) -> set[str]:
        """Keys of the sessions that have to be ingested."""
        return {key for key in _session_keys(timeline) if self._session(key) is None}

    def _session(self, key: str) -> IngestRecord | None:
        """The record of a session that need not be ingested any more."""
        record = self.files.sessions.get(key)
        return None if record is None or record.outcome == "failed" else record

    def _point_records(self, step: TimelineStep, ingested: Sequence[IngestRecord] | None) -> list[PointRecord]:
        """The points and extracted memories of a step, before anything was searched for or judged."""
        if step.points is None:
            return []
        return [*step.points, *(self.checks.extracted(step, ingested) if ingested is not None else ())]


def _at_budget(benchmark: Benchmark[Any], results: Results, budget: int) -> tuple[int, float, Report]:
    """A budget, the mean of the context tokens that it was filled with, and the report on the answers at it."""
    found = [(record, one) for record in results.questions for one in record.budgets if one.budget == budget]
    questions = [record.model_copy(update={"answers": one.answers}) for record, one in found]
    tokens = [one.context_tokens for record, one in found if record.error is None]
    return budget, sum(tokens) / max(1, len(tokens)), benchmark.report(replace(results, questions=questions, points=[]))


def _session_keys(timeline: Timeline, steps: Iterable[TimelineStep] | None = None) -> list[str]:
    """Keys of the records of all its sessions, or those of some steps; store after store in each step."""
    return [
        f"{store.id}/{session.id}"
        for step in (timeline.steps if steps is None else steps)
        for store, sessions in zip(timeline.stores, step.sessions, strict=True)
        for session in sessions
    ]


def merged(found: Sequence[Sequence[Passage]]) -> list[Passage]:
    """Bring the passages of several stores into one order.

    By similarity, the earlier store first where it is equal; where a system gives no similarities, the best of each
    store come first, then the second of each, and so on.
    """
    together = list(chain.from_iterable(found))
    if len(found) > 1 and all(passage.similarity is not None for passage in together):
        return sorted(together, key=lambda passage: -(passage.similarity or 0.0))
    return [passage for row in zip_longest(*found) for passage in row if passage is not None]
