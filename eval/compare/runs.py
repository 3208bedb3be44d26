"""Finished and interrupted runs, and the rows that papers published: what a comparison reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from pydantic import BaseModel, Field, ValidationError

from deltamem.config import StrictModel, first_error
from deltamem.errors import DeltaMemError
from deltamem.runs import read_records
from eval.metrics import Interval
from eval.records import PassageRecord, PointRecord, QuestionRecord
from eval.summary import SUMMARY_FILE

FAMILIES = ("locomo", "halumem", "personamem", "longmemeval", "beam")

CLOSED_BOOK = "none"
"""The system without a memory: what the answerer knows by itself."""

Record = TypeVar("Record", bound=BaseModel)


class QuestionCounts(BaseModel):
    """How many questions the file has, and what became of them."""

    total: int
    answered: int
    failed: int
    by_category: dict[str, int]
    keys: list[str] | None = None  # Those that the scores are of; None means all that the file has


class Headline(BaseModel):
    """The score that stands for a run, and what it must not be read without."""

    metric: str | None = None
    score: Interval | None = None
    withheld: str | None = None  # Why the score must not be shown
    n: int  # Questions that it is of
    of: int  # Questions of the file
    failures: int = 0
    silent: int = 0  # Answers without a word
    context_tokens: float | None = None
    judge_error: dict[str, Interval | None] | None = None  # Of false accepts and false rejects on the calibration answers

    @property
    def shown(self) -> Interval | None:
        """The score, unless it is withheld."""
        return None if self.withheld else self.score


class BudgetScores(BaseModel):
    """Scores at one budget of context tokens."""

    budget: int
    context_tokens: float
    scores: dict[str, Interval | None]
    withheld: dict[str, str] = {}


class Provenance(BaseModel, extra="allow"):
    """What the numbers were made with; the key ``making`` of the summary."""

    git_commit: str | None = None
    config: dict[str, Any] = {}
    prompt_hashes: dict[str, str]
    models: dict[str, str | None]
    versions: dict[str, str | None] = {}
    # What answered, beyond names: commit, versions, endpoints, what the servers say that they serve
    fingerprint: dict[str, Any] = {}


class Summary(BaseModel):
    """What is shown of the ``summary.json`` of a benchmark; see `eval.summary.build_summary`."""

    benchmark: str
    version: str
    system: str
    mode: str
    questions: QuestionCounts
    scores: dict[str, dict[str, Interval | None]]
    headline: Headline
    withheld: dict[str, str] = {}  # By metric why it must not be shown
    warnings: list[str] = []
    partial: dict[str, int] | None = None  # How many questions of an interrupted run are done, and of how many
    budgets: list[BudgetScores] = []
    passages: dict[str, Any] | None = None  # What a search returns, on average
    cost: dict[str, dict[str, float]]
    latency: dict[str, dict[str, float] | None] = {}  # Seconds by part: p50, p95
    context_tokens: dict[str, float] | None = None  # Mean, p50, p95
    memories: dict[str, Any] | None = None
    queries_per_memory: float | None = None
    sessions: dict[str, int] = {}
    failures: dict[str, Any] = {}
    probes: list[dict[str, Any]] = []
    protocol: dict[str, Any] = {}
    data: dict[str, Any]
    system_facts: dict[str, Any] = {}
    making: Provenance
    seconds: dict[str, float] = {}
    # LoCoMo alone: share of gold answers that an audit found right, by category
    ceiling: dict[str, float] | None = None
    cumulative: list[dict[str, float]] | None = None  # HaluMem alone: accuracy of all questions up to a session

    def score(self, metric: str, group: str) -> Interval | None:
        """A score of a category or of ``all``; None if the run has none, or if it is withheld."""
        return None if metric in self.withheld else self.scores.get(metric, {}).get(group)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The output folder of a benchmark."""

    name: str  # Short, unique among the runs that are compared
    folder: Path
    summary: Summary
    questions: list[QuestionRecord]  # Those that the scores are of, in the order of the run
    recorded: int  # How many the folder holds: an earlier call may have asked more
    passages: dict[str, PassageRecord]  # What was found for the questions, by id
    points: list[PointRecord]  # Memory points and extracted memories; HaluMem alone

    @property
    def headline(self) -> Headline:
        """The headline of the summary."""
        return self.summary.headline

    @property
    def family(self) -> str:
        """The benchmark without its variant, as its command calls it: ``HaluMem-Medium`` is ``halumem``."""
        lower = self.summary.benchmark.lower()
        return next((name for name in FAMILIES if name in lower), lower)

    @property
    def published_data(self) -> bool:
        """Whether the data is known to be the published file, so that papers' numbers are of the same questions."""
        return self.summary.data.get("published") is True

    @property
    def paired(self) -> bool:
        """Whether the records are exactly those that the scores are of."""
        return len(self.questions) == sum(self.summary.questions.by_category.values())

    @property
    def lacks(self) -> str:
        """Which parts of the system were not there, such as mem0's keyword search; empty if none."""
        missing = [name.replace("_", " ") for name, value in self.summary.system_facts.items() if value is False]
        return f"without {', '.join(missing)}" if missing else ""

    @property
    def title(self) -> str:
        """The name, with what its numbers must not be read without."""
        closed = "closed book: known without any memory" if self.summary.system == CLOSED_BOOK else ""
        partial = "partial" if self.summary.partial else ""
        remarks = ", ".join(remark for remark in (partial, closed, self.lacks) if remark)
        return f"{self.name} ({remarks})" if remarks else self.name


def load_runs(folders: Sequence[Path]) -> list[FinishedRun]:
    """Read runs.

    Raises:
        DeltaMemError: If a folder is not that of a finished run; names the file, and what is wrong with it.
    """
    for folder in folders:
        if not folder.is_dir():
            raise DeltaMemError(f"{folder}: no such folder")
    distinct = list(dict.fromkeys(folder.resolve() for folder in folders))
    return [_load(folder, name) for folder, name in zip(distinct, _names(distinct), strict=True)]


def _load(folder: Path, name: str) -> FinishedRun:
    for needed in (SUMMARY_FILE, "questions.jsonl"):
        if not (folder / needed).is_file():
            raise DeltaMemError(f"{folder} holds no {needed}: not the folder of a benchmark run, or it was stopped at once")
    try:
        summary = Summary.model_validate_json((folder / SUMMARY_FILE).read_bytes())
    except ValidationError as error:
        raise DeltaMemError(f"{folder / SUMMARY_FILE}: not the summary of a benchmark run: {first_error(error)}") from error
    questions = read_records(folder / "questions.jsonl", QuestionRecord, lambda record: record.key)
    scored = questions.keys() if summary.questions.keys is None else summary.questions.keys
    return FinishedRun(
        name,
        folder,
        summary,
        [questions[key] for key in scored if key in questions],
        len(questions),
        _records(folder / "passages.jsonl", PassageRecord, lambda record: record.id),
        list(_records(folder / "points.jsonl", PointRecord, lambda record: record.key).values()),
    )


def _records(path: Path, model: type[Record], key: Callable[[Record], str]) -> dict[str, Record]:
    return read_records(path, model, key) if path.is_file() else {}


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ, as text: the name of a folder may be any bytes."""
    for length in range(1, max((len(folder.parts) for folder in folders), default=1) + 1):
        ends = ["/".join(folder.parts[-length:]) for folder in folders]
        names = [end.encode("utf-8", "replace").decode("utf-8") for end in ends]
        if len(set(names)) == len(names):
            return names
    return [str(number) for number in range(1, len(folders) + 1)]


class PublishedTable(StrictModel):
    """Rows of one source."""

    table: str  # The layout that they belong to, see `eval.compare.tables.LAYOUTS`
    source: str
    note: str = ""  # Conditions that differ from ours
    columns: list[str]  # `<group>/<measure>` of each value
    # Values by name of the system, in percent, or counts; None where nothing is given
    rows: dict[str, list[float | None]]
    doubts: dict[str, str] = Field(default_factory=dict)  # What does not add up, by row

    def values(self, system: str) -> dict[str, float]:
        """What is given of a row, by column."""
        return {name: value for name, value in zip(self.columns, self.rows[system], strict=True) if value is not None}


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Everything in ``published.yaml``."""
    content: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("published.yaml")))
    return tuple(PublishedTable.model_validate(table) for table in content["tables"])
