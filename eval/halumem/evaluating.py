"""Answers and verdicts for one session, as far as earlier runs have not got them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.answering.asking import Asking
from eval.answering.context import cut_to_budget
from eval.answering.protocol import ContextBlock
from eval.halumem.files import PointFiles
from eval.halumem.judging import Judges, accuracy_fields, integrity_fields, update_fields
from eval.halumem.loader import HalumemSession
from eval.halumem.parts import Part
from eval.halumem.points import NOTHING_EXTRACTED, extracted, failed, memory_records, point_record
from eval.halumem.progress import ShownPoints
from eval.halumem.records import PointRecord
from eval.halumem.searching import question_record
from eval.results.records import Found, IngestRecord, QuestionRecord


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
    asking: Mapping[str, Asking]
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
