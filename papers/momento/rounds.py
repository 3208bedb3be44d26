"""``python -m papers.momento.rounds``: whether an agent does better for what it has learned, over rounds of the same tasks.

Agents with habits that the service refuses do ``momento-mini``; facts about users come from the gold evidence, so they fail
for their habits only. After each round some trials are given to episodic memory, and the next round recalls. Half of the
tasks never are: the reward of a reviewer is how much more often those succeed than without a memory.

Exit code 0; 1 if data of a user is found in what was kept; 2 for bad input.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pydantic import PositiveInt
from rich.console import Console
from rich.progress import track
from rich.table import Table

from deltamem.bank.store import MemoryStore
from deltamem.config import StrictModel, run_hydra, validated
from deltamem.embedding import CachedEmbedder, Embedder
from deltamem.errors import DeltaMemError
from deltamem.ingest import Outcome
from deltamem.runs import atomic_writer, git_commit, run_tasks, versions
from eval.config import EmbedderSettings
from eval.metrics import bootstrap_interval, with_width
from eval.models import make_embedder
from eval.runner import FAILED
from eval.summary import score_table, write_summary
from eval.systems.baselines import GoldEvidence
from papers.episodic import AgentTrajectory, EpisodicMemory, EpisodicSettings
from papers.momento.agent import ScriptedUser
from papers.momento.database import SQLiteDatabase
from papers.momento.facts import FactReader
from papers.momento.habits import CHOICES, CONTENT, DISCONTENT, HabitualAgent, RecordingToolbox, habit_tasks, habits_of
from papers.momento.mini import KINDS
from papers.momento.recall import MemoryRecall, dialogue_sessions
from papers.momento.reviewer import AddOnly, Praising, Quoting, Reviewer, Silent
from papers.momento.tasks import Task
from papers.momento.trial import Trial
from papers.momento.world import Catalogue, World

if TYPE_CHECKING:
    from omegaconf import DictConfig

NONE, REFLECTIONS = "none", "reflections"
REVIEWERS: Mapping[str, Callable[[], Reviewer]] = {
    REFLECTIONS: Reviewer,
    "add only": AddOnly,
    "silent": Silent,
    "praising": Praising,
    "quoting": Quoting,
}
"""Who reviews the trials, by condition; each has a memory of its own."""

CONDITIONS = (NONE, *REVIEWERS, "shuffled", "reversed", "everything")
"""Besides those with a reviewer: no memory, that of `REFLECTIONS` with its hints under other titles, or with what was right
and what was refused exchanged, and one in which every way of every argument was right."""

EVERYTHING = "\n".join(
    f"- How {tool} takes {one.argument}: " + "; ".join(f'"{way}" was right' for way in one.ways)
    for tool, choices in CHOICES.items()
    for one in choices
)


class RoundsConfig(StrictModel):
    """All keys of the command; ``configs/momento_rounds.yaml`` says what they mean."""

    out: Path
    seeds: PositiveInt
    rounds: PositiveInt
    reviews: PositiveInt
    limit: PositiveInt | None
    k: PositiveInt
    embedder: EmbedderSettings


class Learner:
    """One agent of a seed with its tasks, and under each condition its memory."""

    def __init__(self, seed: int, config: RoundsConfig, embedder: Embedder) -> None:
        """Make the tasks, and empty memories."""
        tasks, self.catalogue = habit_tasks(seed)
        self.seed, self.k, self.habits = seed, config.k, habits_of(seed)
        self.tasks = tasks[: config.limit]
        self.reviews = config.reviews
        settings = EpisodicSettings(vocabulary=tuple(self.catalogue.vocabulary))
        self.store = MemoryStore.in_memory(embedder)
        self.memories = {
            name: EpisodicMemory(self.store, name, reviewer(), settings) for name, reviewer in REVIEWERS.items()
        }
        self.reader = FactReader(self.catalogue)
        self.world = World(SQLiteDatabase(), self.catalogue)
        self.refused = {name: Counter[str]() for name in REVIEWERS}
        self.changes = {name: Counter[str]() for name in REVIEWERS}

    def seen(self, task: Task) -> bool:
        """Whether the memory learns from a task: from every other one of each kind."""
        return task.task_id // len(KINDS) % 2 == 0

    def reviewed(self, number: int) -> set[int]:
        """The tasks whose trials memory learns from after a round: so many of those that it may learn from, in turns."""
        seen = [task.task_id for task in self.tasks if self.seen(task)]
        first = (number - 1) * self.reviews
        return {seen[place % len(seen)] for place in range(first, first + self.reviews)}

    async def lessons(self, condition: str, query: str) -> str:
        """What is recalled for a query, as the agent reads it."""
        if condition == NONE:
            return ""
        if condition == "everything":
            return EVERYTHING
        memory = self.memories.get(condition, self.memories[REFLECTIONS])
        found = await memory.recall(query, self.k, episodes=0)
        hints = {one.title: one.hints for one in memory.reflections()}
        if condition == "shuffled":
            hints = _shuffled(hints)
        elif condition == "reversed":
            exchanged = {"right": "refused", "refused": "right"}
            hints = {
                title: re.sub("(?<=was )(right|refused)", lambda match: exchanged[match[1]], said)
                for title, said in hints.items()
            }
        changed = tuple((replace(one, hints=hints[one.title]), similarity) for one, similarity in found.reflections)
        return replace(found, reflections=changed).text

    async def trial(self, number: int, condition: str, task: Task) -> tuple[bool, list[dict[str, Any]]]:
        """Whether a trial of a round succeeds, and its messages."""
        self.world.reset(task.current_date, task.seed_data)
        box = RecordingToolbox(self.world)
        draw = random.Random(f"{self.seed} {number} {task.task_id}")
        agent = HabitualAgent(box, task, self.reader, self.habits, draw, partial(self.lessons, condition))
        known = GoldEvidence({task.opening: task.evidence})
        for session in dialogue_sessions(task):
            await known.ingest(session)
        recall = MemoryRecall(known, self.k, True, task.opening)
        trial = Trial(task, number, self.world, box, agent, ScriptedUser(task), recall, None, 4, None, "")
        record = await trial.run()
        if record.scores is None:
            raise DeltaMemError(f"agent {self.seed}, task {task.task_id}, {condition}: {record.error}")
        got = record.scores.state and record.scores.coverage == 1.0  # what a user notices
        return record.scores.passed, [*box.messages, {"role": "user", "content": CONTENT if got else DISCONTENT}]

    async def learn(self, number: int, condition: str, task: Task, messages: Sequence[dict[str, Any]]) -> None:
        """Give a trial to the memory of a condition."""
        time = datetime(2026, 1, 1) + timedelta(days=number, minutes=task.task_id)
        trajectory = AgentTrajectory.of(f"round-{number}-task-{task.task_id}", time, messages)
        done = await self.memories[condition].ingest(trajectory)
        self.refused[condition].update(done.violations)
        self.changes[condition].update([str(change.event) for change in done.changes])
        self.changes[condition]["unreadable"] += done.outcome is Outcome.UNREADABLE

    def close(self) -> None:
        """Let go of the databases."""
        self.store.close()
        self.world.database.close()

    def leaks(self) -> list[str]:
        """What of the users' data is in anything that was kept under whatever condition, also if it was replaced since."""
        journals = StringIO()
        for memory in self.memories.values():
            memory.memory.export(journals)
        text = journals.getvalue().casefold()
        return [one for one in canaries(self.catalogue) if re.search(rf"(?<!\w){re.escape(one.casefold())}(?!\w)", text)]


def canaries(catalogue: Catalogue) -> list[str]:
    """What must be in no reflection: names, ids, e-mail addresses, addresses and postcodes of all users."""
    keys = ("id", "first_name", "last_name", "email", "address1", "zip")
    return [str(user[key]) for user in catalogue.users for key in keys]


def _shuffled(hints: Mapping[str, str]) -> dict[str, str]:
    """Under each title the hints of another one that names none of the same ways; nothing where all do."""
    titles = sorted(hints)
    ways = {title: set(re.findall('"([^"]+)"', said)) for title, said in hints.items()}
    return {
        title: next((hints[other] for other in titles[place:] + titles[:place] if not ways[other] & ways[title]), "")
        for place, title in enumerate(titles)
    }


@dataclass(frozen=True)
class Outcomes:
    """Whether trials passed, by condition, round (from 1) and seed and task."""

    rounds: int
    passed: dict[tuple[str, int], dict[tuple[int, int], bool]]
    seen: frozenset[tuple[int, int]]

    def interval(self, condition: str, number: int, *, seen: bool, against: str | None = None) -> dict[str, float | int]:
        """The share that passed, or how much larger it is than under another condition.

        With its 95% interval over agents; of one agent over its tasks, which says nothing of other agents.
        """
        of = self.passed[condition, number]
        chosen = [key for key in of if (key in self.seen) == seen]
        values = [float(of[key]) - (self.passed[against, number][key] if against else 0) for key in chosen]
        agents = [seed for seed, _ in chosen]
        interval = bootstrap_interval(values, agents if len(set(agents)) > 1 else range(len(chosen)))
        assert interval is not None  # there are tasks of both kinds
        # Trials that are all alike are no proof that others would be; but no gain at all needs no width on one side.
        return (with_width(interval) if interval.estimate or not against else interval).as_dict()

    def summary(self) -> dict[str, Any]:
        """Shares by condition, tasks and round, and the rewards: what a memory gains on tasks that it has not seen."""
        numbers = range(1, self.rounds + 1)
        return {
            "success": {
                condition: {
                    name: [self.interval(condition, number, seen=seen) for number in numbers]
                    for name, seen in (("seen", True), ("unseen", False))
                }
                for condition in CONDITIONS
            },
            "reward": {
                condition: [self.interval(condition, number, seen=False, against=NONE) for number in numbers]
                for condition in CONDITIONS
                if condition != NONE
            },
        }


def evaluate(config: RoundsConfig, embedder: Embedder, console: Console) -> dict[str, Any]:
    """Run all agents and return the summary, which is written to the folder with ``trials.jsonl``.

    The same settings give the same files. Nothing is written before the end, so a run that was killed is begun again.

    Raises:
        DeltaMemError: If the embedder fails, or the limit leaves no task that memory does not learn from.
        OSError: If the folder cannot be written.
    """
    config.out.mkdir(parents=True, exist_ok=True)
    embedder.queries(["fail early"])
    with ExitStack() as stack:
        file = stack.enter_context(atomic_writer(config.out / "trials.jsonl"))  # now: another run into this folder waits
        agents = [Learner(seed, config, embedder) for seed in range(config.seeds)]
        for one in agents:
            stack.callback(one.close)
        return _evaluate(config, agents, file, console)


def _evaluate(config: RoundsConfig, agents: Sequence[Learner], file: TextIO, console: Console) -> dict[str, Any]:
    if any(all(map(one.seen, one.tasks)) for one in agents):
        raise DeltaMemError(f"limit={config.limit} leaves no task that memory does not learn from; take more")
    seen = frozenset((one.seed, task.task_id) for one in agents for task in one.tasks if one.seen(task))
    outcomes = Outcomes(config.rounds, {}, seen)
    steps = [(agent, number) for agent in agents for number in range(1, config.rounds + 1)]

    async def play() -> None:
        for agent, number in track(steps, "rounds of agents", console=console, disable=not console.is_terminal):
            reviewed = agent.reviewed(number)
            finished: list[tuple[str, Task, list[dict[str, Any]]]] = []
            for condition in CONDITIONS:
                for task in agent.tasks:
                    passed, messages = await agent.trial(number, condition, task)
                    outcomes.passed.setdefault((condition, number), {})[agent.seed, task.task_id] = passed
                    if condition in REVIEWERS and task.task_id in reviewed:
                        finished.append((condition, task, messages))
            for condition, task, messages in finished:  # not before all tasks of the round are done
                await agent.learn(number, condition, task, messages)
            if number == config.rounds and not console.is_terminal:
                console.print(f"agent {agent.seed + 1} of {config.seeds} is done", highlight=False)

    run_tasks(play)
    for (condition, number), of in outcomes.passed.items():
        for (seed, task), passed in of.items():
            line = {"condition": condition, "round": number, "seed": seed, "task": task, "passed": passed}
            file.write(json.dumps(line | {"seen": (seed, task) in seen}) + "\n")
    file.flush()  # neither file is replaced unless there is room for both
    summary = {
        "benchmark": "Momento, rounds of agents that learn",
        "settings": config.model_dump(mode="json", exclude={"out"}),
        "agents": [{"seed": one.seed, "habits": {" ".join(of): way for of, way in one.habits.items()}} for one in agents],
        "trials": sum(map(len, outcomes.passed.values())),
        "intervals": f"95%, bootstrap over {'agents' if config.seeds > 1 else 'the tasks of one agent'}",
        **outcomes.summary(),
        "memory": {name: _memory(agents, name) for name in REVIEWERS},
        "lessons": {
            str(one.seed): [f"{kept.title}. {kept.hints}" for kept in one.memories[REFLECTIONS].reflections()]
            for one in agents
        },
        "leaks": sorted({leak for one in agents for leak in one.leaks()}),
        "versions": versions() | {"git": git_commit()},
    }
    write_summary(config.out, summary)
    return summary


def _memory(agents: Sequence[Learner], name: str) -> dict[str, Any]:
    """What became of the answers of a reviewer, over all agents."""
    return {
        "reflections": sum(len(one.memories[name].reflections()) for one in agents),
        "changes": dict(sorted(sum((one.changes[name] for one in agents), Counter[str]()).items())),
        "refused": dict(sorted(sum((one.refused[name] for one in agents), Counter[str]()).items())),
    }


def table(summary: Mapping[str, Any]) -> Table:
    """Success by condition and round, in percent, and the reward of the last round."""
    rounds = summary["settings"]["rounds"]
    columns = (*map(str, range(1, rounds + 1)), "seen", "reward", "kept")
    shown = score_table("passed, %: unseen tasks by round, seen ones in the last", None, columns, corner="memory")
    for condition, of in summary["success"].items():
        cells = [f"{100 * one['estimate']:.0f}" for one in (*of["unseen"], of["seen"][-1])]
        reward, kept = "", ""
        if condition in summary["reward"]:
            last = summary["reward"][condition][-1]
            reward = f"{100 * last['estimate']:+.0f} [{100 * last['low']:.0f}, {100 * last['high']:.0f}]"
        if condition in summary["memory"]:
            kept = str(summary["memory"][condition]["reflections"])
        shown.add_row(condition, *cells, reward, kept)
    return shown


def main(config: RoundsConfig) -> int:
    """Run, and print the table; returns the exit code."""
    summary = evaluate(config, CachedEmbedder(make_embedder(config.embedder)), Console(stderr=True))
    console, shown = Console(), table(summary)
    needed = console.measure(shown, options=console.options.update(width=10_000)).maximum
    console = Console(width=max(console.width, needed))  # no number is cut off
    console.print(shown)
    console.print(f"{summary['trials']:,} trials; {config.out / 'summary.json'}", highlight=False, soft_wrap=True)
    if summary["leaks"]:
        Console(stderr=True).print(f"data of users was kept: {', '.join(summary['leaks'])}", markup=False, soft_wrap=True)
        return FAILED
    return 0


if __name__ == "__main__":

    def task(config: DictConfig) -> int:
        """Validate and run."""
        return main(validated(config, RoundsConfig))

    run_hydra(task, "momento_rounds", Path(__file__).parent / "configs")
