"""A trained policy as a Hugging Face folder with a model card, also from a run that is under way.

python -m deltamem.training.export runs/qwen8b --step 60 --out policy
python -m deltamem.training.export runs/smol --out policy --gguf     # with a file for llama.cpp in it
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

import pyarrow.parquet as pq
import torch
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError
from torch import Tensor

from deltamem.config import run_plain
from deltamem.episode import EpisodeConfig, save_episode_config
from deltamem.errors import DeltaMemError
from deltamem.prompts import load_prompt
from deltamem.runs import config_hash, file_sha256, git_commit, versions
from deltamem.training.checkpoints import is_whole, latest_complete, step_of
from deltamem.training.config import EpisodeSettings
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
"""What differs between runs; the card lists it."""
_CURVES = {"train/reward": "training reward", "heldout/reward": "held-out reward"}
_Rows = Iterable[tuple[Any, ...]]


def model_card(run: Path, config: DictConfig, step: int, folder: str, gguf: str | None = None) -> str:
    """The text of ``README.md``.

    Args:
        run: The run folder.
        config: The run's configuration.
        step: Of the exported checkpoint.
        folder: Name of the policy's folder in the commands of the card.
        gguf: Name of the file for llama.cpp in that folder; None if there is none.
    """
    model, episode = config.actor_rollout_ref.model, _episode(config)
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
    training: _Rows = [
        ("base model", started),
        ("licence of the base", licence or "unknown: its files do not name one; find out before you pass this on"),
        (
            "warm start",
            "none" if OmegaConf.select(config, "deltamem.warm_start") is None else "on target trajectories, supervised",
        ),
        ("trained weights", f"LoRA of rank {model.lora_rank}, added to the base" if model.get("lora_rank") else "all"),
        ("steps", f"{step} of {steps}"),
        ("thinking", "yes" if episode.thinking else "no"),
    ]
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
    front += ["library_name: transformers", "pipeline_tag: text-generation", "tags: [deltamem, memory, grpo, agent]"]
    parts = [
        "\n".join(["---", *front, "---"]),
        f"# DeltaMem policy: {config.trainer.experiment_name}, step {step}",
        "A memory manager: it reads a session between a person and an assistant, may search the person's memories, and "
        "answers with ADD, UPDATE and NONE operations. Trained with GRPO by "
        "[DeltaMem](https://arxiv.org/abs/2604.01560)'s open implementation.",
        "## Use\n\n" + _use(config, episode, folder, gguf),
        "## Training\n\n" + _table(["", ""], training),
        "Settings of this run:\n\n" + _table(["key", "value"], _settings(config)),
        "## Data\n\n" + _table(["file", "rows", "sha256"], data),
        "## Results\n\n" + _results(run, step, heldout),
        "## Not measured\n\nThe rewards above compare operations with the labelled ones of synthetic sessions. "
        "Answers to questions over the memories, real conversations, other languages, safety and bias were not measured "
        "by this run.",
        "## Made with\n\n" + _table(["", ""], made),
    ]
    return "\n\n".join(parts) + "\n"


def _episode(config: DictConfig) -> EpisodeConfig:
    return EpisodeSettings.model_validate(OmegaConf.to_container(config.deltamem.episode)).config()


def front_matter(base: Path) -> dict[str, Any]:
    """What the front matter of a local model card says; nothing where there is no folder, card or front matter."""
    card = base / "README.md"
    if not card.is_file():
        return {}
    text = card.read_text(encoding="utf-8")
    front = text.split("---", 2)[1] if text.startswith("---") and text.count("---") >= 2 else ""
    found = OmegaConf.create(front) if front.strip() else None
    return {str(key): found[key] for key in found} if isinstance(found, DictConfig) else {}


def warm_start_card(start: str, steps: int) -> str:
    """``README.md`` of a warm-started model: its licence is that of the model it started from, where that names one."""
    known = front_matter(Path(start))
    front = {"license": known.get("license"), "base_model": known.get("base_model", None if Path(start).is_dir() else start)}
    lines = [f"{key}: {json.dumps(str(value))}" for key, value in front.items() if value]
    return "\n".join(["---", *lines, "---", "", f"After {steps} steps of supervised fine-tuning, before GRPO.", ""])


def _use(config: DictConfig, episode: EpisodeConfig, folder: str, gguf: str | None) -> str:
    prompt, response = int(config.data.max_prompt_length), int(config.data.max_response_length)
    serve = f"vllm serve {folder} --served-model-name deltamem --max-model-len {prompt + response}"
    if not episode.thinking:
        serve += " --default-chat-template-kwargs '{\"enable_thinking\": false}'"
    llama_cpp = ""
    if gguf is not None:
        llama_cpp = (
            f"\n\n`{gguf}` holds the same weights in 8 bits, for llama.cpp. Its parsers must be off too; "
            "`deltamem add` is as above, with port 8080.\n\n```bash\n"
            f"llama-server --model {folder}/{gguf} --jinja --reasoning-format none --ctx-size {prompt + response}\n```"
        )
    # The episode as settings of `eval.heldout`, which does not see the folder of a served model.
    values: dict[str, Any] = asdict(episode)
    fields = ",".join(values.pop("memory_fields"))
    given = [f"episode.{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]
    return (
        "Serve it without vLLM's parsers for reasoning and tool calls: DeltaMem reads the tags itself.\n\n"
        f"```bash\n{serve}\n"
        "deltamem add SESSION.json --owner NAME --base-url http://localhost:8000/v1 --model deltamem "
        f"--checkpoint {folder}\n"
        "python -m eval.heldout endpoint.base_url=http://localhost:8000/v1 endpoint.model=deltamem sessions=FILE out=DIR "
        f"{' '.join(given)} 'episode.memory_fields=[{fields}]'\n```\n\n"
        f"`episode.json` holds the prompts and limits that it was trained with; `--checkpoint {folder}` applies them. "
        f"Prompts had at most {prompt} tokens, responses with the answers of searches {response}." + llama_cpp
    )


def _settings(config: DictConfig) -> _Rows:
    for key in _SETTINGS:
        value = OmegaConf.select(config, key)
        if isinstance(value, DictConfig):
            yield from ((f"{key}.{name}", f"`{value[name]}`") for name in map(str, value))
        else:
            yield key, f"`{value}`"


def _results(run: Path, step: int, heldout_sessions: int | None) -> str:
    metrics = [line for line in read_metrics(run / "metrics.jsonl") if line["step"] <= step]
    rows = []
    for name, title in _CURVES.items():
        if found := [(line["step"], line[name]) for line in metrics if name in line]:
            count = heldout_sessions if name == "heldout/reward" else ""
            (first, begin), (last, end) = found[0], found[-1]
            rows.append((title, f"{begin:.3f} (step {first})", f"{end:.3f} (step {last})", count))
    if not rows:
        return "This run has no metrics up to this step."
    note = "Of one run with one seed. Held-out sessions are of people whom the policy has not met."
    return f"{_table(['', 'first', 'last', 'sessions'], rows)}\n\n{note}"


def _table(head: Sequence[str], rows: _Rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


_FLOAT32_BELOW = 200_000_000
"""Models with fewer parameters keep float32."""
_LORA_A, _LORA_B = ".lora_A.default.weight", ".lora_B.default.weight"

Precision = Literal["auto", "float32", "bfloat16"]


def export_weights(checkpoint: Path, target: Path, base: str, precision: Precision = "auto") -> None:
    """Write configuration, tokenizer and weights of a complete checkpoint into an empty or missing folder.

    Args:
        checkpoint: The checkpoint.
        target: The folder.
        base: The model that the run started from; read only if the checkpoint holds LoRA matrices without it.
        precision: "auto" is float32 for small models and bfloat16 for others. verl's own merger always writes bfloat16.

    Raises:
        DeltaMemError: If that model is needed and cannot be read.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    actor = checkpoint / "actor"
    state = _without_adapters(merged_state(actor), actor, base)
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


def _without_adapters(state: dict[str, Tensor], actor: Path, base: str) -> dict[str, Tensor]:
    """Add LoRA matrices to the weights that they belong to, and take peft's prefixes off the names."""
    if not any(name.endswith(_LORA_A) for name in state):
        return state
    meta = json.loads((actor / "lora_train_meta.json").read_text(encoding="utf-8"))
    scale = meta["lora_alpha"] / meta["r"]
    adapters = {_plain(name): tensor for name, tensor in state.items() if name.endswith((_LORA_A, _LORA_B))}
    plain = {_plain(name): tensor for name, tensor in state.items() if not name.endswith((_LORA_A, _LORA_B))}
    if not plain:
        plain = _weights_of(base, actor)
    for name in list(plain):
        stem = name.removesuffix(".weight")
        if stem + _LORA_A in adapters:
            change = adapters[stem + _LORA_B].float() @ adapters[stem + _LORA_A].float()
            plain[name] = (plain[name].float() + scale * change).to(plain[name].dtype)
    return plain


def _plain(name: str) -> str:
    """The name of a weight in the model without adapters."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _weights_of(base: str, actor: Path) -> dict[str, Tensor]:
    """The frozen weights that a checkpoint of LoRA matrices leaves out, in float32."""
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError) as error:
        raise DeltaMemError(
            f"{actor}: only LoRA matrices are there, and the model that they belong to cannot be read: {base}"
        ) from error
    return dict(model.state_dict())


def export_run(
    run: Path, target: Path, *, step: int | None = None, precision: Precision = "auto", gguf: bool = False
) -> Path:
    """Write a trained policy into a folder, which is replaced if it exists and never half-written.

    Args:
        run: The run folder.
        target: The folder.
        step: Of the checkpoint; None takes the newest complete one.
        precision: See `export_weights`.
        gguf: Whether the folder gets the weights for llama.cpp too, see `deltamem.training.gguf_export`.

    Returns:
        The checkpoint that was exported.

    Raises:
        DeltaMemError: If the folder is no run, has no such complete checkpoint, or something cannot be written.
    """
    checkpoint = find_checkpoint(run, step)
    path = run / "grpo" / "config.yaml"
    if not path.is_file():
        raise DeltaMemError(f"{path}: no such file; expected the folder of a training run")
    config = cast(DictConfig, OmegaConf.load(path))
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    file = f"{target.name}-q8_0.gguf" if gguf else None
    try:
        partial.mkdir(parents=True)
        export_weights(checkpoint, partial, str(config.actor_rollout_ref.model.path), precision)
        save_episode_config(partial, _episode(config))
        card = model_card(run, config, step_of(checkpoint), target.name, file)
        (partial / "README.md").write_text(card, encoding="utf-8")
        if file is not None:
            from deltamem.training.gguf_export import write_gguf

            write_gguf(partial, partial / file)
        shutil.rmtree(target, ignore_errors=True)
        partial.replace(target)
    # safetensors has an exception of its own for what the operating system refuses.
    except (OSError, SafetensorError) as error:
        raise DeltaMemError(f"{target}: the policy could not be written: {' '.join(str(error).split())}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
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
    parser.add_argument("--gguf", action="store_true", help="put a file for llama.cpp into the folder too")
    given = parser.parse_args(arguments)
    if given.out.exists():
        raise DeltaMemError(f"{given.out}: is there already; choose another --out")
    checkpoint = export_run(given.run, given.out, step=given.step, precision=given.dtype, gguf=given.gguf)
    print(f"{given.out}: {checkpoint.name}")
    return 0


if __name__ == "__main__":
    run_plain(lambda: main(sys.argv[1:]))
