"""Jobs: sessions that wait for the model, in the journal's file until they are applied."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import uuid4

from deltamem.errors import ConflictError
from deltamem.journal.records import Forgotten, digest_of
from deltamem.journal.rows import CLOCK, microseconds, time_at
from deltamem.memory import Metadata
from deltamem.sessions import Session, Turn
from deltamem.sqlite import Database, insert_row


class JobState(StrEnum):
    """How far a job is."""

    QUEUED = "queued"  # Waits for its turn, or for `Job.retry_at`
    RUNNING = "running"
    DONE = "done"  # The session is in the journal
    FAILED = "failed"  # It would fail again; it is kept, and giving the session again tries it again


@dataclass(frozen=True, slots=True)
class Job:
    """One session of one owner."""

    id: str  # Random; known within its owner
    owner: str
    session_id: str
    state: JobState
    attempts: int  # How often it was begun
    created_at: datetime  # In UTC, as all times here
    updated_at: datetime
    retry_at: datetime | None  # Not begun again before
    last_error: str | None
    """Why the last attempt came to nothing; erased with each memory that is forgotten, because it may quote anything."""
    position: int | None  # The session's journal entry


class JobConflictError(ConflictError):
    """The session id stands for another session already."""


_JOBS = "SELECT jobs.*, owners.name AS owner FROM jobs JOIN owners ON owners.id = owner_id"
_ERASED = "(erased)"


def _job(row: sqlite3.Row) -> Job:
    values = {one.name: row[one.name] for one in fields(Job)}
    times = {name: time_at(values[name]) for name in ("created_at", "updated_at", "retry_at") if values[name] is not None}
    return Job(**values | times | {"state": JobState(row["state"])})


def _standing(connection: sqlite3.Connection, owner_id: int | None, session_id: str) -> tuple[Any, Any]:
    """The effective entry and the job that a session id has; each None if there is none."""
    entry = "SELECT position, session_digest FROM entries WHERE owner_id = ? AND session_id = ? AND undone = 0"
    job = "SELECT id, state, digest FROM jobs WHERE owner_id = ? AND session_id = ?"
    applied, known = (connection.execute(query, (owner_id, session_id)).fetchone() for query in (entry, job))
    return applied, known


def digests(connection: sqlite3.Connection, owner_id: int | None, session_id: str) -> set[str]:
    """The digests of the sessions that stand under an id: applied, waiting or done; empty if the id is free."""
    applied, known = _standing(connection, owner_id, session_id)
    return {row[name] for row, name in ((applied, "session_digest"), (known, "digest")) if row is not None}


def enqueue(connection: sqlite3.Connection, owner_id: int, session: Session) -> Job:
    """Take a session on, or find the job that it has; see `deltamem.journal.owner.OwnerJournal.enqueue`."""
    digest, now = digest_of(session), microseconds(datetime.now(UTC))
    applied, known = _standing(connection, owner_id, session.id)
    waiting = known is not None and known["state"] in (JobState.QUEUED, JobState.RUNNING)
    accepted = set() if applied is None else {applied["session_digest"]}
    # What failed, or was rolled back, left nothing that another session could contradict.
    if known is not None and (waiting or applied is not None):
        accepted.add(known["digest"])
    if accepted and digest not in accepted:
        raise JobConflictError(
            f"session id {session.id!r} was given before with another time, other turns or other metadata"
        )
    identity = uuid4().hex if known is None else known["id"]
    if known is None:
        row = {"id": identity, "owner_id": owner_id, "session_id": session.id, "digest": digest, "body": _body(session)}
        insert_row(connection, "jobs", row | {"state": "queued", "attempts": 0, "created_at": now, "updated_at": now})
    elif not waiting and applied is None:
        connection.execute(
            "UPDATE jobs SET state = 'queued', digest = ?, body = ?, retry_at = NULL, last_error = NULL, position = NULL,"
            " updated_at = ? WHERE id = ?",
            (digest, _body(session), now, identity),
        )
    if applied is not None:
        complete(connection, owner_id, session.id, applied["position"])
    return _job(connection.execute(f"{_JOBS} WHERE jobs.id = ?", (identity,)).fetchone())


def find(connection: sqlite3.Connection, owner_id: int | None, condition: str = "TRUE", *values: object) -> list[Job]:
    """The jobs of an owner that meet a condition, in the order in which they were taken on."""
    query = f"{_JOBS} WHERE owner_id = ? AND {condition} ORDER BY seq"
    return [_job(row) for row in connection.execute(query, (owner_id, *values))]


def counts(connection: sqlite3.Connection, condition: str = "TRUE", *values: object) -> dict[JobState, int]:
    """How many jobs that meet a condition are in each state."""
    query = f"SELECT state, count(*) FROM jobs WHERE {condition} GROUP BY state"
    found = dict(connection.execute(query, values).fetchall())
    return {state: found.get(state, 0) for state in JobState}


def session_of(
    connection: sqlite3.Connection, owner: str, owner_id: int | None, condition: str, value: str
) -> Session | None:
    """The session of the job that meets a condition, as `forget` left it; None if there is none, or it is done."""
    query = f"SELECT session_id, body FROM jobs WHERE owner_id = ? AND {condition} AND body IS NOT NULL"
    found = connection.execute(query, (owner_id, value)).fetchone()
    if found is None:
        return None
    body = json.loads(found["body"])
    turns = tuple(Turn(role, content) for role, content in body["turns"])
    time = datetime.fromisoformat(body["time"])
    return Session(owner, body["person"], time, turns, found["session_id"], Metadata(body["metadata"]))


def _body(session: Session) -> str:
    body = {
        "person": session.person_name,
        "time": session.time.isoformat(),
        "turns": [[turn.role, turn.content] for turn in session.dialogue],
        "metadata": dict(session.metadata),
    }
    return json.dumps(body, ensure_ascii=False)


def complete(connection: sqlite3.Connection, owner_id: int, session_id: str, position: int) -> None:
    """Note that a session is applied, in the transaction that applies it: so there is no moment between the two."""
    connection.execute(
        "UPDATE jobs SET state = 'done', body = NULL, lease_until = NULL, retry_at = NULL, last_error = NULL, position = ?,"
        " updated_at = ? WHERE owner_id = ? AND session_id = ? AND state <> 'done'",
        (position, microseconds(datetime.now(UTC)), owner_id, session_id),
    )


def scrub(
    connection: sqlite3.Connection, owner_id: int, sources: Mapping[str, Collection[int]], forgotten: Forgotten
) -> None:
    """Erase from an owner's jobs what a forgotten memory came from, and what repeats it.

    `sources` are by the ids of the sessions that shaped it the numbers (from 1) of the turns. Such a session may wait again
    because it was rolled back; its metadata is erased too.
    """
    connection.execute("UPDATE jobs SET last_error = ? WHERE owner_id = ? AND last_error IS NOT NULL", (_ERASED, owner_id))
    query = "SELECT id, session_id, body FROM jobs WHERE owner_id = ? AND body IS NOT NULL"
    for row in connection.execute(query, (owner_id,)).fetchall():
        body = json.loads(row["body"])
        forgotten.blank(body["turns"], sources.get(row["session_id"], ()))
        if row["session_id"] in sources:
            body["metadata"] = {}
        after = json.dumps(body, ensure_ascii=False)
        if after != row["body"]:
            connection.execute("UPDATE jobs SET body = ? WHERE id = ?", (after, row["id"]))


class JobQueue:
    """The jobs of all owners, for those who run them. Safe for threads and processes.

    An owner's jobs run one at a time, in the order in which they were taken on: one that waits to be tried again holds up
    those behind it, one that failed does not. Who claims a job has a lease on it. Should it end without a word, the job is
    free again when the lease is over, or when a `deltamem.bank.store.MemoryStore` is opened. A claim is known by the number
    of the attempt, so that whoever lost its lease cannot speak for the next.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def paused(self) -> bool:
        """Whether no job may be begun, see `pause`."""
        with self._database.read() as connection:
            return bool(connection.execute("SELECT paused FROM store").fetchone()["paused"])

    def pause(self, paused: bool = True) -> None:
        """Begin no more jobs, so that no model is asked, or go on. Sessions are still taken on. Outlasts a restart."""
        with self._database.write() as connection:
            connection.execute("UPDATE store SET paused = ?", (paused,))

    def claim(self, lease: timedelta) -> Job | None:
        """Begin the job that waits longest; None if none may be begun now."""
        now = datetime.now(UTC)
        # A look first: writers take turns.
        with self._database.read() as connection:
            if self._next(connection, now) is None:
                return None
        with self._database.write() as connection:
            job_id = self._next(connection, now)
            if job_id is None:
                return None
            connection.execute(
                "UPDATE jobs SET state = 'running', attempts = attempts + 1, lease_until = ?, retry_at = NULL,"
                " updated_at = ? WHERE id = ?",
                (microseconds(now + lease), microseconds(now), job_id),
            )
            return _job(connection.execute(f"{_JOBS} WHERE jobs.id = ?", (job_id,)).fetchone())

    @staticmethod
    def _next(connection: sqlite3.Connection, now: datetime) -> str | None:
        query = (
            "SELECT jobs.id FROM jobs, store WHERE paused = 0"
            " AND seq IN (SELECT min(seq) FROM jobs WHERE state IN ('queued', 'running') GROUP BY owner_id)"
            " AND (coalesce(lease_until, retry_at, 0) <= :now OR coalesce(lease_until, retry_at) > :never)"
            " ORDER BY seq LIMIT 1"
        )
        found = connection.execute(query, {"now": microseconds(now), "never": microseconds(now + CLOCK)}).fetchone()
        return None if found is None else str(found["id"])

    def renew(self, job: Job, lease: timedelta) -> bool:
        """Hold a claimed job longer; returns whether it is still held."""
        return self._end(job, "lease_until = ?", microseconds(datetime.now(UTC) + lease))

    def retry(self, job: Job, at: datetime, error: str) -> bool:
        """Put a claimed job off; returns whether it was still held."""
        return self._end(job, "state = 'queued', lease_until = NULL, retry_at = ?, last_error = ?", microseconds(at), error)

    def fail(self, job: Job, error: str) -> bool:
        """Give a claimed job up; returns whether it was still held."""
        return self._end(job, "state = 'failed', lease_until = NULL, last_error = ?", error)

    def hand_back(self, job: Job) -> bool:
        """Let a claimed job be begun again at once, by anybody; returns whether it was still held."""
        return self._end(job, "state = 'queued', lease_until = NULL")

    def finish(self, job: Job, position: int) -> None:
        """Note that the session of a claimed job was found in the journal already."""
        self._end(job, "state = 'done', body = NULL, lease_until = NULL, last_error = NULL, position = ?", position)

    def prune(self, before: datetime) -> int:
        """Remove the jobs that were done before a time; returns how many.

        The journal knows their sessions without them. Only a job whose session lost texts by `forget` before it was read
        stays, because it alone knows the session as it was given.
        """
        query = (
            "DELETE FROM jobs WHERE state = 'done' AND updated_at < ? AND NOT EXISTS (SELECT 1 FROM entries WHERE undone = 0"
            " AND entries.owner_id = jobs.owner_id AND entries.session_id = jobs.session_id AND session_digest <> digest)"
        )
        with self._database.write() as connection:
            return connection.execute(query, (microseconds(before),)).rowcount

    def counts(self) -> dict[JobState, int]:
        """How many jobs of all owners are in each state."""
        with self._database.read() as connection:
            return counts(connection)

    def recover(self) -> int:
        """Free all jobs that are held; only for who knows that nobody else is at work. Returns how many."""
        query = "UPDATE jobs SET state = 'queued', lease_until = NULL WHERE state = 'running'"
        with self._database.write() as connection:
            return connection.execute(query).rowcount

    def _end(self, job: Job, changes: str, *values: object) -> bool:
        query = f"UPDATE jobs SET {changes}, updated_at = ? WHERE id = ? AND state = 'running' AND attempts = ?"
        with self._database.write() as connection:
            return connection.execute(query, (*values, microseconds(datetime.now(UTC)), job.id, job.attempts)).rowcount > 0
