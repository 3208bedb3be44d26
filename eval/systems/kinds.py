"""Kinds of memory systems: what ``system=NAME`` stands for, found by entry points (group ``deltamem.systems``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from deltamem import plugins
from deltamem.config import StrictModel
from deltamem.embedding import Embedder
from deltamem.errors import DeltaMemError
from deltamem.policy import EndpointPolicy
from deltamem.prompts import load_prompt
from deltamem.window import estimate_tokens
from eval.config import BenchmarkConfig
from eval.models import Models
from eval.systems.base import DialogueSession, StoreKey, System, dated

MEMORY_TOKENS = 30
"""Assumed of one memory, for estimates."""

MEMORIES_A_TURN = 0.5
"""Assumed to be extracted from each turn."""


class Calls(NamedTuple):
    """Calls of a language model: how many, how many tokens they read together, and how many each of them writes."""

    number: float
    read: float
    written: float


@dataclass(frozen=True, slots=True)
class SystemContext:
    """What a system is made with."""

    config: BenchmarkConfig
    folder: Path  # For systems that keep their memories on disk
    embedder: Embedder
    models: Models
    # What the benchmark can tell beyond sessions, by name; see `eval.benchmark.Benchmark.extras`
    extras: Mapping[str, Callable[[], Any]] = field(default_factory=dict)

    def extra(self, name: str) -> Any:
        """One of the extras; None if the benchmark has none of that name."""
        return self.extras[name]() if name in self.extras else None

    def policy(self) -> EndpointPolicy:
        """The manager's model as a policy."""
        manager = self.config.manager
        assert self.models.manager is not None  # as one is named
        return EndpointPolicy(
            self.models.manager,
            temperature=manager.temperature,
            max_tokens=manager.max_tokens,
            seed=self.config.seed,
            tool_role=manager.tool_role,
            thinking=self.config.manager_settings().episode.thinking,
            extra_body=manager.extra_body,
        )


class SystemKind(ABC):
    """A kind of memory system. Stands for its systems where timelines are laid out before one is made."""

    name: str
    per_speaker: bool = False  # See `eval.systems.base.System`
    ranked: bool = True
    reads: bool = True  # Whether it takes sessions in at all
    with_model: bool = False  # Whether a language model (configuration group ``manager``) writes its memories
    packages: tuple[str, ...] = ()  # Whose versions decide what it remembers, beyond those that every run needs
    keys: ClassVar[type[StrictModel]] = StrictModel
    """Its own configuration keys, which stand beside those of all systems; each has a default."""

    def asks_model(self, config: BenchmarkConfig) -> bool:
        """Whether a system with this configuration asks the manager's model."""
        return self.with_model

    def run_config(self, config: BenchmarkConfig) -> dict[str, Any]:
        """What of its own decides the records, as JSON values."""
        return {}

    @abstractmethod
    def make(self, context: SystemContext) -> System:
        """The system; what it needs is opened with its stores.

        Raises:
            DeltaMemError: If something that it needs is missing.
        """

    def calls(self, session: DialogueSession, store: StoreKey, config: BenchmarkConfig) -> Iterable[Calls]:
        """An estimate of what it asks the model for to take in a session."""
        return ()

    def texts(self, session: DialogueSession) -> float:
        """An estimate of how many texts of a session it embeds."""
        return 2 * MEMORIES_A_TURN * len(session.turns)  # searched for, then kept

    def shown(self, sessions: Sequence[DialogueSession], passages: int) -> float:
        """An estimate of the tokens of so many passages of its memory of some sessions, before a budget cuts them."""
        return passages * MEMORY_TOKENS


_SYSTEMS = (
    *("deltamem", "episodic", "stitch", "full_context", "naive_rag", "copy_all"),
    *("mem0", "langmem", "lightmem", "oracle", "none"),
)
"""The order in which systems are listed; others follow."""


def system_names() -> list[str]:
    """Of all systems that are installed."""
    return sorted(plugins.load_all("systems"), key=lambda name: (*_SYSTEMS, name).index(name))


def system_kind(name: str) -> SystemKind:
    """The kind of system of a name.

    Raises:
        DeltaMemError: If there is no such system; lists those that exist.
    """
    if name in system_names():
        kind: SystemKind = plugins.load("systems", name)
        return kind
    raise DeltaMemError(f"system {name!r} does not exist; there are: {', '.join(system_names())}")


def asks_model(config: BenchmarkConfig) -> bool:
    """Whether the system of a run asks the manager's model; False for one that stands in for a configured one."""
    return config.system in system_names() and system_kind(config.system).asks_model(config)


def make_system(
    config: BenchmarkConfig,
    folder: Path,
    embedder: Embedder,
    models: Models,
    extras: Mapping[str, Callable[[], Any]] = {},
) -> System:
    """The system that the configuration names; see `SystemContext` for the arguments.

    Raises:
        DeltaMemError: If the system is unknown, or what it needs is missing.
    """
    kind = system_kind(config.system)
    if kind.asks_model(config) and (config.manager.base_url is None or config.manager.model is None):
        needs = "both base_url=<url> (or manager.base_url=<url>) and manager.model=<name>"
        raise DeltaMemError(f"system={config.system} needs a model: {needs}")
    return kind.make(SystemContext(config, folder, embedder, models, extras))


def prompt_tokens(name: str) -> int:
    """An estimate of the tokens of a prompt of the library."""
    return estimate_tokens(load_prompt(name).text)


def session_tokens(session: DialogueSession) -> int:
    """An estimate of the tokens of a session with its date on every turn."""
    date = len(dated("", session.time, True))
    return sum(estimate_tokens(turn.spoken) + date // 3 for turn in session.turns)


def turns_shown(sessions: Sequence[DialogueSession], passages: int) -> float:
    """`SystemKind.shown` of systems whose passages are turns."""
    turns = sum(len(session.turns) for session in sessions)
    return passages * sum(map(session_tokens, sessions)) / max(turns, 1)
