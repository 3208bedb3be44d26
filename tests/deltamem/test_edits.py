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
from deltamem.filters import FilterError
from deltamem.ingest import Outcome
from deltamem.journal.records import ChangeEvent, EntryKind
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.memory import Memory, MemoryState, Metadata, fresh_ids
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
    names = memory.journal.uuids()
    await memory.write([Update(str(names["m1"]), "Ann dives."), Retract(str(names["m2"]))], "ann")
    assert texts(memory.state()) == {"m1": "Ann dives."} and memory.journal.uuids() == names
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
        ([Add("Ann reads.", START, {"a": {}})], "ann", "'a' must be a text"),
        ([Update("m1", metadata={"a": [1]})], "ann", "'a' must be a text"),
    ],
)
async def test_a_refused_write_changes_nothing(edits: list[Edit], actor: str, sentence: str) -> None:
    memory = manager()
    await memory.ingest(said(memory, "s1", "My city is Boston."))
    before, hits = memory.state(), await memory.search("Boston")
    with pytest.raises(DeltaMemError, match=sentence):
        await memory.write(edits, actor)
    assert memory.state() == before and await memory.search("Boston") == hits
    assert memory.owned.journal.head == 1
    assert (await memory.ingest(said(memory, "s2", "My dog is Rex."))).outcome is Outcome.APPLIED


async def test_what_was_retracted_does_not_come_back_from_a_quote() -> None:
    memory = manager()
    await memory.write([Add("Ann's city is Boston.", START)], "ann")
    done = await memory.ingest(said(memory, "s0", "My city is Denver."))
    assert [change.event for change in done.changes] == [ChangeEvent.UPDATE], "sessions go on from what was written"
    await memory.rollback(1)
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
        secret = {"zanzibar-key": ["zanzibar-value"]}
        await memory.write([Add("Ann knows Zanzibar-Canary.", START, secret), Add("Ann runs.", START)], "ann")
        await memory.write([Update("m1", "Ann forgot zanzibar-canary.", metadata={"n": "zanzibar"}), Retract("m2")], "ann")
        await memory.write([Retract("m1"), Add("Ann reads.", LATER, {"kept-key": "kept-value"})], "ann")
    with MemoryStore.open(tmp_path / "one", WordEmbedder()) as store:
        memory = MemoryManager(store, "ann", RulePolicy())
        assert texts(memory.state()) == {"m3": "Ann reads."}
        assert [hit.memory.id for hit in await memory.search("Ann")] == ["m3"]
        await memory.forget("m1")
        memory.export(stream)
    files = {path: path.read_bytes() for path in (tmp_path / "one").rglob("*") if path.is_file()}
    held = b"".join(files.values())
    assert b"Ann reads" in held and b"kept-value" in held and b"zanzibar" not in held.lower()
    index = b"".join(content for path, content in files.items() if "index" in path.parts)
    assert index and b"Ann reads" not in index and b"kept" not in index, "the index holds neither text nor metadata"
    stream.seek(0)
    with MemoryStore.open(tmp_path / "two", WordEmbedder()) as store:
        copy = MemoryManager(store, "ann", RulePolicy())
        await copy.import_from(stream)
        assert texts(copy.state()) == {"m3": "Ann reads."} and copy.owned.journal.verify() == []


async def test_metadata_goes_where_the_memory_goes() -> None:
    memory = manager()
    await memory.write([Add("Ann swims.", START, {"topic": "sport", "tags": ["a"]}), Add("Ann runs.", START)], "ann")
    assert memory.state()["m1"].metadata == {"topic": "sport", "tags": ("a",)} and not memory.state()["m2"].metadata
    await memory.write([Update("m1", "Ann dives.")], "ann")
    assert memory.state()["m1"].metadata["topic"] == "sport", "another wording keeps it"
    entry = await memory.write([Update("m1", metadata={"topic": "fun"}), Update("m2", metadata={})], "ann")
    assert [change.event for change in entry.changes] == ["UPDATE", "NONE"]
    assert memory.state()["m1"] == Memory("m1", "Ann dives.", START, Metadata({"topic": "fun"}))
    assert [(old.metadata, new.metadata) for old, new in memory.diff(2).changed] == [
        ({"topic": "sport", "tags": ("a",)}, {"topic": "fun"})
    ]
    assert [origin.metadata.get("topic") for origin in memory.blame("m1")] == ["sport", "sport", "fun"]
    assert [step.change.after and step.change.after.metadata.get("topic") for step in memory.history("m1")][-1] == "fun"
    await memory.rollback(1)
    assert memory.state()["m1"].metadata["topic"] == "sport"
    await memory.write([Retract("m1")], "ann")
    await memory.rollback(4)
    assert memory.state()["m1"].metadata["topic"] == "sport" and memory.owned.journal.verify() == []
    stream = io.StringIO()
    memory.export(stream)
    stream.seek(0)
    copy = manager()
    await copy.import_from(stream)
    assert copy.state() == memory.state() and copy.blame("m1") == memory.blame("m1")
    assert copy.owned.journal.verify() == []


async def test_a_session_gives_its_metadata_to_what_it_writes() -> None:
    memory = manager()
    turns = [Turn("user", "My city is Boston."), Turn("user", "My dog is Rex.")]
    session = memory.session("s1", START, turns, {"agent": "a", "run": 1})
    await memory.ingest(session)
    assert {known.metadata.written for known in memory.state().memories} == {'{"agent": "a", "run": 1}'}
    turns = [Turn("user", "My city is Denver."), Turn("user", "My dog is Rex.")]
    await memory.ingest(memory.session("s2", LATER, turns, {"agent": "b"}))
    assert memory.state()["m1"].metadata == {"agent": "b", "run": 1}, "the keys of who wrote last"
    assert memory.state()["m2"].metadata == {"agent": "a", "run": 1}, "what is repeated stays"
    await memory.ingest(said(memory, "s3", "My city is Boulder.", day=3))
    assert memory.state()["m1"].metadata == {"agent": "b", "run": 1}, "a session without any changes none"
    again = await memory.ingest(memory.session("s1", START, session.dialogue, {"agent": "c"}))
    assert again.outcome is Outcome.KNOWN and "other content" in again.notes[0]
    assert not (await memory.ingest(session)).notes


async def test_search_and_listing_are_filtered() -> None:
    memory = manager()
    edits = [Add(f"Ann likes tea {number}.", START, {"n": number, "kind": "ab"[number % 2]}) for number in range(12)]
    await memory.write(edits, "ann")
    assert len(await memory.search("tea", 20)) == 12
    hits = await memory.search("tea 3", 20, {"kind": "b", "n": {"lt": 6}})
    assert hits[0].memory.id == "m4" and {hit.memory.id for hit in hits} == {"m2", "m4", "m6"}
    assert [len(found) for found in await memory.search_many(["tea", "Ann"], 2, {"n": {"gte": 5}})] == [2, 2]
    assert await memory.search("tea", 5, {"n": 99}) == []
    await memory.write([Update("m4", metadata={"kind": "a"})], "ann")
    assert {hit.memory.id for hit in await memory.search("tea 3", 20, {"kind": "b", "n": {"lt": 6}})} == {"m2", "m6"}
    listed = memory.memories({"kind": "a"}, limit=3)
    assert [known.id for known in listed] == ["m1", "m3", "m4"]
    await memory.write([Retract("m4")], "ann")
    assert [known.id for known in memory.memories({"kind": "a"}, after="m4", limit=3)] == ["m5", "m7", "m9"]
    assert [known.id for known in memory.memories(after=str(memory.journal.uuids()["m10"]))] == ["m11", "m12"]
    assert [known.id for known in memory.memories({"n": 3}, point=1)] == ["m4"] and len(memory.memories(point=0)) == 0
    with pytest.raises(FilterError, match="no operator"):
        await memory.search("tea", 5, {"n": {"like": 1}})
    with pytest.raises(FilterError):
        memory.memories({"n": {}})
    with pytest.raises(DeltaMemError, match="not the id of a memory"):
        memory.memories(after="tea")
