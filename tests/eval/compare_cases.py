"""Small finished runs for the tests of `eval.compare`, made with the functions that the benchmarks use."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf

from deltamem.config import CONFIGS
from deltamem.runs import RecordFile
from eval.benchmark import Report, Results
from eval.config import BenchmarkConfig
from eval.records import AnswerRecord, Cost, Found, IngestRecord, PassageRecord, QuestionRecord, Verdict
from eval.scores import answer_value, category_scores, recall_value, verdict_value
from eval.summarise import build_summary
from eval.summary import write_summary
from eval.systems.base import Passage

ORDER = ("single-hop", "multi-hop", "open-domain", "temporal", "adversarial")
POOLED = ORDER[:4]


def benchmark_config(out: Path, **changes: Any) -> BenchmarkConfig:
    """The configuration of ``configs/base/benchmark.yaml``; keys with dots."""
    config = OmegaConf.load(CONFIGS / "base" / "benchmark.yaml")
    for key, value in {"out": str(out), **changes}.items():
        OmegaConf.update(config, key, value)
    return BenchmarkConfig.model_validate(OmegaConf.to_container(config, resolve=True))


def verdict(label: str | None, reason: str = "because") -> Verdict:
    cost = Cost(calls=1, prompt_tokens=50, completion_tokens=5, seconds=0.2)
    return Verdict(label=label, reason=reason, error=None if label else "the judge wrote prose", cost=cost)


def question(
    key: str,
    category: str,
    *,
    lenient: str | None = "correct",
    strict: str | None = "wrong",
    f1: float = 0.5,
    text: str | None = "an answer",
    rank: int | None = 1,
    passages: Sequence[str] = (),
    asked: str = "What?",
) -> QuestionRecord:
    """A question of the conversation before the slash of its key."""
    adversarial, error = category == "adversarial", "the endpoint is down" if text is None else None
    scores = {"abstention": f1} if adversarial else {"set_f1": f1, "locomo_f1": f1 / 2, "bleu1": f1}
    judges = {} if adversarial else {"lenient": lenient, "strict": strict}
    tokens = 0 if adversarial or error else 100
    answer = AnswerRecord(
        text=text,
        scores=dict.fromkeys(scores, 0.0) if error else scores,
        verdicts={name: Verdict(label=None, error=error) if error else verdict(label) for name, label in judges.items()},
        error=error,
        cost=Cost(calls=2 if error else 1, prompt_tokens=tokens, completion_tokens=tokens // 10, seconds=1.0),
    )
    return QuestionRecord(
        key=key,
        group=key.split("/")[0],
        category=category,
        question=asked,
        gold="gold",
        evidence=("D1:1",),
        ranks=(rank,),
        retrieved=tuple(Found(passage=passage, similarity=0.5) for passage in passages),
        shown=len(passages),
        context_tokens=1000,
        search_seconds=0.01,
        answers=(answer,),
    )


def records(right: Container[int] = range(20)) -> list[QuestionRecord]:
    """Twenty questions of four groups; the lenient judge accepts those in `right`, the strict one the even ones of them."""
    return [
        question(
            f"c{number % 4}/{number}",
            ORDER[number % 5],
            lenient="correct" if number in right else "wrong",
            strict="correct" if number in right and number % 2 == 0 else "wrong",
        )
        for number in range(20)
    ]


def ingest(
    store: str, number: int, *, outcome: Any = "applied", memories: Sequence[str] | None = ("one", "two")
) -> IngestRecord:
    named: dict[str, Any] = {"store": store, "owner": "Ana", "session": f"S{number}", "number": number, "outcome": outcome}
    if outcome == "failed":
        return IngestRecord(**named, reason="broke")
    return IngestRecord(
        **named,
        memories=None if memories is None else tuple(memories),
        operations={"ADD": len(memories or ())},
        cost=Cost(calls=2, prompt_tokens=300, completion_tokens=30, searches=1, seconds=2.0),
    )


def locomo_summary(
    config: BenchmarkConfig, questions: Sequence[QuestionRecord], sessions: Sequence[IngestRecord], **changes: Any
) -> dict[str, Any]:
    """The summary of a run; `changes` are arguments of `build_summary` or fields of `Report`."""
    values = {judge: verdict_value(judge) for judge in ("lenient", "strict")} | {"recall@5": recall_value(5)}
    values |= {name: answer_value(name) for name in ("set_f1", "locomo_f1", "bleu1", "abstention")}
    arguments: dict[str, Any] = {
        "benchmark": "LoCoMo",
        "protocol": {"k": 20, "pooled": list(POOLED)},
        "data": {"file": "locomo10.json", "sha256": "ab" * 32, "published": True, "questions": len(questions)},
        "scores": {
            name: category_scores(questions, value, pooled=POOLED, order=ORDER, resamples=100)
            for name, value in values.items()
        },
        "system_facts": {},
        "usage": {},
        "probes": [],
        "prompt_hashes": {"judge_lenient": "cd" * 32},
        "seconds": {"ingest": 3.0, "questions": 4.0},
        "problems": [],
        "order": ORDER,
        "headline": ("lenient", "set_f1"),
    } | changes
    report = Report(**{field.name: arguments.pop(field.name) for field in fields(Report) if field.name in arguments})
    facts, found = arguments.pop("system_facts"), {}
    system: Any = SimpleNamespace(facts=lambda: facts)
    results = Results(system, questions, sessions, arguments.pop("points", ()), found)
    return build_summary(config, report, results, **arguments).model_dump(mode="json")


def write_run(
    folder: Path,
    questions: Sequence[QuestionRecord],
    *,
    sessions: Sequence[IngestRecord] = (),
    passages: Sequence[Passage] = (),
    config: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """A finished LoCoMo run; for `changes` see `locomo_summary`."""
    settings = {"answer.model": "answerer", "base_url": "http://localhost:1/v1", "with_time": "hour", **(config or {})}
    summary = locomo_summary(benchmark_config(folder, **settings), questions, sessions, **changes)
    add(folder, questions)
    with RecordFile(folder / "passages.jsonl", PassageRecord, lambda record: record.id) as found:
        for passage in passages:
            found.add(PassageRecord.of(passage, "store"))
    write_summary(folder, summary)
    return folder


def add(folder: Path, questions: Sequence[QuestionRecord]) -> None:
    """Records that the summary does not know of, once there is one."""
    with RecordFile(folder / "questions.jsonl", QuestionRecord, lambda record: record.key) as file:
        for record in questions:
            file.add(record)


def edited(folder: Path, **changes: Any) -> Path:
    """A run whose summary says something else; keys with two underscores for each dot."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    for key, value in changes.items():
        *way, last = key.split("__")
        place = summary
        for name in way:
            place = place.setdefault(name, {})
        place[last] = value
    path.write_text(json.dumps(summary), encoding="utf-8")
    return folder


def interval(estimate: float, count: int = 100) -> dict[str, float]:
    """A score as the summary has it."""
    low, high = max(0.0, estimate - 0.03), min(1.0, estimate + 0.03)
    return {"estimate": estimate, "low": low, "high": high, "count": count, "groups": 10}


def headline(estimate: float = 0.7, **changes: Any) -> dict[str, Any]:
    """A headline as the summary has it."""
    error = {"false_accept": interval(0.12), "false_reject": interval(0.04)}
    made = {"metric": "lenient", "score": interval(estimate), "withheld": None, "n": 100, "of": 100, "failures": 0}
    return made | {"silent": 0, "context_tokens": 2100.0, "judge_error": error} | changes
