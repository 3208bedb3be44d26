"""Commands that only read the journal: show, history, diff, blame, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltamem.command.access import parse_point, past, tell_if_empty
from deltamem.command.options import Options
from deltamem.command.output import Line, Output, clock, utf8
from deltamem.command.records import memory_record, memory_records, origin_record, step_record
from deltamem.history import History, HistoryStep, Origin
from deltamem.journal.records import ChangeEvent, EntryKind
from deltamem.memory import Memory

POINT_HELP = "A session id, @N for a journal position, or an ISO 8601 time."
SIGNS = {ChangeEvent.ADD: "+", ChangeEvent.UPDATE: "~", ChangeEvent.NONE: "=", ChangeEvent.REMOVE: "-"}
STYLES = {ChangeEvent.ADD: "green", ChangeEvent.UPDATE: "yellow", ChangeEvent.NONE: "", ChangeEvent.REMOVE: "red"}

MemoryId = Annotated[str, typer.Argument(metavar="ID", help="Id of the memory, such as m1.", show_default=False)]


def memory_line(memory: Memory, width: int = 0) -> Line:
    """A memory on one line, its id padded to a width."""
    return (memory.id.ljust(width), "cyan"), ("  ", ""), (clock(memory.time), "blue"), ("  ", ""), (memory.text, "")


def show(
    options: Options,
    at: Annotated[str | None, typer.Option("--at", metavar="POINT", help=f"As it was at a point. {POINT_HELP}")] = None,
) -> None:
    """Show the memories, as they are now or as they were at a point."""
    with past(options) as journal:
        tell_if_empty(options, journal)
        state = History(journal).state(None if at is None else parse_point(at, journal))
    if options.as_json:
        Output().json({"owner": journal.name, "memories": memory_records(state.memories)})
        return
    width = max(map(len, state), default=0)
    Output().lines(memory_line(memory, width) for memory in state.memories)


def history(options: Options, memory_id: MemoryId) -> None:
    """Show everything that happened to a memory, what was rolled back included."""
    with past(options) as journal:
        steps = History(journal).history(utf8(memory_id, "the id"))
    if options.as_json:
        Output().json({"owner": journal.name, "id": memory_id, "steps": [step_record(step) for step in steps]})
        return
    Output().lines(_step_line(step) for step in steps)


def _step_line(step: HistoryStep) -> Line:
    entry, change = step.entry, step.change
    why = f"{entry.kind}"
    if entry.kind is EntryKind.SESSION and entry.session_time is not None:
        why = f"{entry.session_id} ({clock(entry.session_time)})"
    elif entry.restored is not None:
        why = f"rollback to @{entry.restored}"
    # A removed memory is told by what it said last.
    told = change.after or change.before
    text = "(erased)" if change.erased or told is None else told.text
    undone = "  (rolled back)" if entry.undone else ""
    sign = f"{SIGNS[change.event]} {change.memory_id}"
    return (
        (f"@{entry.position}", "cyan"),
        ("  ", ""),
        (why, "blue"),
        ("  ", ""),
        (f"{sign}  {text}", STYLES[change.event]),
        (undone, ""),
    )


def diff(
    options: Options,
    before: Annotated[str, typer.Argument(metavar="BEFORE", help=POINT_HELP, show_default=False)],
    after: Annotated[
        str | None, typer.Argument(metavar="[AFTER]", help="Likewise; by default now.", show_default=False)
    ] = None,
) -> None:
    """Show what changed between two points, memory by memory."""
    with past(options) as journal:
        tell_if_empty(options, journal)
        past_states = History(journal)
        points = [None if point is None else parse_point(point, journal) for point in (before, after)]
        positions = [past_states.resolve(point) for point in points]
        found = past_states.diff(*positions)
    if options.as_json:
        Output().json(
            {
                "owner": journal.name,
                "before": positions[0],
                "after": positions[1],
                "added": memory_records(found.added),
                "removed": memory_records(found.removed),
                "changed": [{"before": memory_record(old), "after": memory_record(new)} for old, new in found.changed],
            }
        )
        return
    lines: list[Line] = [((f"- {memory.id}  {memory.text}", "red"),) for memory in found.removed]
    for old, new in found.changed:
        lines += [((f"~ {old.id}  {old.text}", "yellow"),), ((f"  {'->'.rjust(len(old.id))}  {new.text}", "yellow"),)]
    lines += [((f"+ {memory.id}  {memory.text}", "green"),) for memory in found.added]
    Output().lines(lines)


def blame(options: Options, memory_id: MemoryId) -> None:
    """Show the sessions and turns that a memory comes from."""
    with past(options) as journal:
        past_states = History(journal)
        origins = past_states.blame(utf8(memory_id, "the id"))
        memory = past_states.state()[memory_id]
    if options.as_json:
        records = [origin_record(origin) for origin in origins]
        Output().json({"owner": journal.name, **memory_record(memory), "origins": records})
        return
    Output().lines([memory_line(memory), *(line for origin in origins for line in _origin_lines(origin))])


def _origin_lines(origin: Origin) -> list[Line]:
    first = f"  @{origin.position}"
    session = f"{origin.session_id} ({clock(origin.session_time)})"
    lines: list[Line] = [
        (
            (first, "cyan"),
            ("  ", ""),
            (session, "blue"),
            (f"  {SIGNS[origin.event]} ", ""),
            (origin.text, STYLES[origin.event]),
        )
    ]
    for turn in origin.turns:
        said = f"{turn.role}: {turn.content}" if turn.content else "(not stored)"
        lines.append(((f"      turn {turn.number}  {said}", ""),))
    return lines


def export(
    options: Options,
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to; - is standard output.")] = Path("-"),
) -> None:
    """Write the memories and the whole journal as JSON lines.

    To standard output the export is all that is written, with --json too.
    """
    from deltamem.files import atomic_writer
    from deltamem.journal.transfer import export_owner

    with past(options) as journal:
        tell_if_empty(options, journal)
        if str(file) == "-":
            with Output().stream() as stream:
                export_owner(journal, stream)
            return
        with atomic_writer(file) as stream:
            counts = export_owner(journal, stream)
    if options.as_json:
        Output().json({"owner": journal.name, "file": str(file), **counts._asdict()})
        return
    Output().lines([((f"{counts.memories} memories and {counts.entries} journal entries written to {file}", ""),)])
