"""What other people's memory systems are told of the model that keeps the memories."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import openai

from deltamem.errors import DeltaMemError
from deltamem.llm_errors import explain
from eval.settings import ManagerModel
from eval.systems.protocol import DialogueTurn, SystemUnavailableError, Usage

_HOPELESS = (
    openai.APIConnectionError,
    openai.AuthenticationError,
    openai.PermissionDeniedError,
    openai.NotFoundError,
)
"""Failures that do not depend on the session."""


@dataclass(slots=True)
class PeerEndpoint:
    """An endpoint as a client of OpenAI's is told of it.

    Attributes:
        base_url: Up to and including ``/v1``.
        model: Name under which the endpoint serves the model.
        api_key: Never empty, because clients refuse to go without.
        settings: The configuration it comes from.
        reached: Whether it has answered in this process.
    """

    base_url: str
    model: str
    api_key: str
    settings: ManagerModel
    reached: bool = False

    @classmethod
    def of(cls, settings: ManagerModel) -> Self:
        """The endpoint of a configuration.

        Raises:
            DeltaMemError: If URL, model or key are missing or wrong.
        """
        llm = settings.client("manager", None)
        return cls(llm.base_url, llm.model, os.environ.get(settings.api_key_env, "").strip() or "none", settings)

    def note(self, usage: Usage) -> None:
        """Note that calls succeeded."""
        self.reached = self.reached or usage.calls > usage.cached

    def told(self, error: BaseException, what: str) -> DeltaMemError:
        """A failure of a library in one sentence; if it is the endpoint's, in the words that are used for all systems.

        Args:
            error: What the library raised.
            what: What it was doing.

        Returns:
            The error to raise; a `SystemUnavailableError` if the endpoint has never answered and will not.
        """
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, openai.OpenAIError | DeltaMemError):
            cause = cause.__cause__
        if isinstance(cause, DeltaMemError):  # of our embedder
            return cause
        if cause is None:
            return DeltaMemError(f"{what} failed: {type(error).__name__}: {error}")
        told = explain(
            cause, endpoint=self.base_url, model=self.model, api_key=self.api_key, api_key_env=self.settings.api_key_env
        )
        return SystemUnavailableError(str(told)) if isinstance(cause, _HOPELESS) and not self.reached else told


def require_peer(system: str, *modules: str) -> None:
    """Make sure that the packages of a system are installed, without importing them.

    Raises:
        DeltaMemError: If one is missing; names the command that installs it.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise DeltaMemError(
            f'system={system} needs the Python module {missing[0]}; install it with: pip install "deltamem[peers]"'
        )


def spoken_date(time: datetime) -> str:
    """A date as models read it best, for example ``8 May 2023, 13:56``."""
    return f"{time.day} {time:%B %Y}, {time:%H:%M}"


def message_groups(turns: Sequence[DialogueTurn], size: int | None) -> list[Sequence[DialogueTurn]]:
    """The turns in groups of a size; None means all in one."""
    size = size or max(len(turns), 1)
    return [turns[start : start + size] for start in range(0, len(turns), size)]
