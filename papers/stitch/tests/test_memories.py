"""Memories with intents: labelled after their sessions, searched by intent, and in step with whatever happens to them."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder
from rule_model import RulePolicy

from deltamem.bank.store import MemoryStore
from deltamem.edits import Add, Retract, Update
from deltamem.errors import ConflictError, DeltaMemError
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.sessions import Turn
from papers.stitch.embedding_labeller import EmbeddingLabeller
from papers.stitch.labeller import Labelled
from papers.stitch.labels import Facet
from papers.stitch.memories import MemoryIntents, by_intent
from papers.stitch.store import MEMORIES, IntentLog

START = datetime(2026, 4, 5, 20, 1)
QUERY = "Which hotel is it on day 2?"
SETTINGS = ManagerSettings(person_name="Ann", retrieval="intent")


class Counting(EmbeddingLabeller):
    """Counts what it labels; may fail."""

    def __init__(self) -> None:
        super().__init__(WordEmbedder())
        self.labelled: list[str] = []
        self.fails = False

    async def label(self, step, history, upcoming):  # type: ignore[no-untyped-def]
        if self.fails:
            raise DeltaMemError("no room today")
        self.labelled.append(step.text)
        return await super().label(step, history, upcoming)


def manager(store: MemoryStore | None = None, labeller: Any = None) -> MemoryManager:
    return MemoryManager(
        store or MemoryStore.in_memory(WordEmbedder()),
        "ann",
        RulePolicy(),
        SETTINGS,
        searcher=partial(by_intent, labeller=labeller),
    )


async def two_days(memory: MemoryManager) -> None:
    said = ["For day 1: my early hotel is Alder.", "For day 2: my late hotel is Birch."]
    for number, text in enumerate(said):
        session = memory.session(f"s{number}", START + timedelta(days=number), [Turn("user", text)])
        assert (await memory.ingest(session)).notes == ()


async def found(memory: MemoryManager, query: str = QUERY, **more: Any) -> list[str]:
    return [hit.memory.text for hit in await memory.search(query, 5, **more)]


async def test_a_memory_is_found_by_what_its_session_was_about() -> None:
    labeller = Counting()
    memory = manager(labeller=labeller)
    await two_days(memory)
    assert labeller.labelled == ["Ann's early hotel is Alder.", "Ann's late hotel is Birch."]
    assert await found(memory) == ["Ann's late hotel is Birch.", "Ann's early hotel is Alder."]
    assert (await found(memory, "Which hotel is it on day 1?"))[0] == "Ann's early hotel is Alder."
    assert labeller.labelled[2:] == []  # each once
    assert memory.searcher is not None
    searched = await memory.searcher.search(QUERY, 5)
    assert searched.reasons[0].startswith("1 of 1 labels: scope day 2; sim")
    # The session is context and is not kept with the intent
    records = IntentLog(memory.owned.journal, MEMORIES).load()
    assert records is not None and [one.step.text for one in records.snippets] == labeller.labelled
    assert all("For day" not in one.step.context + one.resolved + one.summary for one in records.snippets)


async def test_what_happens_to_memories_happens_to_what_is_found() -> None:
    labeller = Counting()
    memory = manager(labeller=labeller)
    await two_days(memory)
    await memory.write([Update("m2", "Ann's late hotel is Cedar."), Add("Ann likes tea.", START, {"topic": "tea"})], "test")
    # The correction was written without a session, so nothing says any more which day it is about
    assert set(await found(memory)) == {"Ann's late hotel is Cedar.", "Ann's early hotel is Alder.", "Ann likes tea."}
    assert await found(memory, filters={"topic": "tea"}) == ["Ann likes tea."]
    assert [hit.memory.id for hit in (await memory.search_many([QUERY], 5, among={"m1"}))[0]] == ["m1"]
    await memory.write([Retract("m3")], "test")
    assert "Ann likes tea." not in await found(memory)
    count = len(labeller.labelled)
    await memory.rollback("s1")
    assert await found(memory) == ["Ann's late hotel is Birch.", "Ann's early hotel is Alder."]
    assert len(labeller.labelled) == count  # its intent was there
    await memory.forget("m2")
    assert await found(memory) == ["Ann's early hotel is Alder."]
    assert IntentLog(memory.owned.journal, MEMORIES).load().snippets[0].step.id.startswith("m1/")  # type: ignore[union-attr]
    await memory.forget_owner()
    assert memory._store.journal.owners() == []


async def test_a_failure_is_a_note_and_is_made_up_for() -> None:
    labeller = Counting()
    memory = manager(labeller=labeller)
    labeller.fails = True
    session = memory.session("s", START, [Turn("user", "For day 2: my hotel is Birch.")])
    transition = await memory.ingest(session)
    assert transition.notes == ("the search is yet to catch up: no room today",) and len(memory.state()) == 1
    with pytest.raises(DeltaMemError, match="no room today"):
        await memory.search(QUERY)
    labeller.fails = False
    assert await found(memory) == ["Ann's hotel is Birch."]


async def test_two_managers_of_one_owner_label_no_memory_twice(tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path, WordEmbedder()) as store:
        first, second = manager(store), manager(store)
        await two_days(first)
        assert await found(second) == await found(first)
        await second.write([Add("Day 2 has a museum.", START)], "test")
        assert await found(second) == await found(first) and len(await found(first)) == 3
        await first.forget("m3")
        assert await found(second) == await found(first) and len(await found(first)) == 2
    with MemoryStore.open(tmp_path, WordEmbedder()) as store:
        labeller = Counting()
        assert (await found(manager(store, labeller)))[0] == "Ann's late hotel is Birch." and labeller.labelled == []


async def test_another_labeller_labels_again_or_is_refused() -> None:
    store = MemoryStore.in_memory(WordEmbedder())
    await two_days(manager(store))
    other = Counting()
    other.name = "other"
    owned = store.bank("ann")
    with pytest.raises(ConflictError, match="labelled by 'embedding-words', not by 'other'"):
        await MemoryIntents(owned, other, WordEmbedder(), "Ann").search(QUERY, 5)
    memory = manager(store, other)
    assert (await found(memory))[0] == "Ann's late hotel is Birch." and len(other.labelled) == 2


async def test_imports_bring_their_intents_along() -> None:
    memory = manager()
    await two_days(memory)
    stream = io.StringIO()
    assert memory.export(stream).plugins == {"stitch": 3}
    labeller = Counting()
    elsewhere = manager(labeller=labeller)
    await elsewhere.import_from(io.StringIO(stream.getvalue()))
    assert await found(elsewhere) == await found(memory) and labeller.labelled == []
    assert IntentLog(elsewhere.owned.journal, MEMORIES).load().versions[-1].change.facet in Facet  # type: ignore[union-attr]


async def test_several_memories_are_forgotten_with_their_intents() -> None:
    memory = manager()
    await two_days(memory)
    await memory.write([Add("Day 2 has a museum.", START)], "test")
    assert len(await found(memory)) == 3
    assert len(await memory.forget_all(["m1", "m2", "m9"])) == 2
    records = IntentLog(memory.owned.journal, MEMORIES).load()
    assert records is not None and [one.step.text for one in records.snippets] == ["Day 2 has a museum."]
    assert await found(memory) == ["Day 2 has a museum."]


async def test_what_is_forgotten_while_its_session_is_labelled_is_written_nowhere(tmp_path: Path) -> None:
    """One memory is forgotten while a search labels it, another one while its neighbour is labelled with its session."""
    with MemoryStore.open(tmp_path, WordEmbedder()) as store:
        plain = MemoryManager(store, "ann", RulePolicy(), ManagerSettings(person_name="Ann"))
        await plain.ingest(plain.session("s", START, [Turn("user", "My secret is Quokka. My hotel is Alder.")]))
        await plain.write([Add("Ann likes tea.", START)], "test")
        forgotten = [memory.id for memory in plain.memories() if "Quokka" in memory.text]
        assert forgotten

        class Forgetting(Counting):
            async def label(self, step, history, upcoming):  # type: ignore[no-untyped-def]
                stamp = history.stamp
                labelled = await super().label(step, history, upcoming)
                if forgotten:
                    await plain.forget(forgotten.pop())
                await history.keep_draft(f"{step.id}/note", f"{step.text} {step.context}", stamp)
                resolved = f"{step.text} {step.context}"
                return Labelled(replace(labelled.snippet, resolved=resolved))

        memory = manager(store, Forgetting())
        texts = await found(memory)
        assert set(texts) == {one.text for one in plain.memories()} and not any("Quokka" in text for text in texts)
        records = IntentLog(memory.owned.journal, MEMORIES).load()
        assert records is not None and len(records.snippets) == len(texts)
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"Quokka" not in written and b"Ann likes tea." in written


async def test_a_manager_of_an_erased_owner_brings_nobody_back() -> None:
    store = MemoryStore.in_memory(WordEmbedder())
    plain = MemoryManager(store, "ann", RulePolicy(), ManagerSettings(person_name="Ann"))
    await two_days(plain)

    class Erasing(Counting):
        async def label(self, step, history, upcoming):  # type: ignore[no-untyped-def]
            if store.journal.owners():
                await plain.forget_owner()
            return await super().label(step, history, upcoming)

    memory = manager(store, Erasing())
    with pytest.raises(DeltaMemError, match="erased"):
        await memory.search(QUERY)
    assert store.journal.owners() == []
