"""From the configuration to the system under test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from deltamem.embedding import Embedder, load_embedder
from deltamem.endpoint_policy import EndpointPolicy
from deltamem.errors import DeltaMemError, LLMError
from deltamem.llm_cache import ResponseCache
from eval.locomo.deltamem_system import DeltaMemSystem
from eval.locomo.session_log import SessionRecord
from eval.locomo.settings import LocomoConfig, ManagerEndpoint
from eval.locomo.systems import NaiveRag, System

SYSTEMS = (DeltaMemSystem.name, NaiveRag.name)

MEMORY_FOLDER = "memory"


def check_system(name: str) -> None:
    """Refuse an unknown name before anything expensive happens.

    Raises:
        DeltaMemError: If there is no such system; lists those that exist.
    """
    if name not in SYSTEMS:
        raise DeltaMemError(f"system {name!r} does not exist; there are: {', '.join(SYSTEMS)}")


@asynccontextmanager
async def open_system(
    config: LocomoConfig, data_sha256: str, on_session: Callable[[SessionRecord], None]
) -> AsyncIterator[System]:
    """Make the system that the configuration names.

    Args:
        config: The configuration.
        data_sha256: Hash of the benchmark file.
        on_session: Told of each session that a language model has read.

    Yields:
        The system; its connections are closed afterwards.

    Raises:
        DeltaMemError: If the system is unknown, or what it needs is missing.
    """
    check_system(config.system)
    if config.system == NaiveRag.name:
        yield NaiveRag(_embedder(config), config.turn_text)
        return
    async with AsyncExitStack() as stack:
        policy = _policy(config, stack)
        yield DeltaMemSystem(
            policy,
            _embedder(config),
            config.out / MEMORY_FOLDER,
            settings=config.manager_settings(),
            turn_text=config.turn_text,
            making=config.making(data_sha256),
            max_concurrency=config.endpoint.max_concurrency,
            connect=lambda: _connect(policy, config.endpoint),
            on_session=on_session,
        )


def _embedder(config: LocomoConfig) -> Embedder:
    return load_embedder(**config.embedder.model_dump())


def _policy(config: LocomoConfig, stack: AsyncExitStack) -> EndpointPolicy:
    endpoint = config.endpoint
    cache = None
    if endpoint.cache is not None:
        cache = ResponseCache(endpoint.cache)
        stack.callback(cache.close)
    llm = endpoint.client(endpoint.max_concurrency, cache)
    stack.push_async_callback(llm.close)
    return EndpointPolicy(
        llm,
        temperature=endpoint.temperature,
        max_tokens=endpoint.max_tokens,
        seed=config.seed,
        tool_role=endpoint.tool_role,
        thinking=config.manager_settings().episode.thinking,
    )


async def _connect(policy: EndpointPolicy, endpoint: ManagerEndpoint) -> int | None:
    """Make sure that the endpoint answers; its context window, as configured or as the endpoint tells.

    Raises:
        DeltaMemError: If the endpoint does not answer, or an answer would fill the whole window.
    """
    await policy.check()
    window = endpoint.window
    if window is None:
        try:
            served = await policy.llm.models()
        except LLMError:  # some services do not list their models; sessions are then split when they are refused
            return None
        window = next((model.context_window for model in served if model.id == endpoint.model), None)
    if window is not None and endpoint.max_tokens >= window:
        raise DeltaMemError(
            f"endpoint.max_tokens={endpoint.max_tokens} leaves no room in a context window of {window} tokens"
        )
    return window
