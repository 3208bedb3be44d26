"""Reading a conversation for one of its two speakers: what is waiting, what became of it, where memories come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from deltamem.errors import DeltaMemError
from deltamem.journal.journal import OwnerJournal
from deltamem.journal.records import ChangeEvent
from deltamem.manager import MemoryManager
from deltamem.sessions import Turn
from eval.locomo.loader import Conversation, DatedSession
from eval.locomo.session_log import SessionLog, SessionRecord
from eval.locomo.systems import TurnText

Sources = Mapping[str, tuple[str, ...]]
"""Ids of the turns that a memory comes from, by memory id."""


class SpeakerReader:
    """One speaker's part in a conversation: the speaker is the user, the other one the assistant."""

    def __init__(self, journal: OwnerJournal, log: SessionLog, conversation: Conversation, turn_text: TurnText) -> None:
        """Bind a conversation to the speaker's journal.

        Args:
            journal: The journal of the speaker.
            log: Where each session is noted; may be shared with the other speaker.
            conversation: What is read.
            turn_text: What of a turn the model is shown.
        """
        self._journal = journal
        self._log = log
        # There is nothing to read in a session without turns.
        self._sessions = {
            f"{conversation.id}/{session.number}": session for session in conversation.sessions if session.turns
        }
        self._turn_text = turn_text

    @property
    def waiting(self) -> list[str]:
        """Ids of the sessions that have to be read, in order."""
        return [session_id for session_id in self._sessions if not self._settled(session_id)]

    async def read(self, manager: MemoryManager, on_session: Callable[[SessionRecord], None]) -> None:
        """Read what is waiting, in order. A session that fails is noted and the next one goes on without it.

        Args:
            manager: Of this speaker.
            on_session: Told of each session, those that were not waiting included.
        """
        waiting = set(self.waiting)
        applied = [number for number, session_id in enumerate(self._sessions) if self._position(session_id) is not None]
        last = max(applied, default=-1)
        for number, (session_id, session) in enumerate(self._sessions.items()):
            if session_id in waiting:
                record = await self._read(manager, session_id, session, late=number < last)
                self._log.add(record)
            else:
                record = self._known(session_id)
            on_session(record)

    def sources(self) -> Sources:
        """The turns that each memory comes from, as `MemoryManager.blame` tells them, in one pass over the journal."""
        found: dict[str, dict[str, None]] = {}
        for entry in self._journal.entries():
            for change in entry.changes:
                if change.event in (ChangeEvent.ADD, ChangeEvent.UPDATE):
                    turns = self._sessions[entry.session_id or ""].turns
                    named = found.setdefault(change.memory_id, {})
                    named.update((turns[number - 1].id, None) for number in change.turns)
        return {memory_id: tuple(named) for memory_id, named in found.items()}

    async def _read(self, manager: MemoryManager, session_id: str, session: DatedSession, *, late: bool) -> SessionRecord:
        turns = [
            Turn("user" if turn.speaker == self._journal.name else "assistant", self._turn_text.spoken(turn))
            for turn in session.turns
        ]
        try:
            transition = await manager.ingest(manager.session(session_id, session.time, turns))
        except Exception as error:  # one broken session must not lose the others
            reason = str(error) if isinstance(error, DeltaMemError) else f"{type(error).__name__}: {error}"
            return SessionRecord(owner=self._journal.name, session=session_id, outcome="failed", late=late, reason=reason)
        return SessionRecord.of_transition(transition, window=manager.settings.window_tokens, late=late)

    def _settled(self, session_id: str) -> bool:
        record = self._log.get(self._journal.name, session_id)
        # The journal does not know of unreadable sessions; asking again would be paid for again.
        unreadable = record is not None and record.outcome == "unreadable"
        return unreadable or self._position(session_id) is not None

    def _known(self, session_id: str) -> SessionRecord:
        record = self._log.get(self._journal.name, session_id)
        position = self._position(session_id)
        if position is not None and (record is None or record.outcome != "applied"):
            # The process was killed between the two.
            record = SessionRecord.of_entry(self._journal.name, self._journal.entry(position))
            self._log.add(record)
        assert record is not None  # `_settled` is true of the session
        return record

    def _position(self, session_id: str) -> int | None:
        return self._journal.session_position(session_id)
