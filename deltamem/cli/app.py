"""The application: its commands, and how it ends. Bad input is one sentence on standard error and exit code 2."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Protocol

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from deltamem import plugins
from deltamem.cli import commands
from deltamem.cli.add import add
from deltamem.cli.doctor import doctor
from deltamem.cli.options import takes_options
from deltamem.cli.output import note
from deltamem.cli.serve import KeyCommands, mcp, pause, resume, serve
from deltamem.config import USAGE_ERROR
from deltamem.errors import DeltaMemError

INTERRUPTED = 130


class CommandGroup(Protocol):
    """Commands under a name of their own, ``deltamem NAME ...``; entry points of ``deltamem.commands`` name such classes."""

    name: ClassVar[str]
    help: ClassVar[str]
    commands: ClassVar[Mapping[str, Callable[..., int | None]]]
    """By name. The first parameter of each is an `Options`, the others are typer's; it returns the exit code (None is 0)."""


_COMMANDS: tuple[Callable[..., int | None], ...] = (
    *(add, commands.remember, commands.edit, commands.retract, commands.search, commands.show, commands.history),
    *(commands.diff, commands.blame, commands.rollback, commands.view, commands.export, commands.import_, commands.forget),
    *(commands.audit, commands.jobs, commands.timezone, serve, mcp, pause, resume, doctor),
)
"""In the order of the help, by the names of the functions."""


class _Group(TyperGroup):
    """Ends every command in the same way."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run the command that the arguments name and exit.

        Exit code: 0; 1 if something that was asked for failed (a session, a check, a confirmation); 2 for wrong usage, bad
        data and what the operating system refuses; 130 when interrupted. Any other exception is a defect of ours and keeps
        its stack trace.
        """
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # whatever the encoding, no text is a reason to fail
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra) or 0
        except TyperException as error:
            code = _fail(f"{error.format_message().rstrip('.')}; see {prog_name or 'deltamem'} --help")
        except DeltaMemError as error:
            code = _fail(str(error))
        except OSError as error:
            code = _fail(f"{error.filename}: {error.strerror}" if error.filename is not None else str(error))
        except typer.Abort:
            code = INTERRUPTED
        if code == INTERRUPTED:
            note("interrupted")
        sys.exit(code)


def _fail(message: str) -> int:
    note(f"error: {message}")
    return USAGE_ERROR


app = typer.Typer(
    name="deltamem",
    cls=_Group,
    add_completion=False,
    help="Long-term memory of a person: read sessions, search what is known, see where it comes from, take it back.",
    epilog="Every option can also be given as a variable DELTAMEM_*, for example DELTAMEM_OWNER.",
)
for _command in _COMMANDS:
    _name = _command.__name__.rstrip("_")
    app.command(_name)(takes_options(_command, plugins.load_all(f"options.{_name}")))
_groups: list[CommandGroup] = [KeyCommands(), *(kind() for kind in plugins.load_all("commands").values())]
for _group in _groups:
    _typer = typer.Typer(name=_group.name, help=_group.help, no_args_is_help=True)
    for _name, _command in _group.commands.items():
        _typer.command(_name)(takes_options(_command))
    app.add_typer(_typer)


def main() -> None:
    """Run the command line."""
    # Loading an embedder would draw bars of its own, between ours.
    os.environ.setdefault("TQDM_DISABLE", "1")
    app(prog_name="deltamem")
