"""The summary of a run: scores with counts and intervals, costs, warnings."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import to_jsonable_python
from rich import box
from rich.markup import escape
from rich.table import Table

from deltamem.intervals import RESAMPLES, group_interval, percent_text
from deltamem.runs import atomic_writer, config_hash, git_commit, versions
from deltamem.window import estimate_tokens
from eval.benchmark import Report, Results
from eval.compare.layout import ALL as ALL
from eval.config import BenchmarkConfig
from eval.headline import answer_scores, headline, run_warnings, withheld_scores
from eval.metrics import recall_at, reciprocal_rank
from eval.records import AnswerRecord, Cost, IngestRecord, PointRecord, QuestionRecord, Verdict

Value = Callable[[QuestionRecord], float | None]


def judge_runs(verdicts: Mapping[str, Verdict], judge: str) -> list[Verdict]:
    """The verdicts of all runs of a judge."""
    return [verdict for name, verdict in verdicts.items() if name.partition("#")[0] == judge]


@dataclass(frozen=True, slots=True)
class AskedValue:
    """What a question is worth, from parts that may have failed.

    Attributes:
        parts: The worth of each part, None if it failed, and whether that was the answerer's own doing.
        together: Of the worth of several parts, None of too few; the mean.
    """

    parts: Callable[[QuestionRecord], Sequence[tuple[float | None, bool]]]
    together: Callable[[Sequence[float]], float | None] = lambda parts: sum(parts) / len(parts) if parts else None

    def __call__(self, record: QuestionRecord) -> float | None:
        """Of all parts, those that failed count as 0; None if there are none."""
        return self.together([worth or 0.0 for worth, _ in self.parts(record)])

    def valid(self, record: QuestionRecord) -> float | None:
        """Of the parts that did not fail."""
        return self.together([worth for worth, _ in self.parts(record) if worth is not None])

    def failed(self, record: QuestionRecord) -> bool:
        """Whether a part failed."""
        return any(worth is None for worth, _ in self.parts(record))

    def lost(self, record: QuestionRecord) -> bool:
        """Whether a part failed through no fault of the answerer: by the endpoint, the judge, the memory."""
        return any(worth is None and not silent for worth, silent in self.parts(record))


def verdict_value(judge: str | None = None) -> AskedValue:
    """Share of the answers that a judge, or each question's own, found right, over answer runs and runs of the judge."""
    return AskedValue(
        lambda record: [
            (verdict.worth, answer.silent)
            for answer in record.answers
            for verdict in (answer.verdicts.values() if judge is None else judge_runs(answer.verdicts, judge))
        ]
    )


def answer_value(score: str) -> AskedValue:
    """Mean of a score that needs no judge over the answer runs."""
    return AskedValue(
        lambda record: [
            (None if answer.error is not None else answer.scores[score], answer.silent)
            for answer in record.answers
            if score in answer.scores
        ]
    )


def search_value(worth: Callable[[QuestionRecord], float | None]) -> AskedValue:
    """What a search was worth, failed where the question could not be searched for; None for questions without evidence."""

    def parts(record: QuestionRecord) -> list[tuple[float | None, bool]]:
        found = worth(record)
        return [] if found is None else [(None if record.error is not None else found, False)]

    return AskedValue(parts)


def recall_value(k: int) -> AskedValue:
    """Share of the evidence among the first `k` passages."""
    return search_value(lambda record: recall_at(record.ranks, k) if record.ranks else None)


reciprocal_rank_value = search_value(lambda record: reciprocal_rank(record.ranks) if record.ranks else None)
"""One over the rank of the first evidence that was found."""

GOLD_WORDS = "gold_words_shown"
"""Score of retrieval without which recall says little: keywords of many turns are recalled and hardly tell anything."""

gold_words_value = search_value(lambda record: record.gold_words_shown)
"""Share of the words of the evidence that all passages found show."""


def retrieval_values(cutoffs: Iterable[int]) -> Mapping[str, Value]:
    """Recall at each cutoff, the mean reciprocal rank, and how much of the evidence is shown."""
    recall = {f"recall@{k}": recall_value(k) for k in sorted(set(cutoffs))}
    return recall | {"mrr": reciprocal_rank_value, GOLD_WORDS: gold_words_value}


def category_scores(
    questions: Sequence[QuestionRecord],
    value: Value,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    pooled: Collection[str] | None = None,
    order: Sequence[str] = (),
) -> dict[str, dict[str, float | int] | None]:
    """Mean by category and over all questions, each with a 95% interval.

    Groups are conversations, users or personas; see `deltamem.intervals.group_interval` for the kind of the interval.
    Categories that are not `pooled` do not count for ``all``; `order` is that of the benchmark, others follow.

    Returns:
        A `deltamem.intervals.Interval` as a dictionary by category and for ``all``, with ``failed`` if something failed
        through no fault of the answerer: at how many of the questions; None where no question has a value.
    """
    valued = [(record, worth) for record in questions if (worth := value(record)) is not None]
    members = {name: [pair for pair in valued if pair[0].category == name] for name in counts_by_category(questions, order)}
    members[ALL] = [pair for pair in valued if pooled is None or pair[0].category in pooled]
    scores: dict[str, dict[str, float | int] | None] = {}
    for name, pairs in members.items():
        worths, groups = [worth for _, worth in pairs], [record.group for record, _ in pairs]
        interval = group_interval(worths, groups, resamples=resamples, seed=seed)
        failed = sum(value.lost(record) for record, _ in pairs) if isinstance(value, AskedValue) else 0
        scores[name] = None if interval is None else interval.as_dict() | {"failed": failed}
    return scores


def metric_scores(questions: Sequence[QuestionRecord], values: Mapping[str, Value], **options: Any) -> dict[str, Any]:
    """`category_scores` of several metrics by name; a metric that no question has a value of is left out.

    Failures count as 0; where something failed, ``<name>(valid)`` leaves them out.
    """
    scores = {}
    for name, value in values.items():
        scores[name] = category_scores(questions, value, **options)
        if isinstance(value, AskedValue) and any(map(value.failed, questions)):
            scores[f"{name}(valid)"] = category_scores(questions, value.valid, **options)
    return {name: by_category for name, by_category in scores.items() if any(by_category.values())}


def drawn_over(groups: int, unit: str) -> str:
    """What the intervals of a run are of, whose questions are of so many groups; see `category_scores`."""
    return f"over questions, all of one {unit}" if groups == 1 else f"bootstrap over {unit}s"


def counts_by_category(questions: Iterable[QuestionRecord], order: Sequence[str] = ()) -> dict[str, int]:
    """How many questions each category has."""
    counts = Counter(record.category for record in questions)
    return {name: counts[name] for name in (*order, *counts) if counts[name]}


SUMMARY_FILE = "summary.json"
_PACKAGES = ("torch", "transformers", "sentence-transformers", "numpy", "openai", "nltk", "mem0ai", "langmem")
_SHOWN_FAILURES = 5  # Failures of each stage that the summary quotes; the records hold them all


def build_summary(
    config: BenchmarkConfig,
    report: Report,
    results: Results,
    *,
    usage: Mapping[str, Any],
    probes: Sequence[Mapping[str, Any]],
    swapped: Sequence[Mapping[str, Any]] = (),
    prompt_hashes: Mapping[str, str],
    seconds: Mapping[str, float],
    budgets: Sequence[tuple[int, float, Report]] = (),
    partial: Mapping[str, int] | None = None,
    warnings: Sequence[str] = (),
    fingerprint: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Put the summary of a run together; all records count, those of earlier runs too, `usage` is of this one.

    `budgets` are further budgets of context tokens with the mean of the tokens
    that were shown and the report on the answers; `partial` is how much of an unfinished run is done; `probes` are how
    judges did on the calibration items, `swapped` on answers to other questions of the run; `fingerprint` is what the run
    was made with beyond its configuration.

    Returns:
        JSON values; no `None` stands for a zero and no zero for a failure. ``cost.ingest.sessions_lost`` counts the sessions
        whose cost nobody knows (`IngestRecord.cost_lost`): they are in no sum, latency or ratio of costs.
    """
    questions, sessions, points, system_facts = results.questions, results.sessions, results.points, results.system.facts()
    answers = [answer for record in questions for answer in record.answers]
    at_budgets = [answer for record in questions for answer in record.at_budgets]
    others = [record.verdict for record in points if record.verdict is not None]
    judged = [verdict for answer in answers for verdict in answer.verdicts.values()] + others
    read = [record for record in sessions if record.outcome != "failed"]
    priced = [record for record in read if not record.cost_lost]
    written = sum(len(record.memories or ()) for record in priced)
    searches = [record.search_seconds for record in questions if record.error is None]
    searches += [record.search_seconds for record in points if record.searched]
    records: list[QuestionRecord | IngestRecord | AnswerRecord | Verdict] = [*questions, *sessions, *answers, *judged]
    settings = config.reported()
    other = ", not the published file" if report.data.get("published") is False else ""
    report = dataclasses.replace(report, benchmark=report.benchmark + other)
    total = report.data.get("questions", len(questions))
    categories = report.data.get("by_category", {})
    pooled = sum(categories.get(name, 0) for name in report.protocol.get("pooled", ())) or total
    tokens = [record.context_tokens for record in questions if record.answers]
    context = None if not tokens else {"mean": round(float(np.mean(tokens)), 1)} | _percentiles(tokens)
    outcomes = [record.outcome for record in sessions]
    ingested = {
        "total": len(sessions),
        **{outcome: outcomes.count(outcome) for outcome in ("applied", "unreadable", "failed")},
        "late": sum(record.late for record in sessions),
    }
    state: dict[str, Any] = {"sessions": ingested, "probes": [*probes, *swapped], "partial": partial}
    withheld = withheld_scores(config, report, **state)
    summary = {
        "benchmark": report.benchmark,
        "version": _version(report.benchmark, report.data),
        "system": config.system,
        "mode": "judged" if config.judged else "answered" if config.answer.answerer == "llm" else "offline",
        "questions": {
            "total": total,
            "asked": sum(bool(record.answers) for record in questions),
            "answered": sum(any(answer.text is not None for answer in record.answers) for record in questions),
            "failed": sum(not record.complete for record in questions),
            "by_category": counts_by_category(questions, report.order),
            "groups": len({record.group for record in questions}),
            # Those that the scores are of, where the folder may hold more of them, of an earlier and larger sample.
            "keys": None if len(questions) == total else [record.key for record in questions],
        },
        "headline": headline(report, questions, total=pooled, context_tokens=context, probes=probes, withheld=withheld),
        "scores": report.scores,
        "withheld": withheld,
        "warnings": [*run_warnings(config, report, questions, system_facts), *report.warnings, *warnings],
        "partial": partial,
        "budgets": [
            {
                "budget": budget,
                "context_tokens": round(tokens, 1),
                "scores": answer_scores(at),
                "withheld": withheld_scores(config, at, **state),
            }
            for budget, tokens, at in budgets
        ],
        "cost": {
            "ingest": _total(record.cost for record in priced) | {"sessions_lost": len(read) - len(priced)},
            "search": {"searches": len(searches), "seconds": round(sum(searches), 4)},
            "answer": _total(answer.cost for answer in answers),
            "budgets": _total(cost for answer in at_budgets for cost in answer.costs),
            "judge": _total(verdict.cost for verdict in judged),
        }
        | {part: _total([cost]) for part, cost in report.costs.items()},
        "this_run": usage,
        "latency": {
            "ingest": _spread(_asked(record.cost for record in priced)),
            "search": _spread(searches),
            "answer": _spread(_asked(answer.cost for answer in answers if answer.error is None)),
            "judge": _spread(_asked(verdict.cost for verdict in judged if verdict.error is None)),
        },
        "context_tokens": context,
        "passages": _passages(results),
        "memories": _memories(read),
        # Searches that the system made while it read, by memory that it wrote (Table 7 of the paper)
        "queries_per_memory": sum(record.cost.searches for record in priced) / written if written else None,
        "sessions": ingested,
        "failures": _failures(questions, sessions, points, report.problems),
        "probes": probes,
        "swapped": swapped,
        "protocol": {
            "name": config.protocol,
            "divergences": config.departures(),
            "context_tokens": config.answer.context_tokens,
            "with_time": config.with_time,
        }
        | dict(report.protocol),
        "data": report.data,
        "system_facts": system_facts,
        "making": {
            "git_commit": git_commit(),
            "config": settings,
            "config_sha256": config_hash(settings),
            "prompt_hashes": prompt_hashes,
            "models": {
                "embedder": config.embedder.name,
                "manager": config.manager.model,
                "answer": config.answer.model if config.answer.answerer == "llm" else config.answer.answerer,
                "judge": config.judge.model if config.judged else None,
            },
            "seeds": {"sampling": config.seed, "bootstrap": config.seed},
            "versions": versions(_PACKAGES),
            "fingerprint": fingerprint or {},
            "made": sorted({record.made for record in records} - {""}),
        },
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
    }
    plain: dict[str, Any] = to_jsonable_python(summary | dict(report.more), fallback=np.generic.item)
    return plain


def write_summary(folder: Path, summary: Mapping[str, Any]) -> Path:
    """Write ``summary.json`` into an output folder."""
    path = folder / SUMMARY_FILE
    with atomic_writer(path) as file:
        file.write(json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def _version(benchmark: str, data: Mapping[str, Any]) -> str:
    counts = [f"{value:,} {name.replace('_', ' ')}" for name, value in data.items() if type(value) is int]
    hashes = data.get("sha256", "")
    shown = [hashes] if isinstance(hashes, str) else list(hashes.values())
    benchmark += f" (a sample: {data['sample']})" if data.get("sample") else ""
    return f"{benchmark}: {', '.join(counts)}; sha256 {' '.join(str(value)[:12] for value in shown)}"


def _total(costs: Iterable[Cost]) -> dict[str, Any]:
    total = sum(costs, Cost())
    return total.model_dump() | {"seconds": round(total.seconds, 4)}


def _asked(costs: Iterable[Cost]) -> list[float]:
    """The seconds of what was worked for: an answer out of the cache says nothing of how long a model takes."""
    return [cost.seconds for cost in costs if not 0 < cost.calls <= cost.cached]


def _spread(seconds: Sequence[float]) -> dict[str, float | int] | None:
    if not seconds:
        return None
    return {name: round(value, 4) for name, value in _percentiles(seconds).items()} | {"count": len(seconds)}


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    return dict(zip(("p50", "p95"), map(float, np.quantile(values, [0.5, 0.95])), strict=True))


def _passages(results: Results) -> dict[str, float | None] | None:
    """What answerers were shown: passages a question, estimated tokens and sources each; None if nothing was found."""
    shown = [results.found(record) for record in results.questions]
    every = [passage for found in shown for passage in found]
    if not every:
        return None
    traced = any(passage.sources for passage in every)
    return {
        "per_question": round(len(every) / len(shown), 1),
        "tokens_each": round(sum(estimate_tokens(passage.text) for passage in every) / len(every), 1),
        "sources_each": round(sum(len(passage.sources) for passage in every) / len(every), 2) if traced else None,
    }


def _memories(read: Sequence[IngestRecord]) -> dict[str, Any] | None:
    """How many memories the system wrote (added or rewrote); None for systems that extract nothing."""
    written: Counter[str] = Counter()
    operations: Counter[str] = Counter()
    for record in read:
        operations.update(record.operations)
        if record.memories is not None:
            written[record.store] += len(record.memories)
    if not written:
        return None
    counts = list(written.values())
    return {
        "written": sum(counts),
        "stores": len(counts),
        "per_store": {"mean": round(sum(counts) / len(counts), 2), "min": min(counts), "max": max(counts)},
        "operations": dict(operations),
    }


def _failures(
    questions: Sequence[QuestionRecord],
    sessions: Sequence[IngestRecord],
    points: Sequence[PointRecord],
    problems: Sequence[str],
) -> dict[str, Any]:
    """What broke, by stage. Sessions that were read but not understood are the system's own doing and not among them."""
    broken: dict[str, list[str]] = {"data": list(problems)}
    searched: list[QuestionRecord | PointRecord] = [*questions, *points]
    broken["ingest"] = [f"{record.key}: {record.reason}" for record in sessions if record.outcome == "failed"]
    broken["search"] = [f"{record.key}: {record.error}" for record in searched if record.error is not None]
    broken |= {"answer": [], "silent": [], "judge": []}
    for record in questions:
        for run, answer in enumerate(record.answers):
            name = f"{record.key}, run {run + 1}" if len(record.answers) > 1 else record.key
            if answer.error is not None:  # counted once, and not also for each of its judges
                if record.error is None:
                    broken["silent" if answer.silent else "answer"].append(f"{name}: {answer.error}")
                continue
            failed = {judge: verdict.error for judge, verdict in answer.verdicts.items() if verdict.error is not None}
            broken["judge"] += [f"{name}, {judge}: {error}" for judge, error in failed.items()]
    broken["judge"] += [
        f"{record.key}, {record.kind}: {record.verdict.error}"
        for record in points
        if record.verdict is not None and record.verdict.error is not None
    ]
    return {
        "count": sum(len(reasons) for reasons in broken.values()),
        "by_stage": {stage: len(reasons) for stage, reasons in broken.items() if reasons},
        "first": [f"{stage}: {reason}" for stage, reasons in broken.items() for reason in reasons[:_SHOWN_FAILURES]],
    }


def cost_line(summary: Mapping[str, Any]) -> str:
    """What the run came to: calls and tokens by stage over all runs, and what this one asked for."""
    named = dict.fromkeys(("ingest", "answer", "judge", "budgets", *summary["cost"]))
    stages = {stage: [summary["cost"][stage]] for stage in named if stage != "search"}
    stages["probes"] = [probe["cost"] for probe in (*summary["probes"], *summary["swapped"])]
    parts = []
    for stage, costs in stages.items():
        calls, cached, read, written = (
            sum(cost[name] for cost in costs) for name in ("calls", "cached", "prompt_tokens", "completion_tokens")
        )
        if calls:
            parts.append(f"{stage}: {calls:,} calls ({cached:,} cached), {read:,} + {written:,} tokens")
    parts += unreadable_parts(summary)
    if summary["queries_per_memory"] is not None:
        parts.append(f"{summary['queries_per_memory']:.2f} queries per memory")
    if shown := summary["context_tokens"]:
        parts.append(f"context: {shown['mean']:,.0f} tokens an answer")
    requests = sum(usage["requests"] for usage in summary["this_run"].values())
    parts.append(f"this run: {requests:,} requests, {sum(summary['seconds'].values()):.0f} s")
    return "; ".join(parts)


def unreadable_parts(summary: Mapping[str, Any]) -> Iterator[str]:
    """How many sessions the manager could not be understood about, if any."""
    if unreadable := summary["sessions"]["unreadable"]:
        yield f"{unreadable:,} of {summary['sessions']['total']:,} sessions brought no readable answer of the manager"


def probe_line(probe: Mapping[str, Any]) -> str:
    """How often a judge is wrong on answers that are known to be right or wrong."""
    failures = f", fails on {probe['errors']}" if probe["errors"] else ""
    return (
        f"{probe['judge']} judge on probes: accepts {_error_rate(probe['false_accept'])} of the wrong answers, "
        f"rejects {_error_rate(probe['false_reject'])} of the right ones{failures}"
    )


def failure_lines(summary: Mapping[str, Any]) -> list[str]:
    """What failed: how much of it in which stage, and the first of each kind."""
    failures = summary["failures"]
    named = {stage: f"in {stage}" for stage in failures["by_stage"]} | {"silent": "silent answers"}
    stages = ", ".join(f"{count:,} {named[stage]}" for stage, count in failures["by_stage"].items())
    firsts: dict[str, str] = {}
    for reason in failures["first"]:
        firsts.setdefault(reason.partition(":")[0], reason)
    head = f"{failures['count']:,} failures ({stages}); the same command tries again what can be tried; the first:"
    return [head, *firsts.values()]


def _error_rate(interval: Mapping[str, float] | None) -> str:
    return "an unknown share" if interval is None else percent_text(interval, 0, unit="%")


def score_table(
    title: str | None = None, caption: str | None = None, columns: Iterable[str] = (), *, corner: str = ""
) -> Table:
    """A table of scores with its first column and columns of numbers, in the style of all benchmarks."""
    shown = title and escape(title)  # the name of a sample holds brackets: conversations=[conv-26]
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, title=shown, caption=caption)
    table.add_column(corner)
    for heading in columns:
        table.add_column(heading, justify="right")
    return table


def counted(summary: Mapping[str, Any]) -> dict[str, int]:
    """How many questions each category has, and all of them."""
    counts: dict[str, int] = summary["questions"]["by_category"]
    return {**counts, ALL: sum(counts.values())}


def score_cells(summary: Mapping[str, Any], metric: str, counts: Mapping[str, int], digits: int = 0) -> list[str]:
    """The `percent_cell` of a metric in each category, whose number of values the table gives elsewhere."""
    of, withheld = summary["scores"].get(metric, {}), metric in summary["withheld"]
    return [percent_cell(of.get(name), digits, count=count, withheld=withheld) for name, count in counts.items()]


def category_table(summary: Mapping[str, Any], caption: str, label: Callable[[str], str] = str) -> Table:
    """Every score in percent with its interval, a column for each category, whose name the `label` breaks into lines."""
    counts = counted(summary)
    headings = [f"{'overall' if name == ALL else label(name)}\n{count}" for name, count in counts.items()]
    view = score_table(f"{summary['version'].partition(':')[0]}, {summary['system']}: %", caption, headings)
    for metric in summary["scores"]:
        view.add_row(metric, *score_cells(summary, metric, counts))
    return view


def percent_cell(
    interval: Mapping[str, float] | None, digits: int = 0, *, count: int | None = None, withheld: bool = False
) -> str:
    """A score in percent above its interval, whose bounds have so many digits.

    Below them is its number of values where that is not the `count` that the table gives elsewhere. A score that is
    `withheld` is not shown.
    """
    if interval is None:
        return "-"
    low, high = (f"{100 * interval[bound]:.{digits}f}" for bound in ("low", "high"))
    shown = "withheld" if withheld else f"{100 * interval['estimate']:.1f}\n[dim]{low}-{high}[/dim]"
    return shown if count in (None, interval["count"]) else f"{shown}\n[dim]n={interval['count']:,}[/dim]"


def brief_table(table: Table) -> Table:
    """The same table with one line a row: without intervals and caption, which the page has.

    Counts stay where failures are left out, because they are not those of the heading.
    """
    brief = Table(box=table.box, collapse_padding=True, pad_edge=False, show_edge=False, title=table.title)
    for column in table.columns:
        brief.add_column(column.header, justify=column.justify)
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        counted = any("(valid)" in str(cell) for cell in cells)
        brief.add_row(*(_brief(cell, counted=counted) if isinstance(cell, str) else cell for cell in cells))
    return brief


def _brief(cell: str, *, counted: bool) -> str:
    """The first line of a cell, and its count."""
    first, *small = cell.split("\n")
    return " ".join([first, *(line for line in small if counted and "n=" in line)])
