"""All benchmarks with small invented data, a system whose faults a test chooses, and their commands.

Commands run in this process, or in one of their own that can be killed.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import beam_cases
import halumem_cases
import locomo_cases
import longmemeval_cases
import personamem_cases
import pytest
from omegaconf import DictConfig, OmegaConf
from process_cases import INTERRUPTIBLE
from rich.console import Console
from scripted_server import Reply, Served, completion, is_check
from system_cases import benchmark_config

from deltamem import config as config_module
from deltamem.config import validated
from deltamem.embedding import CachedEmbedder
from deltamem.errors import DeltaMemError
from eval import fingerprint, runner, summarise
from eval.beam.__main__ import Beam
from eval.benchmark import Benchmark, Report, Results, Timeline, TimelineStep
from eval.config import BenchmarkConfig
from eval.evidence import EvidenceFinder
from eval.halumem.__main__ import Halumem
from eval.locomo.__main__ import Locomo
from eval.longmemeval.__main__ import LongMemEval
from eval.personamem.__main__ import PersonaMem
from eval.records import QuestionRecord
from eval.scores import answer_value, metric_scores, retrieval_values
from eval.systems.base import (
    DialogueSession,
    DialogueTurn,
    Ingested,
    Passage,
    StoreKey,
    System,
    SystemUnavailableError,
)

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Notebook:
    """A system that keeps its stores as long as the object lives, as one on disk does, and fails where it is told to."""

    name: str = "notebook"
    per_speaker: bool = False
    ranked: bool = True
    with_sources: bool = True
    stores: dict[str, dict[str, DialogueSession]] = field(default_factory=dict)
    ingested: list[str] = field(default_factory=list)
    searches: list[tuple[str, str, list[str]]] = field(default_factory=list)
    resets: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    break_open: Collection[str] = ()
    break_ingest: Collection[str] = ()
    break_search: Collection[str] = ()
    unreadable: Collection[str] = ()
    finds_nothing: Collection[str] = ()
    stop_at_search: str = ""

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[NotebookStore]:
        if key.id in self.break_open:
            raise DeltaMemError("the disk is gone")
        self.opened.append(key.id)
        yield NotebookStore(self, key.id)

    def facts(self) -> dict[str, Any]:
        return {}


@dataclass
class NotebookStore:
    system: Notebook
    store: str

    @property
    def known(self) -> Collection[str]:
        return self.system.stores.setdefault(self.store, {}).keys()

    async def ingest(self, session: DialogueSession) -> Ingested:
        if session.id in self.known:
            return Ingested()
        name = f"{self.store}/{session.id}"
        if name in self.system.break_ingest:
            raise DeltaMemError("out of order")
        self.system.ingested.append(name)
        if name in self.system.unreadable:
            return Ingested(readable=False)
        self.system.stores[self.store][session.id] = session
        return Ingested()

    async def search(self, query: str, k: int) -> list[Passage]:
        if query == self.system.stop_at_search:
            raise SystemUnavailableError("gone")
        if query in self.system.break_search:
            raise RuntimeError("no index")
        turns = [turn for session in self.system.stores[self.store].values() for turn in session.turns]
        self.system.searches.append((self.store, query, [turn.id for turn in turns]))
        if query in self.system.finds_nothing:
            return []
        return [Passage(turn.spoken, None, (turn.id,) if self.system.with_sources else (), 1.0) for turn in turns[:k]]

    async def reset(self) -> None:
        self.system.resets.append(self.store)
        self.system.stores[self.store].clear()


@dataclass(frozen=True)
class Case:
    """A benchmark as the tests run it.

    Attributes:
        write: Writes small data into a folder and returns the overrides that name it.
        script: All models of a run by rules.
        is_answer: Whether a request asks for an answer.
        question: One that is searched for once.
        store: One of the stores.
        session: One of the sessions, with its store.
    """

    name: str
    kind: type[Benchmark[Any]]
    embedder: Callable[[], Any]
    write: Callable[[Path], list[str]]
    script: Callable[[dict[str, Any]], Reply]
    is_answer: Callable[[dict[str, Any]], bool]
    questions: int
    question: str
    store: str
    questions_of_store: int
    session: str

    def configured(self, folder: Path, *overrides: str) -> Any:
        """The configuration with quick intervals and results in ``out``."""
        chosen = [*self.write(folder), f"out={folder / 'out'}", "resamples=20", "judge.probes=false", *overrides]
        config = OmegaConf.merge(composed(self.name, self.kind.config_dir), OmegaConf.from_dotlist(chosen))
        return validated(config, self.kind.config_type)

    def run(self, folder: Path, *overrides: str) -> dict[str, Any]:
        """A run in this process; its summary."""
        return runner.evaluate(self.kind, self.configured(folder, *overrides), Console(quiet=True)).model_dump(mode="json")


@cache
def composed(name: str, folder: Path) -> DictConfig:
    """What a command composes without overrides; composing takes longer than a run."""
    config = config_module.composed(name, [], folder)
    OmegaConf.set_struct(config, False)  # keys as they are given with a + on the command line
    return config


LOCOMO = Case(
    name="locomo",
    kind=Locomo,
    embedder=locomo_cases.WordEmbedder,
    write=lambda folder: [f"data={locomo_cases.write(folder / 'l.json', locomo_cases.benchmark())}"],
    script=locomo_cases.script,
    is_answer=lambda body: not body["messages"][0]["content"].startswith(("You grade", "You check")),
    questions=9,
    question="why?",
    store="conv-2",
    questions_of_store=1,
    session="conv-2/session_1",
)
HALUMEM = Case(
    name="halumem",
    kind=Halumem,
    embedder=halumem_cases.StemEmbedder,
    write=lambda folder: [f"data={halumem_cases.write(folder / 'h.jsonl', halumem_cases.ana(), halumem_cases.ben())}"],
    script=halumem_cases.models,
    is_answer=lambda body: halumem_cases.kind(body) == "answer",
    questions=3,
    question="What is Ana's middle name?",
    store=halumem_cases.ANA,
    questions_of_store=3,
    session=f"{halumem_cases.ANA}/S1",
)
PERSONAMEM = Case(
    name="personamem",
    kind=PersonaMem,
    embedder=partial(locomo_cases.WordEmbedder, "tea", "dog", "coffee", "bicycle", "boat", "cat"),
    write=personamem_cases.write_data,
    script=personamem_cases.script,
    is_answer=lambda body: True,
    questions=7,
    question="dog?",
    store="a1" * 6,
    questions_of_store=4,
    session="a1" * 6 + "/7-8",
)
LONGMEMEVAL = Case(
    name="longmemeval",
    kind=LongMemEval,
    embedder=partial(locomo_cases.WordEmbedder, "dog", "boat", "tea", "bicycle", "coffee", "cat"),
    write=longmemeval_cases.write_data,
    script=longmemeval_cases.script,
    is_answer=lambda body: not body["messages"][0]["content"].startswith("You grade"),
    questions=7,
    question="Which tea did you name?",
    store="q-said",
    questions_of_store=1,
    session="q-said/answer_tea",
)
BEAM = Case(
    name="beam",
    kind=Beam,
    embedder=partial(locomo_cases.WordEmbedder, "dog", "boat", "tea", "bicycle", "beagle", "cat"),
    write=beam_cases.write_data,
    script=beam_cases.script,
    is_answer=lambda body: not body["messages"][0]["content"].startswith(("You check", "A user asked")),
    questions=7,
    question="Which dog?",
    store="2",
    questions_of_store=1,
    session="1/2-1",
)
CASES = (LOCOMO, HALUMEM, PERSONAMEM, LONGMEMEVAL, BEAM)


def on(*cases: Case) -> pytest.MarkDecorator:
    """The cases of a test: one for each way in which what it tests depends on the benchmark."""
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases], indirect=True)


class Toy(Benchmark[BenchmarkConfig]):
    """Two people say a number a day, and are asked for it the same evening."""

    name = "Toy"
    config_type = BenchmarkConfig
    search_state = "session"
    answer_prompt = "answer_locomo"
    k = 1

    def __init__(self, config: BenchmarkConfig) -> None:
        self.config = config

    def data_hashes(self) -> dict[str, str | None]:
        return {}

    def timelines(self, system: System) -> list[Timeline]:
        return [
            Timeline((StoreKey(person, person),), tuple(self._day(person, day) for day in range(3)))
            for person in ("Ana", "Bo")
        ]

    def _day(self, person: str, day: int) -> TimelineStep:
        turn = DialogueTurn(f"t{day}", "user", person, f"My number of day {day} is {7 * day}.")
        session = DialogueSession(f"s{day}", datetime(2025, 1, 1) + timedelta(days=day), (turn,))
        question = QuestionRecord(
            key=f"{person}/{day}",
            group=person,
            category="numbers",
            question=f"{person}, {day}?",
            gold=f"{7 * day}",
            evidence=(turn.id,),
        )
        return TimelineStep(((session,),), (question,))

    def finder(self, question: QuestionRecord) -> EvidenceFinder:
        sessions = (self._day(question.group, day).sessions[0][0] for day in range(3))
        return EvidenceFinder.of(sessions, [question.group])

    def score(self, question: QuestionRecord, answer: str) -> Mapping[str, float]:
        return {"right": float(answer == question.gold)}

    def report(self, results: Results) -> Report:
        values = {"right": answer_value("right")} | retrieval_values([1])
        scores = metric_scores(results.questions, values, resamples=20)
        return Report(self.name, {"k": 1}, {"file": "none", "sha256": "", "questions": 6}, scores)


class LatestToy(Toy):
    search_state = "latest"


class ExactToy(Toy):
    search_state = "exact"


@dataclass(frozen=True)
class ToyCase(Case):
    """Faults are injected into these, one for each state that stores must have: a whole run takes no time."""

    def configured(self, folder: Path, *overrides: str) -> Any:
        return benchmark_config(folder / "out", "resamples=20", "judge.probes=false", *overrides)


TOYS = tuple(
    ToyCase(
        name=f"toy-{kind.search_state}",
        kind=kind,
        embedder=locomo_cases.WordEmbedder,
        write=lambda folder: [],
        script=lambda body: completion("7"),
        is_answer=lambda body: True,
        questions=6,
        question="Ana, 1?",
        store="Bo",
        questions_of_store=3,
        session="Ana/s1",
    )
    for kind in (LatestToy, Toy, ExactToy)
)


def prepare(monkeypatch: pytest.MonkeyPatch, case: Case, system: Notebook | None = None) -> None:
    """Runs in this process have an embedder without weights, quick summaries, and the given system if any."""
    monkeypatch.setattr(runner, "make_embedder", lambda settings: CachedEmbedder(case.embedder()))
    without_versions(monkeypatch)
    if system is not None:
        monkeypatch.setattr(runner, "make_system", lambda *arguments, **named: system)


def without_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summaries without what takes long to find out."""
    for module in (summarise, fingerprint):
        monkeypatch.setattr(module, "git_commit", lambda: None)  # asks git
        monkeypatch.setattr(module, "versions", lambda packages: {})  # looks through all packages


def served(server: Served, system: str = "full_context") -> list[str]:
    """Overrides for a run in which models answer and judge."""
    names = [f"{part}.model=tiny" for part in ("manager", "answer", "judge")]
    return [f"system={system}", f"base_url={server.url}", *names, "manager.window=4096"]


def sent(server: Served) -> list[str]:
    """All requests with their seeds, without the checks that the server is there."""
    bodies = (body for body in server.requests if not is_check(body))
    return [json.dumps([body["messages"], body.get("seed")]) for body in bodies]


def records(folder: Path, name: str = "questions", out: str = "out") -> dict[str, dict[str, Any]]:
    """The last record of each key of a file of records in ``out``."""
    found = {}
    for line in (folder / out / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        found[record.get("key") or record.get("id") or f"{record['store']}/{record['session']}"] = record
    return found


def files(folder: Path) -> dict[str, bytes]:
    """The files of records."""
    return {path.name: path.read_bytes() for path in (folder / "out").glob("*.jsonl")}


DELETED = object()


def changed(data: Any, path: str, value: object) -> Any:
    """A copy in which what a path with dots names is another value, or `DELETED`."""
    place = result = copy.deepcopy(data)
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in way:
        place = place[step]
    if value is DELETED:
        del place[last]
    else:
        place[last] = value
    return result


class Done(NamedTuple):
    code: int
    out: str
    err: str


def command(case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command in this process, see `prepare`; its page is without charts, whose drawing takes longer than a run."""
    monkeypatch.setattr("eval.compare.page.charts", lambda *_: [])
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    # Hydra would compose everything twice, the first time to see whether it says by itself that it is a sweep.
    monkeypatch.setattr("hydra._internal.hydra.Hydra.get_mode", lambda *_, **__: None)

    def run(*overrides: str) -> Done:
        monkeypatch.setattr("sys.argv", [f"eval.{case.name}", *overrides])
        with pytest.raises(SystemExit) as stopped:
            runner.command(case.kind, case.name)
        return Done(int(stopped.value.code or 0), *capsys.readouterr())

    return run


def start(case: Case, folder: Path, *overrides: str, **pipes: int) -> subprocess.Popen[str]:
    """The command as a person runs it in a folder."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", f"eval.{case.name}", *overrides],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "100"},
        text=True,
        preexec_fn=INTERRUPTIBLE,
        **pipes,
    )


def finish(case: Case, folder: Path, *overrides: str) -> Done:
    """The same, to its end."""
    process = start(case, folder, *overrides, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=1200)
    return Done(process.returncode, out, err)
