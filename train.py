"""Training: ``python train.py +experiment=tiny``, or ``+experiment=qwen8b deltamem.sessions=FILE deltamem.out=FOLDER``.

The same command again goes on where an interrupted run stopped. ``--cfg job`` prints the whole configuration,
``preflight=true`` checks it and what it needs (a run on GPUs begins with the checks that take seconds), ``rehearse=true``
carries it out in small; ``-m`` with ``+ablation=tau`` trains once for every threshold.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from deltamem.config import run_hydra, validated
from deltamem.errors import DeltaMemError
from deltamem.runs import RunStoppedError, atomic_writer, git_commit, run_stages, unfinished, versions
from deltamem.training.config import TrainSettings, register_search_path
from deltamem.training.interruption import NOT_FINISHED, listen, locked
from deltamem.training.launch import TrainingFailedError
from deltamem.training.pipeline import STAGES, check_chosen, check_options, check_unchanged, needs_gpus, stages, synthesis
from deltamem.training.preflight import check_start, preflight
from deltamem.training.rehearsal import rehearse


def main(config: DictConfig) -> int:
    """Run all stages that are not done yet.

    Returns:
        0, or 1 if training failed or a rehearsal says no-go; 2 if a preflight found something wrong; 75 if SIGUSR1 stopped
        it.

    Raises:
        DeltaMemError: If the configuration is not valid.
    """
    listen()
    with open_dict(config):
        checks, only, small = (config.pop(key) for key in ("preflight", "stages", "rehearse"))
    only = None if only is None else [only] if isinstance(only, str) else list(map(str, only))
    if unknown := sorted(set(only or []) - set(STAGES)):
        raise DeltaMemError(f"stages={unknown[0]}: expected some of {', '.join(STAGES)}")
    if checks not in (True, False, "skip"):
        raise DeltaMemError(f"preflight={checks}: expected true, false or skip")
    if small not in (True, False) or (small and (only is not None or checks)):
        raise DeltaMemError(f"rehearse={small}: expected true or false, and true without preflight= and stages=")
    settings = validated(config.deltamem, TrainSettings)
    if "reward_model" not in config.reward:
        raise DeltaMemError(
            "reward=... took the place of verl's own group of that name; choose the reward of the memory with "
            "reward@deltamem.reward=repaired|demanding, or +variant=recommended|demanding"
        )
    # Ray workers run in folders of their own: paths must be absolute before they are spread over the configuration.
    config.deltamem.out = str(settings.out.absolute())
    config.deltamem.sessions = str(settings.sessions.absolute())
    model = config.actor_rollout_ref.model
    if not OmegaConf.is_missing(model, "path") and Path(model.path).is_dir():
        model.path = str(Path(model.path).absolute())
    OmegaConf.resolve(config)
    settings = validated(config.deltamem, TrainSettings)
    console = Console(highlight=False)
    if checks is True:
        return preflight(config, settings, console)
    check_options(config, settings)
    if small:
        return rehearse(config, settings, console)
    if not checks and needs_gpus(settings, only) and (code := check_start(config, settings, console)):
        return code
    with locked(settings.out / "lock", patience=0.0):
        return _run(config, settings, only, console)


def _run(config: DictConfig, settings: TrainSettings, only: list[str] | None, console: Console) -> int:
    first, markers = synthesis(settings), settings.out / "stages"
    check_unchanged(config, settings, first)
    seconds = run_stages(first, markers, console.print, only)
    todo = stages(config, settings, console)
    check_unchanged(config, settings, todo)
    if only is not None:
        check_chosen(only, [*first, *todo], markers)
    try:
        seconds |= run_stages(todo, markers, console.print, only)
    except TrainingFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except RunStoppedError as stopped:
        console.print(str(stopped), soft_wrap=True)
        return NOT_FINISHED
    if left := unfinished(todo, markers):
        if "warm_start" in {stage.name for stage in todo} - set(left):
            console.print(f"warm start: {settings.out / 'warm_start' / 'model'}", soft_wrap=True)
        later = f"stages: yet to run are {', '.join(left)}; the same command with stages=null goes on with them"
        console.print(later, soft_wrap=True)
        return 0
    with atomic_writer(settings.out / "train.json") as file:
        made = {"seconds": seconds, "seed": settings.seed, "git_commit": git_commit(), "versions": versions()}
        json.dump(made, file, indent=2)
    if "export" in seconds:
        console.print(f"policy: {settings.out / 'policy'}")
    return 0


if __name__ == "__main__":
    register_search_path()
    run_hydra(main, "train", Path(__file__).resolve().parent / "configs")
