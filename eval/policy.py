"""The policy under evaluation: what an endpoint serves, and what it was trained with (``episode.json`` of its folder).

The paper has one embedder in training and evaluation (C.4), and no policy is itself under other prompts than its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deltamem.embedding import OFFLINE_MODEL, is_endpoint, same_embedder
from deltamem.episode import EPISODE_FILE, EpisodeConfig, load_trained
from deltamem.errors import DeltaMemError, LLMError
from deltamem.llm import LLM
from deltamem.refusals import is_passing
from deltamem.runs import weights_sha256


def policy_folder(checkpoint: Path | None, model: str | None) -> Path | None:
    """The folder of a policy that an endpoint serves: the one that is named, else the model's, where its name is a folder.

    Raises:
        DeltaMemError: If the named folder is not that of a trained policy.
    """
    if checkpoint is not None and not (checkpoint / EPISODE_FILE).is_file():
        raise DeltaMemError(f"{checkpoint}: no {EPISODE_FILE} there, expected the folder of a trained policy")
    return checkpoint or _with_episode(model)


def _with_episode(folder: str | None) -> Path | None:
    return Path(folder) if folder is not None and (Path(folder) / EPISODE_FILE).is_file() else None


def training_departures(
    folder: Path | None,
    root: str | None,
    episode: EpisodeConfig | None,
    embedder: str,
    key: str,
    turn: tuple[str, int | None],
) -> Iterator[str]:
    """In what a policy is used otherwise than it was trained, one sentence each; nothing where no folder of it is known.

    Args:
        folder: Of the policy, see `policy_folder`.
        root: Where the endpoint has its model from, as it says; counts without `folder` if it is a folder of this machine.
        episode: What is used; None if the policy is not asked by our turns.
        embedder: What is used, by name.
        key: The configuration key that names the folder.
        turn: The configuration key of the longest turn in tokens, and its value; None if nothing cuts turns.
    """
    known = folder or _with_episode(root)
    if known is None:
        return
    advice = "" if folder is not None else f"; {key}={known} takes what it was trained with"
    own = load_trained(known)
    trained, longest = own.embedder, own.turn_tokens
    if trained is None:
        yield f"{known} does not say with which embedder the policy was trained; {embedder} is used"
    elif not same_embedder(trained, embedder):
        yield f"the policy was trained with the embedder {trained}, and is used with {embedder}{advice}"
    elif is_endpoint(embedder) and not same_embedder(trained, OFFLINE_MODEL):
        yield f"queries reach {trained} behind an endpoint as they are, without the instruction that its own files may have"
    if episode is None:
        react = f"{key.replace('checkpoint', 'mode')}=react"
        yield f"the policy was trained to write turns itself ({react}), and is asked in the mode assisted"
        return
    limit, most = turn
    if longest is not None and most is not None and most < longest:
        said = f"the policy was trained with turns of up to {longest} tokens, and is cut at {most}"
        yield f"{said} ({limit}={longest} is as trained)"
    if changed := [f"{name}={value}" for name, value in asdict(episode).items() if value != getattr(own, name)]:
        yield f"the policy was trained with other episodes than {', '.join(changed)}{advice}"


async def served_model(llm: LLM) -> dict[str, Any]:
    """What the endpoint lists of its model, with the sha256 of its files where they are on this machine.

    Returns:
        JSON values; empty if the endpoint lists none.

    Raises:
        LLMError: If the endpoint does not answer now.
    """
    try:
        listed = await llm.models()
    except LLMError as error:  # some services do not list their models
        if is_passing(error):
            raise
        return {}
    model = next((model for model in listed if model.id == llm.model), None)
    if model is None:
        return {}
    described = {"id": model.id, "root": model.root, "max_model_len": model.context_window, "owned_by": model.owned_by}
    weights: dict[str, str] = {}
    if model.root is not None:
        with suppress(OSError):  # a path of the server's machine that this process may not read here
            weights = await asyncio.to_thread(weights_sha256, Path(model.root))
    return described | ({"weights": weights} if weights else {})
