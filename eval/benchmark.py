"""What a benchmark supplies to `eval.runner`: timelines of steps, judges, scores, and what its summary says.

A new benchmark is a package with ``data`` (its configuration and files), ``scores`` and ``__main__``, in which a subclass of
`Benchmark` is given to `eval.runner.command`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from rich.table import Table

from deltamem.config import CONFIGS
from deltamem.embedding import Embedder
from deltamem.llm import LLM, ResponseCache
from deltamem.prompts import Prompt
from deltamem.runs import RecordFile
from eval.compare.layout import Table as PaperTable
from eval.config import BenchmarkConfig
from eval.evidence import EvidenceFinder
from eval.judge import OfficialPrompt
from eval.records import Cost, IngestRecord, PassageRecord, PointRecord, QuestionRecord, Verdict
from eval.summary import Summary
from eval.systems.base import DialogueSession, Memory, Passage, StoreKey, System
from eval.systems.baselines import Evidence


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """Sessions to ingest, then what is asked and checked before any later session is ingested."""

    sessions: tuple[tuple[DialogueSession, ...], ...]  # For each store of the timeline, in order
    questions: tuple[QuestionRecord, ...] = ()  # Before anything was searched for
    # Memory points, likewise, whose judges also see what the system extracted from the sessions of the step; None if nothing
    # is checked
    points: tuple[PointRecord, ...] | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Stores that are fed and searched together, and the steps of their life in order."""

    stores: tuple[StoreKey, ...]
    steps: tuple[TimelineStep, ...]
    titled: bool = False  # Whether an answering model is shown whose memory the passages of a store are


SearchState = Literal["latest", "session", "exact"]
"""What the stores must hold when a question is searched for.

- ``latest``: all sessions so far that could be ingested; a question is searched for again when a missing one comes in later.
- ``session``: at least the sessions of the step, else its questions fail. Those that are searched for without an earlier
  session, or after a later one, are marked by a note.
- ``exact``: the sessions so far and no others. A failed session fails all later questions, and a store that holds others
  is reset. For timelines of one store.
"""


@dataclass(frozen=True, slots=True)
class JudgeSpec:
    """A judge: its prompt by name, the fields and labels of the prompt, and the values of its further keys.

    A `calibrated` judge takes question, gold, evidence and answer, and calls a right answer ``correct``, so that it can be
    measured on `eval.judge.load_calibration`.
    """

    prompt: str
    fields: tuple[str, ...]
    labels: tuple[str, ...]
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    calibrated: bool = True
    official: OfficialPrompt | None = None


@dataclass(frozen=True)
class Results:
    """All records of a run, those of earlier invocations included."""

    system: System
    questions: Sequence[QuestionRecord]
    sessions: Sequence[IngestRecord]
    points: Sequence[PointRecord]
    passages: RecordFile[PassageRecord] | Mapping[str, PassageRecord]

    def found(self, question: QuestionRecord) -> list[PassageRecord]:
        """The passages that were found for a question, best first in each store."""
        return [passage for found in question.retrieved if (passage := self.passages.get(found.passage)) is not None]


@dataclass(frozen=True)
class Report:
    """What a benchmark says in the summary of a run, see `eval.summary.build_summary`."""

    benchmark: str  # Name of the benchmark, with the variant if there are several
    protocol: Mapping[str, Any]  # What the protocol fixes: top-k, stores, captions, categories that are pooled
    # Of the file: `file` or `files`, `sha256` (of one file, or by file), `published` (whether that is the published file's;
    # None if no sum is known), and counts, `questions` among them
    data: Mapping[str, Any]
    scores: Mapping[str, Any]  # By metric and category, of `eval.summary.metric_scores`
    headline: Sequence[str] = ()  # Metrics in order of preference; the first that there is a score of is the headline
    # The judge, or judges, of each metric that has not the judge's own name
    judged_by: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    problems: Sequence[str] = ()  # What was wrong with the data, one sentence each
    order: Sequence[str] = ()  # Categories in the order of the benchmark
    warnings: Sequence[str] = ()  # What a reader must know besides, one sentence each
    costs: Mapping[str, Cost] = field(default_factory=dict)  # Of further parts that models played, or in place of the usual
    more: Mapping[str, Any] = field(default_factory=dict)  # Further keys of this benchmark


Asker = Callable[[QuestionRecord, Memory], AsyncIterator[QuestionRecord]]
"""Asks a question of a store that holds all sessions before it; gives its record after each answer.

The question has the answers of an earlier run, of which those without an error are kept. What goes wrong belongs into the
`error` of an answer; what is raised ends the run.
"""


@dataclass(frozen=True, slots=True)
class AskContext:
    """What a benchmark has that asks its questions itself."""

    answer: LLM | None  # The models of the run; None where none is named
    judge: LLM | None
    cache: ResponseCache | None  # For further models
    embedder: Embedder
    prompts: Mapping[str, Prompt]  # `Benchmark.prompts` by name, and that of the answering model as `answer`
    made: str  # What new records are marked with


def gold_evidence(named: Iterable[tuple[str, str, Iterable[str]]]) -> dict[str, dict[str, tuple[str, ...]]]:
    """By store and question the ids of turns that are named for them; a question that occurs twice has those of both."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for store, question, turns in named:
        of_store = found.setdefault(store, {})
        of_store[question] = tuple(dict.fromkeys((*of_store.get(question, ()), *turns)))
    return found


class PointChecks(Protocol):
    """How memory points and extracted memories are searched for and judged."""

    k: int  # Passages that a point is searched for

    def extracted(self, step: TimelineStep, ingested: Sequence[IngestRecord]) -> list[PointRecord]:
        """One record for each memory that the system extracted from the sessions of a step."""
        ...

    def is_searched(self, point: PointRecord) -> bool:
        """Whether the memory is searched for a point."""
        ...

    def found(self, point: PointRecord, passages: Sequence[Passage], *, ranked: bool) -> PointRecord:
        """The record of a point that was searched for, with the judge that it now is for."""
        ...

    def failed(self, point: PointRecord, reason: str | None) -> PointRecord:
        """The record of a point that could not be searched for."""
        ...

    def is_judged(self, point: PointRecord, ingested: Sequence[IngestRecord]) -> bool:
        """Whether a judge is asked."""
        ...

    def judge_fields(
        self, point: PointRecord, ingested: Sequence[IngestRecord], passages: Sequence[Passage], *, ranked: bool
    ) -> Mapping[str, str] | Verdict:
        """What the judge called `PointRecord.kind` is shown, or the verdict where none need be asked."""
        ...


Config = TypeVar("Config", bound=BenchmarkConfig)


class Benchmark(ABC, Generic[Config]):
    """One benchmark. Construction reads the data, so it may fail with `deltamem.errors.DeltaMemError`."""

    name: ClassVar[str]
    config_type: ClassVar[type[BenchmarkConfig]]
    config_dir: ClassVar[Path] = CONFIGS
    """Folder of the configuration file, which has the name of the benchmark."""
    search_state: ClassVar[SearchState]
    answer_prompt: ClassVar[str]
    answer_fields: ClassVar[tuple[str, ...]] = ("context", "question")
    prompts: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Further prompts, as `eval.answer.load_prompt` finds them, with their fields."""
    asks: ClassVar[bool] = False
    """Whether questions are asked by `asking`, and not by one search and one answer."""
    uses_nltk: ClassVar[bool] = False
    """Whether `score` needs the data of NLTK."""
    tables: ClassVar[Sequence[Callable[[Summary], Table | None]]] = ()
    """Made of the summary and shown when a run ends; None is left out."""

    layouts: ClassVar[Sequence[PaperTable]] = ()
    """Its tables as papers have them; what they report is in `published_file`."""
    labels: ClassVar[Mapping[str, str]] = {}
    """Short names of categories, where tables need them."""
    values: ClassVar[Mapping[str, Callable[[QuestionRecord], float | None]]] = {}
    """What a question is worth by scores that records do not have under their name (`eval.summary.Value`)."""

    config: Config
    k: int
    """Passages of each store that a question is searched for; set by `timelines`."""
    points: PointChecks | None = None
    """How memory points are searched for and judged; HaluMem alone has them."""

    @classmethod
    def published_file(cls) -> Path:
        """Where the numbers of others are, if there are any; see `eval.compare.layout.PublishedTable`."""
        return Path(str(sys.modules[cls.__module__].__file__)).with_name("published.yaml")

    @classmethod
    def judges(cls, config: Config) -> Mapping[str, JudgeSpec]:
        """The judges by name."""
        return {}

    @abstractmethod
    def __init__(self, config: Config) -> None:
        """Read the data."""

    @abstractmethod
    def data_hashes(self) -> Mapping[str, str | None]:
        """sha256 of the files that decide the records."""

    @abstractmethod
    def timelines(self, system: System) -> Sequence[Timeline]:
        """All that is done, laid out for a system."""

    def evidence(self) -> Evidence | None:
        """Gold evidence by store and question, for ``system=oracle``; None if the benchmark names none."""
        return None

    def vocabulary(self) -> Collection[str]:
        """Names of the setting, such as those of shops, which are data of no user; for systems that keep none of those."""
        return ()

    def extras(self) -> dict[str, Callable[[], Any]]:
        """What a system may ask for beyond sessions, by name; a benchmark may offer more to the systems that know it."""
        return {"evidence": self.evidence, "vocabulary": self.vocabulary}

    def question_keys(self, timelines: Sequence[Timeline]) -> list[str]:
        """Keys of all questions in the order of the summary."""
        return [record.key for timeline in timelines for step in timeline.steps for record in step.questions]

    def unaskable(self) -> Iterable[QuestionRecord]:
        """Questions that cannot be asked, with the reason in `QuestionRecord.error`."""
        return ()

    def prepare(self, question: QuestionRecord) -> QuestionRecord:
        """The record of a question right before it is searched for; for what is expensive to tell."""
        return question

    def finder(self, question: QuestionRecord) -> EvidenceFinder:
        """Finds the turns of the conversation that a question with evidence is about."""
        raise NotImplementedError

    def evidence_turns(self, question: QuestionRecord) -> Sequence[Collection[str]]:
        """For each piece of the evidence of a question the ids of the turns that say it."""
        return [(turn,) for turn in question.evidence]

    def recalled(self, question: QuestionRecord, passages: Sequence[Passage]) -> QuestionRecord:
        """The record of a question with what the passages of all stores, best first, hold of its evidence, if it has any."""
        if not (pieces := self.evidence_turns(question)):
            return question
        finder = self.finder(question)
        ranks, shown = finder.ranks(pieces, passages), finder.words_shown(chain.from_iterable(pieces), passages)
        return question.model_copy(update={"ranks": ranks, "gold_words_shown": shown})

    def asking(self, context: AskContext) -> AbstractAsyncContextManager[Asker]:
        """What asks the questions of a benchmark that `asks`, as long as the context is open; only entered if some are left.

        Raises:
            DeltaMemError: If something that it needs is missing, before anything is asked.
        """
        raise NotImplementedError

    async def probes(self, context: AskContext) -> Sequence[Mapping[str, Any]]:
        """How often judges are wrong that are not among `judges`, in the form of `eval.judge.measure`."""
        return ()

    def prompt_of(self, question: QuestionRecord) -> str:
        """The prompt that a model answers a question by: `answer_prompt`, or another that is among `prompts`."""
        return self.answer_prompt

    def options(self, question: QuestionRecord) -> tuple[str, ...]:
        """Of a multiple-choice question."""
        return ()

    def score(self, question: QuestionRecord, answer: str) -> Mapping[str, float]:
        """Scores of an answer that need no judge."""
        return {}

    def judge_fields(self, question: QuestionRecord, answer: str) -> Mapping[str, Mapping[str, str]]:
        """By name of each judge of an answer what it is shown; ``name/1``, ``name/2``, ... where it judges item by item."""
        return {}

    @abstractmethod
    def report(self, results: Results) -> Report:
        """What the summary says."""

    @classmethod
    def lines(cls, summary: Summary) -> Iterable[str]:
        """Shown after the tables."""
        return ()

    @classmethod
    def failure_lines(cls, summary: Summary) -> Iterable[str]:
        """Shown on stderr before the other failures."""
        return ()
