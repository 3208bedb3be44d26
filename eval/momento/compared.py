"""A run of Momento as records and summary of other benchmarks: a task is a question, and each trial an answer to it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from deltamem.ingest import estimate_tokens
from deltamem.runs import read_records
from eval.headline import MOST_FAILURES
from eval.momento.scores import pass_all, pass_at
from eval.momento.trial import TrialRecord
from eval.records import AnswerRecord, QuestionRecord
from eval.summary import ALL, SUMMARY_FILE, Value, answer_value, counts_by_category, metric_scores

TRIALS_FILE = "trials.jsonl"
SCORES = ("passed", "state", "coverage", "word_coverage", "tool_recall", "tool_recall_ordered")


def as_questions(trials: Iterable[TrialRecord]) -> list[QuestionRecord]:
    """A record for each task with an answer for each trial, by number of the task."""
    ordered = sorted(trials, key=lambda record: (record.task, record.trial))
    return [_question(list(of)) for _, of in groupby(ordered, lambda record: record.task)]


def _question(trials: Sequence[TrialRecord]) -> QuestionRecord:
    turns = [turn for trial in trials for turn in trial.turns]
    shown = [estimate_tokens("\n".join(turn.recalled.texts)) for turn in turns]
    return QuestionRecord(
        key=str(trials[0].task),
        group=str(trials[0].task),
        category=trials[0].kind or "tasks",
        question=turns[0].said if turns else f"task {trials[0].task}",
        context_tokens=round(sum(shown) / len(shown)) if shown else 0,
        answers=tuple(
            AnswerRecord(
                text=None if trial.scores is None else "\n".join(turn.reply for turn in trial.turns),
                scores={name: 0.0 if trial.scores is None else float(getattr(trial.scores, name)) for name in SCORES},
                error=trial.error,
                cost=trial.agent_cost,
                made=trial.made,
            )
            for trial in trials
        ),
        made=trials[0].made,
    )


def interval_scores(questions: Sequence[QuestionRecord], *, resamples: int, seed: int) -> dict[str, Any]:
    """Every score by kind of task and over all, with its interval over tasks; see `eval.summary.metric_scores`.

    Trials that failed count as nothing; ``passed(valid)`` and its like leave them out.
    """
    values: dict[str, Value] = {name: answer_value(name) for name in SCORES}
    for k in range(2, 1 + min((len(record.answers) for record in questions), default=0)):
        values |= {f"pass@{k}": _of_trials(pass_at, k), f"pass^{k}": _of_trials(pass_all, k)}
    return metric_scores(questions, values, resamples=resamples, seed=seed)


def _of_trials(chance: Any, k: int) -> Value:
    """Pass@k or Pass^k of a task."""
    return lambda record: chance(k, sum(answer.scores["passed"] == 1 for answer in record.answers), len(record.answers))


def as_run(folder: Path) -> tuple[dict[str, Any], list[QuestionRecord]]:
    """The summary of a run and its records, in the form in which other benchmarks write them.

    Raises:
        DeltaMemError: If the records cannot be read.
        KeyError: If the summary is not one of Momento.
    """
    summary = json.loads((folder / SUMMARY_FILE).read_bytes())
    read = read_records(folder / TRIALS_FILE, TrialRecord, lambda record: record.key)
    data, config, counted = summary["data"], summary["config"], summary["scores"]
    trials = [record for record in read.values() if record.trial <= config["trials"]]
    questions = as_questions(trials)[: data["chosen"]]  # an earlier call may have run more of either
    intervals, done = summary["intervals"], len(questions)
    withheld = ""
    if summary["partial"]:
        withheld = f"only {counted['trials']:,} of {data['chosen'] * config['trials']:,} trials are done"
    elif counted["failed"] > MOST_FAILURES * counted["trials"]:
        withheld = f"{counted['failed']:,} of {counted['trials']:,} trials failed"
    tokens = [record.context_tokens for record in questions]
    context = sum(tokens) / done if done else None
    return {
        "benchmark": "Momento",
        "version": data["file"],
        "system": summary["system"],
        "mode": "scripted" if summary["agent"] == "scripted" else "answered",
        "questions": {
            "total": data["tasks"],
            "answered": sum(any(answer.text is not None for answer in record.answers) for record in questions),
            "failed": sum(not record.complete for record in questions),
            "by_category": counts_by_category(questions),
        },
        "scores": intervals,
        "headline": {
            "metric": "passed",
            "score": intervals.get("passed", {}).get(ALL),
            "withheld": withheld or None,
            "n": done,
            "of": data["tasks"],
            "failures": counted["failed"],
            "context_tokens": context,
        },
        "withheld": dict.fromkeys((name for name in intervals if not name.endswith("(valid)")), withheld)
        if withheld
        else {},
        "warnings": summary["warnings"],
        "partial": {"done": done, "questions": data["chosen"]} if summary["partial"] else None,
        "cost": summary["cost"],
        "failures": {"by_stage": {"trials": counted["failed"]} if counted["failed"] else {}},
        "protocol": {name: config[name] for name in ("trials", "turns", "rounds", "k", "context_tokens", "database")}
        | {"agent": summary["agent"], "user": summary["user"]},
        "data": {**data, "published": False if summary["agent"] == "scripted" else None},
        "making": {
            "config": config,
            "prompt_hashes": summary["prompts"],
            "models": {
                part: summary["agent"] if part == "answer" else config.get(part, {}).get(key)
                for part, key in (("embedder", "name"), ("manager", "model"), ("answer", "model"), ("judge", "model"))
            },
            "versions": summary["versions"],
            "fingerprint": summary["fingerprint"],
        },
        "seconds": {"run": summary["seconds"]},
    }, questions
