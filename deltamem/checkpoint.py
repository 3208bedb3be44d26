"""What lies beside the weights of a trained manager: the episode configuration it was trained with."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError
from deltamem.files import atomic_writer

EPISODE_FILE = "episode.json"
_ADAPTER = TypeAdapter(EpisodeConfig)


def save_episode_config(folder: Path, config: EpisodeConfig) -> None:
    """Write ``episode.json`` into a checkpoint folder."""
    with atomic_writer(folder / EPISODE_FILE) as file:
        file.write(_ADAPTER.dump_json(config, indent=2).decode("utf-8") + "\n")


def load_episode_config(folder: Path) -> EpisodeConfig:
    """Read ``episode.json`` of a checkpoint folder; without one, the default configuration.

    Raises:
        DeltaMemError: If the file cannot be read; names the key.
    """
    path = folder / EPISODE_FILE
    if not path.is_file():
        return EpisodeConfig()
    try:
        return _ADAPTER.validate_json(path.read_bytes(), extra="forbid")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise DeltaMemError(f"{path}: {where}: {first['msg']}") from error
