"""A training run as a list of stages: data, embeddings, model, lengths, warm start, GRPO, export."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from deltamem.episode import save_episode_config
from deltamem.errors import DeltaMemError
from deltamem.runs import RunStoppedError, Stage, changed_stage, config_hash, file_sha256, unfinished
from deltamem.training import data, machine, models, resources, token_limits
from deltamem.training.checkpoints import heldout_rewards, latest_complete, whole_folder
from deltamem.training.config import (
    CONFIG_FILE,
    WARM_START_MAY_CHANGE,
    SupervisedConfig,
    TinyModelConfig,
    TrainSettings,
    WarmStartConfig,
    check_options_of_verl,
)
from deltamem.training.embedding_store import META_FILE, embed_data
from deltamem.training.interruption import apart, on_request
from deltamem.training.launch import leaves, run_grpo, write_yaml
from deltamem.training.metrics import MetricsFile, StageProgress

LENGTHS_FILE = "lengths.json"

_REPORT_EVERY = 50


def check_options(config: DictConfig, settings: TrainSettings) -> None:
    """Refuse what a stage would refuse, before the stages ahead of it have spent their minutes."""
    settings.episode.config()
    settings.scorer()
    check_loggers(config)
    check_options_of_verl(config)
    if settings.warm_start is not None and settings.episode.config().max_turns < 2:
        raise DeltaMemError("deltamem.warm_start needs two deltamem.episode.max_turns: its teacher searches, then answers")
    model = config.actor_rollout_ref.model
    if settings.model is None and models.names_folder(model.path):
        models.check_folder(model)


def check_loggers(config: DictConfig) -> list[str]:
    """Where verl logs to, of ``trainer.logger``; all must be installed."""
    given = config.trainer.logger
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in ("console", "file") and importlib.util.find_spec(name) is None:
            raise DeltaMemError(f"trainer.logger: {name} is not installed; run: pip install {name}")
    return names


def check_unchanged(config: DictConfig, settings: TrainSettings, listed: Sequence[Stage]) -> None:
    """Refuse to make anything again that existing checkpoints of GRPO come from."""
    folder = Path(config.trainer.default_local_dir)
    before = list(takewhile(lambda stage: stage.name != "grpo", listed))
    if latest_complete(folder) is not None and (name := changed_stage(before, settings.out / "stages")) is not None:
        raise DeltaMemError(
            f"{folder.parent}: the checkpoints there were made with another configuration (stage {name} would run again); "
            "choose another deltamem.out, or remove the folder to start over"
        )


STAGES = ("synth", "data", "embeddings", "model", "warm_start", "lengths", "grpo", "export")
"""All that there may be; a run has some of them."""
_ON_GPUS = frozenset({"warm_start", "grpo"})


def needs_gpus(settings: TrainSettings, only: Collection[str] | None) -> bool:
    """Whether stages among `only` (None: all) need what is checked before a run on GPUs begins."""
    return settings.cpu_threads is None and (only is None or not _ON_GPUS.isdisjoint(only))


def check_chosen(only: Collection[str], listed: Sequence[Stage], folder: Path) -> None:
    """Refuse to run only some stages if one of them needs what another has yet to make.

    Every stage reads what those before it have left; only GRPO reads the embeddings.
    """
    names = [stage.name for stage in listed]
    if unknown := sorted(set(only) - set(names)):
        raise DeltaMemError(f"stages={unknown[0]}: no stage of this run; it has {', '.join(names)}")
    for missing in unfinished(listed, folder):
        rest = names[names.index(missing) + 1 :]
        readers = [name for name in rest if name in only and (missing != "embeddings" or name in ("grpo", "export"))]
        if missing not in only and readers:
            raise DeltaMemError(f"stages: {readers[0]} needs {missing}, which is not done and not among them")


def synthesis(settings: TrainSettings) -> list[Stage]:
    """The stage that makes the data set, where it is configured; it comes before `stages`, whose inputs its result is."""
    if settings.synth is None:
        return []
    # A process of its own: the library never imports synth.
    overrides = [f"{key}={value}" for key, value in leaves(settings.synth) if value != {}]
    command = [sys.executable, "-m", "synth", *overrides, f"out={settings.sessions.parent}"]

    def run() -> None:
        if code := subprocess.run(command, check=False).returncode:
            raise DeltaMemError(f"{' '.join(command[1:])} ended with exit code {code}")

    return [Stage("synth", {"synth": settings.synth}, run, settings.sessions)]


def stages(config: DictConfig, settings: TrainSettings, console: Console) -> list[Stage]:
    """The stages of a run, in order; `model` and `warm_start` only where they are configured, `export` where GRPO saves."""
    if not settings.sessions.is_file():
        raise DeltaMemError(
            f"{settings.sessions}: no such file; make one with: python -m synth out={settings.sessions.parent}"
        )
    out, start, embedder, files = settings.out, settings.warm_start, settings.embedder, _files(settings)
    sha256, checkpoints = file_sha256(settings.sessions), Path(config.trainer.default_local_dir)
    episode = {"episode": settings.episode.model_dump(mode="json"), "seed": settings.seed}

    rows = {**episode, **settings.data.model_dump(), "sessions_sha256": sha256}
    listed = [Stage("data", rows, partial(_write_rows, config, settings), files[-1])]
    store = embedder.store.absolute()
    # The run's folder may be moved.
    place = store.relative_to(out.absolute()) if store.is_relative_to(out.absolute()) else store
    vectors = {"embedder": embedder.name, "store": str(place)}
    listed.append(Stage("embeddings", vectors, partial(embed_data, files, embedder, console), embedder.store / META_FILE))
    if settings.model is not None:
        size = {**episode, "model": settings.model.model_dump(mode="json", exclude_unset=True)}
        listed.append(Stage("model", size, partial(_make_model, settings, settings.model), out / "model"))
    if isinstance(start, WarmStartConfig):
        taught = {**episode, "warm_start": start.model_dump(mode="json", exclude_unset=True)}
        listed.append(Stage("warm_start", taught, partial(_teach, config, settings, start, console), _warm_model(settings)))
    # A pretrained model has its tokenizer before the warm start; what does not fit is then found before its minutes.
    if settings.limits.fit:
        limits = {"limits": settings.limits.model_dump(), **_reading(config, settings)}
        listed.append(Stage("lengths", limits, partial(_measure, config, settings, console), out / LENGTHS_FILE))
    if isinstance(start, SupervisedConfig):
        tuned = {
            **episode,
            "warm_start": start.model_dump(mode="json", exclude=set(WARM_START_MAY_CHANGE)),
            **_reading(config, settings),
            "weights": _content(config.actor_rollout_ref.model.path, settings, weights=True),
            "limits": str(token_limits.rollout_limits(config, settings)),
            "sessions": {**settings.data.model_dump(), "sha256": sha256},
        }
        run = partial(_tune, config, settings, config_hash(tuned), console)
        listed.append(Stage("warm_start", tuned, run, _warm_model(settings)))
    listed.append(Stage("grpo", _grpo_inputs(config), lambda: run_grpo(*final(config, settings), console), checkpoints))
    if config.trainer.save_freq > 0:
        listed.append(Stage("export", {}, partial(_export, out, console), out / "policy"))
    return listed


def _files(settings: TrainSettings) -> list[Path]:
    return [settings.out / "data" / f"{name}.parquet" for name in ("train", "heldout")]


def _warm_model(settings: TrainSettings) -> Path:
    return settings.out / "warm_start" / "model"


def _write_rows(config: DictConfig, settings: TrainSettings) -> None:
    chosen, batch = {**settings.data.model_dump(), "seed": settings.seed}, config.data.train_batch_size
    exported = data.export(settings.sessions, settings.out / "data", settings.episode.config(), **chosen)
    if exported.train_sessions < batch:
        raise DeltaMemError(
            f"{settings.sessions}: {exported.train_sessions} training sessions are fewer than data.train_batch_size={batch}"
        )


def _make_model(settings: TrainSettings, size: TinyModelConfig) -> None:
    from deltamem.training.tiny import build

    with whole_folder(settings.out / "model") as folder:
        build(folder, data.early_sessions(settings), settings.episode.config(), size, seed=settings.seed)


def _measure(config: DictConfig, settings: TrainSettings, console: Console) -> None:
    lengths, limits = measured_limits(config, settings, _files(settings))
    token_limits.write_lengths(settings.out / LENGTHS_FILE, lengths, limits)
    console.print(
        f"lengths: prompts up to {lengths.prompt.max()} tokens; limits {limits.prompt} + {limits.response}, "
        f"turn {limits.turn}"
    )


def measured_limits(
    config: DictConfig, settings: TrainSettings, files: Sequence[Path]
) -> tuple[token_limits.Lengths, token_limits.Limits]:
    """Measure exported rows, and the limits that they need."""
    model, episode = config.actor_rollout_ref.model, settings.episode.config()
    lengths = token_limits.measure(files, models.load_tokenizer(model), episode, models.template_kwargs(config))
    window = int(models.load_model_config(model).max_position_embeddings)
    return lengths, token_limits.fit(lengths, settings.limits, max_turns=episode.max_turns, window=window)


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


def _teach(config: DictConfig, settings: TrainSettings, options: WarmStartConfig, console: Console) -> None:
    """The warm start of the model that the run has made."""
    import torch
    from transformers import AutoTokenizer, Qwen3ForCausalLM

    from deltamem.training.tiny import train

    _use_threads(settings)
    tokenizer = AutoTokenizer.from_pretrained(settings.out / "model")
    model = Qwen3ForCausalLM.from_pretrained(settings.out / "model", dtype=torch.float32)
    begin = time.perf_counter()
    metrics = MetricsFile(settings.out / "warm_start.jsonl", from_step=None)
    steps = options.copy_steps + options.steps
    with StageProgress(console, "warm_start", steps, every=_REPORT_EVERY) as progress:

        def report(figures: dict[str, Any]) -> None:
            metrics.add({**figures, "seconds": round(time.perf_counter() - begin, 2)})
            progress.show(figures["step"], "{phase}, loss {loss:.3f}, accuracy {accuracy:.3f}".format(**figures))

        episode = settings.episode.config()
        with _rounded_products():
            train(model, tokenizer, data.early_sessions(settings), episode, options, seed=settings.seed, report=report)
    _save_warm_start(config, settings, model, tokenizer)


def _tune(config: DictConfig, settings: TrainSettings, identity: str, console: Console) -> None:
    """The warm start of a pretrained model."""
    request = stop_request(settings)
    request.parent.mkdir(parents=True, exist_ok=True)
    request.unlink(missing_ok=True)
    with on_request(request.touch):
        if settings.cpu_threads is None:
            # The trainer needs what CUDA would keep of the GPU here.
            apart(tune, config, settings, identity)
        else:
            tune(config, settings, identity, console)
    if request.exists():
        raise RunStoppedError(
            "warm_start: stopped after its last step, the model is saved; the same command goes on", done=True
        )


def stop_request(settings: TrainSettings) -> Path:
    """The file that asks a warm start to stop."""
    return settings.out / "warm_start.stop"


def tune(config: DictConfig, settings: TrainSettings, identity: str, console: Console | None = None) -> None:
    """Fine-tune a pretrained model to its last step, from a checkpoint of the same `identity` if there is one."""
    import torch

    from deltamem.training.model_card import warm_start_card
    from deltamem.training.warm_start import CHECKPOINT, Tuning, supervised_data

    console = console or Console(highlight=False)
    options = cast(SupervisedConfig, settings.warm_start)
    _use_threads(settings)
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
    card = warm_start_card(start.path, options.steps)
    _save_warm_start(config, settings, tuning.finish(), models.load_tokenizer(start), card)
    (folder / CHECKPOINT).unlink(missing_ok=True)


def _use_threads(settings: TrainSettings) -> None:
    import torch

    if settings.cpu_threads is not None:
        torch.set_num_threads(settings.cpu_threads)


@contextmanager
def _rounded_products() -> Iterator[None]:
    """Round factors of float32 to bfloat16 where that is faster; not of what the process computes afterwards."""
    import torch

    from deltamem.training.warm_start import faster_in_bfloat16

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if faster_in_bfloat16("cpu") else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _save_warm_start(
    config: DictConfig, settings: TrainSettings, model: Any, tokenizer: Any, card: str | None = None
) -> None:
    """The model with what an export of it needs."""
    write_yaml(_warm_model(settings).with_name(CONFIG_FILE), OmegaConf.to_container(config, resolve=True))
    with whole_folder(_warm_model(settings)) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        save_episode_config(folder, settings.episode.config(), settings.embedder.name, settings.turn_tokens)
        if card is not None:
            (folder / "README.md").write_text(card, encoding="utf-8")


def _grpo_inputs(config: DictConfig) -> dict[str, Any]:
    whole: Any = OmegaConf.to_container(config)
    # These say how a run is shown and continued, not what it computes. Fitted limits follow from the stages before.
    for key in ("logger", "save_freq", "default_local_dir"):
        whole["trainer"].pop(key)
    return {"config": whole, "saves": config.trainer.save_freq > 0}


def final(config: DictConfig, settings: TrainSettings) -> tuple[DictConfig, TrainSettings]:
    """The configuration of GRPO: limits of ``lengths.json``, the warm start's model, vLLM's cache where there are such."""
    if settings.limits.fit:
        limits = token_limits.read_limits(settings.out / LENGTHS_FILE)
        config = token_limits.with_limits(config, limits)
        settings = settings.model_copy(update={"turn_tokens": limits.turn})
    if isinstance(settings.warm_start, SupervisedConfig):
        config = config.copy()
        config.actor_rollout_ref.model.path = str(_warm_model(settings))
    if config.actor_rollout_ref.rollout.name == "vllm" and settings.cpu_threads is None and (cards := machine.gpus()):
        shape = resources.ModelShape.of(models.load_model_config(config.actor_rollout_ref.model))
        config = resources.with_pinned_cache(config, shape, min(card.memory for card in cards))
    return config, settings


def _export(run: Path, console: Console) -> None:
    from deltamem.training.export import export_run

    step, rewards = export_run(run, run / "policy"), heldout_rewards(run)
    if (reward := rewards.get(step)) is None:
        console.print(f"export: step {step}, the newest", soft_wrap=True)
    else:
        found = f"export: step {step}, the best of those kept by held-out reward ({reward:.3f})"
        better = "; the policy before training earned more" if rewards.get(0, reward) > reward else ""
        console.print(f"{found}{better}", soft_wrap=True)
