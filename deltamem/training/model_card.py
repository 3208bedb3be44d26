"""The card of a policy (``README.md``): what it is, how it was trained, what was measured of it and what was not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from deltamem.embedding import public_name
from deltamem.episode import EpisodeConfig, EpisodeSettings
from deltamem.prompts import load_prompt
from deltamem.runs import config_hash, file_sha256, git_commit, versions
from deltamem.text_files import read_text
from deltamem.training.measured import NOTHING, Measured, table
from deltamem.training.metrics import read_metrics

_SETTINGS = (
    "algorithm.adv_estimator",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.clip_ratio",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.temperature",
    "data.train_batch_size",
    "deltamem.reward",
    "deltamem.seed",
    "deltamem.embedder.name",
)
"""What differs between runs of GRPO; the card lists it."""
_WARM_START_SETTINGS = ("deltamem.warm_start", "deltamem.seed", "deltamem.embedder.name")
"""The same of a model before GRPO."""
_CURVES = {"train/reward": "training reward", "heldout/reward": "held-out reward"}
_WARM_START_CURVES = {"accuracy": "share of tokens foretold", "heldout/accuracy": "the same, held-out sessions"}
_NEVER = ("Other languages, safety and bias.", "Rewards compare operations with the labelled ones of synthetic sessions.")
_Rows = Iterable[tuple[Any, ...]]


def model_card(run: Path, config: DictConfig, step: int, folder: str, measured: Measured = NOTHING) -> str:
    """The text of ``README.md`` for a `step` of a run; `folder` is the policy's name in its commands."""
    model, episode = config.actor_rollout_ref.model, run_episode(config)
    own = config.deltamem.model is not None  # made from scratch in the run
    base = Path(model.path)
    local = base.is_dir()  # the name of a local folder says nothing to others
    known = {} if own else front_matter(base)
    licence, origin = known.get("license"), known.get("base_model")
    files = [run / "data" / f"{name}.parquet" for name in ("train", "heldout")]
    train, heldout = (pq.read_metadata(file).num_rows if file.is_file() else None for file in files)
    steps = OmegaConf.select(config, "trainer.total_training_steps")
    if steps is None:
        steps = "?" if train is None else train // config.data.train_batch_size * config.trainer.total_epochs
    started = (
        "none: made from scratch in the run" if own else origin or (f"a folder named {base.name}" if local else model.path)
    )
    training: list[tuple[Any, ...]] = [
        ("base model", started),
        ("licence of the base", licence or "unknown: its files do not name one; find out before you pass this on"),
        ("warm start", _warm_start(config)),
        ("steps of GRPO", f"{step} of {steps}" if step else "none"),
        ("thinking", "yes" if episode.thinking else "no"),
    ]
    if step:
        rank = model.get("lora_rank")
        training.append(("weights trained by GRPO", f"LoRA of rank {rank}, added to the base" if rank else "all"))
    sessions = Path(config.deltamem.sessions)
    counts = {sessions: None, files[0]: train, files[1]: heldout}
    data: _Rows = [
        (file.name, "" if rows is None else rows, file_sha256(file) if file.is_file() else "gone before the export")
        for file, rows in counts.items()
    ]
    plain: Any = OmegaConf.to_container(config)
    made: _Rows = [
        ("git commit", git_commit() or "unknown"),
        ("configuration, sha256", config_hash(plain)),
        *((f"prompt {name}, sha256", load_prompt(name).sha256) for name in (episode.system_prompt, episode.session_prompt)),
        *versions().items(),
    ]
    # JSON strings are YAML strings, whatever they contain.
    front = [f"license: {json.dumps(licence or 'unknown')}"]
    front += [] if own or (local and not origin) else [f"base_model: {json.dumps(str(origin or model.path))}"]
    tags = ", ".join(("deltamem", "memory", *(("grpo",) if step else ()), "agent"))
    front += ["library_name: transformers", "pipeline_tag: text-generation", f"tags: [{tags}]"]
    parts = [
        "\n".join(["---", *front, "---"]),
        f"# DeltaMem policy: {config.trainer.experiment_name}, step {step}",
        "A memory manager: it reads a session between a person and an assistant, may search the person's memories, and "
        f"answers with ADD, UPDATE and NONE operations. {'Trained with GRPO' if step else 'Fine-tuned on labels'} by "
        "[DeltaMem](https://arxiv.org/abs/2604.01560)'s open implementation.",
        "## Use\n\n" + _use(config, episode, folder),
        "## Training\n\n" + table(["", ""], training),
        "Settings of this run:\n\n"
        + table(["key", "value"], _settings(config, _SETTINGS if step else _WARM_START_SETTINGS)),
        "## Data\n\n" + table(["file", "rows", "sha256"], data),
        "## Results in training\n\n" + _results(run, step, heldout),
        *(["## Evaluations of these weights", *sections] if (sections := measured.sections()) else []),
        "## Not measured\n\n" + "\n".join(f"- {line}" for line in (*measured.missing(), *_NEVER)),
        "## Made with\n\n" + table(["", ""], made),
    ]
    return "\n\n".join(parts) + "\n"


def run_episode(config: DictConfig) -> EpisodeConfig:
    """What shaped the episodes of a run, from its configuration."""
    return EpisodeSettings.model_validate(OmegaConf.to_container(config.deltamem.episode)).config()


def front_matter(base: Path) -> dict[str, Any]:
    """What the front matter of a local model card says; nothing where there is no folder, card or front matter."""
    card = base / "README.md"
    if not card.is_file():
        return {}
    text = read_text(card)
    front = text.split("---", 2)[1] if text.startswith("---") and text.count("---") >= 2 else ""
    found = OmegaConf.create(front) if front.strip() else None
    return {str(key): found[key] for key in found} if isinstance(found, DictConfig) else {}


def warm_start_card(start: str, steps: int) -> str:
    """``README.md`` of a warm-started model: its licence is that of the model it started from, where that names one."""
    known = front_matter(Path(start))
    front = {"license": known.get("license"), "base_model": known.get("base_model", None if Path(start).is_dir() else start)}
    lines = [f"{key}: {json.dumps(str(value))}" for key, value in front.items() if value]
    return "\n".join(["---", *lines, "---", "", f"After {steps} steps of supervised fine-tuning, before GRPO.", ""])


def _use(config: DictConfig, episode: EpisodeConfig, folder: str) -> str:
    prompt, response = int(config.data.max_prompt_length), int(config.data.max_response_length)
    serve = f"vllm serve {folder} --served-model-name deltamem --max-model-len {prompt + response}"
    if not episode.thinking:
        serve += " --default-chat-template-kwargs '{\"enable_thinking\": false}'"
    embedder, turn = public_name(str(config.deltamem.embedder.name)), config.deltamem.turn_tokens
    return (
        "Serve it without vLLM's parsers for reasoning and tool calls: DeltaMem reads the tags itself.\n\n"
        f"```bash\n{serve}\n"
        "deltamem add SESSION.json --owner NAME --base-url http://localhost:8000/v1 --model deltamem "
        f"--checkpoint {folder} --embedder {embedder}\n"
        "python -m eval.heldout endpoint.base_url=http://localhost:8000/v1 endpoint.model=deltamem "
        f"checkpoint={folder} sessions=FILE out=DIR max_new_tokens={turn}\n"
        "python -m eval.locomo protocol=paper system=deltamem manager.base_url=http://localhost:8000/v1 "
        f"manager.model=deltamem manager.checkpoint={folder} manager.max_tokens={turn}\n```\n\n"
        f"`episode.json` holds the prompts, the limits and the embedder (`{embedder}`) that it was trained with; these "
        "commands apply them, and warn where others are used. "
        f"Prompts had at most {prompt} tokens, responses with the answers of searches {response}."
    )


def _warm_start(config: DictConfig) -> str:
    """What was done before GRPO."""
    start = OmegaConf.select(config, "deltamem.warm_start")
    if start is None:
        return "none"
    layers = f", the last {start.layers} layers" if start.get("layers") else ""
    rank = f", LoRA of rank {start.lora_rank}, added to the base" if start.get("lora_rank") else ""
    return f"{start.steps} steps on target trajectories, supervised{layers}{rank}"


def _settings(config: DictConfig, keys: Iterable[str]) -> _Rows:
    for key in keys:
        value = OmegaConf.select(config, key)
        if isinstance(value, DictConfig):
            yield from ((f"{key}.{name}", f"`{value[name]}`") for name in map(str, value))
        else:
            yield key, f"`{value}`"


def _results(run: Path, step: int, heldout_sessions: int | None) -> str:
    """The figures of GRPO up to its step, of the warm start before its first."""
    records = read_metrics(run / ("metrics.jsonl" if step else "warm_start.jsonl"))
    metrics = [line for line in records if not step or line["step"] <= step]
    rows = []
    for name, title in (_CURVES if step else _WARM_START_CURVES).items():
        if found := [(line["step"], line[name]) for line in metrics if name in line]:
            count = heldout_sessions if name == "heldout/reward" else ""
            (first, begin), (last, end) = found[0], found[-1]
            rows.append((title, f"{begin:.3f} (step {first})", f"{end:.3f} (step {last})", count))
    if not rows:
        return "This run has no metrics up to this step."
    note = "Of one run with one seed. Held-out sessions are of people whom the policy has not met."
    validated = {line["step"]: line["heldout/reward"] for line in records if line["step"] and "heldout/reward" in line}
    if len(validated) > 1 and validated.get(step) == max(validated.values()):
        note += f" Of {len(validated)} validated steps this one has the highest held-out reward: if chosen so, it flatters."
    return f"{table(['', 'first', 'last', 'sessions'], rows)}\n\n{note}"
