"""What a run keeps besides the journals: what each session cost and came to, and what the memories were made with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from deltamem.errors import DeltaMemError
from deltamem.files import atomic_writer
from deltamem.journal.records import Entry
from deltamem.transition import Outcome, Transition

MAKING_FILE = "making.json"


class SessionRecord(BaseModel):
    """What became of one session for one of the two speakers.

    Attributes:
        owner: The speaker whose memory it is.
        session: Id of the session.
        outcome: ``applied``; ``unreadable`` if no answer of the model could be read; ``failed`` if something broke.
        operations: Changes of the memory by kind.
        violations: Departures from the protocol and corrections, by name.
        window: Context window in tokens by which the session was split, if it is known.
        parts: Episodes that the session was split into.
        calls: Requests to the model; with the four below, 0 for sessions that failed or whose cost is not known.
        cached: How many of them the response cache answered.
        searches: Calls of ``search_memory``.
        prompt_tokens: Tokens read by the model.
        completion_tokens: Tokens written by the model.
        seconds: Wall time; None if the process was killed before it could be noted.
        late: Whether later sessions were applied before this one (it had failed, and was tried again by a later run).
        reason: Why the session failed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    owner: str
    session: str
    outcome: Literal["applied", "unreadable", "failed"]
    operations: dict[str, int] = {}
    violations: dict[str, int] = {}
    window: int | None = None
    parts: int = 0
    calls: int = 0
    cached: int = 0
    searches: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float | None = None
    late: bool = False
    reason: str | None = None

    @classmethod
    def of_transition(cls, transition: Transition, *, window: int | None, late: bool) -> Self:
        """The record of a session that the manager has just read."""
        usage = transition.usage
        return cls(
            owner=transition.owner,
            session=transition.session_id,
            outcome="applied" if transition.outcome is Outcome.APPLIED else "unreadable",
            operations=Counter(str(change.event) for change in transition.changes),
            violations=dict(transition.violations),
            window=window,
            parts=transition.parts,
            calls=usage.calls,
            cached=usage.cached,
            searches=usage.searches,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            seconds=round(transition.seconds, 4),
            late=late,
        )

    @classmethod
    def of_entry(cls, owner: str, entry: Entry) -> Self:
        """The record of a session that is in the journal, but whose cost was lost with the process."""
        return cls(
            owner=owner,
            session=entry.session_id or "",
            outcome="applied",
            operations=Counter(str(change.event) for change in entry.changes),
            violations=dict(entry.violations),
        )


class SessionLog:
    """A file of session records, one JSON object a line; a later record replaces an earlier one of the same session."""

    def __init__(self, path: Path) -> None:
        """Open the log, or begin one.

        Args:
            path: The file. A last line that a killed process left incomplete is removed.

        Raises:
            DeltaMemError: If a line is not a record; names file and line.
            OSError: If the file cannot be read or written.
        """
        self._path = path
        self._records: dict[tuple[str, str], SessionRecord] = {}
        path.touch()
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with path.open("r+b") as file:
                file.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                record = SessionRecord.model_validate_json(line)
            except ValidationError as error:
                raise DeltaMemError(f"{path}, line {number}: not a session record") from error
            self._records[record.owner, record.session] = record

    @property
    def records(self) -> list[SessionRecord]:
        """The last record of each session."""
        return list(self._records.values())

    def get(self, owner: str, session: str) -> SessionRecord | None:
        """The last record of a session."""
        return self._records.get((owner, session))

    def add(self, record: SessionRecord) -> None:
        """Append a record; when this returns the operating system has it."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(record.model_dump_json(exclude_defaults=True) + "\n")
        self._records[record.owner, record.session] = record


def check_making(folder: Path, making: Mapping[str, Any]) -> None:
    """Make sure that a folder holds memories that were made with the same settings, or none yet.

    Args:
        folder: Where the memories lie.
        making: All that decides what is remembered; JSON values.

    Raises:
        DeltaMemError: If other settings were noted; names the first that differs.
    """
    path = folder / MAKING_FILE
    if not path.exists():
        return
    try:
        before = json.loads(path.read_bytes())
    except ValueError as error:
        raise DeltaMemError(f"{path}: not valid JSON") from error
    now = json.loads(json.dumps(making))
    for key in sorted({*now, *before}):
        if now.get(key) != before.get(key):
            raise DeltaMemError(
                f"{folder} holds memories that were made with {key} = {before.get(key)!r}, not {now.get(key)!r}; "
                "choose another out=... or remove the folder"
            )


def note_making(folder: Path, making: Mapping[str, Any]) -> None:
    """Write down what the memories of a folder are made with, for `check_making`.

    Raises:
        OSError: If the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_writer(folder / MAKING_FILE) as file:
        json.dump(making, file, indent=2)
