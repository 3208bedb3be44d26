"""The model and the embedder that the options name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deltamem.cli.options import Options
from deltamem.cli.output import note
from deltamem.errors import DeltaMemError, EmbedderUnavailableError, LLMError

if TYPE_CHECKING:
    from deltamem.bank.store import MemoryStore
    from deltamem.episode import EpisodeConfig
    from deltamem.local_policy import CheckpointPolicy
    from deltamem.policy import EndpointPolicy, Policy

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
    """The model behind the endpoint that the options name, once it has answered."""
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
    policy = _endpoint_policy(options, name, thinking=thinking, window=window)
    return Endpoint(policy, window, None if listed is None else [model.id for model in listed])


def _endpoint_policy(options: Options, name: str, *, thinking: bool, window: int | None) -> EndpointPolicy:
    from deltamem.llm import LLM
    from deltamem.policy import EndpointPolicy

    return EndpointPolicy(
        LLM(options.base_url or "", name, api_key_env=options.api_key_env),
        temperature=options.temperature,
        max_tokens=_MAX_TOKENS if window is None else _answer_tokens(window),
        tool_role=options.tool_role,
        thinking=thinking,
    )


def _answer_tokens(window: int) -> int:
    # The answer is part of the window, and most of it is needed for what the model reads.
    return max(1, min(_MAX_TOKENS, window // 4))


def load(options: Options, folder: Path) -> CheckpointPolicy:
    """Load the model of a checkpoint folder into this process, on the GPU if there is one."""
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


@asynccontextmanager
async def loaded_model(options: Options, *, thinking: bool) -> AsyncIterator[tuple[Policy, int | None]]:
    """The model behind the endpoint or else the one in the checkpoint folder, and its window."""
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


@asynccontextmanager
async def available_model(options: Options, *, thinking: bool) -> AsyncIterator[tuple[Policy | None, int | None]]:
    """The model that the options name, which need not answer yet; None if they name none."""
    if options.base_url is None and options.checkpoint is None:
        yield None, None
        return
    try:
        async with loaded_model(options, thinking=thinking) as found:
            yield found
    except LLMError as error:
        if options.model is None:
            raise
        # The sessions wait in the queue until it is there.
        note(f"the model does not answer yet: {error}")
        policy = _endpoint_policy(options, options.model, thinking=thinking, window=options.window)
        try:
            yield policy, options.window
        finally:
            await policy.llm.close()


def episode_of(checkpoint: Path | None) -> EpisodeConfig:
    """The prompts of a trained model, or else the usual ones."""
    from deltamem.episode import EPISODE_FILE, EpisodeConfig, load_episode_config

    if checkpoint is None:
        return EpisodeConfig()
    if not (checkpoint / EPISODE_FILE).is_file():
        raise DeltaMemError(f"{checkpoint}: no {EPISODE_FILE} there, expected the folder of a trained model")
    return load_episode_config(checkpoint)


def load_embedder(opened: MemoryStore) -> None:
    """Load the embedding model, so that a missing one ends the command and the first request does not wait for it."""
    from deltamem.embedding import is_endpoint

    try:
        opened.embedder.queries(["memory"])
    except EmbedderUnavailableError as error:
        if not is_endpoint(opened.embedder.name):
            raise
        note(f"the embedding model does not answer yet: {error}")
