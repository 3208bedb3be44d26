"""Checks of what a run talks to: the embedding model, the scorer, the trackers."""

from __future__ import annotations

from pathlib import Path

from deltamem.embedding import is_endpoint
from deltamem.errors import DeltaMemError
from deltamem.training.embeddings.store import read_meta
from deltamem.training.preflight.context import Context
from deltamem.training.preflight.finding import Finding, fail, ok
from deltamem.training.run.trackers import check_trackers

_PROBE = "Ann lives in Oslo."
_SECONDS = 20.0


def check_embedder(context: Context) -> Finding:
    """Whether the model gives vectors, and its store belongs to it."""
    settings = context.settings.embedder
    if is_endpoint(settings.name):
        from deltamem.endpoint_embedder import EndpointEmbedder

        base_url, _, model = settings.name.partition("#")
        if not model:
            return fail(f"embedder {settings.name!r} names no model; write it as http://host:port/v1#model")
        vectors = EndpointEmbedder(base_url, model, timeout=_SECONDS, max_retries=0).documents([_PROBE])
    else:
        from deltamem.embedding import load_embedder

        # On the CPU, whatever device the run uses: nothing touches a GPU here.
        vectors = load_embedder(settings.name, device="cpu", batch_size=1).documents([_PROBE])
    meta = read_meta(Path(settings.store), settings.name)
    stored = "store made by the run" if meta is None else f"store in {settings.store}"
    return ok(f"{settings.name}: {vectors.shape[1]} dimensions, {stored}")


def check_reward(context: Context) -> Finding:
    """Whether the scorer can be made from its configuration."""
    import hydra

    settings = context.settings.reward
    try:
        hydra.utils.instantiate(settings)
    except Exception as error:
        cause = error.__cause__ or error
        raise DeltaMemError(f"deltamem.reward: {' '.join(str(cause).split())}") from error
    shown = ", ".join(f"{key}={value}" for key, value in settings.items() if key != "_target_")
    return ok(shown)


def check_tracking(context: Context) -> Finding:
    """Whether the trackers that were asked for are installed."""
    check_trackers(context.settings.trackers)
    return ok(", ".join(("console", "metrics.jsonl", *context.settings.trackers)))
