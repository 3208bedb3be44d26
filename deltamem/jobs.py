"""The worker that reads queued sessions: many owners at once, each owner's sessions in order, every one applied once."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from deltamem.errors import DeltaMemError, LLMError, reason_of
from deltamem.ingest import Outcome, Transition
from deltamem.journal.jobs import Job, JobQueue, JobState
from deltamem.manager import MemoryManager
from deltamem.refusals import is_refusal, retry_after
from deltamem.sessions import Session

logger = logging.getLogger(__name__)

UNREADABLE = "no answer of the model could be read"
_TIDY = 3600.0  # Seconds between two looks for finished jobs that need not be listed any more


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works; all times in seconds."""

    parallel: int = 4  # Sessions, of different owners, that are read at once
    lease: float = 60.0  # How long a job is held without a sign of life. It is renewed three times as often
    poll: float = 1.0  # How often is looked for jobs of which nobody told
    first_delay: float = 5.0  # Before a second attempt; doubled for each further one
    longest_delay: float = 600.0
    longest_wait: float = 3600.0  # Of what a server asks for with ``Retry-After``, so much is granted
    keep: float = 30 * 86_400.0  # How long finished jobs are listed; that their sessions were applied stays known
    grace: float = 30.0  # How long sessions that are being read may take when the worker stops; the rest is handed back


class Worker:
    """Runs the jobs of one journal in the event loop that it is entered in; there may be several.

    ::

        async with Worker(store.journal.queue, manager_of) as worker:
            result = await worker.ingest(session, wait=30)

    Jobs that fail for a reason that may pass (an endpoint that is down, busy or refuses the key, a full disk) are tried
    again for as long as it takes, ever more rarely. Those that would fail again (a session that does not fit the model, an
    answer that cannot be read, a defect of ours) fail, are kept, and are tried again when the session is given again.
    """

    def __init__(
        self, queue: JobQueue, manager_of: Callable[[str], MemoryManager], settings: WorkerSettings | None = None
    ) -> None:
        """Bind a queue; nothing runs yet.

        Args:
            queue: The jobs.
            manager_of: Gives the manager of an owner; called in a thread, once for each job.
            settings: Numbers and times.
        """
        self._queue = queue
        self._manager_of = manager_of
        self._settings = settings or WorkerSettings()
        self._lease = timedelta(seconds=self._settings.lease)
        self._woken = asyncio.Event()
        self._stopping = False
        self._dispatcher: asyncio.Task[None] | None = None
        self._running: dict[asyncio.Task[None], str] = {}
        self._sessions: set[tuple[str, str]] = set()
        self._waiting: dict[tuple[str, str], set[asyncio.Future[Transition | None]]] = {}

    async def ingest(self, session: Session, *, wait: float = 0.0) -> Transition | Job:
        """Take a session on, and wait so many seconds for it to be read.

        Returns the transition, if the session was read meanwhile and could be; else the job as it stands.

        Raises:
            JobConflictError: If the session's id stands for another session.
            DeltaMemError: If the session has no id or no turns.
        """
        manager = await asyncio.to_thread(self._manager_of, session.person_id)
        waiter: asyncio.Future[Transition | None] = asyncio.get_running_loop().create_future()
        waiters = self._waiting.setdefault((session.person_id, session.id), set())
        waiters.add(waiter)
        try:
            job = await manager.enqueue(session)
            self.wake()
            if wait > 0 and not self._stopping and job.state in (JobState.QUEUED, JobState.RUNNING):
                await asyncio.wait([waiter], timeout=wait)
                if waiter.done() and (transition := waiter.result()) is not None:
                    return transition
            return await asyncio.to_thread(manager.journal.job, job.id)
        finally:
            waiters.discard(waiter)
            if not waiters:
                self._waiting.pop((session.person_id, session.id), None)

    def wake(self) -> None:
        """Look for jobs now; from the worker's own loop."""
        self._woken.set()

    def interrupt(self, owner: str) -> None:
        """Break off what is being read of an owner; it is handed back and begins again when its turn comes."""
        for task, of in self._running.items():
            if of == owner:
                task.cancel()

    async def stop(self) -> None:
        """Begin no more jobs, let those that run end within the time of grace, and hand the others back."""
        self._stopping = True
        self.wake()
        for session, waiters in self._waiting.items():
            if session not in self._sessions:  # it is not begun any more, so there is nothing to wait for
                _tell(waiters, None)
        if self._dispatcher is not None:
            await self._dispatcher
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=self._settings.grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def __aenter__(self) -> Self:
        self._dispatcher = asyncio.create_task(self._dispatch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _dispatch(self) -> None:
        tidied = -math.inf
        while not self._stopping:
            self._woken.clear()
            job = None
            try:
                if time.monotonic() - tidied > _TIDY:
                    tidied = time.monotonic()
                    await asyncio.to_thread(self._queue.prune, datetime.now(UTC) - timedelta(seconds=self._settings.keep))
                if len(self._running) < self._settings.parallel:
                    job = await asyncio.to_thread(self._queue.claim, self._lease)
            except DeltaMemError as error:
                logger.warning("no job can be begun or removed for now: %s", error)
            if job is not None:
                task = asyncio.create_task(self._run(job))
                self._running[task] = job.owner
                task.add_done_callback(self._ended)
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), self._settings.poll)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self.wake()
        if not task.cancelled() and (error := task.exception()) is not None:
            # The job is free again when its lease is over.
            logger.error("the outcome of a job could not be noted", exc_info=error)

    async def _run(self, job: Job) -> None:
        holding = asyncio.create_task(self._hold(job))
        transition = None
        self._sessions.add((job.owner, job.session_id))
        try:
            manager = await asyncio.to_thread(self._manager_of, job.owner)
            transition = await manager.ingest_job(job.id)
            if transition is not None and transition.outcome is Outcome.UNREADABLE:
                await asyncio.to_thread(self._queue.fail, job, UNREADABLE)
                transition = None
            elif transition is not None and transition.outcome is Outcome.KNOWN and transition.position is not None:
                await asyncio.to_thread(self._queue.finish, job, transition.position)  # else done with the entry itself
        except asyncio.CancelledError:
            self._queue.hand_back(job)
            raise
        except Exception as error:
            await self._put_off(job, error)
        finally:
            holding.cancel()
            self._sessions.discard((job.owner, job.session_id))
            _tell(self._waiting.get((job.owner, job.session_id), ()), transition)

    async def _hold(self, job: Job) -> None:
        held = True
        while held:
            await asyncio.sleep(self._settings.lease / 3)
            try:
                held = await asyncio.to_thread(self._queue.renew, job, self._lease)
            except DeltaMemError as error:
                logger.warning("the lease of a job cannot be renewed for now: %s", error)

    async def _put_off(self, job: Job, error: Exception) -> None:
        if not may_pass(error):
            if not isinstance(error, DeltaMemError):
                # Without the message: it may quote what somebody said.
                frames = "".join(traceback.format_tb(error.__traceback__))
                logger.error("a job failed by a defect: %s\n%s", type(error).__name__, frames)
            await asyncio.to_thread(self._queue.fail, job, reason_of(error))
            return
        settings = self._settings
        # Not all at one moment, which would press a server that has just come back.
        delay = min(settings.longest_delay, settings.first_delay * 2 ** min(job.attempts - 1, 30)) * random.uniform(0.75, 1)
        if isinstance(error, LLMError) and (asked := retry_after(error)) is not None:
            delay = max(delay, min(asked, settings.longest_wait))
        at = datetime.now(UTC) + timedelta(seconds=delay)
        await asyncio.to_thread(self._queue.retry, job, at, reason_of(error))


def _tell(waiters: Iterable[asyncio.Future[Transition | None]], transition: Transition | None) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(transition)


def may_pass(error: Exception) -> bool:
    """Whether the same session may be read later: all that lies with endpoint, disk or index, and not with the session."""
    if isinstance(error, LLMError):
        return not is_refusal(error)
    return isinstance(error, DeltaMemError | OSError)
