"""Sessions into a store that fails, forgets, or outlives its process, with the records that are left."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest
from system_cases import ANA, talk

from deltamem.errors import DeltaMemError, EmbedderUnavailableError
from deltamem.llm import Usage
from deltamem.runs import RecordFile
from eval.records import Cost, IngestRecord, ingest_session
from eval.systems.base import DialogueSession, Ingested, Memory, SessionBuffer, SystemUnavailableError

SESSIONS = [talk(number, datetime(2023, 5, number), ("user", f"Fact {number}.")) for number in range(1, 5)]


class Notebook(SessionBuffer):
    """A memory on a page that the test keeps, or on one of its own; some sessions end in trouble."""

    def __init__(
        self, page: dict[str, DialogueSession] | None = None, trouble: dict[str, Exception | None] | None = None
    ) -> None:
        self.sessions = {} if page is None else page
        self.trouble = trouble or {}
        self.asked: list[str] = []

    async def ingest(self, session: DialogueSession) -> Ingested:
        text = session.turns[0].text
        if session.id in self.known:
            return Ingested(memories=(text,))
        self.asked.append(session.id)
        usage = Usage(calls=1, prompt_tokens=10, completion_tokens=2, searches=3)
        if session.id in self.trouble:
            error = self.trouble[session.id]
            if error is not None:
                raise error
            return Ingested(memories=(), violations={"prose": 1}, usage=usage, readable=False)
        self.sessions[session.id] = session
        return Ingested((text,), {"ADD": 1}, usage=usage, parts=2)


def log_in(folder: Path) -> RecordFile[IngestRecord]:
    return RecordFile(folder / "sessions.jsonl", IngestRecord, lambda record: record.key)


async def take_in(folder: Path, memory: Memory, sessions: Sequence[DialogueSession] = SESSIONS) -> list[IngestRecord]:
    with log_in(folder) as log:
        return [await ingest_session(memory, ANA, sessions, number, log) for number in range(len(sessions))]


def lines(folder: Path) -> int:
    return len((folder / "sessions.jsonl").read_bytes().splitlines())


async def test_nothing_is_done_twice_in_a_store_that_lasts(tmp_path: Path) -> None:
    page: dict[str, DialogueSession] = {}
    first = await take_in(tmp_path, Notebook(page), SESSIONS[:2])
    memory = Notebook(page)
    records = await take_in(tmp_path, memory)
    assert memory.asked == ["s3", "s4"] and records[:2] == first and lines(tmp_path) == 4
    assert not any(record.late for record in records)
    last = records[3]
    assert (last.store, last.owner, last.session, last.number) == ("conv-1.Ana", "Ana", "s4", 3)
    assert (last.outcome, last.memories, last.operations) == ("applied", ("Fact 4.",), {"ADD": 1})
    assert (last.cost.calls, last.cost.prompt_tokens, last.cost.completion_tokens, last.cost.searches) == (1, 10, 2, 3)
    assert last.parts == 2 and not last.cost_lost


async def test_a_store_that_does_not_last_takes_in_everything_again_but_notes_it_once(tmp_path: Path) -> None:
    first = await take_in(tmp_path, Notebook())
    memory = Notebook()
    assert await take_in(tmp_path, memory) == first
    assert memory.asked == ["s1", "s2", "s3", "s4"] and lines(tmp_path) == 4
    # What fails the second time is missing now, whatever happened the first time; then it is there again, in its place.
    broken = await take_in(tmp_path, Notebook(trouble={"s2": DeltaMemError("no room")}))
    assert [record.outcome for record in broken] == ["applied", "failed", "applied", "applied"] and lines(tmp_path) == 5
    again = await take_in(tmp_path, Notebook())
    assert [record.outcome for record in again] == ["applied"] * 4 and not again[1].late


async def test_killed_between_memory_and_log(tmp_path: Path) -> None:
    page: dict[str, DialogueSession] = {}
    await take_in(tmp_path, Notebook(page), SESSIONS[:3])
    path = tmp_path / "sessions.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:2]) + whole[2][:15])
    memory = Notebook(page)
    records = await take_in(tmp_path, memory)
    assert memory.asked == ["s4"]
    assert [record.cost_lost for record in records] == [False, False, True, False]
    lost = records[2]
    assert (lost.outcome, lost.memories, lost.cost, lost.late) == ("applied", ("Fact 3.",), Cost(), False)
    assert await take_in(tmp_path, memory) == records and lines(tmp_path) == 4


@pytest.mark.parametrize(
    ("error", "reason"), [(DeltaMemError("no room today"), "no room today"), (KeyError("x"), "KeyError: 'x'")]
)
async def test_a_failure_is_noted_and_tried_again_late(tmp_path: Path, error: Exception, reason: str) -> None:
    page: dict[str, DialogueSession] = {}
    records = await take_in(tmp_path, Notebook(page, {"s2": error, "s4": error}))
    assert [record.outcome for record in records] == ["applied", "failed", "applied", "failed"]
    assert records[1].reason == reason and records[1].memories is None and records[1].cost.calls == 0
    memory = Notebook(page, {"s4": error})
    again = await take_in(tmp_path, memory)
    assert memory.asked == ["s2", "s4"]
    # The second session comes after the third; the fourth is the last all the same.
    assert [record.outcome for record in again] == ["applied", "applied", "applied", "failed"]
    assert [record.late for record in again] == [False, True, False, False]
    third = await take_in(tmp_path, Notebook(page))
    assert third[1] == again[1] and (third[3].outcome, third[3].late) == ("applied", False)
    # A retry that was killed before it was noted stays late.
    (other := tmp_path / "other").mkdir()
    page = {}
    await take_in(other, Notebook(page, {"s2": error}))
    page["s2"] = SESSIONS[1]
    record = (await take_in(other, Notebook(page)))[1]
    assert (record.outcome, record.late, record.cost_lost) == ("applied", True, True)


async def test_what_cannot_be_read_is_not_asked_for_again(tmp_path: Path) -> None:
    page: dict[str, DialogueSession] = {}
    records = await take_in(tmp_path, Notebook(page, {"s2": None}))
    unreadable = records[1]
    assert (unreadable.outcome, unreadable.violations, unreadable.cost.calls) == ("unreadable", {"prose": 1}, 1)
    for memory in (Notebook(page), Notebook()):
        assert await take_in(tmp_path, memory) == records
        assert "s2" not in memory.asked
    assert lines(tmp_path) == 4


@pytest.mark.parametrize("error", [SystemUnavailableError("nobody answers"), EmbedderUnavailableError("fetch it")])
async def test_the_run_ends_when_nothing_can_work(tmp_path: Path, error: Exception) -> None:
    memory = Notebook(trouble={"s2": error})
    with pytest.raises(type(error), match=str(error)):
        await take_in(tmp_path, memory)
    assert memory.asked == ["s1", "s2"] and lines(tmp_path) == 1
