"""A training run as a list of stages: data, embeddings, model, warm start, lengths, GRPO, export."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from deltamem.episode import save_episode_config
from deltamem.errors import DeltaMemError
from deltamem.runs import RunStoppedError, Stage, atomic_writer, changed_stage, config_hash, file_sha256
from deltamem.sessions import LabelledSession, read_sessions
from deltamem.training import data
from deltamem.training.checkpoints import latest_complete
from deltamem.training.config import (
    WARM_START_MAY_CHANGE,
    SupervisedConfig,
    TinyModelConfig,
    TrainSettings,
    WarmStartConfig,
)
from deltamem.training.embedding_store import META_FILE, embed_data
from deltamem.training.interruption import apart, on_request
from deltamem.training.launch import run_grpo
from deltamem.training.metrics import MetricsFile, StageProgress

if TYPE_CHECKING:
    from deltamem.training.supervised import Example

LENGTHS_FILE = "lengths.json"

_REPORT_EVERY = 50


def check_options(config: DictConfig, settings: TrainSettings) -> None:
    """Refuse what a stage would refuse, before the stages ahead of it have spent their minutes.

    Raises:
        DeltaMemError: If a prompt, the reward or the folder of the model cannot be had as configured, or the episode has no
            turn for the search of a warm start's teacher.
    """
    settings.episode.config()
    settings.scorer()
    check_loggers(config)
    if settings.warm_start is not None and settings.episode.max_turns < 2:
        raise DeltaMemError("deltamem.warm_start needs two deltamem.episode.max_turns: its teacher searches, then answers")
    model = config.actor_rollout_ref.model
    if settings.model is None and data.names_folder(model.path):
        data.check_folder(model)


def check_loggers(config: DictConfig) -> list[str]:
    """Where verl logs to, of ``trainer.logger``.

    Raises:
        DeltaMemError: If the package of one of them, of the same name, is not installed.
    """
    names = list(config.trainer.logger)
    for name in names:
        if name not in ("console", "file") and importlib.util.find_spec(name) is None:
            raise DeltaMemError(f"trainer.logger: {name} is not installed; run: pip install {name}")
    return names


def check_unchanged(config: DictConfig, settings: TrainSettings, listed: Sequence[Stage]) -> None:
    """Refuse to make anything again that existing checkpoints of GRPO come from.

    Raises:
        DeltaMemError: If there are such, and a stage before GRPO has other inputs than when it was done; names it.
    """
    folder = Path(config.trainer.default_local_dir)
    before = list(takewhile(lambda stage: stage.name != "grpo", listed))
    if latest_complete(folder) is not None and (name := changed_stage(before, settings.out / "stages")) is not None:
        raise DeltaMemError(
            f"{folder.parent}: the checkpoints there were made with another configuration (stage {name} would run again); "
            "choose another deltamem.out, or remove the folder to start over"
        )


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
        DeltaMemError: If the sessions file is missing.
    """
    if not settings.sessions.is_file():
        raise DeltaMemError(
            f"{settings.sessions}: no such file; make one with: python -m synth out={settings.sessions.parent}"
        )
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
    reading = _reading(config, settings)
    lengths = Stage(
        "lengths",
        {"limits": settings.limits.model_dump(), **reading},
        lambda: _measure(config, settings, console),
        out / LENGTHS_FILE,
    )
    options = settings.warm_start
    # A pretrained model has its tokenizer before the warm start; what does not fit is then found before its minutes.
    if settings.limits.fit and isinstance(options, SupervisedConfig):
        found.append(lengths)
    if isinstance(options, WarmStartConfig):
        chosen = {**episode, "warm_start": options.model_dump(mode="json", exclude_unset=True)}
        found.append(
            Stage("warm_start", chosen, lambda: _from_scratch(settings, options, console), out / "warm_start" / "model")
        )
    if isinstance(options, SupervisedConfig):
        chosen = {
            **episode,
            "warm_start": options.model_dump(mode="json", exclude=set(WARM_START_MAY_CHANGE)),
            **reading,
            "weights": _content(config.actor_rollout_ref.model.path, settings, weights=True),
            "limits": str(_limits(config, settings)),
        }
        chosen["sessions"] = {**settings.data.model_dump(), "sha256": file_sha256(settings.sessions)}
        found.append(
            Stage(
                "warm_start",
                chosen,
                lambda: _supervise(config, settings, options, config_hash(chosen), console),
                out / "warm_start" / "model",
            )
        )
    if settings.limits.fit and not isinstance(options, SupervisedConfig):
        found.append(lengths)
    inputs: Any = OmegaConf.to_container(config)
    # These say how a run is shown and continued, not what it computes.
    for key in ("logger", "save_freq", "default_local_dir"):
        inputs["trainer"].pop(key)
    saves = config.trainer.save_freq > 0
    checkpoints = Path(config.trainer.default_local_dir)
    # Limits that are fitted follow from the stages before, so they need not be among the inputs.
    grpo = {"config": inputs, "saves": saves}
    found.append(Stage("grpo", grpo, lambda: run_grpo(*final(config, settings), console), checkpoints))
    if saves:
        found.append(Stage("export", {}, lambda: _export(out), out / "policy"))
    return found


def _reading(config: DictConfig, settings: TrainSettings) -> dict[str, Any]:
    """What decides about the tokens of a text: by content, for the files of a folder may change while its path does not."""
    model = config.actor_rollout_ref.model
    found = [_content(path, settings, weights=False) for path in (model.path, model.tokenizer_path, model.hf_config_path)]
    return {"tokenizer": found, "template": [model.custom_chat_template, data.template_kwargs(config)]}


def _content(path: str | None, settings: TrainSettings, *, weights: bool) -> str | dict[str, str] | None:
    # What the run makes itself follows from the inputs of that stage.
    return path if path is None or settings.model is not None else data.content(path, weights=weights)


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


def final(config: DictConfig, settings: TrainSettings) -> tuple[DictConfig, TrainSettings]:
    """The configuration of GRPO: with limits from ``lengths.json`` and the warm-started model, where there are such.

    Raises:
        DeltaMemError: If that file cannot be read.
    """
    if settings.limits.fit:
        limits = data.read_limits(settings.out / LENGTHS_FILE)
        config = data.with_limits(config, limits)
        settings = settings.model_copy(update={"turn_tokens": limits.turn})
    if isinstance(settings.warm_start, SupervisedConfig):
        config = config.copy()
        config.actor_rollout_ref.model.path = str(settings.out / "warm_start" / "model")
    return config, settings


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


def _from_scratch(settings: TrainSettings, options: WarmStartConfig, console: Console) -> None:
    import torch
    from transformers import AutoTokenizer, Qwen3ForCausalLM

    from deltamem.training.warm_start import WarmStartStep, warm_start

    _use_cpu(settings)
    start = settings.out / "model"
    tokenizer = AutoTokenizer.from_pretrained(start)
    model = Qwen3ForCausalLM.from_pretrained(start, dtype=torch.float32)
    begin = time.perf_counter()
    records: list[dict[str, Any]] = []
    episode = settings.episode.config()
    with StageProgress(console, "warm_start", options.copy_steps + options.steps, every=_REPORT_EVERY) as progress:

        def report(step: WarmStartStep) -> None:
            records.append({**step._asdict(), "seconds": round(time.perf_counter() - begin, 2)})
            progress.show(step.step, f"{step.phase}, loss {step.loss:.3f}, accuracy {step.accuracy:.3f}")

        warm_start(model, tokenizer, _early_sessions(settings), episode, options, seed=settings.seed, report=report)
    with atomic_writer(settings.out / "warm_start.jsonl") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in records)
    _save_warm_start(settings, model, tokenizer)


def _supervise(
    config: DictConfig, settings: TrainSettings, options: SupervisedConfig, identity: str, console: Console
) -> None:
    request = _stop_request(settings)
    request.parent.mkdir(parents=True, exist_ok=True)
    request.unlink(missing_ok=True)
    with on_request(request.touch):
        if settings.cpu_threads is None:
            # The trainer needs what CUDA would keep of the GPU here.
            apart(_tune, config, settings, options, identity, None)
        else:
            _tune(config, settings, options, identity, console)
    if request.exists():
        raise RunStoppedError(
            "warm_start: stopped after its last step, the model is saved; the same command goes on", done=True
        )


def _stop_request(settings: TrainSettings) -> Path:
    return settings.out / "warm_start.stop"


def _tune(
    config: DictConfig, settings: TrainSettings, options: SupervisedConfig, identity: str, console: Console | None
) -> None:
    import torch

    from deltamem.training.model_card import warm_start_card
    from deltamem.training.supervised import CHECKPOINT, Tuning

    console = console or Console(highlight=False)
    _use_cpu(settings)
    device = "cpu" if settings.cpu_threads is not None else "cuda"
    start = config.actor_rollout_ref.model
    passes, heldout = supervised_data(config, settings, options, steps=options.steps)
    # Frozen weights below adapters need no more precision than they are computed with.
    dtype = torch.bfloat16 if options.lora_rank is not None and device == "cuda" else torch.float32
    folder = settings.out / "warm_start"
    folder.mkdir(parents=True, exist_ok=True)
    tuning = Tuning(data.load_model(start, dtype), options, device, folder, identity)
    if tuning.step:
        console.print(f"warm_start: going on after step {tuning.step}")
    metrics = MetricsFile(settings.out / "warm_start.jsonl", from_step=tuning.step or None)
    with StageProgress(console, "warm_start", options.steps, tuning.step, every=_REPORT_EVERY) as progress:

        def report(record: dict[str, float]) -> None:
            metrics.add(record)
            names = {"loss": "loss", "accuracy": "accuracy", "heldout/accuracy": "held-out", "tokens_per_second": "tokens/s"}
            shown = [f"{title} {record[name]:.4g}" for name, title in names.items() if name in record]
            progress.show(int(record["step"]), ", ".join(shown))

        tuning.run(passes, heldout, report=report, stop=_stop_request(settings).exists)
    if tuning.step < options.steps:
        raise RunStoppedError(
            f"warm_start: stopped with a checkpoint after step {tuning.step} of {options.steps}; the same command goes on"
        )
    _save_warm_start(settings, tuning.finish(), data.load_tokenizer(start), warm_start_card(start.path, options.steps))
    (folder / CHECKPOINT).unlink(missing_ok=True)


def supervised_data(
    config: DictConfig, settings: TrainSettings, options: SupervisedConfig, *, steps: int
) -> tuple[list[list[Example]], list[Example]]:
    """The passes of so many steps of supervised fine-tuning, and its held-out examples.

    Raises:
        DeltaMemError: If a trajectory does not fit, there are no sessions, or the chat template does not fit the episode.
    """
    from deltamem.training.supervised import examples, plan
    from deltamem.training.teacher import TrajectoryTokenizer

    model = config.actor_rollout_ref.model
    shape, episode = data.load_model_config(model), settings.episode.config()
    tokenize = TrajectoryTokenizer(
        data.load_tokenizer(model), model_type=shape.model_type, template_kwargs=data.template_kwargs(config)
    )
    tokenize.frame.check(thinking=episode.thinking)
    rng = random.Random(settings.seed)
    sessions = _early_sessions(settings)
    if not sessions:
        raise DeltaMemError(f"{settings.sessions}: no training sessions for the warm start")
    passes = plan(
        examples(sessions, episode, tokenize, careless=options.careless, rng=rng),
        passes=steps * options.passes,
        tokens=options.tokens,
        limits=_limits(config, settings),
        window=int(shape.max_position_embeddings),
        rng=rng,
    )
    rng = random.Random(settings.seed)
    unseen = list(read_sessions(settings.sessions, split="heldout"))
    unseen = rng.sample(unseen, min(options.heldout_sessions, len(unseen)))
    complete = examples(unseen, episode, tokenize, careless=(0.0, 0.0), rng=rng)
    return passes, list(islice(complete, len(unseen)))


def _limits(config: DictConfig, settings: TrainSettings) -> data.Limits | None:
    """The limits of rollouts; None where they follow from the data."""
    if settings.limits.fit:
        return None
    return data.Limits(config.data.max_prompt_length, config.data.max_response_length, settings.turn_tokens)


def _use_cpu(settings: TrainSettings) -> None:
    import torch

    if settings.cpu_threads is not None:
        torch.set_num_threads(settings.cpu_threads)
    # Products in bfloat16 where the CPU has them: about 1.7 times as fast.
    torch.set_float32_matmul_precision("medium")


def _save_warm_start(settings: TrainSettings, model: Any, tokenizer: Any, card: str | None = None) -> None:
    target = settings.out / "warm_start" / "model"
    partial = _fresh(target)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    save_episode_config(partial, settings.episode.config())
    if card is not None:
        (partial / "README.md").write_text(card, encoding="utf-8")
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
