"""The options that every command takes, and how commands reach the memory: the journal alone or the whole store."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.models import OptionInfo

from deltamem.cli.output import Line, Output, note, utf8
from deltamem.errors import DeltaMemError
from deltamem.journal.journal import JOURNAL_FILE, Journal
from deltamem.journal.owner import OwnerJournal, Point
from deltamem.zones import Zone, process_zone

if TYPE_CHECKING:
    from deltamem.bank.store import MemoryStore, Progress


_INDEX = "Index"
_MODEL = "Model (add, doctor)"


def _option(help_text: str, metavar: str | None = None, panel: str | None = None, minimum: float | None = None) -> Any:
    """An option that is named by its field and is also a variable ``DELTAMEM_FIELD``, see `_option_fields`."""
    return typer.Option(metavar=metavar, help=help_text, rich_help_panel=panel, min=minimum)


def _number_option(kind: type[float], help_text: str) -> Any:
    """An option of the model with a number from 0, or ``none``: then requests go without it."""

    def parse(text: Any) -> float | None:
        if str(text).lower() in ("none", "null"):
            return None
        with suppress(ValueError):
            if 0 <= (number := kind(text)) < math.inf:
                return number
        raise typer.BadParameter(f"{text!r} is no number from 0 and not none")

    return typer.Option(parser=parse, metavar="NUMBER|none", help=help_text, rich_help_panel=_MODEL)


_TEMPERATURE = "Sampling temperature; with 'none' the endpoint's own. One that it refuses is left out."
_TOKENS = "Longest answer in tokens, 'none' for no limit; 0 is 2,048, or a quarter of a window that is known."
_WINDOW = "Context window of the model; by default what the endpoint or checkpoint says. Longer sessions are split."
_TIMEOUT = "How long to wait for an answer of the endpoint; a small machine needs minutes for a long session."
_ROLE = "Role of the messages with search results; services that refuse 'tool' take 'user'."
_MODE = (
    "How sessions are read: 'react' by a model that was trained for it, 'assisted' by any other, which is asked for one JSON"
    " object; 'auto' chooses."
)
_TIMEZONE = "Time zone, such as Europe/Berlin, of what comes without a time, unless the owner has one of their own."
_CHECKPOINT = "Folder of a trained model: asked with its own prompts, in this process if no --base-url names an endpoint."


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that every command takes, also as ``DELTAMEM_*`` variables; ``--help`` describes each."""

    bank: Annotated[Path, _option("Folder of the memory bank.", "DIR")] = Path("deltamem-bank")
    owner: Annotated[str | None, _option("Whose memory. Required, except by doctor.", "NAME")] = None
    timezone: Annotated[str | None, _option(_TIMEZONE, "ZONE")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON to standard output, and nothing else.")] = False
    embedder: Annotated[str, _option("Embedding model: a name, a folder or a hub name.", "NAME", _INDEX)] = (
        "all-MiniLM-L6-v2"
    )
    index_url: Annotated[
        str | None, _option("Chroma server that holds the index, instead of the bank's folder.", "URL", _INDEX)
    ] = None
    base_url: Annotated[str | None, _option("OpenAI-compatible endpoint, up to and including /v1.", "URL", _MODEL)] = None
    model: Annotated[
        str | None, _option("Model at the endpoint; may be left out if it serves only one.", "NAME", _MODEL)
    ] = None
    api_key_env: Annotated[
        str, _option("Environment variable that holds the endpoint's key, if it needs one.", "VARIABLE", _MODEL)
    ] = "OPENAI_API_KEY"
    window: Annotated[int | None, _option(_WINDOW, "TOKENS", _MODEL, minimum=1)] = None
    timeout: Annotated[float, _option(_TIMEOUT, "SECONDS", _MODEL, minimum=1)] = 600.0
    temperature: Annotated[float | None, _number_option(float, _TEMPERATURE)] = 0.0
    max_tokens: Annotated[int | None, _number_option(int, _TOKENS)] = 0
    mode: Annotated[Literal["auto", "react", "assisted"], _option(_MODE, None, _MODEL)] = "auto"
    tool_role: Annotated[Literal["tool", "user"], _option(_ROLE, None, _MODEL)] = "tool"
    checkpoint: Annotated[Path | None, _option(_CHECKPOINT, "DIR", _MODEL)] = None
    person: Annotated[str | None, _option("How memories name the person; by default as --owner does.", "NAME", _MODEL)] = (
        None
    )

    def __post_init__(self) -> None:
        """Refuse a time zone that there is not, whatever the command."""
        self.zone()

    def zone(self, *, serves: bool = False) -> Zone:
        """The time zone of owners who have none of their own, see `deltamem.zones.process_zone`."""
        return process_zone(self.timezone, serves=serves)

    def report(self, record: Mapping[str, Any], lines: Iterable[Line]) -> None:
        """Write a result to standard output, as JSON or for people."""
        Output().result(record, lines, as_json=self.as_json)

    @property
    def required_owner(self) -> str:
        """The owner."""
        if not self.owner:
            raise DeltaMemError("whose memory? name the owner with --owner NAME or in DELTAMEM_OWNER")
        return self.owner


def takes_options(
    command: Callable[..., int | None], further: Mapping[str, type[Any]] = MappingProxyType({})
) -> Callable[..., int | None]:
    """Give a command the fields of `Options` besides its own parameters, and those that plug-ins add to it.

    Args:
        command: A function whose first parameter is an `Options`; it returns the exit code (None is 0).
        further: Dataclasses of plug-ins by name, entry points of ``deltamem.options.COMMAND``: each field that is annotated
            with a `typer.Option` becomes an option. The command gets their instances by name as its parameter `further`.

    Returns:
        A function with a signature that typer can read.
    """
    given_to = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    own = [parameter for parameter in given_to if parameter.name != "further"]
    added = {name: _option_fields(kind) for name, kind in further.items()}

    @wraps(command)
    def with_options(**given: object) -> int | None:
        def taken(names: Iterable[inspect.Parameter]) -> dict[str, Any]:
            return {parameter.name: given.pop(parameter.name) for parameter in names}

        options = Options(**taken(_SHARED))
        if len(own) < len(given_to):
            given["further"] = {name: kind(**taken(added[name])) for name, kind in further.items()}
        return command(options, **given)

    parameters = [
        *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
        *(parameter for those in added.values() for parameter in those),
        *_SHARED,
    ]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


def _option_fields(kind: type[Any]) -> list[inspect.Parameter]:
    """The fields of a dataclass that are options, as parameters by keyword."""
    parameters = []
    for parameter in inspect.signature(kind, eval_str=True).parameters.values():
        for info in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                if not isinstance(info.default, str):  # typer takes the first name for a default until it builds the command
                    info.envvar = f"DELTAMEM_{parameter.name.upper()}"
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return parameters


_SHARED = _option_fields(Options)


def check_bank(options: Options) -> None:
    """Make sure that there is a bank, so that reading never makes one."""
    if not (options.bank / JOURNAL_FILE).is_file():
        raise DeltaMemError(f"{options.bank}: no memory bank there; `deltamem add`, `remember` or `import` makes one")


@contextmanager
def past(options: Options) -> Iterator[OwnerJournal]:
    """The owner's journal, read only: no lock, no vectors, so it works while an application holds the bank."""
    owner = options.required_owner
    check_bank(options)
    with Journal.open(options.bank / JOURNAL_FILE, read_only=True) as journal:
        yield journal.owner(owner)


def note_if_empty(options: Options, journal: OwnerJournal) -> bool:
    """Note on standard error if nothing is known of the owner, whose name may be mistyped; returns whether it is so."""
    if journal.head:
        return False
    note(f"note: {options.bank} holds nothing of {journal.name!r}")
    return True


def require_entries(options: Options, journal: OwnerJournal) -> None:
    """Make sure that something is known of the owner."""
    if not journal.head:
        raise DeltaMemError(f"{options.bank} holds nothing of {journal.name!r}")


@contextmanager
def store(
    options: Options, *, create: bool = False, progress: Progress | None = None, serves: bool = False
) -> Iterator[MemoryStore]:
    """The store, locked for this process; `progress` is called while an index is rebuilt.

    `serves` says that this machine is not the owners' own, see `Options.zone`.
    """
    from deltamem.bank.store import MemoryStore
    from deltamem.embedding import LazyEmbedder

    if not create:
        check_bank(options)
    embedder = LazyEmbedder(options.embedder)
    zone = options.zone(serves=serves)
    with MemoryStore.open(options.bank, embedder, index_url=options.index_url, progress=progress, zone=zone) as opened:
        yield opened


def parse_point(text: str, journal: OwnerJournal) -> Point:
    """A point as it is given on the command line, see `OwnerJournal.point`."""
    return journal.point(utf8(text, "the point"))


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal whether to go on, unless `yes` was given beforehand."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise DeltaMemError("this needs a confirmation and there is no terminal to ask on; repeat with --yes")
    if not typer.confirm(question, err=True):
        note("nothing was changed")
        raise typer.Exit(1)
