"""verl's checkpoints: which are complete, how much room they need, and the export of the last one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from deltamem.errors import DeltaMemError

_BYTES_A_PARAMETER = 12
"""A float32 weight and Adam's two moments."""


def latest_complete(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end; None if there is none.

    verl notes its last step in a file of its own. It is not relied upon: it may be cut off, or name a folder whose files
    are.
    """
    found = [path for path in folder.glob("global_step_*") if path.name.removeprefix("global_step_").isdigit()]
    return next((path for path in sorted(found, key=step_of, reverse=True) if _complete(path)), None)


def step_of(checkpoint: Path) -> int:
    """The training step of a checkpoint folder."""
    return int(checkpoint.name.removeprefix("global_step_"))


def _complete(checkpoint: Path) -> bool:
    actor = checkpoint / "actor"
    try:
        ranks = int(json.loads((actor / "fsdp_config.json").read_text(encoding="utf-8"))["world_size"])
    except (OSError, ValueError, KeyError):
        return False
    kinds = ("model", "optim", "extra_state")
    files = [actor / f"{kind}_world_size_{ranks}_rank_{rank}.pt" for kind in kinds for rank in range(ranks)]
    # The index of a zip archive, which is what torch.save writes, is at its end.
    return all(path.is_file() and zipfile.is_zipfile(path) for path in [*files, checkpoint / "data.pt"])


def remove_incomplete(folder: Path) -> None:
    """Remove what an interrupted write or verl's rotation left of checkpoints."""
    for path in folder.glob("global_step_*"):
        if not _complete(path):
            shutil.rmtree(path)


def parameter_count(model: Path) -> int | None:
    """Parameters of a Hugging Face folder, from the headers of its safetensors files; None without such files."""
    files = list(model.glob("*.safetensors"))
    return sum(_parameters(path) for path in files) if files else None


def _parameters(path: Path) -> int:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(_product(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _product(numbers: Iterable[int]) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product


def check_space(folder: Path, model: Path, *, keep: int) -> None:
    """Refuse to begin a run whose checkpoints will not fit.

    Args:
        folder: Where the checkpoints go; exists.
        model: The starting model; nothing is checked if it is not a local folder.
        keep: Checkpoints kept; one more is there while the next is written.

    Raises:
        DeltaMemError: If there is too little room.
    """
    parameters = parameter_count(model)
    if parameters is None:
        return
    have = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    need = parameters * (_BYTES_A_PARAMETER * (keep + 1) + 4)
    free = shutil.disk_usage(folder).free
    if need - have > free:
        raise DeltaMemError(
            f"{folder}: the checkpoints and the exported policy need about {_size(need - have)}, but only {_size(free)} are "
            "free; make room or choose another deltamem.out"
        )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def export_policy(checkpoint: Path, target: Path) -> None:
    """Write the actor of a checkpoint as a Hugging Face folder.

    A model of one rank keeps float32; shards of several ranks are merged by verl, which makes them bfloat16.

    Args:
        checkpoint: A complete checkpoint.
        target: The folder; replaced if it exists, and never half-written.
    """
    actor = checkpoint / "actor"
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    if (actor / "model_world_size_1_rank_0.pt").is_file():
        _export_one_rank(actor, partial)
    else:
        command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
        done = subprocess.run([*command, "--local_dir", actor, "--target_dir", partial], capture_output=True, text=True)
        if done.returncode:
            raise DeltaMemError(f"{actor}: verl could not merge the shards: {done.stderr.strip().splitlines()[-1:]}")
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)


def _export_one_rank(actor: Path, target: Path) -> None:
    import torch
    from torch.distributed.tensor import DTensor
    from transformers import AutoConfig, AutoModelForCausalLM

    # A checkpoint of our own run, written by verl with pickled tensors.
    shard = torch.load(actor / "model_world_size_1_rank_0.pt", map_location="cpu", weights_only=False)
    state = {name: value.to_local() if isinstance(value, DTensor) else value for name, value in shard.items()}
    shutil.copytree(actor / "huggingface", target)
    config = AutoConfig.from_pretrained(target)
    model = AutoModelForCausalLM.from_config(config, dtype=next(iter(state.values())).dtype)
    model.load_state_dict(state)
    model.save_pretrained(target)
