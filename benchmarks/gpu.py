"""The real training path on one GPU, or small on a CPU: speed of given model shapes, and learning from scratch.

    python benchmarks/gpu.py speed OUT --shape 0.6b            # also 8b; a few steps, randomly initialised
    python benchmarks/gpu.py learn OUT --shape 100m            # warm start and GRPO until the held-out reward stops rising
    python benchmarks/gpu.py speed OUT --device cpu --shape tiny
    python benchmarks/gpu.py learn OUT --device cpu --shape tiny --people 600 --warm-steps 60 --max-steps 6 --every 3

No network is needed: data are made by the offline writer, tokenizer and model from scratch; the embedder must be there.
``OUT/result.json`` gets machine, versions, commit, overrides and figures; ``learn`` adds ``curve.json``, ``curve.svg`` and
``curve.png``, and the same command goes on where it was stopped. Arguments after ``--`` are overrides of ``train.py``.
On a GPU rollouts are sampled by vLLM: verl 0.9.1 has no rollout by transformers, and ours is for a CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from gpu_plan import LEARNING, SHAPES, Run, learning_plan, make_model, speed_plan
from hydra import compose, initialize_config_dir
from rich.console import Console
from rich.table import Table
from training_runs import PHASES, ROOT, STEP, Step, logged_steps, made_on, train

from deltamem.episode import EpisodeConfig, EpisodeSettings
from deltamem.sessions import read_sessions
from deltamem.training.config import register_search_path
from deltamem.training.metrics import read_metrics

Figures = dict[str, Any]

WARM_UP = 2
"""First steps that are not counted: compilation, graphs and caches are made there."""
OPENING, MULTIPLE = 16, 128
"""Tokens that may open the assistant's turn after the prompt; prompt limits are rounded up."""


def speed(run: Run, options: argparse.Namespace) -> Figures:
    """A few steps; returns the overrides and what the counted steps took."""
    shape, model = SHAPES[run.shape], run.out / "model"
    sessions = run.out / "synth" / "sessions.jsonl"
    kind = "demanding_tiny" if shape.experiment == "tiny" else "paper"
    if not sessions.is_file():
        command = [sys.executable, "-m", "synth", f"people={options.people or 60}", "sessions=10", f"shape={kind}"]
        subprocess.run([*command, f"out={sessions.parent}", "embedder=null"], cwd=ROOT, check=True)
    note = run.out / "model.json"
    if not note.is_file():
        items = list(read_sessions(sessions))
        episode = episode_of(shape.experiment)
        longest = make_model(model, shape, items, episode, run.device)
        if run.device == "cuda":
            # What this process has cached of the GPU would be lacking in the run.
            torch.cuda.empty_cache()
        vocabulary = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        told = {"longest_prompt": longest, "parameters": shape.parameters(vocabulary)}
        note.write_text(json.dumps(told), encoding="utf-8")
    told = json.loads(note.read_text(encoding="utf-8"))
    limit = -(-(told["longest_prompt"] + OPENING) // MULTIPLE) * MULTIPLE
    plan = speed_plan(
        run,
        steps=options.steps,
        prompt_length=limit,
        turn_tokens=options.turn_tokens or (64 if run.device == "cpu" else 1024),
        prompts=options.prompts,
        attention=attention(),
    )
    memory = DeviceMemory()
    train(run.out, plan, watch=memory)
    return {"overrides": plan, **told, "device_MiB_in_use": memory.most, **figures(logged_steps(run.out)[WARM_UP:])}


def episode_of(experiment: str) -> EpisodeConfig:
    """Prompts and limits of an experiment."""
    register_search_path()
    with initialize_config_dir(str(ROOT / "configs"), version_base=None):
        config = compose("train", [f"+experiment={experiment}"])
    return EpisodeSettings.model_validate(config.deltamem.episode).config()


def figures(steps: Sequence[Step]) -> Figures:
    """Means over steps of what verl and the agent loop logged."""
    if not steps:
        raise SystemExit(f"no step is left to count: --steps must be more than {WARM_UP}")

    def mean(name: str) -> float | None:
        found = [step.figures[name] for step in steps if name in step.figures]
        return fmean(found) if found else None

    seconds = {phase: mean(name) or 0.0 for phase, name in PHASES.items()}
    step, rollouts = mean(STEP) or 0.0, f"{len(steps)} steps"
    inside = {name: mean(f"deltamem/seconds/rollout_{name}_mean") for name in ("generate", "search", "reward")}
    return {
        "counted": rollouts,
        "seconds_a_step": step,
        "seconds": seconds | {"between the phases": step - sum(seconds.values())},
        "seconds_of_a_rollout": {name: value for name, value in inside.items() if value is not None},
        "tokens_a_step": mean("perf/total_num_tokens"),
        "response_tokens": mean("response_length/mean"),
        "tokens_per_second_per_gpu": mean("perf/throughput"),
        "mfu_of_update": mean("perf/mfu/actor"),
        "trainer_GiB_allocated": mean("actor/perf/max_memory_allocated_gb"),
        "trainer_GiB_reserved": mean("actor/perf/max_memory_reserved_gb"),
        "host_GiB_used": mean("actor/perf/cpu_memory_used_gb"),
        "seconds_of_weight_sync": seconds["weight sync"],
    }


class DeviceMemory:
    """The most memory of the GPU that was in use by all processes together; None without a GPU."""

    def __init__(self) -> None:
        self.most: int | None = None

    def __call__(self, process: subprocess.Popen[bytes]) -> None:
        """Look."""
        if torch.cuda.is_available():
            command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            self.most = max(self.most or 0, int(told[0]))


class Plateau:
    """Ends a run whose held-out reward has not risen for a while."""

    def __init__(self, out: Path, patience: int, rise: float) -> None:
        self._out, self._patience, self._rise = out, patience, rise
        self._next = 0.0

    def reached(self) -> bool:
        """Whether the last `patience` validations brought no `rise` over the best before them."""
        rewards = [point["heldout"] for point in curve(self._out)]
        before, last = rewards[: -self._patience], rewards[-self._patience :]
        return bool(before) and max(last) < max(before) + self._rise

    def __call__(self, process: subprocess.Popen[bytes]) -> None:
        """End the run if it is time; the checkpoint of the last validation remains."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 5.0
            if self.reached():
                process.terminate()


def learn(run: Run, options: argparse.Namespace) -> Figures:
    """Warm start and GRPO until the plateau or `--max-steps`."""
    plan = learning_plan(
        run,
        people=options.people or (6400 if run.device == "cpu" else 40_000),
        warm_steps=options.warm_steps or (560 if run.device == "cpu" else 2000),
        max_steps=options.max_steps,
        every=options.every,
        attention=attention(),
    )
    plateau = Plateau(run.out, options.patience, options.rise)
    if not plateau.reached():
        train(run.out, plan, watch=plateau, enough=plateau.reached)
    points = curve(run.out)
    (run.out / "curve.json").write_text(json.dumps(points, indent=2) + "\n", encoding="utf-8")
    draw(points, run, f"{run.shape} from scratch")
    best = max(points, key=lambda point: point["heldout"])
    return {"overrides": plan, "stopped_rising": plateau.reached(), "best": best, "last": points[-1], "curve": points}


def curve(out: Path) -> list[dict[str, float]]:
    """Held-out reward by step, and the training reward since the validation before."""
    points, since = [], []
    for record in read_metrics(out / "metrics.jsonl"):
        since += [record["train/reward"]] if "train/reward" in record else []
        if "heldout/reward" in record:
            points.append({"step": record["step"], "heldout": record["heldout/reward"]})
            points[-1] |= {"train": fmean(since)} if since else {}
            since = []
    return points


def draw(points: Sequence[Mapping[str, float]], run: Run, what: str) -> None:
    """Write ``curve.svg`` and ``curve.png``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([point["step"] for point in points], [point["heldout"] for point in points], marker="o", label="held-out")
    trained = [point for point in points if "train" in point]
    axes.plot([point["step"] for point in trained], [point["train"] for point in trained], alpha=0.6, label="training")
    axes.axhline(0.75, linewidth=0.8, linestyle=":", color="gray", label="plateau of the paper")
    axes.set(xlabel="step of GRPO", ylabel="reward", title=f"{what}, on {run.device}")
    axes.legend()
    for ending in ("svg", "png"):
        figure.savefig(run.out / f"curve.{ending}", dpi=150)


def attention() -> str:
    """The attention that is installed."""
    return "flash_attention_2" if importlib.util.find_spec("flash_attn") else "sdpa"


def show(console: Console, what: str, result: Figures) -> None:
    table = Table(title=f"gpu.py {what}", title_justify="left", show_header=False)
    if what == "speed":
        for name, value in result["seconds"].items():
            table.add_row(f"{name}, s", f"{value:.3f} ({value / result['seconds_a_step']:.1%})")
        for name, value in result["seconds_of_a_rollout"].items():
            table.add_row(f"mean rollout: {name}, s", f"{value:.3f}")
        for name in list(result)[list(result).index("seconds_of_a_rollout") + 1 :]:
            table.add_row(name, "not known" if result[name] is None else f"{result[name]:,.4g}")
        table.add_row("device_MiB_in_use", str(result["device_MiB_in_use"]))
        table.add_row("parameters", f"{result['parameters']:,}")
    else:
        for point in result["curve"]:
            table.add_row(f"step {point['step']}", f"held-out {point['heldout']:.3f}")
        table.add_row("stopped rising", str(result["stopped_rising"]))
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    run = Run(options.out.absolute(), options.device, options.shape, options.embedder, tuple(options.overrides))
    if run.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU")
    if run.device == "cuda" and importlib.util.find_spec("vllm") is None:
        raise SystemExit(
            "--device cuda: vLLM is not installed, and verl 0.9.1 samples on a GPU through vllm, sglang or trtllm"
        )
    run.out.mkdir(parents=True, exist_ok=True)
    made, begin = made_on(), time.monotonic()
    result = speed(run, options) if options.mode == "speed" else learn(run, options)
    minutes = (time.monotonic() - begin) / 60
    record = {**made, "mode": options.mode, "shape": run.shape, "device": run.device, "minutes": round(minutes, 2), **result}
    (run.out / "result.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    show(Console(), options.mode, result)
    print(f"{run.out / 'result.json'}, {minutes:.1f} min")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line.

    Raises:
        SystemExit: With code 2, if it does not make sense.
    """
    own, overrides = list(arguments), []
    if "--" in own:
        place = own.index("--")
        own, overrides = own[:place], own[place + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("speed", "learn"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--shape", choices=tuple(SHAPES), required=True)
    parser.add_argument("--embedder", help="model that embeds; by default the experiment's")
    parser.add_argument("--people", type=int, help="people of the data set")
    parser.add_argument("--steps", type=int, default=6, help=f"speed: steps, of which the first {WARM_UP} are not counted")
    parser.add_argument("--prompts", type=int, help="speed: sessions a step, 8 rollouts each")
    parser.add_argument("--turn-tokens", type=int, help="speed: tokens of a rollout")
    parser.add_argument("--warm-steps", type=int, help="learn: steps of the warm start")
    parser.add_argument("--max-steps", type=int, default=2000, help="learn: most steps of GRPO")
    parser.add_argument("--every", type=int, default=10, help="learn: steps from one validation and checkpoint to the next")
    parser.add_argument("--patience", type=int, default=6, help="learn: validations without a rise that end the run")
    parser.add_argument("--rise", type=float, default=0.005, help="learn: what counts as a rise of the held-out reward")
    options = parser.parse_args(own, argparse.Namespace(overrides=overrides))
    if options.mode == "learn" and options.shape not in LEARNING:
        parser.error(
            f"--shape {options.shape} is too large to be trained from scratch; expected one of {', '.join(LEARNING)}"
        )
    if options.mode == "speed" and (options.device == "cpu") != (SHAPES[options.shape].experiment == "tiny"):
        parser.error(f"--shape {options.shape} is for {'a GPU' if options.device == 'cpu' else 'a CPU'} in this mode")
    if options.steps <= WARM_UP:
        parser.error(f"--steps: expected more than {WARM_UP}, which are not counted")
    return options


if __name__ == "__main__":
    main()
