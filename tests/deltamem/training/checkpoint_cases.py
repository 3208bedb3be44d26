"""Checkpoints as verl's ranks write them."""

from __future__ import annotations

from pathlib import Path

from deltamem.training.checkpoints import write_manifest

CONTENTS = ("model", "optimizer", "extra")


def write_files(folder: Path, step: int, ranks: int = 1) -> Path:
    """All files of a checkpoint but the manifest."""
    checkpoint = folder / f"global_step_{step}"
    (checkpoint / "actor" / "huggingface").mkdir(parents=True)
    for kind in ("model", "optim", "extra_state"):
        for rank in range(ranks):
            path = checkpoint / "actor" / f"{kind}_world_size_{ranks}_rank_{rank}.pt"
            path.write_bytes(f"{kind} {step} {rank}".encode())
    (checkpoint / "actor" / "fsdp_config.json").write_text(f'{{"FSDP_version": 2, "world_size": {ranks}}}')
    (checkpoint / "actor" / "lora_train_meta.json").write_text('{"r": 4, "lora_alpha": 8}')
    (checkpoint / "actor" / "huggingface" / "config.json").write_text("{}")
    (checkpoint / "data.pt").write_bytes(b"PK")
    return checkpoint


def write_checkpoint(folder: Path, step: int, ranks: int = 1) -> Path:
    """A whole checkpoint."""
    checkpoint = write_files(folder, step, ranks)
    write_manifest(checkpoint, CONTENTS, {"deltamem/train/reward": 0.5})
    return checkpoint
