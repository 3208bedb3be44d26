"""The audit of a memory state: duplicates, contradictions, and memories that their sessions do not support.

All findings are suspicions for a person to look at; nothing is changed. The checks are lexical on top of embedding
similarity, so they cost no model call and give the same findings each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from deltamem.embedding import Vectors
from deltamem.journal.records import ChangeEvent, EntryKind
from deltamem.memory import Memory, MemoryState
from deltamem.text import (
    MONTHS,
    STOP_WORDS,
    WEEKDAYS,
    Item,
    Kind,
    content_stems,
    is_pair,
    marked_words,
    negations,
    normalised,
    salient_items,
    stem,
    words,
)

if TYPE_CHECKING:
    from deltamem.bank.store import UserStore

_BLOCK = 256  # Rows of the similarity matrix at a time: 256 x 10,000 float32 are 10 MB

# Words by which a session refers to a time; any date can be meant by them.
_CALENDAR = MONTHS | WEEKDAYS
_DATE_WORDS = _CALENDAR | frozenset(
    """today tonight yesterday tomorrow now ago next last since until day days week weeks weekend month months year
        years old morning evening spring summer autumn fall winter birthday easter christmas""".split()  # noqa: SIM905
)
# Forms of one word family share this many letters: journalism and journalist.
_FAMILY = 5
# A word of at most this many memories is rare; two, because what is stored twice would else be exempt.
_RARE = 2


class FindingKind(StrEnum):
    """What an audit finds."""

    EXACT_DUPLICATE = "exact_duplicate"
    NEAR_DUPLICATE = "near_duplicate"
    CONTRADICTION = "contradiction"
    UNSUPPORTED = "unsupported"


MOST_PAIRS = 1000
"""Near duplicates and contradictions in one audit. Their number grows with the square of the memories: five thousand
readings of one thermometer contradict each other twelve million times."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One suspicion, with the memories concerned in the order of the state, and a sentence for the reader."""

    kind: FindingKind
    memory_ids: tuple[str, ...]
    similarity: float | None  # Cosine of the two texts, for near duplicates and contradictions
    detail: str


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings of an audit, by kind, then in the order of the state."""

    findings: tuple[Finding, ...]
    memories: int  # How many were checked
    without_source: int  # How many of them have no source session to check against (not kept, or erased)
    complete: bool = True
    """Whether all near duplicates and contradictions are among the findings; there are at most `MOST_PAIRS`."""


class _Facts(NamedTuple):
    """What the comparisons need of one memory."""

    text: str
    items: tuple[Item, ...]
    marked: frozenset[str]
    frame: frozenset[str]
    negations: frozenset[str]


class _Source(NamedTuple):
    """The words of a source with their stems, and whether it mentions a time."""

    words: frozenset[str]
    dated: bool


def audit(
    state: MemoryState,
    vectors: Vectors,
    sources: Mapping[str, str | None],
    *,
    near: float = 0.92,
    related: float = 0.8,
    overlap: float = 0.75,
    person_name: str = "",
) -> Audit:
    """Look for duplicates, contradictions and unsupported memories.

    - Exact duplicates are equal once normalised.
    - Near duplicates are at least `near` similar and have the same numbers, dates, names, negations and
      `marked_words`.
    - Contradictions are at least `related` similar, share most of their other words and differ in exactly one number,
      date or name on each side, or only in a negation or in marked words. Two that differ in more names are taken for two
      facts (two friends in two towns).
    - Unsupported memories have a number, name or rare word that is not in their source. Rare is a word of at most two
      memories. The word after the person's name, mostly a verb that the session puts differently, does not count, nor does
      a single rare word where other words of the memory are found. A date is supported by the session's own date or by
      any date word ("yesterday", "in May") of the source: how it was resolved is not judged.

    Args:
        state: The memories.
        vectors: Their unit vectors, shape ``(len(state), dim)``, row i for the i-th memory.
        sources: By id the dialogue that a memory comes from, as text; of all its sessions if several shaped it. None or
            absent: not kept or erased.
        near: Least similarity of near duplicates.
        related: Least similarity of contradictions.
        overlap: Least share of common words (Jaccard) of contradictions.
        person_name: How memories name the person; sessions do not.

    Raises:
        ValueError: If the number of vectors differs from the number of memories.
    """
    if len(vectors) != len(state):
        raise ValueError(f"{len(vectors)} vectors for {len(state)} memories")
    name = content_stems(person_name)
    facts = [_facts(memory.text, name) for memory in state.memories]
    alike: dict[str, list[Memory]] = {}
    for memory in state.memories:
        alike.setdefault(normalised(memory.text), []).append(memory)
    same = [
        Finding(
            FindingKind.EXACT_DUPLICATE, tuple(one.id for one in group), None, f'{len(group)} memories say "{group[0].text}"'
        )
        for group in alike.values()
        if len(group) > 1
    ]
    suspected = _pairs(state.memories, facts, vectors, near, related, overlap) if len(state) > 1 else iter(())
    pairs = list(islice(suspected, MOST_PAIRS))
    complete = next(suspected, None) is None
    checked = [memory for memory in state.memories if sources.get(memory.id) is not None]
    read = {source: _read_source(source) for source in set(sources.values()) if source is not None}
    spread = Counter(word for memory in state.memories for word in content_stems(memory.text))
    unsupported = [
        Finding(FindingKind.UNSUPPORTED, (memory.id,), None, f"its session does not say: {', '.join(missing)}")
        for memory in checked
        if (missing := _missing(memory, read[sources[memory.id] or ""], spread, name))
    ]
    order = list(FindingKind)
    findings = sorted([*same, *pairs, *unsupported], key=lambda finding: order.index(finding.kind))
    return Audit(tuple(findings), len(state), len(state) - len(checked), complete)


def audit_owner(owned: UserStore, person_name: str) -> Audit:
    """Audit the present memories of an owner against what was said in their sessions and written in their edits."""
    state = owned.bank.state
    sources: dict[str, str | None] = {}
    for memory_id in state:
        texts: list[str] = []
        for entry, change in owned.journal.history(memory_id):
            if entry.undone or change.event not in (ChangeEvent.ADD, ChangeEvent.UPDATE):
                continue
            if entry.kind is EntryKind.SESSION:
                texts += [turn.content for turn in owned.journal.dialogue(entry.position) or ()]
            elif entry.kind is EntryKind.EDIT and change.after is not None:
                texts.append(change.after.text)  # what somebody wrote is its own source
        sources[memory_id] = "\n".join(texts) or None
    return audit(state, owned.bank.vectors(list(state)), sources, person_name=person_name)


def _facts(text: str, name: frozenset[str]) -> _Facts:
    items = tuple(item for item in salient_items(text) if not {stem(word) for word in item.text.split()} <= name)
    marked = {stem(word) for item in items for word in item.text.split()} | {stem(word) for word in _CALENDAR}
    denied = negations(text)
    frame = frozenset(word for word in content_stems(text) - marked - name - denied if not word[0].isdigit())
    return _Facts(normalised(text), items, marked_words(text), frame, denied)


def _pairs(
    memories: Sequence[Memory], facts: Sequence[_Facts], vectors: Vectors, near: float, related: float, overlap: float
) -> Iterator[Finding]:
    for first, second, similarity in _similar(vectors, min(near, related)):
        left, right = facts[first], facts[second]
        if left.text == right.text:
            continue
        ids = (memories[first].id, memories[second].id)
        ours, theirs = _unmatched(left.items, right.items), _unmatched(right.items, left.items)
        apart = sorted(left.marked ^ right.marked)
        if left.negations == right.negations and not (ours or theirs or apart) and similarity >= near:
            detail = f'"{memories[first].text}" and "{memories[second].text}" say the same'
            yield Finding(FindingKind.NEAR_DUPLICATE, ids, similarity, detail)
            continue
        if similarity < related or not left.frame or len(left.frame & right.frame) < overlap * len(left.frame | right.frame):
            continue
        if len(ours) == len(theirs) == 1 and ours[0].kind is theirs[0].kind:
            detail = f'one says "{ours[0].text}", the other "{theirs[0].text}"'
            yield Finding(FindingKind.CONTRADICTION, ids, similarity, detail)
        elif left.negations != right.negations and not ours and not theirs:
            yield Finding(FindingKind.CONTRADICTION, ids, similarity, "one denies what the other says")
        elif apart and not ours and not theirs:
            yield Finding(FindingKind.CONTRADICTION, ids, similarity, f"only one says {' and '.join(apart)}")


def _similar(vectors: Vectors, least: float) -> Iterator[tuple[int, int, float]]:
    """Pairs of rows i < j with at least this similarity, without ever holding the whole matrix."""
    for start in range(0, len(vectors), _BLOCK):
        similarity = vectors[start : start + _BLOCK] @ vectors[start:].T
        rows, columns = np.nonzero(np.triu(similarity >= least, 1))
        for row, column, value in zip(rows.tolist(), columns.tolist(), similarity[rows, columns].tolist(), strict=True):
            yield start + row, start + column, value


def _unmatched(items: Iterable[Item], others: Sequence[Item]) -> list[Item]:
    """The items that agree with none of the others; "Tom" agrees with "Tom Miller"."""

    def agree(one: Item, other: Item) -> bool:
        left, right = set(one.text.split()), set(other.text.split())
        return one.kind is other.kind and (left <= right or right <= left)

    return [item for item in items if not any(agree(item, other) for other in others)]


def _missing(memory: Memory, source: _Source, spread: Mapping[str, int], name: frozenset[str]) -> list[str]:
    """The numbers, names and rare words of a memory that its source does not contain, as the memory has them."""
    items = salient_items(memory.text)
    missing = []
    for item in items:
        if item.kind is Kind.DATE:
            time = memory.time
            own = (f"{time:%Y-%m-%d}", f"{time:%Y-%m}", f"{time:%m-%d}", f"{time:%m}", f"{time:%A}".casefold())
            if not source.dated and item.text not in own:
                missing.append(item.text)
        else:
            missing += [word for word in item.text.split() if not _occurs(word, source.words) and stem(word) not in name]
    marked = {word for item in items for word in item.text.split()} | _DATE_WORDS
    rest = [word for word in _after_verb(memory.text, name) if not word[0].isdigit() and word not in marked]
    absent = [word for word in rest if not _occurs(word, source.words) and stem(word) not in name]
    rare = [word for word in absent if spread[stem(word)] <= _RARE]
    # The facts of a memory are names, numbers and rare words; with one of them confirmed, a rephrased word is no suspicion.
    # The pairs of a script without spaces straddle words, so some are always absent.
    distinct = [word for word in rare if not is_pair(word)]
    return missing + (rare if len(absent) == len(rest) or len(distinct) > 1 else [])


def _read_source(source: str) -> _Source:
    raw = frozenset(word.casefold() for word in words(source))
    dated = bool(raw & _DATE_WORDS) or any(item.kind is Kind.DATE for item in salient_items(source))
    return _Source(raw | {stem(word) for word in raw}, dated)


def _after_verb(text: str, name: frozenset[str]) -> list[str]:
    """The content words of a memory without the name at its beginning and a full verb that follows it."""
    found = [word.casefold() for word in words(text)]
    # Without a known name the first word stands for it.
    start = next((index for index, word in enumerate(found) if stem(word) not in name), len(found)) if name else 1
    skipped = start if found[start : start + 1] and found[start] in STOP_WORDS else start + 1
    return [word for word in found[skipped:] if word not in STOP_WORDS]


def _occurs(word: str, source: frozenset[str]) -> bool:
    key = stem(word)
    if key in source or word in source:
        return True
    return len(key) >= _FAMILY and not key[0].isdigit() and any(other.startswith(key[:_FAMILY]) for other in source)
