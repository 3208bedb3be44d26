"""The model and the embedder that the options name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deltamem.cli.options import Options, store
from deltamem.cli.output import Display, note
from deltamem.errors import DeltaMemError, EmbedderUnavailableError, LLMError

if TYPE_CHECKING:
    from deltamem.bank.store import MemoryStore
    from deltamem.episode import EpisodeConfig
    from deltamem.llm import LLM
    from deltamem.local_policy import CheckpointPolicy
    from deltamem.manager import ManagerSettings
    from deltamem.policy import EndpointPolicy, Policy

_MAX_TOKENS = 2048
"""Tokens of one assistant text."""


class Endpoint(NamedTuple):
    """A model behind an endpoint."""

    policy: EndpointPolicy
    window: int | None
    """In tokens; None if it is not known."""
    served: list[str] | None
    """Names of the models that the endpoint lists; None if it lists none."""


class OpenedBank(NamedTuple):
    """A bank, its model (None if there is none), and how sessions are read."""

    store: MemoryStore
    policy: Policy | None
    settings: ManagerSettings
    display: Display


async def connect(options: Options, *, thinking: bool = True) -> Endpoint:
    """The model behind the endpoint that the options name, once it has answered."""
    from deltamem.endpoint import endpoint_traits
    from deltamem.policy import choose_mode

    if options.base_url is None:
        raise DeltaMemError(
            "no model: name its endpoint with --base-url URL or DELTAMEM_BASE_URL, or a trained model with --checkpoint DIR"
        )
    name, listed = options.model, None
    async with _impatient(options, name or "(not named)") as llm:
        try:
            listed = {model.id: model for model in await llm.models()}
        except LLMError:
            # Some services do not list their models; then the name is needed, and the first request shows if it is right.
            if name is None:
                raise
    if name is None:
        if listed is None or len(listed) != 1:
            names = ", ".join(listed or ()) or "no model"
            raise DeltaMemError(f"{options.base_url} serves {names}; choose one with --model NAME")
        [name] = listed
    served = (listed or {}).get(name)
    window = options.window or (served.context_window if served else None)
    root = served.root if served else None
    endpoint_traits(options.base_url.rstrip("/"), name).window = window
    policy = _endpoint_policy(options, _llm(options, name), thinking=thinking, window=window, root=root)
    async with _impatient(options, name) as llm:
        asked = _endpoint_policy(options, llm, thinking=thinking, window=window, root=root)
        await asked.check(choose_mode(options.mode, asked).mode)
    return Endpoint(policy, window, None if listed is None else list(listed))


@asynccontextmanager
async def _impatient(options: Options, name: str) -> AsyncIterator[LLM]:
    """The model with few retries: a wrong URL should be reported soon, before the first session."""
    llm = _llm(options, name, max_retries=2)
    try:
        yield llm
    finally:
        await llm.close()


def _llm(options: Options, name: str, *, max_retries: int | None = None) -> LLM:
    from deltamem.llm import LLM

    further: dict[str, Any] = {} if max_retries is None else {"max_retries": max_retries}
    return LLM(options.base_url or "", name, api_key_env=options.api_key_env, timeout=options.timeout, **further)


def _endpoint_policy(
    options: Options, llm: LLM, *, thinking: bool, window: int | None, root: str | None = None
) -> EndpointPolicy:
    """`root` is where the endpoint has the model from; a folder on this machine shows whether it was trained here."""
    from deltamem.episode import EPISODE_FILE
    from deltamem.policy import EndpointPolicy

    return EndpointPolicy(
        llm,
        temperature=options.temperature,
        max_tokens=_answer_tokens(options, window),
        tool_role=options.tool_role,
        thinking=thinking,
        trained=options.checkpoint is not None or (root is not None and (Path(root) / EPISODE_FILE).is_file()),
    )


def _answer_tokens(options: Options, window: int | None) -> int | None:
    if options.max_tokens != 0:
        return options.max_tokens
    # The answer is part of the window, and most of it is needed for what the model reads.
    return _MAX_TOKENS if window is None else max(1, min(_MAX_TOKENS, window // 4))


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
    temperature = 1.0 if options.temperature is None else options.temperature
    policy = CheckpointPolicy(folder, temperature=temperature, thinking=episode.thinking, use_gpu=True, strict_window=True)
    policy.window = min(policy.window, options.window or policy.window)
    policy.max_new_tokens = _answer_tokens(options, policy.window) or policy.window // 2  # the prompt needs room as well
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
        policy = _endpoint_policy(options, _llm(options, options.model), thinking=thinking, window=options.window)
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


@asynccontextmanager
async def opened_bank(options: Options, *, needs_model: bool, serves: bool = False) -> AsyncIterator[OpenedBank]:
    """The bank and whoever reads sessions into it; the model first: an unreachable one must not leave an empty bank behind.

    Args:
        options: Name both.
        needs_model: Whether the model must be there, and answer.
        serves: Whether it is opened for the people of other machines.
    """
    from deltamem.embedding import same_embedder
    from deltamem.episode import load_trained
    from deltamem.manager import ManagerSettings

    episode = episode_of(options.checkpoint)
    trained = load_trained(options.checkpoint).embedder if options.checkpoint is not None else None
    if trained is not None and not same_embedder(trained, options.embedder):
        note(f"the model was trained with the embedder {trained}, and this bank has {options.embedder} (--embedder)")
    model = loaded_model if needs_model else available_model
    async with model(options, thinking=episode.thinking) as (policy, window):
        with Display() as display, store(options, create=True, progress=display.rebuilding, serves=serves) as opened:
            settings = ManagerSettings(person_name=options.person, episode=episode, window_tokens=window, mode=options.mode)
            yield OpenedBank(opened, policy, settings, display)


def load_embedder(opened: MemoryStore) -> None:
    """Load the embedding model, so that a missing one ends the command and the first request does not wait for it."""
    from deltamem.embedding import is_endpoint

    try:
        opened.embedder.queries(["memory"])
    except EmbedderUnavailableError as error:
        if not is_endpoint(opened.embedder.name):
            raise
        note(f"the embedding model does not answer yet: {error}")
