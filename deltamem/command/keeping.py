"""Commands that need the bank itself and so its lock: search, rollback, import, forget, audit."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from deltamem.command.access import confirm, parse_point, past, require_entries, store, tell_if_empty
from deltamem.command.options import Options
from deltamem.command.output import Line, Output, utf8
from deltamem.command.reading import POINT_HELP, SIGNS, STYLES, memory_line
from deltamem.command.records import change_record, memory_record
from deltamem.errors import DeltaMemError
from deltamem.history import History
from deltamem.journal.records import ChangeEvent, EntryKind

if TYPE_CHECKING:
    from deltamem.bank.owned import OwnedBank
    from deltamem.bank.protocol import Hit
    from deltamem.bank.store import MemoryStore
    from deltamem.journal.journal import OwnerJournal
    from deltamem.journal.records import Entry

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for a confirmation.")]


@contextmanager
def _bank(options: Options, *, create: bool = False) -> Iterator[tuple[MemoryStore, OwnedBank]]:
    from deltamem.command.progress import Display

    owner = options.required_owner
    with Display() as display, store(options, create=create, progress=display.rebuilding) as opened:
        yield opened, opened.bank(owner)


def search(
    options: Options,
    queries: Annotated[
        list[str], typer.Argument(metavar="QUERY...", help="Each one is searched for itself.", show_default=False)
    ],
    k: Annotated[int, typer.Option("-k", min=1, metavar="N", help="Memories for each query.")] = 5,
) -> None:
    """Find the memories most similar to a query."""
    texts = [utf8(query, "the query") for query in queries]
    with past(options) as journal:
        empty = tell_if_empty(options, journal)
    found: list[list[Hit]] = [[] for _ in texts]
    if not empty:
        with _bank(options) as (opened, owned):
            found = owned.bank.search(opened.queries(texts), k)
    if options.as_json:
        records = [
            {
                "query": text,
                "memories": [memory_record(hit.memory) | {"similarity": round(float(hit.similarity), 6)} for hit in hits],
            }
            for text, hits in zip(texts, found, strict=True)
        ]
        Output().json({"owner": options.required_owner, "results": records})
        return
    lines: list[Line] = []
    for text, hits in zip(texts, found, strict=True):
        if len(texts) > 1:
            lines.append(((text, "bold"),))
        width = max((len(hit.memory.id) for hit in hits), default=0)
        lines += [((f"{hit.similarity:.3f}  ", ""), *memory_line(hit.memory, width)) for hit in hits]
    Output().lines(lines)


def rollback(
    options: Options, to: Annotated[str, typer.Argument(metavar="TO", help=POINT_HELP, show_default=False)], yes: Yes = False
) -> None:
    """Restore the memory as it was at a point; later sessions count as not added and may be added again."""
    with past(options) as journal:
        require_entries(options, journal)
        position = History(journal).resolve(parse_point(to, journal))
        undone = [entry for entry in journal.entries(position) if entry.kind is EntryKind.SESSION and not entry.undone]
    confirm(f"Take back {len(undone)} sessions of {journal.name!r}, to @{position}?", yes=yes)
    with _bank(options) as (_, owned):
        entry = owned.rollback(position)
    _tell(options, entry, f"rolled back to @{position}; this is @{entry.position}")


def _tell(options: Options, entry: Entry, sentence: str) -> None:
    """Report a journal entry and what it changed."""
    changes = [change for change in entry.changes if change.event is not ChangeEvent.NONE]
    if options.as_json:
        record = {
            "owner": options.required_owner,
            "position": entry.position,
            "kind": str(entry.kind),
            "restored": entry.restored,
            "changes": [change_record(change) for change in changes],
        }
        Output().json(record)
        return
    lines: list[Line] = [((sentence, ""),)]
    for change in changes:
        told = change.after or change.before
        text = "(erased)" if change.erased or told is None else told.text
        lines.append(((f"  {SIGNS[change.event]} {change.memory_id}  {text}", STYLES[change.event]),))
    Output().lines(lines)


def import_(
    options: Options,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export; - is standard input.", show_default=False)],
    rename: Annotated[bool, typer.Option("--rename", help="Accept the export of an owner with another name.")] = False,
) -> None:
    """Read an export into the empty memory of an owner; vectors are computed anew."""
    from deltamem.journal.transfer import import_owner

    with ExitStack() as stack:
        stream: TextIO
        if str(file) == "-":
            stream = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8")
            stack.callback(stream.detach)
        else:
            stream = stack.enter_context(file.open(encoding="utf-8"))
        _, owned = stack.enter_context(_bank(options, create=True))
        try:
            counts = import_owner(owned.journal, stream, rename=rename)
        except DeltaMemError as error:
            raise DeltaMemError(f"{'standard input' if str(file) == '-' else file}: {error}") from error
        owned.reload()
    if options.as_json:
        Output().json({"owner": options.required_owner, **counts._asdict()})
        return
    Output().lines([((f"{counts.memories} memories and {counts.entries} journal entries read from {file}", ""),)])


def forget(
    options: Options,
    memory_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Id of the memory, such as m1.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--everything", help="Forget all that is known of the owner.")] = False,
    yes: Yes = False,
) -> None:
    """Erase a memory for good, with its history and the turns it came from, or everything about the owner."""
    owner = options.required_owner
    if everything == (memory_id is not None):
        raise DeltaMemError("give either the id of a memory or --everything")
    with past(options) as journal:
        require_entries(options, journal)
        if memory_id is None:
            question = (
                f"Erase everything about {owner!r} ({len(journal.state())} memories, {journal.head} entries) for good?"
            )
        else:
            steps = History(journal).history(utf8(memory_id, "the id"))
            question = f"Erase {memory_id} and its {len(steps)} changes for good?"
    confirm(question, yes=yes)
    if memory_id is not None:
        with _bank(options) as (_, owned):
            entry = owned.forget(memory_id)
        _tell(options, entry, f"{memory_id} is erased; exports and backups made before are out of reach")
        return
    with store(options) as opened:
        erasure = opened.erase_owner(owner)
    if options.as_json:
        Output().json(
            {"owner": owner, "entries": erasure.entries, "memories": erasure.memories, "dialogues": erasure.dialogues}
        )
        return
    counts = f"{erasure.memories} memories, {erasure.entries} journal entries and {erasure.dialogues} dialogues"
    Output().lines([((f"{counts} of {owner!r} are erased", ""),)])


def audit(options: Options) -> None:
    """Look for duplicates, contradictions and memories that their sessions do not support. Changes nothing."""
    from deltamem.audit import audit as audit_state

    with past(options) as journal:
        require_entries(options, journal)
    with _bank(options) as (_, owned):
        state = owned.bank.state
        sources = {memory_id: _source(owned.journal, memory_id) for memory_id in state}
        found = audit_state(
            state, owned.bank.vectors(list(state)), sources, person_name=options.person or options.required_owner
        )
    if options.as_json:
        findings = [
            {
                "kind": str(finding.kind),
                "ids": list(finding.memory_ids),
                "similarity": finding.similarity,
                "detail": finding.detail,
            }
            for finding in found.findings
        ]
        Output().json(
            {
                "owner": owned.owner,
                "memories": found.memories,
                "without_source": found.without_source,
                "findings": findings,
            }
        )
        return
    lines: list[Line] = [
        ((f"{finding.kind}  ", "yellow"), (f"{' '.join(finding.memory_ids)}  ", "cyan"), (finding.detail, ""))
        for finding in found.findings
    ]
    counts = f"{len(found.findings)} findings in {found.memories} memories"
    Output().lines([*lines, ((f"{counts}, {found.without_source} of them without a stored session", ""),)])


def _source(journal: OwnerJournal, memory_id: str) -> str | None:
    """What was said in the sessions that shaped a memory; None if that is not stored."""
    said = [
        turn.content
        for entry, change in journal.history(memory_id)
        if entry.kind is EntryKind.SESSION and not entry.undone and change.event in (ChangeEvent.ADD, ChangeEvent.UPDATE)
        for turn in journal.dialogue(entry.position) or ()
    ]
    return "\n".join(said) or None
