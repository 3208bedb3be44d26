"""How a conversation is laid out for stores, and how ranks are counted over two of them."""

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from locomo_cases import benchmark, write

from eval.locomo.data import Conversation, dialogues, load_locomo
from eval.locomo.scores import evidence_ranks
from eval.runner import merged
from eval.systems.base import Passage


@pytest.fixture
def conversation(tmp_path: Path) -> Conversation:
    return load_locomo(write(tmp_path / "l.json", benchmark()))[0]


def test_two_stores_in_which_each_speaker_is_the_user(conversation: Conversation) -> None:
    ana, bo = dialogues(conversation, per_speaker=True, captions="all")
    assert (ana.key.id, ana.key.owner, ana.title, ana.key.batch_turns) == ("conv-1.Ana", "Ana", "Ana", 2)
    assert bo.key.id == "conv-1.Bo"
    assert [session.id for session in ana.sessions] == ["session_2", "session_10"]
    assert ana.sessions[0].time == datetime(2023, 5, 8, 13, 56)
    assert [turn.role for turn in ana.sessions[0].turns] == ["user", "assistant"]
    assert [turn.role for turn in bo.sessions[0].turns] == ["assistant", "user"]
    assert [turn.spoken for turn in bo.sessions[0].turns] == [
        "Ana: I adopted a dog. [image: a dog]",
        "Bo: Lovely! [image: a red bicycle]",
    ]


def test_one_store_in_which_both_are_users(conversation: Conversation) -> None:
    (both,) = dialogues(conversation, per_speaker=False, captions="all")
    assert (both.key.id, both.title) == ("conv-1", "Ana and Bo")
    assert {turn.role for session in both.sessions for turn in session.turns} == {"user"}


@pytest.mark.parametrize(
    ("captions", "texts"),
    [
        ("all", ["I adopted a dog. [image: a dog]", "Lovely! [image: a red bicycle]"]),
        ("with_url", ["I adopted a dog. [image: a dog]", "Lovely!"]),
        ("none", ["I adopted a dog.", "Lovely!"]),
    ],
)
def test_captions_that_were_asked_for(conversation: Conversation, captions, texts: list[str]) -> None:
    (both,) = dialogues(conversation, per_speaker=False, captions=captions)
    assert [turn.text for turn in both.sessions[0].turns] == texts


def test_sessions_without_turns_are_left_out(tmp_path: Path) -> None:
    data = benchmark()
    data[0]["conversation"]["session_2"] = []
    (both,) = dialogues(load_locomo(write(tmp_path / "l.json", data))[0], per_speaker=False, captions="all")
    assert [session.id for session in both.sessions] == ["session_10"]


def passage(name: str, similarity: float | None, *sources: str) -> Passage:
    return Passage(name, None, sources, similarity)


def test_stores_are_merged_by_similarity_the_first_store_first() -> None:
    first = [passage("a", 0.9), passage("b", 0.5), passage("c", 0.1)]
    second = [passage("d", 0.95), passage("e", 0.5)]
    assert [found.text for found in merged([first, second])] == ["d", "a", "b", "e", "c"]


def test_stores_without_similarities_are_merged_by_rank() -> None:
    first = [passage("a", 0.1), passage("b", None), passage("c", 0.9)]
    assert [found.text for found in merged([first, [passage("d", 0.99)]])] == ["a", "d", "b", "c"]
    assert merged([[], []]) == []


@given(st.lists(st.lists(st.floats(-1, 1), max_size=5), min_size=1, max_size=3))
def test_merging_loses_nothing_and_keeps_the_order_of_each_store(similarities: list[list[float]]) -> None:
    stores = [
        [passage(f"{number}.{rank}", value) for rank, value in enumerate(sorted(values, reverse=True))]
        for number, values in enumerate(similarities)
    ]
    together = merged(stores)
    assert len(together) == sum(map(len, stores))
    for number, store in enumerate(stores):
        assert [found for found in together if found.text.startswith(f"{number}.")] == store


def test_ranks_of_evidence_are_those_of_the_first_passage_that_comes_from_it() -> None:
    found = [passage("x", None, "D1:1", "D1:2"), passage("y", None), passage("z", None, "D1:2", "D1:3")]
    assert evidence_ranks(("D1:3", "D1:2", "D9:9"), found) == (3, 1, None)
    assert evidence_ranks((), found) == ()
