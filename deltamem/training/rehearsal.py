"""A run in small before the run: ``python train.py +experiment=X rehearse=true``, which ends with go or no-go.

What decides about memory stays as it is (token limits of the whole data, micro-batches, vLLM's cache, shards); what decides
about time becomes small: sessions of a step and of a validation, steps, a warm start. Nothing of it is kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, cast

from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from deltamem.config import CONFIGS, validated
from deltamem.errors import DeltaMemError
from deltamem.runs import RunStoppedError, run_stages
from deltamem.training import machine, models, pipeline, preflight, token_limits
from deltamem.training.checkpoints import Space, space_of
from deltamem.training.config import SupervisedConfig, TrainSettings, WarmStartConfig, moved
from deltamem.training.data import count_rows
from deltamem.training.interruption import NOT_FINISHED, locked
from deltamem.training.launch import TrainingFailedError, run_grpo
from deltamem.training.metrics import read_metrics
from deltamem.training.preflight import PreflightFinding, State
from deltamem.training.resources import ModelShape, gb

STEPS = 2
"""Steps before the checkpoint; the second one's time counts, for the first compiles kernels. One more follows the resume."""
_SHARE = 4  # a step and a validation have a quarter of the run's sessions
_PEOPLE = 40  # of a data set that the run makes itself
_WATCH_SECONDS = 1.0
_TIGHT = 0.95  # share of a GPU above which the next run may not fit
_NOTICE = 3600  # seconds that the files in slurm/ leave between the request to stop and the end
_CUT, _UNREADABLE = (0.05, 0.2), (0.2, 0.5)
"""Shares of cut episodes and of unreadable answers: a warning above the first; above the second, or a gate, no run."""
_SCALED = ("reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
"""Phases of a step that take as much longer as there are more rollouts; generation may take less, what is left the same."""


class RunSize(NamedTuple):
    """How large the run is beside its rehearsal."""

    sessions: int  # of a step
    heldout: int  # sessions of a validation
    steps: int
    validations: int
    saves: int
    gpus: int


@dataclass(frozen=True)
class Took:
    """What was measured from outside."""

    stages: Mapping[str, float]  # seconds
    resume: float  # seconds from the second start to its end
    checkpoint: int  # bytes
    gpus: Sequence[machine.Gpu]  # of this node, each when it was fullest


def rehearse(config: DictConfig, settings: TrainSettings, console: Console) -> int:
    """Check a run, carry it out in small, and print what is to be expected of it.

    Args:
        config: The run's configuration, resolved.
        settings: Its ``deltamem`` part.
        console: Where to.

    Returns:
        0 for go, 1 for no-go, 2 if the preflight already failed, 75 if it was asked to stop.
    """
    with tempfile.TemporaryDirectory(prefix="deltamem_preflight_") as scratch:
        context = preflight.Context(config, settings, Path(scratch))
        if preflight.report(context, console, "now the rehearsal"):
            return 2
        made = not settings.sessions.is_file()
        rows = rows_of(settings) if made else (context.exported.train_sessions, context.exported.heldout_sessions)
        if not made and settings.limits.fit:
            # Those of all sessions: the few of the rehearsal would need less memory.
            config = token_limits.with_limits(config, context.limits)
            config.deltamem.limits.fit = False
    folder = settings.out.with_name(f".{settings.out.name}.rehearsal")
    with _nothing_left(folder, settings.out.with_name(f"{settings.out.name}.rehearsal.log")) as keep_log:
        small, own = in_small(config, settings, folder, rows=rows)
        try:
            took = _carry_out(small, own, console)
        except RunStoppedError:
            console.print("rehearsal: stopped on request; nothing of it is left")
            return NOT_FINISHED
        except (TrainingFailedError, DeltaMemError) as error:
            kept = keep_log()
            console.print(f"rehearsal: no-go: {error}" + (f"; kept: {kept}" if kept else ""), soft_wrap=True, markup=False)
            return 1
        records = read_metrics(own.out / "metrics.jsonl")
        space = space_of(config, ModelShape.of(models.load_model_config(small.actor_rollout_ref.model)))
        batch = int(small.data.train_batch_size)
        heldout = count_rows(Path(small.data.val_files))
        size = size_of(config, (rows[0], settings.data.heldout_sessions or rows[1]))
        findings = judge(records, took, size, space, settings, batch=batch, heldout=heldout)
    preflight.show(findings, console)
    bad = [name for name, found in findings.items() if found.state is State.FAIL]
    console.print(
        f"rehearsal: no-go: {', '.join(bad)}" if bad else "rehearsal: go; start with the same command without rehearse=true"
    )
    return 1 if bad else 0


@contextlib.contextmanager
def _nothing_left(folder: Path, log: Path) -> Iterator[Any]:
    """Keep a folder, and Ray's, for as long as the block runs; it gets a function that saves the last log as `log`."""
    above = next(path for path in folder.parents if path.is_dir())
    own_ray = not {"RAY_TMPDIR", "RAY_ADDRESS"} & os.environ.keys()
    if own_ray:
        os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="dm_")  # short: sockets have names of at most 107 characters

    def keep_log() -> Path | None:
        logs = sorted((folder / "logs").glob("grpo_*.log"), key=lambda path: path.stat().st_mtime)
        return Path(shutil.copy(logs[-1], log)) if logs else None

    try:
        with locked(folder / "lock", patience=0.0):
            # Only inside the lock: without it the folder is another rehearsal's.
            try:
                # A rehearsal that was killed has left something.
                for path in [path for path in folder.iterdir() if path.name != "lock"]:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                yield keep_log
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        if own_ray:
            shutil.rmtree(os.environ.pop("RAY_TMPDIR"), ignore_errors=True)
        for path in [path for path in folder.parents if path.is_relative_to(above) and path != above]:
            with contextlib.suppress(OSError):  # other things are in it
                path.rmdir()


def rows_of(settings: TrainSettings) -> tuple[int, int]:
    """How many sessions to train on and held out a data set will have that the run makes itself."""
    synth = OmegaConf.merge(OmegaConf.load(CONFIGS / "synth.yaml"), settings.synth or {})
    heldout = round(synth.people * synth.heldout_share)
    train = max(synth.people - heldout - settings.data.skip_people, 0)
    return train * synth.sessions, heldout * synth.sessions


def in_small(
    config: DictConfig, settings: TrainSettings, folder: Path, *, rows: tuple[int, int]
) -> tuple[DictConfig, TrainSettings]:
    """The configuration of the rehearsal, which writes to a folder of its own; `rows` are the sessions of both splits."""
    plain = cast(DictConfig, OmegaConf.create(moved(OmegaConf.to_container(config), str(settings.out), str(folder))))
    with open_dict(plain):
        ours, trainer, model = plain.deltamem, plain.trainer, plain.actor_rollout_ref
        if settings.model is None:
            model.model = config.actor_rollout_ref.model  # may lie below the run's folder, but is not the run's
        batch = small_batch(config)
        plain.data.train_batch_size = model.actor.ppo_mini_batch_size = batch
        ours.out, ours.embedder.store = str(folder), str(folder / "embeddings")
        trainer.default_local_dir = str(folder / "grpo" / "checkpoints")
        trainer.logger, trainer.total_epochs, trainer.total_training_steps = ["console", "file"], 1000, STEPS
        trainer.save_freq, trainer.test_freq, trainer.val_before_train = STEPS, STEPS, False
        for gate in ("truncated", "unreadable", "no_signal", "heldout_drop"):
            ours.gates[gate] = None  # the table shows what they look at
        ours.data.train_sessions = min(batch * (STEPS + 1), rows[0])
        ours.data.heldout_sessions = min(-(-(settings.data.heldout_sessions or rows[1]) // _SHARE), rows[1])
        if settings.sessions.is_file():
            ours.sessions, ours.synth = str(settings.sessions), None
        else:
            ours.synth.people = min(int(ours.synth.people), _PEOPLE)
            ours.data.skip_people = 0
            ours.data.train_sessions = ours.data.heldout_sessions = None
        if isinstance(settings.warm_start, WarmStartConfig):
            ours.warm_start.copy_steps, ours.warm_start.steps = 1, STEPS
        elif isinstance(settings.warm_start, SupervisedConfig):
            ours.warm_start.steps, ours.warm_start.save_every, ours.warm_start.test_every = STEPS, STEPS, STEPS
            ours.warm_start.heldout_sessions = min(settings.warm_start.heldout_sessions, _SHARE)
    return plain, validated(plain.deltamem, TrainSettings)


def small_batch(config: DictConfig) -> int:
    """Sessions of a step: about a quarter, whose rollouts divide among ranks and micro-batches as those of the run do."""
    model, whole, n = config.actor_rollout_ref, int(config.data.train_batch_size), int(config.actor_rollout_ref.rollout.n)
    parallel = max(model.actor.ulysses_sequence_parallel_size, model.actor.fsdp_config.ulysses_sequence_parallel_size)
    ranks = max(config.trainer.n_gpus_per_node * config.trainer.nnodes // parallel, 1)
    micro = (model.actor.ppo_micro_batch_size_per_gpu, model.rollout.log_prob_micro_batch_size_per_gpu)
    full = [ranks * size for size in micro if size and not model.actor.use_dynamic_bsz]
    parts = [ranks, *(part for part in full if whole * n % part == 0)]
    sizes = range(-(-whole // _SHARE), whole)
    return next((size for size in sizes if all(size * n % part == 0 for part in parts)), whole)


def size_of(config: DictConfig, rows: tuple[int, int]) -> RunSize:
    """The size of a run on so many sessions to train on and held out."""
    trainer, batch = config.trainer, int(config.data.train_batch_size)
    steps = trainer.total_training_steps or rows[0] // batch * trainer.total_epochs
    every = [-(-steps // freq) if freq > 0 else 0 for freq in (trainer.test_freq, trainer.save_freq)]
    return RunSize(
        batch, rows[1], steps, every[0] + trainer.val_before_train, every[1], trainer.n_gpus_per_node * trainer.nnodes
    )


def _carry_out(config: DictConfig, settings: TrainSettings, console: Console) -> Took:
    """Run all stages, then go on from the checkpoint for one step."""
    markers = settings.out / "stages"
    with _watched_memory() as gpus:
        seconds = run_stages(pipeline.synthesis(settings), markers, console.print)
        seconds |= run_stages(pipeline.stages(config, settings, console), markers, console.print)
        checkpoint = next(Path(config.trainer.default_local_dir).glob("global_step_*"))
        size = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
        if missing := models.missing_weights(str(settings.out / "policy")):
            raise DeltaMemError(f"the exported policy is not whole: {missing}")
        later = config.copy()
        later.trainer.total_training_steps, later.trainer.save_freq, later.trainer.test_freq = STEPS + 1, -1, -1
        begin = time.perf_counter()
        run_grpo(*pipeline.final(later, settings), console)
        return Took(seconds, time.perf_counter() - begin, size, gpus)


@contextlib.contextmanager
def _watched_memory() -> Iterator[list[machine.Gpu]]:
    """Look at the GPUs of this node again and again; at the end the list has each as it was when it was fullest."""
    fullest: dict[int, machine.Gpu] = {}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_WATCH_SECONDS):
            for number, gpu in enumerate(machine.gpus()):
                fullest[number] = max(fullest.get(number, gpu), gpu, key=lambda one: one.used)

    peaks: list[machine.Gpu] = []
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()
        peaks += fullest.values()


def judge(
    records: Sequence[Mapping[str, Any]],
    took: Took,
    size: RunSize,
    space: Space,
    settings: TrainSettings,
    *,
    batch: int,
    heldout: int,
) -> dict[str, PreflightFinding]:
    """The table: what was found and what it means for the run, by the name of the line.

    Args:
        records: The lines of ``metrics.jsonl``.
        took: What was measured from outside.
        size: Of the run.
        space: That the run needs on the disk, by the estimate.
        settings: Of the run.
        batch: Sessions of a step of the rehearsal.
        heldout: Sessions of its validation.
    """
    steps = [record for record in records if record["step"] > 0]
    warm, last = steps[STEPS - 1], steps[-1]
    step, save = _whole_step(warm, size.sessions / batch), warm.get("seconds/save_checkpoint", 0.0)
    tested = warm.get("seconds/testing", 0.0)
    validation = tested, tested * max(size.heldout / heldout, 1.0)
    start = max(took.resume - last.get("seconds/step", 0.0), 0.0)
    once = start + took.stages["export"] + size.saves * save
    hours = [(once + size.steps * step[end] + size.validations * validation[end]) / 3600 for end in (0, 1)]
    gates, sampled = settings.gates, warm.get("seconds/gen", 0.0) * size.sessions / batch

    def judged(metric: str, limits: tuple[float, float], sentence: str, cure: str) -> PreflightFinding:
        if settings.warm_start is not None:
            return PreflightFinding(State.OK, "not known: the warm start was cut to a few steps")
        return _rated(_mean(steps, metric), limits, sentence, cure)

    gradients = [record.get("train/grad_norm", 0.0) for record in steps]
    need = space.checkpoints * took.checkpoint + space.policy - space.there
    free = space.free + took.checkpoint  # the rehearsal's will be gone
    return {
        "steps": PreflightFinding(
            State.OK if all(gradients) else State.WARN,
            f"{STEPS} of {batch} sessions, a validation, a checkpoint, an export, {len(steps) - STEPS} more after the "
            f"resume; gradients of norm {', '.join(f'{norm:.3g}' for norm in gradients)}",
        ),
        "memory": _memory(took.gpus, steps),
        "cut": judged(
            "train/truncated",
            (_CUT[0], min(_CUT[1], gates.truncated or 1.0)),
            "{:.0%} of the episodes were ended by a token limit",
            "raise deltamem.limits.thinking_tokens, or train without thinking: +variant=no_thinking",
        ),
        "readable": judged(
            "train/count/unreadable",
            (_UNREADABLE[0], min(_UNREADABLE[1], gates.unreadable or 1.0)),
            "{:.0%} of the episodes have no answer that can be read",
            "read some in validation/ of a run, or teach the protocol first: +warm_start=pretrained",
        ),
        "spread": judged(
            "train/no_signal",
            (0.8, gates.no_signal or 1.0),
            "{:.0%} of the prompts have rollouts of one reward, from which GRPO learns nothing",
            "more rollouts a prompt, or harder data: +variant=demanding",
        ),
        "sampler": _rated(
            abs(_mean(steps, "train/kl_to_sampler")),
            (0.01, 0.05),
            "KL {:.4f} between the policy that samples and the one that is trained",
            "algorithm.rollout_correction.rollout_is=token makes up for small ones; large ones mean wrong weights",
        ),
        "checkpoint": PreflightFinding(
            State.FAIL if need > free else State.OK,
            f"{gb(took.checkpoint)} in {save:.0f} s; {space.checkpoints} at once and the policy are {gb(need)}, "
            f"{gb(free)} are free; a start that goes on from one {start:.0f} s, the export "
            f"{took.stages['export']:.0f} s",
        ),
        "step": PreflightFinding(
            State.OK,
            f"{warm['seconds/step'] - save:.0f} s of {batch} sessions; {step[0]:.0f} to {step[1]:.0f} s of {size.sessions}, "
            "if generation takes as long as here or as much longer as there are more rollouts",
        ),
        "to the end": PreflightFinding(
            State.OK,
            f"{size.steps} steps, {size.validations} validations of {validation[0]:.0f} to {validation[1]:.0f} s, "
            f"{size.saves} checkpoints: {hours[0]:.1f} to {hours[1]:.1f} hours"
            + (
                f", {hours[0] * size.gpus:.0f} to {hours[1] * size.gpus:.0f} GPU-hours"
                if settings.cpu_threads is None
                else ""
            ),
        ),
        "stops": _stops(
            steps,
            settings,
            start=start,
            sampling=max(sampled, validation[1]),
            quiet=step[1] - sampled + save,
            longest=step[1] + validation[1] + save,
        ),
    }


def _mean(records: Sequence[Mapping[str, Any]], name: str) -> float:
    return fmean(record.get(name, 0.0) for record in records)


def _whole_step(record: Mapping[str, Any], ratio: float) -> tuple[float, float]:
    """Seconds of a step with so many times the sessions, without its checkpoint: at best and at worst."""
    seconds = {phase: record.get(f"seconds/{phase}", 0.0) for phase in ("step", "save_checkpoint", "gen", *_SCALED)}
    scaled = sum(seconds[phase] for phase in _SCALED)
    fixed = seconds["step"] - seconds["save_checkpoint"] - seconds["gen"] - scaled
    return fixed + seconds["gen"] + ratio * scaled, fixed + ratio * (seconds["gen"] + scaled)


def _rated(value: float, limits: tuple[float, float], sentence: str, cure: str) -> PreflightFinding:
    state = State.FAIL if value > limits[1] else State.WARN if value > limits[0] else State.OK
    return PreflightFinding(state, sentence.format(value) + ("" if state is State.OK else f"; {cure}"))


def _memory(gpus: Sequence[machine.Gpu], steps: Sequence[Mapping[str, Any]]) -> PreflightFinding:
    if not gpus:
        used = max(record.get("memory/pss_gb", record.get("memory/rss_gb", 0.0)) for record in steps)
        return PreflightFinding(
            State.OK, f"{used:.1f} GiB of {machine.memory() / 2**30:.0f} at the end of a step, on the CPU"
        )
    number, fullest = max(enumerate(gpus), key=lambda pair: pair[1].used / pair[1].memory)
    state = State.WARN if fullest.used > _TIGHT * fullest.memory else State.OK
    return PreflightFinding(
        state,
        f"GPU {number} had {gb(fullest.used)} of {gb(fullest.memory)} in use at most, seen once a second"
        + ("" if state is State.OK else "; lower actor_rollout_ref.rollout.gpu_memory_utilization"),
    )


def _stops(
    steps: Sequence[Mapping[str, Any]],
    settings: TrainSettings,
    *,
    start: float,
    sampling: float,
    quiet: float,
    longest: float,
) -> PreflightFinding:
    """What would end the run before its end; between two batches the launcher has no sign of life for `quiet` seconds."""
    state, parts = State.OK, [f"after a request to stop (SIGUSR1) up to {longest:.0f} s: sbatch --signal=B:USR1@SECONDS"]
    if start > 30.0 * settings.start_minutes:
        state = State.WARN
        parts.append(f"a start of {start:.0f} s comes near deltamem.start_minutes={settings.start_minutes:g}")
    for seconds, what in ((sampling, "sampling"), (quiet, "updating and saving")):
        if seconds > 30.0 * settings.stall_minutes:
            state = State.WARN
            parts.append(f"{seconds:.0f} s of {what} come near deltamem.stall_minutes={settings.stall_minutes:g}")
    if longest > _NOTICE:
        state = State.WARN
        parts.append(f"the {_NOTICE} s of slurm/train.sbatch are too few for that")
    if broken := _mean(steps, "train/failure"):
        state = State.WARN
        parts.append(
            f"{broken:.1%} of the rollouts broke; above deltamem.max_failure_rate={settings.max_failure_rate:g} it ends"
        )
    return PreflightFinding(state, "; ".join(parts))
