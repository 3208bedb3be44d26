"""Puts the summary of a run together from its records and the report of its benchmark."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic_core import to_jsonable_python

from deltamem.runs import config_hash, git_commit, versions
from deltamem.window import estimate_tokens
from eval.benchmark import Report, Results
from eval.config import BenchmarkConfig
from eval.headline import answer_scores, headline, run_warnings, withheld_scores
from eval.records import AnswerRecord, Cost, IngestRecord, PointRecord, QuestionRecord, Verdict
from eval.scores import counts_by_category
from eval.summary import Summary

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
) -> Summary:
    """Put the summary of a run together; all records count, those of earlier runs too, `usage` is of this one.

    `budgets` are further budgets of context tokens with the mean of the tokens
    that were shown and the report on the answers; `partial` is how much of an unfinished run is done; `probes` are how
    judges did on the calibration items, `swapped` on answers to other questions of the run; `fingerprint` is what the run
    was made with beyond its configuration.

    No `None` stands for a zero and no zero for a failure. ``cost.ingest.sessions_lost`` counts the sessions whose cost
    nobody knows (`IngestRecord.cost_lost`): they are in no sum, latency or ratio of costs.
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
        | config.cutting()
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
    return Summary.model_validate(to_jsonable_python(summary | dict(report.more), fallback=np.generic.item))


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
