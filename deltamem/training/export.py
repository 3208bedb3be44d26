"""A trained policy as a Hugging Face folder with a model card, also from a run that is under way.

python -m deltamem.training.export runs/qwen8b --out policy                         # the best by held-out reward
python -m deltamem.training.export runs/qwen8b --step 60 --out policy --push me/memory-8b     # and to a hub
python -m deltamem.training.export runs/smol --out policy --measured runs/trained runs/locomo     # and figures in the card
python -m deltamem.training.export runs/short --step 0 --out policy                 # what the warm start made, before GRPO
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from omegaconf import OmegaConf
from torch import Tensor

from deltamem.config import run_plain
from deltamem.episode import save_episode_config
from deltamem.errors import DeltaMemError
from deltamem.runs import weights_sha256
from deltamem.training.checkpoints import (
    best_complete,
    heldout_rewards,
    is_whole,
    latest_complete,
    step_of,
    whole_folder,
)
from deltamem.training.config import CONFIG_FILE, moved
from deltamem.training.measured import read_measured
from deltamem.training.model_card import model_card, run_episode

_FLOAT32_BELOW = 200_000_000
"""Models with fewer parameters keep float32."""
_LORA_A, _LORA_B = ".lora_A.default.weight", ".lora_B.default.weight"

Precision = Literal["auto", "float32", "bfloat16"]
Choice = int | Literal["best", "newest"]
"""A complete checkpoint: of a step (0: the warm start's model), the best by held-out reward (the newest where no step was
validated), or the newest."""


def export_weights(checkpoint: Path, target: Path, base: str, precision: Precision = "auto") -> None:
    """Write configuration, tokenizer and weights of a complete checkpoint into an empty or missing folder.

    The precision "auto" is float32 for small models and bfloat16 for others; verl's own merger always writes bfloat16. Of
    `base`, the model that the run started from, weights are read only if the checkpoint holds LoRA matrices without them.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    actor = checkpoint / "actor"
    state = _without_adapters(merged_state(actor), actor, base)
    dtype = _dtype(sum(tensor.numel() for tensor in state.values()), precision)
    shutil.copytree(actor / "huggingface", target, dirs_exist_ok=True)
    config = AutoConfig.from_pretrained(target)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in state.items()}, assign=True)
    model.tie_weights()
    if (target / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(target)
    model.save_pretrained(target)


def copy_weights(model: Path, target: Path, precision: Precision = "auto") -> None:
    """Write a model's folder into another one, in a precision as in `export_weights`."""
    from transformers import AutoModelForCausalLM

    shutil.copytree(model, target, ignore=shutil.ignore_patterns("*.safetensors*"), dirs_exist_ok=True)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto", local_files_only=True)
    loaded.to(_dtype(loaded.num_parameters(), precision)).save_pretrained(target)


def _dtype(parameters: int, precision: Precision) -> torch.dtype:
    small = parameters < _FLOAT32_BELOW if precision == "auto" else precision == "float32"
    return torch.float32 if small else torch.bfloat16


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


def _shard(actor: Path, ranks: int, rank: int) -> Any:
    # Pickled tensors, which is safe: the checkpoint is of our own run.
    return torch.load(actor / f"model_world_size_{ranks}_rank_{rank}.pt", map_location="cpu", weights_only=False)


def _without_adapters(state: dict[str, Tensor], actor: Path, base: str) -> dict[str, Tensor]:
    """Add LoRA matrices to the weights that they belong to, and take peft's prefixes off the names."""
    if not any(name.endswith(_LORA_A) for name in state):
        return state
    meta = json.loads((actor / "lora_train_meta.json").read_text(encoding="utf-8"))
    scale = meta["lora_alpha"] / meta["r"]
    adapters = {_plain(name): tensor for name, tensor in state.items() if name.endswith((_LORA_A, _LORA_B))}
    plain = {_plain(name): tensor for name, tensor in state.items() if not name.endswith((_LORA_A, _LORA_B))}
    if not plain:  # the checkpoint leaves frozen weights out
        from transformers import AutoModelForCausalLM

        try:
            model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, local_files_only=True)
        except (OSError, ValueError) as error:
            raise DeltaMemError(
                f"{actor}: only LoRA matrices are there, and the model that they belong to cannot be read: {base}"
            ) from error
        plain = dict(model.state_dict())
    for name in list(plain):
        stem = name.removesuffix(".weight")
        if stem + _LORA_A in adapters:
            change = adapters[stem + _LORA_B].float() @ adapters[stem + _LORA_A].float()
            plain[name] = (plain[name].float() + scale * change).to(plain[name].dtype)
    return plain


def _plain(name: str) -> str:
    """The name of a weight in the model without adapters."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def export_run(
    run: Path, target: Path, *, step: Choice = "best", precision: Precision = "auto", measured: Iterable[Path] = ()
) -> int:
    """Write a trained policy into a folder, which is replaced if it exists and never half-written.

    Args:
        run: The run folder.
        target: The folder.
        step: Which checkpoint; 0 is the model that the warm start made.
        precision: See `export_weights`.
        measured: Result folders of evaluations of the same weights, whose figures the card shows.

    Returns:
        The step that was exported.
    """
    found = read_measured(measured)
    checkpoint = run / "warm_start" / "model" if step == 0 else find_checkpoint(run, step)
    if step == 0 and not checkpoint.is_dir():
        raise DeltaMemError(f"{checkpoint}: no such folder; step 0 is the model of a finished warm start")
    path = run / ("warm_start" if step == 0 else "grpo") / CONFIG_FILE
    if not path.is_file():
        raise DeltaMemError(f"{path}: no such file; expected the folder of a training run")
    written: Any = OmegaConf.to_container(OmegaConf.load(path))
    # The run's folder may have been moved since.
    config = OmegaConf.create(moved(written, str(written["deltamem"].get("out", run)), str(run.absolute())))
    exported = 0 if step == 0 else step_of(checkpoint)
    with whole_folder(target, "policy") as folder:
        if step == 0:
            copy_weights(checkpoint, folder, precision)
        else:
            export_weights(checkpoint, folder, str(config.actor_rollout_ref.model.path), precision)
        trained = config.deltamem
        save_episode_config(folder, run_episode(config), str(trained.embedder.name), int(trained.turn_tokens))
        found.check(weights_sha256(folder))
        card = model_card(run, config, exported, target.name, found)
        (folder / "README.md").write_text(card, encoding="utf-8")
    return exported


def find_checkpoint(run: Path, step: Choice) -> Path:
    """A complete checkpoint of a run; where there is none, or not that of a step, an error says which there are."""
    folder = run / "grpo" / "checkpoints"
    if not isinstance(step, int):
        best = best_complete(folder, heldout_rewards(run)) if step == "best" else None
        checkpoint = best or latest_complete(folder)
        if checkpoint is None:
            started = "; --step 0 exports the model of the warm start" if (run / "warm_start" / "model").is_dir() else ""
            raise DeltaMemError(f"{folder}: no complete checkpoint to export; set trainer.save_freq{started}")
        return checkpoint
    checkpoint = folder / f"global_step_{step}"
    if not is_whole(checkpoint):
        there = sorted(step_of(path) for path in folder.glob("global_step_*") if is_whole(path))
        raise DeltaMemError(f"{checkpoint}: no complete checkpoint; there are those of steps {there or 'none'}")
    return checkpoint


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m deltamem.training.export", description="export a trained policy")
    parser.add_argument("run", type=Path, help="folder of the run (deltamem.out)")
    parser.add_argument(
        "--step",
        type=_choice,
        default="best",
        help="of the checkpoint: a number (0: the warm start's model), newest, or best (the default) by held-out reward "
        "among those that were kept",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="precision of the weights")
    parser.add_argument(
        "--measured",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="result folders of eval.heldout and of benchmarks, of this policy; their figures are put into the card",
    )
    parser.add_argument("--push", metavar="REPO", help="hub repository to upload the folder to; a new one is private")
    given = parser.parse_args(arguments)
    if given.out.exists():
        raise DeltaMemError(f"{given.out}: is there already; choose another --out")
    if given.push is not None:
        # Before the weights are written: a name or a token that the hub does not take costs no minutes.
        with _hub(given.push) as hub:
            hub.create_repo(given.push, private=True, exist_ok=True)
    step = export_run(given.run, given.out, step=given.step, precision=given.dtype, measured=given.measured)
    print(f"{given.out}: step {step}")
    if given.push is not None:
        with _hub(given.push, f"; {given.out} is complete, push it with: hf upload {given.push} {given.out}") as hub:
            message = f"DeltaMem policy, step {step}"
            commit = hub.upload_folder(repo_id=given.push, folder_path=given.out, commit_message=message)
        print(commit.commit_url)
    return 0


def _choice(text: str) -> int | str:
    if text.isdigit():
        return int(text)
    if text in ("best", "newest"):
        return text
    raise argparse.ArgumentTypeError(f"{text}: expected a number, best or newest")


@contextmanager
def _hub(repo: str, advice: str = "") -> Iterator[Any]:
    """The hub's client; what it, the network or its token refuses is one sentence, which ends with some `advice`."""
    from httpx import HTTPError
    from huggingface_hub import HfApi

    try:
        yield HfApi()
    except (HTTPError, OSError, ValueError) as error:
        raise DeltaMemError(f"--push {repo}: {' '.join(str(error).split())}{advice}") from error


if __name__ == "__main__":
    run_plain(lambda: main(sys.argv[1:]))
