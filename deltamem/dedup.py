"""Against the feedback loop of memory systems: what was recalled into a dialogue must not be stored again as new.

Two defences. `mark_recalled` shows the model which passages of a session are its own memories. `drop_known`
corrects the operations that repeat them nevertheless.
"""

# ruff: noqa: RUF001 - typographic quotes and dashes are what is looked for here
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

from deltamem.bank.base import Hit
from deltamem.journal.records import Change
from deltamem.memory import Event, MemoryState, Operation
from deltamem.sessions import Turn
from deltamem.text import SourceFinder, content_stems, marked_words, negations, normalised, salient

MARK = "[recalled from memory, already stored: "
SAME_FACT = 0.9  # Cosine similarity from which a neighbour may say the same as a new memory

# Longest run of sentences that is looked up as one memory: memories are one sentence, but "Dr. Ito" looks like two.
_LONGEST_RUN = 3
# Limits that keep a hostile turn cheap: no memory is longer, and nothing hides behind more than this.
_LONGEST_TEXT = 4_000
_MOST_LEADS = 12
_LONGEST_TRAIL = 80
_SENTENCE = re.compile(r"(?<=[.!?:؟۔।])[\"'”’)\]]*\s+|(?<=[。！？：])\s*")
_QUOTED = re.compile(r'"([^"\n]*)"|“([^”\n]*)”|«([^»\n]*)»')
_CLOSING = " \t\r\n\"'”’»}],;"
_CLOSED = " \t\r\n\"'”’»}]),"
_OPENING = " \t\"'“‘«"
_MARKED = re.compile(re.escape(MARK) + r".*?\](?!\w)")
_DAY = r"\d{4}[/.-]\d{2}[/.-]\d{2}(?:\s*\(\w+\))?"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?"
_ID = r"(?:id\s*[=:]\s*)?m\d+\b"
# One thing before a quoted memory: a bullet but no minus sign, a heading, a box, a list's number, an id, a time, an opening
# bracket or quote.
_LEAD = re.compile(
    rf"\s+|[-–—>](?!\d)|\*\*|(?:\*|\#+|\[ \])(?=\s)|[•·|\[({{\"'“‘«]|\d{{1,3}}[.)](?=\s)"
    rf"|(?:{_ID}|{_DAY}(?:[T\s]+{_CLOCK})?)[\])]?\s*(?:[:,.|]|[–—-](?!\d))?",
    re.IGNORECASE,
)
_EMPHASIS = re.compile(r"([*_`]{1,3}|~~)(?=\w)")
_TRAIL = re.compile(rf"[(\[](?:{_ID}|{_DAY}(?:[T\s]+{_CLOCK})?)[)\]]\W*$", re.IGNORECASE)


class Adjustment(StrEnum):
    """Why an operation was corrected or refused."""

    DUPLICATE_TEXT = "duplicate_text"
    RECALLED_TEXT = "recalled_text"
    # Of assisted episodes (`deltamem.assisted`)
    UNSUPPORTED_TEXT = "unsupported_text"
    OTHER_SUBJECT = "other_subject"
    REQUEST = "request"
    WRONG_TARGET = "wrong_target"


class KnownTexts:
    """The `normalised` texts of a memory state, for lookups by text that do not grow with the state. Immutable."""

    def __init__(self, state: MemoryState) -> None:
        """Index the texts of a state."""
        self._texts: dict[str, str] = {}
        self._ids: dict[str, tuple[str, ...]] = {}
        for memory in state.memories:
            self._put(memory.id, memory.text)

    def ids(self, text: str) -> tuple[str, ...]:
        """Ids of the memories whose text is equal to `text` once both are normalised."""
        return self._ids.get(normalised(text), ())

    def text(self, memory_id: str) -> str | None:
        """The normalised text of a memory; None if there is no such memory."""
        return self._texts.get(memory_id)

    def updated(self, changes: Iterable[Change]) -> KnownTexts:
        """The index after some changes; costs two copies of a dictionary (milliseconds for 100,000 memories)."""
        after = KnownTexts(MemoryState())
        after._texts, after._ids = self._texts.copy(), self._ids.copy()
        for change in changes:
            if change.after is None:
                after._drop(change.memory_id)
            elif normalised(change.after.text) != after._texts.get(change.memory_id):
                after._drop(change.memory_id)
                after._put(change.memory_id, change.after.text)
        return after

    def _put(self, memory_id: str, text: str) -> None:
        key = normalised(text)
        self._texts[memory_id] = key
        self._ids[key] = (*self._ids.get(key, ()), memory_id)

    def _drop(self, memory_id: str) -> None:
        # By id, not by the change's own text before: that may have been erased.
        key = self._texts.pop(memory_id, None)
        if key is not None:
            self._ids[key] = tuple(other for other in self._ids[key] if other != memory_id)
            if not self._ids[key]:
                del self._ids[key]


def mark_recalled(dialogue: Sequence[Turn], known: KnownTexts) -> tuple[tuple[Turn, ...], int]:
    """Wrap each line, sentence or quotation that is a memory's text, so that the model sees what it is, and count them.

    List bullets, quotes, ids and times around the text do not hide it. A line that carries the mark is left as it is, so
    marking twice is marking once.
    """
    count = 0

    def wrap(passage: str) -> str:
        nonlocal count
        count += 1
        return f"{MARK}{passage}]"

    marked = tuple(replace(turn, content=_rewrite(turn.content, known, wrap)) for turn in dialogue)
    return marked, count


@dataclass(frozen=True, slots=True)
class Corrected:
    """An answer after a safeguard: the operations that are left, and how many were corrected or refused, by reason."""

    operations: tuple[Operation, ...]
    notes: Counter[Adjustment]


def drop_known(
    operations: Sequence[Operation],
    *,
    known: KnownTexts,
    neighbours: Mapping[int, Sequence[Hit]],
    dialogue: Sequence[Turn],
    person_name: str,
    earlier_text: Callable[[str], str | None],
) -> Corrected:
    """Correct operations that would store again what is stored or what was merely recalled.

    - An ADD of a text that a memory has becomes a NONE on it (`duplicate_text`).
    - An ADD or UPDATE to a text that another operation of the answer or, for an UPDATE, another memory has, is dropped
      (`duplicate_text`). Between an ADD and an UPDATE of one text the UPDATE stays, else the first.
    - An ADD of a text that some memory had earlier is dropped unless the person says it (`recalled_text`): it may come from
      a quoted old memory. An UPDATE to one stays: the model has seen what holds now, and people do go back.
    - An ADD that says nothing beyond a near neighbour and that the person does not say becomes a NONE on it
      (`recalled_text`).

    What the person says is judged without the passages that `mark_recalled` finds. A NONE that would name a memory which
    the answer names already is left out.

    Args:
        operations: Valid operations (see `deltamem.memory.check`).
        known: The texts before the session.
        neighbours: For ADDs, by index: the memories nearest to the text.
        dialogue: The session's turns, marked or not.
        person_name: How memories name the person.
        earlier_text: Given a text, the id of a memory that had it earlier (equal once `normalised`), or None.

    Returns:
        What remains, in order, each operation with the text of one that was given; doing it twice changes nothing.
    """

    @cache  # made when it is first needed, because most sessions recall nothing
    def own_words() -> SourceFinder:
        own = [replace(turn, content=_MARKED.sub("", _rewrite(turn.content, known, lambda _: ""))) for turn in dialogue]
        return SourceFinder(own, person_name)

    def said(text: str, before: str) -> bool:
        return any(dialogue[number - 1].role == "user" for number in own_words().turns(text, before))

    def is_recalled(operation: Operation) -> bool:
        old_id = earlier_text(operation.text) if operation.event is Event.ADD else None
        return old_id is not None and not said(operation.text, known.text(old_id) or "")

    notes: Counter[Adjustment] = Counter()
    written: set[str] = set()
    kept: dict[int, Operation] = {}
    # UPDATEs first, because they win over an ADD of the same text wherever it stands in the answer.
    for event in (Event.UPDATE, Event.ADD):
        for index, operation in enumerate(operations):
            if operation.event is not event:
                continue
            text = normalised(operation.text)
            repeated = known.ids(text)
            if text in written or (event is Event.UPDATE and set(repeated) - {operation.target_memory_id}):
                notes[Adjustment.DUPLICATE_TEXT] += 1
            elif event is Event.ADD and repeated:
                notes[Adjustment.DUPLICATE_TEXT] += 1
                kept[index] = Operation(Event.NONE, operation.text, repeated[0])
            elif not repeated and is_recalled(operation):
                notes[Adjustment.RECALLED_TEXT] += 1
            elif event is Event.ADD and (hit := _covering(operation.text, neighbours.get(index, ()))) and not said(text, ""):
                notes[Adjustment.RECALLED_TEXT] += 1
                kept[index] = Operation(Event.NONE, operation.text, hit.memory.id)
            else:
                written.add(text)
                kept[index] = operation
    named = {operation.target_memory_id for operation in operations if operation.event is not Event.ADD}
    result: list[Operation] = []
    for index, operation in enumerate(operations):
        corrected = kept.get(index, operation if operation.event is Event.NONE else None)
        if corrected is None:
            continue
        if corrected is not operation:
            if corrected.target_memory_id in named:
                continue
            named.add(corrected.target_memory_id)
        result.append(corrected)
    return Corrected(tuple(result), notes)


def _covering(text: str, hits: Sequence[Hit]) -> Hit | None:
    """The first near neighbour that contains everything that a text states."""
    for hit in hits:
        theirs = hit.memory.text
        if (
            hit.similarity >= SAME_FACT
            and content_stems(text) <= content_stems(theirs)
            and marked_words(text) == marked_words(theirs)
            and salient(text) == salient(theirs)
            and negations(text) == negations(theirs)
        ):
            return hit
    return None


def _rewrite(content: str, known: KnownTexts, change: Callable[[str], str]) -> str:
    """Change the passages of a turn that are memories. Costs lookups a sentence, whatever the number of memories."""
    return "".join(
        line if MARK in line else "".join(_rewrite_line(line, known, change)) for line in content.splitlines(keepends=True)
    )


def _rewrite_line(line: str, known: KnownTexts, change: Callable[[str], str]) -> Iterator[str]:
    def quoted(opening: str, inner: str, closing: str) -> str:
        return opening + (change(inner) if known.ids(inner) else inner) + closing

    bounds = sorted({0, *(match.end() for match in _SENTENCE.finditer(line)), len(line)})
    start, last = 0, len(bounds) - 1
    while start < last:
        # At its beginning the whole line, then shorter and shorter runs of sentences.
        longest = min(_LONGEST_RUN, last - start)
        lengths = range(longest, 0, -1) if start or last <= longest else (last, *range(longest, 0, -1))
        for length in lengths:
            piece = line[bounds[start] : bounds[start + length]]
            begin = _memory_begins(piece, known)
            if begin is not None:
                end = max(begin, len(piece.rstrip(_CLOSING)))
                yield piece[:begin] + change(piece[begin:end]) + piece[end:]
                start += length
                break
        else:
            piece = line[bounds[start] : bounds[start + 1]]
            yield _QUOTED.sub(lambda match: quoted(match[0][0], match[match.lastindex or 1], match[0][-1]), piece)
            start += 1


def _closed(piece: str) -> str:
    """A piece of text without what closes a quotation, a list or bold type; a quote behind a number means inches."""
    inner = piece.rstrip(_CLOSED).removesuffix("**").rstrip(_CLOSED)
    return piece if inner[-1:].isdigit() and piece[len(inner) : len(inner) + 1] in ('"', "'") else inner


def _memory_begins(piece: str, known: KnownTexts) -> int | None:
    """Where in a piece of text the memory begins that the rest of it is; None if it is none."""
    if len(piece) > _LONGEST_TEXT:
        return None
    trail = _TRAIL.search(piece, max(0, len(piece) - _LONGEST_TRAIL))
    ends = {len(piece), len(_closed(piece)), *([trail.start()] if trail else [])}
    begin = 0
    for _ in range(_MOST_LEADS):
        if any(known.ids(piece[begin:end]) for end in ends):
            return begin + len(piece[begin:]) - len(piece[begin:].lstrip(_OPENING))
        emphasis = _EMPHASIS.match(piece, begin)
        end = piece.rfind(emphasis[1]) if emphasis else -1
        if emphasis and end > emphasis.end() and not any(map(str.isalnum, piece[end:])):
            begin, ends = emphasis.end(), {end}
            continue
        lead = _LEAD.match(piece, begin)
        if lead is None:
            return None
        begin = lead.end()
    return None
