"""Writing without a model: what an edit does to state, journal, bank and search, and what is refused."""

import io
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from episode_texts import WordEmbedder, add, outputs
from rule_model import RulePolicy
from test_manager import Fixed, manager, said, texts

from deltamem.bank.store import MemoryStore
from deltamem.edits import Add, Edit, Retract, Update, take_edits
from deltamem.errors import DeltaMemError
from deltamem.ingest import Outcome
from deltamem.journal.records import ChangeEvent, EntryKind
from deltamem.manager import ManagerSettings, MemoryManager, SyncMemoryManager
from deltamem.memory import Memory, MemoryState, fresh_ids
from deltamem.sessions import Turn

START = datetime(2026, 4, 5, 20, 1)
LATER = START + timedelta(days=1)


def test_edits_are_applied_in_order() -> None:
    state = MemoryState([Memory("m1", "Ann swims.", START), Memory("m2", "Ann runs.", START)])
    edits: list[Edit] = [
        Update("m1", "Ann dives."),
        Retract("m2"),
        Add("Ann reads.", LATER),
        Update("m1", time=LATER),
        Update("m1", "Ann dives.", LATER),
    ]
    after, changes = take_edits(state, edits, fresh_ids(state))
    assert [*after.values()] == [Memory("m1", "Ann dives.", LATER), Memory("m3", "Ann reads.", LATER)]
    assert [change.event for change in changes] == ["UPDATE", "REMOVE", "ADD", "UPDATE", "NONE"]
    assert changes[0].after == changes[3].before == Memory("m1", "Ann dives.", START)
    assert texts(state) == {"m1": "Ann swims.", "m2": "Ann runs."}


async def test_what_is_written_is_found_and_what_is_retracted_is_not() -> None:
    memory = manager()
    await memory.ingest(said(memory, "s1", "My city is Boston."))
    entry = await memory.write([Add("Ann's dog is Rex.", LATER), Update("m1", "Ann's city is Denver.")], "ann")
    assert (entry.kind, entry.actor, entry.position) == (EntryKind.EDIT, "ann", 2)
    assert [(change.event, change.memory_id) for change in entry.changes] == [("ADD", "m2"), ("UPDATE", "m1")]
    assert texts(memory.state()) == {"m1": "Ann's city is Denver.", "m2": "Ann's dog is Rex."}
    assert memory.state()["m1"].time == START, "another wording is as old as the fact"
    assert [hit.memory.id for hit in await memory.search("dog Rex", 1)] == ["m2"]
    assert [origin.actor for origin in memory.blame("m1")] == [None, "ann"]
    await memory.write([Retract("m2")], "ann")
    assert [hit.memory.id for hit in await memory.search("dog Rex", 5)] == ["m1"]
    assert [step.change.event for step in memory.history("m2")] == ["ADD", "REMOVE"]
    await memory.rollback(2)
    assert [hit.memory.id for hit in await memory.search("dog Rex", 1)] == ["m2"]


async def test_a_memory_can_be_named_by_its_uuid() -> None:
    memory = manager()
    await memory.write([Add("Ann swims.", START), Add("Ann runs.", START)], "ann")
    names = memory.uuids()
    await memory.write([Update(str(names["m1"]), "Ann dives."), Retract(str(names["m2"]))], "ann")
    assert texts(memory.state()) == {"m1": "Ann dives."} and memory.uuids() == names
    await memory.forget(str(names["m2"]))
    assert all(step.change.erased for step in memory.history(str(names["m2"])))
    with pytest.raises(DeltaMemError, match="no memory"):
        await memory.write([Retract(str(names["m2"]))], "ann")


@pytest.mark.parametrize(
    ("edits", "actor", "sentence"),
    [
        ([], "ann", "no edit was given"),
        ([Add("Ann reads.", START)], "", "the actor is empty"),
        ([Add("Ann reads.", START), Add(" \n", START)], "ann", "text of a memory is empty"),
        ([Add("Ann reads.", START), Update("m1", "")], "ann", "text of a memory is empty"),
        ([Add("Ann reads.", START), Update("m9", "x")], "ann", "no memory 'm9' now"),
        ([Retract("m1"), Update("m1", "x")], "ann", "no memory 'm1' now"),
        ([Retract("m1"), Retract("m1")], "ann", "no memory 'm1' now"),
        ([Add("Ann reads.", START), Add("\ud800", START)], "ann", "not valid Unicode"),
        ([Add("Ann reads.", START)], "\ud800", "not valid Unicode"),
    ],
)
async def test_a_refused_write_changes_nothing(edits: list[Edit], actor: str, sentence: str) -> None:
    memory = manager()
    await memory.ingest(said(memory, "s1", "My city is Boston."))
    before, hits = memory.state(), await memory.search("Boston")
    with pytest.raises(DeltaMemError, match=sentence):
        await memory.write(edits, actor)
    assert memory.state() == before and await memory.search("Boston") == hits
    assert memory._owned.journal.head == 1
    assert (await memory.ingest(said(memory, "s2", "My dog is Rex."))).outcome is Outcome.APPLIED


async def test_sessions_go_on_from_what_was_written() -> None:
    memory = manager()
    await memory.write([Add("Ann's city is Boston.", START)], "ann")
    done = await memory.ingest(said(memory, "s1", "My city is Denver.", day=1))
    assert [change.event for change in done.changes] == [ChangeEvent.UPDATE]
    assert texts(memory.state()) == {"m1": "Ann's city is Denver."}


async def test_what_was_retracted_does_not_come_back_from_a_quote() -> None:
    memory = manager()
    await memory.write([Add("Ann's city is Boston.", START)], "ann")
    await memory.write([Retract("m1")], "ann")
    quoting = MemoryManager(memory._store, "ann", Fixed(outputs(add("Ann's city is Boston."))), memory.settings)
    turns = [Turn("user", "What do you know?"), Turn("assistant", "- Ann's city is Boston.")]
    done = await quoting.ingest(quoting.session("s1", LATER, turns))
    assert not memory.state() and done.violations == {"recalled_text": 1}
    await quoting.ingest(quoting.session("s2", LATER, [Turn("user", "My city is Boston again.")]))
    assert texts(memory.state()) == {"m2": "Ann's city is Boston."}


async def test_an_edited_bank_survives_closing_export_and_erasure(tmp_path: Path) -> None:
    stream = io.StringIO()
    with MemoryStore.open(tmp_path / "one", WordEmbedder()) as store:
        memory = MemoryManager(store, "ann", RulePolicy(), ManagerSettings(person_name="Ann"))
        await memory.write([Add("Ann knows Zanzibar-Canary.", START), Add("Ann runs.", START)], "ann")
        await memory.write([Update("m1", "Ann forgot zanzibar-canary."), Retract("m2")], "ann")
        await memory.write([Retract("m1"), Add("Ann reads.", LATER)], "ann")
    with MemoryStore.open(tmp_path / "one", WordEmbedder()) as store:
        memory = MemoryManager(store, "ann", RulePolicy())
        assert texts(memory.state()) == {"m3": "Ann reads."}
        assert [hit.memory.id for hit in await memory.search("Ann")] == ["m3"]
        await memory.forget("m1")
        memory.export(stream)
    held = b"".join(path.read_bytes() for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert b"Ann reads" in held and b"zanzibar" not in held.lower()
    stream.seek(0)
    with MemoryStore.open(tmp_path / "two", WordEmbedder()) as store:
        copy = MemoryManager(store, "ann", RulePolicy())
        await copy.import_from(stream)
        assert texts(copy.state()) == {"m3": "Ann reads."} and copy._owned.journal.verify() == []


def test_the_sync_face_writes_too() -> None:
    store = MemoryStore.in_memory(WordEmbedder())
    with SyncMemoryManager(lambda: MemoryManager(store, "ann", RulePolicy())) as memory:
        memory.write([Add("Ann reads.", START)], "ann")
        assert texts(memory.state()) == {"m1": "Ann reads."}
