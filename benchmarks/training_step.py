"""What a tiny training step costs beside the model, and whether memory grows.

    python benchmarks/training_step.py split OUT [--steps 12]
    python benchmarks/training_step.py memory OUT [--steps 200]

Both run ``train.py +experiment=tiny`` with less data and a shorter warm start. ``split`` keeps the experiment's 16 prompts
x 8 rollouts and says where the seconds of a step go. ``memory`` goes on with the model that ``split`` made, in steps of 4
prompts x 2 rollouts, samples all processes of the run, and fits a line through what each kind of process holds.
``--json FILE`` writes the figures.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table
from training_runs import PHASES, STEP, Step, logged_steps, made_on, train

Figures = dict[str, Any]

COMPUTING = ("generate", "old log-prob", "reference log-prob", "update")
"""Phases in which the policy computes."""

POLICY = ("CpuServer", "WorkerDict")
"""Processes in which the policy computes: the sampler and the trainer."""
ROLLOUT = "deltamem/seconds/rollout_"

WARM_UP = 2
"""First steps that are left out of the split: caches, allocators and workers are filled there."""


def tiny(out: Path) -> list[str]:
    """The tiny experiment on less data."""
    return [
        "+experiment=tiny",
        f"deltamem.sessions={out}/synth/sessions.jsonl",
        "deltamem.synth.people=1200",
        "deltamem.data.skip_people=400",
        "deltamem.data.heldout_sessions=8",
        "deltamem.warm_start.steps=160",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
    ]


class Held(NamedTuple):
    """What one kind of process held at one moment."""

    step: int
    kind: str
    processes: int
    rss: float
    pss: float
    cpu_seconds: float


class Sampler:
    """Looks at all processes of a run every few seconds; memory in MB, shared pages counted by PSS only in parts."""

    def __init__(self, out: Path, *, seconds: float = 3.0) -> None:
        self._out = out
        self._seconds = seconds
        self._next = 0.0
        self.samples: list[list[Held]] = []

    def __call__(self, process: subprocess.Popen[bytes]) -> None:
        """Take a sample if it is time for one."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._seconds
        made = logged_steps(self._out)
        step = made[-1].number if made else 0
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
        tree = psutil.Process(process.pid)
        for member in [tree, *tree.children(recursive=True)]:
            try:
                name, memory, times = kind(member.cmdline()), member.memory_full_info(), member.cpu_times()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            values = (1.0, memory.rss / 1e6, memory.pss / 1e6, times.user + times.system)
            sums[name] = [one + other for one, other in zip(sums[name], values, strict=True)]
        # All of them may have ended meanwhile.
        if sums:
            self.samples.append([Held(step, name, int(count), *rest) for name, (count, *rest) in sums.items()])


def kind(command: Sequence[str]) -> str:
    """What a process is: the class of a ray actor, else the program."""
    line = " ".join(command).strip()
    if found := re.match(r"ray::(\w+)", line):
        return found[1]
    for sign, name in (
        ("train.py", "train.py"),
        ("training.trainer_process", "verl's driver"),
        ("raylet", "raylet"),
        ("gcs_server", "gcs_server"),
    ):
        if sign in line.split("--", 1)[0]:
            return name
    program = re.search(r"([\w-]+)\.py\b", line) or re.search(r"([\w.-]+)(?:\s|$)", line)
    return program[1] if program else "ended"


def split(out: Path, steps: int) -> Figures:
    """Seconds of each phase of a step."""
    run = out / "split"
    # Only the last step saves a checkpoint, and that step is left out.
    sampler = Sampler(run, seconds=1.0)
    train(run, [*tiny(run), f"trainer.total_training_steps={steps}", f"trainer.save_freq={steps}"], watch=sampler)
    made = logged_steps(run)
    if len(made) < steps:
        raise SystemExit(f"{run}: {len(made)} steps were logged, expected {steps}")
    return {"steps": steps, **shares(made[WARM_UP:-1]), "cpu_seconds": cpu_seconds(sampler.samples, WARM_UP, steps - 1)}


def cpu_seconds(samples: Sequence[Sequence[Held]], first: int, last: int) -> dict[str, float]:
    """CPU seconds a step of each kind of process, from the end of one step to that of another."""
    spent = {}
    for step in (first, last):
        moment = next(moment for moment in samples if max(held.step for held in moment) >= step)
        spent[step] = {held.kind: held.cpu_seconds for held in moment}
    return {name: (spent[last][name] - spent[first].get(name, 0.0)) / (last - first) for name in spent[last]}


def shares(steps: Sequence[Step]) -> Figures:
    """Mean seconds of each phase, and the share of what is neither generation nor log-prob nor update."""
    seconds = fmean(step.figures[STEP] for step in steps)
    phases = {name: fmean(step.figures.get(key, 0.0) for step in steps) for name, key in PHASES.items()}
    outside = [1 - sum(step.figures.get(PHASES[name], 0.0) for name in COMPUTING) / step.figures[STEP] for step in steps]
    waits = {name: key for name in ("generate", "search", "reward") if (key := f"{ROLLOUT}{name}_mean") in steps[0].figures}
    return {
        "seconds_of_a_rollout": {name: fmean(step.figures[key] for step in steps) for name, key in waits.items()},
        "seconds_a_step": seconds,
        "median_seconds": median(step.figures[STEP] for step in steps),
        "seconds": phases | {"between the phases": seconds - sum(phases.values())},
        "share_outside": 1 - sum(phases[name] for name in COMPUTING) / seconds,
        "share_outside_of_each_step": outside,
    }


def memory(out: Path, steps: int) -> Figures:
    """Growth of memory over small steps."""
    start, run = out / "split", out / "memory"
    if not (start / "warm_start" / "model").is_dir():
        raise SystemExit(f"{start}: no warm-started model; run first: python benchmarks/training_step.py split {out}")
    saved = run / "samples.json"
    sampler = Sampler(run)
    begin = time.monotonic()
    train(
        run,
        [
            *tiny(start),
            "deltamem.synth=null",
            "deltamem.model=null",
            "deltamem.warm_start=null",
            f"actor_rollout_ref.model.path={start}/warm_start/model",
            "actor_rollout_ref.rollout.n=2",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
            "data.train_batch_size=4",
            f"trainer.total_training_steps={steps}",
            f"trainer.save_freq={steps}",
        ],
        watch=sampler,
    )
    if sampler.samples:
        minutes = (time.monotonic() - begin) / 60
        saved.write_text(json.dumps({"minutes": minutes, "samples": sampler.samples}), encoding="utf-8")
    result = json.loads(saved.read_text(encoding="utf-8"))
    samples = [[Held(*held) for held in moment] for moment in result["samples"]]
    skip = steps // 4
    return {"steps": steps, "minutes": result["minutes"], "from_step": skip, "kinds": growth(samples, skip, steps)}


def growth(samples: Sequence[Sequence[Held]], skip: int, steps: int) -> dict[str, Figures]:
    """Slope of memory over steps for each kind of process and for all, from step `skip` to the last but one."""
    series: dict[str, list[Held]] = defaultdict(list)
    for moment in samples:
        for held in moment:
            series[held.kind].append(held)
        step = max(held.step for held in moment)
        totals = [sum(values) for values in zip(*(held[2:] for held in moment), strict=True)]
        series["all"].append(Held(step, "all", int(totals[0]), *totals[1:]))
    found = {}
    for name, entries in series.items():
        within = [held for held in entries if skip <= held.step < steps]
        if len(within) >= 10:
            at = [held.step for held in within]
            found[name] = {
                "processes": within[-1].processes,
                "pss_MB": fmean(held.pss for held in within),
                "pss": line(at, [held.pss for held in within]),
                "rss_MB": fmean(held.rss for held in within),
                "rss": line(at, [held.rss for held in within]),
            }
    return found


def line(steps: Sequence[float], values: Sequence[float]) -> Figures:
    """Least squares: slope per 100 steps with its standard error, also widened for residuals that follow each other.

    Memory changes in jumps, so neighbouring samples are not independent; the wide error takes the first autocorrelation of
    the residuals for that of a first-order process.
    """
    x, y = np.asarray(steps, dtype=float), np.asarray(values, dtype=float)
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    rest = y - y.mean() - slope * centred
    error = float(np.sqrt(rest @ rest / (len(x) - 2) / (centred @ centred)))
    follows = float(rest[1:] @ rest[:-1] / (rest @ rest)) if rest.any() else 0.0
    follows = min(max(follows, 0.0), 0.99)
    return {
        "per_100_steps": 100 * slope,
        "error": 100 * error,
        "wide_error": 100 * error * ((1 + follows) / (1 - follows)) ** 0.5,
        "samples": len(x),
    }


def show_split(console: Console, figures: Figures) -> None:
    table = Table(title=f"a tiny step: {figures['seconds_a_step']:.2f} s", title_justify="left")
    for column in ("phase", "seconds", "share"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for name, seconds in figures["seconds"].items():
        table.add_row(name, f"{seconds:.3f}", f"{seconds / figures['seconds_a_step']:.1%}")
    console.print(table)
    console.print(f"outside of generation, log-prob and update: {figures['share_outside']:.1%}")
    shares = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in figures["seconds_of_a_rollout"].items())
    console.print(f"a rollout, on average: {shares or 'not logged'}")
    spent = figures["cpu_seconds"]
    policy = sum(spent.get(name, 0.0) for name in POLICY) / sum(spent.values())
    most = sorted(spent.items(), key=lambda item: -item[1])[:8]
    console.print(f"CPU seconds a step: {', '.join(f'{name} {seconds:.2f}' for name, seconds in most)}")
    console.print(f"CPU time outside of the sampler's and the trainer's processes: {1 - policy:.1%}")


def show_memory(console: Console, figures: Figures) -> None:
    table = Table(title=f"memory from step {figures['from_step']} to {figures['steps']}", title_justify="left")
    for column in ("process", "n", "PSS MB", "MB / 100 steps", "error", "wide error", "RSS MB", "MB / 100 steps (RSS)"):
        table.add_column(column, justify="left" if column == "process" else "right")
    for name, of in sorted(figures["kinds"].items(), key=lambda item: -item[1]["pss_MB"]):
        slope = of["pss"]
        cells = (of["pss_MB"], slope["per_100_steps"], slope["error"], slope["wide_error"], of["rss_MB"])
        texts = [f"{value:,.2f}" for value in (*cells, of["rss"]["per_100_steps"])]
        table.add_row(name, str(of["processes"]), *texts)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("split", "memory"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    out, console = options.out.absolute(), Console()
    made: Mapping[str, Any] = made_on()
    if options.what == "split":
        figures = split(out, options.steps or 12)
        show_split(console, figures)
    else:
        figures = memory(out, options.steps or 200)
        show_memory(console, figures)
    if options.json is not None:
        options.json.write_text(json.dumps({**made, options.what: figures}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
