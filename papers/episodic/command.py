"""The commands `episodes ...`: what an agent did, and what it has learned from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from deltamem.cli.commands import MemoryId, change_line
from deltamem.cli.model import loaded_model
from deltamem.cli.options import Options, note_if_empty, past, require_entries, store
from deltamem.cli.output import Line, Pieces, utf8
from deltamem.errors import DeltaMemError, NotFoundError
from deltamem.records import ChangeRecord, OriginRecord

if TYPE_CHECKING:
    from papers.episodic import AgentTrajectory, EpisodeSummary, IngestedTrajectory, Reflection


def _agent(options: Options) -> Options:
    """The options with the agent's owner, whose name is given with or without ``agent:``."""
    from papers.episodic.records import agent_owner

    return replace(options, owner=agent_owner(utf8(options.required_owner, "the owner")))


def add(
    options: Options,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Trajectories: objects with id, time and messages.", show_default=False),
    ],
    keep_turns: Annotated[
        bool, typer.Option("--keep-turns", help="Store what was said; it is data of users, and lets `show` quote it.")
    ] = False,
) -> int:
    """Read finished conversations of an agent with the model, and keep its episodes and reflections.

    The files are read whole first. What is interrupted goes on where it was when the command is repeated.
    """
    from papers.episodic.records import read_trajectories

    options = _agent(options)
    trajectories = [trajectory for file in files for trajectory in read_trajectories(file)]
    return asyncio.run(_add(options, trajectories, keep_turns=keep_turns))


async def _add(options: Options, trajectories: Sequence[AgentTrajectory], *, keep_turns: bool) -> int:
    from papers.episodic import EpisodicMemory, EpisodicSettings

    code = 0
    # The model first: an unreachable one must not leave an empty bank behind.
    async with loaded_model(options, thinking=True) as (policy, _):
        with store(options, create=True) as opened:
            agent = EpisodicMemory(opened, options.required_owner, policy, EpisodicSettings(keep_turns=keep_turns))
            for trajectory in trajectories:
                try:
                    done = await agent.ingest(trajectory)
                except DeltaMemError as error:
                    code = 1
                    record: dict[str, Any] = {"trajectory": trajectory.id, "outcome": "failed", "error": str(error)}
                    lines: list[Line] = [((trajectory.id, "cyan"), ("  failed", "red")), ((f"  ! {error}", "red"),)]
                else:
                    code = max(code, int(str(done.outcome) == "unreadable"))
                    record, lines = _ingested(done)
                options.report(record, lines)
    return code


def _ingested(done: IngestedTrajectory) -> tuple[dict[str, Any], list[Line]]:
    changes = [ChangeRecord.of(change).as_json() for change in done.changes]
    record = asdict(replace(done, changes=())) | {"changes": changes, "usage": dict(done.usage)}
    lines: list[Line] = [((done.trajectory, "cyan"), (f"  {done.outcome}  {done.usage.calls} calls", ""))]
    lines += [(("  ", ""), *_episode_line(one)) for one in done.episodes]
    lines += [change_line(change) for change in done.changes]
    said = [f"{count} {name}" for name, count in done.violations.items()]
    return record, lines + [((f"  ! {text}", "yellow"),) for text in (*done.notes, *([", ".join(said)] if said else []))]


def list_(options: Options) -> None:
    """Show the episodes and the reflections."""
    from papers.episodic.records import episodes_of, reflections_of

    options = _agent(options)
    with past(options) as journal:
        note_if_empty(options, journal)
        state = journal.state()
    episodes, reflections = episodes_of(state), reflections_of(state)
    record = {
        "owner": journal.name,
        "episodes": [asdict(one) for one in episodes],
        "reflections": [asdict(one) for one in reflections],
    }
    lines = [*map(_episode_line, episodes), *(_reflection_line(one) for one in reflections)]
    options.report(record, lines)


def show(options: Options, memory_id: MemoryId) -> None:
    """Show an episode with its turns, or a reflection and what it comes from."""
    from papers.episodic.records import EpisodeSummary, RecordKind, Reflection, kind_of, turns_of

    options = _agent(options)
    with past(options) as journal:
        require_entries(options, journal)
        origins = journal.blame(utf8(memory_id, "the id"))
        state = journal.state()
    memory = state[journal.memory_id(memory_id)]
    kind = kind_of(memory)
    if kind is RecordKind.EPISODE:
        episode = EpisodeSummary.of(memory)
        turns = turns_of(state, episode)
        record = asdict(episode) | {"turns": [asdict(turn) for turn in turns]}
        lines = [_episode_line(episode), *_fields(record, "situation", "justification", "reflection")]
        for turn in turns:
            lines.append(((f"  turn {turn.turn}  {turn.intent}", "bold"),))
            lines += _fields(asdict(turn), "action", "thought", "achieved_why")
    elif kind is RecordKind.REFLECTION:
        reflection = Reflection.of(memory)
        record = asdict(reflection) | {"origins": [OriginRecord.of(origin).as_json() for origin in origins]}
        lines = [_reflection_line(reflection), *_fields(record, "use_cases", "hints")]
        for origin in origins:
            numbers = ", ".join(dict.fromkeys(str((turn.number + 1) // 2) for turn in origin.turns)) or "-"
            lines.append(((f"  {origin.session_id or f'edit by {origin.actor}'}", "blue"), (f"  turns {numbers}", "")))
            lines += [((f"    {turn.role}: {turn.content}", ""),) for turn in origin.turns if turn.content]
    else:
        raise NotFoundError(f"{memory_id} is neither an episode nor a reflection; see `deltamem episodes list`")
    options.report({"owner": journal.name, **record}, lines)


def recall(
    options: Options,
    task: Annotated[str, typer.Argument(metavar="TASK", help="What is to be done.", show_default=False)],
    k: Annotated[int, typer.Option("-k", min=0, metavar="N", help="Reflections at most.")] = 5,
    episodes: Annotated[int, typer.Option("--episodes", min=0, metavar="N", help="Similar episodes at most.")] = 3,
) -> None:
    """Find the reflections and the similar episodes that help with a task."""
    from papers.episodic.memory import recall as find

    options = _agent(options)
    with store(options) as opened:
        found = find(opened.bank(options.required_owner), opened.embedder, utf8(task, "the task"), k, episodes)
    record = {
        "owner": options.required_owner,
        "reflections": [asdict(one) | {"similarity": round(close, 6)} for one, close in found.reflections],
        "episodes": [asdict(one) | {"similarity": round(close, 6)} for one, close in found.episodes],
    }
    lines: list[Line] = []
    for reflection, close in found.reflections:
        lines += [
            ((f"{close:.3f}  ", ""), *_reflection_line(reflection)),
            *_fields(asdict(reflection), "use_cases", "hints"),
        ]
    for episode, close in found.episodes:
        lines.append(((f"{close:.3f}  ", ""), *_episode_line(episode)))
        lines += _fields(asdict(episode), "reflection")
    options.report(record, lines)


def _episode_line(one: EpisodeSummary) -> Pieces:
    turns = f"{one.trajectory} turns {one.first}-{one.last}"
    result = ("achieved", "green") if one.achieved else ("failed", "red")
    return (one.id, "cyan"), ("  ", ""), (turns, "blue"), ("  ", ""), result, (f"  {one.intent}", "")


def _reflection_line(one: Reflection) -> Pieces:
    return (one.id, "cyan"), (f"  {one.confidence:.1f}  ", "blue"), (one.title, "bold")


def _fields(record: dict[str, Any], *names: str) -> list[Line]:
    return [((f"    {name}: ", "blue"), (str(record[name]), "")) for name in names]


class EpisodeCommands:
    """The commands ``deltamem episodes ...``."""

    name: ClassVar = "episodes"
    help: ClassVar = "What an agent did and has learned from it: read trajectories, list, show and recall."
    commands: ClassVar[Mapping[str, Callable[..., int | None]]] = {"add": add, "list": list_, "show": show, "recall": recall}
