"""The memory manager without ``await``: the same methods, run on an event loop in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from anyio.from_thread import start_blocking_portal

from deltamem.bank.protocol import Hit
from deltamem.history import HistoryStep, Origin, Point
from deltamem.journal.records import Entry, Erasure
from deltamem.journal.transfer import Counts
from deltamem.manager import MemoryManager
from deltamem.memory import Diff, MemoryState
from deltamem.sessions import Session, Turn
from deltamem.transition import Transition


class SyncMemoryManager:
    """`deltamem.manager.MemoryManager` for code that is not asynchronous; may be used from several threads.

    ::

        with SyncMemoryManager(lambda: MemoryManager.open(Path("bank"), owner="ann", policy=policy)) as memory:
            memory.ingest(memory.session("monday", time, [Turn("user", "I moved to Denver.")]))
    """

    def __init__(self, make: Callable[[], MemoryManager]) -> None:
        """Start the loop and make the manager in it, so that everything bound to a loop is bound to that one."""
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            self._manager = self._portal.call(make)
            stack.callback(self._portal.call, self._manager.close)
            self._stack = stack.pop_all()

    @classmethod
    def open(cls, folder: Path, **settings: Any) -> Self:
        """Open a store for one owner; takes what `MemoryManager.open` takes."""
        return cls(lambda: MemoryManager.open(folder, **settings))

    @property
    def owner(self) -> str:
        """Whose memory this is."""
        return self._manager.owner

    def session(self, session_id: str, time: datetime, turns: Sequence[Turn]) -> Session:
        """A session of this owner, ready for `ingest`."""
        return self._manager.session(session_id, time, turns)

    def ingest(self, session: Session) -> Transition:
        """See `MemoryManager.ingest`."""
        return self._portal.call(self._manager.ingest, session)

    def search(self, query: str, k: int = 5) -> list[Hit]:
        """See `MemoryManager.search`."""
        return self._portal.call(self._manager.search, query, k)

    def search_many(self, queries: Sequence[str], k: int = 5) -> list[list[Hit]]:
        """See `MemoryManager.search_many`."""
        return self._portal.call(self._manager.search_many, queries, k)

    def state(self, point: Point = None) -> MemoryState:
        """See `MemoryManager.state`."""
        return self._manager.state(point)

    def history(self, memory_id: str) -> tuple[HistoryStep, ...]:
        """See `MemoryManager.history`."""
        return self._manager.history(memory_id)

    def blame(self, memory_id: str) -> tuple[Origin, ...]:
        """See `MemoryManager.blame`."""
        return self._manager.blame(memory_id)

    def diff(self, before: Point, after: Point = None) -> Diff:
        """See `MemoryManager.diff`."""
        return self._manager.diff(before, after)

    def rollback(self, to: Point) -> Entry:
        """See `MemoryManager.rollback`."""
        return self._portal.call(self._manager.rollback, to)

    def forget(self, memory_id: str) -> Entry:
        """See `MemoryManager.forget`."""
        return self._portal.call(self._manager.forget, memory_id)

    def forget_owner(self) -> Erasure:
        """See `MemoryManager.forget_owner`."""
        return self._portal.call(self._manager.forget_owner)

    def export(self, stream: TextIO) -> Counts:
        """See `MemoryManager.export`."""
        return self._manager.export(stream)

    def import_from(self, stream: TextIO, *, rename: bool = False) -> Counts:
        """See `MemoryManager.import_from`."""
        return self._portal.call(lambda: self._manager.import_from(stream, rename=rename))

    def close(self) -> None:
        """Close the manager and end the loop."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
