"""Export of ``sessions.jsonl`` to the parquet files that verl reads."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from deltamem.episode import EpisodeConfig, opening_messages
from deltamem.errors import DeltaMemError
from deltamem.sessions import LabelledSession, Split, read_sessions, to_json_line

AGENT_NAME = "deltamem"
"""Name under which the agent loop is registered with verl."""

DATA_SOURCE = "deltamem"
"""verl groups its validation metrics by this column."""


class Exported(NamedTuple):
    """The two files and how many sessions they hold."""

    train: Path
    heldout: Path
    train_sessions: int
    heldout_sessions: int


def export(
    sessions: Path,
    folder: Path,
    episode: EpisodeConfig,
    *,
    train_sessions: int | None,
    heldout_sessions: int | None,
    skip_people: int,
    seed: int,
) -> Exported:
    """Write ``train.parquet`` and ``heldout.parquet``.

    Args:
        sessions: The file that synth wrote.
        folder: Where to; made if missing.
        episode: Prompts of the opening messages.
        train_sessions: Training rows, drawn with `seed`; None takes all.
        heldout_sessions: Validation rows, drawn with `seed`; None takes all.
        skip_people: This many training persons are left out, the first of the file: the warm start has used them.
        seed: Seed of the draw.

    Raises:
        DeltaMemError: If the file is missing, a line of it cannot be read, or there are fewer sessions than asked for.
    """
    everything = list(read_sessions(sessions))
    skipped = set(people(everything, "train")[:skip_people])
    chosen = {
        "train": _draw(
            [item for item in everything if item.split == "train" and item.session.person_id not in skipped],
            train_sessions,
            seed,
            f"{sessions}: training sessions" + (f" after the first {skip_people} persons" if skip_people else ""),
        ),
        "heldout": _draw(
            [item for item in everything if item.split == "heldout"],
            heldout_sessions,
            seed,
            f"{sessions}: held-out sessions",
        ),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, items in chosen.items():
        _write(folder / f"{name}.parquet", items, episode)
    return Exported(folder / "train.parquet", folder / "heldout.parquet", len(chosen["train"]), len(chosen["heldout"]))


def people(sessions: Iterable[LabelledSession], split: Split) -> list[str]:
    """Ids of the persons of a split, in the order in which they first occur."""
    return list(dict.fromkeys(item.session.person_id for item in sessions if item.split == split))


def _draw(items: Sequence[LabelledSession], count: int | None, seed: int, what: str) -> list[LabelledSession]:
    if not items or (count or 0) > len(items):
        raise DeltaMemError(f"{what}: there are {len(items)}, expected at least {count or 1}")
    return list(items) if count is None else random.Random(seed).sample(list(items), count)


def _write(path: Path, items: Sequence[LabelledSession], episode: EpisodeConfig) -> None:
    rows = [_row(item, index, episode) for index, item in enumerate(items)]
    partial = path.with_name(f".{path.name}.partial")
    try:
        pq.write_table(pa.Table.from_pylist(rows), partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _row(item: LabelledSession, index: int, episode: EpisodeConfig) -> dict[str, Any]:
    return {
        "data_source": DATA_SOURCE,
        "agent_name": AGENT_NAME,
        "prompt": list(opening_messages(item.session, episode)),
        # Required by verl and shown in its dumps; the agent loop scores by itself.
        "reward_model": {"style": "rule", "ground_truth": item.key},
        "extra_info": {"index": index, "split": item.split, "key": item.key, "session": to_json_line(item)},
    }
