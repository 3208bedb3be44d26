"""Finished runs and published rows: loading them, and warnings about what makes runs hard to compare."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from deltamem.config import StrictModel, first_error
from deltamem.errors import DeltaMemError
from deltamem.runs import read_records
from eval.metrics import Interval
from eval.records import PassageRecord, PointRecord, QuestionRecord
from eval.summary import SUMMARY_FILE

FAMILIES = ("locomo", "halumem", "personamem")

Record = TypeVar("Record", bound=BaseModel)


class _SummaryPart(BaseModel):
    model_config = ConfigDict(extra="allow")


class QuestionCounts(_SummaryPart):
    """How many questions the file has, and what became of them."""

    total: int
    asked: int
    answered: int
    failed: int
    by_category: dict[str, int]


class Quantiles(_SummaryPart):
    """Of seconds, or of tokens."""

    p50: float
    p95: float


class ContextTokens(Quantiles):
    """Estimated tokens of what answerers were shown."""

    mean: float


class Failures(_SummaryPart):
    """What broke."""

    count: int
    by_stage: dict[str, int]
    first: list[str]


class Provenance(_SummaryPart):
    """What the numbers were made with; the key ``making`` of the summary."""

    git_commit: str | None
    config: dict[str, Any]
    prompt_hashes: dict[str, str]
    models: dict[str, str | None]


class Summary(_SummaryPart):
    """``summary.json`` of a benchmark; see `eval.summary.build_summary`. Keys of one benchmark are kept as they are."""

    benchmark: str
    version: str
    system: str
    mode: str
    questions: QuestionCounts
    scores: dict[str, dict[str, Interval | None]]
    cost: dict[str, dict[str, float]]
    latency: dict[str, Quantiles | None]
    context_tokens: ContextTokens | None
    memories: dict[str, Any] | None
    queries_per_memory: float | None
    sessions: dict[str, int]
    failures: Failures
    probes: list[dict[str, Any]]
    protocol: dict[str, Any]
    data: dict[str, Any]
    making: Provenance
    seconds: dict[str, float]
    # LoCoMo alone: share of gold answers that an audit found right, by category
    ceiling: dict[str, float] | None = None
    cumulative: list[dict[str, float]] | None = None  # HaluMem alone: accuracy of all questions up to a session

    def score(self, metric: str, group: str) -> Interval | None:
        """A score of a category or of ``all``; None if the run has none."""
        return self.scores.get(metric, {}).get(group)

    def setting(self, key: str) -> Any:
        """A value of the configuration by its key with dots; None if there is none."""
        return setting(self.making.config, key)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The output folder of a benchmark."""

    name: str  # Short, unique among the runs that are compared
    folder: Path
    summary: Summary
    questions: list[QuestionRecord]  # In the order of the run
    passages: dict[str, PassageRecord]  # What was found for the questions, by id
    points: list[PointRecord]  # Memory points and extracted memories; HaluMem alone

    @property
    def family(self) -> str:
        """The benchmark without its variant, as its command is called."""
        return family(self.summary.benchmark)


def setting(config: Mapping[str, Any], key: str) -> Any:
    """The value of a key with dots; None if there is none."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def family(benchmark: str) -> str:
    """The benchmark without its variant, as its command calls it: ``HaluMem-Medium`` is ``halumem``."""
    lower = benchmark.lower()
    return next((name for name in FAMILIES if name in lower), lower)


def load_runs(folders: Sequence[Path]) -> list[FinishedRun]:
    """Read runs.

    Raises:
        DeltaMemError: If a folder is not that of a finished run; names the file, and what is wrong with it.
    """
    distinct = list(dict.fromkeys(folder.resolve() for folder in folders))
    for given, folder in zip(folders, map(Path.resolve, folders), strict=True):
        if not folder.is_dir():
            raise DeltaMemError(f"{given}: no such folder")
    return [_load(folder, name) for folder, name in zip(distinct, _names(distinct), strict=True)]


def _load(folder: Path, name: str) -> FinishedRun:
    path = folder / SUMMARY_FILE
    if not path.is_file():
        raise DeltaMemError(f"{folder} holds no {SUMMARY_FILE}: not the folder of a benchmark run, or not finished")
    try:
        summary = Summary.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise DeltaMemError(f"{path}: not the summary of a benchmark run: {first_error(error)}") from error
    if not (folder / "questions.jsonl").is_file():
        raise DeltaMemError(f"{folder} holds no questions.jsonl")
    return FinishedRun(
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


def by_family(runs: Sequence[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Runs by benchmark, in the order in which benchmarks first occur."""
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(run.family, []).append(run)
    return groups


class PublishedTable(StrictModel):
    """Rows of one source."""

    table: str  # The layout that they belong to, see `eval.compare.tables.LAYOUTS`
    source: str
    note: str = ""  # Conditions that differ from ours
    columns: list[str]  # `<group>/<measure>` of each value
    # Values by name of the system, in percent, or counts; None where nothing is given
    rows: dict[str, list[float | None]]
    doubts: dict[str, str] = Field(default_factory=dict)  # What does not add up, by row
    page_only: bool = False  # Whether the terminal leaves them out

    @model_validator(mode="after")
    def _fits(self) -> PublishedTable:
        if (
            any(len(values) != len(self.columns) for values in self.rows.values())
            or not self.doubts.keys() <= self.rows.keys()
        ):
            raise ValueError(f"{self.source}: a row does not have {len(self.columns)} values, or a doubt has no row")
        return self


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row of a `PublishedTable`; `values` by ``<group>/<measure>``."""

    system: str
    source: str
    note: str
    doubt: str
    values: Mapping[str, float]
    page_only: bool


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Everything in the file."""
    from omegaconf import OmegaConf

    text = (resources.files("eval.compare") / "published.yaml").read_text(encoding="utf-8")
    content: Any = OmegaConf.to_container(OmegaConf.create(text))
    return tuple(PublishedTable.model_validate(table) for table in content["tables"])


def published_rows(table: str) -> list[PublishedRow]:
    """The rows of one layout, source by source."""
    return [
        PublishedRow(
            system,
            part.source,
            part.note,
            part.doubts.get(system, ""),
            {name: value for name, value in zip(part.columns, values, strict=True) if value is not None},
            part.page_only,
        )
        for part in published_tables()
        if part.table == table
        for system, values in part.rows.items()
    ]


_CONFIG_KEYS = (
    "answer.prompt",
    "answer.runs",
    "answer.temperature",
    "answer.max_tokens",
    "judge.temperature",
    "judge.max_tokens",
    "judge.attempts",
    "categories",
    "limit",
    "seed",
    "resamples",
)
"""Keys of the configuration that decide what is measured, apart from the system."""

_OF_THE_SYSTEM = ("stores_per_conversation", "k_each_store", "point_found_by")
"""Keys of the protocol that follow from what kind of system is measured."""


def differences(runs: Sequence[FinishedRun]) -> list[str]:
    """Where runs of one benchmark differ in something that decides their scores, other than the memory system.

    One sentence for each condition: data, models, prompts, embedder, protocol (top-k, context budget), settings.
    """
    names = list(dict.fromkeys(name for run in runs for name, _ in _conditions(run)))
    conditions = [dict(_conditions(run)) for run in runs]
    notes = []
    for name in names:
        values = [condition.get(name) for condition in conditions]
        if name.startswith("prompt "):  # a system may have prompts of its own; answerers and judges share theirs
            values = [value for value in values if value is not None]
        if len({_shown(value) for value in values}) > 1:
            by_run = "; ".join(
                f"{run.name}: {_shown(condition.get(name))}" for run, condition in zip(runs, conditions, strict=True)
            )
            notes.append(f"{name} differs: {by_run}")
    return notes


def _conditions(run: FinishedRun) -> Iterator[tuple[str, Any]]:
    summary = run.summary
    yield "benchmark", summary.benchmark
    yield "data sha256", summary.data.get("sha256")
    audit = summary.data.get("audit") or {}
    yield "audit sha256", audit.get("sha256") if audit.get("applied") else None
    models = summary.making.models
    yield "answer model", models.get("answer")
    yield "judge model", models.get("judge")
    yield "embedder", models.get("embedder")
    for name, value in summary.protocol.items():
        if name not in _OF_THE_SYSTEM:
            yield f"protocol {name}", value
    for name, value in summary.making.prompt_hashes.items():
        yield f"prompt {name}", value
    for key in _CONFIG_KEYS:
        yield key, summary.setting(key)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text[:12] if len(text) == 64 and text.isalnum() else text


def warnings_of(run: FinishedRun) -> list[str]:
    """What is missing in a run, so that its scores are not those of the whole benchmark."""
    return [f"{run.name}: {sentence}" for sentence in _warnings(run)]


def _warnings(run: FinishedRun) -> Iterator[str]:
    summary, counts = run.summary, run.summary.questions
    recorded = sum(counts.by_category.values())
    if recorded < counts.total:
        yield f"{recorded:,} of {counts.total:,} questions were chosen"
    if recorded < len(run.questions):
        yield (
            f"the folder holds {len(run.questions):,} questions, the scores are of {recorded:,}: an earlier call asked more"
        )
    if summary.mode == "offline":
        yield "offline, no model answered; lexical scores are those of the answerer that copies a sentence"
    if summary.failures.count:
        stages = ", ".join(f"{count:,} {stage}" for stage, count in summary.failures.by_stage.items())
        counted = ", except in the scores named (all)" if run.family == "halumem" else ""
        yield (
            f"{summary.failures.count:,} failures ({stages}); answers and verdicts that are missing are left out of the "
            f"scores, not counted as 0{counted}"
        )
    if unreadable := summary.sessions.get("unreadable"):
        yield f"{unreadable:,} sessions could not be understood by the system"
    if late := summary.sessions.get("late"):
        yield f"{late:,} sessions were ingested after later ones"
    answered = [record for record in run.questions if record.answers]
    if cut := sum(record.shown < len(record.retrieved) for record in answered):
        yield (f"at {cut:,} of {len(answered):,} questions the budget of context tokens left out passages that were found")
    if lost := summary.cost.get("ingest", {}).get("sessions_lost"):
        yield f"what {lost:,.0f} sessions cost is not known, because the run was killed before it was noted"
