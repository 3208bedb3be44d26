"""A conversation of two people as memory systems read it: in two stores, one for each speaker, or in one (PROTOCOLS 1.5)."""

from __future__ import annotations

from dataclasses import dataclass

from eval.locomo.loader import Conversation, DatedSession, Turn
from eval.locomo.settings import Captions
from eval.systems.protocol import DialogueSession, DialogueTurn, StoreKey

BATCH_TURNS = 2
"""Messages an add call, as Mem0 and MemOS feed them."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What one store takes in.

    Attributes:
        key: The store.
        title: Whose memories they are, as the answering model is told.
        sessions: In order; those without turns are left out.
    """

    key: StoreKey
    title: str
    sessions: tuple[DialogueSession, ...]


def dialogues(conversation: Conversation, *, per_speaker: bool, captions: Captions) -> tuple[Dialogue, ...]:
    """Lay a conversation out for the stores of a system.

    With two stores the owner of each is its user and the other speaker its assistant. In a single store both speakers are
    users, because neither is there to help the other.

    Args:
        conversation: The conversation.
        per_speaker: Whether there are two stores.
        captions: Which captions of pictures are part of the text.
    """
    if not per_speaker:
        title = " and ".join(conversation.speakers)
        key = StoreKey(conversation.id, title, BATCH_TURNS)
        return (Dialogue(key, title, _sessions(conversation, None, captions)),)
    return tuple(
        Dialogue(
            StoreKey(f"{conversation.id}.{speaker}", speaker, BATCH_TURNS),
            speaker,
            _sessions(conversation, speaker, captions),
        )
        for speaker in conversation.speakers
    )


def _sessions(conversation: Conversation, owner: str | None, captions: Captions) -> tuple[DialogueSession, ...]:
    return tuple(
        DialogueSession(f"session_{session.number}", session.time, _turns(session, owner, captions))
        for session in conversation.sessions
        if session.turns
    )


def _turns(session: DatedSession, owner: str | None, captions: Captions) -> tuple[DialogueTurn, ...]:
    return tuple(
        DialogueTurn(
            id=turn.id,
            role="user" if owner in (None, turn.speaker) else "assistant",
            speaker=turn.speaker,
            text=_text(turn, captions),
        )
        for turn in session.turns
    )


def _text(turn: Turn, captions: Captions) -> str:
    shown = captions == "all" or (captions == "with_url" and turn.has_url)
    return f"{turn.text} [image: {turn.caption}]".lstrip() if shown and turn.caption else turn.text
