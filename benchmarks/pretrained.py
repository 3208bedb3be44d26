"""A small pretrained chat model on one GPU: a short supervised start on target trajectories, then GRPO against the clock.

    python benchmarks/pretrained.py OUT                  # models/smollm2-135m, of `make smol`
    python benchmarks/pretrained.py OUT --minutes 20     # the same command continues from the last checkpoint

Experiment ``smollm135m_gpu`` on short sessions of the offline writer (``shape=demanding_tiny``). GRPO ends when the time is
over (its last step is saved) or when the held-out reward has not risen for ``--patience`` validations. ``OUT/result.json``
holds the machine, versions, overrides and the curve of the held-out reward; ``OUT/warm_start.jsonl`` the supervised steps.
Arguments after ``--`` are overrides of ``train.py``.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpu import Plateau, curve, draw
from gpu_plan import Run, on_one_gpu
from training_runs import ROOT, made_on, train


def plan(run: Run, model: Path, *, people: int, steps: int, lr: float, max_steps: int, every: int) -> list[str]:
    """Overrides of ``train.py``; the supervised start takes the first third of the people."""
    return [
        "+experiment=smollm135m_gpu",
        *on_one_gpu("sdpa"),
        *(
            f"deltamem.synth.{key}={value}"
            for key, value in (("people", people), ("sessions", 3), ("shape", "demanding_tiny"))
        ),
        f"deltamem.data.skip_people={people // 3}",
        f"deltamem.warm_start.steps={steps}",
        # About 28 trajectories, of 285 tokens each.
        "deltamem.warm_start.tokens=8192",
        "deltamem.poll_seconds=0.2",
        f"actor_rollout_ref.model.path={model}",
        f"actor_rollout_ref.actor.optim.lr={lr}",
        # sdpa masks a packed micro-batch densely: its cost grows with the square of this.
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
        f"trainer.total_training_steps={max_steps}",
        "trainer.total_epochs=1000",
        "trainer.val_before_train=true",
        f"trainer.test_freq={every}",
        f"trainer.save_freq={every}",
        *run.ending(),
    ]


class Clock:
    """Lets a run save its step and end so many minutes after its supervised start."""

    def __init__(self, minutes: float, model: Path) -> None:
        self._minutes = minutes
        self._model = model
        self._begin: float | None = None
        self._asked = False

    def up(self) -> bool:
        """Whether the time is over."""
        if self._begin is None and self._model.is_dir():
            self._begin = time.monotonic()
        return self._begin is not None and time.monotonic() > self._begin + 60 * self._minutes

    def __call__(self, process: subprocess.Popen[bytes]) -> None:
        """Ask the run to end, once, if it is time."""
        if self.up() and not self._asked:
            self._asked = True
            process.send_signal(signal.SIGUSR1)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    out = options.out.absolute()
    run = Run(out, "cuda", "tiny", options.embedder, tuple(options.overrides))
    made, begin = made_on(), time.monotonic()
    clock, plateau = Clock(options.minutes, out / "warm_start" / "model"), Plateau(out, options.patience, options.rise)

    def watch(process: subprocess.Popen[bytes]) -> None:
        clock(process)
        plateau(process)

    chosen = {"steps": options.steps, "lr": options.lr, "max_steps": options.max_steps, "every": options.every}
    overrides = plan(run, options.model.absolute(), people=options.people, **chosen)
    train(out, overrides, watch=watch, enough=lambda: clock.up() or plateau.reached())
    points = curve(out)
    minutes = round((time.monotonic() - begin) / 60, 2)
    record = {**made, "model": options.model.name, "minutes": minutes, "overrides": overrides}
    record |= {"stopped_rising": plateau.reached(), "curve": points}
    (out / "result.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draw(points, run, f"{options.model.name}, supervised start")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    own, overrides = list(arguments), []
    if "--" in own:
        place = own.index("--")
        own, overrides = own[:place], own[place + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("model", type=Path, nargs="?", default=ROOT / "models" / "smollm2-135m", help="Hugging Face folder")
    parser.add_argument("--embedder", help="model that embeds; by default all-MiniLM-L6-v2")
    parser.add_argument("--people", type=int, default=2000, help="of the data set; a third is for the supervised start")
    parser.add_argument("--steps", type=int, default=24, help="supervised steps")
    parser.add_argument("--lr", type=float, default=2e-5, help="learning rate of GRPO")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for GRPO, its start included")
    parser.add_argument("--max-steps", type=int, default=2000, help="most steps of GRPO")
    parser.add_argument("--every", type=int, default=10, help="steps from one validation and checkpoint to the next")
    parser.add_argument("--patience", type=int, default=6, help="validations without a rise that end the run")
    parser.add_argument("--rise", type=float, default=0.005, help="what counts as a rise of the held-out reward")
    return parser.parse_args(own, argparse.Namespace(overrides=overrides))


if __name__ == "__main__":
    main()
