"""Export and import of an owner's journal."""

import io
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.errors import DeltaMemError
from deltamem.journal.journal import Journal
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.journal.transfer import Counts, export_owner, import_owner
from deltamem.memory import Memory
from deltamem.sessions import Session, Turn

ZONED = datetime(2026, 4, 5, 20, 1, 7, 5, tzinfo=timezone(timedelta(hours=2, seconds=28)))


def fill(ann: OwnerJournal) -> None:
    """Sessions, an undone stretch, an import and a forgotten memory."""

    def ingest(number: int, *changes: Change) -> None:
        turns = (Turn("user", f"tärn\u2028 {number}"), Turn("assistant", "\n\0"))
        session = Session("ann", "Ann", ZONED + timedelta(days=number), turns, id=f"s{number}")
        ann.append(EntryKind.SESSION, changes, session=session, model="m", prompt_hash="p", violations={"empty_text": 1})

    def add(number: int, text: str, time: datetime = ZONED) -> Change:
        return Change(ChangeEvent.ADD, f"m{number}", None, Memory(f"m{number}", text, time), (1, 2))

    ingest(1, add(1, "Ann swims. é\u2028\r\n"), add(2, "Ann hides a secret."))
    one = ann.state()["m1"]
    ran = Change(ChangeEvent.UPDATE, "m1", one, Memory("m1", "Ann ran.", datetime(2026, 5, 1)))
    ingest(2, ran, add(3, "x", ZONED.astimezone(UTC)))
    ann.rollback(1)
    ingest(2, Change(ChangeEvent.NONE, "m1", one, one), add(3, "Ann has a cat."))
    ann.append(EntryKind.IMPORT, [add(10, "Ann plays chess.")])
    ann.forget("m2")


@pytest.fixture
def ann():
    with Journal.open(None) as journal:
        fill(journal.owner("ann"))
        yield journal.owner("ann")


@pytest.fixture
def empty():
    with Journal.open(None) as journal:
        yield journal.owner("ann")


def exported(journal: OwnerJournal) -> str:
    stream = io.StringIO()
    export_owner(journal, stream)
    return stream.getvalue()


@pytest.fixture
def lines(ann) -> list[str]:
    # Not splitlines(): texts may hold other line separators.
    return [f"{line}\n" for line in exported(ann).split("\n")[:-1]]


def refused(journal: OwnerJournal, text: str) -> str:
    """The sentence by which an import is refused; nothing is written."""
    with pytest.raises(DeltaMemError) as caught:
        import_owner(journal, io.StringIO(text))
    assert (journal.head, list(journal.state()), journal.dialogue_count) == (0, [], 0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_import_gives_the_same_journal(ann, empty, tmp_path) -> None:
    path = tmp_path / "ann.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        counts = export_owner(ann, stream)
    assert counts == Counts(entries=6, memories=3, dialogues=3)
    with path.open(encoding="utf-8") as stream:
        assert import_owner(empty, stream) == counts
    assert list(empty.entries()) == list(ann.entries())
    assert [entry.undone for entry in empty.entries()] == [False, True, False, False, False, False]
    assert repr(empty.state()) == repr(ann.state())
    assert list(empty.dialogues()) == list(ann.dialogues())
    assert (empty.next_id_number(), empty.session_position("s2"), empty.verify()) == (11, 4, [])
    after = [[change.after for _, change in journal.history("m3")] for journal in (empty, ann)]
    assert repr(after[0]) == repr(after[1])
    assert exported(empty) == path.read_text(encoding="utf-8")
    assert "secret" not in exported(empty)


def test_the_file_is_what_the_documentation_says(ann, lines) -> None:
    header, *rest = map(json.loads, lines)
    assert header.pop("namespace") == str(ann.namespace)
    counts = {"entries": 6, "memories": 3, "dialogues": 3, "plugins": {}}
    assert header == {"format": "deltamem-bank", "version": 5, "owner": "ann"} | counts
    assert [line["position"] for line in rest[:6]] == [1, 2, 3, 4, 5, 6]
    assert rest[-1] == {"id": "m10", "text": "Ann plays chess.", "time": ZONED.isoformat()}


def test_edits_are_exported(ann, empty) -> None:
    one = ann.state()["m1"]
    changes = [Change(ChangeEvent.UPDATE, "m1", one, Memory("m1", "Ann dives.", ZONED + timedelta(days=99)))]
    ann.append(EntryKind.EDIT, changes, actor="bob \u2028")
    ann.append(EntryKind.EDIT, [Change(ChangeEvent.REMOVE, "m10", ann.state()["m10"], None)], actor="ann")
    text = exported(ann)
    import_owner(empty, io.StringIO(text))
    assert list(empty.entries()) == list(ann.entries()) and exported(empty) == text
    assert empty.blame("m1") == ann.blame("m1") and empty.state() == ann.state()
    assert empty.uuids() == ann.uuids() and empty.uuids(2) == ann.uuids(2) != ann.uuids()
    assert [empty.position_at(ZONED + timedelta(days=days)) for days in (50, 99)] == [6, 8]


def test_an_owner_without_entries_can_be_exported(empty) -> None:
    stream = io.StringIO()
    assert export_owner(empty, stream) == Counts(0, 0, 0)
    stream.seek(0)
    assert import_owner(empty, stream) == Counts(0, 0, 0)
    assert exported(empty) == stream.getvalue()


def test_another_owner_needs_rename(lines) -> None:
    with Journal.open(None) as journal:
        bob = journal.owner("bob")
        assert "'ann', not of 'bob'" in refused(bob, "".join(lines))
        import_owner(bob, io.StringIO("".join(lines)), rename=True)
        assert journal.owners() == ["bob"] and len(bob.state()) == 3


def test_only_an_empty_journal_takes_an_import(ann, lines) -> None:
    with pytest.raises(DeltaMemError, match="already has 6 entries"):
        import_owner(ann, io.StringIO("".join(lines)))
    assert ann.verify() == []


def test_a_file_cut_short_is_refused_wherever_it_ends(empty, lines) -> None:
    for count in range(len(lines)):
        sentence = refused(empty, "".join(lines[:count]))
        assert sentence.startswith(f"line {count + 1}: the file ends here")
        half = "".join(lines[:count]) + lines[count][: len(lines[count]) // 2]
        assert refused(empty, half).startswith(f"line {count + 1}: ")
    assert refused(empty, "".join(lines) + "{}\n").startswith(f"line {len(lines) + 1}: expected the end")


def test_damaged_lines_are_named(empty, lines) -> None:
    def changed(index: int, **fields: object) -> str:
        line = {**json.loads(lines[index]), **fields}
        return refused(empty, "".join([*lines[:index], json.dumps(line) + "\n", *lines[index + 1 :]]))

    assert "line 1: expected one header: version" in changed(0, version=2)
    assert "line 1: expected one header: format" in changed(0, format="mem0")
    assert "line 1: expected one header: extra" in changed(0, extra=1)
    assert "line 3: entry 1 where 2 was expected" in changed(2, position=1)
    assert "line 2: expected one entry: recorded_at" in changed(1, recorded_at="soon")
    assert "line 2: expected one entry: recorded_at" in changed(1, recorded_at=5)
    assert "line 2: entry 1 contradicts itself" in changed(1, session_id=None)
    assert "line 5: entry 4 contradicts itself or an earlier one" in changed(4, session_id="s1")
    assert "contradict each other: entry 2 is marked as effective" in changed(2, undone=False, session_id="s7")
    assert "line 2: expected one entry: kind" in changed(1, kind="dream")
    assert "entry 2: UPDATE of m1 expects another memory before" in changed(1, changes=[])
    assert "line 8: a dialogue of entry 77" in changed(7, position=77)
    assert "line 8: expected one dialogue" in changed(7, turns=[{"role": "system", "content": ""}])
    assert "lists another m10" in changed(-1 % len(lines), text="forged")
    assert "lists 2 memories, but its entries add up to 3" in changed(0, memories=2)
    changes = json.loads(lines[1])["changes"]
    assert "'x1' is not a memory id" in changed(1, changes=[{**changes[0], "memory_id": "x1"}])
    assert "only an ADD has no memory before" in changed(1, changes=[{**changes[0], "event": "UPDATE"}])


@pytest.mark.parametrize(
    "garbage",
    ["[" * 100_000, '{"format":' * 5000, "\0\1\2", "null\n", "\n", '{"format": "deltamem-bank", "version": 1' + "0" * 9999],
)
def test_garbage_is_refused(empty, garbage) -> None:
    assert refused(empty, garbage).startswith("line 1: expected one header")


def test_bytes_that_are_no_text_are_refused(empty, lines, tmp_path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes("".join(lines[:1]).encode() + b"\xff\xfe\x00\x80" * 5000)
    with path.open(encoding="utf-8") as stream, pytest.raises(DeltaMemError, match=r"line [12]: not UTF-8 text"):
        import_owner(empty, stream)
    assert empty.head == 0


@given(data=st.data())
def test_mutated_files_are_refused_or_understood(data) -> None:
    with Journal.open(None) as journal:
        fill(journal.owner("ann"))
        text = list(exported(journal.owner("ann")))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.text(max_size=3))
    with Journal.open(None) as journal:
        ann = journal.owner("ann")
        try:
            import_owner(ann, io.StringIO("".join(text)))
        except DeltaMemError:
            assert ann.head == 0 and journal.owners() == []
        assert ann.verify() == []
