"""Score a policy on held-out sessions: ``python -m eval.heldout checkpoint=FOLDER sessions=FILE out=DIR``.

Exit code 0; 1 if some episodes failed in our own machinery (they are counted, the others are kept); 2 for bad input.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deltamem.cli import run_hydra, validated
from deltamem.embedding import load_embedder
from deltamem.endpoint_policy import EndpointPolicy
from deltamem.errors import DeltaMemError
from deltamem.policy import Policy
from deltamem.provenance import file_sha256
from deltamem.sessions import LabelledSession, read_sessions
from eval.heldout.evaluate import HeldoutResult, evaluate_async
from eval.heldout.selection import select
from eval.heldout.settings import HeldoutSettings
from eval.heldout.table import summary_table

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(config: DictConfig) -> int:
    """Run the command; returns its exit code."""
    settings = validated(config, HeldoutSettings)
    settings.check_policy()
    console = Console(stderr=True)
    sessions = _choose(settings)
    if len(sessions) < settings.n:
        console.print(f"{settings.sessions} has only {len(sessions)} sessions of the split {settings.split}", markup=False)
    _make_folder(settings.out)
    result = asyncio.run(_run(settings, sessions, console))
    result.write(settings.out)
    Console().print(summary_table(result.summary))
    if result.failed:
        reason, times = max(result.summary["failures"].items(), key=lambda item: int(item[1]))
        console.print(f"{result.failed} of {len(sessions)} sessions failed; most often ({times}): {reason}", markup=False)
    return 1 if result.failed else 0


def _choose(settings: HeldoutSettings) -> list[LabelledSession]:
    sessions = select(read_sessions(settings.sessions, split=settings.split), settings.n, settings.seed)
    if not sessions:
        raise DeltaMemError(f"{settings.sessions}: no sessions of the split {settings.split!r}")
    return sessions


def _make_folder(folder: Path) -> None:
    """Make the output folder first: an evaluation whose result cannot be written is wasted."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeltaMemError(f"{folder}: the output folder cannot be made: {error.strerror or error}") from error


async def _run(settings: HeldoutSettings, sessions: list[LabelledSession], console: Console) -> HeldoutResult:
    config = settings.episode_config()
    weights, options = settings.reward.weights, settings.reward.options
    columns = (TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    async with AsyncExitStack() as stack:
        policy = await _policy(settings, config.thinking, stack)
        embedder = load_embedder(settings.embedder, device=settings.device, batch_size=settings.batch_size)
        progress = stack.enter_context(Progress(*columns, console=console, transient=True))
        bar = progress.add_task("episodes", total=len(sessions))
        return await evaluate_async(
            policy,
            sessions,
            embedder,
            config,
            weights=weights,
            max_concurrency=settings.max_concurrency,
            resamples=settings.resamples,
            seed=settings.seed,
            provenance=_provenance(settings),
            on_done=lambda rollout: progress.advance(bar),
            **options,
        )


async def _policy(settings: HeldoutSettings, thinking: bool, stack: AsyncExitStack) -> Policy:
    """The policy to score; the stack closes its connections."""
    if settings.checkpoint is not None:
        # Needs torch, which a client of an endpoint need not have.
        from deltamem.checkpoint_policy import CheckpointPolicy

        return CheckpointPolicy(
            settings.checkpoint,
            temperature=settings.temperature,
            seed=settings.seed,
            max_new_tokens=settings.max_new_tokens,
            thinking=thinking,
        )
    endpoint = settings.endpoint
    llm = endpoint.client(settings.max_concurrency)
    stack.push_async_callback(llm.close)
    policy = EndpointPolicy(
        llm,
        temperature=settings.temperature,
        max_tokens=settings.max_new_tokens,
        seed=settings.seed,
        tool_role=endpoint.tool_role,
        thinking=thinking,
    )
    await policy.check()
    return policy


def _provenance(settings: HeldoutSettings) -> dict[str, object]:
    return {
        "config": settings.model_dump(mode="json"),
        "seed": settings.seed,
        "sessions_file": str(settings.sessions),
        "sessions_sha256": file_sha256(settings.sessions),
        "checkpoint_sha256": _weight_hashes(settings.checkpoint),
    }


def _weight_hashes(checkpoint: Path | None) -> dict[str, str] | None:
    if checkpoint is None:
        return None
    return {path.name: file_sha256(path) for path in sorted(checkpoint.glob("*.safetensors"))}


if __name__ == "__main__":
    run_hydra(main, "heldout")
