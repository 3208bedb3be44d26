"""What every memory bank must do, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import numpy as np
import pytest
from bank_cases import (
    DIM,
    check_ranking,
    ids,
    lettered,
    move,
    needed,
    next_texts,
    open_bank,
    oracle,
    snapshot_of,
    state_of,
    vectors_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from lazy import Lazy

from deltamem.bank.base import MemoryBank, OverlayBank, SnapshotBank
from deltamem.memory import MemoryState

chroma = Lazy("deltamem.bank.chroma")

Make = Callable[..., MemoryBank]  # Of a state, and an owner of its own if none is given
QUERIES = vectors_of(["a query", "b query", "c query"])


@pytest.fixture(
    scope="module",
    params=[
        "snapshot",
        "overlay",
        "chroma",
        "chroma, copy in memory",
        pytest.param("chroma server", marks=pytest.mark.slow),
    ],
)
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    def snapshot(state: MemoryState, owner: str = "Ana") -> MemoryBank:
        return snapshot_of(state, owner)

    if request.param == "snapshot":
        yield snapshot
    elif request.param == "overlay":
        yield lambda *given: OverlayBank(snapshot(*given))
    else:
        url = request.getfixturevalue("chroma_url") if request.param == "chroma server" else None
        index = chroma.ChromaIndex.open(None if url else tmp_path_factory.mktemp("index"), url)
        # 20 is crossed by some of the tests, so that the step from memory to Chroma is seen too.
        numbers = {"flush_every": 4, "exact_up_to": 20 if "copy in memory" in request.param else 0}
        yield lambda state, owner=None: open_bank(index, owner or f"owner {uuid4()}", state, 0, **numbers)
        index.close()


def test_is_bound_to_its_owner_and_keeps_its_state(make: Make) -> None:
    state = state_of(lettered([1, 2, 3]))
    bank = make(state, "Ana")
    assert isinstance(bank, MemoryBank)
    assert (bank.owner, bank.position, bank.state) == ("Ana", 0, state)


def test_finds_the_most_similar_with_their_similarity(make: Make) -> None:
    bank = make(state_of(lettered(range(1, 40))))
    found = bank.search(QUERIES, 5)
    assert ids(found) == oracle(bank.state, QUERIES, 5)
    for query, ranking in zip(QUERIES, found, strict=True):
        for memory, similarity in ranking:
            assert memory is bank.state[memory.id] or memory == bank.state[memory.id]
            assert similarity == pytest.approx(float(query @ vectors_of([memory.text])[0]), abs=1e-5)


def test_equal_similarities_keep_the_order_of_the_state(make: Make) -> None:
    bank = make(state_of({3: "a same", 5: "b other", 12: "a same", 7: "a same"}))
    assert ids(bank.search(vectors_of(["a same"]), 2)) == [["m3", "m7"]]
    move(bank, {3: "b changed", 5: "a same", 7: "a same", 9: "a same", 12: "a same"}, 1)
    assert ids(bank.search(vectors_of(["a same"]), 3)) == [["m5", "m7", "m9"]]


def test_nothing_to_search_or_to_ask(make: Make) -> None:
    bank = make(MemoryState())
    assert bank.search(QUERIES, 5) == [[], [], []]
    move(bank, {1: "a first"}, 1)
    assert ids(bank.search(QUERIES, 5)) == [["m1"]] * 3
    # An embedder that got no texts does not know how long its vectors are.
    assert bank.search(np.zeros((0, 0), dtype=np.float32), 5) == []
    assert bank.search(np.zeros((0, DIM), dtype=np.float32), 5) == []
    move(bank, {}, 2)
    assert bank.search(QUERIES, 5) == [[], [], []]


def test_what_is_removed_or_rewritten_is_not_found_as_it_was(make: Make) -> None:
    bank = make(state_of({1: "a one", 2: "a two", 3: "b three"}))
    move(bank, {2: "h rewritten", 3: "b three"}, 1)
    assert bank.position == 1
    hits = bank.search(vectors_of(["a one"]), 3)[0]
    assert sorted(hit.memory.text for hit in hits) == ["b three", "h rewritten"]
    move(bank, {1: "a one", 2: "h rewritten", 3: "b three"}, 2)
    assert ids(bank.search(vectors_of(["a one", "h rewritten"]), 1)) == [["m1"], ["m2"]]
    bank.purge()
    assert ids(bank.search(vectors_of(["a one", "h rewritten"]), 1)) == [["m1"], ["m2"]]


def test_an_update_without_a_needed_vector_changes_nothing(make: Make) -> None:
    before = state_of({1: "a one", 2: "b two"})
    bank = make(before)
    after = state_of({1: "a changed", 2: "b two", 3: "c three"})
    vectors = needed(bank, after)
    with pytest.raises(ValueError, match=r"'m3'.*no vector"):
        bank.update(after, {"m1": vectors["m1"]}, 1)
    with pytest.raises(ValueError, match=r"'m3'.*shape"):
        bank.update(after, {**vectors, "m3": vectors["m3"][:5]}, 1)
    assert (bank.state, bank.position) == (before, 0)
    assert ids(bank.search(QUERIES, 5)) == oracle(before, QUERIES, 5)


def test_vectors_come_in_the_order_asked_for(make: Make) -> None:
    bank = make(state_of({1: "a one", 2: "b two", 3: "c three"}))
    move(bank, {1: "a one", 2: "d changed", 4: "e four"}, 1)
    np.testing.assert_array_equal(bank.vectors(["m4", "m1", "m2"]), vectors_of(["e four", "a one", "d changed"]))
    for unknown in ("m3", "m9"):
        with pytest.raises(KeyError):
            bank.vectors([unknown])


def test_owners_do_not_see_each_other(make: Make) -> None:
    # Names that a careless mapping to file or collection names would mix up.
    names = ["Eve", "eve", "Eve ", "../Eve", "Äv\u0430", "x" * 600]
    banks = [make(state_of({1: f"a secret of {number}"}), name) for number, name in enumerate(names)]
    for number, bank in enumerate(banks):
        move(bank, {1: f"a secret of {number}", 2: f"a canary of {number}"}, 1)
    for number, bank in enumerate(banks):
        texts = {hit.memory.text for ranking in bank.search(QUERIES, 10) for hit in ranking}
        assert texts == {f"a secret of {number}", f"a canary of {number}"}


@settings(max_examples=4)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_agrees_with_plain_sorting_after_any_updates(make: Make, seed: int, k: int) -> None:
    random = np.random.default_rng(seed)
    texts = lettered(range(1, int(random.integers(1, 30))))
    bank = make(state_of(texts))
    for step in range(1, 7):
        texts = next_texts(random, texts, step * 10)
        move(bank, texts, step)
        queries = vectors_of([f"{random.choice(list('abcdefgh'))} asked {step} {i}" for i in range(3)])
        check_ranking(bank.search(queries, k), state_of(texts), queries, k, may_miss=isinstance(bank, chroma.ChromaBank))
        assert (bank.position, bank.state) == (step, state_of(texts))


def test_most_of_what_exact_search_finds_in_a_larger_bank_and_among_half_of_it(make: Make) -> None:
    texts = lettered(range(1, 2101))
    bank = make(state_of(texts))
    for number in range(5, 400, 5):
        texts[number] = f"h rewritten {number}"
    move(bank, texts, 1)
    del texts[7], texts[5]
    texts[2101] = "c late"
    move(bank, texts, 2)
    queries = vectors_of([f"{letter} asked {number}" for letter in "abcdefgh" for number in range(15)])
    for among in (None, [number for number in texts if number % 2]):
        state = bank.state if among is None else state_of({number: texts[number] for number in among})
        found = ids(bank.search(queries, 5, None if among is None else state.keys()))
        expected = oracle(state, queries, 5)
        recall = float(np.mean([len({*one} & {*other}) / 5 for one, other in zip(found, expected, strict=True)]))
        assert recall == 1.0 if isinstance(bank, SnapshotBank | OverlayBank) else recall >= 0.99


def test_only_what_is_allowed_is_found(make: Make) -> None:
    texts = lettered(range(1, 31))
    bank = make(state_of(texts))
    texts = {number: text for number, text in texts.items() if number != 3} | {4: "h rewritten", 31: "a new"}
    move(bank, texts, 1)
    for allowed in ({2, 4, 9, 17, 31}, {4}, {31}, {3}, set(), set(range(1, 40))):
        among = {f"m{number}" for number in allowed} | {"m3", "m99"}
        rest = state_of({number: text for number, text in texts.items() if number in allowed})
        found = bank.search(QUERIES, 4, among)
        if rest:
            check_ranking(found, rest, QUERIES, 4)
        else:
            assert found == [[], [], []]


@pytest.mark.slow
def test_two_stores_on_one_server_do_not_meet(chroma_url: str) -> None:
    one, other = (chroma.ChromaIndex.open(None, chroma_url, namespace) for namespace in ("first store", "second store"))
    mine = open_bank(one, "Ana", state_of(lettered([1, 2, 3])), exact_up_to=0)
    theirs = open_bank(other, "Ana", state_of({1: "h something else"}), exact_up_to=0)
    check_ranking(mine.search(QUERIES, 3), mine.state, QUERIES, 3)
    check_ranking(theirs.search(QUERIES, 3), theirs.state, QUERIES, 3)
    other.drop("Ana")
    check_ranking(mine.search(QUERIES, 3), mine.state, QUERIES, 3)
    assert one.status("Ana") is not None and other.status("Ana") is None
    one.drop("Ana")
    for index in (one, other):
        index.close()
