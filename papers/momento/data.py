"""The configuration of Momento, and its tasks with the world that they take place in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import PositiveInt, model_validator

from deltamem.errors import DeltaMemError
from eval.config import BenchmarkConfig, ModelSettings
from eval.data import nothing_usable
from papers.momento.mini import mini_catalogue, mini_tasks
from papers.momento.tasks import TaskSet, read_tasks
from papers.momento.world import Catalogue, read_catalogue

GIVEN_SUMMARIES = "given_summaries"
"""The system that builds no memory and searches the summaries of the data set, as the benchmark's own agent does."""

TEMPERATURE, TOP_P, TOP_K = 1.0, 0.95, {"qwen": 20, "gemma": 64}
"""How the paper samples from agents and customers (appendix B); top-k by family of models. It says nothing of others."""


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
    sessions_in_sql: bool | None
    user: ModelSettings

    @model_validator(mode="before")
    @classmethod
    def _sampled(cls, values: Any) -> Any:
        """Sample as published where no temperature is given."""
        for part in ("answer", "user"):
            settings = values.get(part)
            if isinstance(settings, dict) and settings.get("temperature") is None:
                family = next((top_k for name, top_k in TOP_K.items() if name in str(settings.get("model")).lower()), None)
                body = {} if family is None else {"top_p": TOP_P, "top_k": family}
                sampling = {"temperature": TEMPERATURE, "extra_body": body | dict(settings.get("extra_body") or {})}
                values = values | {part: settings | sampling}
        return values

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
        if self.by_model and self.user.model is None:
            raise DeltaMemError(
                "user.model=NAME plays the customer: the same for all agents that are compared (the paper: Qwen3.6-35B-A3B)"
            )

    @property
    def by_model(self) -> bool:
        """Whether the agent is a model."""
        return self.answer.model is not None

    @property
    def shows_sessions(self) -> bool:
        """Whether ``execute_sql`` shows the user's own sessions."""
        return self.system == GIVEN_SUMMARIES if self.sessions_in_sql is None else self.sessions_in_sql

    @property
    def runs(self) -> int:
        """Trials of each task."""
        return self.trials

    def run_config(self) -> dict[str, Any]:
        """What decides the records, apart from data and prompts."""
        own = self.model_dump(mode="json", include={"trials", "turns", "rounds", "k", "context_tokens"})
        by_model = {"user": self.user.run_config(), "sessions_in_sql": self.shows_sessions} if self.by_model else {}
        return super().run_config() | own | {"user": None} | by_model


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
