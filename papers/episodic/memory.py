"""An agent's episodic memory: trajectories become episodes, episodes become reflections, a task recalls both."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from deltamem.bank.store import MemoryStore, UserStore
from deltamem.blank import is_blank
from deltamem.embedding import Embedder
from deltamem.errors import DeltaMemError
from deltamem.ingest import Outcome
from deltamem.journal.records import Change, digest_of
from deltamem.llm import Usage
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.policy import Policy
from papers.episodic.personal import PersonalData
from papers.episodic.records import (
    AgentTrajectory,
    EpisodeSummary,
    RecordKind,
    Reflection,
    agent_owner,
    episodes_of,
    reflections_of,
)
from papers.episodic.review import EpisodicSettings, Review


@dataclass(frozen=True, slots=True)
class IngestedTrajectory:
    """What became of a trajectory."""

    trajectory: str
    outcome: Outcome
    """``unreadable``: the model's answers could not be understood at some stage. What was read before that is kept, and the
    trajectory may be given again, which goes on there."""
    episodes: tuple[EpisodeSummary, ...] = ()
    changes: tuple[Change, ...] = ()
    """Of the reflections, by this call."""
    violations: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    """Of this call."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """What an agent remembers for a task, the most similar first, each with its similarity."""

    reflections: tuple[tuple[Reflection, float], ...]
    episodes: tuple[tuple[EpisodeSummary, float], ...]

    @property
    def text(self) -> str:
        """For a prompt: the lessons, then how similar episodes went. Empty if there is nothing."""
        lines = [one.line for one, _ in self.reflections] + [one.line for one, _ in self.episodes]
        return "\n".join(f"- {line}" for line in lines)


class EpisodicMemory:
    """What one agent has learned.

    Its journal is that of the owner ``agent:NAME``, and everything that holds for memories holds for its turns, episodes and
    reflections: see `memory`.
    """

    def __init__(self, store: MemoryStore, agent: str, policy: Policy, settings: EpisodicSettings | None = None) -> None:
        """Bind a store, an agent and the model that reviews its work.

        Args:
            store: Holds the journal and the bank.
            agent: The agent's name, with or without ``agent:``.
            policy: The language model.
            settings: How trajectories are read.

        Raises:
            DeltaMemError: If the name is empty or the bank cannot be opened.
        """
        self.owner = agent_owner(agent)
        self.settings = settings or EpisodicSettings()
        self.memory = MemoryManager(store, self.owner, policy, ManagerSettings())
        """For history, blame, diff, rollback, forget, export and edits. Not for `ingest`, which reads people's sessions."""
        self._policy = policy
        self._store = store
        self._owned = store.bank(self.owner)

    async def ingest(self, trajectory: AgentTrajectory) -> IngestedTrajectory:
        """Review a trajectory: analyse its turns, find its episodes, sum each up, and learn from it.

        Every stage is recorded when it is done: the notes of some turns, the summary of an episode, the reflections of an
        episode. So a call that was interrupted, whatever by, is simply repeated, and no answer of the model is asked for
        twice. A trajectory that is done changes nothing.

        Raises:
            LLMError: If the model cannot be reached; the stages before are recorded.
            DeltaMemError: If the trajectory has begun under this id with other content.
        """
        async with self._owned.turn():
            done = trajectory.session("", self.owner)
            if self._owned.journal.session_position(done.id) is not None:
                other = self._owned.journal.session_digest(done.id) != digest_of(done)
                said = f"trajectory {done.id!r} was ingested before with other content; nothing was changed"
                return IngestedTrajectory(done.id, Outcome.KNOWN, notes=(said,) * other)
            personal = await asyncio.to_thread(PersonalData, trajectory, self.settings.vocabulary)
            review = Review(trajectory, personal, self._owned, self._store.embedder, self._policy, self.settings)
            readable = await review.run()
            return IngestedTrajectory(
                trajectory.id,
                Outcome.APPLIED if readable else Outcome.UNREADABLE,
                tuple(review.episodes),
                tuple(review.changes),
                dict(review.violations),
                usage=review.usage,
            )

    async def recall(self, task: str, k: int = 5, episodes: int = 3) -> Recalled:
        """What helps with a task.

        Args:
            task: What is to be done, in any words.
            k: How many reflections at most.
            episodes: How many similar episodes at most.

        Raises:
            DeltaMemError: If the task is empty.
        """
        return await asyncio.to_thread(recall, self._owned, self._store.embedder, task, k, episodes)

    def reflections(self) -> list[Reflection]:
        """All reflections, in the order of their ids."""
        return reflections_of(self.memory.state())

    def episodes(self) -> list[EpisodeSummary]:
        """All episodes, in the order of their ids."""
        return episodes_of(self.memory.state())


def recall(owned: UserStore, embedder: Embedder, task: str, k: int, episodes: int) -> Recalled:
    """`EpisodicMemory.recall` for who has the agent's bank only."""
    if is_blank(task):
        raise DeltaMemError("the task is empty; say what is to be done")
    found = {
        kind: owned.search(embedder.queries, [task], count, {"kind": str(kind)})[0] if count > 0 else []
        for kind, count in ((RecordKind.REFLECTION, k), (RecordKind.EPISODE, episodes))
    }
    return Recalled(
        tuple((Reflection.of(hit.memory), float(hit.similarity)) for hit in found[RecordKind.REFLECTION]),
        tuple((EpisodeSummary.of(hit.memory), float(hit.similarity)) for hit in found[RecordKind.EPISODE]),
    )
