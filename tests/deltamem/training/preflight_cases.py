"""Configurations of experiments, each composed and resolved once, and preflights of them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, TextIO, cast
from unittest.mock import patch

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

from deltamem.config import validated
from deltamem.training.config import TrainSettings, register_search_path
from deltamem.training.launch import leaves
from deltamem.training.preflight import CHECKS, Context, PreflightFinding, run_checks

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
_load = OmegaConf.load


@cache
def _pickled(text: str) -> bytes:
    return pickle.dumps(_load(StringIO(text)))


def read_once(file: str | Path | TextIO) -> Any:
    """Every composition reads the same thirty files of verl, which takes half of its time."""
    return pickle.loads(_pickled(Path(file).read_text("utf-8") if isinstance(file, str | Path) else file.read()))


@cache
def _grouped(*groups: str) -> DictConfig:
    register_search_path()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"), patch.object(OmegaConf, "load", read_once):
        return compose("train", list(groups))


def composed(*overrides: str) -> DictConfig:
    """A configuration as Hydra composes it; of each set of groups once, for that takes most of a second."""
    groups = [one for one in overrides if one.startswith("+") or "/" in one.partition("=")[0] or "=" not in one]
    values = OmegaConf.from_dotlist([one for one in overrides if one not in groups])
    return cast(DictConfig, OmegaConf.merge(_grouped(*groups), values))


def resolved(config: DictConfig) -> DictConfig:
    """What ``train.py`` hands to a preflight."""
    config = config.copy()
    with open_dict(config):
        for key in ("preflight", "stages", "rehearse"):
            config.pop(key)
    OmegaConf.resolve(config)
    return config


@cache
def whole(*overrides: str) -> DictConfig:
    """Composed and resolved, which takes a quarter of a second; not to be changed."""
    return resolved(composed(*overrides))


@cache
def _to_place(*overrides: str) -> tuple[bytes, dict[str, str]]:
    """A configuration, pickled because copies take long, and its values that name /PLACE."""
    config = whole(*overrides)
    values = {key: str(value) for key, value in leaves(OmegaConf.to_container(config))}
    return pickle.dumps(config), {key: value for key, value in values.items() if "/PLACE" in value}


def placed(folder: Path, *overrides: str, values: Mapping[str, Any] = {}) -> tuple[DictConfig, TrainSettings]:
    """A resolved configuration, `folder` in the place of /PLACE, and its settings; `values` change nothing else."""
    pickled, places = _to_place(*overrides)
    config = pickle.loads(pickled)
    for key, value in {**{key: text.replace("/PLACE", str(folder)) for key, text in places.items()}, **values}.items():
        OmegaConf.update(config, key, value, force_add=True)
    return config, validated(config.deltamem, TrainSettings)


def changed(values: Mapping[str, Any]) -> tuple[DictConfig, TrainSettings]:
    """The configuration of ``qwen0_6b`` with values put in place after interpolation."""
    return placed(Path("/"), "+experiment=qwen0_6b", values=values)


def context(folder: Path, values: Mapping[str, Any]) -> Context:
    """A preflight of it."""
    return Context(*changed(values), folder)


def finding(name: str, findings: Mapping[str, PreflightFinding]) -> tuple[str, str]:
    """State and sentence of one check."""
    return findings[name].state.value, findings[name].found


def check(name: str, context: Context) -> tuple[str, str]:
    """Run one check by its name in the table."""
    return finding(name, run_checks(context, [entry for entry in CHECKS if entry.name == name]))
