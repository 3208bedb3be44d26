"""Which session of a context a question refers to.

The data names it by ``distance_to_ref_in_blocks``. What that counts is not documented, but follows from the program that
made the data and agrees with the columns of the 32k release: blocks are the sessions, numbered from 0; the distance is the
number of the block in which the question is asked less that of the block that holds the first reference. Questions are
asked in the middle of the last session, before the message at their end index; or after everything, which counts as one
block more and has the end index of the last message. A question with that end index may therefore be either.

``distance_to_ref_in_tokens`` tells the same in another unit, measured from the same message, so that one checks the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from eval.personamem.loader import Message, Question

TOLERANCE = 0.05
"""How far outside a block, as a share of the prefix, the reference may seem to be; tokens are estimated from characters."""


@dataclass(frozen=True, slots=True)
class Block:
    """The part of a session that a prefix holds.

    Attributes:
        start: Index of its first message.
        stop: Index after its last message.
        agrees: Whether the distance in tokens points to it too.
    """

    start: int
    stop: int
    agrees: bool


def session_starts(messages: Sequence[Message]) -> list[int]:
    """Where the sessions of a context begin: at its first message and at system messages, of several in a row the first."""
    return [0] + [
        index
        for index, (before, message) in enumerate(pairwise(messages), start=1)
        if message.role == "system" and before.role != "system"
    ]


def referenced_block(messages: Sequence[Message], question: Question) -> Block | None:
    """The block that a question refers to.

    Args:
        messages: The whole context.
        question: Its end index is within the context.

    Returns:
        The block, cut off where the prefix ends; None if the distance points to none.
    """
    starts = session_starts(messages)
    asked_in = []
    if question.end >= len(messages) - 1:
        asked_in.append(len(starts))
    if question.end < len(messages):
        asked_in.append(bisect_right(starts, question.end) - 1)
    bounds = [*starts, len(messages)]
    blocks = [
        (bounds[number], min(bounds[number + 1], question.end))
        for block in asked_in
        if 0 <= (number := block - question.blocks_back) < len(starts) and bounds[number] < question.end
    ]
    if not blocks:
        return None
    offsets = [0, *accumulate(len(message.content) for message in messages[: question.end])]
    share = 1 - question.tokens_back / question.tokens if question.tokens > 0 else -1.0
    position = share * offsets[-1]
    for start, stop in blocks:
        outside = max(offsets[start] - position, position - offsets[stop], 0)
        if outside <= TOLERANCE * offsets[-1]:
            return Block(start, stop, agrees=True)
    start, stop = blocks[0]
    return Block(start, stop, agrees=False)
