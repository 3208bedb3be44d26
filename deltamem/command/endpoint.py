"""The model that the options name, and what its endpoint says about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from deltamem.command.options import Options
from deltamem.errors import DeltaMemError, LLMError

if TYPE_CHECKING:
    from deltamem.endpoint_policy import EndpointPolicy

_MAX_TOKENS = 2048
"""Tokens of one assistant text."""
_FEW_RETRIES = 2
"""Before the first session nobody should wait long to hear that a URL is wrong."""


class Endpoint(NamedTuple):
    """A model behind an endpoint.

    Attributes:
        policy: Asks the model.
        window: Its context window in tokens; None if nobody says.
        served: Names of the models that the endpoint serves; None if it does not tell.
    """

    policy: EndpointPolicy
    window: int | None
    served: list[str] | None


async def connect(options: Options, *, thinking: bool = True) -> Endpoint:
    """Ask the endpoint for its models, choose the one that the options name, and make sure that it answers.

    Args:
        options: Name the endpoint and how it is asked.
        thinking: Whether the model shall think, see `deltamem.episode.EpisodeConfig`.

    Raises:
        DeltaMemError: If no endpoint is named, it does not answer, or does not say which model to take.
    """
    from deltamem.endpoint_policy import EndpointPolicy
    from deltamem.llm import LLM

    if options.base_url is None:
        raise DeltaMemError("no model: name its endpoint with --base-url URL or in DELTAMEM_BASE_URL")
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
    # The answer is part of the window, and most of it is needed for what the model reads.
    max_tokens = _MAX_TOKENS if window is None else max(1, min(_MAX_TOKENS, window // 4))
    policy = EndpointPolicy(
        LLM(options.base_url, name, api_key_env=options.api_key_env),
        temperature=options.temperature,
        max_tokens=max_tokens,
        tool_role=options.tool_role,
        thinking=thinking,
    )
    return Endpoint(policy, window, None if listed is None else [model.id for model in listed])
