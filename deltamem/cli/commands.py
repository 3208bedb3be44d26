"""The commands that work on one owner's memory: show, search, history, diff, rollback, forget, audit ..."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltamem.cli.options import Options, check_bank, confirm, note_if_empty, parse_point, past, require_entries, store
from deltamem.cli.output import Display, Line, Output, Pieces, clock, utf8
from deltamem.edits import Add, Edit, Retract, Update, noted
from deltamem.errors import DeltaMemError
from deltamem.filters import check_queries, meeting, read_filter
from deltamem.journal.journal import JOURNAL_FILE, Journal
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.memory import Memory
from deltamem.records import (
    AuditRecord,
    DiffRecord,
    EntryRecord,
    ErasureRecord,
    JobRecord,
    JsonRecord,
    MemoryRecord,
    OriginRecord,
    StepRecord,
    ZoneRecord,
    similarity,
)
from deltamem.zones import iso_time

if TYPE_CHECKING:
    from deltamem.bank.store import MemoryStore, Ranking, Searcher, SearcherKind, UserStore
    from deltamem.journal.records import Entry, HistoryStep, Origin


POINT_HELP = "A session id, @N for a journal position, or an ISO 8601 time."
SIGNS = {ChangeEvent.ADD: "+", ChangeEvent.UPDATE: "~", ChangeEvent.NONE: "=", ChangeEvent.REMOVE: "-"}
STYLES = {ChangeEvent.ADD: "green", ChangeEvent.UPDATE: "yellow", ChangeEvent.NONE: "", ChangeEvent.REMOVE: "red"}

MemoryId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the memory, such as m1, or its UUID.", show_default=False)
]


def _memory_line(memory: Memory, width: int = 0) -> Pieces:
    said, time = f"  {memory.text}", clock(memory.time)
    return (memory.id.ljust(width), "cyan"), (f"  {time}", "blue"), (said, ""), (_behind(memory), "magenta")


def _behind(memory: Memory | None) -> str:
    """The metadata of a memory, to stand behind its text; empty if there is none."""
    return f"  {memory.metadata.written}" if memory is not None and memory.metadata else ""


Filters = Annotated[
    str | None,
    typer.Option("--filter", metavar="JSON", help='Only memories whose metadata meets it, such as {"topic": "work"}.'),
]
Noted = Annotated[
    str | None, typer.Option("--metadata", metavar="JSON", help='What to note on it, such as {"topic": "work"}.')
]


def _object(text: str | None, option: str) -> dict[str, Any] | None:
    """A JSON object as it is given on the command line."""
    if text is None:
        return None
    try:
        value = json.loads(utf8(text, option))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DeltaMemError(f'{option}: expected a JSON object such as {{"topic": "work"}}')
    return value


def show(
    options: Options,
    at: Annotated[str | None, typer.Option("--at", metavar="POINT", help=f"As it was at a point. {POINT_HELP}")] = None,
    filters: Filters = None,
) -> None:
    """Show the memories, as they are now or as they were at a point."""
    wanted = _object(filters, "--filter") or {}
    read_filter(wanted)  # a mistake in it is reported before anything is opened
    with past(options) as journal:
        note_if_empty(options, journal)
        state = journal.state(None if at is None else parse_point(at, journal))
    memories = meeting(state.memories, wanted)
    width = max((len(memory.id) for memory in memories), default=0)
    record = {"owner": journal.name, "memories": [MemoryRecord.of(memory).as_json() for memory in memories]}
    options.report(record, (_memory_line(memory, width) for memory in memories))


def history(options: Options, memory_id: MemoryId) -> None:
    """Show everything that happened to a memory, what was rolled back included."""
    with past(options) as journal:
        steps = journal.history(utf8(memory_id, "the id"))
    record = {"owner": journal.name, "id": memory_id, "steps": [StepRecord.of(step).as_json() for step in steps]}
    options.report(record, map(_step_line, steps))


def _signed(change: Change) -> Pieces:
    """What a change did, with the text after it; of a removed memory its last."""
    memory = change.after or change.before
    text = "(erased)" if change.erased or memory is None else memory.text
    signed = f"{SIGNS[change.event]} {change.memory_id}  {text}"
    return (signed, STYLES[change.event]), (_behind(change.after), "magenta")


def change_line(change: Change) -> Pieces:
    """A change on one indented line."""
    return ("  ", ""), *_signed(change)


def _step_line(step: HistoryStep) -> Line:
    entry, change = step.entry, step.change
    why = f"{entry.kind}"
    if entry.kind is EntryKind.SESSION and entry.session_time is not None:
        why = f"{entry.session_id} ({clock(entry.session_time)})"
    elif entry.restored is not None:
        why = f"rollback to @{entry.restored}"
    elif entry.actor is not None:
        why = f"edit by {entry.actor} ({clock(entry.recorded_at)})"
    undone = "  (rolled back)" if entry.undone else ""
    return (f"@{entry.position}", "cyan"), (f"  {why}  ", "blue"), *_signed(change), (undone, "")


def diff(
    options: Options,
    before: Annotated[str, typer.Argument(metavar="BEFORE", help=POINT_HELP, show_default=False)],
    after: Annotated[
        str | None, typer.Argument(metavar="[AFTER]", help="Likewise; by default now.", show_default=False)
    ] = None,
) -> None:
    """Show what changed between two points, memory by memory."""
    with past(options) as journal:
        note_if_empty(options, journal)
        points = [None if point is None else parse_point(point, journal) for point in (before, after)]
        positions = [journal.resolve(point) for point in points]
        found = journal.diff(*positions)
    record = {"owner": journal.name, **DiffRecord.of(found, before=positions[0], after=positions[1]).as_json()}
    lines: list[Line] = [((f"- {memory.id}  {memory.text}{_behind(memory)}", "red"),) for memory in found.removed]
    for old, new in found.changed:
        lines.append(((f"~ {old.id}  {old.text}{_behind(old)}", "yellow"),))
        lines.append(((f"  {'->'.rjust(len(old.id))}  {new.text}{_behind(new)}", "yellow"),))
    lines += [((f"+ {memory.id}  {memory.text}{_behind(memory)}", "green"),) for memory in found.added]
    options.report(record, lines)


def blame(options: Options, memory_id: MemoryId) -> None:
    """Show the sessions with their turns, and the edits, that a memory comes from."""
    with past(options) as journal:
        origins = journal.blame(utf8(memory_id, "the id"))
        memory = journal.state()[journal.memory_id(memory_id)]
    record = {
        "owner": journal.name,
        **MemoryRecord.of(memory).as_json(),
        "origins": [OriginRecord.of(origin).as_json() for origin in origins],
    }
    lines = [_memory_line(memory), *(line for origin in origins for line in _origin_lines(origin))]
    options.report(record, lines)


def _origin_lines(origin: Origin) -> list[Line]:
    source = f"edit by {origin.actor} ({clock(origin.recorded_at)})"
    if origin.session_id is not None and origin.session_time is not None:
        source = f"{origin.session_id} ({clock(origin.session_time)})"
    sign = f"  {SIGNS[origin.event]} "
    first = (f"  @{origin.position}", "cyan"), (f"  {source}", "blue"), (sign, ""), (origin.text, STYLES[origin.event])
    turns = ((turn.number, f"{turn.role}: {turn.content}" if turn.content else "(not stored)") for turn in origin.turns)
    return [first, *(f"      turn {number}  {content}" for number, content in turns)]


def export(
    options: Options,
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to; - is standard output.")] = Path("-"),
) -> None:
    """Write the memories and the whole journal as JSON lines.

    To standard output the export is all that is written, with --json too.
    """
    from deltamem.journal.transfer import export_owner
    from deltamem.runs import atomic_writer

    with past(options) as journal:
        note_if_empty(options, journal)
        if str(file) == "-":
            with Output().stream() as stream:
                export_owner(journal, stream)
            return
        with atomic_writer(file) as stream:
            counts = export_owner(journal, stream)
    record = {"owner": journal.name, "file": str(file), **counts._asdict()}
    sentence = f"{counts.memories} memories and {counts.entries} journal entries written to {file}"
    options.report(record, [sentence])


def view(
    options: Options,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The HTML file to write.", show_default=False)],
) -> None:
    """Write a page to look at the memory with: one HTML file that opens from disk and holds all of the owner's data."""
    from deltamem.page import memory_page
    from deltamem.runs import atomic_writer

    with past(options) as journal:
        require_entries(options, journal)
        page = memory_page(journal)
    with atomic_writer(out) as file:
        file.write(page)
    options.report({"owner": journal.name, "file": str(out)}, [f"written to {out}"])


def jobs(options: Options) -> None:
    """Show the sessions that were taken on and are not applied: what waits, until when, and why."""
    from deltamem.journal.jobs import JobState

    with past(options) as journal:
        found = journal.jobs(JobState.QUEUED, JobState.RUNNING, JobState.FAILED)
    record = {"owner": journal.name, "jobs": [JobRecord.of(job).as_json() for job in found]}
    lines: list[Line] = []
    for job in found:
        wait = f"  not before {clock(job.retry_at)}" if job.retry_at is not None else ""
        why = f"  {job.last_error}" if job.last_error is not None else ""
        attempts = f"  {job.attempts} attempts{wait}"
        lines.append(((job.id, "cyan"), (f"  {job.session_id}", "blue"), (f"  {job.state}", ""), (attempts + why, "")))
    options.report(record, lines)


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for a confirmation.")]


@contextmanager
def _bank(options: Options, *, create: bool = False) -> Iterator[tuple[MemoryStore, UserStore]]:
    owner = options.required_owner
    with Display() as display, store(options, create=create, progress=display.rebuilding) as opened:
        yield opened, opened.bank(owner)


def search(
    options: Options,
    queries: Annotated[
        list[str], typer.Argument(metavar="QUERY...", help="Each one is searched for itself.", show_default=False)
    ],
    k: Annotated[int, typer.Option("-k", min=1, metavar="N", help="Memories for each query.")] = 5,
    filters: Filters = None,
    *,
    further: Mapping[str, Any],
) -> None:
    """Find the memories most similar to a query."""
    from deltamem.bank.store import Ranking

    kinds: list[SearcherKind] = [kind for one in further.values() if (kind := one.searcher()) is not None]
    wanted = _object(filters, "--filter")
    read_filter(wanted or {})  # a mistake in it is reported before anything is opened
    texts = [utf8(query, "the query") for query in queries]
    check_queries(texts)
    with past(options) as journal:
        empty = note_if_empty(options, journal)
    found = [Ranking()] * len(texts)
    if not empty:
        with _bank(options) as (opened, owned):
            if kinds:
                found = asyncio.run(_ranked(kinds[0](owned, opened.embedder, owned.owner), texts, k, wanted))
            else:
                hits = owned.search(opened.embedder.queries, texts, k, wanted)
                found = [Ranking(tuple(one), ("",) * len(one)) for one in hits]
    results: list[dict[str, Any]] = []
    lines: list[Line] = []
    for text, ranking in zip(texts, found, strict=True):
        memories = []
        if len(texts) > 1:
            lines.append(((text, "bold"),))
        width = max((len(hit.memory.id) for hit in ranking.hits), default=0)
        for hit, why in zip(ranking.hits, ranking.reasons, strict=True):
            explained = {"explanation": why} if kinds else {}
            memories.append(MemoryRecord.of(hit.memory).as_json() | {"similarity": similarity(hit)} | explained)
            lines.append(((f"{hit.similarity:.3f}  ", ""), *_memory_line(hit.memory, width)))
            if kinds:
                lines.append(((f"       {why}", "magenta"),))
        results.append({"query": text, "memories": memories})
    options.report({"owner": options.required_owner, "results": results}, lines)


async def _ranked(searcher: Searcher, texts: list[str], k: int, wanted: dict[str, Any] | None) -> list[Ranking]:
    return [await searcher.search(text, k, wanted) for text in texts]


Actor = Annotated[
    str, typer.Option("--actor", envvar="DELTAMEM_ACTOR", metavar="NAME", help="Who writes; the journal records it.")
]
Time = Annotated[str | None, typer.Option("--time", metavar="TIME", help="ISO 8601 time of what the text says.")]
_ACTOR = "command line"


def remember(
    options: Options,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="One sentence.", show_default=False)],
    time: Time = None,
    metadata: Noted = None,
    actor: Actor = _ACTOR,
) -> None:
    """Write a memory without a model; by default with the present time."""
    given = _parse_time(time)
    values = noted(_object(metadata, "--metadata"))  # a mistake in it must not leave an empty bank behind
    said, actor = utf8(text, "the text"), utf8(actor, "the actor")
    with _bank(options, create=True) as (_, owned):
        when, zone = (given, None) if given is not None else owned.now()
        entry = owned.edit([Add(said, when, values)], actor)
    _report(options, entry, f"this is @{entry.position}", timezone=None if zone is None else ZoneRecord.of(zone))


def edit(
    options: Options,
    memory_id: MemoryId,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="What it shall say; by default as before.", show_default=False)
    ] = None,
    time: Time = None,
    metadata: Noted = None,
    actor: Actor = _ACTOR,
) -> None:
    """Rewrite a memory without a model; what is not given stays. --metadata replaces all that was noted."""
    if text is None and time is None and metadata is None:
        raise DeltaMemError("nothing to change: give a text, --time or --metadata")
    values = _object(metadata, "--metadata")
    said = None if text is None else utf8(text, "the text")
    _write(options, Update(utf8(memory_id, "the id"), said, _parse_time(time), values), actor)


def retract(options: Options, memory_id: MemoryId, actor: Actor = _ACTOR) -> None:
    """Take a memory back. Its history stays, and a rollback restores it; `forget` erases."""
    _write(options, Retract(utf8(memory_id, "the id")), actor)


def _parse_time(text: str | None) -> datetime | None:
    try:
        return None if text is None else iso_time(text)
    except ValueError:
        raise DeltaMemError(f"--time: {text!r} is no ISO 8601 time such as 2026-03-02T09:00") from None


def _write(options: Options, what: Edit, actor: str) -> None:
    """Write one edit of what is there and report it."""
    with past(options) as journal:
        require_entries(options, journal)
    with _bank(options) as (_, owned):
        entry = owned.edit([what], utf8(actor, "the actor"))
    _report(options, entry, f"this is @{entry.position}")


def rollback(
    options: Options, to: Annotated[str, typer.Argument(metavar="TO", help=POINT_HELP, show_default=False)], yes: Yes = False
) -> None:
    """Restore the memory as it was at a point; later sessions count as not added and may be added again."""
    with past(options) as journal:
        require_entries(options, journal)
        position = journal.resolve(parse_point(to, journal))
        undone = [entry for entry in journal.entries(position) if entry.kind is EntryKind.SESSION and not entry.undone]
    confirm(f"Take back {len(undone)} sessions of {journal.name!r}, to @{position}?", yes=yes)
    with _bank(options) as (_, owned):
        entry = owned.rollback(position)
    _report(options, entry, f"rolled back to @{position}; this is @{entry.position}")


def _report(options: Options, entry: Entry, sentence: str, **further: JsonRecord | None) -> None:
    """Report a journal entry and what it changed."""
    changes = [change for change in entry.changes if change.event is not ChangeEvent.NONE]
    record = {"owner": options.required_owner, **EntryRecord.of(entry).as_json()}
    record |= {name: one and one.as_json() for name, one in further.items()}
    options.report(record, [sentence, *map(change_line, changes)])


def import_(
    options: Options,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export; - is standard input.", show_default=False)],
    rename: Annotated[bool, typer.Option("--rename", help="Accept the export of an owner with another name.")] = False,
) -> None:
    """Read an export into the empty memory of an owner; vectors are computed again."""
    from deltamem.journal.transfer import import_owner

    with ExitStack() as stack:
        stream = sys.stdin.buffer if str(file) == "-" else stack.enter_context(file.open("rb"))
        _, owned = stack.enter_context(_bank(options, create=True))
        try:
            counts = import_owner(owned.journal, stream, rename=rename)
        except DeltaMemError as error:
            raise DeltaMemError(f"{'standard input' if str(file) == '-' else file}: {error}") from error
        owned.reload()
    sentence = f"{counts.memories} memories and {counts.entries} journal entries read from {file}"
    record = {"owner": options.required_owner, **counts._asdict()}
    options.report(record, [sentence])


def timezone(
    options: Options,
    name: Annotated[
        str | None, typer.Argument(metavar="[ZONE]", help="IANA name, such as Europe/Berlin.", show_default=False)
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget the time zone.")] = False,
) -> None:
    """Show or set the owner's time zone, by which what comes without a time is dated. No rollback changes it."""
    owner = options.required_owner
    if remove and name is not None:
        raise DeltaMemError("give either a time zone or --remove")
    check_bank(options)
    with Journal.open(options.bank / JOURNAL_FILE, read_only=name is None and not remove) as opened:
        journal = opened.owner(owner)
        if name is not None or remove:
            journal.set_timezone(name)
        known = journal.timezone
    options.report({"owner": owner, "timezone": known}, [known or f"{owner!r} has no time zone of their own"])


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
        if not (everything and journal.jobs()):
            require_entries(options, journal)
        if memory_id is None:
            question = (
                f"Erase everything about {owner!r} ({len(journal.state())} memories, {journal.head} entries) for good?"
            )
        else:
            steps = journal.history(utf8(memory_id, "the id"))
            question = f"Erase {memory_id} and its {len(steps)} changes for good?"
    confirm(question, yes=yes)
    if memory_id is not None:
        with _bank(options) as (_, owned):
            entry = owned.forget(memory_id)
        _report(options, entry, f"{memory_id} is erased; exports and backups made before are out of reach")
        return
    with store(options) as opened:
        erasure = opened.erase_owner(owner)
    record = {"owner": owner, **ErasureRecord.of(erasure).as_json()}
    counts = f"{erasure.memories} memories, {erasure.entries} journal entries and {erasure.dialogues} dialogues"
    options.report(record, [f"{counts} of {owner!r} are erased"])


def audit(options: Options) -> None:
    """Look for duplicates, contradictions and memories that their sessions do not support. Changes nothing."""
    from deltamem.audit import audit_owner

    with past(options) as journal:
        require_entries(options, journal)
    with _bank(options) as (_, owned):
        found = audit_owner(owned, options.person or options.required_owner)
    record = {"owner": owned.owner, **AuditRecord.of(found).as_json()}
    lines: list[Line] = [
        ((f"{finding.kind}  ", "yellow"), (f"{' '.join(finding.memory_ids)}  ", "cyan"), (finding.detail, ""))
        for finding in found.findings
    ]
    counts = f"{'' if found.complete else 'the first '}{len(found.findings)} findings in {found.memories} memories"
    lines.append(((f"{counts}, {found.without_source} of them without a stored session", ""),))
    options.report(record, lines)
