from __future__ import annotations

from datetime import datetime

from answering_cases import block
from hypothesis import given
from hypothesis import strategies as st

from deltamem.ingest import estimate_tokens
from eval.answer import ContextBlock, cut_to_budget, render, render_all
from eval.systems.base import Passage

PASSAGES = st.builds(Passage, st.text(max_size=40), st.none() | st.datetimes(datetime(1990, 1, 1), datetime(2040, 1, 1)))
BLOCKS = st.lists(st.builds(ContextBlock, st.text(max_size=12), st.lists(PASSAGES, max_size=6).map(tuple)), max_size=4)


def test_passages_are_lines_after_their_date() -> None:
    assert render(block("Ana moved.", "Two\nlines."), with_time=True) == (
        "Memories of Ana:\n[8 May 2023] Ana moved.\n[8 May 2023] Two\nlines."
    )
    assert render(block("Ana moved.", title=""), with_time=False) == "Ana moved."
    assert render(block("Ana moved.", title="", time=None), with_time=True) == "Ana moved."


def test_blocks_take_turns_until_the_budget_is_full() -> None:
    """Titles 6 bytes with line end; a line 9 bytes; 2 bytes between blocks; then 10 bytes each: 15 + 17 + 10 + 10 = 52."""
    first = block("a" * 9, "b" * 9, "c" * 9, title="first")
    second = block("d" * 9, "e" * 9, title="other")
    shown = cut_to_budget([first, second], 17, with_time=False)  # 51 bytes
    assert [[p.text[0] for p in one.passages] for one in shown.blocks] == [["a", "b"], ["d"]]
    assert (shown.passages, shown.tokens) == (3, 14)
    shown = cut_to_budget([first, second], 18, with_time=False)  # 54 bytes
    assert [[p.text[0] for p in one.passages] for one in shown.blocks] == [["a", "b"], ["d", "e"]]


def test_what_a_system_does_not_rank_is_cut_first_and_then_shown_by_time() -> None:
    """The newest are kept, and read from the oldest of them on."""
    days = [Passage(f"{day:02}" * 4 + "\n", datetime(2023, 5, day)) for day in (4, 3, 2, 1)]
    cut = cut_to_budget([ContextBlock("", tuple(days), by_time=True)], 10, with_time=False)  # 30 bytes, 10 each
    assert [passage.time.day for passage in cut.blocks[0].passages] == [2, 3, 4]
    undated = ContextBlock("", (days[0], Passage("x"), days[1]), by_time=True)
    assert cut_to_budget([undated], 100, with_time=False).blocks == (undated,)


def test_a_passage_that_does_not_fit_ends_its_block_only() -> None:
    long, short = block("x" * 400, "y", title=""), block("z", "z", title="")
    shown = cut_to_budget([long, short], 20, with_time=False)
    assert [one.passages for one in shown.blocks] == [short.passages]


def test_dates_count_only_where_they_are_shown() -> None:
    one = block("x" * 9, title="")
    assert cut_to_budget([one], 3, with_time=False).passages == 1
    assert cut_to_budget([one], 3, with_time=True).passages == 0
    assert cut_to_budget([one], 8, with_time=True).tokens == 8  # "[8 May 2023] " has 13 bytes


@given(BLOCKS, st.integers(0, 120), st.booleans())
def test_the_budget_is_kept_and_every_block_shows_its_first_passages(
    blocks: list[ContextBlock], budget: int, with_time: bool
) -> None:
    shown = cut_to_budget(blocks, budget, with_time=with_time)
    assert shown.tokens == estimate_tokens(render_all(shown.blocks, with_time=with_time)) <= budget
    assert shown.passages == sum(len(one.passages) for one in shown.blocks)
    rest = iter(blocks)
    for one in shown.blocks:
        assert one.passages
        assert any(whole.title == one.title and whole.passages[: len(one.passages)] == one.passages for whole in rest), (
            "blocks in order, passages from the front"
        )


@given(BLOCKS, st.booleans())
def test_everything_is_shown_if_it_fits_exactly(blocks: list[ContextBlock], with_time: bool) -> None:
    filled = tuple(one for one in blocks if one.passages)
    needed = estimate_tokens(render_all(filled, with_time=with_time))
    assert cut_to_budget(blocks, needed, with_time=with_time).blocks == filled
    if needed:
        assert cut_to_budget(blocks, needed - 1, with_time=with_time).blocks != filled
