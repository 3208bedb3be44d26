"""From the configuration to the system under test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deltamem.embedding import Embedder
from deltamem.errors import DeltaMemError, LLMError
from deltamem.policy import EndpointPolicy
from eval.config import BenchmarkConfig, ManagerModel
from eval.systems.base import System
from eval.systems.baselines import Evidence, FullContext, NaiveRag, Oracle
from eval.systems.deltamem import DeltaMemSystem

if TYPE_CHECKING:
    from eval.models import Models

SYSTEMS = ("deltamem", "full_context", "naive_rag", "mem0", "langmem", "oracle")
"""All systems by name."""

WITH_MODEL = ("deltamem", "mem0", "langmem")
"""Those that need a language model (configuration group ``manager``) to keep their memories."""

LEFT_OUT = {
    "a_mem": "its authors publish no package, and a-mem 0.2.6 on PyPI is a third party's MCP server, which takes a failed "
    "call of the model for an empty answer",
}
"""Systems that people ask for, and why they are not here."""

_NEEDS_MODEL = "system={system} needs a model: both base_url=<url> (or manager.base_url=<url>) and manager.model=<name>"


def check_system(name: str) -> None:
    """Refuse an unknown name before anything expensive happens.

    Raises:
        DeltaMemError: If there is no such system; lists those that exist, or says why it was left out.
    """
    if name in LEFT_OUT:
        raise DeltaMemError(f"system {name!r} is left out: {LEFT_OUT[name]}; there are: {', '.join(SYSTEMS)}")
    if name not in SYSTEMS:
        raise DeltaMemError(f"system {name!r} does not exist; there are: {', '.join(SYSTEMS)}")


@asynccontextmanager
async def open_system(
    config: BenchmarkConfig,
    folder: Path,
    embedder: Embedder,
    models: Models,
    *,
    evidence: Evidence | None = None,
) -> AsyncIterator[System]:
    """Make the system that the configuration names.

    Args:
        config: The configuration.
        folder: Where systems that keep their memories on disk put them.
        embedder: Of the run (see `eval.models.make_embedder`).
        models: The clients of the run; ``models.manager`` decides about the memories of ``deltamem``.
        evidence: Gold evidence, for ``oracle``.

    Yields:
        The system; what it opened is closed afterwards.

    Raises:
        DeltaMemError: If the system is unknown, or what it needs is missing.
    """
    check_system(config.system)
    if config.system in WITH_MODEL and (config.manager.base_url is None or config.manager.model is None):
        raise DeltaMemError(_NEEDS_MODEL.format(system=config.system))
    match config.system:
        case FullContext.name:
            yield FullContext()
        case NaiveRag.name:
            yield NaiveRag(embedder, with_time=config.with_time)
        case Oracle.name:
            if evidence is None:
                raise DeltaMemError("system=oracle needs gold evidence, and this benchmark names none")
            yield Oracle(evidence)
        case DeltaMemSystem.name:
            yield _deltamem(config, folder, embedder, models)
        case "mem0":
            from eval.systems.mem0 import Mem0System  # optional packages, and seconds of imports

            yield Mem0System(folder, embedder, config.manager, models.cache, seed=config.seed)
        case _:
            from eval.systems.langmem import LangMemSystem

            yield LangMemSystem(embedder, config.manager, models.cache, seed=config.seed)


def _deltamem(config: BenchmarkConfig, folder: Path, embedder: Embedder, models: Models) -> DeltaMemSystem:
    manager = config.manager
    settings = config.manager_settings()
    if models.manager is None:
        raise DeltaMemError(_NEEDS_MODEL.format(system=config.system))
    policy = EndpointPolicy(
        models.manager,
        temperature=manager.temperature,
        max_tokens=manager.max_tokens,
        seed=config.seed,
        tool_role=manager.tool_role,
        thinking=settings.episode.thinking,
    )
    return DeltaMemSystem(policy, embedder, folder, settings=settings, connect=lambda: connect(policy, manager))


async def connect(policy: EndpointPolicy, manager: ManagerModel) -> int | None:
    """Fail early if the model is unreachable; returns its context window in tokens, as configured or as the endpoint says.

    Raises:
        DeltaMemError: If the model does not answer, or an answer would fill the whole window.
    """
    await policy.check()
    window = manager.window
    if window is None:
        try:
            served = await policy.llm.models()
        except LLMError:  # some services do not list their models; sessions are then split when they are refused
            return None
        window = next((model.context_window for model in served if model.id == manager.model), None)
    if window is not None and manager.max_tokens is not None and manager.max_tokens >= window:
        raise DeltaMemError(f"manager.max_tokens={manager.max_tokens} leaves no room in a context window of {window} tokens")
    return window
