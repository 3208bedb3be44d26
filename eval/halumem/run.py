"""A run of HaluMem."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from deltamem.errors import EmbedderUnavailableError, reason_of
from deltamem.runs import run_tasks
from deltamem.sessions import Turn
from deltamem.text import SourceFinder, content_stems
from eval.answer import Answerer, ContextBlock, JudgeRequest, QAGrader, cut_to_budget
from eval.data import HALUMEM_LONG, HALUMEM_MEDIUM, require
from eval.halumem.data import (
    QUESTION_TYPES,
    Halumem,
    HalumemConfig,
    HalumemSession,
    MemoryPoint,
    Question,
    User,
    load_halumem,
)
from eval.halumem.scores import (
    ANSWER_FIELDS,
    ANSWER_PROMPT,
    Judges,
    Part,
    ProbedJudge,
    Prompts,
    accuracy_fields,
    aggregate,
    curve,
    integrity_fields,
    lexical_scores,
    load_prompts,
    make_judges,
    point_judgements,
    qa_fields,
    question_judgements,
    run_scores,
    update_fields,
)
from eval.judge import ProbeResult, load_probes, measure
from eval.metrics import load_nltk
from eval.models import Models, check_models, make_answerer, open_models
from eval.records import Cost, Found, IngestRecord, PointRecord, QuestionRecord, RecordFile, Verdict, check_run_config
from eval.runner import ProgressBars, RunFiles, ingest_sessions, open_files, search_stores
from eval.summary import build_summary, write_summary
from eval.systems.base import Memory, Passage, System, SystemUnavailableError
from eval.systems.embedding_lock import make_embedder
from eval.systems.factory import WITH_MODEL, check_system, open_system

NOTHING_EXTRACTED = Verdict(label="0", reason="The session left no memory; no judge was asked.")
"""Of a point of a session without memories: it is absent, which is what is wished of an interference."""


def point_record(user: str, session: HalumemSession, point: MemoryPoint) -> PointRecord:
    """The record of a point before anything was searched for or judged.

    It becomes one of an update when the memory finds something for it (see `routed`).
    """
    return PointRecord(
        key=point.key,
        kind="integrity",
        user=user,
        session=session.number,
        text=point.text,
        memory_type=point.type,
        source=point.source,
        importance=point.importance,
        is_update=point.is_update,
    )


def routed(record: PointRecord) -> PointRecord:
    """Give a point to the judge of updates if it is one and something was found; else it stays with extraction.

    So updates do not count in the recall of extraction, and an update for which the memory is empty does not count among the
    updates.
    """
    return record.model_copy(update={"kind": "update" if record.is_update and record.retrieved else "integrity"})


def failed(record: PointRecord, reason: str | None) -> PointRecord:
    """The record of a point that could not be searched for: an update, as a search hardly ever finds nothing."""
    return record.model_copy(update={"kind": "update", "error": reason})


def memory_records(user: str, session: HalumemSession, memories: Sequence[str]) -> list[PointRecord]:
    """One record for each memory that the system extracted from a session."""
    return [
        PointRecord(
            key=f"{user}/{session.dialogue.id}/m{position}",
            kind="accuracy",
            user=user,
            session=session.number,
            text=memory,
        )
        for position, memory in enumerate(memories, start=1)
    ]


def extracted(record: IngestRecord) -> tuple[str, ...] | None:
    """What a system took from a session; None for systems that extract nothing, whose extraction is not measured.

    A session that the system's model answered unreadably left no memories, which is the system's doing.
    """
    if record.memories is None and record.outcome == "unreadable":
        return ()
    return record.memories


LEAST_WORDS = 0.7
"""Share of a point's content words that a passage without sources must contain."""


class PointFinder:
    """Links the memory points of one user to turns, and finds them among passages."""

    def __init__(self, user: User) -> None:
        """Take the user; sessions are taken apart when one of their points is asked for."""
        self._user = user
        self._name = content_stems(user.name)
        self._finder = lru_cache(maxsize=None)(self._make_finder)
        self._homes: dict[str, list[tuple[HalumemSession, MemoryPoint]]] = defaultdict(list)
        for session in user.sessions:
            for point in session.points:
                self._homes[point.text].append((session, point))

    def turns(self, text: str, session: int) -> tuple[str, ...]:
        """The turns that a memory point comes from.

        Args:
            text: The point, as it stands in the sessions.
            session: Number of the session after which it is asked for; later ones do not count.

        Returns:
            Ids of turns in order; empty if no session holds the point, or no turn its words.
        """
        found: list[str] = []
        for home, point in self._homes.get(text, ()):
            if home.number <= session:
                # Of an update the words that its session is the first to say.
                numbers = self._finder(home.number).turns(text, " ".join(point.originals))
                found += (home.dialogue.turns[number - 1].id for number in numbers)
        return tuple(found)

    def rank(self, text: str, turns: Sequence[str], passages: Sequence[Passage]) -> int | None:
        """Rank from 1 of the first passage that holds a point; None if none does.

        Args:
            text: The point.
            turns: What it is linked to.
            passages: Best first.
        """
        sought = content_stems(text) - self._name
        for rank, passage in enumerate(passages, start=1):
            if passage.sources:
                held = not set(turns).isdisjoint(passage.sources)
            else:
                held = bool(sought) and len(sought & content_stems(passage.text)) >= LEAST_WORDS * len(sought)
            if held:
                return rank
        return None

    def passage(self, text: str, session: HalumemSession) -> Passage:
        """A memory point as a passage of the session that says it last, as known after a session."""
        homes = [home for home, _ in self._homes.get(text, ()) if home.number <= session.number]
        time = max((home.dialogue.time for home in homes), default=session.dialogue.time)
        return Passage(text, time, self.turns(text, session.number))

    def _make_finder(self, number: int) -> SourceFinder:
        dialogue = self._user.sessions[number].dialogue
        turns = [Turn("user" if turn.role == "user" else "assistant", turn.text) for turn in dialogue.turns]
        return SourceFinder(turns, self._user.name)


def gold_passages(user: User) -> dict[str, list[Passage]]:
    """The memory points that questions rest on, and the new texts of updated points, as passages by what is searched for.

    Args:
        user: The user.

    Returns:
        By text of the question or of the updated point; a question that is asked twice has the evidence of both.
    """
    finder = PointFinder(user)
    found: dict[str, dict[str, Passage]] = defaultdict(dict)
    for session in user.sessions:
        for question in session.questions:
            for text in question.evidence:
                found[question.text][text] = finder.passage(text, session)
        for point in session.points:
            if point.searched:
                found[point.text][point.text] = finder.passage(point.text, session)
    return {sought: list(passages.values()) for sought, passages in found.items()}


@dataclass(frozen=True)
class PointFiles(RunFiles):
    """What is done, and where the rest is written.

    Attributes:
        points: Memory points and extracted memories: first as they were searched for, then with the verdict.
    """

    points: RecordFile[PointRecord]


@contextmanager
def open_point_files(folder: Path) -> Iterator[PointFiles]:
    """Open the records of an output folder, or begin them.

    Raises:
        DeltaMemError: If a line of a file is not a record.
        OSError: If a file cannot be read or written.
    """
    with (
        open_files(folder) as files,
        RecordFile(folder / "points.jsonl", PointRecord, lambda record: record.key) as points,
    ):
        yield PointFiles(files.sessions, files.passages, files.retrieved, files.questions, points)


LATE = "searched after later sessions were taken in"
"""Note on what was searched for again, or late, because the search or its session had failed."""

LACKING = "searched without earlier sessions that failed: "
"""Beginning of the note on what was searched for in a memory that lacks sessions; their ids follow."""


@dataclass(frozen=True)
class Searching:
    """How memories are searched.

    Attributes:
        files: Where passages are kept.
        slots: Held by each search while it is timed, see `eval.systems.embedding_lock.ThreadSafeEmbedder.turns`.
        ranked: Whether the system orders by relevance, so that ranks are noted.
        update_k: Passages for an updated point.
        question_k: Passages for a question.
    """

    files: PointFiles
    slots: asyncio.Semaphore
    ranked: bool
    update_k: int
    question_k: int

    async def question(
        self,
        memory: Memory,
        finder: PointFinder,
        user: str,
        session: HalumemSession,
        question: Question,
        notes: tuple[str, ...],
    ) -> QuestionRecord:
        """Search for a question; a failure is in the record, which gets `notes` on the state of the memory.

        Raises:
            SystemUnavailableError: If the system cannot search at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
        """
        record = question_record(user, session, question)
        evidence = dict.fromkeys(question.evidence)
        turns = {text: finder.turns(text, session.number) for text in evidence}
        linked = tuple(text for text in evidence if turns[text])
        unlinked = tuple(f"evidence that no turn could be found for: {text}" for text in evidence if not turns[text])
        record = record.model_copy(update={"evidence": linked, "notes": unlinked + notes})
        searched = await search_stores([memory], question.text, self.question_k, self.slots)
        if searched.error is not None:
            return record.model_copy(update={"error": searched.error})
        [passages] = searched.passages
        ranks = tuple(finder.rank(text, turns[text], passages) for text in linked) if self.ranked else ()
        found = self.files.keep(passages, user)
        return record.model_copy(update={"retrieved": found, "ranks": ranks, "search_seconds": searched.seconds})

    async def point(
        self,
        memory: Memory,
        finder: PointFinder,
        user: str,
        session: HalumemSession,
        point: MemoryPoint,
        notes: tuple[str, ...],
    ) -> PointRecord:
        """Search for the new text of an updated point; a failure is in the record, which gets `notes` as in `question`.

        Raises:
            SystemUnavailableError: If the system cannot search at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
        """
        turns = finder.turns(point.text, session.number)
        record = point_record(user, session, point).model_copy(update={"turns": turns, "notes": notes})
        searched = await search_stores([memory], point.text, self.update_k, self.slots)
        if searched.error is not None:
            return failed(record, searched.error)
        [passages] = searched.passages
        rank = finder.rank(point.text, turns, passages) if self.ranked and turns else None
        found = self.files.keep(passages, user)
        return routed(
            record.model_copy(
                update={"searched": True, "retrieved": found, "rank": rank, "search_seconds": searched.seconds},
            )
        )


def question_record(user: str, session: HalumemSession, question: Question) -> QuestionRecord:
    """The record of a question before anything was searched for."""
    return QuestionRecord(
        key=question.key,
        group=user,
        category=question.type,
        question=question.text,
        gold=question.answer,
        evidence=tuple(dict.fromkeys(question.evidence)),
        session=session.number,
    )


POINTS = "points"


class ShownPoints(ProgressBars):
    """Bars of sessions, questions and points."""

    def __init__(self, console: Console, *, sessions: int, questions: int, points: int) -> None:
        """Make the bars.

        Args:
            console: Where they are shown.
            sessions: That are taken in.
            questions: That are asked.
            points: Of the benchmark; memories that the system extracts are added as they come.
        """
        super().__init__(console, sessions=sessions, questions=questions, points=points)
        self._points = points

    def session(self, record: IngestRecord) -> None:
        """A session is in, or failed."""
        super().session(record)
        self._points += len(record.memories or ())
        self.expect(POINTS, self._points)

    def point(self, record: PointRecord) -> None:
        """A point or memory is done, or failed."""
        cost = Cost() if record.verdict is None else record.verdict.cost
        self.advance(POINTS, cost, failed=not record.complete)


class Run:
    """Does what is not done yet."""

    def __init__(
        self,
        system: System,
        files: PointFiles,
        parts: Sequence[Part],
        searching: Searching,
        evaluating: Evaluating,
        shown: ShownPoints,
        *,
        stores_at_once: int,
    ) -> None:
        """Prepare a run; nothing is done yet.

        Args:
            system: The system under test.
            files: What is done, and where the rest is written.
            parts: The users.
            searching: How memories are searched.
            evaluating: How what was found is answered and judged.
            shown: Told of sessions, those of earlier runs included.
            stores_at_once: Users whose sessions are taken in at the same time.
        """
        self._system = system
        self._files = files
        self._parts = parts
        self._searching = searching
        self._evaluating = evaluating
        self._shown = shown
        self._stores = asyncio.Semaphore(stores_at_once)

    def sessions_missing(self) -> bool:
        """Whether some session has to be taken in."""
        return any(self._noted(part, session) is None for part in self._parts for session in part.sessions)

    def verdicts_missing(self) -> bool:
        """Whether something has to be answered or judged."""
        for part in self._parts:
            for session in part.evaluated:
                noted = self._noted(part, session)
                if noted is None or self._evaluating.missing(part, session, noted):
                    return True
        return False

    async def do(self) -> None:
        """Take in, search, answer and judge, all at the same time.

        Raises:
            SystemUnavailableError: If the system cannot work at all.
            EmbedderUnavailableError: If the embedder cannot be loaded.
            OSError: If a record cannot be written.
        """
        async with asyncio.TaskGroup() as later, asyncio.TaskGroup() as users:
            for part in self._parts:
                users.create_task(self._user(part, later))

    async def _user(self, part: Part, later: asyncio.TaskGroup) -> None:
        noted = {session.number: self._noted(part, session) for session in part.sessions}
        reached: set[int] = set()
        broken: str | None = None
        if None in noted.values() or any(self._to_search(part, session) for session in part.evaluated):
            async with self._stores:
                try:
                    async with self._system.open(part.key) as memory:
                        await self._read(part, memory, reached, later)
                except (SystemUnavailableError, EmbedderUnavailableError, OSError, BaseExceptionGroup):
                    raise
                except Exception as error:  # one broken store must not lose the other users
                    broken = f"the store cannot be used: {reason_of(error)}"
        for session in part.sessions:
            if session.number not in reached:
                if (record := noted[session.number]) is not None:
                    self._shown.session(record)
                if not session.generated:
                    self._evaluating.session(part, session, record, later, broken)

    async def _read(self, part: Part, memory: Memory, reached: set[int], later: asyncio.TaskGroup) -> None:
        """Take in the sessions, and search after each before the next one comes."""
        finder = PointFinder(part.user)
        sessions = {session.dialogue.id: session for session in part.sessions}
        dialogues = [session.dialogue for session in part.sessions]
        lacking: list[str] = []
        async for dialogue, noted in ingest_sessions(memory, part.key, dialogues, self._files.sessions, self._shown.session):
            session = sessions[dialogue.id]
            if noted.outcome == "failed":
                lacking.append(dialogue.id)
            elif not session.generated:
                late = any(after.dialogue.id in memory.known for after in part.sessions[session.number + 1 :])
                notes = ((LATE,) if late else ()) + ((LACKING + ", ".join(lacking),) if lacking else ())
                await self._search(part, memory, finder, session, notes)
            if not session.generated:
                self._evaluating.session(part, session, noted, later)
            reached.add(session.number)

    async def _search(
        self, part: Part, memory: Memory, finder: PointFinder, session: HalumemSession, notes: tuple[str, ...]
    ) -> None:
        user = part.user.id

        async def question(asked: Question) -> None:
            record = await self._searching.question(memory, finder, user, session, asked, notes)
            (self._files.retrieved if record.error is None else self._files.questions).add(record)

        async def point(sought: MemoryPoint) -> None:
            self._files.points.add(await self._searching.point(memory, finder, user, session, sought, notes))

        async with asyncio.TaskGroup() as searches:
            for wanted in self._to_search(part, session):
                searches.create_task(question(wanted) if isinstance(wanted, Question) else point(wanted))

    def _to_search(self, part: Part, session: HalumemSession) -> list[Question | MemoryPoint]:
        """What the memory is to be searched for after a session and was not yet."""
        wanted: list[Question | MemoryPoint] = []
        for point in session.points:
            record = self._files.points.get(point.key)
            if point.searched and (record is None or not record.searched):
                wanted.append(point)
        wanted += (question for question in part.questions(session) if question.key not in self._files.retrieved)
        return wanted

    def _noted(self, part: Part, session: HalumemSession) -> IngestRecord | None:
        """What became of a session in an earlier run; None if it has to be taken in."""
        noted = self._files.sessions.get(f"{part.key.id}/{session.dialogue.id}")
        return None if noted is None or noted.outcome == "failed" else noted


def summarise(
    config: HalumemConfig,
    *,
    file: str,
    benchmark: Halumem,
    parts: Sequence[Part],
    files: PointFiles,
    system: System,
    usage: Mapping[str, Any],
    probes: Sequence[ProbeResult],
    prompts: Prompts,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """Put the summary together from all records, those of earlier runs included.

    Returns:
        `eval.summary.build_summary` with these keys besides: ``aggregate``, by judge of answers (without one under
        ``points``) what `eval.halumem.aggregate` makes of the records; ``points``, where every memory point went;
        ``evidence``, how much of it is linked to turns; ``out_of_order``, for how many
        questions and points the memory knew more or less than the sessions so far, because something failed before;
        ``cumulative``, accuracy by session, and ``cumulative_strict``.
    """
    asked = [key for part in parts for session in part.evaluated for key in (q.key for q in part.questions(session))]
    questions = [record for key in asked if (record := files.questions.get(key)) is not None]
    reached = {(part.user.id, session.number) for part in parts for session in part.evaluated}
    points = [record for record in files.points if (record.user, record.session) in reached]
    stores = {(part.key.id, session.dialogue.id) for part in parts for session in part.sessions}
    judges = list(prompts.answers)
    by_origin = [bool(passage.sources) for passage in files.passages]
    rules = (["origin"] if any(by_origin) else []) + (["words"] if not all(by_origin) else [])
    judged = [judgement for _, judgement in point_judgements(points)]
    return build_summary(
        config,
        benchmark=benchmark.version,
        protocol={
            "update_k": config.update_k,
            "question_k": config.question_k,
            "stores": "one per user",
            "cutoffs": sorted(set(config.cutoffs)),
            "point_found_by": rules if system.ranked else [],
            "judges": judges,
        },
        data={"file": file, "sha256": benchmark.sha256} | benchmark.counts | {"unusable_lines": len(benchmark.problems)},
        questions=questions,
        sessions=[record for record in files.sessions if (record.store, record.session) in stores],
        scores=run_scores(
            questions,
            points,
            judges=judges,
            cutoffs=config.cutoffs,
            update_k=config.update_k,
            ranked=system.ranked,
            resamples=config.resamples,
            seed=config.seed,
        ),
        system_facts=system.facts(),
        usage=usage,
        probes=[probe.as_dict() for probe in probes],
        prompt_hashes=prompts.hashes,
        seconds=seconds,
        problems=benchmark.problems,
        verdicts=[
            verdict.model_copy(update={"error": verdict.error and f"{record.key}, {record.kind}: {verdict.error}"})
            for record in points
            if (verdict := record.verdict) is not None
        ],
        search_seconds=[record.search_seconds for record in points if record.searched],
        failed_searches=[f"{record.key}: {record.error}" for record in points if record.error is not None],
        order=QUESTION_TYPES,
        more={
            "aggregate": {
                judge: aggregate(judged + [item for record in questions for item in question_judgements(record, judge)])
                for judge in judges
            },
            "points": _points(benchmark, points),
            "evidence": _evidence(benchmark, parts, questions),
            "out_of_order": _out_of_order([*questions, *points]),
            "cumulative": curve(questions, "qa") or None,
            "cumulative_strict": curve(questions, "qa_strict") or None,
        },
    )


def _points(benchmark: Halumem, records: Sequence[PointRecord]) -> dict[str, Any]:
    """Where every memory point of the file went; the parts add up to the total."""
    points = [record for record in records if record.kind != "accuracy"]
    total = benchmark.counts["memory_points"]
    failed = [record for record in points if not record.complete]
    judged = [record for record in points if record.complete and record.verdict is not None]
    searched = [record for record in points if record.searched]
    return {
        "total": total,
        "not_reached": total - len(points),
        "failed": len(failed),
        "judged": len(judged),
        "not_judged": len(points) - len(failed) - len(judged),
        "by_kind": dict(Counter(record.kind for record in points)),
        "by_source": dict(Counter(str(record.source) for record in points)),
        "searched": len(searched),
        "searched_and_linked": sum(bool(record.turns) for record in searched),
        "extracted_memories": len(records) - len(points),
    }


def _out_of_order(records: Sequence[QuestionRecord | PointRecord]) -> dict[str, int]:
    notes = [record.notes for record in records if record.error is None]
    return {
        "after_later_sessions": sum(LATE in own for own in notes),
        "without_earlier_sessions": sum(any(note.startswith(LACKING) for note in own) for own in notes),
    }


def _evidence(benchmark: Halumem, parts: Sequence[Part], questions: Sequence[QuestionRecord]) -> dict[str, int]:
    gold = {q.key: len(set(q.evidence)) for part in parts for q in part.user.questions}
    found = [record for record in questions if record.error is None]
    return {
        "questions_with_evidence": sum(gold[record.key] > 0 for record in questions),
        "questions_without_evidence": sum(gold[record.key] == 0 for record in questions),
        "memory_points": sum(gold[record.key] for record in found),
        "linked_to_turns": sum(len(record.evidence) for record in found),
    }


EXTRACTION = {
    "R": "recall",
    "Weighted R": "weighted_recall",
    "Target P": "target_accuracy",
    "Acc.": "weighted_accuracy",
    "FMR": "interference_accuracy",
    "F1": "memory_extraction_f1",
}
OUTCOMES = {"C": "correct", "H": "hallucination", "O": "omission"}
UPDATE = [f"{label}_update_memory_ratio" for label in OUTCOMES.values()]
QA = [f"{label}_qa_ratio" for label in OUTCOMES.values()]
STRICT_QA = [f"strict_{name}" for name in QA]
SCOPES = "(all): failed judges count as not achieved; (valid): left out; one row where both are the same."

_Scores = Mapping[str, Mapping[str, Mapping[str, float] | None]]


def extraction_table(summary: Mapping[str, Any]) -> Table:
    """Extraction in percent; - for systems that extract nothing."""
    view = _table(f"{summary['benchmark']}, {summary['system']}: extraction, %", SCOPES + "\nF1 is defined for (all) only.")
    for heading in EXTRACTION:
        view.add_column(heading, justify="right")
    for scope, cells in _scoped(summary["scores"], list(EXTRACTION.values()), "all"):
        view.add_row(scope, *cells)
    return view


def outcomes_table(summary: Mapping[str, Any]) -> Table:
    """Updates and answers that are correct (C), hallucinated (H) or omitted (O), in percent."""
    scores: _Scores = summary["scores"]
    counts: Mapping[str, int] = summary["questions"]["by_category"]
    judges = {name: heading for name, heading in (("qa", ""), ("qa_strict", "strict ")) if name in summary["aggregate"]}
    view = _table(f"{summary['benchmark']}, {summary['system']}: updating and questions, %", SCOPES)
    view.add_column("n", justify="right")
    for heading in judges.values():
        for short in OUTCOMES:
            view.add_column(f"{heading}{short}", justify="right")
    names = [name for judge in judges for name in (QA if judge == "qa" else STRICT_QA)]
    updates = next(iter(summary["aggregate"].values()))["counts"]["update"]["all"]
    for scope, cells in _scoped(scores, UPDATE, "all"):
        view.add_row(f"updating{scope}", f"{updates:,}", *cells)
    view.add_section()
    for category in [*counts, "all"]:
        count = sum(counts.values()) if category == "all" else counts[category]
        label = "all questions" if category == "all" else category
        for scope, cells in _scoped(scores, names, category):
            view.add_row(f"{label}{scope}", f"{count:,}", *cells)
    return view


def retrieval_table(summary: Mapping[str, Any]) -> Table | None:
    """Recall of memory points and lexical scores by type of question, in percent; None if nothing of it was measured."""
    scores: _Scores = summary["scores"]
    counts: Mapping[str, int] = summary["questions"]["by_category"]
    evidence = summary["evidence"]
    names = [name for name in scores if name in ("set_f1", "bleu1", "mrr") or name.startswith("recall@")]
    if not names:
        return None
    view = _table(
        f"{summary['benchmark']}, {summary['system']}: recall of memory points and lexical scores, %",
        f"Questions: {summary['questions']['total']:,} in the file, {sum(counts.values()):,} asked, "
        f"{evidence['questions_with_evidence']:,} with evidence;\n{evidence['linked_to_turns']:,} of their "
        f"{evidence['memory_points']:,} memory points are linked to turns and scored.",
    )
    view.add_column("n", justify="right")
    for name in names:
        view.add_column(name, justify="right")
    for category in [*counts, "all"]:
        count = sum(counts.values()) if category == "all" else counts[category]
        view.add_row(category, f"{count:,}", *(_cell(scores[name], category) for name in names))
    return view


def point_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Where the memory points went, how updates were found, and what was searched in a memory out of order."""
    points = summary["points"]
    parts = [f"{points[name]:,} {name.replace('_', ' ')}" for name in ("judged", "not_judged", "failed", "not_reached")]
    yield f"memory points: {points['total']:,} = {' + '.join(parts)}; extracted memories: {points['extracted_memories']:,}"
    for name, by_category in summary["scores"].items():
        if name.startswith("update_recall@") and (interval := by_category["all"]) is not None:
            yield (
                f"updated points found among the first {name.partition('@')[2]}: {_percent(interval)}% of "
                f"{interval['count']:,} ({points['searched']:,} searched, the others are linked to no turn)"
            )
    late, lacking = (summary["out_of_order"][name] for name in ("after_later_sessions", "without_earlier_sessions"))
    if late:
        yield f"{late:,} searches came after later sessions, because they or their session had failed before"
    if lacking:
        yield f"{lacking:,} searches came without earlier sessions, which had failed; a new folder begins anew"


def _table(title: str, caption: str) -> Table:
    view = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, title=title, caption=caption)
    view.add_column("")
    return view


def _scoped(scores: _Scores, names: Sequence[str], category: str) -> Iterator[tuple[str, list[str]]]:
    """One row, or two where failed judges make a difference. Metrics that have no scope stand in the first."""
    every = [_cell(scores.get(f"{name}(all)", scores.get(name)), category) for name in names]
    valid = [_cell(scores.get(f"{name}(valid)"), category) for name in names]
    if all(valid[number] == every[number] for number, name in enumerate(names) if f"{name}(all)" in scores):
        yield "", every
    else:
        yield " (all)", every
        yield " (valid)", valid


def _cell(by_category: Mapping[str, Mapping[str, float] | None] | None, category: str) -> str:
    interval = None if by_category is None else by_category.get(category)
    if interval is None:
        return "-"
    return f"{100 * interval['estimate']:.1f}\n[dim]{100 * interval['low']:.0f}-{100 * interval['high']:.0f}[/dim]"


def _percent(interval: Mapping[str, float]) -> str:
    return f"{100 * interval['estimate']:.1f} ({100 * interval['low']:.1f}-{100 * interval['high']:.1f})"


@dataclass(frozen=True)
class Evaluating:
    """How what was found is answered and judged.

    Attributes:
        files: What is done, and where the rest is written.
        asking: By key of the question; empty if nothing is answered.
        judges: Of points and memories.
        shown: Told of questions and points, those of earlier runs included.
        context_tokens: Budget of estimated tokens for what the judge of updates is shown.
        with_time: Whether it is shown dates.
        ranked: Whether the system orders by relevance; else passages are shown by time.
    """

    files: PointFiles
    asking: Mapping[str, QAGrader]
    judges: Judges
    shown: ShownPoints
    context_tokens: int
    with_time: bool
    ranked: bool

    def missing(self, part: Part, session: HalumemSession, noted: IngestRecord) -> bool:
        """Whether something of a session has to be answered or judged."""
        return any(not self._answered(question.key) for question in part.questions(session)) or any(
            not self._judged(record.key, noted) for record in _records(part, session, noted)
        )

    def session(
        self,
        part: Part,
        session: HalumemSession,
        noted: IngestRecord | None,
        later: asyncio.TaskGroup,
        broken: str | None = None,
    ) -> None:
        """Answer and judge what a session asks for.

        Args:
            part: The user.
            session: One that is evaluated.
            noted: What became of it; None if it was not reached.
            later: Takes what waits for models.
            broken: Why the memory could not be used.
        """
        if noted is not None and noted.outcome == "failed":
            broken, noted = f"the session was not taken in: {noted.reason}", None
        for question in part.questions(session):
            earlier = self.files.questions.get(question.key)
            if earlier is not None and earlier.complete:
                self.shown.question(earlier)
            elif (found := self.files.retrieved.get(question.key)) is not None:
                later.create_task(self._answer(found))
            elif broken is not None:
                record = question_record(part.user.id, session, question)
                self._finish_question(record.model_copy(update={"error": broken}))
            elif earlier is not None:  # the search failed just now
                self.shown.question(earlier)
        searched = {point.key for point in session.points if point.searched}
        for fresh in _records(part, session, noted):
            kept = self.files.points.get(fresh.key)
            if fresh.key in searched and not (kept and kept.searched):
                broken_point = failed(fresh, broken) if broken or kept is None else kept
                self._finish_point(broken_point)
            elif noted is None:
                self._finish_point(fresh.model_copy(update={"error": broken}))
            elif kept is not None and self._judged(kept.key, noted):
                self._finish_point(kept)
            else:
                later.create_task(self._judge(part, session, noted, kept if kept and kept.searched else fresh))

    def _answered(self, key: str) -> bool:
        record = self.files.questions.get(key)
        return record is not None and record.complete

    def _judged(self, key: str, noted: IngestRecord) -> bool:
        """Whether a point or memory needs no judge any more, or never did."""
        record = self.files.points.get(key)
        if record is None or not record.complete:
            return False
        return record.verdict is not None or not self._to_be_judged(record, noted)

    def _to_be_judged(self, record: PointRecord, noted: IngestRecord) -> bool:
        return bool(self.judges.points) and (record.kind == "update" or extracted(noted) is not None)

    async def _answer(self, found: QuestionRecord) -> None:
        """Answer and judge; answers to the same passages from an earlier run are kept."""
        earlier = self.files.questions.get(found.key)
        if earlier is not None and earlier.retrieved == found.retrieved:
            found = found.model_copy(update={"answers": earlier.answers})
        asking = self.asking.get(found.key)
        if asking is not None:
            found = await asking.ask(found, found.question, [self._block(found.retrieved)])
        self._finish_question(found)

    def _block(self, named: Sequence[Found]) -> ContextBlock:
        return ContextBlock("", self.files.found(named), by_time=not self.ranked)

    async def _judge(self, part: Part, session: HalumemSession, noted: IngestRecord, record: PointRecord) -> None:
        memories = extracted(noted)
        if not self._to_be_judged(record, noted):
            self._finish_point(record)
            return
        if record.kind == "update":
            (point,) = (point for point in session.points if point.key == record.key)
            shown = cut_to_budget([self._block(record.retrieved)], self.context_tokens, with_time=self.with_time)
            fields = update_fields(shown.blocks, point, with_time=self.with_time)
        elif record.kind == "accuracy":
            fields = accuracy_fields(session, record.text)
        elif memories:
            fields = integrity_fields(memories, record.text)
        else:
            self._finish_point(record.model_copy(update={"verdict": NOTHING_EXTRACTED}))
            return
        verdict = await self.judges.points[record.kind].judge(fields, part.user.id)
        self._finish_point(record.model_copy(update={"verdict": verdict}))

    def _finish_question(self, record: QuestionRecord) -> None:
        self.files.questions.add(record)
        self.shown.question(record)

    def _finish_point(self, record: PointRecord) -> None:
        if self.files.points.get(record.key) != record:
            self.files.points.add(record)
        self.shown.point(record)


def _records(part: Part, session: HalumemSession, noted: IngestRecord | None) -> list[PointRecord]:
    """The records of a session's points and extracted memories, before anything was searched for or judged."""
    user = part.user.id
    points = [point_record(user, session, point) for point in session.points]
    memories = None if noted is None else extracted(noted)
    return points + memory_records(user, session, memories or ())


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
        check_run_config(config.out, _making(config, benchmark, prompts))
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


def _asking(config: HalumemConfig, benchmark: Halumem, answerer: Answerer | None, judges: Judges) -> dict[str, QAGrader]:
    if answerer is None:
        return {}
    questions = {question.key: question for user in benchmark.users for question in user.questions}

    def score(record: QuestionRecord, text: str) -> dict[str, float]:
        return lexical_scores(questions[record.key].answer, text)

    def to_judge(record: QuestionRecord, text: str) -> list[JudgeRequest]:
        question: Question = questions[record.key]
        return [JudgeRequest(judge, qa_fields(question, text)) for judge in judges.answers.values()]

    asking = QAGrader(
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
