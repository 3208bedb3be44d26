"""Intents in the journal: they outlast the process, and are forgotten, erased, exported and imported like memories."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import pytest
from episode_texts import WordEmbedder

from deltamem.errors import ConflictError, DeltaMemError
from deltamem.journal.journal import Journal
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.journal.transfer import export_owner, import_owner
from deltamem.memory import Memory
from papers.stitch.index import IntentIndex
from papers.stitch.labeller import GoldStep, Labelled, OracleLabeller
from papers.stitch.labels import Facet, LabelChange
from papers.stitch.records import Intent, IntentFilter, ScopeNote, Step
from papers.stitch.store import IntentLog, StaleIntentsError

TIME = datetime(2026, 5, 1, 8, tzinfo=UTC)
TEXTS = {"m1/a": "Ann's hotel is the Alder Inn.", "m2/a": "Ann's dog is Rex.", "m3/a": "Ann's hotel costs 90."}
INTENTS = {
    "m1/a": Intent("trip to Alderville", "booking", ("hotel", "secret type")),
    "m2/a": Intent("pets", "mention", ("animal",)),
    "m3/a": Intent("trip", "booking", ("price",)),
}
STEPS = [Step(id, "Ann", text, TIME) for id, text in TEXTS.items()]
QUERY = "Which hotel?"


class Noting(OracleLabeller):
    """Writes a note on every scope, and merges the scopes of the two trips at the end."""

    async def label(self, step, history, upcoming):  # type: ignore[no-untyped-def]
        labelled = await super().label(step, history, upcoming)
        scope = labelled.snippet.intent.scope
        merge = LabelChange(Facet.SCOPE, "trip", "trip to Alderville")
        changes = (LabelChange(Facet.SCOPE, "trip"), merge) if step.id == "m3/a" else ()
        return Labelled(labelled.snippet, changes, (ScopeNote(scope, f"note: {step.text}"),))


def labeller(kind: type[Noting] = Noting) -> Noting:
    gold = {id: GoldStep(INTENTS[id], text, text) for id, text in TEXTS.items()}
    return kind(gold, {QUERY: IntentFilter(("trip",), (), ("hotel",))})


def index_of(journal: OwnerJournal, kind: type[Noting] = Noting, collection: str = "memories") -> IntentIndex:
    return IntentIndex(labeller(kind), WordEmbedder(), IntentLog(journal, collection))


def remember(journal: OwnerJournal) -> OwnerJournal:
    memories = [Memory(id.partition("/")[0], text, TIME) for id, text in TEXTS.items()]
    changes = [Change(ChangeEvent.ADD, memory.id, None, memory, ()) for memory in memories]
    journal.append(EntryKind.EDIT, changes, actor="test")
    return journal


async def filled(journal: OwnerJournal, collection: str = "memories") -> IntentIndex:
    if collection == "memories" and not journal.head:
        remember(journal)
    index = index_of(journal, collection=collection)
    assert await index.add(STEPS) == 3
    return index


async def exported() -> list[str]:
    """The lines of an export: four of intents at the end."""
    ann = Journal.open(None).owner("ann")
    await filled(ann)
    stream = io.StringIO()
    export_owner(ann, stream)
    return stream.getvalue().splitlines()


def on_disk(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def contents(index: IntentIndex) -> tuple[object, ...]:
    labels = [index.spaces.labels(facet) for facet in Facet]
    return labels, index.spaces.version, index.latest(9), index.notes("trip to Alderville")


async def test_an_index_is_found_again_and_embeds_nothing_twice(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j") as journal:
        index = await filled(journal.owner("ann"))
        before, found = contents(index), await index.search(QUERY)
    embedder = WordEmbedder()
    with Journal.open(tmp_path / "j") as journal:
        index = IntentIndex(labeller(), embedder, IntentLog(journal.owner("ann"), "memories"))
        assert contents(index) == before and await index.add(STEPS) == 0
        assert await index.search(QUERY) == found
        assert embedder.calls == [[QUERY]]
        versions = IntentLog(journal.owner("ann"), "memories").load()
        assert versions is not None
        assert [(one.version, one.step) for one in versions.versions if one.change.into] == [(9, 2)]


async def test_an_interrupted_step_leaves_nothing_but_its_draft(tmp_path: Path) -> None:
    class Failing(Noting):
        async def label(self, step, history, upcoming):  # type: ignore[no-untyped-def]
            if step.id == "m3/a":
                await history.keep_draft("scope", "trip", history.stamp)
                raise DeltaMemError("no answer")
            return await super().label(step, history, upcoming)

    class Resuming(Noting):
        drafts: ClassVar[list[str | None]]

        async def label(self, step, history, upcoming):  # type: ignore[no-untyped-def]
            Resuming.drafts = [history.draft("scope"), history.draft("event")]
            return await super().label(step, history, upcoming)

    with Journal.open(tmp_path / "j") as journal:
        index = index_of(remember(journal.owner("ann")), Failing)
        with pytest.raises(DeltaMemError, match="no answer"):
            await index.add(STEPS)
        assert len(index) == 2
    with Journal.open(tmp_path / "j") as journal:
        index = index_of(journal.owner("ann"), Resuming)
        assert len(index) == 2 and await index.add(STEPS) == 1 and Resuming.drafts == ["trip", None]
        assert index.draft("scope") is None


async def test_what_is_forgotten_is_in_no_step_no_label_no_note_and_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal.open(path) as journal:
        ann = remember(journal.owner("ann"))
        index = await filled(ann)
        other = await filled(ann, "turns")  # the same texts as steps of a trajectory
        await index.search(QUERY)
        await index.keep_draft("note", "the Alder Inn", index.stamp)
        ann.forget("m1")
        for one in (index, other):
            found = await one.search(QUERY)
            assert [hit.snippet.step.id for hit in found.hits] == ["m3/a", "m2/a"] and len(one) == 2
            assert one.spaces.labels(Facet.ENTITY) == ("animal", "price")
            # The scope was named by what is forgotten, but another step has it
            assert one.spaces.labels(Facet.SCOPE) == ("pets", "trip to Alderville")
            assert one.notes("trip to Alderville") == () and one.notes("pets") == ("note: Ann's dog is Rex.",)
        assert await index.add(STEPS[1:]) == 0
        assert journal.integrity_check() == []
    written = on_disk(tmp_path)
    assert b"Alder Inn" not in written and b"secret type" not in written and b"Rex" in written


async def test_a_step_that_was_labelled_while_something_was_forgotten_is_labelled_again() -> None:
    ann = remember(Journal.open(None).owner("ann"))
    seen: list[int] = []

    class Slow(Noting):
        async def label(self, step, history, upcoming):  # type: ignore[no-untyped-def]
            labelled = await super().label(step, history, upcoming)
            seen.append(len(history))
            if step.id == "m3/a" and len(history) == 2:
                ann.forget("m1")
            return labelled

    index = index_of(ann, Slow)
    with pytest.raises(DeltaMemError, match="cannot be merged"):  # the second time there is nothing to merge into
        await index.add(STEPS)
    assert seen == [0, 1, 2, 1] and len(index) == 1
    assert index.spaces.labels(Facet.SCOPE) == ("pets",)


async def test_erasing_an_owner_and_clearing_a_collection_leave_nothing(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j") as journal:
        ann, bob = journal.owner("ann"), journal.owner("bob")
        index, kept = await filled(ann, "turns"), await filled(bob, "turns")
        assert journal.owners() == ["ann", "bob"]
        journal.erase_owner("ann")
        assert (await index.search(QUERY)).hits == () and len(index) == 0 and len((await kept.search(QUERY)).hits) == 3
        await kept.clear()
        assert len(kept) == 0 and kept.spaces.version == 0 and await kept.add(STEPS) == 3
        await kept.clear()
    assert b"Alder" not in on_disk(tmp_path)


async def test_exports_hold_intents_and_imports_find_the_same() -> None:
    ann = remember(Journal.open(None).owner("ann"))
    index = await filled(ann)
    stream = io.StringIO()
    assert export_owner(ann, stream).plugins == {"stitch": 4}
    text = stream.getvalue()
    elsewhere = Journal.open(None).owner("ann")
    assert import_owner(elsewhere, io.StringIO(text)).plugins == {"stitch": 4}
    again = index_of(elsewhere)
    assert contents(again) == contents(index) and await again.search(QUERY) == await index.search(QUERY)
    second = io.StringIO()
    export_owner(elsewhere, second)
    assert second.getvalue() == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:-1], "the file ends here"),
        (lambda lines: [*lines, lines[-1]], "expected the end"),
        (lambda lines: [_with(lines[0], plugins={"stitch": 3}), *lines[1:]], "more intents than the header"),
        (lambda lines: [_with(lines[0], plugins={"stitch": 5}), *lines[1:]], "the file ends here"),
        (lambda lines: [_with(lines[0], plugins={"stitch": 4, "other": 1}), *lines[1:]], "line 1: .* plug-in .* 'other' is"),
        (lambda lines: [*lines[:-4], _with(lines[-4], labels=json.loads(lines[-4])["labels"][1:]), *lines[-3:]], "merged"),
        (lambda lines: [*lines[:-1], lines[-2]], "contradict"),
        (lambda lines: [*lines[:-1], _with(lines[-1], time="soon")], "expected one intent"),
        (lambda lines: [*lines[:-1], _with(lines[-1], text="Ann's code is 1234.")], "'m3/a' is no memory"),
        # Versions out of order could be read in this order, but not again in their own: nothing could be forgotten any more
        (lambda lines: _labels(lines, (2, "b", "a"), (1, "a", None), (3, "b", None)), "contradict themselves"),
        (lambda lines: _labels(lines, (2, "b", None), (1, "a", None)), "contradict themselves"),
    ],
)
async def test_a_damaged_export_is_one_sentence_and_nothing_is_imported(change, message: str) -> None:  # type: ignore[no-untyped-def]
    other = Journal.open(None)
    with pytest.raises(DeltaMemError, match=message):
        import_owner(other.owner("ann"), io.StringIO("\n".join(change(await exported())) + "\n"))
    assert other.owners() == []


def _with(line: str, **values: object) -> str:
    return json.dumps(json.loads(line) | values)


def _labels(lines: list[str], *labels: tuple[int, str, str | None]) -> list[str]:
    made = [
        {"version": version, "step": 0, "facet": "scope", "label": label, "into": into} for version, label, into in labels
    ]
    return [*lines[:-4], _with(lines[-4], labels=made), *lines[-3:]]


async def test_another_labeller_is_refused_and_owners_do_not_mix() -> None:
    journal = Journal.open(None)
    await filled(journal.owner("ann"))

    class Other(Noting):
        name = "other"

    with pytest.raises(ConflictError, match="labelled by 'oracle', not by 'other'; clear it"):
        index_of(journal.owner("ann"), Other)
    assert len(index_of(journal.owner("bob"), Other)) == 0
    await filled(journal.owner("carl"), "turns")
    text = io.StringIO()
    export_owner(journal.owner("ann"), text)
    with pytest.raises(ConflictError, match="already has intents"):
        import_owner(journal.owner("carl"), io.StringIO(text.getvalue()), rename=True)
    assert journal.owner("carl").head == 0


async def test_what_is_forgotten_while_it_is_labelled_is_not_written_afterwards(tmp_path: Path) -> None:
    """The text of a memory is given to the labeller, and forgotten before the answer is there."""
    path = tmp_path / "j"
    with Journal.open(path) as journal:
        ann = remember(journal.owner("ann"))

        class Slow(Noting):
            async def label(self, step, history, upcoming):  # type: ignore[no-untyped-def]
                await history.keep_draft(f"{step.id}/scope", f"kept before: {step.text}", history.stamp)
                if step.id == "m1/a" and ann.state().memories[0].id == "m1":
                    stamp = history.stamp
                    ann.forget("m1")
                    await history.keep_draft(f"{step.id}/note", f"kept after: {step.text}", stamp)
                return await super().label(step, history, upcoming)

        index = index_of(ann, Slow)
        with pytest.raises(StaleIntentsError, match="forgotten meanwhile"):
            await index.add(STEPS, since=await index.begin())
        assert len(index) == 0
        index = index_of(ann)
        with pytest.raises(ConflictError, match="'m1/a' is no memory any more"):
            await index.add(STEPS)
        assert len(index) == 0
    assert b"Alder Inn" not in on_disk(tmp_path)


async def test_a_draft_that_was_made_of_what_is_forgotten_is_not_used() -> None:
    ann = remember(Journal.open(None).owner("ann"))

    class Drafting(Noting):
        async def label(self, step, history, upcoming):  # type: ignore[no-untyped-def]
            labelled = await super().label(step, history, upcoming)
            if step.id != "m2/a":
                return labelled
            resolved = history.draft("m2/a/note")
            if resolved is None:
                stamp = history.stamp
                resolved = " ".join([step.text, *(one.resolved for one in history.latest(9))])
                if len(history) == 1:
                    ann.forget("m1")  # while the model answers
                await history.keep_draft("m2/a/note", resolved, stamp)
            return Labelled(replace(labelled.snippet, resolved=resolved))

    index = index_of(ann, Drafting)
    assert await index.add(STEPS[:2]) == 2
    assert [one.resolved for one in index.latest(9)] == [STEPS[1].text]


async def test_labels_that_repeat_what_is_forgotten_are_forgotten_too() -> None:
    ann = remember(Journal.open(None).owner("ann"))
    text = TEXTS["m2/a"]
    gold = {
        "m2/a": GoldStep(Intent(text, "mention", ("animal",)), text, text),
        "m3/a": GoldStep(Intent(f"ON THE FACT THAT {text.upper()}", "mention", (f"whether {text}", "price")), "90", "90"),
    }
    turns = IntentIndex(OracleLabeller(gold, {}), WordEmbedder(), IntentLog(ann, "turns"))
    await turns.add([Step("m3/a", "Ann", "It costs 90.", TIME)])
    ann.forget("m2")
    turns.refresh()
    assert turns.latest(1)[0].intent == Intent("", "mention", ("price",))
    assert turns.spaces.labels(Facet.SCOPE) == ()


async def test_an_owner_that_was_erased_while_steps_were_labelled_stays_erased(tmp_path: Path) -> None:
    for collection in ("memories", "turns"):
        (tmp_path / collection).mkdir()
        with Journal.open(tmp_path / collection / "j") as journal:
            ann = journal.owner("ann")
            remember(ann)

            class Slow(Noting):
                async def label(self, step, history, upcoming):  # type: ignore[no-untyped-def]
                    labelled = await super().label(step, history, upcoming)
                    if step.id == "m2/a":
                        stamp = history.stamp
                        journal.erase_owner("ann")
                        await history.keep_draft("m2/a/note", step.text, stamp)
                    return labelled

            index = index_of(ann, Slow, collection)
            with pytest.raises(ConflictError, match="was erased meanwhile"):
                await index.add(STEPS)
            assert journal.owners() == [] and len(index) == 0
        assert b"Rex" not in on_disk(tmp_path / collection)


def test_a_collection_needs_a_name() -> None:
    with pytest.raises(DeltaMemError, match="needs a name"):
        IntentLog(Journal.open(None).owner("ann"), "")


async def test_a_collection_that_begins_again_is_another_one() -> None:
    with Journal.open(None) as journal:
        log = IntentLog(journal.owner("ann"), "steps")
        log.begin("oracle")
        stamp = log.stamp
        log.clear()
        log.begin("oracle")
        assert log.stamp != stamp
        with pytest.raises(StaleIntentsError):  # it was asked of what has been cleared, and may repeat it
            log.keep_draft("scope", "the Alder Inn", after=stamp)
