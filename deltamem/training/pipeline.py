"""A training run as a list of stages, one class each: data, embeddings, model, lengths, warm start, GRPO, export."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from deltamem.episode import save_episode_config
from deltamem.errors import DeltaMemError
from deltamem.runs import RunStoppedError, Stage, atomic_writer, changed_stage, config_hash, file_sha256
from deltamem.training import data, models, token_limits
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

LENGTHS_FILE = "lengths.json"

_REPORT_EVERY = 50


def check_options(config: DictConfig, settings: TrainSettings) -> None:
    """Refuse what a stage would refuse, before the stages ahead of it have spent their minutes.

    Raises:
        DeltaMemError: If a prompt, the reward, a logger or the folder of the model cannot be had as configured, or the
            episode has no turn for the search of a warm start's teacher.
    """
    settings.episode.config()
    settings.scorer()
    check_loggers(config)
    if settings.warm_start is not None and settings.episode.config().max_turns < 2:
        raise DeltaMemError("deltamem.warm_start needs two deltamem.episode.max_turns: its teacher searches, then answers")
    model = config.actor_rollout_ref.model
    if settings.model is None and models.names_folder(model.path):
        models.check_folder(model)


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
    # A process of its own: the library never imports synth.
    command = [sys.executable, "-m", "synth", *_overrides(settings.synth), f"out={settings.sessions.parent}"]

    def run() -> None:
        if code := subprocess.run(command, check=False).returncode:
            raise DeltaMemError(f"{' '.join(command[1:])} ended with exit code {code}")

    return [Stage("synth", {"synth": settings.synth}, run, settings.sessions)]


def _overrides(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Hydra overrides that set nested keys."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _overrides(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={value}"


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
    start = settings.warm_start
    kinds: list[type[_Stage]] = [_Data, _Embeddings]
    if settings.model is not None:
        kinds.append(_ModelStage)
    # A pretrained model has its tokenizer before the warm start; what does not fit is then found before its minutes.
    warm_start: list[type[_Stage]] = [_ScratchWarmStart] if isinstance(start, WarmStartConfig) else []
    lengths: list[type[_Stage]] = [_Lengths] if settings.limits.fit else []
    kinds += [*lengths, _WarmStart] if isinstance(start, SupervisedConfig) else [*warm_start, *lengths]
    kinds += [_Grpo, _Export] if config.trainer.save_freq > 0 else [_Grpo]
    listed = [kind(config, settings, console) for kind in kinds]
    return [Stage(one.name, one.inputs, one.run, one.output()) for one in listed]


class _Stage(ABC):
    """What a stage depends on, makes and does."""

    name: str

    def __init__(self, config: DictConfig, settings: TrainSettings, console: Console) -> None:
        self.config, self.settings, self.console = config, settings, console
        self.episode = {"episode": settings.episode.model_dump(mode="json"), "seed": settings.seed}
        self.inputs = self._inputs()

    @abstractmethod
    def _inputs(self) -> dict[str, Any]:
        """What the result depends on, besides the stages before."""

    @abstractmethod
    def output(self) -> Path:
        """What is there when it is done."""

    @abstractmethod
    def run(self) -> None:
        """Do it."""


class _Data(_Stage):
    name = "data"

    def _inputs(self) -> dict[str, Any]:
        settings = self.settings
        return {**self.episode, **settings.data.model_dump(), "sessions_sha256": file_sha256(settings.sessions)}

    def output(self) -> Path:
        return self.settings.out / "data" / "heldout.parquet"

    def run(self) -> None:
        settings, batch = self.settings, self.config.data.train_batch_size
        chosen = {**settings.data.model_dump(), "seed": settings.seed}
        exported = data.export(settings.sessions, settings.out / "data", settings.episode.config(), **chosen)
        if exported.train_sessions < batch:
            raise DeltaMemError(
                f"{settings.sessions}: {exported.train_sessions} training sessions are fewer than "
                f"data.train_batch_size={batch}"
            )


def _files(settings: TrainSettings) -> list[Path]:
    return [settings.out / "data" / f"{name}.parquet" for name in ("train", "heldout")]


class _Embeddings(_Stage):
    name = "embeddings"

    def _inputs(self) -> dict[str, Any]:
        return {"embedder": self.settings.embedder.name, "store": str(self.settings.embedder.store)}

    def output(self) -> Path:
        return self.settings.embedder.store / META_FILE

    def run(self) -> None:
        embed_data(_files(self.settings), self.settings.embedder, self.console)


class _ModelStage(_Stage):
    name = "model"

    @property
    def size(self) -> TinyModelConfig:
        return cast(TinyModelConfig, self.settings.model)

    def _inputs(self) -> dict[str, Any]:
        return {**self.episode, "model": self.size.model_dump(mode="json", exclude_unset=True)}

    def output(self) -> Path:
        return self.settings.out / "model"

    def run(self) -> None:
        from deltamem.training.tiny import build

        settings = self.settings
        with _replaced(self.output()) as folder:
            build(folder, data.early_sessions(settings), settings.episode.config(), self.size, seed=settings.seed)


class _Lengths(_Stage):
    name = "lengths"

    def _inputs(self) -> dict[str, Any]:
        return {"limits": self.settings.limits.model_dump(), **_reading(self.config, self.settings)}

    def output(self) -> Path:
        return self.settings.out / LENGTHS_FILE

    def run(self) -> None:
        lengths, limits = measured_limits(self.config, self.settings, _files(self.settings))
        token_limits.write_lengths(self.output(), lengths, limits)
        self.console.print(
            f"lengths: prompts up to {lengths.prompt.max()} tokens; limits {limits.prompt} + {limits.response}, "
            f"turn {limits.turn}"
        )


def _reading(config: DictConfig, settings: TrainSettings) -> dict[str, Any]:
    """What decides about the tokens of a text: by content, for the files of a folder may change while its path does not."""
    model = config.actor_rollout_ref.model
    paths = (model.path, model.tokenizer_path, model.hf_config_path)
    return {
        "tokenizer": [_content(path, settings, weights=False) for path in paths],
        "template": [model.custom_chat_template, models.template_kwargs(config)],
    }


def _content(path: str | None, settings: TrainSettings, *, weights: bool) -> str | dict[str, str] | None:
    # What the run makes itself follows from the inputs of that stage.
    return path if path is None or settings.model is not None else models.content(path, weights=weights)


def measured_limits(
    config: DictConfig, settings: TrainSettings, files: Sequence[Path]
) -> tuple[token_limits.Lengths, token_limits.Limits]:
    """Measure exported rows, and the limits that they need.

    Raises:
        DeltaMemError: If the tokenizer cannot be had, or the model cannot read so much.
    """
    model, episode = config.actor_rollout_ref.model, settings.episode.config()
    lengths = token_limits.measure(files, models.load_tokenizer(model), episode, models.template_kwargs(config))
    window = int(models.load_model_config(model).max_position_embeddings)
    return lengths, token_limits.fit(lengths, settings.limits, max_turns=episode.max_turns, window=window)


class _ScratchWarmStart(_Stage):
    name = "warm_start"

    @property
    def options(self) -> WarmStartConfig:
        return cast(WarmStartConfig, self.settings.warm_start)

    def _inputs(self) -> dict[str, Any]:
        return {**self.episode, "warm_start": self.options.model_dump(mode="json", exclude_unset=True)}

    def output(self) -> Path:
        return self.settings.out / "warm_start" / "model"

    def run(self) -> None:
        import torch
        from transformers import AutoTokenizer, Qwen3ForCausalLM

        from deltamem.training.tiny import train

        settings, options, start = self.settings, self.options, self.settings.out / "model"
        _use_cpu(settings)
        tokenizer = AutoTokenizer.from_pretrained(start)
        model = Qwen3ForCausalLM.from_pretrained(start, dtype=torch.float32)
        begin = time.perf_counter()
        records: list[dict[str, Any]] = []
        steps = options.copy_steps + options.steps
        with StageProgress(self.console, "warm_start", steps, every=_REPORT_EVERY) as progress:

            def report(figures: dict[str, Any]) -> None:
                records.append({**figures, "seconds": round(time.perf_counter() - begin, 2)})
                text = "{phase}, loss {loss:.3f}, accuracy {accuracy:.3f}".format(**figures)
                progress.show(figures["step"], text)

            episode = settings.episode.config()
            train(model, tokenizer, data.early_sessions(settings), episode, options, seed=settings.seed, report=report)
        with atomic_writer(settings.out / "warm_start.jsonl") as file:
            file.writelines(f"{json.dumps(record)}\n" for record in records)
        _save_warm_start(settings, model, tokenizer)


class _WarmStart(_Stage):
    name = "warm_start"

    def _inputs(self) -> dict[str, Any]:
        settings = self.settings
        options = cast(SupervisedConfig, settings.warm_start)
        return {
            **self.episode,
            "warm_start": options.model_dump(mode="json", exclude=set(WARM_START_MAY_CHANGE)),
            **_reading(self.config, settings),
            "weights": _content(self.config.actor_rollout_ref.model.path, settings, weights=True),
            "limits": str(token_limits.rollout_limits(self.config, settings)),
            "sessions": {**settings.data.model_dump(), "sha256": file_sha256(settings.sessions)},
        }

    def output(self) -> Path:
        return self.settings.out / "warm_start" / "model"

    def run(self) -> None:
        request = stop_request(self.settings)
        request.parent.mkdir(parents=True, exist_ok=True)
        request.unlink(missing_ok=True)
        identity = config_hash(self.inputs)
        with on_request(request.touch):
            if self.settings.cpu_threads is None:
                # The trainer needs what CUDA would keep of the GPU here.
                apart(tune, self.config, self.settings, identity)
            else:
                tune(self.config, self.settings, identity, self.console)
        if request.exists():
            raise RunStoppedError(
                "warm_start: stopped after its last step, the model is saved; the same command goes on", done=True
            )


def stop_request(settings: TrainSettings) -> Path:
    """The file that asks a warm start to stop."""
    return settings.out / "warm_start.stop"


def tune(config: DictConfig, settings: TrainSettings, identity: str, console: Console | None = None) -> None:
    """Fine-tune a pretrained model to its last step, from a checkpoint of the same `identity` if there is one.

    Raises:
        DeltaMemError: See `deltamem.training.warm_start.supervised_data`.
        RunStoppedError: If there was a request to stop before that.
    """
    import torch

    from deltamem.training.model_card import warm_start_card
    from deltamem.training.warm_start import CHECKPOINT, Tuning, supervised_data

    console = console or Console(highlight=False)
    options = cast(SupervisedConfig, settings.warm_start)
    _use_cpu(settings)
    device = "cpu" if settings.cpu_threads is not None else "cuda"
    start = config.actor_rollout_ref.model
    passes, heldout = supervised_data(config, settings, steps=options.steps)
    # Frozen weights below adapters need no more precision than they are computed with.
    dtype = torch.bfloat16 if options.lora_rank is not None and device == "cuda" else torch.float32
    folder = settings.out / "warm_start"
    folder.mkdir(parents=True, exist_ok=True)
    tuning = Tuning(models.load_model(start, dtype), options, device, folder, identity)
    if tuning.step:
        console.print(f"warm_start: going on after step {tuning.step}")
    metrics = MetricsFile(settings.out / "warm_start.jsonl", from_step=tuning.step or None)
    with StageProgress(console, "warm_start", options.steps, tuning.step, every=_REPORT_EVERY) as progress:

        def report(record: dict[str, float]) -> None:
            metrics.add(record)
            names = {"loss": "loss", "accuracy": "accuracy", "heldout/accuracy": "held-out", "tokens_per_second": "tokens/s"}
            shown = [f"{title} {record[name]:.4g}" for name, title in names.items() if name in record]
            progress.show(int(record["step"]), ", ".join(shown))

        tuning.run(passes, heldout, report=report, stop=stop_request(settings).exists)
    if tuning.step < options.steps:
        raise RunStoppedError(
            f"warm_start: stopped with a checkpoint after step {tuning.step} of {options.steps}; the same command goes on"
        )
    _save_warm_start(settings, tuning.finish(), models.load_tokenizer(start), warm_start_card(start.path, options.steps))
    (folder / CHECKPOINT).unlink(missing_ok=True)


def _use_cpu(settings: TrainSettings) -> None:
    import torch

    if settings.cpu_threads is not None:
        torch.set_num_threads(settings.cpu_threads)
    # Products in bfloat16 where the CPU has them: about 1.7 times as fast.
    torch.set_float32_matmul_precision("medium")


def _save_warm_start(settings: TrainSettings, model: Any, tokenizer: Any, card: str | None = None) -> None:
    with _replaced(settings.out / "warm_start" / "model") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        save_episode_config(folder, settings.episode.config())
        if card is not None:
            (folder / "README.md").write_text(card, encoding="utf-8")


@contextmanager
def _replaced(target: Path) -> Iterator[Path]:
    """An empty folder that becomes the target, which is removed before, when the block ends well."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    partial.replace(target)


class _Grpo(_Stage):
    name = "grpo"

    def _inputs(self) -> dict[str, Any]:
        whole: Any = OmegaConf.to_container(self.config)
        # These say how a run is shown and continued, not what it computes.
        for key in ("logger", "save_freq", "default_local_dir"):
            whole["trainer"].pop(key)
        # Limits that are fitted follow from the stages before, so they need not be among the inputs.
        return {"config": whole, "saves": self.config.trainer.save_freq > 0}

    def output(self) -> Path:
        return Path(self.config.trainer.default_local_dir)

    def run(self) -> None:
        run_grpo(*final(self.config, self.settings), self.console)


def final(config: DictConfig, settings: TrainSettings) -> tuple[DictConfig, TrainSettings]:
    """The configuration of GRPO: with limits from ``lengths.json`` and the warm-started model, where there are such.

    Raises:
        DeltaMemError: If that file cannot be read.
    """
    if settings.limits.fit:
        limits = token_limits.read_limits(settings.out / LENGTHS_FILE)
        config = token_limits.with_limits(config, limits)
        settings = settings.model_copy(update={"turn_tokens": limits.turn})
    if isinstance(settings.warm_start, SupervisedConfig):
        config = config.copy()
        config.actor_rollout_ref.model.path = str(settings.out / "warm_start" / "model")
    return config, settings


class _Export(_Stage):
    name = "export"

    def _inputs(self) -> dict[str, Any]:
        return {}

    def output(self) -> Path:
        return self.settings.out / "policy"

    def run(self) -> None:
        from deltamem.training.export import export_run

        export_run(self.settings.out, self.output())
