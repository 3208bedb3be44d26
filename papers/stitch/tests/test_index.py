"""The intent index with labels that are known: what is found, why, and what a merge changes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from episode_texts import WordEmbedder
from intent_cases import GOLD, PRICE, QUERIES, STEPS, oracle

from deltamem.errors import ConflictError, DeltaMemError
from deltamem.journal.journal import Journal
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.memory import Memory
from papers.stitch.index import IntentIndex
from papers.stitch.labeller import Labelled, OracleLabeller, Part
from papers.stitch.labels import Facet, LabelChange, LabelSpaces
from papers.stitch.records import Intent, IntentFilter, Snippet, Step
from papers.stitch.store import IntentLog


async def an_index(*without: Part) -> IntentIndex:
    index = IntentIndex(oracle(), WordEmbedder(), without=without)
    assert await index.add(STEPS) == len(STEPS)
    return index


async def test_what_meets_most_constraints_comes_first_whatever_is_more_similar() -> None:
    index = await an_index()
    found = await index.search(PRICE, 4)
    assert found.hits[0].snippet.step.id == "b3"
    assert [hit.density for hit in found.hits] == sorted((hit.density for hit in found.hits), reverse=True)
    best = found.hits[0]
    assert best.met == IntentFilter(("day 2",), ("answer",), ("price",)) and best.density == 3
    said = best.explanation(found.wanted)
    assert said.startswith("3 of 3 labels: scope day 2; event answer; entity price; similarity ")
    assert found.context().startswith("[2026/05/01 08:05] agent: The Birch House costs 120.\n")
    assert found.context(20) == "[2026/05/01 08:05] agent: The Birch House costs 120."
    # Among equals the more similar summary comes first, then the order of the steps
    every = (await index.search(PRICE, 9)).hits
    keys = [(-hit.density, -hit.similarity, STEPS.index(hit.snippet.step)) for hit in every]
    assert keys == sorted(keys) and len(keys) == len(STEPS) and await index.add([*STEPS, STEPS[0]]) == 0
    plain = await index.search("Anything?", 4)
    assert {hit.density for hit in plain.hits} == {0}
    assert plain.hits[0].explanation(plain.wanted).endswith("the query asks for no label")


async def test_labels_that_no_step_has_are_left_out_of_the_filter() -> None:
    index = await an_index()
    found = await index.search("And the weather?", 3)
    assert found.wanted == IntentFilter((), (), ("price",))
    assert {hit.snippet.step.id for hit in found.hits if hit.density} == {"a3", "b3"}


async def test_what_the_oracle_does_not_know_is_one_sentence_and_loses_nothing() -> None:
    index = IntentIndex(oracle(), WordEmbedder())
    strange = Step("x", "user", "Hm.", STEPS[0].time)
    with pytest.raises(DeltaMemError, match=r"^the oracle has no labels of step 'x'$"):
        await index.add([STEPS[0], strange, STEPS[1]])
    assert len(index) == 1 and "a1" in index
    with pytest.raises(DeltaMemError, match="no labels of the question 'Who\\?'"):
        await index.search("Who?")
    assert await index.add(STEPS) == len(STEPS) - 1


@pytest.mark.parametrize("part", list(Part))
async def test_an_ablation_keeps_nothing_of_what_it_leaves_out(part: Part) -> None:
    index = await an_index(part)
    kept = index.latest(len(STEPS))
    if part is Part.COREFERENCE:
        assert all(one.resolved == one.step.text for one in kept)
        changed = {id for id, gold in GOLD.items() if gold.resolved != next(s for s in STEPS if s.id == id).text}
        assert {one.step.id for one in kept if one.summary == one.step.text} >= changed
    else:
        assert index.spaces.labels(Facet(part)) == ()
        others = [facet for facet in Facet if facet != Facet(part)]
        assert all(index.spaces.labels(facet) for facet in others)
        found = await index.search(PRICE, 3)
        assert found.hits[0].density == 2 and found.hits[0].snippet.step.id in ("b3", "a3")


class Merging:
    """The oracle, which merges two labels with the last step."""

    name = "merging"

    def __init__(self, change: LabelChange) -> None:
        self.change = change

    async def label(self, step, history, upcoming):  # type: ignore[no-untyped-def]
        labelled = await oracle().label(step, history, upcoming)
        return Labelled(labelled.snippet, (self.change,) if not upcoming else ())

    async def filter(self, question: str, spaces: LabelSpaces) -> IntentFilter:
        return spaces.known(IntentFilter(("DAY 1",)))


async def test_after_a_merge_old_labels_are_read_as_the_new_one() -> None:
    index = IntentIndex(Merging(LabelChange(Facet.SCOPE, "day 1", "day 2")), WordEmbedder())
    await index.add(STEPS)
    assert index.spaces.labels(Facet.SCOPE) == ("day 2",)
    found = await index.search("day one", 9)
    assert found.wanted.scopes == ("day 2",) and [hit.density for hit in found.hits] == [1] * len(STEPS)
    assert {one.intent.scope for one in index.latest(9)} == {"day 2"}


async def test_a_row_with_both_labels_counts_once_after_their_merge() -> None:
    class Both(Merging):
        async def filter(self, question: str, spaces: LabelSpaces) -> IntentFilter:
            return IntentFilter(entity_types=("price", "hotel"))

    index = IntentIndex(Both(LabelChange(Facet.ENTITY, "price", "hotel")), WordEmbedder())
    await index.add(STEPS)
    found = await index.search("?", 9)
    assert found.wanted.entity_types == ("hotel",) and max(hit.density for hit in found.hits) == 1


def test_label_spaces_refuse_what_makes_no_sense() -> None:
    spaces = LabelSpaces([LabelChange(Facet.EVENT, "ask  price")])
    assert spaces.labels(Facet.EVENT) == ("ask price",) and spaces.current(Facet.EVENT, "Ask Price") == "ask price"
    for change in (
        LabelChange(Facet.EVENT, " "),
        LabelChange(Facet.EVENT, "ASK price"),
        LabelChange(Facet.EVENT, "ask price", "nothing"),
        LabelChange(Facet.EVENT, "nothing", "ask price"),
        LabelChange(Facet.EVENT, "ask price", "Ask price"),
    ):
        with pytest.raises(DeltaMemError, match="event label"):
            spaces.apply(change)
    assert spaces.version == 1 and spaces.current(Facet.SCOPE, "ask price") is None


async def test_the_context_for_coreference_prefers_the_scope() -> None:
    index = await an_index()
    assert [one.step.id for one in index.aligned("day 1", "proposal", 3)] == ["a2", "a3", "a4"]
    assert [one.step.id for one in index.aligned("day 1", "proposal", 5)] == ["a1", "a2", "a3", "b2", "a4"]
    assert index.aligned("", "", 5) == [] and index.aligned("day 1", "opening", 0) == []


async def test_an_empty_index_finds_nothing() -> None:
    index = IntentIndex(oracle(), WordEmbedder())
    assert (await index.search("Who?")).hits == () and await index.add([]) == 0
    await index.add(STEPS)
    assert (await index.search(PRICE, 0)).hits == ()


def test_labels_of_a_snippet_that_are_unknown_are_added_once() -> None:
    spaces = LabelSpaces()
    snippet = Snippet(STEPS[0], Intent("s", "e", ("T", "t ", " ")), "", "")
    assert [change.label for change in spaces.unknown(snippet.intent)] == ["s", "e", "T"]


async def test_a_known_id_with_another_text_is_refused_before_anything_is_labelled() -> None:
    index = await an_index()
    other = Step("a3", "agent", "It costs 95.", STEPS[0].time)
    new = Step("z", "user", "Hm.", STEPS[0].time)
    for steps in ([new, other], [new, Step("z", "user", "Hm?", STEPS[0].time)]):
        with pytest.raises(ConflictError, match=r"step '(a3|z)' was given with another text before"):
            await index.add(steps)
    assert len(index) == len(STEPS)


async def test_a_step_that_is_no_text_is_one_sentence_and_the_others_are_kept() -> None:
    class Any(type(oracle())):  # type: ignore[misc]
        async def label(self, step, history, upcoming):  # type: ignore[no-untyped-def]
            return Labelled(Snippet(step, Intent("s", "e"), step.text, step.text))

    index = IntentIndex(Any({}, {}), WordEmbedder())
    bad = Step("x", "user", "\ud800", STEPS[0].time)
    with pytest.raises(DeltaMemError, match="not valid Unicode"):
        await index.add([STEPS[0], bad])
    assert await index.add([STEPS[0], STEPS[1], Step("nul", "user", "a\x00b", STEPS[0].time)]) == 2
    assert index.latest(1)[0].step.text == "a\x00b"


async def test_an_index_of_two_writers_has_each_step_once(tmp_path: Path) -> None:
    """Two processes label the same trajectory; one of them falls behind, and goes on after what the other one wrote."""
    with Journal.open(tmp_path / "j") as first, Journal.open(tmp_path / "j") as second:

        class Overtaken(OracleLabeller):
            async def label(self, step, history, upcoming):  # type: ignore[no-untyped-def]
                labelled = await super().label(step, history, upcoming)
                if step.id == "b1" and len(history) == 3:
                    assert await other.add(STEPS[:6]) == 3
                return labelled

        other = IntentIndex(oracle(), WordEmbedder(), IntentLog(second.owner("ann"), "steps"))
        index = IntentIndex(Overtaken(GOLD, QUERIES), WordEmbedder(), IntentLog(first.owner("ann"), "steps"))
        await index.add(STEPS)
        other.refresh()
        assert [one.step.id for one in index.latest(9)] == [step.id for step in STEPS] and other.latest(9) == index.latest(9)


async def test_a_search_during_which_something_is_forgotten_ranks_what_is_left() -> None:
    """While the query is embedded the index is read again: rows and vectors must be of the same reading."""
    ann = Journal.open(None).owner("ann")
    memory = Memory("m1", STEPS[0].text, STEPS[0].time)
    ann.append(EntryKind.EDIT, [Change(ChangeEvent.ADD, "m1", None, memory, ())], actor="test")

    class Waiting(WordEmbedder):
        wait = False

        def queries(self, texts):  # type: ignore[no-untyped-def]
            if self.wait and texts:
                asked.set()
                assert go_on.wait(60)
            return super().queries(texts)

    asked, go_on = threading.Event(), threading.Event()
    embedder = Waiting()
    index = IntentIndex(OracleLabeller(GOLD, {"It costs 120.": IntentFilter()}), embedder, IntentLog(ann, "turns"))
    await index.add(STEPS)
    await index.search("It costs 120.")
    embedder.wait = True
    search = asyncio.create_task(index.search("It costs 120.", 9))
    await asyncio.to_thread(asked.wait)
    ann.forget("m1")
    index.refresh()
    embedder.wait = False
    go_on.set()
    hits = (await search).hits
    assert hits == (await index.search("It costs 120.", 9)).hits and len(hits) == len(STEPS) - 1


@pytest.mark.parametrize(
    ("first", "second"), [("Café", "cafe\u0301"), ("day\n 1", "DAY 1"), ("ﬁsh", "fish"), ("Straße", "STRASSE")]
)
def test_labels_that_look_the_same_are_the_same(first: str, second: str) -> None:
    spaces = LabelSpaces([LabelChange(Facet.SCOPE, first)])
    assert spaces.current(Facet.SCOPE, second) == " ".join(first.split())


@pytest.mark.parametrize("label", ["", " \n", "\u200b", "\x00", "\u200b \u2060"])
def test_a_label_that_shows_nothing_is_none(label: str) -> None:
    spaces = LabelSpaces()
    assert spaces.unknown(Intent(label, label, (label,))) == [] and spaces.current(Facet.SCOPE, label) is None
    with pytest.raises(DeltaMemError, match="empty"):
        spaces.apply(LabelChange(Facet.SCOPE, label))
