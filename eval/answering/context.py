"""What an answerer is shown: retrieved passages cut to the budget of context tokens, and how they are written out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from deltamem.text.splitting import BYTES_PER_TOKEN, estimate_tokens
from eval.answering.protocol import ContextBlock
from eval.systems.protocol import Passage

_BETWEEN_BLOCKS = "\n\n"


@dataclass(frozen=True, slots=True)
class Shown:
    """What fits a budget.

    Attributes:
        blocks: Those of which something is shown, each with its first passages, in the order in which they are shown.
        passages: How many passages are shown.
        tokens: Estimated tokens of what `render_all` makes of the blocks.
    """

    blocks: tuple[ContextBlock, ...]
    passages: int
    tokens: int


def cut_to_budget(blocks: Sequence[ContextBlock], budget: int, *, with_time: bool) -> Shown:
    """Take passages in turn from every block, best first, until the budget is full.

    A passage is taken whole or not at all. From a block whose next passage does not fit nothing more is taken, so that
    every block shows its best passages and no gap.

    Args:
        blocks: With their passages, best first.
        budget: Estimated tokens (`deltamem.text.splitting.estimate_tokens`), titles and dates included.
        with_time: Whether dates are shown.
    """
    left = budget * BYTES_PER_TOKEN
    taken = [0] * len(blocks)
    begun = False
    open_blocks = [number for number, block in enumerate(blocks) if block.passages]
    while open_blocks:
        still_open = []
        for number in open_blocks:
            block = blocks[number]
            line = _line(block.passages[taken[number]], with_time)
            before = "\n" if taken[number] else (_BETWEEN_BLOCKS if begun else "") + _head(block)
            size = _bytes(before + line)
            if size > left:
                continue
            left -= size
            begun = True
            taken[number] += 1
            if taken[number] < len(block.passages):
                still_open.append(number)
        open_blocks = still_open
    shown = tuple(_first(block, count) for block, count in zip(blocks, taken, strict=True) if count)
    return Shown(shown, sum(taken), estimate_tokens(render_all(shown, with_time=with_time)))


def _first(block: ContextBlock, count: int) -> ContextBlock:
    passages = block.passages[:count]
    if block.by_time and all(passage.time is not None for passage in passages):
        passages = tuple(sorted(passages, key=lambda passage: passage.time or datetime.min))
    return replace(block, passages=passages)


def render(block: ContextBlock, *, with_time: bool) -> str:
    """Write out a block: its title, then each passage on a line of its own with its date before it.

    Args:
        block: The block; a passage of several lines keeps them.
        with_time: Whether dates are shown.
    """
    return _head(block) + "\n".join(_line(passage, with_time) for passage in block.passages)


def render_all(blocks: Sequence[ContextBlock], *, with_time: bool) -> str:
    """Write out blocks, an empty line between them."""
    return _BETWEEN_BLOCKS.join(render(block, with_time=with_time) for block in blocks)


def format_date(time: datetime) -> str:
    """A date as answerers are shown it and as LoCoMo's answers write it, for example ``8 May 2023``."""
    return f"{time.day} {time:%B} {time.year}"


def _head(block: ContextBlock) -> str:
    return f"{block.title}\n" if block.title else ""


def _line(passage: Passage, with_time: bool) -> str:
    return f"[{format_date(passage.time)}] {passage.text}" if with_time and passage.time else passage.text


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
