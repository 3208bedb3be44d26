"""Runs as a comparison reads them: finished or not, with a card and warnings each, and where their conditions differ."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deltamem import plugins
from deltamem.config import first_error
from deltamem.errors import DeltaMemError
from deltamem.intervals import Interval
from deltamem.runs import read_records
from deltamem.text import shortened
from deltamem.text_files import read_text
from eval.benchmark import Benchmark
from eval.records import PassageRecord, PointRecord, QuestionRecord
from eval.summary import CLOSED_BOOK, SUMMARY_FILE, Headline, Summary, optional_parts


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
        return next((name for name in plugins.names("benchmarks") if name in lower), lower)

    @property
    def kind(self) -> type[Benchmark[Any]]:
        """The benchmark itself, for its tables and labels; the base class where it is not installed."""
        kind: type[Benchmark[Any]] = plugins.load_all("benchmarks").get(self.family, Benchmark)
        return kind

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
        return ", ".join(optional_parts(self.summary.system_facts, there=False))

    @property
    def title(self) -> str:
        """The name, with what its numbers must not be read without."""
        return self.summary.label(self.name)


def load_runs(folders: Sequence[Path]) -> list[FinishedRun]:
    """Read runs; fails if a folder is not that of a finished run, with the file and what is wrong with it."""
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
        summary = Summary.model_validate_json(read_text(folder / SUMMARY_FILE))
    except ValidationError as error:
        raise DeltaMemError(f"{folder / SUMMARY_FILE}: not the summary of a benchmark run: {first_error(error)}") from error
    questions = read_records(folder / "questions.jsonl", QuestionRecord, lambda record: record.key)
    scored = questions.keys() if summary.questions.keys is None else summary.questions.keys
    kept = [questions[key] for key in scored if key in questions]
    passages, points = folder / "passages.jsonl", folder / "points.jsonl"
    found = read_records(passages, PassageRecord, lambda record: record.id) if passages.is_file() else {}
    checked = read_records(points, PointRecord, lambda record: record.key) if points.is_file() else {}
    return FinishedRun(name, folder, summary, kept, len(questions), found, list(checked.values()))


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ, as text: the name of a folder may be any bytes."""
    for length in range(1, max((len(folder.parts) for folder in folders), default=1) + 1):
        ends = ["/".join(folder.parts[-length:]) for folder in folders]
        names = [end.encode("utf-8", "replace").decode("utf-8") for end in ends]
        if len(set(names)) == len(names):
            return names
    return [str(number) for number in range(1, len(folders) + 1)]


# Keys of the configuration that decide what is measured, apart from the system
_CONFIG_KEYS = (
    *("answer.prompt", "answer.runs", "answer.temperature", "answer.max_tokens", "answer.extra_body"),
    *("judge.temperature", "judge.max_tokens", "judge.attempts", "judge.runs", "judge.extra_body"),
    *("categories", "conversations", "users", "limit", "seed", "resamples"),
)
# Keys of the protocol that follow from what kind of system is measured
_OF_THE_SYSTEM = ("stores_per_conversation", "k_each_store", "divergences")
_OPTIONAL = ("prompt ", "manager ", "version of ")  # Beginnings of conditions that not every system has
_UNKNOWN = (" endpoint", " served model")  # Ends of those that are unknown where nothing had to be asked any more

_FACTOR = 2.0  # Contexts or passages that differ by more than this are worth a warning
_LONGEST_VALUE = 90
_SHA256 = re.compile(r"\w{64}")  # Of which the beginning is shown

_LABELS = {
    "lenient": "lenient judge",
    "strict": "strict judge",
    "correct_qa_ratio(all)": "answers judged correct",
    "accuracy_final": "accuracy of the final answer",
}


def differences(runs: Sequence[FinishedRun]) -> list[str]:
    """Where runs of one benchmark differ in something that decides their scores, other than the memory system.

    One sentence for each condition, what weighs most first: how much the answerer is shown, data, models and what served
    them, embedder, protocol, prompts, settings, code and packages.
    """
    found, of_runs = list(_amounts(runs)), [dict(_conditions(run)) for run in runs]
    for name in dict.fromkeys(name for of_run in of_runs for name in of_run):
        by_value: dict[str, list[str]] = {}
        for run, of_run in zip(runs, of_runs, strict=True):
            value = of_run.get(name)
            if value is not None or not (name.startswith(_OPTIONAL) or name.endswith(_UNKNOWN)):
                text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
                by_value.setdefault(text[:12] if _SHA256.fullmatch(text) else text, []).append(run.name)
        if len(by_value) > 1:
            values = (f"{shortened(value, _LONGEST_VALUE, '…')} ({', '.join(of)})" for value, of in by_value.items())
            found.append(f"{name} differs: {'; '.join(values)}")
    return found


def _conditions(run: FinishedRun) -> Iterator[tuple[str, Any]]:
    summary, making = run.summary, run.summary.making
    yield "benchmark", summary.benchmark
    yield "data sha256", summary.data.get("sha256")
    audit = summary.data.get("audit") or {}
    yield "audit sha256", audit.get("sha256") if audit.get("applied") else None
    for part in ("answer", "judge", "manager"):
        if part != "manager" or summary.cost.get("ingest", {}).get("calls"):
            yield f"{part} model", making.models.get(part)
            yield f"{part} endpoint", _setting(making.fingerprint, f"endpoints.{part}")
            yield f"{part} served model", _setting(making.fingerprint, f"served.{part}")
    yield "embedder", making.models.get("embedder")
    for name, value in summary.protocol.items():
        if name not in _OF_THE_SYSTEM:
            yield f"protocol {name}", value
    for name, prompt in making.prompt_hashes.items():
        yield f"prompt {name}", prompt  # a system may have prompts of its own; answerers and judges share theirs
    for key in _CONFIG_KEYS:
        yield key, _setting(making.config, key)
    yield "commit", making.fingerprint.get("commit") or making.git_commit
    for name, version in (making.versions | making.fingerprint.get("versions", {})).items():
        yield f"version of {name}", version


def _setting(config: Mapping[str, Any], key: str) -> Any:
    """The value of a key with dots; None if there is none."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _amounts(runs: Sequence[FinishedRun]) -> Iterator[str]:
    """By how much contexts, and passages, differ; whoever shows more has the easier task."""
    contexts = {run.name: run.headline.context_tokens for run in runs if run.summary.system != CLOSED_BOOK}
    passages = {run.name: run.summary.passages["tokens_each"] for run in runs if run.summary.passages}
    equal = "compare at equal budgets (budgets=[1024,2048,4096], of Momento equal k) before you compare scores"
    longer = "the same recall at k means more text for the longer passages"
    for what, amounts, meaning in (("context tokens an answer", contexts, equal), ("tokens a passage", passages, longer)):
        known = sorted(((amount, name) for name, amount in amounts.items() if amount), key=lambda one: one[0])
        if known and (factor := known[-1][0] / known[0][0]) > _FACTOR:
            listed = ", ".join(f"{name} {amount:,.0f}" for amount, name in known)
            yield f"{what} differ by a factor of {factor:.1f}: {listed}; {meaning}"


def warnings_of(run: FinishedRun) -> Iterator[str]:
    """What must be known of one run before its scores are read."""
    summary, scored = run.summary, sum(run.summary.questions.by_category.values())
    yield from summary.warnings
    if summary.scores and summary.data.get("published") is None:
        yield "it is not known whether the data is the published file; the scores do not belong beside published ones"
    if run.lacks and not summary.system_facts.get("warnings"):
        yield f"{summary.system} ran without {run.lacks}"
    if not run.paired:
        yield (
            f"the folder holds {run.recorded:,} questions, the scores are of {scored:,}, and the summary does not say of "
            "which: the run is not in the table of differences"
        )
    if summary.mode == "offline":
        yield "offline, no model answered; lexical scores are those of the answerer that copies a sentence"
    if stages := summary.failures.by_stage:
        listed = ", ".join(f"{count:,} {stage}" for stage, count in stages.items())
        yield f"{sum(stages.values()):,} failures ({listed}); they count as wrong, except in scores named (valid)"
    if unreadable := summary.sessions.get("unreadable"):
        yield f"{unreadable:,} sessions could not be understood by the system"
    if late := summary.sessions.get("late"):
        yield f"{late:,} sessions were ingested after later ones"
    answered = [record for record in run.questions if record.answers]
    if cut := sum(record.shown < len(record.retrieved) for record in answered):
        yield f"at {cut:,} of {len(answered):,} questions the budget of context tokens left out passages that were found"
    if lost := summary.cost.get("ingest", {}).get("sessions_lost"):
        yield f"what {lost:,.0f} sessions cost is not known, because the run was killed before it was noted"


@dataclass(frozen=True, slots=True)
class Card:
    """What is said of a run before anything else, on the page and on the terminal."""

    run: FinishedRun
    number: int  # Position among the runs, which decides mark and colour
    closed_book: Interval | None  # The same score without any memory, of a run that is compared
    warnings: list[str]  # Without those that all runs share

    @property
    def metric(self) -> str:
        """What the score is."""
        return metric_label(self.run.headline.metric)

    @property
    def percent(self) -> str:
        """The score, or why there is none."""
        if (score := self.run.headline.shown) is not None:
            return f"{100 * score.estimate:.1f}"
        return "withheld" if self.run.headline.withheld else "no score"

    @property
    def facts(self) -> dict[str, str]:
        """What the score must not be read without."""
        summary, headline, passages = self.run.summary, self.run.headline, self.run.summary.passages
        models, error, own = summary.making.models, headline.judge_error or {}, summary.system_facts
        facts = {
            "questions": f"{'all' if headline.n == headline.of else f'{headline.n:,} of'} {headline.of:,}",
            "failures": f"{headline.failures:,}",
            "silent answers": f"{headline.silent:,}",
            "context tokens": "" if headline.context_tokens is None else f"{headline.context_tokens:,.0f}",
            "false accepts": _rate(error.get("false_accept")),
            "false rejects": _rate(error.get("false_reject")),
            "passages": f"{passages['per_question']:.0f} of {passages['tokens_each']:,.0f} tokens" if passages else "",
            "turns a passage": f"{passages['sources_each']:.1f}" if passages and passages["sources_each"] else "",
            "manager": models.get("manager") if summary.cost.get("ingest", {}).get("calls") else "",
            "answers by": models.get("answer"),
            "judged by": models.get("judge"),
            "mode": ": ".join(str(own[name]) for name in ("mode", "mode_reason") if name in own),
            "safeguards": str(own.get("safeguards", "")),
            "package": str(own.get("package", "")),
        }
        return {name: value for name, value in facts.items() if value}


def cards(runs: Sequence[FinishedRun]) -> tuple[list[Card], list[str]]:
    """The cards of the runs of one benchmark, and the warnings that all of several runs share."""
    warnings = [list(dict.fromkeys(warnings_of(run))) for run in runs]
    shared = [one for one in warnings[0] if len(runs) > 1 and all(one in of_run for of_run in warnings)]
    closed = {run.headline.metric: run.headline.shown for run in runs if run.summary.system == CLOSED_BOOK}
    found = []
    for number, run in enumerate(runs):
        without = closed.get(run.headline.metric) if run.summary.system != CLOSED_BOOK else None
        found.append(Card(run, number, without, [one for one in warnings[number] if one not in shared]))
    return found, shared


def metric_label(metric: str | None) -> str:
    """A score by a name that needs no table."""
    return _LABELS.get(metric or "", metric or "")


def bounds(interval: Interval | None) -> str:
    """An interval in percent; empty if there is none."""
    return "" if interval is None else f"{100 * interval.low:.1f}\u2013{100 * interval.high:.1f}"


def _rate(rate: Interval | None) -> str:
    return "" if rate is None else f"{100 * rate.estimate:.0f}% ({100 * rate.low:.0f}\u2013{100 * rate.high:.0f})"
