"""The actor of a checkpoint of verl as a Hugging Face folder.

verl has a merger of its own. It makes all weights bfloat16, which a tiny policy does not survive unchanged, and leaves LoRA
matrices beside the base weights; here they are added to them, so that every server reads the result.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from deltamem.errors import DeltaMemError

_FLOAT32_BELOW = 200_000_000
"""Models with fewer parameters keep float32."""
_LORA_A, _LORA_B = ".lora_A.default.weight", ".lora_B.default.weight"

Precision = Literal["auto", "float32", "bfloat16"]


def export_weights(checkpoint: Path, target: Path, precision: Precision = "auto") -> None:
    """Write configuration, tokenizer and weights.

    Args:
        checkpoint: A complete checkpoint.
        target: An empty or missing folder.
        precision: Of the weights; "auto" is float32 for small models and bfloat16 for others.

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
    # A checkpoint of our own run, written by verl with pickled tensors.
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
