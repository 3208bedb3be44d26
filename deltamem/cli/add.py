"""The command `add`: read sessions with a language model and keep what is worth remembering."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltamem.cli.commands import change_line
from deltamem.cli.model import opened_bank
from deltamem.cli.options import Options
from deltamem.cli.output import Line, Output, clock, note
from deltamem.errors import DeltaMemError
from deltamem.records import TransitionRecord

if TYPE_CHECKING:
    from deltamem.cli.output import Display
    from deltamem.ingest import Transition
    from deltamem.manager import MemoryManager
    from deltamem.sessions import Session


def _zeros(*names: str) -> Counter[str]:
    return Counter(dict.fromkeys(names, 0))


@dataclass(slots=True)
class AddTotals:
    """Totals over the sessions of one command."""

    sessions: int
    outcomes: Counter[str] = field(default_factory=lambda: _zeros("applied", "known", "unreadable", "failed"))
    operations: Counter[str] = field(default_factory=lambda: _zeros("ADD", "UPDATE", "NONE"))
    violations: Counter[str] = field(default_factory=Counter)
    usage: Counter[str] = field(
        default_factory=lambda: _zeros("calls", "cached", "prompt_tokens", "completion_tokens", "searches")
    )
    seconds: float = 0.0
    interrupted: bool = False

    def count(self, transition: Transition) -> None:
        """Count a session."""
        self.outcomes[str(transition.outcome)] += 1
        self.operations.update(str(change.event) for change in transition.changes)
        self.violations.update(transition.violations)
        self.usage.update({name: getattr(transition.usage, name) for name in self.usage})
        self.seconds += transition.seconds

    def record(self) -> dict[str, Any]:
        """The summary as JSON."""
        return {
            "sessions": self.sessions,
            **self.outcomes,
            "operations": dict(self.operations),
            "violations": dict(self.violations),
            "usage": dict(self.usage),
            "seconds": round(self.seconds, 3),
            "interrupted": self.interrupted,
        }

    def lines(self) -> list[Line]:
        """The summary for people."""
        usage = self.usage
        totals = [
            f"sessions    {self.sessions}: {_counts(self.outcomes)}",
            f"operations  {_counts(self.operations)}",
            f"violations  {_counts(self.violations) or 'none'}",
            f"model       {usage['calls']} calls, {usage['prompt_tokens']} tokens read, "
            f"{usage['completion_tokens']} written, {usage['searches']} searches, {self.seconds:.1f} s",
        ]
        return [*totals, *["interrupted; what is listed above is stored"] * self.interrupted]


def add(
    options: Options,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Session files, JSON or JSONL; - is standard input.", show_default=False),
    ],
) -> int:
    """Read sessions with the model and bring the memory up to date with them.

    The files are read whole before the first session is given to the model. A session id that is known changes nothing, so
    an interrupted command can simply be repeated.
    """
    from deltamem.sessions import read_dialogues

    owner = options.required_owner
    person = options.person or owner
    sessions = [session for file in files for session in read_dialogues(file, owner, person)]
    summary = asyncio.run(_add(options, sessions))
    return 1 if summary.outcomes["failed"] or summary.outcomes["unreadable"] else 0


async def _add(options: Options, sessions: Sequence[Session]) -> AddTotals:
    from deltamem.manager import MemoryManager

    async with opened_bank(options, needs_model=True) as (opened, policy, settings, display):
        assert policy is not None
        manager = MemoryManager(opened, options.required_owner, policy, settings)
        if options.mode == "auto" and manager.mode == "assisted":
            note(f"mode assisted: {manager.mode_reason}")
        return await _ingest(manager, sessions, display, as_json=options.as_json)


async def _ingest(manager: MemoryManager, sessions: Sequence[Session], display: Display, *, as_json: bool) -> AddTotals:
    output = Output()
    summary = AddTotals(len(sessions))
    try:
        for number, session in enumerate(sessions):
            display.sessions(number, len(sessions))
            record: dict[str, Any]
            try:
                transition = await manager.ingest(session)
            except DeltaMemError as error:
                summary.outcomes["failed"] += 1
                record = {"session": session.id, "time": session.time.isoformat(), "outcome": "failed", "error": str(error)}
                lines = [_heading(session, "failed", "red"), ((f"  ! {error}", "red"),)]
            else:
                summary.count(transition)
                record = TransitionRecord.of(transition).as_json()
                lines = _lines(session, transition)
            with display.hidden():
                output.result(record, lines, as_json=as_json)
    except asyncio.CancelledError:
        summary.interrupted = True
        raise
    finally:
        with display.hidden():
            output.result({"summary": summary.record()}, summary.lines(), as_json=as_json)
    return summary


def _heading(session: Session, outcome: str, style: str, cost: str = "") -> Line:
    return (session.id, "cyan"), (f"  {clock(session.time)}  ", "blue"), (outcome, style), (cost, "")


def _lines(session: Session, transition: Transition) -> list[Line]:
    usage = transition.usage
    cost = f"  {usage.calls} calls, {transition.seconds:.1f} s" if usage.calls else ""
    style = "red" if str(transition.outcome) == "unreadable" else "green"
    lines = [_heading(session, str(transition.outcome), style, cost)]
    lines += map(change_line, transition.changes)
    notes = [*transition.notes, *([f"violations: {_counts(transition.violations)}"] if transition.violations else [])]
    return lines + [((f"  ! {text}", "yellow"),) for text in notes]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
