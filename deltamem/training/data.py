"""Export of ``sessions.jsonl`` to the parquet files that verl reads."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from deltamem.episode import EpisodeConfig, opening_messages
from deltamem.errors import DeltaMemError
from deltamem.runs import partial_file
from deltamem.sessions import LabelledSession, from_json_line, read_sessions
from deltamem.training.config import TrainSettings

AGENT_NAME = "deltamem"
"""Name under which the agent loop is registered with verl."""

DATA_SOURCE = "deltamem"
"""verl groups its validation metrics by this column."""

ROWS_PER_GROUP = 128
"""Rows that are held in memory and written together."""

_TEXT = pa.string()
SCHEMA = pa.schema(
    {
        "data_source": _TEXT,
        "agent_name": _TEXT,
        "prompt": pa.list_(pa.struct({"role": _TEXT, "content": _TEXT})),
        "reward_model": pa.struct({"style": _TEXT, "ground_truth": _TEXT}),
        "extra_info": pa.struct({"index": pa.int64(), "split": _TEXT, "key": _TEXT, "session": _TEXT}),
    }
)
"""Columns of both files, as verl expects them; ``extra_info.session`` is the line of ``sessions.jsonl``."""


class Exported(NamedTuple):
    """The two files and how many sessions they hold."""

    train: Path
    heldout: Path
    train_sessions: int
    heldout_sessions: int


class RowWriter:
    """Writes labelled sessions as rows; made by `open_parquet`."""

    def __init__(self, file: pq.ParquetWriter, episode: EpisodeConfig) -> None:
        self._file = file
        self._episode = episode
        self._waiting: list[dict[str, Any]] = []
        self.rows = 0

    def add(self, labelled: LabelledSession, line: str) -> None:
        """Append a session; `line` is its line of ``sessions.jsonl``, which the agent loop reads."""
        row = {
            "data_source": DATA_SOURCE,
            "agent_name": AGENT_NAME,
            "prompt": opening_messages(labelled.session, self._episode),
            # Required by verl and shown in its dumps; the agent loop scores by itself.
            "reward_model": {"style": "rule", "ground_truth": labelled.key},
            "extra_info": {"index": self.rows, "split": labelled.split, "key": labelled.key, "session": line},
        }
        self._waiting.append(row)
        self.rows += 1
        if len(self._waiting) == ROWS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait as one row group."""
        if self._waiting:
            self._file.write_table(pa.Table.from_pylist(self._waiting, schema=SCHEMA))
            self._waiting = []


@contextmanager
def open_parquet(path: Path, episode: EpisodeConfig) -> Iterator[RowWriter]:
    """Open a parquet file that takes its name only when it is complete; an older file of that name stays until then."""
    with partial_file(path) as partial, pq.ParquetWriter(partial, SCHEMA) as file:
        writer = RowWriter(file, episode)
        yield writer
        writer.flush()


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

    The file is read twice: to check every line and to draw, then to write the drawn sessions.

    Args:
        sessions: The file that synth wrote.
        folder: Where to; made if missing.
        episode: Prompts of the opening messages.
        train_sessions: Training rows, drawn with `seed`; None takes all.
        heldout_sessions: Validation rows, drawn with `seed`; None takes all.
        skip_people: This many training persons are left out, the first of the file: the warm start has used them.
        seed: Seed of the draw.
    """
    lines = [(item.split, item.session.person_id) for item in read_sessions(sessions)]
    skipped = set(list(dict.fromkeys(person for split, person in lines if split == "train"))[:skip_people])
    chosen = {
        "train": _draw(
            [number for number, (split, person) in enumerate(lines) if split == "train" and person not in skipped],
            train_sessions,
            seed,
            f"{sessions}: training sessions" + (f" after the first {skip_people} persons" if skip_people else ""),
        ),
        "heldout": _draw(
            [number for number, (split, _) in enumerate(lines) if split == "heldout"],
            heldout_sessions,
            seed,
            f"{sessions}: held-out sessions",
        ),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with sessions.open("rb") as file:
        starts = list(accumulate(map(len, file), initial=0))
        for name, numbers in chosen.items():
            with open_parquet(folder / f"{name}.parquet", episode) as writer:
                for number in numbers:
                    file.seek(starts[number])
                    line = file.readline().decode("utf-8-sig").strip()
                    writer.add(from_json_line(line), line)
    return Exported(folder / "train.parquet", folder / "heldout.parquet", len(chosen["train"]), len(chosen["heldout"]))


def _draw(numbers: Sequence[int], count: int | None, seed: int, what: str) -> Sequence[int]:
    if not numbers or (count or 0) > len(numbers):
        raise DeltaMemError(f"{what}: there are {len(numbers)}, expected at least {count or 1}")
    return numbers if count is None else random.Random(seed).sample(numbers, count)


def early_sessions(settings: TrainSettings) -> list[LabelledSession]:
    """Sessions of the training persons that GRPO leaves alone; of all of them if it leaves none."""
    everything = list(read_sessions(settings.sessions, split="train"))
    people = list(dict.fromkeys(item.session.person_id for item in everything))
    early = set(people[: settings.data.skip_people] or people)
    return [item for item in everything if item.session.person_id in early]


def count_rows(path: Path) -> int:
    """Rows of an exported file; one that cannot be read is a `DeltaMemError`."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise DeltaMemError(f"{path}: cannot be read; remove {path.parent} to make it again") from error
