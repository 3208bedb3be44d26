"""What a memory system is to a benchmark: ingest sessions, search, reset; and feeding it in order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import AfterValidator

from deltamem.errors import DeltaMemError
from deltamem.llm import Usage

Role = Literal["user", "assistant"]

WithTime = bool | Literal["hour"]
"""Whether texts begin with their date, ``[8 May 2023]``, or with hour and date, ``[1:56 pm on 8 May, 2023]``."""


def dated(text: str, time: datetime | None, with_time: WithTime) -> str:
    """A text as models see it: after its time, if that is known and wished."""
    if time is None or not with_time:
        return text
    if with_time == "hour":
        return f"[{time.hour % 12 or 12}:{time:%M} {'pm' if time.hour >= 12 else 'am'} on {time.day} {time:%B, %Y}] {text}"
    return f"[{time.day} {time:%B %Y}] {text}"


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """One utterance as a system reads it."""

    id: str  # Unique within the dialogue, for example LoCoMo's `D1:3`; evidence names turns by it
    role: Role  # Whose utterance it is in the memory that reads it; the owner of the memory is the user
    speaker: str  # Name of the speaker, empty if there is none
    text: str  # What was said, with the caption of a picture if captions are asked for; without speaker and date
    time: datetime | None = None  # Of this turn, where the benchmark knows more than the time of the session

    @property
    def spoken(self) -> str:
        """The text after the speaker's name, for example ``Ana: Look!``."""
        return f"{self.speaker}: {self.text}" if self.speaker else self.text


@dataclass(frozen=True, slots=True)
class DialogueSession:
    """One sitting."""

    id: str  # Unique within the store that takes it in
    time: datetime  # When it took place; relative dates in it are resolved against this
    turns: tuple[DialogueTurn, ...]  # In order


@dataclass(frozen=True, slots=True)
class Passage:
    """Something a system remembers."""

    text: str  # As an answering model is shown it, without its time
    time: datetime | None = None  # When it was said or remembered; None if the system does not know
    sources: tuple[str, ...] = ()  # Ids of the turns that it comes from; empty if the system does not know
    similarity: float | None = None  # To the query, comparable within one system; None if unknown


@dataclass(frozen=True, slots=True)
class Ingested:
    """What a session did to a memory."""

    # Texts that were added or rewritten, in order; None for systems that extract nothing
    memories: tuple[str, ...] | None = None
    operations: Mapping[str, int] = field(default_factory=dict)  # Changes by kind (`ADD`, `UPDATE`, ...)
    violations: Mapping[str, int] = field(default_factory=dict)  # Departures from the system's own protocol, by name
    usage: Usage = field(default_factory=Usage)  # What it cost
    parts: int = 1  # Into how many parts the system split the session because it was too long for its model
    readable: bool = True  # False if the model's answers could not be understood, so that nothing changed


class SystemUnavailableError(DeltaMemError):
    """The system cannot work at all, for example because its model does not answer; the run ends."""


class Memory(Protocol):
    """One store of one owner. Used by one task at a time, except for `search`, which may run several times at once."""

    @property
    def known(self) -> Collection[str]:
        """Ids of the sessions that are in the store, from earlier runs too; for systems that keep nothing, of this one."""
        ...

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Ingest one session; sessions come in order. A session that is `known` changes nothing and costs nothing.

        Raises:
            SystemUnavailableError: If no session can be ingested.
            DeltaMemError: If this one failed; the next session may be given all the same.
        """
        ...

    async def search(self, query: str, k: int) -> list[Passage]:
        """Return at most `k` passages, best first; a system that is not `System.ranked` returns all that it has to show."""
        ...

    async def reset(self) -> None:
        """Forget everything."""
        ...


@runtime_checkable
class ExpectantMemory(Protocol):
    """A memory whose method begins with a batch of turns, which may be more than the first session has."""

    def expect(self, sessions: Sequence[DialogueSession]) -> None:
        """Say which sessions come next, before any of them is ingested: all up to the next question, and none beyond it."""
        ...


@dataclass(frozen=True, slots=True)
class StoreKey:
    """Names a store and says whose it is."""

    id: str  # Unique in a run, and usable as the name of a folder, for example `conv-26.Caroline`
    owner: str  # The person whose memory it is, as memories name them
    # How many turns the benchmark's protocol hands to systems that take messages instead of sessions; None for the whole
    # session at once
    batch_turns: int | None = None


class System(Protocol):
    """A memory system. Stores are apart from each other and may be used at the same time."""

    name: str  # As the configuration calls it
    # Whether a conversation of two people becomes two stores, one for each of them as its user; else one store holds the
    # conversation
    per_speaker: bool
    ranked: bool  # Whether `Memory.search` orders by relevance and obeys `k`; else recall at k means nothing

    def open(self, key: StoreKey) -> AbstractAsyncContextManager[Memory]:
        """Open a store, or make it; it can be used inside the ``async with`` block."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the summary says about the system beyond the configuration: model, versions, prompt hashes."""
        ...


class SessionBuffer:
    """A store that keeps sessions in the order in which they were ingested, and finds nothing in them."""

    def __init__(self) -> None:
        self.sessions: dict[str, DialogueSession] = {}

    @property
    def known(self) -> Collection[str]:
        """Ids of the sessions that were ingested."""
        return self.sessions.keys()

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Keep a session; nothing is extracted from it."""
        self.sessions.setdefault(session.id, session)
        return Ingested()

    async def search(self, query: str, k: int) -> list[Passage]:
        """Nothing."""
        return []

    async def reset(self) -> None:
        """Forget everything."""
        self.sessions.clear()


def _folder_name(name: str) -> str:
    longest = 255  # bytes that file systems take as a name
    if not name.strip(".") or set(name) & set("/\\\0") or len(name.encode("utf-8", "surrogatepass")) > longest:
        raise ValueError(f"{name!r} cannot be the name of a folder")
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]
"""Type of what becomes the id of a store, or a part of it."""


def store_folder(root: Path, key: StoreKey) -> Path:
    """The folder of a store, which bears its id, and is not made here; fails if the id cannot be the name of one."""
    try:
        return root / _folder_name(key.id)
    except ValueError as error:
        raise DeltaMemError(f"the id of a store: {error}") from error
