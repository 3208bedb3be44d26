"""The export of a run: weights, tokenizer, episode and model card in one folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from deltamem.checkpoint import save_episode_config
from deltamem.errors import DeltaMemError
from deltamem.training.export.card import model_card
from deltamem.training.export.facts import read_facts
from deltamem.training.export.weights import Precision, export_weights
from deltamem.training.run.checkpoints import latest_complete
from deltamem.training.run.manifest import is_whole, step_of


def export_run(run: Path, target: Path, *, step: int | None = None, precision: Precision = "auto") -> Path:
    """Write a trained policy.

    Args:
        run: The run folder.
        target: The folder to make; replaced if it exists, and never half-written.
        step: Of the checkpoint; None takes the newest complete one.
        precision: See `deltamem.training.export.weights.export_weights`.

    Returns:
        The checkpoint that was exported.

    Raises:
        DeltaMemError: If the folder is no run, or has no such complete checkpoint.
    """
    checkpoint = find_checkpoint(run, step)
    facts = read_facts(run, step_of(checkpoint))
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    export_weights(checkpoint, partial, precision)
    save_episode_config(partial, facts.episode)
    (partial / "README.md").write_text(model_card(facts, target.name), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)
    return checkpoint


def find_checkpoint(run: Path, step: int | None) -> Path:
    """A complete checkpoint of a run.

    Raises:
        DeltaMemError: If there is none, or not that one; says which there are.
    """
    folder = run / "grpo" / "checkpoints"
    if step is None:
        last = latest_complete(folder)
        if last is None:
            raise DeltaMemError(f"{folder}: no complete checkpoint to export; set trainer.save_freq")
        return last
    checkpoint = folder / f"global_step_{step}"
    if not is_whole(checkpoint):
        there = sorted(step_of(path) for path in folder.glob("global_step_*") if is_whole(path))
        raise DeltaMemError(f"{checkpoint}: no complete checkpoint; there are those of steps {there or 'none'}")
    return checkpoint
