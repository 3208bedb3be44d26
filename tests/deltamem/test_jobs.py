"""The worker: sessions of many owners, each owner's in order, each applied once, whatever goes wrong in between."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from episode_texts import WordEmbedder
from job_cases import Failing, Gate, refused
from rule_model import RulePolicy
from test_manager import Fixed, texts

from deltamem.bank.store import MemoryStore
from deltamem.errors import ContextLengthError, DeltaMemError, LLMError
from deltamem.ingest import Outcome, Transition
from deltamem.jobs import UNREADABLE, Worker, WorkerSettings, may_pass
from deltamem.journal.jobs import Job, JobConflictError, JobState
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.policy import Policy
from deltamem.refusals import retry_after
from deltamem.sessions import Session, Turn

START = datetime(2026, 4, 5, 20, 1)
QUICK = WorkerSettings(parallel=3, poll=0.01, first_delay=0.0, longest_delay=0.0, grace=0.05)
LONG = 60.0


def a_session(owner: str, number: int, text: str = "") -> Session:
    said = text or f"My city is Town{number}."
    return Session(owner, owner.title(), START + timedelta(days=number), (Turn("user", said),), f"s{number}")


def managers(store: MemoryStore, policy: Policy) -> Callable[[str], MemoryManager]:
    return lambda owner: MemoryManager(store, owner, policy, ManagerSettings(person_name=owner.title()))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG):
        while not holds():
            await asyncio.sleep(0.01)


async def test_many_owners_at_once_and_each_in_order() -> None:
    gate = Gate()
    with MemoryStore.in_memory(WordEmbedder()) as store:
        of = managers(store, gate)
        async with Worker(store.journal.queue, of, QUICK) as worker:
            for number in range(1, 6):
                for owner in ("ann", "bob", "cem", "dan"):
                    job = await worker.ingest(a_session(owner, number))
                    assert isinstance(job, Job) and job.state in (JobState.QUEUED, JobState.RUNNING)
            await until(lambda: gate.most == 3)
            gate.open.set()
            under_way = JobState.QUEUED, JobState.RUNNING
            await until(lambda: not any(of(owner).journal.jobs(*under_way) for owner in store.owners()))
        for owner in ("ann", "bob", "cem", "dan"):
            assert [entry.session_id for entry in store.journal.owner(owner).entries()] == [f"s{n}" for n in range(1, 6)]
            assert texts(of(owner).state()) == {"m1": f"{owner.title()}'s city is Town5."}
    assert gate.most == 3


async def test_who_waits_gets_the_transition_and_everybody_else_the_job() -> None:
    with MemoryStore.in_memory(WordEmbedder()) as store:
        of = managers(store, RulePolicy())
        async with Worker(store.journal.queue, of, QUICK) as worker:
            results = await asyncio.gather(*(worker.ingest(a_session("ann", 1), wait=LONG) for _ in range(20)))
            done = [one for one in results if isinstance(one, Transition)]
            assert done and all(one.outcome is Outcome.APPLIED for one in done) and len({one.position for one in done}) == 1
            assert all(one.state is JobState.DONE for one in results if isinstance(one, Job))
            again = await worker.ingest(a_session("ann", 1), wait=LONG)
            assert isinstance(again, Job) and (again.state, again.position) == ("done", 1)
            with pytest.raises(JobConflictError):
                await worker.ingest(a_session("ann", 1, "My city is Oslo."), wait=LONG)
            with pytest.raises(DeltaMemError, match="no turns"):
                await worker.ingest(Session("ann", "Ann", START, (), "s2"))
            assert store.journal.owner("ann").head == 1


async def test_what_may_pass_is_tried_again_and_the_reason_is_visible() -> None:
    policy = Failing(refused(429, **{"retry-after": "1000"}), refused(503), LLMError("unreachable"))
    with MemoryStore.in_memory(WordEmbedder()) as store:
        of = managers(store, policy)
        async with Worker(store.journal.queue, of, QUICK) as worker:
            before = datetime.now(UTC)
            job = await worker.ingest(a_session("ann", 1), wait=LONG)
            assert isinstance(job, Job) and (job.state, job.attempts) == ("queued", 1)
            assert job.retry_at is not None and job.retry_at >= before + timedelta(seconds=1000)
            assert job.last_error == "the endpoint answered 429"
            store.journal._database._connection.execute("UPDATE jobs SET retry_at = 1")
            worker.wake()
            await until(lambda: of("ann").journal.job(job.id).state is JobState.DONE)
            assert (of("ann").journal.job(job.id).attempts, of("ann").journal.job(job.id).last_error) == (4, None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (refused(400), "answered 400"),
        (ContextLengthError("the window is too small"), "too small"),
        (ZeroDivisionError("quokka"), "ZeroDivisionError: quokka"),
    ],
)
async def test_what_would_fail_again_fails_and_lets_the_next_one_pass(
    error: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with MemoryStore.in_memory(WordEmbedder()) as store:
        of = managers(store, Failing(error))
        async with Worker(store.journal.queue, of, QUICK) as worker:
            failed = await worker.ingest(a_session("ann", 1), wait=LONG)
            assert isinstance(failed, Job) and failed.state is JobState.FAILED and said in (failed.last_error or "")
            assert isinstance(await worker.ingest(a_session("ann", 2), wait=LONG), Transition)
            assert isinstance(await worker.ingest(a_session("ann", 1), wait=LONG), Transition), "given again"
    assert "quokka" not in caplog.text, "a message may quote what somebody said"


async def test_an_answer_that_cannot_be_read_fails() -> None:
    with MemoryStore.in_memory(WordEmbedder()) as store:
        async with Worker(store.journal.queue, managers(store, Fixed("Sure!")), QUICK) as worker:
            failed = await worker.ingest(a_session("ann", 1), wait=LONG)
            assert isinstance(failed, Job) and (failed.state, failed.last_error) == ("failed", UNREADABLE)


async def test_a_pause_takes_sessions_on_and_asks_no_model() -> None:
    with MemoryStore.in_memory(WordEmbedder()) as store:
        gate = Gate()
        store.journal.queue.pause()
        async with Worker(store.journal.queue, managers(store, gate), QUICK) as worker:
            job = await worker.ingest(a_session("ann", 1), wait=0.1)
            assert isinstance(job, Job) and (job.state, job.attempts, gate.most) == ("queued", 0, 0)
            gate.open.set()
            store.journal.queue.pause(False)
            worker.wake()
            await until(lambda: store.journal.owner("ann").head == 1)


async def test_stopping_hands_back_what_does_not_end_in_time() -> None:
    with MemoryStore.in_memory(WordEmbedder()) as store:
        gate = Gate()
        async with Worker(store.journal.queue, managers(store, gate), QUICK) as worker:
            await worker.ingest(a_session("ann", 1))
            await until(lambda: gate.most == 1)
        (job,) = store.journal.owner("ann").jobs()
        assert (job.state, job.attempts, store.journal.owner("ann").head) == ("queued", 1, 0)
        async with Worker(store.journal.queue, managers(store, RulePolicy()), QUICK) as worker:
            await until(lambda: store.journal.owner("ann").head == 1)


async def test_a_long_reading_keeps_its_lease() -> None:
    with MemoryStore.in_memory(WordEmbedder()) as store:
        gate = Gate()
        settings = WorkerSettings(lease=0.3, poll=0.01)
        async with Worker(store.journal.queue, managers(store, gate), settings) as worker:
            await worker.ingest(a_session("ann", 1))
            await until(lambda: gate.most == 1)
            first = store.journal._database._connection.execute("SELECT lease_until FROM jobs").fetchone()[0]
            await until(
                lambda: store.journal._database._connection.execute("SELECT lease_until FROM jobs").fetchone()[0] > first
            )
            gate.open.set()
            await until(lambda: store.journal.owner("ann").head == 1)
        assert store.journal.owner("ann").jobs()[0].state is JobState.DONE


async def test_what_is_forgotten_while_a_session_waits_does_not_come_back_with_it() -> None:
    with MemoryStore.in_memory(WordEmbedder()) as store:
        memory = managers(store, RulePolicy())("ann")
        await memory.ingest(a_session("ann", 1, "My city is Zanzibar."))
        job = await memory.enqueue(a_session("ann", 2, "You know: Ann's city is Zanzibar. My dog is Rex."))
        await memory.forget("m1")
        done = await memory.ingest_job(job.id)
        assert done is not None and "Zanzibar" not in str(memory.state().memories)
        assert await memory.ingest_job(job.id) is None and memory.journal.job(job.id).state is JobState.DONE
        other = await memory.enqueue(a_session("ann", 3))
        await memory.forget_owner()
        assert await managers(store, RulePolicy())("ann").ingest_job(other.id) is None and store.owners() == []
        with pytest.raises(DeltaMemError, match="erased"):
            await memory.enqueue(a_session("ann", 4))


def test_what_may_pass() -> None:
    assert all(may_pass(refused(status)) for status in (401, 403, 404, 408, 409, 429, 500, 503))
    assert not any(may_pass(refused(status)) for status in (400, 413, 422))
    assert may_pass(OSError("disk full")) and may_pass(DeltaMemError("locked")) and not may_pass(KeyError("x"))
    assert retry_after(refused(429)) is None and retry_after(LLMError("x")) is None
    assert retry_after(refused(429, **{"retry-after": "7.5"})) == 7.5
    assert [retry_after(refused(503, **{"retry-after": said})) for said in ("soon", "inf", "-3")] == [None, None, 0.0]
    later = datetime.now(UTC) + timedelta(seconds=100)
    found = retry_after(refused(429, **{"retry-after": format_datetime(later, usegmt=True)}))
    assert found is not None and 0 < found <= 100
