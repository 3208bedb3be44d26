"""What is new in a history that a client sends: it is laid beside what is kept of the conversation.

Clients send the whole conversation with each request, or its end, and not always as it was said: they trim answers, drop
thoughts, cut what is long, edit old messages and put summaries in place of them. So turns are compared by what was said, and
the two are laid beside each other so that most turns meet, in order. What stands before the last one that met is known,
whatever it looks like. What the assistant says is taken from the answers that passed by: what a client sends back in the
place of an answer is its echo. Pure functions.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from typing import NamedTuple

from deltamem.replies import without_thinking
from deltamem.sessions import Turn

WINDOW = 48
"""Turns at the end of a history that are laid beside twice as many of what is kept."""
_UNSEEN = re.compile(r"[\s\x00-\x1f\u200b-\u200f\u2060\ufeff]+")
_THOUGHT = re.compile(r"<(think|thinking|thought|reasoning)>.*?</\1>", re.DOTALL)


class Kept(NamedTuple):
    """A turn of a conversation that is kept; an answer without a key is still being made, broke off, or called a tool."""

    place: int
    role: str
    key: str


class Meeting(NamedTuple):
    """How a history and a conversation meet; the greater, the better."""

    turns: int
    """How many meet."""
    left: int
    """How many of the history follow the last one that met, up to the question."""
    kept: int
    """Which of the kept turns that is."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A history as it continues a conversation."""

    fresh: Sequence[Turn]
    meeting: Meeting | None
    """None if nothing met."""
    at_end: bool
    """Whether nothing that the person said follows in the conversation what met last."""
    question: int | None
    """Place of the question, if it is the last one that is kept: the answer is made again, or goes on after a tool."""


class SentHistory:
    """The turns of a request. Keys are only made of those that matter: the rest may be a long transcript."""

    def __init__(self, salt: str, turns: Sequence[Turn], *, tools: bool = False) -> None:
        """Bind turns; those of the assistant may be empty, such as calls of tools, whose results may come last."""
        self.key = cache(partial(key_of, salt))
        """What a turn is known by."""
        blank = [not turn.content or turn.content.isspace() for turn in turns]
        texts = list(zip(turns, blank, strict=True))
        self.turns = [turn for turn, without_text in texts if turn.role == "assistant" or not without_text]
        self._asked = max((place for place, turn in enumerate(self.turns) if turn.role == "user"), default=-1)
        self.rounds = len(self.turns) - self._asked - 1
        """Turns of the assistant after the question: calls of tools with results that are new, or the answer's beginning."""
        # A call of a tool follows the question, or an image without words.
        later = takewhile(lambda text: text[0].role == "assistant" or text[1], reversed(texts))
        self._asked_before = tools or any(without_text for _, without_text in later)

    def keys(self, window: int = WINDOW) -> list[str]:
        """Keys of some turns up to the question."""
        return [self.key(turn) for turn in self.turns[max(0, self._asked + 1 - window) : self._asked + 1]]

    def read(self, kept: Sequence[Kept], questions: int, taken: int, *, thorough: bool = False) -> Continuation:
        """Find what is new to a conversation.

        Args:
            kept: Its last turns.
            questions: How many turns of the person are kept in all.
            taken: The turns before this place have become sessions.
            thorough: Whether to count all turns that meet, for choosing between conversations.
        """
        if not kept or self._asked < 0:
            return Continuation(() if kept else self.turns, None, True, None)
        asked = max((number for number, turn in enumerate(kept) if turn.role == "user"), default=-1)
        last = [turn.key for turn in kept if turn.key][-2:]
        if not thorough and last == self.keys(3)[:-1] and self.key(self.turns[self._asked]) not in last:
            # By far the most requests: the last exchange leads up to another question.
            return Continuation(self.turns[self._asked :], Meeting(2, 1, len(kept) - 1), True, None)
        meeting = _meeting(self.keys(), kept, asked)
        if meeting is None and len(self.turns) > WINDOW:
            meeting = _meeting(self.keys(len(self.turns)), kept, asked)
        if meeting is None:
            if self._asked_before and asked >= 0:
                return Continuation((), None, True, kept[asked].place)
            # Turns that nothing leads up to: a summary perhaps, or another conversation.
            return Continuation(self.turns[self._asked :], None, False, None)
        if meeting.left == 0 and not self._said_again(meeting, kept[asked].place < taken, questions):
            return Continuation((), meeting, True, kept[asked].place)
        at_end = meeting.kept >= asked
        if not at_end and all(turn.role != "user" for turn in self.turns[self._asked - meeting.left + 1 : self._asked]):
            followed = next(turn for turn in kept[meeting.kept + 1 :] if turn.role == "user")
            if self._asked_before and followed is kept[asked]:
                # Clients put the time, or what they found, into a question, and so it differs after each call of a tool.
                return Continuation((), meeting, True, followed.place)
            if followed.key == self.key(self.turns[self._asked]):
                # The person has gone back to an earlier question; what followed it stays.
                return Continuation((), meeting, False, None)
        # Where the conversation went on otherwise, what lies between stands in place of its turns.
        start = self._asked - meeting.left + 1 if at_end and meeting.left else self._asked
        while self.turns[start].role != "user":
            start += 1  # echoes of the answer
        return Continuation(self.turns[start:], meeting, at_end, None)

    def _said_again(self, meeting: Meeting, taken: bool, questions: int) -> bool:
        """Whether the person says the last question again, though it meets the one that is kept."""
        if self._asked == 0:  # without a history, and what was said before has been read
            return taken and not self._asked_before
        # Where nothing else meets, or a run of equal turns is longer than the window, the numbers decide.
        unsure = meeting.turns == 1 or len(self.turns) > WINDOW
        return unsure and sum(turn.role == "user" for turn in self.turns) > questions


def _meeting(sent: Sequence[str], kept: Sequence[Kept], asked: int) -> Meeting | None:
    """The most turns of two histories that meet in order (longest common subsequence); None if there are none.

    The last one sent is the question, which can only meet the last one that is kept: a person may say an earlier one again.
    Should several ends be as good, the earliest of the history counts, so that what is said twice is new, and the latest of
    what is kept.
    """
    best = Meeting(0, 0, 0)
    above = [0] * (len(kept) + 1)
    for left, key in zip(range(len(sent) - 1, -1, -1), sent, strict=True):
        row = [0]
        for number, turn in enumerate(kept):
            most = max(above[number + 1], row[number])
            if key and turn.key == key and (left or number == asked):
                most = above[number] + 1
                best = max(best, Meeting(most, left, number))
            row.append(most)
        above = row
    return best if best.turns else None


def said(turn: Turn) -> Turn:
    """A turn without what is not said in it: thoughts, and white space around an answer."""
    return Turn("assistant", without_thinking(_THOUGHT.sub("", turn.content))) if turn.role == "assistant" else turn


def key_of(salt: str, turn: Turn) -> str:
    """16 digits that stand for what a turn says, behind the first letter of its role; nothing for an empty one.

    White space and escapes do not count, since clients split and join parts; of an answer only letters and digits do.
    """
    text = said(Turn(turn.role, html.unescape(turn.content))).content
    if not text:
        return ""
    text = _UNSEEN.sub("", unicodedata.normalize("NFC", text))
    if turn.role == "assistant":
        text = letters_of(text) or text
    return turn.role[0] + hashlib.sha256(json.dumps([salt, turn.role, text]).encode()).hexdigest()[:16]


def letters_of(text: str) -> str:
    """The letters and digits of a text, without case."""
    return re.sub(r"[\W_]+", "", text.casefold())
