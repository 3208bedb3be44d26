"""The command `add`: read sessions with a language model and keep what is worth remembering."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from deltamem.cli.commands import change_line, record_of
from deltamem.cli.options import Options, store
from deltamem.cli.output import Line, Output, clock
from deltamem.errors import DeltaMemError, LLMError
from deltamem.records import TransitionRecord

if TYPE_CHECKING:
    from deltamem.cli.output import Display
    from deltamem.episode import EpisodeConfig
    from deltamem.ingest import Transition
    from deltamem.local_policy import CheckpointPolicy
    from deltamem.manager import MemoryManager
    from deltamem.policy import EndpointPolicy, Policy
    from deltamem.sessions import Session


_MAX_TOKENS = 2048
"""Tokens of one assistant text."""
_FEW_RETRIES = 2
"""A wrong URL should be reported soon, before the first session."""


class Endpoint(NamedTuple):
    """A model behind an endpoint."""

    policy: EndpointPolicy
    window: int | None
    """In tokens; None if it is not known."""
    served: list[str] | None
    """Names of the models that the endpoint lists; None if it lists none."""


async def connect(options: Options, *, thinking: bool = True) -> Endpoint:
    """Choose the model that the options name, and fail early if it does not answer.

    Args:
        options: Name the endpoint and how it is asked.
        thinking: Whether the model shall think, see `deltamem.episode.EpisodeConfig`.

    Raises:
        DeltaMemError: If no endpoint is named, it does not answer, or does not say which model to take.
    """
    from deltamem.llm import LLM
    from deltamem.policy import EndpointPolicy

    if options.base_url is None:
        raise DeltaMemError(
            "no model: name its endpoint with --base-url URL or DELTAMEM_BASE_URL, or a trained model with --checkpoint DIR"
        )
    asking = LLM(options.base_url, options.model or "(not named)", api_key_env=options.api_key_env, max_retries=_FEW_RETRIES)
    try:
        listed = await asking.models()
    except LLMError:
        # Some services do not list their models; then the name is needed, and the first request shows whether it is right.
        if options.model is None:
            raise
        listed = None
    finally:
        await asking.close()
    name = options.model
    if name is None:
        if listed is None or len(listed) != 1:
            names = ", ".join(model.id for model in listed or [])
            raise DeltaMemError(f"{options.base_url} serves {names or 'no model'}; choose one with --model NAME")
        name = listed[0].id
    windows = [model.context_window for model in listed or [] if model.id == name]
    window = options.window or (windows[0] if windows else None)
    first = LLM(options.base_url, name, api_key_env=options.api_key_env, max_retries=_FEW_RETRIES)
    try:
        await EndpointPolicy(first, tool_role=options.tool_role, thinking=thinking).check()
    finally:
        await first.close()
    policy = unchecked(options, name, thinking=thinking, window=window)
    return Endpoint(policy, window, None if listed is None else [model.id for model in listed])


def unchecked(options: Options, name: str, *, thinking: bool, window: int | None = None) -> EndpointPolicy:
    """A model behind the endpoint that the options name, whether or not it answers."""
    from deltamem.llm import LLM
    from deltamem.policy import EndpointPolicy

    window = window or options.window
    return EndpointPolicy(
        LLM(options.base_url or "", name, api_key_env=options.api_key_env),
        temperature=options.temperature,
        max_tokens=_MAX_TOKENS if window is None else _answer_tokens(window),
        tool_role=options.tool_role,
        thinking=thinking,
    )


def _answer_tokens(window: int) -> int:
    """The answer is part of the window, and most of it is needed for what the model reads."""
    return max(1, min(_MAX_TOKENS, window // 4))


def load(options: Options, folder: Path) -> CheckpointPolicy:
    """Load the model of a checkpoint folder into this process, on the GPU if there is one.

    Raises:
        DeltaMemError: If the folder holds no trained model that can be run here, or a package for it is missing.
    """
    episode = episode_of(folder)
    try:
        from deltamem.local_policy import CheckpointPolicy
    except ImportError as error:
        raise DeltaMemError(
            "running a checkpoint needs torch and transformers; install them with: pip install 'deltamem[local]', or name an"
            " endpoint that serves it with --base-url URL"
        ) from error
    policy = CheckpointPolicy(
        folder, temperature=options.temperature, thinking=episode.thinking, use_gpu=True, strict_window=True
    )
    policy.window = min(policy.window, options.window or policy.window)
    policy.max_new_tokens = _answer_tokens(policy.window)
    return policy


def _zeros(*names: str) -> Counter[str]:
    return Counter(dict.fromkeys(names, 0))


@dataclass(slots=True)
class Summary:
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
        return [((line, ""),) for line in totals + ["interrupted; what is listed above is stored"] * self.interrupted]


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


async def _add(options: Options, sessions: Sequence[Session]) -> Summary:
    from deltamem.cli.output import Display
    from deltamem.manager import ManagerSettings, MemoryManager

    episode = episode_of(options.checkpoint)
    # The model first: an unreachable one must not leave an empty bank behind.
    async with loaded_model(options, thinking=episode.thinking) as (policy, window):
        with Display() as display, store(options, create=True, progress=display.rebuilding) as opened:
            settings = ManagerSettings(options.person, episode, window_tokens=window)
            manager = MemoryManager(opened, options.required_owner, policy, settings)
            return await _ingest(manager, sessions, display, as_json=options.as_json)


@asynccontextmanager
async def loaded_model(options: Options, *, thinking: bool) -> AsyncIterator[tuple[Policy, int | None]]:
    """The model behind the endpoint or else the one in the checkpoint folder, and its window.

    Raises:
        LLMError: If the endpoint does not answer.
    """
    if options.base_url is None and options.checkpoint is not None:
        policy = load(options, options.checkpoint)
        try:
            yield policy, policy.window
        finally:
            policy.close()
    else:
        endpoint = await connect(options, thinking=thinking)
        try:
            yield endpoint.policy, endpoint.window
        finally:
            await endpoint.policy.llm.close()


def episode_of(checkpoint: Path | None) -> EpisodeConfig:
    """The prompts of a trained model, or else the usual ones.

    Raises:
        DeltaMemError: If the folder holds no trained model.
    """
    from deltamem.episode import EPISODE_FILE, EpisodeConfig, load_episode_config

    if checkpoint is None:
        return EpisodeConfig()
    if not (checkpoint / EPISODE_FILE).is_file():
        raise DeltaMemError(f"{checkpoint}: no {EPISODE_FILE} there, expected the folder of a trained model")
    return load_episode_config(checkpoint)


async def _ingest(manager: MemoryManager, sessions: Sequence[Session], display: Display, *, as_json: bool) -> Summary:
    output = Output()
    summary = Summary(len(sessions))
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
                record = record_of(TransitionRecord.of(transition))
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
    for change in transition.changes:
        lines.append(change_line(change))
    notes = [*transition.notes, *([f"violations: {_counts(transition.violations)}"] if transition.violations else [])]
    return lines + [((f"  ! {text}", "yellow"),) for text in notes]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
