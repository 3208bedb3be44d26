"""Labels without a model: scopes that are named, lost and found again, events, nouns; the same labels after a restart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from episode_texts import WordEmbedder

from deltamem.embedding import Vectors
from deltamem.journal.journal import Journal
from papers.stitch.embedding_labeller import EmbeddingLabeller
from papers.stitch.index import IntentIndex
from papers.stitch.labels import Facet
from papers.stitch.records import IntentFilter, Step
from papers.stitch.store import IntentLog

BEGIN = datetime(2026, 5, 1, 8)
TRIP = [
    ("Now day 1.", "day 1"),
    ("What about the Alder Inn for the night?", "day 1"),
    ("It has a quiet garden.", "day 1"),
    ("Shall we go on with day 2?", "day 2"),
    ("What about the Birch House, and lunch near the garden?", "day 2"),
    ("And the second hotel named on day 1 might do for the night.", "day 2"),
    ("The garden costs 20 to see.", "day 2"),
    ("Back to day 1, we take the Alder Inn for the night.", "day 1"),
    ("Fine.", "day 1"),
    ("Let me speak to the case for wider roads: they are too narrow.", "case for wider roads"),
    ("On day 2: we have no hotel for the night yet.", "day 2"),
    ("As to the roads, the case is strong for wider ones.", "case for wider roads"),
]


def steps(said: list[str], first: int = 0) -> list[Step]:
    return [Step(f"s{n}", "Ann", text, BEGIN + timedelta(minutes=n)) for n, text in enumerate(said, start=first)]


async def labelled(said: list[str]) -> IntentIndex:
    embedder = WordEmbedder()
    index = IntentIndex(EmbeddingLabeller(embedder), embedder)
    await index.add(steps(said))
    return index


async def test_a_scope_lasts_until_another_is_named_and_may_come_back() -> None:
    index = await labelled([text for text, _ in TRIP])
    assert [one.intent.scope for one in index.latest(99)] == [scope for _, scope in TRIP]


async def test_a_question_asks_for_the_scopes_events_and_nouns_that_it_names() -> None:
    index = await labelled([text for text, _ in TRIP])
    found = await index.search("Which hotel did we decide on for the night of day 1?", 3)
    assert found.wanted.scopes == ("day 1",) and "decide" in found.wanted.events
    assert "night" in found.wanted.entity_types and "garden" not in found.wanted.entity_types
    assert found.hits[0].snippet.intent.scope == "day 1"
    ranged = await index.search("What happens from day 1 to day 2?", 3)
    assert set(ranged.wanted.scopes) == {"day 1", "day 2"}
    roads = await index.search("Who was against wider roads, in this case?", 3)
    assert roads.wanted.scopes == ("case for wider roads",)
    assert (await index.search("Hm?", 3)).wanted == IntentFilter()


async def test_a_pronoun_is_followed_by_the_last_name_of_the_scope() -> None:
    index = await labelled([text for text, _ in TRIP])
    resolved = [one.resolved for one in index.latest(99)]
    assert resolved[2] == "It [Alder Inn] has a quiet garden."
    assert resolved[1] == TRIP[1][0] and resolved[6] == TRIP[6][0]


async def test_without_numbers_or_names_what_is_unlike_begins_a_scope_and_what_is_alike_goes_back() -> None:
    red, blue = "red apple pie cream sugar crust", "blue engine piston valve oil gasket"
    index = await labelled([red, red, blue, blue, red])
    scopes = [one.intent.scope for one in index.latest(9)]
    assert scopes[0] == scopes[1] == scopes[4] != scopes[2] == scopes[3]


async def test_what_was_labelled_in_two_runs_has_the_labels_of_one(tmp_path: Path) -> None:
    said = [text for text, _ in TRIP] * 6
    whole = await labelled(said)
    for cut in (1, 50, 51):
        embedder = WordEmbedder()
        path = tmp_path / f"j{cut}"
        for part in (steps(said[:cut]), steps(said)):
            with Journal.open(path) as journal:
                index = IntentIndex(EmbeddingLabeller(embedder), embedder, IntentLog(journal.owner("ann"), "steps"))
                await index.add(part)
        assert [index.spaces.labels(facet) for facet in Facet] == [whole.spaces.labels(facet) for facet in Facet]
        assert index.latest(99) == whole.latest(99) and index.spaces.version == whole.spaces.version


class Angles:
    """The letters z of a text are the degrees of its vector; texts without one are far from all of those."""

    name = "angles"

    def documents(self, texts: Sequence[str]) -> Vectors:
        turned = [math.radians(text.count("z")) for text in texts]
        rows = [[math.cos(a), math.sin(a), 0] if "z" in text else [0, 0, 1] for a, text in zip(turned, texts, strict=True)]
        return np.array(rows, dtype=np.float32).reshape(len(texts), 3)

    queries = documents


async def test_events_that_have_become_the_same_are_merged_and_that_is_recorded() -> None:
    index = IntentIndex(EmbeddingLabeller(Angles()), Angles())
    other = [70]
    said = ["z" * 1, "z" * 70]
    while len(said) < 50:  # always a little nearer to the second event than to the first
        mean = sum(other[-20:]) / len(other[-20:])
        other.append(round(mean / 2 + 2))
        said.append("z" * other[-1])
    await index.add(steps(said))
    first, second = said[:2]
    assert {one.intent.event for one in index.latest(50)} == {first, second}
    version = index.spaces.version
    await index.add(steps(["z" * 3], first=50))
    assert index.spaces.version == version + 1 and index.spaces.current(Facet.EVENT, second) == first
    assert {one.intent.event for one in index.latest(51)} == {first}


async def test_common_words_are_no_entity_types() -> None:
    said = ["the cat sat", "the cat ran", "the cat hid", "the cat ate", "nothing here"] * 5
    index = await labelled(said)
    assert index.spaces.labels(Facet.ENTITY) == () or index.latest(1)[0].intent.entity_types == ()


@pytest.mark.parametrize("text", ["", "   ", "…", "a" * 5000, "日本語だけ。", "1 2 3", "\n\n", "On :", "It"])
async def test_odd_texts_are_labelled_all_the_same(text: str) -> None:
    index = await labelled(["Let us turn to day 1.", text, text])
    assert len(index) == 3 and all(one.intent.event for one in index.latest(3))
    assert (await index.search(text or "?", 2)).hits


async def test_what_another_process_labelled_meanwhile_is_learned_from(tmp_path: Path) -> None:
    said = [text for text, _ in TRIP]
    with Journal.open(tmp_path / "j") as first, Journal.open(tmp_path / "j") as second:
        mine, theirs = (
            IntentIndex(EmbeddingLabeller(WordEmbedder()), WordEmbedder(), IntentLog(one.owner("ann"), "steps"))
            for one in (first, second)
        )
        await mine.add(steps(said[:1]))
        await theirs.add(steps(said[:9]))
        await mine.add(steps(said))
        assert mine.latest(99) == (await labelled(said)).latest(99)


async def test_one_labeller_for_two_trajectories_mixes_nothing() -> None:
    labeller = EmbeddingLabeller(WordEmbedder())
    first, second = (IntentIndex(labeller, WordEmbedder()) for _ in range(2))
    other = [text.replace("day", "week").replace("garden", "harbour") for text, _ in TRIP]
    for begin in range(0, 36, 4):
        await first.add(steps(([text for text, _ in TRIP] * 3)[begin : begin + 4], begin))
        await second.add(steps((other * 3)[begin : begin + 4], begin))
    assert second.latest(99) == (await labelled(other * 3)).latest(99)


async def test_a_label_is_never_longer_than_a_line() -> None:
    for said in ("Let us turn to " + "very " * 4 + "x" * 9_000, "y" * 9_000):
        index = await labelled(["Hm hm hm.", said, said])
        assert all(len(label) <= 80 for facet in Facet for label in index.spaces.labels(facet))
