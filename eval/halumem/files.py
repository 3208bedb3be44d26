"""The records in the output folder of a run: those of every benchmark, and those of memory points."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eval.halumem.records import PointRecord
from eval.results.record_file import RecordFile
from eval.running.files import RunFiles, open_files


@dataclass(frozen=True)
class PointFiles(RunFiles):
    """What is done, and where the rest is written.

    Attributes:
        points: Memory points and extracted memories: first as they were searched for, then with the verdict.
    """

    points: RecordFile[PointRecord]


@contextmanager
def open_point_files(folder: Path) -> Iterator[PointFiles]:
    """Open the records of an output folder, or begin them.

    Raises:
        DeltaMemError: If a line of a file is not a record.
        OSError: If a file cannot be read or written.
    """
    with (
        open_files(folder) as files,
        RecordFile(folder / "points.jsonl", PointRecord, lambda record: record.key) as points,
    ):
        yield PointFiles(files.sessions, files.passages, files.retrieved, files.questions, points)
