"""A training run as a list of stages: data, embeddings, model, warm start, lengths, GRPO, export."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from deltamem.episode import save_episode_config
from deltamem.errors import DeltaMemError
from deltamem.runs import Stage, atomic_writer, file_sha256
from deltamem.sessions import LabelledSession, read_sessions
from deltamem.training import data
from deltamem.training.config import TinyModelConfig, TrainSettings, WarmStartConfig
from deltamem.training.embedding_store import META_FILE, embed_data
from deltamem.training.launch import run_grpo
from deltamem.training.metrics import check_trackers

LENGTHS_FILE = "lengths.json"

_REPORT_EVERY = 50


def check_options(settings: TrainSettings) -> None:
    """Refuse what a stage would refuse, before the stages ahead of it have spent their minutes.

    Raises:
        DeltaMemError: If a prompt or the reward cannot be had as configured.
    """
    settings.episode.config()
    settings.scorer()


def synthesis(settings: TrainSettings) -> list[Stage]:
    """The stage that makes the data set, where it is configured; it comes before `stages`, whose inputs its result is."""
    if settings.synth is None:
        return []
    folder = settings.sessions.parent
    command = [sys.executable, "-m", "synth", *_overrides(settings.synth), f"out={folder}"]
    return [Stage("synth", {"synth": settings.synth}, lambda: _run(command), settings.sessions)]


def _overrides(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Hydra overrides that set nested keys."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _overrides(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={value}"


def _run(command: Sequence[str]) -> None:
    # A process of its own: the library never imports synth.
    if code := subprocess.run(command, check=False).returncode:
        raise DeltaMemError(f"{' '.join(command[1:])} ended with exit code {code}")


def stages(config: DictConfig, settings: TrainSettings, console: Console) -> list[Stage]:
    """The stages of a run, in order; `model` and `warm_start` only where they are configured, `export` where GRPO saves.

    Args:
        config: The whole configuration, resolved.
        settings: Its ``deltamem`` part, with an absolute `out`.
        console: Shows progress inside a stage.

    Raises:
        DeltaMemError: If the sessions file or the package of a tracker is missing, or the sessions lack the difficulty that
            a curriculum needs.
    """
    if not settings.sessions.is_file():
        raise DeltaMemError(
            f"{settings.sessions}: no such file; make one with: python -m synth out={settings.sessions.parent}"
        )
    if settings.curriculum is not None:
        data.check_difficulty(settings.sessions)
    check_trackers(settings.trackers)
    out = settings.out
    episode = {"episode": settings.episode.model_dump(mode="json"), "seed": settings.seed}
    found = [
        Stage(
            "data",
            {**episode, **settings.data.model_dump(), "sessions_sha256": file_sha256(settings.sessions)},
            lambda: _export_data(config, settings),
            out / "data" / "heldout.parquet",
        ),
        Stage(
            "embeddings",
            {"embedder": settings.embedder.name, "store": str(settings.embedder.store)},
            lambda: embed_data(_files(settings), settings.embedder, console),
            settings.embedder.store / META_FILE,
        ),
    ]
    if (model := settings.model) is not None:
        chosen = model.model_dump(mode="json", exclude_unset=True)
        found.append(Stage("model", {**episode, "model": chosen}, lambda: _build_model(settings, model), out / "model"))
    if (options := settings.warm_start) is not None:
        found.append(
            Stage(
                "warm_start",
                {**episode, "warm_start": options.model_dump(mode="json", exclude_unset=True)},
                lambda: _warm_start(settings, options, console),
                out / "warm_start" / "model",
            )
        )
    if settings.limits.fit:
        measured = {
            "limits": settings.limits.model_dump(),
            "tokenizer": [config.actor_rollout_ref.model.path, config.actor_rollout_ref.model.tokenizer_path],
            "template": data.template_kwargs(config),
        }
        found.append(Stage("lengths", measured, lambda: _measure(config, settings, console), settings.out / LENGTHS_FILE))
    inputs: Any = OmegaConf.to_container(config)
    # These say how a run is shown and continued, not what it computes.
    for key in ("logger", "save_freq", "default_local_dir"):
        inputs["trainer"].pop(key)
    saves = config.trainer.save_freq > 0
    checkpoints = Path(config.trainer.default_local_dir)
    # Limits that are fitted follow from the stages before, so they need not be among the inputs.
    grpo = {"config": inputs, "saves": saves}
    found.append(Stage("grpo", grpo, lambda: run_grpo(*fitted(config, settings), console), checkpoints))
    if saves:
        found.append(Stage("export", {}, lambda: _export(out), out / "policy"))
    return found


def _export_data(config: DictConfig, settings: TrainSettings) -> None:
    chosen = {**settings.data.model_dump(), "seed": settings.seed}
    exported = data.export(settings.sessions, settings.out / "data", settings.episode.config(), **chosen)
    batch = config.data.train_batch_size
    if exported.train_sessions < batch:
        raise DeltaMemError(
            f"{settings.sessions}: {exported.train_sessions} training sessions are fewer than data.train_batch_size={batch}"
        )


def _files(settings: TrainSettings) -> list[Path]:
    return [settings.out / "data" / f"{name}.parquet" for name in ("train", "heldout")]


def _measure(config: DictConfig, settings: TrainSettings, console: Console) -> None:
    found, limits = measured_limits(config, settings, _files(settings))
    data.write_lengths(settings.out / LENGTHS_FILE, found, limits)
    console.print(
        f"lengths: prompts up to {found.prompt.max()} tokens; limits {limits.prompt} + {limits.response}, turn {limits.turn}"
    )


def measured_limits(config: DictConfig, settings: TrainSettings, files: Sequence[Path]) -> tuple[data.Lengths, data.Limits]:
    """Measure exported rows, and the limits that they need.

    Raises:
        DeltaMemError: If the tokenizer cannot be had, or the model cannot read so much.
    """
    model = config.actor_rollout_ref.model
    found = data.measure(files, data.load_tokenizer(model), settings.episode.config(), data.template_kwargs(config))
    window = int(data.load_model_config(model).max_position_embeddings)
    return found, data.fit(found, settings.limits, max_turns=settings.episode.max_turns, window=window)


def fitted(config: DictConfig, settings: TrainSettings) -> tuple[DictConfig, TrainSettings]:
    """The configuration with the limits of ``lengths.json``, if they follow from the data.

    Raises:
        DeltaMemError: If that file cannot be read.
    """
    if not settings.limits.fit:
        return config, settings
    limits = data.read_limits(settings.out / LENGTHS_FILE)
    return data.with_limits(config, limits), settings.model_copy(update={"turn_tokens": limits.turn})


def _early_sessions(settings: TrainSettings) -> list[LabelledSession]:
    """Sessions of the training persons that GRPO leaves alone; of all of them if it leaves none."""
    everything = list(read_sessions(settings.sessions, split="train"))
    people = data.people(everything, "train")
    early = set(people[: settings.data.skip_people] or people)
    return [item for item in everything if item.session.person_id in early]


def _build_model(settings: TrainSettings, model: TinyModelConfig) -> None:
    from deltamem.training.tiny import build

    target = settings.out / "model"
    partial = _fresh(target)
    build(partial, _early_sessions(settings), settings.episode.config(), model, seed=settings.seed)
    partial.replace(target)


def _warm_start(settings: TrainSettings, options: WarmStartConfig, console: Console) -> None:
    import torch
    from transformers import AutoTokenizer, Qwen3ForCausalLM

    from deltamem.training.warm_start import WarmStartStep, warm_start

    if settings.cpu_threads is not None:
        torch.set_num_threads(settings.cpu_threads)
    # Products in bfloat16 where the CPU has them: about 1.7 times as fast.
    torch.set_float32_matmul_precision("medium")
    start = settings.out / "model"
    tokenizer = AutoTokenizer.from_pretrained(start)
    model = Qwen3ForCausalLM.from_pretrained(start, dtype=torch.float32)
    total = options.copy_steps + options.steps

    begin = time.perf_counter()
    records: list[dict[str, Any]] = []

    def report(step: WarmStartStep) -> None:
        records.append({**step._asdict(), "seconds": round(time.perf_counter() - begin, 2)})
        if step.step % _REPORT_EVERY == 0 or step.step == total:
            console.print(
                f"warm_start {step.step}/{total}: {step.phase}, loss {step.loss:.3f}, accuracy {step.accuracy:.3f}"
            )

    episode = settings.episode.config()
    warm_start(model, tokenizer, _early_sessions(settings), episode, options, seed=settings.seed, report=report)
    target = settings.out / "warm_start" / "model"
    partial = _fresh(target)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    save_episode_config(partial, episode)
    with atomic_writer(settings.out / "warm_start.jsonl") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in records)
    partial.replace(target)


def _fresh(target: Path) -> Path:
    """An empty folder beside the target, which is removed."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def _export(run: Path) -> None:
    from deltamem.training.export import export_run

    export_run(run, run / "policy")
