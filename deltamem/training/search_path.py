"""Where Hydra finds verl's own configuration, without importing verl."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from omegaconf import OmegaConf

from deltamem.errors import DeltaMemError


def register_search_path() -> None:
    """Make ``${folder_of_package:NAME}`` known, which ``configs/train.yaml`` uses; call it before anything is composed.

    Hydra's own ``pkg://verl.trainer.config`` imports verl, and with it torch, transformers and ray: seconds before a typing
    error is told.
    """
    OmegaConf.register_new_resolver("folder_of_package", folder_of_package, replace=True)


def folder_of_package(name: str) -> str:
    """The folder of an installed package, which is not imported.

    Raises:
        DeltaMemError: If it is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise DeltaMemError(f"training needs the package {name}; install it with: pip install 'deltamem[train]'")
    return str(Path(spec.origin).parent)
