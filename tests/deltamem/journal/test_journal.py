"""The journal: what it records, answers, refuses and erases."""

import hashlib
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from deltamem.errors import DeltaMemError
from deltamem.journal import rows as database
from deltamem.journal.journal import Journal
from deltamem.journal.owner import OwnerJournal, SessionKnownError, StaleJournalError
from deltamem.journal.records import Change, ChangeEvent, Entry, EntryKind, digest_of
from deltamem.memory import Memory, MemoryState
from deltamem.sessions import Session, Turn

START = datetime(2026, 4, 5, 20, 1)
CANARY = "Zanzibar-Canary"


def day(number: int) -> datetime:
    return START + timedelta(days=number)


def session(number: int, *contents: str, time: datetime | None = None) -> Session:
    turns = tuple(Turn("user", content) for content in contents or (f"turn of session {number}",))
    return Session("ann", "Ann", time or day(number), turns, id=f"s{number}")


def add(number: int, text: str, time: datetime = START, turns: tuple[int, ...] = ()) -> Change:
    return Change(ChangeEvent.ADD, f"m{number}", None, Memory(f"m{number}", text, time), turns)


def update(before: Memory, text: str, time: datetime, turns: tuple[int, ...] = ()) -> Change:
    return Change(ChangeEvent.UPDATE, before.id, before, Memory(before.id, text, time), turns)


def ingest(journal: OwnerJournal, number: int, *changes: Change, contents: tuple[str, ...] = ()) -> Entry:
    return journal.append(EntryKind.SESSION, changes, session=session(number, *contents))


def texts(state: MemoryState) -> dict[str, str]:
    return {memory.id: memory.text for memory in state.memories}


def correction_chain(journal: OwnerJournal) -> None:
    """Boston, Denver, Boulder in sessions 1 to 3."""
    ingest(journal, 1, add(1, "Ann lives in Boston.", day(1), (1,)), contents=("I live in Boston.",))
    for number, city in ((2, "Denver"), (3, "Boulder")):
        ingest(journal, number, update(journal.state()["m1"], f"Ann lives in {city}.", day(number), (1,)))


@pytest.fixture
def journal():
    with Journal.open(None) as opened:
        yield opened


@pytest.fixture
def ann(journal) -> OwnerJournal:
    return journal.owner("ann")


def execute(file: Path, statement: str) -> None:
    """Change a file behind the journal's back."""
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


def files_with(folder: Path, text: str) -> list[str]:
    return [path.name for path in folder.iterdir() if text.casefold().encode() in path.read_bytes().lower()]


def test_an_entry_comes_back_as_it_was_written(ann) -> None:
    zoned = datetime(2026, 4, 5, 20, 1, 2, 345678, tzinfo=timezone(timedelta(hours=2)))
    given = session(1, "héllo\n\0", "", time=zoned)
    changes = [add(1, "a \0 text", zoned, (1, 2)), add(2, "")]
    made = {"model": "qwen", "prompt_hash": "ab", "violations": {"unknown_target": 2}}
    written = ann.append(EntryKind.SESSION, changes, session=given, expected_head=0, **made)
    assert ann.entry(1) == written
    assert written.session_time is not None and ann.entry(1).session_time.isoformat() == zoned.isoformat()
    assert written.recorded_at.tzinfo is UTC
    assert (ann.head, written.position, written.model, written.violations) == (1, 1, "qwen", {"unknown_target": 2})
    assert ann.session_digest("s1") == written.session_digest == digest_of(given)
    assert ann.dialogue("s1") == ann.dialogue(1) == given.dialogue
    assert ann.state()["m1"] == Memory("m1", "a \0 text", zoned)


def test_an_empty_journal_answers_too(journal, ann) -> None:
    assert (ann.head, ann.state(), list(ann.entries()), ann.next_id_number()) == (0, MemoryState(), [], 1)
    assert (ann.session_position("s1"), ann.session_digest("s1"), ann.dialogue("s1"), ann.dialogue(1)) == (None,) * 4
    assert (ann.changed_since(0), ann.text_owner("x")) == (frozenset(), None)
    for memory_id in ("m1", "nonsense"):
        with pytest.raises(DeltaMemError, match="never was"):
            ann.history(memory_id)
    assert (ann.position_at(START), ann.verify(), journal.owners(), journal.erasures()) == (0, [], [], [])
    with pytest.raises(DeltaMemError, match="no entry 1"):
        ann.entry(1)


def test_a_session_is_applied_once(ann) -> None:
    first, second = Memory("m1", "one", START), Memory("m1", "two", START)
    ingest(ann, 1, add(1, "one"), update(first, "two", START), Change(ChangeEvent.NONE, "m1", second, second))
    with pytest.raises(SessionKnownError, match=r"'s1' is already applied \(entry 1\)"):
        ingest(ann, 1, add(2, "Ann swims."))
    assert ann.head == 1 and texts(ann.state()) == {"m1": "two"}
    assert [change.event for _, change in ann.history("m1")] == ["ADD", "UPDATE", "NONE"]
    ann.append(EntryKind.SESSION, [], session=session(2), keep_dialogue=False)
    assert ann.dialogue("s2") is None and ann.session_digest("s2") == digest_of(session(2)) and ann.verify() == []


def test_the_database_itself_refuses_a_session_twice(tmp_path) -> None:
    with Journal.open(tmp_path / "j") as journal:
        ingest(journal.owner("ann"), 1)
        ingest(journal.owner("ann"), 2)
    with pytest.raises(sqlite3.IntegrityError):
        execute(tmp_path / "j", "UPDATE entries SET session_id = 's1' WHERE position = 2")


def test_a_stale_writer_is_refused(ann) -> None:
    ingest(ann, 1, add(1, "one"))
    for changes, head in [
        ([], 0),
        ([add(1, "again")], None),
        ([update(Memory("m1", "other", START), "two", day(2))], None),
        ([update(Memory("m9", "unknown", START), "two", day(2))], None),
    ]:
        with pytest.raises(StaleJournalError):
            ann.append(EntryKind.SESSION, changes, session=session(2), expected_head=head)
    assert ann.head == 1


@pytest.mark.parametrize(
    ("kind", "changes", "arguments"),
    [
        (EntryKind.SESSION, [], {}),
        (EntryKind.SESSION, [], {"session": Session("ann", "Ann", START, ())}),
        (EntryKind.IMPORT, [], {"session": session(1)}),
        (EntryKind.SESSION, [], {"session": session(1), "actor": "bob"}),
        (EntryKind.EDIT, [], {}),
        (EntryKind.EDIT, [], {"actor": ""}),
        (EntryKind.EDIT, [], {"actor": "bob", "session": session(1)}),
        (EntryKind.IMPORT, [], {"actor": "bob"}),
        (EntryKind.FORGET, [], {}),
        (EntryKind.ROLLBACK, [], {}),
        (EntryKind.IMPORT, [add(1, "x", turns=(0,))], {}),
        (EntryKind.SESSION, [add(1, "x", turns=(2,))], {"session": session(1)}),
        (EntryKind.IMPORT, [Change(ChangeEvent.ADD, "m1", None, None)], {}),
        (EntryKind.IMPORT, [Change(ChangeEvent.ADD, "m1", None, Memory("m2", "x", START))], {}),
        (EntryKind.IMPORT, [Change(ChangeEvent.ADD, "x1", None, Memory("x1", "x", START))], {}),
        (EntryKind.IMPORT, [Change(ChangeEvent.ADD, "m01", None, Memory("m01", "x", START))], {}),
    ],
)
def test_contradicting_arguments_are_refused(ann, kind, changes, arguments) -> None:
    with pytest.raises(ValueError):
        ann.append(kind, changes, **arguments)
    assert ann.head == 0


def test_a_refused_entry_leaves_nothing(ann) -> None:
    with pytest.raises(DeltaMemError, match="not valid Unicode"):
        ingest(ann, 1, add(1, "fine"), add(2, "\ud800"))
    assert (ann.head, ann.state(), ann.verify()) == (0, MemoryState(), [])


def test_states_are_ordered_by_number_and_known_for_every_position(ann) -> None:
    ingest(ann, 1, *(add(number, f"text {number}") for number in (2, 10, 1)))
    ingest(ann, 2, update(ann.state()["m2"], "newer", day(2)), add(11, "eleven"))
    assert texts(ann.state(1)) == {"m1": "text 1", "m2": "text 2", "m10": "text 10"}
    assert list(ann.state()) == ["m1", "m2", "m10", "m11"]
    assert ann.state(0) == MemoryState()
    assert ann.changed_since(1) == {"m2", "m11"}
    for position in (-1, 3):
        for asked in (ann.state, ann.rollback):
            with pytest.raises(DeltaMemError, match=f"position {position} does not exist"):
                asked(position)


def test_rollback_restores_and_marks_what_it_undoes(ann) -> None:
    correction_chain(ann)
    before = ann.state(1)
    entry = ann.rollback(1)
    assert (entry.position, entry.restored, ann.entry(4)) == (4, 1, entry)
    assert ann.state() == before and [e.undone for e in ann.entries()] == [False, True, True, False]
    assert ann.session_position("s2") is None and ann.dialogue("s2") is None and ann.dialogue(2) is not None
    assert ann.text_owner("Ann lives in Boston.") is None, "the update that replaced it is undone"
    assert ann.text_owner("Ann lives in Boulder.") is None, "what a rollback takes away was not outdated"
    ingest(ann, 2, update(ann.state()["m1"], "Ann lives in Denver.", day(2)))
    assert ann.session_position("s2") == 5 and ann.verify() == []


def test_position_at_a_time(ann) -> None:
    ingest(ann, 1, add(1, "one"))
    ingest(ann, 2, add(2, "two"))
    ann.append(EntryKind.IMPORT, [add(3, "three")])
    ingest(ann, 3)
    assert [ann.position_at(day(number)) for number in (0, 1, 2, 3, 9)] == [0, 1, 3, 4, 4]
    assert ann.position_at(day(2) - timedelta(microseconds=1)) == 1
    assert ann.position_at(day(2).replace(tzinfo=timezone(timedelta(hours=2)))) == 1
    assert ann.position_at(day(2).replace(tzinfo=timezone(timedelta(hours=-2)))) == 3
    ann.rollback(1)
    ann.rollback(4)
    ann.rollback(1)
    assert [ann.position_at(day(number)) for number in (1, 2, 3)] == [1, 1, 1]


def written(journal: OwnerJournal, *changes: Change) -> Entry:
    return journal.append(EntryKind.EDIT, changes, actor="bob")


def retraction(memory: Memory) -> Change:
    return Change(ChangeEvent.REMOVE, memory.id, memory, None)


def test_an_edit_is_an_entry_with_an_actor(ann) -> None:
    correction_chain(ann)
    boulder = ann.state()["m1"]
    entry = written(ann, update(boulder, "Ann lives in Reno.", day(5)), add(2, "Ann swims.", day(4)))
    assert ann.entry(4) == entry and (entry.kind, entry.actor, entry.session_id) == (EntryKind.EDIT, "bob", None)
    assert texts(ann.state()) == {"m1": "Ann lives in Reno.", "m2": "Ann swims."}
    *_, last = ann.blame("m1")
    assert (last.actor, last.session_id, last.text, last.turns) == ("bob", None, "Ann lives in Reno.", ())
    assert (last.recorded_at, last.session_time) == (entry.recorded_at, day(5))
    assert [origin.actor for origin in ann.blame("m2")] == ["bob"]
    assert ann.text_owner("ann lives in boulder.") == "m1" and ann.verify() == []


def test_what_is_retracted_keeps_its_history_and_comes_back(ann) -> None:
    ingest(ann, 1, add(1, "Ann swims.", turns=(1,)), add(2, "Ann runs."))
    written(ann, retraction(ann.state()["m1"]))
    assert (texts(ann.state()), texts(ann.state(1))) == ({"m2": "Ann runs."}, {"m1": "Ann swims.", "m2": "Ann runs."})
    assert [change.event for _, change in ann.history("m1")] == ["ADD", "REMOVE"]
    assert [memory.id for memory in ann.diff(1).removed] == ["m1"]
    assert (ann.text_owner("ann swims."), ann.next_id_number(), ann.changed_since(1)) == ("m1", 3, {"m1"})
    with pytest.raises(DeltaMemError, match="no memory 'm1' now"):
        ann.blame("m1")
    with pytest.raises(StaleJournalError):
        written(ann, retraction(Memory("m1", "Ann swims.", START)))
    ann.rollback(1)
    assert texts(ann.state()) == {"m1": "Ann swims.", "m2": "Ann runs."} and ann.text_owner("ann swims.") is None
    assert [origin.session_id for origin in ann.blame("m1")] == ["s1"] and ann.verify() == []


def test_a_uuid_stays_with_its_memory(journal, ann) -> None:
    assert (ann.uuids(), ann.namespace) == ({}, None)
    ingest(ann, 1, add(1, "one"), add(2, "two"))
    first = ann.uuids()
    one, two = str(first["m1"]), str(first["m2"])
    assert len({one, two}) == 2 and ann.memory_id(two.upper()) == "m2" and ann.memory_id("m7") == "m7"
    times = ann.added()
    assert times == {memory.id: memory.time for memory in ann.state().memories}
    written(ann, update(ann.state()["m1"], "uno", day(2)), retraction(ann.state()["m2"]))
    assert ann.added() == times and ann.state()["m1"].time != times["m1"]
    assert ann.uuids() == ann.uuids(1) == first and ann.history(two) == ann.history("m2")
    assert ann.blame(one) == ann.blame("m1")
    ann.rollback(1)
    assert ann.uuids() == first and ann.memory_id(two) == "m2"
    ann.rollback(0)
    assert ann.uuids() == ann.added() == {} and ann.memory_id(one) == one, "it was never made"
    ingest(ann, 1, add(1, "another"))
    other = ann.uuids()
    assert other.keys() == {"m1"} and other["m1"] != first["m1"] and ann.memory_id(one) == one
    assert ann.uuids(2) == first and ann.uuids(4) == {}
    with pytest.raises(DeltaMemError, match="never was"):
        ann.history(one)
    ann.rollback(2)
    assert ann.uuids() == first and ann.memory_id(one) == "m1" and ann.memory_id(str(other["m1"])) == str(other["m1"])
    assert ann.forget(one).changes[0].memory_id == "m1" and ann.uuids() == first
    assert ann.verify() == []


def test_a_uuid_is_known_within_its_owner_only(journal, ann) -> None:
    bob = journal.owner("bob")
    for owner in (ann, bob):
        ingest(owner, 1, add(1, "one"))
    assert ann.uuids() != bob.uuids() and ann.namespace != bob.namespace
    theirs = str(bob.uuids()["m1"])
    assert ann.memory_id(theirs) == theirs
    assert journal.owners_of_memory(bob.uuids()["m1"]) == ["bob"] and journal.owners_of_memory(uuid4()) == []
    with pytest.raises(DeltaMemError, match="no such memory"):
        ann.forget(theirs)


def test_edits_are_points_of_the_calendar_unless_they_are_dated_back(ann) -> None:
    assert written(ann, add(1, "one", day(1))).session_time == day(1)
    assert written(ann, add(2, "two", day(3)), add(3, "three", day(2))).session_time == day(3)
    assert written(ann, add(4, "born", day(-9000))).session_time is None
    assert written(ann, retraction(ann.state()["m1"])).session_time is None
    ingest(ann, 5, add(5, "five"))
    assert [ann.position_at(day(number)) for number in (-9000, 0, 1, 2, 3, 4, 5)] == [0, 0, 1, 1, 4, 4, 5]
    assert "m4" in ann.state(day(3)) and "m1" not in ann.state(day(3)) and ann.verify() == []
    ann.rollback(1)
    assert written(ann, add(2, "two", day(2))).session_time == day(2), "what is undone is no reason"


def test_forgetting_empties_every_trace(ann) -> None:
    ingest(ann, 1, add(1, f"Ann knows {CANARY}.", turns=(1,)), contents=(f"{CANARY} is known", "hello", "other"))
    contents = (f"you said: ANN  KNOWS {CANARY.upper()}. right?", "hello")
    ingest(ann, 2, update(ann.state()["m1"], "Ann knows nothing.", day(2)), add(2, "Ann swims."), contents=contents)
    assert ann.text_owner(f"Ann knows {CANARY}.") == "m1"
    entry = ann.forget("m1")
    assert (entry.kind, entry.changes[0].event, entry.changes[0].erased) == (EntryKind.FORGET, ChangeEvent.REMOVE, True)
    assert CANARY.casefold() not in repr(list(ann.entries())).casefold()
    assert [change.erased for _, change in ann.history("m1")] == [True] * 3
    assert [turn.content for turn in ann.dialogue("s1")] == ["", "hello", "other"]
    assert [turn.content for turn in ann.dialogue("s2")] == ["", "hello"]
    assert ann.text_owner(f"Ann knows {CANARY}.") is None
    assert (texts(ann.state()), texts(ann.state(1)), ann.changed_since(2)) == ({"m2": "Ann swims."}, {}, {"m1"})
    assert ann.session_digest("s1") is not None
    ann.rollback(1)
    assert ann.state() == MemoryState() and ann.verify() == []


def test_nothing_to_forget(ann) -> None:
    ingest(ann, 1, add(1, "one"))
    ann.forget("m1")
    for memory_id in ("m1", "m9", "nonsense", ""):
        with pytest.raises(DeltaMemError, match="no such memory to forget"):
            ann.forget(memory_id)
    assert ann.head == 2


def fill(owner: OwnerJournal, count: int) -> None:
    """Enough rows that pages split, with the canary in memory m50."""
    for number in range(1, count + 1):
        liked = CANARY if number == 50 else "tea"
        text = f"{owner.name} likes {liked} number {number}. " + "x" * (number % 37) * 5
        ingest(owner, number, add(number, text, turns=(1,)), contents=(f"I like {liked}.", "y" * number))
    ingest(owner, 999, update(owner.state()["m50"], f"no {CANARY}", day(50), (1,)), contents=(f"not {CANARY}",))


def test_a_forgotten_text_is_gone_from_the_files_at_the_latest_when_they_are_opened_again(tmp_path) -> None:
    with Journal.open(tmp_path / "j") as journal:
        journal._database._connection.execute("PRAGMA busy_timeout = 50")
        fill(journal.owner("ann"), 60)
        assert files_with(tmp_path, CANARY)
        with Journal.open(tmp_path / "j", read_only=True) as reader:
            with reader.owner("ann").snapshot():
                assert reader.owner("ann").head == 61
                journal.owner("ann").forget("m50")
                assert journal.purge_pending
            assert "m50" not in reader.owner("ann").state()
    with Journal.open(tmp_path / "j") as journal:
        assert not journal.purge_pending and journal.integrity_check() == [] and journal.owner("ann").verify() == []
        assert files_with(tmp_path, CANARY) == []


def test_an_erased_owner_is_gone_from_the_files(tmp_path) -> None:
    with Journal.open(tmp_path / "j") as journal:
        fill(journal.owner("Erwin Schrodinger"), 60)
        ingest(journal.owner("ann"), 1, add(1, "Ann swims."))
        erasure = journal.erase_owner("Erwin Schrodinger")
        assert (erasure.entries, erasure.memories, erasure.dialogues) == (61, 60, 61)
        assert erasure.owner_sha256 == hashlib.sha256(b"Erwin Schrodinger").hexdigest()
        assert journal.erasures() == [erasure]
        assert files_with(tmp_path, CANARY) == files_with(tmp_path, "Schrodinger") == []
        assert (journal.owners(), journal.owner("Erwin Schrodinger").head) == (["ann"], 0)
        assert texts(journal.owner("ann").state()) == {"m1": "Ann swims."}
        with pytest.raises(DeltaMemError, match="no such owner"):
            journal.erase_owner("Erwin Schrodinger")
        ingest(journal.owner("Erwin Schrodinger"), 1, add(1, "new"))
        assert journal.integrity_check() == []
    with Journal.open(tmp_path / "j", read_only=True) as journal:
        assert journal.erasures() == [erasure]


def test_no_copy_of_an_erased_name_stays_in_free_space(tmp_path) -> None:
    """With `secure_delete` alone one of these names would stay, left behind when SQLite split a page of the index."""
    random = Random(0)
    names = [f"{random.getrandbits(64):016x}" + "p" * random.randrange(1, 400) for _ in range(300)]
    with Journal.open(tmp_path / "j") as journal:
        for name in names:
            journal.owner(name).append(EntryKind.IMPORT, [])
        for name in names[::15]:
            journal.erase_owner(name)
            assert files_with(tmp_path, name[:16]) == []


def test_impossible_owners_are_refused(journal) -> None:
    for name in ("", "\ud800"):
        with pytest.raises(DeltaMemError, match="owner's name"):
            journal.owner(name)


def test_owners_do_not_see_each_other(journal) -> None:
    names = ["ann", "Ann", "ann ", "ann\0", "'; DROP TABLE owners; --", "ä", "a\u0308"]
    for name in names:
        ingest(journal.owner(name), 1, add(1, name), contents=(name,))
    assert journal.owners() == sorted(names)
    for name in names:
        owner = journal.owner(name)
        assert (texts(owner.state()), owner.head, owner.dialogue("s1")) == ({"m1": name}, 1, (Turn("user", name),))
    journal.owner("ann").forget("m1")
    journal.owner("ann ").rollback(0)
    assert [texts(journal.owner(name).state()) for name in names[3:]] == [{"m1": name} for name in names[3:]]


def test_read_only_never_writes(tmp_path) -> None:
    with pytest.raises(DeltaMemError, match="no such file"):
        Journal.open(tmp_path / "j", read_only=True)
    assert list(tmp_path.iterdir()) == []
    with Journal.open(tmp_path / "j") as journal, Journal.open(tmp_path / "other") as other:
        name = journal.store_id
        assert stat.S_IMODE((tmp_path / "j").stat().st_mode) == 0o600 and len(name) == 32 and other.store_id != name
    with Journal.open(tmp_path / "j", read_only=True) as reader, pytest.raises(DeltaMemError, match="readonly"):
        assert reader.store_id == name
        ingest(reader.owner("ann"), 1)


def test_foreign_and_newer_files_are_refused_and_left_alone(tmp_path) -> None:
    for name in ("newer", "older"):
        Journal.open(tmp_path / name).close()
    execute(tmp_path / "foreign", "CREATE TABLE songs (title)")
    execute(tmp_path / "other", "PRAGMA application_id = 7")
    execute(tmp_path / "newer", f"PRAGMA user_version = {database.SCHEMA_VERSION + 1}")
    execute(tmp_path / "older", "PRAGMA user_version = 1")
    (tmp_path / "text").write_text("no database at all, " * 100)
    (tmp_path / "folder").mkdir()
    for name, sentence in {
        "foreign": "an SQLite database of another application, expected the journal",
        "other": "another application",
        "newer": f"schema {database.SCHEMA_VERSION + 1}, this one reads {database.SCHEMA_VERSION})",
        "older": f"written by another version of deltamem (schema 1, this one reads {database.SCHEMA_VERSION})",
        "text": "not a database",
        "folder": "cannot be opened",
        "missing/j": "cannot be opened",
    }.items():
        path = tmp_path / name
        content = path.read_bytes() if path.is_file() else None
        for read_only in (False, True):
            with pytest.raises(DeltaMemError) as caught:
                Journal.open(path, read_only=read_only)
            if not read_only or path.is_file():
                assert sentence in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)
        assert content is None or path.read_bytes() == content
    (tmp_path / "empty").touch()
    with pytest.raises(DeltaMemError, match="empty file"):
        Journal.open(tmp_path / "empty", read_only=True)
    Journal.open(tmp_path / "empty").close()


def test_a_damaged_file_is_noticed(tmp_path) -> None:
    path = tmp_path / "j"
    with Journal.open(path) as journal:
        fill(journal.owner("ann"), 60)
    content = bytearray(path.read_bytes())
    kept = 22 * 4096  # the schema, without which it is not even opened
    content[kept:] = bytes(len(content) - kept)
    path.write_bytes(content)
    with Journal.open(path, read_only=True) as journal:
        assert journal.integrity_check() != []
        with pytest.raises(DeltaMemError):
            journal.owner("ann").verify()


@pytest.mark.parametrize(
    ("tampering", "problem"),
    [
        (
            "UPDATE changes SET after_text = 'forged' WHERE position = 1",
            "entry 2: UPDATE of m1 expects another memory before",
        ),
        ("UPDATE changes SET after_text = 'forged' WHERE position = 4", "did not restore the state after entry 1"),
        ("UPDATE entries SET undone = 0 WHERE position = 3", "entry 3 is marked as effective"),
        ("UPDATE entries SET undone = 1 WHERE position = 1", "entry 1 is marked as undone"),
        ("DELETE FROM entries WHERE position = 2", "entry 3 follows entry 1"),
        ("UPDATE changes SET turns = '[' WHERE position = 1", "cannot be read"),
        ("UPDATE changes SET seq = 99 WHERE position = 2", "the state after entry 4"),
    ],
)
def test_verify_notices_tampering(tmp_path, tampering, problem) -> None:
    with Journal.open(tmp_path / "j") as journal:
        correction_chain(journal.owner("ann"))
        journal.owner("ann").rollback(1)
        assert journal.owner("ann").verify() == []
    execute(tmp_path / "j", tampering)
    with Journal.open(tmp_path / "j") as journal:
        assert any(problem in found for found in journal.owner("ann").verify())


def test_threads_share_a_journal(journal) -> None:
    """Every thread writes to an owner of its own and to a common one, whose sessions each thread tries."""
    refused = []

    def work(thread: int) -> None:
        own, common = journal.owner(f"owner {thread}"), journal.owner("common")
        for number in range(1, 16):
            ingest(own, number, add(number, f"{thread} {number}"))
            assert texts(own.state()) == {f"m{n}": f"{thread} {n}" for n in range(1, number + 1)}
            try:
                ingest(common, number)
            except SessionKnownError:
                refused.append(number)
            list(common.entries())

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert (journal.owner("common").head, len(refused)) == (15, 5 * 15)
    assert all(journal.owner(name).verify() == [] for name in journal.owners()) and len(journal.owners()) == 7


def test_writing_while_reading_in_one_thread_is_a_bug(ann) -> None:
    with ann.snapshot(), pytest.raises(RuntimeError):
        ingest(ann, 1)
    ingest(ann, 1)
