"""Finished runs as they lie on disk: the summary, the questions and the passages. Nothing is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from deltamem.errors import DeltaMemError
from eval.halumem.records import PointRecord
from eval.metrics.intervals import Interval
from eval.results.record_file import read_records
from eval.results.records import PassageRecord, QuestionRecord
from eval.results.summary import SUMMARY_FILE

FAMILIES = ("locomo", "halumem", "personamem")

Record = TypeVar("Record", bound=BaseModel)


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow")


class QuestionCounts(_Part):
    """How many questions the file has, and what became of them."""

    total: int
    asked: int
    answered: int
    failed: int
    by_category: dict[str, int]


class Spread(_Part):
    """Quantiles of seconds."""

    p50: float
    p95: float


class ContextTokens(Spread):
    """Estimated tokens of what answerers were shown."""

    mean: float


class Failures(_Part):
    """What broke."""

    count: int
    by_stage: dict[str, int]
    first: list[str]


class Making(_Part):
    """What the numbers were made with."""

    git_commit: str | None
    config: dict[str, Any]
    prompt_hashes: dict[str, str]
    models: dict[str, str | None]


class Summary(_Part):
    """``summary.json`` of a benchmark; see `eval.results.summary.build_summary`. Keys of one benchmark are kept as they are.

    Attributes:
        ceiling: Share of gold answers that an audit found right, by category; LoCoMo alone.
        cumulative: Cumulative accuracy by session; HaluMem alone.
    """

    benchmark: str
    version: str
    system: str
    mode: str
    questions: QuestionCounts
    scores: dict[str, dict[str, Interval | None]]
    cost: dict[str, dict[str, float]]
    latency: dict[str, Spread | None]
    context_tokens: ContextTokens | None
    memories: dict[str, Any] | None
    queries_per_memory: float | None
    sessions: dict[str, int]
    failures: Failures
    probes: list[dict[str, Any]]
    protocol: dict[str, Any]
    data: dict[str, Any]
    making: Making
    seconds: dict[str, float]
    ceiling: dict[str, float] | None = None
    cumulative: list[dict[str, float]] | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        name: Short, unique among the runs that are compared.
        folder: Where it lies.
        summary: Its summary.
        questions: Its questions, in the order of the run.
        passages: What was found for them, by id.
        points: Memory points and extracted memories; HaluMem alone.
    """

    name: str
    folder: Path
    summary: Summary
    questions: list[QuestionRecord]
    passages: dict[str, PassageRecord]
    points: list[PointRecord]

    @property
    def family(self) -> str:
        """The benchmark without its variant, as its command is called."""
        return family(self.summary.benchmark)


def family(benchmark: str) -> str:
    """The benchmark without its variant, as its command calls it: ``HaluMem-Medium`` is ``halumem``."""
    lower = benchmark.lower()
    return next((name for name in FAMILIES if name in lower), lower)


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """Read runs.

    Args:
        folders: Output folders of benchmarks; one that is named twice is read once.

    Raises:
        DeltaMemError: If a folder is not that of a finished run; names the file, and what is wrong with it.
    """
    distinct = list(dict.fromkeys(folder.resolve() for folder in folders))
    for given, folder in zip(folders, map(Path.resolve, folders), strict=True):
        if not folder.is_dir():
            raise DeltaMemError(f"{given}: no such folder")
    return [_load(folder, name) for folder, name in zip(distinct, _names(distinct), strict=True)]


def _load(folder: Path, name: str) -> Run:
    path = folder / SUMMARY_FILE
    if not path.is_file():
        raise DeltaMemError(f"{folder} holds no {SUMMARY_FILE}: not the folder of a benchmark run, or not finished")
    try:
        summary = Summary.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DeltaMemError(
            f"{path}: not the summary of a benchmark run{f', key {where!r}' if where else ''}: {first['msg']}"
        ) from error
    if not (folder / "questions.jsonl").is_file():
        raise DeltaMemError(f"{folder} holds no questions.jsonl")
    return Run(
        name,
        folder,
        summary,
        list(read_records(folder / "questions.jsonl", QuestionRecord, lambda record: record.key).values()),
        _optional(folder / "passages.jsonl", PassageRecord, lambda record: record.id),
        list(_optional(folder / "points.jsonl", PointRecord, lambda record: record.key).values()),
    )


def _optional(path: Path, model: type[Record], key: Callable[[Record], str]) -> dict[str, Record]:
    return read_records(path, model, key) if path.is_file() else {}


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ, as text: the name of a folder may be any bytes."""
    for length in range(1, max((len(folder.parts) for folder in folders), default=1) + 1):
        ends = ["/".join(folder.parts[-length:]) for folder in folders]
        names = [end.encode("utf-8", "replace").decode("utf-8") for end in ends]
        if max(Counter(names).values(), default=1) == 1:
            return names
    return [str(number) for number in range(1, len(folders) + 1)]


def by_family(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by benchmark, in the order in which benchmarks first occur."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.family, []).append(run)
    return groups
