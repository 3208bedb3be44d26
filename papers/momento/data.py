"""The configuration of Momento, and its tasks with the world that they take place in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from deltamem.errors import DeltaMemError
from eval.config import BenchmarkConfig, ModelSettings
from eval.data import nothing_usable
from papers.momento.mini import mini_catalogue, mini_tasks
from papers.momento.tasks import TaskSet, read_tasks
from papers.momento.world import Catalogue, read_catalogue


class MomentoConfig(BenchmarkConfig):
    """All keys of the command; ``configs/momento.yaml`` says what they mean."""

    database: str
    world: Path | None
    images: Path | None
    trials: PositiveInt
    turns: PositiveInt
    rounds: PositiveInt
    k: PositiveInt
    context_tokens: PositiveInt
    user: ModelSettings

    def check(self) -> None:
        """Refuse what cannot be run."""
        super().check()
        if (self.data is None) != (self.world is None):
            raise DeltaMemError("data=FILE and world=FOLDER go together: published tasks take place in the published world")
        if self.data is not None and not self.by_model:
            raise DeltaMemError("the script knows momento-mini only; published tasks need base_url=... answer.model=...")
        if self.data is not None and self.system == "oracle":
            raise DeltaMemError("system=oracle needs gold evidence, which the published tasks do not have")
        if self.estimate or self.budgets or self.answers_from:
            raise DeltaMemError("estimate, budgets and answers_from are not for this benchmark")

    @property
    def by_model(self) -> bool:
        """Whether the agent is a model."""
        return self.answer.model is not None

    @property
    def runs(self) -> int:
        """Trials of each task."""
        return self.trials

    def run_config(self) -> dict[str, Any]:
        """What decides the records, apart from data and prompts."""
        own = self.model_dump(mode="json", include={"trials", "turns", "rounds", "k", "context_tokens"})
        return super().run_config() | own | {"user": self.user.run_config() if self.by_model else None}


def read_data(config: MomentoConfig) -> tuple[TaskSet, Catalogue]:
    """The published files, or ``momento-mini``.

    Raises:
        DeltaMemError: If a file cannot be read, or the users are not those of the world.
    """
    if config.data is None or config.world is None:
        return mini_tasks(config.seed), mini_catalogue(config.seed)
    tasks, catalogue = read_tasks(config.data), read_catalogue(config.world)
    known = {str(user["id"]) for user in catalogue.users}
    if not any(task.user_id in known for task in tasks.tasks):
        raise nothing_usable(f"no user of {config.data} lives in {config.world}", ())
    return tasks, catalogue
