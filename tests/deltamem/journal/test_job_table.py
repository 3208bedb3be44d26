"""The job table: what is taken on, begun, put off and given up, against a plain model; and what forgetting leaves of it."""

import shutil
import tempfile
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deltamem.errors import DeltaMemError
from deltamem.journal.jobs import Job, JobConflictError, JobState
from deltamem.journal.journal import Journal
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.memory import Memory, Metadata
from deltamem.sessions import Session, Turn

TIME = datetime(2026, 4, 5, 20, 1)
LONG, OVER = timedelta(hours=1), timedelta(0)
OWNERS = ("ann", "bob", "cem")


def a_session(owner: str, number: int, body: str = "x", **metadata: object) -> Session:
    return Session(owner, "Ann", TIME, (Turn("user", f"talk {body}."),), f"s{number}", Metadata(metadata))


def add(memory_id: str, text: str, *turns: int) -> Change:
    return Change(ChangeEvent.ADD, memory_id, None, Memory(memory_id, text, TIME), turns)


@pytest.fixture
def journal():
    with Journal.open(None) as opened:
        yield opened


def claimed(journal: Journal, lease: timedelta = LONG) -> Job:
    job = journal.queue.claim(lease)
    assert job is not None
    return job


def test_a_session_is_taken_on_once(journal: Journal) -> None:
    ann = journal.owner("ann")
    job = ann.enqueue(a_session("ann", 1, agent="a"))
    assert (job.owner, job.session_id, job.state, job.attempts, job.position) == ("ann", "s1", "queued", 0, None)
    assert ann.enqueue(a_session("ann", 1, agent="a")) == job == ann.job(job.id)
    assert ann.job_session(job.id) == a_session("ann", 1, agent="a")
    for other in (a_session("ann", 1, "y", agent="a"), a_session("ann", 1), a_session("ann", 1, agent="b")):
        with pytest.raises(JobConflictError, match="'s1' was given before"):
            ann.enqueue(other)
    with pytest.raises(DeltaMemError, match="no job"):
        journal.owner("bob").job(job.id)
    assert journal.owner("bob").job_session(job.id) is None and journal.owner("bob").jobs() == []
    assert journal.owner_of_job(job.id) == "ann" and journal.owner_of_job("s1") is None
    assert ann.session_time("s1") == TIME and ann.session_time("s2") is None
    assert journal.owner("bob").session_time("s1") is None
    with pytest.raises(DeltaMemError, match="not valid Unicode"):
        ann.enqueue(a_session("ann", 2, "\ud800"))
    assert ann.jobs() == [job] and journal.owners() == ["ann"]


def test_applying_a_session_completes_its_job_whoever_applies_it(journal: Journal) -> None:
    ann = journal.owner("ann")
    job = ann.enqueue(a_session("ann", 1))
    assert claimed(journal).id == job.id
    entry = ann.append(EntryKind.SESSION, [], session=a_session("ann", 1))
    done = ann.job(job.id)
    assert (done.state, done.position) == ("done", entry.position) and ann.job_session(job.id) is None
    assert ann.enqueue(a_session("ann", 1)) == done
    ann.append(EntryKind.SESSION, [], session=a_session("ann", 2))
    known = ann.enqueue(a_session("ann", 2))
    assert (known.state, known.position, known.attempts) == ("done", 2, 0)
    with pytest.raises(JobConflictError):
        ann.enqueue(a_session("ann", 2, "other"))
    assert journal.queue.claim(LONG) is None


def test_a_clock_that_is_set_back_stops_no_job(journal: Journal) -> None:
    year = timedelta(days=365)
    journal.owner("ann").enqueue(a_session("ann", 1))
    journal.queue.retry(claimed(journal), datetime.now(UTC) + year, "busy")
    job = claimed(journal, year)  # it was to wait until a time that was near when it was noted
    assert job.attempts == 2 and claimed(journal).attempts == 3
    journal.queue.retry(journal.owner("ann").job(job.id), datetime.now(UTC) + LONG, "busy")
    assert journal.queue.claim(LONG) is None


def test_threads_on_two_connections_never_get_one_job_twice(tmp_path: Path) -> None:
    got: list[str] = []
    with Journal.open(tmp_path / "journal") as one, Journal.open(tmp_path / "journal") as two:
        for number in range(40):
            one.owner(f"owner {number}").enqueue(a_session(f"owner {number}", 1))

        def work(journal: Journal) -> None:
            while (job := journal.queue.claim(LONG)) is not None:
                got.append(job.id)

        threads = [threading.Thread(target=work, args=(journal,)) for journal in (one, two, one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert len(got) == len(set(got)) == 40


def test_forgetting_scrubs_jobs_from_the_files(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal") as journal:
        ann = journal.owner("ann")
        turns = (Turn("user", "My town is Zanzibar."), Turn("user", "I like tea."))
        first = Session("ann", "Ann", TIME, turns, "s1", Metadata({"from": "zanzibar-office"}))
        ann.append(
            EntryKind.SESSION, [add("m1", "Ann lives in zanzibar.", 1), add("m2", "Ann likes tea.", 2)], session=first
        )
        ann.rollback(0)
        again = ann.enqueue(first)  # the source of what is forgotten, waiting again
        quoting = ann.enqueue(a_session("ann", 2, "you know that Ann  lives in ZANZIBAR. Right?"))
        journal.queue.fail(claimed(journal), "the server said: zanzibar")
        ann.forget("m1")
        held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert b"zanzibar" not in held.lower() and b"I like tea" in held
        assert ann.job(again.id).last_error == "(erased)"
        session = ann.job_session(again.id)
        assert session is not None and [turn.content for turn in session.dialogue] == ["", "I like tea."]
        assert ann.job_session(quoting.id) == Session("ann", "Ann", TIME, (Turn("user", ""),), "s2")
        assert ann.enqueue(a_session("ann", 2, "you know that Ann  lives in ZANZIBAR. Right?")).id == quoting.id


def test_finished_jobs_are_removed_and_their_sessions_stay_known(journal: Journal) -> None:
    ann = journal.owner("ann")
    ann.append(EntryKind.EDIT, [add("m1", "Ann lives in Zanzibar.")], actor="x")
    given = [a_session("ann", 1), a_session("ann", 2, "Ann lives in Zanzibar."), a_session("ann", 3), a_session("ann", 4)]
    jobs = [ann.enqueue(session) for session in given]
    ann.forget("m1")  # which empties the second one, so that only its job knows what was given
    for job in jobs[:2]:
        session = ann.job_session(job.id)
        assert session is not None
        ann.append(EntryKind.SESSION, [], session=session)
    assert claimed(journal).id == jobs[2].id
    journal.queue.fail(ann.job(jobs[2].id), "no answer")
    assert journal.queue.prune(datetime.now(UTC) - LONG) == 0
    assert journal.queue.prune(datetime.now(UTC) + LONG) == 1
    assert [(job.session_id, job.state) for job in ann.jobs()] == [("s2", "done"), ("s3", "failed"), ("s4", "queued")]
    again = [ann.enqueue(session) for session in given]
    assert [(job.state, job.position) for job in again[:2]] == [("done", 3), ("done", 4)]
    with pytest.raises(JobConflictError):
        ann.enqueue(a_session("ann", 1, "y"))


def test_an_erased_owner_leaves_no_job(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal") as journal:
        journal.owner("bob").enqueue(a_session("bob", 1))
        job = journal.owner("ann").enqueue(a_session("ann", 1, "zanzibar", place="zanzibar"))
        held = claimed(journal), claimed(journal)
        journal.erase_owner("ann")
        assert journal.owners() == ["bob"] and journal.owner("ann").jobs() == []
        assert [journal.queue.retry(one, datetime.now(UTC), "zanzibar") for one in held] == [True, False]
        journal.queue.fail(next(one for one in held if one.id == job.id), "zanzibar")
        journal._database.purge()
        assert b"zanzibar." not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


@dataclass
class Modelled:
    number: int
    body: str
    state: str = "queued"
    attempts: int = 0
    free: bool = True
    """Of a queued job whether it may be begun now, of a running one whether its lease is over."""


class QueueMachine(RuleBasedStateMachine):
    """Two connections to one file; leases and waits are either over at once or last for ever."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.journals = [Journal.open(self.folder / "journal") for _ in range(2)]
        self.jobs: dict[str, list[Modelled]] = {owner: [] for owner in OWNERS}
        self.order: list[tuple[str, int]] = []
        self.applied: dict[str, dict[int, str]] = {owner: {} for owner in OWNERS}
        self.claims: list[Job] = []
        self.paused = False

    def modelled(self, owner: str, number: int) -> Modelled | None:
        return next((job for job in self.jobs[owner] if job.number == number), None)

    @rule(which=st.integers(0, 1), owner=st.sampled_from(OWNERS), number=st.integers(1, 3), body=st.sampled_from("xxy"))
    def enqueue(self, which: int, owner: str, number: int, body: str) -> None:
        known, applied = self.modelled(owner, number), self.applied[owner].get(number)
        waiting = known is not None and known.state in ("queued", "running")
        bound = {applied} - {None} | ({known.body} if known and (waiting or applied) else set())
        if bound and body not in bound:
            with pytest.raises(JobConflictError):
                self.journals[which].owner(owner).enqueue(a_session(owner, number, body))
            return
        job = self.journals[which].owner(owner).enqueue(a_session(owner, number, body))
        if known is None:
            known = Modelled(number, body, "done" if applied else "queued")
            self.jobs[owner].append(known)
            self.order.append((owner, number))
        elif not waiting and not applied:
            known.state, known.body, known.free = "queued", body, True
        assert (job.session_id, job.state, job.attempts) == (f"s{number}", known.state, known.attempts)

    def next(self) -> tuple[str, Modelled] | None:
        if self.paused:
            return None
        for owner, number in self.order:
            waiting = [job for job in self.jobs[owner] if job.state in ("queued", "running")]
            if waiting and waiting[0].number == number and waiting[0].free:
                return owner, waiting[0]
        return None

    @rule(which=st.integers(0, 1), lease=st.sampled_from([LONG, OVER]))
    def claim(self, which: int, lease: timedelta) -> None:
        expected = self.next()
        job = self.journals[which].queue.claim(lease)
        if expected is None:
            assert job is None
            return
        owner, known = expected
        known.state, known.attempts, known.free = "running", known.attempts + 1, lease is OVER
        assert job is not None and (job.owner, job.session_id, job.attempts) == (owner, f"s{known.number}", known.attempts)
        session = self.journals[which].owner(owner).job_session(job.id)
        assert session == a_session(owner, known.number, known.body)
        self.claims.append(job)

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 1), end=st.sampled_from(["retry", "later", "fail", "hand back", "renew"]), data=st.data())
    def end(self, which: int, end: str, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.claims))
        known, queue = self.modelled(job.owner, int(job.session_id[1:])), self.journals[which].queue
        assert known is not None
        held = known.state == "running" and known.attempts == job.attempts
        now = datetime.now(UTC)
        done = {
            "retry": lambda: queue.retry(job, now - LONG, "busy"),
            "later": lambda: queue.retry(job, now + LONG, "busy"),
            "fail": lambda: queue.fail(job, "no"),
            "hand back": lambda: queue.hand_back(job),
            "renew": lambda: queue.renew(job, LONG),
        }[end]()
        assert done is held
        if held:
            known.state = {"fail": "failed", "renew": "running"}.get(end, "queued")
            known.free = end in ("retry", "hand back")

    @rule(which=st.integers(0, 1), owner=st.sampled_from(OWNERS), number=st.integers(1, 3), data=st.data())
    def apply(self, which: int, owner: str, number: int, data: st.DataObject) -> None:
        """A worker that holds the job, one that lost it, or somebody who gives the session directly."""
        if number in self.applied[owner]:
            return
        known = self.modelled(owner, number)
        body = known.body if known is not None else data.draw(st.sampled_from("xy"))
        self.journals[which].owner(owner).append(EntryKind.SESSION, [], session=a_session(owner, number, body))
        self.applied[owner][number] = body
        if known is not None:
            known.state = "done"

    @rule(owner=st.sampled_from(OWNERS))
    def rollback(self, owner: str) -> None:
        self.journals[0].owner(owner).rollback(0)
        self.applied[owner].clear()

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.journals[0].queue.pause(paused)
        self.paused = paused

    @rule(which=st.integers(0, 1))
    def begin_anew(self, which: int) -> None:
        self.journals[which].close()
        self.journals[which] = Journal.open(self.folder / "journal")
        running = [job for jobs in self.jobs.values() for job in jobs if job.state == "running"]
        assert self.journals[which].queue.recover() == len(running)
        for job in running:
            job.state, job.free = "queued", True

    @invariant()
    def agrees(self) -> None:
        for journal in getattr(self, "journals", ()):
            for owner in OWNERS:
                found = [(job.session_id, job.state, job.attempts) for job in journal.owner(owner).jobs()]
                assert found == [(f"s{job.number}", job.state, job.attempts) for job in self.jobs[owner]]
                waiting = journal.owner(owner).jobs(JobState.QUEUED)
                assert len(waiting) == len([job for job in self.jobs[owner] if job.state == "queued"])

    def teardown(self) -> None:
        if hasattr(self, "journals"):
            for journal in self.journals:
                journal.close()
            shutil.rmtree(self.folder)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(stateful_step_count=25, deadline=None)
