"""What the runs of all benchmarks share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deltamem.errors import DeltaMemError, EmbedderUnavailableError, reason_of
from eval.compare.page import write_report
from eval.records import Cost, Found, IngestRecord, PassageRecord, QuestionRecord, RecordFile
from eval.systems.base import DialogueSession, Memory, Passage, StoreKey, SystemUnavailableError


@dataclass(frozen=True)
class RunFiles:
    """What is done, and where the rest is written.

    Attributes:
        sessions: One for each store and session.
        passages: Each passage that was found for something.
        retrieved: Questions as they were searched for, without answers.
        questions: Questions with answers and verdicts.
    """

    sessions: RecordFile[IngestRecord]
    passages: RecordFile[PassageRecord]
    retrieved: RecordFile[QuestionRecord]
    questions: RecordFile[QuestionRecord]

    def keep(self, passages: Iterable[Passage], store: str) -> tuple[Found, ...]:
        """Keep passages that were found, each once, and name them."""
        found = []
        for passage in passages:
            kept = PassageRecord.of(passage, store)
            if kept.id not in self.passages:
                self.passages.add(kept)
            found.append(Found(passage=kept.id, similarity=passage.similarity))
        return tuple(found)

    def found(self, named: Iterable[Found]) -> tuple[Passage, ...]:
        """The passages that `keep` named.

        Raises:
            DeltaMemError: If one is not there.
        """
        kept = ((self._kept(found), found.similarity) for found in named)
        return tuple(Passage(record.text, record.time, record.sources, similarity) for record, similarity in kept)

    def store_of(self, found: Found) -> str:
        """The store that a passage comes from.

        Raises:
            DeltaMemError: If the passage is not there.
        """
        return self._kept(found).store

    def _kept(self, found: Found) -> PassageRecord:
        kept = self.passages.get(found.passage)
        if kept is None:
            raise DeltaMemError(f"{self.passages.path} does not hold the passage {found.passage}")
        return kept


@contextmanager
def open_files(folder: Path) -> Iterator[RunFiles]:
    """Open the records of an output folder, or begin them.

    Raises:
        DeltaMemError: If a line of a file is not a record.
        OSError: If a file cannot be read or written.
    """
    with ExitStack() as stack:
        yield RunFiles(
            stack.enter_context(RecordFile(folder / "sessions.jsonl", IngestRecord, lambda record: record.key)),
            stack.enter_context(RecordFile(folder / "passages.jsonl", PassageRecord, lambda record: record.id)),
            stack.enter_context(RecordFile(folder / "retrieved.jsonl", QuestionRecord, lambda record: record.key)),
            stack.enter_context(RecordFile(folder / "questions.jsonl", QuestionRecord, lambda record: record.key)),
        )


SESSIONS, QUESTIONS = "sessions", "questions"


class ProgressBars:
    """Bars of sessions, questions and what else a benchmark counts, with the tokens and failures so far."""

    def __init__(self, console: Console, *, sessions: int, questions: int, **more: int) -> None:
        """Make the bars; they appear when `progress` is entered.

        Args:
            console: Where they are shown.
            sessions: In all stores.
            questions: That are asked.
            more: Further bars with their totals.
        """
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.progress = Progress(*columns, console=console, transient=True)
        totals = {SESSIONS: sessions, QUESTIONS: questions, **more}
        self._bars = {name: self.progress.add_task(name, total=total, note="") for name, total in totals.items()}
        self._tokens = dict.fromkeys(totals, 0)
        self._failures = dict.fromkeys(totals, 0)

    def session(self, record: IngestRecord) -> None:
        """A session is in, or failed."""
        self.advance(SESSIONS, record.cost, failed=record.outcome == "failed")

    def question(self, record: QuestionRecord) -> None:
        """A question is done, or failed."""
        costs = [answer.cost for answer in record.answers]
        costs += [verdict.cost for answer in record.answers for verdict in answer.verdicts.values()]
        self.advance(QUESTIONS, sum(costs, Cost()), failed=not record.complete)

    def advance(self, name: str, cost: Cost, *, failed: bool) -> None:
        """One more of a bar is done."""
        self._tokens[name] += cost.prompt_tokens + cost.completion_tokens
        self._failures[name] += failed
        note = f"{self._tokens[name]:,} tokens" + (f", {self._failures[name]} failed" if self._failures[name] else "")
        self.progress.update(self._bars[name], advance=1, note=note)

    def expect(self, name: str, total: int) -> None:
        """A bar has another total than was thought."""
        self.progress.update(self._bars[name], total=total)


class Searched(NamedTuple):
    """What a query found.

    Attributes:
        passages: Of each store, best first; empty if the search failed.
        seconds: Wall time, all stores together.
        error: Why it failed.
    """

    passages: list[list[Passage]]
    seconds: float
    error: str | None


async def search_stores(memories: Sequence[Memory], query: str, k: int, slots: asyncio.Semaphore) -> Searched:
    """Search all stores at the same time.

    Args:
        memories: The stores.
        query: What is searched for.
        k: Passages from each store.
        slots: Bounds the searches of a run.

    Raises:
        SystemUnavailableError: If the system cannot search at all.
        EmbedderUnavailableError: If the embedder cannot be loaded.
    """
    async with slots:
        started = time.perf_counter()
        try:
            found = await asyncio.gather(*(memory.search(query, k) for memory in memories))
        except (SystemUnavailableError, EmbedderUnavailableError):
            raise
        except Exception as error:  # one broken search must not lose the other questions
            return Searched([], 0.0, f"search: {reason_of(error)}")
        return Searched(list(found), round(time.perf_counter() - started, 4), None)


REPORT_FILE = "report.html"
FAILED = 1
"""Exit code of a run in which something broke."""


def report_run(
    out: Path,
    summary: Mapping[str, Any],
    tables: Iterable[RenderableType | None],
    console: Console,
    *,
    lines: Iterable[str] = (),
    failures: Iterable[str] = (),
) -> int:
    """Show the result, write the page and say what failed.

    Args:
        out: The output folder, with its summary written.
        summary: The summary.
        tables: Shown first; None is left out.
        console: Where the result is shown.
        lines: What the benchmark says besides, after the tables.
        failures: What it says of its failures besides, on stderr.

    Returns:
        The exit code: 0, or 1 if something failed.

    Raises:
        DeltaMemError: If the page cannot be written; the records are there all the same.
    """
    for table in tables:
        if table is not None:
            console.print(table)
    page = write_report([out], out / REPORT_FILE)
    said = [*lines, *(probe_line(probe) for probe in summary["probes"]), cost_line(summary)]
    _say(console, [*said, f"{summary['version']}; every question: {page}"])
    if not summary["failures"]["count"]:
        return 0
    _say(Console(stderr=True), [*failures, *failure_lines(summary)])
    return FAILED


def cost_line(summary: Mapping[str, Any]) -> str:
    """What the run came to: calls and tokens by stage over all runs, and what this one asked for."""
    stages = {stage: [summary["cost"][stage]] for stage in ("ingest", "answer", "judge")}
    stages["probes"] = [probe["cost"] for probe in summary["probes"]]
    parts = []
    for stage, costs in stages.items():
        calls, cached, read, written = (
            sum(cost[name] for cost in costs) for name in ("calls", "cached", "prompt_tokens", "completion_tokens")
        )
        if calls:
            parts.append(f"{stage}: {calls:,} calls ({cached:,} cached), {read:,} + {written:,} tokens")
    if unreadable := summary["sessions"]["unreadable"]:
        parts.append(
            f"{unreadable:,} of {summary['sessions']['total']:,} sessions brought no readable answer of the manager"
        )
    if summary["queries_per_memory"] is not None:
        parts.append(f"{summary['queries_per_memory']:.2f} queries per memory")
    if shown := summary["context_tokens"]:
        parts.append(f"context: {shown['mean']:,.0f} tokens an answer")
    requests = sum(usage["requests"] for usage in summary["this_run"].values())
    parts.append(f"this run: {requests:,} requests, {sum(summary['seconds'].values()):.0f} s")
    return "; ".join(parts)


def probe_line(probe: Mapping[str, Any]) -> str:
    """How often a judge is wrong on answers that are known to be right or wrong."""
    failures = f", fails on {probe['errors']}" if probe["errors"] else ""
    return (
        f"{probe['judge']} judge on probes: accepts {_share(probe['false_accept'])} of the wrong answers, "
        f"rejects {_share(probe['false_reject'])} of the right ones{failures}"
    )


def failure_lines(summary: Mapping[str, Any]) -> list[str]:
    """What failed: how much of it in which stage, and the first of each kind."""
    failures = summary["failures"]
    stages = ", ".join(f"{count:,} in {stage}" for stage, count in failures["by_stage"].items())
    firsts: dict[str, str] = {}
    for reason in failures["first"]:
        firsts.setdefault(reason.partition(":")[0], reason)
    head = f"{failures['count']:,} failures ({stages}); the same command tries again what can be tried; the first:"
    return [head, *firsts.values()]


def _share(interval: Mapping[str, float] | None) -> str:
    if interval is None:
        return "an unknown share"
    return f"{100 * interval['estimate']:.0f}% ({100 * interval['low']:.0f}-{100 * interval['high']:.0f})"


def _say(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


async def ingest_sessions(
    memory: Memory,
    key: StoreKey,
    sessions: Sequence[DialogueSession],
    log: RecordFile[IngestRecord],
    told: Callable[[IngestRecord], None] = lambda record: None,
) -> AsyncIterator[tuple[DialogueSession, IngestRecord]]:
    """Take in sessions in order and yield after each, so that the memory can be searched as it is then.

    A session that fails is noted and the next one goes on without it; the same command tries it again. An unreadable
    session is not asked for again. A system that keeps nothing on disk takes in all sessions again, which is not noted
    twice. A session that is in the store but was not noted (the process was killed in between) costs nothing now; what it
    cost is lost.

    Args:
        memory: The store.
        key: Its key.
        sessions: In order.
        log: Where each session is noted.
        told: Told of each session, those of earlier runs included.

    Yields:
        The session and its record.

    Raises:
        SystemUnavailableError: If the system cannot take in anything.
        EmbedderUnavailableError: If the embedder cannot be loaded.
    """
    applied = [number for number, session in enumerate(sessions) if session.id in memory.known]
    last = max(applied, default=-1)
    for number, session in enumerate(sessions):
        noted = log.get(f"{key.id}/{session.id}")
        if noted is not None and noted.outcome == "failed":
            noted = None
        known = session.id in memory.known
        if noted is None or (noted.outcome == "applied" and not known):
            record = await _ingest(memory, key, session, number, late=number < last, lost=known)
            if noted is not None and record.outcome == "applied":
                record = noted  # the same again, in a store that did not last
            else:
                log.add(record)
        else:
            record = noted
        told(record)
        yield session, record


async def _ingest(
    memory: Memory, key: StoreKey, session: DialogueSession, number: int, *, late: bool, lost: bool
) -> IngestRecord:
    started = time.perf_counter()
    try:
        ingested = await memory.ingest(session)
    except (SystemUnavailableError, EmbedderUnavailableError):
        raise
    except Exception as error:  # one broken session must not lose the others
        return IngestRecord(
            store=key.id,
            owner=key.owner,
            session=session.id,
            number=number,
            outcome="failed",
            late=late,
            reason=reason_of(error),
        )
    seconds = time.perf_counter() - started
    record = IngestRecord.of(key.id, key.owner, session.id, number, ingested, seconds, late=late)
    return record.model_copy(update={"cost": Cost(), "cost_lost": True}) if lost else record
