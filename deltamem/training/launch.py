"""Starting GRPO in a child process, following it, and ending it cleanly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import lcm
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from rich.console import Console

from deltamem.errors import DeltaMemError
from deltamem.runs import RunStoppedError, atomic_writer, remove_partial
from deltamem.training.checkpoints import (
    check_space,
    heldout_rewards,
    latest_complete,
    metrics_of,
    remove_incomplete,
    remove_old,
    space_of,
    step_of,
)
from deltamem.training.cluster import worker_path
from deltamem.training.config import CONFIG_FILE, EPISODE_SHARE, WARM_START_MAY_CHANGE, TrainSettings, moved
from deltamem.training.data import AGENT_NAME, count_rows
from deltamem.training.gates import Gates
from deltamem.training.interruption import NOT_FINISHED, blocked, locked, on_request
from deltamem.training.metrics import GrpoProgress, MetricsFile, Tail, convert, read_metrics
from deltamem.training.models import content, load_model_config
from deltamem.training.resources import ModelShape

_POLL_SECONDS = 0.5
_STOP_SECONDS = 30.0
_LOCK_SECONDS = 60.0
"""How long a trainer may take to end whose launcher was killed."""


_FSDP = (
    "param_offload optimizer_offload offload_policy reshard_after_forward forward_prefetch ulysses_sequence_parallel_size"
)
_COMPUTED = (
    "entropy_from_logits_with_chunking",
    "ulysses_sequence_parallel_size",
    *(f"fsdp_config.{key}" for key in _FSDP.split()),
)
_MAY_CHANGE = tuple(
    f"{prefix}.{name}" if name else prefix
    for prefix, names in (
        # How long the run is, and what is reported of it.
        ("trainer", ["total_training_steps", "total_epochs", "save_freq", "test_freq", "val_before_train", "logger"]),
        ("trainer", ["rollout_data_dir", "validation_data_dir", "log_val_generations", "max_actor_ckpt_to_keep"]),
        ("trainer", ["project_name", "ray_wait_register_center_timeout"]),
        ("deltamem", ["rates", "shown_sessions", "gates"]),
        ("deltamem.warm_start", WARM_START_MAY_CHANGE),
        # Where things are. What is in the sessions counts by the stage `data`, what is in the model by `_MODEL_FILES`.
        ("deltamem", ["out", "sessions"]),
        ("actor_rollout_ref.model", ["path"]),
        # How the machine is used; what is computed stays the same but for rounding.
        ("deltamem", ["cpu_threads", "start_minutes", "stall_minutes", "max_failure_rate", "poll_seconds"]),
        ("deltamem.embedder", ["device", "batch_size", "threads"]),
        ("trainer.v1.sampler.sampler_kwargs", ["max_failure_rate", "poll_seconds", "stall_minutes"]),
        ("actor_rollout_ref.rollout", ["gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "enforce_eager"]),
        ("actor_rollout_ref.rollout", ["free_cache_engine", "tensor_model_parallel_size", "engine_kwargs"]),
        ("actor_rollout_ref.rollout", ["checkpoint_engine", "agent.num_workers"]),
        ("actor_rollout_ref.model", ["enable_gradient_checkpointing", "enable_activation_offload"]),
        ("actor_rollout_ref.model", ["use_fused_kernels", "fused_kernel_options"]),
        ("actor_rollout_ref.actor", ["ppo_max_token_len_per_gpu", "ppo_infer_max_token_len_per_gpu"]),
        ("actor_rollout_ref.actor", ["ppo_micro_batch_size_per_gpu", *_COMPUTED]),
        ("actor_rollout_ref.rollout", ["log_prob_max_token_len_per_gpu", "log_prob_micro_batch_size_per_gpu"]),
        ("actor_rollout_ref.ref", ["log_prob_max_token_len_per_gpu", "log_prob_micro_batch_size_per_gpu", *_COMPUTED]),
        ("actor_rollout_ref", ["nccl_timeout", "actor.profiler", "ref.profiler", "rollout.profiler", "rollout.trace"]),
        ("actor_rollout_ref.rollout", ["prometheus", "disable_log_stats"]),
        ("global_profiler", [""]),
        ("transfer_queue", [""]),
        ("ray_kwargs", [""]),
    )
    for name in names
)
"""Keys, with all below them, that may differ when a run goes on. The number of GPUs may not: checkpoints belong to it."""
_MODEL_FILES = "files of actor_rollout_ref.model.path"


class TrainingFailedError(Exception):
    """GRPO ended before its last step; the message gives the reason and the log file."""


def run_grpo(config: DictConfig, settings: TrainSettings, console: Console) -> None:
    """Train until the last step or a gate, from the last complete checkpoint if there is one.

    SIGUSR1 makes the trainer save a checkpoint at the end of the current step, and stop: at once with nothing to save.

    Raises:
        DeltaMemError: If the checkpoints do not fit on the disk, belong to another configuration, or are being written by
            another run.
        RunStoppedError: If there was a request to stop.
        TrainingFailedError: If verl's trainer fails, or what it reports meets one of ``deltamem.gates``.
    """
    with locked(settings.out / "grpo" / "lock", patience=_LOCK_SECONDS) as lock:
        last = _tidied(config)
        identity = settings.out / "grpo" / "identity.json"
        for change in changed_since(identity, config, resuming=last is not None, given=_given_keys()):
            console.print(f"grpo: goes on with {change}", soft_wrap=True)
        if (warning := unsaved_validations(config.trainer)) is not None:
            console.print(f"grpo: {warning}", style="yellow", soft_wrap=True)
        if config.trainer.save_freq > 0:
            check_space(space_of(config, ModelShape.of(load_model_config(config.actor_rollout_ref.model))))
        attempt = 1 + len(list((settings.out / "logs").glob("grpo_*.log")))
        metrics = _recovered_metrics(settings, attempt - 1, last)
        start, total = step_of(last) if last else 0, _total_steps(config)
        validates = _validation_lost(config, start, total)
        if last and start >= total and not validates:
            return
        log = settings.out / "logs" / f"grpo_{attempt}.log"
        log.parent.mkdir(exist_ok=True)
        console.print(f"grpo: full log in {log}" + (f", going on after step {start}" if last else ""), soft_wrap=True)
        env = environment(settings, log.with_suffix(".jsonl"))
        write_yaml(Path(config.actor_rollout_ref.rollout.agent.agent_loop_config_path), agent_loop_config(settings))
        write_yaml(settings.out / "grpo" / CONFIG_FILE, _for_verl(config, last, env, validates))
        code, gate = _train(config, settings, GrpoProgress(console, total, start), metrics, log, env, lock)
        if code == NOT_FINISHED and gate is not None:
            raise TrainingFailedError(f"GRPO was stopped at a gate, with what it has learned saved: {gate}")
        if code == NOT_FINISHED:
            raise RunStoppedError(f"grpo: {summary(read_metrics(settings.out / 'metrics.jsonl'), total)}")
        if code != 0:
            raise TrainingFailedError(f"GRPO ended with exit code {code}: {last_words(log)} (full log: {log})")


def unsaved_validations(trainer: DictConfig) -> str | None:
    """A warning if steps are validated that are not saved: the best of them could not be kept."""
    saves, tests = trainer.save_freq, trainer.test_freq
    if saves <= 0 or tests <= 0 or tests % saves == 0:
        return None
    return (
        f"trainer.test_freq={tests} is no multiple of trainer.save_freq={saves}: of the validated steps only every "
        f"{lcm(saves, tests)}th is saved, and only such a one can be the best that is kept"
    )


def _tidied(config: DictConfig) -> Path | None:
    """Remove what interrupted starts have left, and checkpoints that are too many; the last that is whole."""
    checkpoints = Path(config.trainer.default_local_dir)
    checkpoints.mkdir(parents=True, exist_ok=True)
    remove_incomplete(checkpoints)
    rewards = heldout_rewards(Path(config.deltamem.out))
    remove_old(checkpoints, keep=config.trainer.max_actor_ckpt_to_keep, rewards=rewards)
    remove_partial(Path(config.trainer.v1.sampler.sampler_kwargs.validation_folder))
    return latest_complete(checkpoints)


def _recovered_metrics(settings: TrainSettings, attempt: int, last: Path | None) -> MetricsFile:
    """``metrics.jsonl``, with steps that are in the checkpoint, but ended with the processes before they were noted."""
    metrics = MetricsFile(settings.out / "metrics.jsonl", from_step=step_of(last) if last else None)
    if last:
        for record in Tail(settings.out / "logs" / f"grpo_{attempt}.jsonl", settings.rates).records():
            if record["step"] <= step_of(last):
                metrics.add(record)
        metrics.add(convert(step_of(last), metrics_of(last), settings.rates))
    return metrics


def _validation_lost(config: DictConfig, step: int, total: int) -> bool:
    """Whether a step was saved whose validation was due, but ended with the process."""
    every = config.trainer.test_freq
    due = every > 0 and (step % every == 0 or step >= total)
    return due and step not in heldout_rewards(Path(config.deltamem.out))


def _for_verl(config: DictConfig, last: Path | None, env: Mapping[str, str], validates: bool) -> DictConfig:
    """The configuration of the child, which goes on from a checkpoint; whether it `validates` before its first step."""
    config = config.copy()
    with open_dict(config):
        # Named explicitly: verl's own note of the last step may be cut off.
        config.trainer.resume_mode = "resume_path" if last else "disable"
        config.trainer.resume_from_path = str(last) if last else None
        if last:
            config.trainer.val_before_train = validates
        # verl would remove an old checkpoint before the new one is whole; `ManifestCallback` does it.
        config.deltamem.keep_checkpoints = config.trainer.max_actor_ckpt_to_keep
        config.trainer.max_actor_ckpt_to_keep = None
        # `metrics.jsonl` is made of the file.
        given = config.trainer.logger
        config.trainer.logger = list(dict.fromkeys([*([given] if isinstance(given, str) else given), "file"]))
    # The workers of a Ray cluster that runs already do not inherit this process's environment.
    ours = {name: value for name, value in env.items() if os.environ.get(name) != value}
    OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", ours, force_add=True)
    return config


def _train(
    config: DictConfig,
    settings: TrainSettings,
    progress: GrpoProgress,
    metrics: MetricsFile,
    log: Path,
    env: Mapping[str, str],
    lock: int,
) -> tuple[int, str | None]:
    """Follow the child to its end; returns its exit code, and the condition for which it was asked to end."""
    sampler = config.trainer.v1.sampler.sampler_kwargs
    pulse, request = Path(sampler.pulse_file), Path(sampler.stop_file)
    pulse.unlink(missing_ok=True)
    request.unlink(missing_ok=True)
    tail = Tail(log.with_suffix(".jsonl"), settings.rates)
    deadline, last_beat = time.monotonic() + 60.0 * settings.start_minutes, 0

    gates, gate = Gates(settings.gates, heldout_rewards(settings.out)), None

    def poll() -> None:
        nonlocal deadline, last_beat, gate
        # Whether it has changed counts, not by how much: the clock of a file server may be another one.
        if pulse.exists() and (beat := pulse.stat().st_mtime_ns) != last_beat:
            deadline, last_beat = time.monotonic() + 60.0 * settings.stall_minutes, beat
        if time.monotonic() > deadline:
            if last_beat:
                why = f"made no progress for deltamem.stall_minutes={settings.stall_minutes:g}, in no phase of a step"
            else:
                why = (
                    f"not asked for its first rollouts within deltamem.start_minutes={settings.start_minutes:g}; Ray may "
                    "wait for CPUs or GPUs that are not there"
                )
            raise TrainingFailedError(f"GRPO has {why}: {last_words(log)} (full log: {log})")
        for record in tail.records():
            metrics.add(record)
            progress.add(record)
            if gate is None and (gate := gates.check(record)) is not None:
                request.touch()

    with progress, on_request(request.touch), log.open("wb") as output:
        # A session of its own: Ctrl-C reaches this process only, which then ends the child and its ray instance in order.
        with blocked(signal.SIGUSR1):
            child = subprocess.Popen(
                [sys.executable, "-m", "deltamem.training.trainer_process", str(settings.out / "grpo" / CONFIG_FILE)],
                stdout=output,
                stderr=subprocess.STDOUT,
                # The child ends when this is closed, which the kernel also does for a launcher that was killed.
                stdin=subprocess.PIPE,
                env=dict(env),
                start_new_session=True,
                # Until it has ended, no other run may begin there.
                pass_fds=(lock,),
            )
        try:
            while True:
                try:
                    code = child.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    poll()
                else:
                    poll()
                    return code, gate
        finally:
            _stop(child)


def summary(records: Sequence[Mapping[str, Any]], total: int) -> str:
    """How far a stopped run of `total` steps got, in one sentence, from the lines of ``metrics.jsonl``."""
    done = max((record["step"] for record in records), default=0)
    parts = [f"stopped with a checkpoint after step {done} of {total}" if done else "stopped before the first step was done"]
    for name, title in (("train/reward", "reward"), ("heldout/reward", "held-out reward")):
        if values := [(record["step"], record[name]) for record in records if name in record]:
            (first, begin), (latest, end) = values[0], values[-1]
            parts.append(f"{title} {begin:.3f} (step {first}) -> {end:.3f} (step {latest})")
    return ", ".join(parts) + "; the same command goes on"


def _total_steps(config: DictConfig) -> int:
    """Steps of the run: given, or as many as the epochs have."""
    if config.trainer.total_training_steps is not None:
        return int(config.trainer.total_training_steps)
    rows = count_rows(Path(config.data.train_files))
    return int(rows // config.data.train_batch_size * config.trainer.total_epochs)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Terminate the child if it still runs, and kill it if it does not shut ray down in time."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_STOP_SECONDS)
        except BaseException as error:  # a second Ctrl-C does not wait
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
    if child.stdin is not None:
        child.stdin.close()


def changed_since(path: Path, config: DictConfig, *, resuming: bool, given: Collection[str] = ()) -> list[str]:
    """Compare a configuration with that of the checkpoints, in a file, and keep it there for the next time.

    Paths inside ``deltamem.out`` are compared from there, and a folder of a model by its files. A key that was not known
    then may have its default now: it counts as changed if it is `given` on the command line.

    Returns the settings that differ and may, for people, if the run is `resuming`; another that differs is an error.
    """
    now = {key: json.dumps(value) for key, value in leaves(OmegaConf.to_container(config))}
    if config.deltamem.model is None:
        now[_MODEL_FILES] = json.dumps(content(config.actor_rollout_ref.model.path, weights=True))
    changed: list[str] = []
    if resuming:
        try:
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            before = {}
        new, old = _from_out(now), _from_out(before)
        differ = [key for key in sorted(new.keys() | old.keys()) if new.get(key) != old.get(key)]
        changed = [f"{key}={now.get(key, 'no more')} (was {before.get(key, 'not set')})" for key in differ]
        free, named = (tuple(f"{key}." for key in keys) for keys in (_MAY_CHANGE, given))

        def may_differ(key: str) -> bool:
            added = bool(old) and key not in old and not f"{key}.".startswith(named)
            return added or f"{key}.".startswith(free)

        if refused := [text for key, text in zip(differ, changed, strict=True) if not may_differ(key)]:
            more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
            raise DeltaMemError(
                f"{path.parent}: the checkpoints there were made with another configuration ({refused[0]}{more}); choose "
                "another deltamem.out, or remove the folder to start over"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path) as file:
        json.dump(now, file, indent=1)
    return changed


def _from_out(values: Mapping[str, str]) -> dict[str, str]:
    """JSON values by key, with paths inside ``deltamem.out`` given from there."""
    out = str(json.loads(values.get("deltamem.out", "null")))
    return {key: json.dumps(moved(json.loads(text), out, "OUT")) for key, text in values.items()}


def _given_keys() -> list[str]:
    """The keys that the command line names; of a choice such as ``reward@deltamem.reward=paper`` where it is put."""
    if not HydraConfig.initialized():
        return []
    names = (override.partition("=")[0].lstrip("+~") for override in HydraConfig.get().overrides.task)
    return [name.rpartition("@")[2] for name in names]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All values of nested mappings with their dotted keys."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def environment(settings: TrainSettings, verl_metrics: Path) -> dict[str, str]:
    """Environment of the child and of all ray workers."""
    env = dict(os.environ)
    env |= {
        "VERL_FILE_LOGGER_PATH": str(verl_metrics),
        "TENSORBOARD_DIR": str(settings.out / "tensorboard"),
        "WANDB_DIR": str(settings.out),
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        # Else ray keeps a record of every call for its dashboard, which nobody looks at: 0.2 MB a step.
        "RAY_task_events_report_interval_ms": "0",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": worker_path(os.environ),
    }
    if os.environ.get("DELTAMEM_ALLOW_HUB") != "1":
        env["HF_HUB_OFFLINE"] = "1"
    ours = "deltamem.training.verl_gpu" if settings.cpu_threads is None else "deltamem.training.verl_cpu"
    # After ours, for they may need it: modules of somebody else.
    env["VERL_USE_EXTERNAL_MODULES"] = ",".join(filter(None, [ours, os.environ.get("VERL_USE_EXTERNAL_MODULES")]))
    if settings.cpu_threads is not None:
        env |= {
            "VERL_PLATFORM": "cpu",
            "DELTAMEM_CPU_THREADS": str(settings.cpu_threads),
            # One thread for all that does not ask for more, and no spinning while the other process computes.
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "GOMP_SPINCOUNT": "0",
            "RAY_worker_niceness": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
    return env


def agent_loop_config(settings: TrainSettings) -> ListConfig:
    """What verl's workers instantiate for every rollout."""
    shared = {
        "turn_tokens": settings.turn_tokens,
        "seconds": 60.0 * EPISODE_SHARE * settings.stall_minutes,
        "seed": settings.seed if settings.seeded_rollouts else None,
        "shown_sessions": settings.shown_sessions,
        "episode": settings.episode.model_dump(mode="json"),
        "embedder": settings.embedder.model_dump(mode="json") | {"store": str(settings.embedder.store.absolute())},
        "scorer": settings.reward,
        "overlong": None if settings.overlong is None else settings.overlong.model_dump(),
    }
    target = "deltamem.training.agent_loop.DeltaMemAgentLoop"
    return OmegaConf.create([{"name": AGENT_NAME, "_target_": target, "settings": json.dumps(shared)}])


def write_yaml(path: Path, config: Any) -> None:
    """Write a configuration file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path) as file:
        file.write(OmegaConf.to_yaml(config))


def last_words(log: Path) -> str:
    """The reason at the end of a log: its last ``error:`` line, else its last line."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["nothing was logged"])[-1]
