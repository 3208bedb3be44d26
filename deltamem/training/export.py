"""A trained policy as a Hugging Face folder with a model card, also from a run that is under way.

python -m deltamem.training.export runs/qwen8b --step 60 --out policy
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from deltamem.config import run_plain
from deltamem.episode import EpisodeConfig, save_episode_config
from deltamem.errors import DeltaMemError
from deltamem.prompts import load_prompt
from deltamem.runs import config_hash, file_sha256, git_commit, versions
from deltamem.training.checkpoints import is_whole, latest_complete, step_of
from deltamem.training.config import EpisodeSettings
from deltamem.training.metrics import read_metrics


@dataclass(frozen=True)
class RunInfo:
    """What the model card says of a training run, read from its files."""

    step: int  # of the exported checkpoint
    steps: int | None  # of the whole run
    base: str | None  # the starting model, a name on the Hub or of a folder; None if it was made in the run
    base_is_folder: bool
    licence: str | None  # as the base's own model card names it
    experiment: str
    config_sha256: str
    settings: dict[str, Any]  # what differs between runs
    episode: EpisodeConfig
    prompts: dict[str, str]  # name -> sha256
    data: dict[str, tuple[str | None, int | None]]  # file -> sha256 (None if it is gone) and rows
    metrics: list[dict[str, Any]]  # lines of ``metrics.jsonl`` up to `step`
    heldout_sessions: int | None
    prompt_tokens: int  # the limit
    response_tokens: int
    lora_rank: int  # 0 if all weights were trained
    commit: str | None  # of the code that exported
    versions: dict[str, str]


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


def read_run_info(run: Path, step: int) -> RunInfo:
    """Read the files of a run.

    Raises:
        DeltaMemError: If the run's configuration is missing.
    """
    path = run / "grpo" / "config.yaml"
    if not path.is_file():
        raise DeltaMemError(f"{path}: no such file; expected the folder of a training run")
    config = OmegaConf.load(path)
    model = config.actor_rollout_ref.model
    own = config.deltamem.model is not None
    base = Path(model.path)
    episode = EpisodeSettings.model_validate(OmegaConf.to_container(config.deltamem.episode)).config()
    plain: Any = OmegaConf.to_container(config)
    files = {"train": run / "data" / "train.parquet", "heldout": run / "data" / "heldout.parquet"}
    rows = {name: pq.read_metadata(file).num_rows if file.is_file() else None for name, file in files.items()}
    sessions = Path(config.deltamem.sessions)
    data: dict[str, tuple[str | None, int | None]] = {sessions.name: (_hash(sessions), None)}
    data |= {file.name: (_hash(file), rows[name]) for name, file in files.items()}
    total = OmegaConf.select(config, "trainer.total_training_steps")
    if total is None and rows["train"] is not None:
        total = rows["train"] // config.data.train_batch_size * config.trainer.total_epochs
    return RunInfo(
        step=step,
        steps=total,
        base=None if own else base.name if base.is_dir() else str(model.path),
        base_is_folder=base.is_dir(),
        licence=None if own else _licence(base),
        experiment=str(config.trainer.experiment_name),
        config_sha256=config_hash(plain),
        settings={name: _plain(config, name) for name in _SETTINGS},
        episode=episode,
        prompts={name: load_prompt(name).sha256 for name in (episode.system_prompt, episode.session_prompt)},
        data=data,
        metrics=[line for line in read_metrics(run / "metrics.jsonl") if line["step"] <= step],
        heldout_sessions=rows["heldout"],
        prompt_tokens=int(config.data.max_prompt_length),
        response_tokens=int(config.data.max_response_length),
        lora_rank=int(OmegaConf.select(config, "actor_rollout_ref.model.lora_rank") or 0),
        commit=git_commit(),
        versions=versions(),
    )


def _plain(config: Any, key: str) -> Any:
    value = OmegaConf.select(config, key)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _hash(path: Path) -> str | None:
    return file_sha256(path) if path.is_file() else None


def _licence(base: Path) -> str | None:
    """The licence that the front matter of a local model card names."""
    card = base / "README.md"
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8")
    front = text.split("---", 2)[1] if text.startswith("---") and text.count("---") >= 2 else ""
    found = OmegaConf.create(front) if front.strip() else None
    licence = found.get("license") if isinstance(found, DictConfig) else None
    return str(licence) if licence else None


_CURVES = {"train/reward": "training reward", "heldout/reward": "held-out reward"}


def model_card(info: RunInfo, folder: str) -> str:
    """The whole text of ``README.md``; `folder` is the name of the policy's folder in its commands."""
    parts = [
        _front_matter(info),
        f"# DeltaMem policy: {info.experiment}, step {info.step}",
        "A memory manager: it reads a session between a person and an assistant, may search the person's memories, and "
        "answers with ADD, UPDATE and NONE operations. Trained with GRPO by "
        "[DeltaMem](https://arxiv.org/abs/2604.01560)'s open implementation.",
        "## Use\n\n" + _use(info, folder),
        "## Training\n\n" + _table(["", ""], _training(info)),
        "Settings of this run:\n\n" + _table(["key", "value"], _settings(info.settings)),
        "## Data\n\n" + _table(["file", "rows", "sha256"], _data(info)),
        "## Results\n\n" + _results(info),
        "## Not measured\n\nThe rewards above compare operations with the labelled ones of synthetic sessions. "
        "Answers to questions over the memories, real conversations, other languages, safety and bias were not measured "
        "by this run.",
        "## Made with\n\n" + _table(["", ""], _made(info)),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(info: RunInfo) -> str:
    # JSON strings are YAML strings, whatever they contain.
    lines = [f"license: {json.dumps(info.licence or 'unknown')}"]
    if info.base is not None and not info.base_is_folder:
        lines += [f"base_model: {json.dumps(info.base)}"]
    lines += ["library_name: transformers", "pipeline_tag: text-generation", "tags: [deltamem, memory, grpo, agent]"]
    return "---\n" + "\n".join(lines) + "\n---"


def _use(info: RunInfo, folder: str) -> str:
    length = info.prompt_tokens + info.response_tokens
    serve = f"vllm serve {folder} --served-model-name deltamem --max-model-len {length}"
    if not info.episode.thinking:
        serve += " --default-chat-template-kwargs '{\"enable_thinking\": false}'"
    return (
        "Serve it without vLLM's parsers for reasoning and tool calls: DeltaMem reads the tags itself.\n\n"
        f"```bash\n{serve}\n"
        "deltamem add SESSION.json --owner NAME --base-url http://localhost:8000/v1 --model deltamem "
        f"--checkpoint {folder}\n"
        "python -m eval.heldout endpoint.base_url=http://localhost:8000/v1 endpoint.model=deltamem sessions=FILE out=DIR "
        f"{_overrides(info)}\n```\n\n"
        f"`episode.json` holds the prompts and limits that it was trained with; `--checkpoint {folder}` applies them. "
        f"Prompts had at most {info.prompt_tokens} tokens, responses with the answers of searches {info.response_tokens}."
    )


def _overrides(info: RunInfo) -> str:
    """The episode as settings of ``eval.heldout``, which does not see the folder of a served model."""
    values: dict[str, Any] = asdict(info.episode)
    fields = ",".join(values.pop("memory_fields"))
    given = [f"episode.{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]
    return " ".join([*given, f"'episode.memory_fields=[{fields}]'"])


def _training(info: RunInfo) -> Iterator[tuple[Any, ...]]:
    base = info.base or "none: made from scratch in the run"
    yield "base model", f"a folder named {base}" if info.base and info.base_is_folder else base
    yield "licence of the base", info.licence or "unknown: its files do not name one; find out before you pass this on"
    yield "trained weights", f"LoRA of rank {info.lora_rank}, added to the base" if info.lora_rank else "all"
    yield "steps", f"{info.step} of {'?' if info.steps is None else info.steps}"
    yield "thinking", "yes" if info.episode.thinking else "no"


def _settings(values: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", f"`{item}`") for name, item in value.items())
        else:
            yield key, f"`{value}`"


def _data(info: RunInfo) -> Iterator[tuple[Any, ...]]:
    for name, (sha256, rows) in info.data.items():
        yield name, "" if rows is None else rows, sha256 or "gone before the export"


def _results(info: RunInfo) -> str:
    rows = []
    for name, title in _CURVES.items():
        found = [(line["step"], line[name]) for line in info.metrics if name in line]
        if found:
            count = info.heldout_sessions if name == "heldout/reward" else ""
            (first, begin), (last, end) = found[0], found[-1]
            rows.append((title, f"{begin:.3f} (step {first})", f"{end:.3f} (step {last})", count))
    if not rows:
        return "This run has no metrics up to this step."
    note = "Of one run with one seed. Held-out sessions are of people whom the policy has not met."
    return f"{_table(['', 'first', 'last', 'sessions'], rows)}\n\n{note}"


def _made(info: RunInfo) -> Iterator[tuple[Any, ...]]:
    yield "git commit", info.commit or "unknown"
    yield "configuration, sha256", info.config_sha256
    yield from ((f"prompt {name}, sha256", digest) for name, digest in info.prompts.items())
    yield from info.versions.items()


def _table(head: Sequence[str], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


_FLOAT32_BELOW = 200_000_000
"""Models with fewer parameters keep float32."""
_LORA_A, _LORA_B = ".lora_A.default.weight", ".lora_B.default.weight"

Precision = Literal["auto", "float32", "bfloat16"]


def export_weights(checkpoint: Path, target: Path, precision: Precision = "auto") -> None:
    """Write configuration, tokenizer and weights of a complete checkpoint into an empty or missing folder.

    `precision` "auto" is float32 for small models and bfloat16 for others. verl's own merger always writes bfloat16.

    Raises:
        DeltaMemError: If the checkpoint holds LoRA matrices without the base model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    actor = checkpoint / "actor"
    state = _without_adapters(merged_state(actor), actor)
    parameters = sum(tensor.numel() for tensor in state.values())
    small = parameters < _FLOAT32_BELOW if precision == "auto" else precision == "float32"
    dtype = torch.float32 if small else torch.bfloat16
    shutil.copytree(actor / "huggingface", target, dirs_exist_ok=True)
    config = AutoConfig.from_pretrained(target)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in state.items()}, assign=True)
    model.tie_weights()
    if (target / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(target)
    model.save_pretrained(target)


def merged_state(actor: Path) -> dict[str, Tensor]:
    """All parameters of an actor, put together from the files of its ranks."""
    from torch.distributed.tensor import DTensor, Shard

    ranks = json.loads((actor / "fsdp_config.json").read_text(encoding="utf-8"))["world_size"]
    first = _shard(actor, ranks, 0)
    mesh = next((value.device_mesh.mesh for value in first.values() if isinstance(value, DTensor)), None)
    # On a mesh of two dimensions the rows are copies of each other.
    holders = [] if mesh is None else (mesh[0] if mesh.ndim == 2 else mesh).tolist()
    parts: dict[str, list[Tensor]] = {name: [] for name in first}
    dims: dict[str, int] = {}
    for rank in holders or [0]:
        shard = first if rank == 0 else _shard(actor, ranks, rank)
        for name, value in shard.items():
            if not isinstance(value, DTensor):
                parts[name] = [value]
            elif isinstance(placement := value.placements[-1], Shard):
                dims[name] = placement.dim
                parts[name].append(value.to_local())
            else:
                parts[name] = [value.to_local()]
    return {name: torch.cat(tensors, dim=dims[name]) if name in dims else tensors[0] for name, tensors in parts.items()}


def _shard(actor: Path, ranks: int, rank: int) -> Mapping[str, Any]:
    # Pickled tensors, which is safe: the checkpoint is of our own run.
    loaded: Mapping[str, Any] = torch.load(
        actor / f"model_world_size_{ranks}_rank_{rank}.pt", map_location="cpu", weights_only=False
    )
    return loaded


def _without_adapters(state: dict[str, Tensor], actor: Path) -> dict[str, Tensor]:
    """Add LoRA matrices to the weights that they belong to, and take peft's prefixes off the names."""
    if not any(name.endswith(_LORA_A) for name in state):
        return state
    meta = json.loads((actor / "lora_train_meta.json").read_text(encoding="utf-8"))
    scale = meta["lora_alpha"] / meta["r"]
    plain: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.endswith((_LORA_A, _LORA_B)):
            continue
        stem = name.removesuffix(".base_layer.weight")
        if stem + _LORA_A in state:
            change = state[stem + _LORA_B].float() @ state[stem + _LORA_A].float()
            tensor = (tensor.float() + scale * change).to(tensor.dtype)
        plain[name.removeprefix("base_model.model.").replace(".base_layer.", ".")] = tensor
    if not plain:
        raise DeltaMemError(
            f"{actor}: only LoRA matrices are there; set actor_rollout_ref.actor.checkpoint.save_lora_only=false"
        )
    return plain


def export_run(run: Path, target: Path, *, step: int | None = None, precision: Precision = "auto") -> Path:
    """Write a trained policy into a folder, which is replaced if it exists and never half-written.

    Args:
        run: The run folder.
        target: The folder.
        step: Of the checkpoint; None takes the newest complete one.
        precision: See `export_weights`.

    Returns:
        The checkpoint that was exported.

    Raises:
        DeltaMemError: If the folder is no run, or has no such complete checkpoint.
    """
    checkpoint = find_checkpoint(run, step)
    info = read_run_info(run, step_of(checkpoint))
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    export_weights(checkpoint, partial, precision)
    save_episode_config(partial, info.episode)
    (partial / "README.md").write_text(model_card(info, target.name), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)
    return checkpoint


def find_checkpoint(run: Path, step: int | None) -> Path:
    """A complete checkpoint of a run.

    Raises:
        DeltaMemError: If there is none, or not that one; says which there are.
    """
    folder = run / "grpo" / "checkpoints"
    if step is None:
        last = latest_complete(folder)
        if last is None:
            raise DeltaMemError(f"{folder}: no complete checkpoint to export; set trainer.save_freq")
        return last
    checkpoint = folder / f"global_step_{step}"
    if not is_whole(checkpoint):
        there = sorted(step_of(path) for path in folder.glob("global_step_*") if is_whole(path))
        raise DeltaMemError(f"{checkpoint}: no complete checkpoint; there are those of steps {there or 'none'}")
    return checkpoint


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code.

    Raises:
        DeltaMemError: If there is nothing to export, or something is there already.
    """
    parser = argparse.ArgumentParser(prog="python -m deltamem.training.export", description="export a trained policy")
    parser.add_argument("run", type=Path, help="folder of the run (deltamem.out)")
    parser.add_argument("--step", type=int, help="step of the checkpoint; the newest complete one by default")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="precision of the weights")
    given = parser.parse_args(arguments)
    if given.out.exists():
        raise DeltaMemError(f"{given.out}: is there already; choose another --out")
    checkpoint = export_run(given.run, given.out, step=given.step, precision=given.dtype)
    print(f"{given.out}: {checkpoint.name}")
    return 0


if __name__ == "__main__":
    run_plain(lambda: main(sys.argv[1:]))
