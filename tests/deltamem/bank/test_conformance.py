"""What every memory bank must do, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from bank_cases import (
    DIM,
    HashEmbedder,
    check_ranking,
    ids,
    lettered,
    move,
    needed,
    next_texts,
    open_bank,
    oracle,
    state_of,
    vectors_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lazy_module import Lazy

from deltamem.bank.base import MemoryBank, OverlayBank, SnapshotBank
from deltamem.memory import MemoryState

chroma = Lazy("deltamem.bank.chroma")

Make = Callable[[str, MemoryState], MemoryBank]
QUERIES = vectors_of(["a query", "b query", "c query"])


def _of_index(index: chroma.ChromaIndex, owners: list[str], exact_up_to: int = 0) -> Make:
    def make(owner: str, state: MemoryState) -> MemoryBank:
        owners.append(owner)
        return open_bank(index, owner, state, 0, flush_every=4, exact_up_to=exact_up_to)

    return make


@pytest.fixture(params=["snapshot", "overlay", "chroma", "chroma, copy in memory", "chroma server"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    if request.param == "snapshot":
        yield lambda owner, state: SnapshotBank.build(owner, state, HashEmbedder())
        return
    if request.param == "overlay":
        yield lambda owner, state: OverlayBank(SnapshotBank.build(owner, state, HashEmbedder()))
        return
    owners: list[str] = []
    if request.param == "chroma server":
        index = chroma.ChromaIndex.open(None, request.getfixturevalue("chroma_url"))
    else:
        index = chroma.ChromaIndex.open(tmp_path / "index")
    # 20 is crossed by some of the tests, so that the step from memory to Chroma is seen too.
    yield _of_index(index, owners, exact_up_to=20 if "copy in memory" in request.param else 0)
    for owner in owners:
        index.drop(owner)
    index.close()


def test_is_bound_to_its_owner_and_keeps_its_state(make: Make) -> None:
    state = state_of(lettered([1, 2, 3]))
    bank = make("Ana", state)
    assert isinstance(bank, MemoryBank)
    assert (bank.owner, bank.position, bank.state) == ("Ana", 0, state)


def test_finds_the_most_similar_with_their_similarity(make: Make) -> None:
    bank = make("Ana", state_of(lettered(range(1, 40))))
    found = bank.search(QUERIES, 5)
    assert ids(found) == oracle(bank.state, QUERIES, 5)
    for query, ranking in zip(QUERIES, found, strict=True):
        for memory, similarity in ranking:
            assert memory is bank.state[memory.id] or memory == bank.state[memory.id]
            assert similarity == pytest.approx(float(query @ vectors_of([memory.text])[0]), abs=1e-5)


def test_equal_similarities_keep_the_order_of_the_state(make: Make) -> None:
    bank = make("Ana", state_of({3: "a same", 5: "b other", 12: "a same", 7: "a same"}))
    assert ids(bank.search(vectors_of(["a same"]), 2)) == [["m3", "m7"]]
    move(bank, {3: "b changed", 5: "a same", 7: "a same", 9: "a same", 12: "a same"}, 1)
    assert ids(bank.search(vectors_of(["a same"]), 3)) == [["m5", "m7", "m9"]]


def test_asking_for_more_than_there_is(make: Make) -> None:
    bank = make("Ana", state_of(lettered([1, 2, 3])))
    assert ids(bank.search(QUERIES, 99)) == oracle(bank.state, QUERIES, 99)
    assert [len(ranking) for ranking in bank.search(QUERIES, 99)] == [3, 3, 3]


def test_nothing_to_search_or_to_ask(make: Make) -> None:
    bank = make("Ana", MemoryState())
    assert bank.search(QUERIES, 5) == [[], [], []]
    move(bank, {1: "a first"}, 1)
    assert ids(bank.search(QUERIES, 5)) == [["m1"]] * 3
    # An embedder that got no texts does not know how long its vectors are.
    assert bank.search(np.zeros((0, 0), dtype=np.float32), 5) == []
    assert bank.search(np.zeros((0, DIM), dtype=np.float32), 5) == []
    move(bank, {}, 2)
    assert bank.search(QUERIES, 5) == [[], [], []]


def test_what_is_removed_or_rewritten_is_not_found_as_it_was(make: Make) -> None:
    bank = make("Ana", state_of({1: "a one", 2: "a two", 3: "b three"}))
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
    bank = make("Ana", before)
    after = state_of({1: "a changed", 2: "b two", 3: "c three"})
    vectors = needed(bank, after)
    with pytest.raises(ValueError, match=r"'m3'.*no vector"):
        bank.update(after, {"m1": vectors["m1"]}, 1)
    with pytest.raises(ValueError, match=r"'m3'.*shape"):
        bank.update(after, {**vectors, "m3": vectors["m3"][:5]}, 1)
    assert (bank.state, bank.position) == (before, 0)
    assert ids(bank.search(QUERIES, 5)) == oracle(before, QUERIES, 5)


def test_vectors_come_in_the_order_asked_for(make: Make) -> None:
    bank = make("Ana", state_of({1: "a one", 2: "b two", 3: "c three"}))
    move(bank, {1: "a one", 2: "d changed", 4: "e four"}, 1)
    np.testing.assert_array_equal(bank.vectors(["m4", "m1", "m2"]), vectors_of(["e four", "a one", "d changed"]))
    for unknown in ("m3", "m9"):
        with pytest.raises(KeyError):
            bank.vectors([unknown])


def test_owners_do_not_see_each_other(make: Make) -> None:
    # Names that a careless mapping to file or collection names would mix up.
    names = ["Ana", "ana", "Ana ", "../Ana", "Än\u0430", "x" * 600]
    banks = [make(name, state_of({1: f"a secret of {number}"})) for number, name in enumerate(names)]
    for number, bank in enumerate(banks):
        move(bank, {1: f"a secret of {number}", 2: f"a canary of {number}"}, 1)
    for number, bank in enumerate(banks):
        texts = {hit.memory.text for ranking in bank.search(QUERIES, 10) for hit in ranking}
        assert texts == {f"a secret of {number}", f"a canary of {number}"}


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_agrees_with_plain_sorting_after_any_updates(make: Make, seed: int, k: int) -> None:
    random = np.random.default_rng(seed)
    texts = lettered(range(1, int(random.integers(1, 30))))
    bank = make(f"owner {uuid4()}", state_of(texts))
    for step in range(1, 7):
        texts = next_texts(random, texts, step * 10)
        move(bank, texts, step)
        queries = vectors_of([f"{random.choice(list('abcdefgh'))} asked {step} {i}" for i in range(3)])
        check_ranking(bank.search(queries, k), state_of(texts), queries, k, may_miss=isinstance(bank, chroma.ChromaBank))
        assert (bank.position, bank.state) == (step, state_of(texts))


def test_most_of_what_exact_search_finds_in_a_larger_bank(make: Make) -> None:
    texts = lettered(range(1, 2001))
    bank = make("Ana", state_of(texts))
    for number in range(5, 400, 5):
        texts[number] = f"h rewritten {number}"
    move(bank, texts, 1)
    del texts[7], texts[5]
    texts[2001] = "c late"
    move(bank, texts, 2)
    queries = vectors_of([f"{letter} asked {number}" for letter in "abcdefgh" for number in range(25)])
    pairs = zip(ids(bank.search(queries, 5)), oracle(bank.state, queries, 5), strict=True)
    recall = float(np.mean([len({*found} & {*expected}) / 5 for found, expected in pairs]))
    assert recall == 1.0 if isinstance(bank, SnapshotBank | OverlayBank) else recall >= 0.99


def test_only_what_is_allowed_is_found(make: Make) -> None:
    texts = lettered(range(1, 31))
    bank = make("Ana", state_of(texts))
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


def test_most_is_found_among_half_of_a_larger_bank(make: Make) -> None:
    texts = lettered(range(1, 2501))
    bank = make("Ana", state_of(texts))
    chosen = state_of({number: text for number, text in texts.items() if number % 2})
    queries = vectors_of([f"{letter} asked {number}" for letter in "abcdefgh" for number in range(10)])
    found = ids(bank.search(queries, 5, chosen.keys()))
    recall = float(
        np.mean([len({*one} & {*other}) / 5 for one, other in zip(found, oracle(chosen, queries, 5), strict=True)])
    )
    assert all(set(one) <= chosen.keys() for one in found)
    assert recall == 1.0 if isinstance(bank, SnapshotBank | OverlayBank) else recall >= 0.99


def test_two_stores_on_one_server_do_not_meet(chroma_url: str) -> None:
    one, other = (chroma.ChromaIndex.open(None, chroma_url, namespace) for namespace in ("first store", "second store"))
    mine = _of_index(one, [])("Ana", state_of(lettered([1, 2, 3])))
    theirs = _of_index(other, [])("Ana", state_of({1: "h something else"}))
    check_ranking(mine.search(QUERIES, 3), mine.state, QUERIES, 3)
    check_ranking(theirs.search(QUERIES, 3), theirs.state, QUERIES, 3)
    other.drop("Ana")
    check_ranking(mine.search(QUERIES, 3), mine.state, QUERIES, 3)
    assert one.status("Ana") is not None and other.status("Ana") is None
    one.drop("Ana")
    for index in (one, other):
        index.close()
