"""Checks that trust nothing of the library but its records: what a model wrote, what changed, what the journal says."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from deltamem.journal.journal import Journal
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import Change
from deltamem.journal.transfer import export_owner, import_owner
from deltamem.memory import Memory, MemoryState
from deltamem.own_words import SAID

ID = re.compile(r"m[1-9][0-9]*", re.ASCII)
_DECODER = json.JSONDecoder(strict=False)  # raw line breaks are understood


def replay(memories: Mapping[str, Memory], changes: Iterable[Change]) -> dict[str, Memory]:
    """The memories after some changes, each of which must fit what stood there."""
    after = dict(memories)
    for change in changes:
        assert ID.fullmatch(change.memory_id), change.memory_id
        assert change.erased or after.get(change.memory_id) == change.before, change
        if change.after is None:
            after.pop(change.memory_id, None)
        else:
            assert change.after.id == change.memory_id
            after[change.memory_id] = change.after
    return after


def replay_journal(journal: OwnerJournal) -> dict[str, Memory]:
    """The state that the entries add up to."""
    return replay({}, (change for entry in journal.entries() for change in entry.changes))


def written_operations(text: str) -> Iterator[tuple[object, object, object]]:
    """Event, text and target of every JSON object anywhere in a text that looks like an operation."""
    position = text.find("{")
    while position >= 0:
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            waiting = [value]
            while waiting:
                item = waiting.pop()
                if isinstance(item, dict) and "event" in item:
                    yield item.get("event"), item.get("text"), item.get("target_memory_id")
                waiting += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        position = text.find("{", end)


def check_explained(
    texts: Sequence[str], before: MemoryState, after: MemoryState, changes: Sequence[Change], violations: Mapping[str, int]
) -> None:
    """Every change belongs to an operation that the model wrote or quotes the person in the place of one, the changes
    explain the step, refusals are counted.
    """
    assert replay(before, changes) == dict(after)
    assert list(after) == sorted(after, key=lambda memory_id: int(memory_id[1:]))
    if changes:
        written = [operation for text in texts for operation in written_operations(text)]
        aimed = {(str(event).strip().upper(), str(text).strip(), str(target)) for event, text, target in written}
        said = {(event, text) for event, text, _ in aimed}
        for change in changes:
            if change.event == "ADD":
                assert change.after is not None
                quoted = SAID in change.after.text and violations.get("unsupported_text")
                assert quoted or ("ADD", change.after.text) in said, change
            elif change.event == "UPDATE":
                assert change.after is not None and ("UPDATE", change.after.text, change.memory_id) in aimed, change
            else:
                assert change.event == "NONE" and change.before == change.after
    answered = [sum(1 for _ in written_operations(text.rpartition("</think>")[2])) for text in texts]
    assert sum(answered) <= len(changes) or violations, "something was refused, but nothing was counted"


def export_text(journal: OwnerJournal) -> str:
    stream = io.StringIO()
    export_owner(journal, stream)
    return stream.getvalue()


def check_journal(journal: OwnerJournal, state: MemoryState) -> None:
    """The journal is sound, adds up to a state, and can be exported and imported without loss."""
    assert journal.verify() == []
    assert replay_journal(journal) == dict(state) == dict(journal.state())
    exported = export_text(journal)
    exported.encode("utf-8")
    with Journal.open(None) as other:
        copy = other.owner(journal.name)
        import_owner(copy, io.StringIO(exported, newline="\n"))
        assert dict(copy.state()) == dict(state)
        assert export_text(copy) == exported
