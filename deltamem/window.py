"""Fitting text into a model's context window: estimated tokens, and sessions split into parts."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from deltamem.sessions import Session, Turn, format_dialogue

BYTES_PER_TOKEN = 3
LEAST_LIMIT = 32  # Smallest limit, in tokens: a turn's role and at least some words of it must fit

_ABBREVIATED = "".join(rf"(?<!\b{one}\.)" for one in ("Dr", "Mr", "Mrs", "Ms", "St", "Prof", "Nr", "No", "vs", "al", "cf"))
_SENTENCE_END = re.compile(rf"(?<=[.!?…]){_ABBREVIATED}[\"”’)\]]*\s+(?![a-z])|(?<=[。！？])|\n+")  # noqa: RUF001
_WORD_END = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class SessionPart:
    """One part of a session: some of its turns, with their numbers in the whole session, from 1."""

    session: Session
    turn_numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A turn or a part of one, with its number in the session and its size in tokens."""

    turn: Turn
    number: int
    tokens: int


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens a text has: its UTF-8 bytes divided by 3, rounded up.

    No tokenizer is asked: behind an endpoint it is not known which one counts, and loading one would cost seconds and a
    heavy dependency. English has about 4 bytes a token, so the estimate is on the safe side; Chinese, Japanese and Korean
    characters have 3 bytes and about one token.
    """
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN)


def whole_sentences(text: str, size: Callable[[str], int], limit: int) -> str:
    """The first sentences of a text whose `size` together is within a limit; empty if the first one is longer."""
    ends = [match.start() for match in _SENTENCE_END.finditer(text)]
    count = bisect_right(ends, limit, key=lambda end: size(text[:end]))
    return text[: ends[count - 1]].rstrip() if count else ""


def split_session(session: Session, limit_tokens: int) -> list[SessionPart]:
    """Split a session into as few parts as possible, of about equal size, that fit a limit.

    Parts follow each other without overlap. A user turn stays with the answer that follows it unless both together are
    above the limit. A turn that is longer than the limit is cut at the end of a sentence, else between words, else
    anywhere, into several turns of the same role. What counts is the dialogue, by `estimate_tokens` of `format_dialogue`.

    Raises:
        ValueError: If the limit is below `LEAST_LIMIT`.
    """
    if limit_tokens < LEAST_LIMIT:
        raise ValueError(f"limit_tokens must be at least {LEAST_LIMIT}, not {limit_tokens}")
    if estimate_tokens(format_dialogue(session.dialogue)) <= limit_tokens:
        return [SessionPart(session, tuple(range(1, len(session.dialogue) + 1)))]
    pieces = [
        _Piece(turn, number, _tokens(turn))
        for number, whole in enumerate(session.dialogue, start=1)
        for turn in _cut(whole, limit_tokens)
    ]
    return [
        SessionPart(
            replace(session, dialogue=tuple(piece.turn for group in part for piece in group)),
            tuple(piece.number for group in part for piece in group),
        )
        for part in _balanced(_groups(pieces, limit_tokens), limit_tokens)
    ]


def _tokens(turn: Turn) -> int:
    """Size of a turn within a dialogue, with its line end. Rounded up for each turn, so that sums are never too small."""
    return estimate_tokens(format_dialogue([turn]) + "\n")


_Group = list[_Piece]


def _groups(pieces: Sequence[_Piece], limit: int) -> list[_Group]:
    """Join each user turn with the answer that directly follows it, where both fit."""
    groups: list[_Group] = []
    for piece in pieces:
        previous = groups[-1][-1] if groups else None
        if (
            previous is not None
            and (previous.turn.role, piece.turn.role) == ("user", "assistant")
            and previous.tokens + piece.tokens <= limit
        ):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups


def _balanced(groups: Sequence[_Group], limit: int) -> list[list[_Group]]:
    """Put consecutive groups into the fewest parts and, among those ways, the one whose parts are most equal in size."""
    sizes = [sum(piece.tokens for piece in group) for group in groups]
    # For each number of leading groups: parts, sum of their squared sizes, and where the last part begins.
    best: list[tuple[int, int, int]] = [(0, 0, 0)]
    for end in range(1, len(sizes) + 1):
        options = []
        total = 0
        for start in range(end - 1, -1, -1):
            total += sizes[start]
            if total > limit:
                break
            options.append((best[start][0] + 1, best[start][1] + total * total, start))
        best.append(min(options))
    parts: list[list[_Group]] = []
    end = len(sizes)
    while end:
        start = best[end][2]
        parts.append(list(groups[start:end]))
        end = start
    return parts[::-1]


def _cut(turn: Turn, limit: int) -> list[Turn]:
    """Cut a turn into turns that fit, of about equal size."""
    total = _tokens(turn)
    if total <= limit:
        return [turn]
    best = list(_cut_within(turn, limit))
    # Smaller pieces of more equal size, as long as there are not more of them.
    overhead = _tokens(replace(turn, content="")) + 1
    smallest = math.ceil(total / len(best)) + overhead
    for target in range(smallest, limit, max(1, (limit - smallest) // 4)):
        pieces = list(_cut_within(turn, max(target, LEAST_LIMIT)))
        if len(pieces) <= len(best):
            return pieces
    return best


def _cut_within(turn: Turn, limit: int) -> Iterator[Turn]:
    rest = turn.content
    while rest:
        # At least one byte a character, so no more characters than bytes can fit.
        window = rest[: limit * BYTES_PER_TOKEN]
        fits = _longest_prefix(replace(turn, content=window), limit)
        end = fits if fits == len(rest) else _boundary(window[:fits])
        yield replace(turn, content=rest[:end])
        rest = rest[end:]


def _longest_prefix(turn: Turn, limit: int) -> int:
    """How many characters of a turn fit, by bisection: a longer prefix never has fewer tokens."""
    low, high = 1, len(turn.content)
    while low < high:
        middle = (low + high + 1) // 2
        if _tokens(replace(turn, content=turn.content[:middle])) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _boundary(text: str) -> int:
    """Where to cut a text that goes on: the last end of a sentence or else of a word in its second half, else its end."""
    for pattern in (_SENTENCE_END, _WORD_END):
        ends = [match.end() for match in pattern.finditer(text, len(text) // 2)]
        if ends:
            return ends[-1]
    return len(text)


SMALLEST_PART = 128
"""Tokens. A part this small that still does not fit means that the window is too small for the prompt itself."""


def divisible(part: SessionPart) -> bool:
    """Whether a part is large enough for `halves`."""
    return _size(part) > SMALLEST_PART


def halves(part: SessionPart) -> list[SessionPart]:
    """Split a part that is `divisible` in two of up to three fifths, or in more where that takes long turns apart."""
    return [
        SessionPart(half.session, tuple(part.turn_numbers[number - 1] for number in half.turn_numbers))
        for half in split_session(part.session, max(SMALLEST_PART // 2, -(-_size(part) * 3 // 5)))
    ]


def _size(part: SessionPart) -> int:
    return sum(map(_tokens, part.session.dialogue))
