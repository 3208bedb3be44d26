"""Which questions a sample holds."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import PERSONAMEM

from deltamem.errors import DeltaMemError
from eval.data import chosen_groups, draw, stratified
from eval.records import QuestionRecord

# As LoCoMo: 1,986 questions of ten conversations.
COUNTS = {"multi": 282, "temporal": 321, "open": 96, "single": 841, "trap": 446}
ITEMS = [(f"c{number % 10}", name, number) for name, count in COUNTS.items() for number in range(count)]
RECORDS = [QuestionRecord(key=f"{number}", group=group, category=name, question="?") for group, name, number in ITEMS]


def drawn(limit: int | None, seed: int = 0) -> list[tuple[str, str, int]]:
    return [(record.group, record.category, int(record.key)) for record in stratified(RECORDS, limit, seed)]


def test_each_category_has_its_share_spread_over_the_groups() -> None:
    sample = drawn(60)
    assert Counter(name for _, name, _ in sample) == {"multi": 9, "temporal": 10, "open": 3, "single": 25, "trap": 13}
    assert len({group for group, _, _ in sample}) == 10
    single = Counter(group for group, name, _ in sample if name == "single")
    assert set(single.values()) == {2, 3}
    assert sample == sorted(sample, key=ITEMS.index) == drawn(60) != drawn(60, seed=1)


@pytest.mark.parametrize(("limit", "categories"), [(1, 1), (4, 3), (5, 5), (6, 5)])
def test_small_samples_hold_as_many_categories_as_they_can(limit: int, categories: int) -> None:
    sample = drawn(limit)
    assert (len(sample), len({name for _, name, _ in sample})) == (limit, categories)


def test_a_wider_sample_holds_a_narrower_one() -> None:
    samples = [set(drawn(limit)) for limit in (20, 60, 200, 1000, 1985)]
    assert all(narrow < wide for narrow, wide in pairwise(samples))
    assert drawn(None) == drawn(1986) == drawn(5000) == ITEMS


def test_groups_by_number_are_drawn_and_by_id_they_are_named() -> None:
    ids = [f"conv-{number}" for number in range(26, 36)]
    three = chosen_groups(ids, 3, "conversations", seed=0)
    assert len(three) == 3 and three == sorted(three) and set(three) < set(chosen_groups(ids, 5, "conversations", 0))
    assert len({tuple(chosen_groups(ids, 3, "conversations", seed)) for seed in range(9)}) > 1
    assert chosen_groups(ids, ["conv-30", "conv-26"], "conversations", 0) == ["conv-26", "conv-30"]
    assert chosen_groups(ids, None, "conversations", 0) == ids
    with pytest.raises(
        DeltaMemError, match=r"^conversations names 'conv-9', which the data does not have; there are: conv-26,"
    ):
        chosen_groups(ids, ["conv-26", "conv-9"], "conversations", 0)
    with pytest.raises(DeltaMemError, match=r"^conversations=11, but the data has only 10: conv-26,"):
        chosen_groups(ids, 11, "conversations", 0)


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"limit": 60}, "60 of 1,986 questions (limit=60)"),
        ({"users": ["c1"]}, "200 of 1,986 questions (users=[c1])"),
        ({"users": ["c1"], "limit": 9}, "9 of 1,986 questions (users=[c1], limit=9)"),
        ({"limit": 5000}, None),
        ({}, None),
    ],
)
def test_a_sample_is_named_by_what_chose_it(tmp_path: Path, keys: dict[str, Any], note: str | None) -> None:
    config = PERSONAMEM.configured(tmp_path).model_copy(update={"users": None, "limit": None, "seed": 0} | keys)
    asked = [(record.group, record) for record in RECORDS]
    assert draw(asked, [f"c{number}" for number in range(10)], config, len(RECORDS), "users").note == note
