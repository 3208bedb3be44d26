"""The summary of a run, in the form of the other benchmarks: a task is a question, and each trial an answer to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from deltamem.window import estimate_tokens
from eval.benchmark import Report
from eval.config import ModelSettings
from eval.records import AnswerRecord, Cost, QuestionRecord
from eval.summary import AskedValue, Value, answer_value, metric_scores
from papers.momento.calibration import JUDGE
from papers.momento.scores import pass_all, pass_at
from papers.momento.tasks import TaskSet
from papers.momento.trial import TrialRecord

SCORES = ("passed", "state", "coverage", "word_coverage", "tool_recall", "tool_recall_ordered")
SCRIPTED = "scripted"


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
                # What broke is not the agent's doing, also where it had said nothing before.
                silent=trial.error is None and bool(trial.turns) and not any(turn.reply for turn in trial.turns),
                cut=trial.cut.get("answer", 0) > 0,
                cost=trial.agent_cost,
                made=trial.made,
            )
            for trial in trials
        ),
        made=trials[0].made,
    )


def run_scores(questions: Sequence[QuestionRecord], *, resamples: int, seed: int) -> dict[str, Any]:
    """Every score by kind of task and over all, with its interval over tasks; see `eval.summary.metric_scores`.

    Tasks weigh the same. A trial that failed counts as nothing; ``passed(valid)`` and its like leave such trials out, so
    that a broken endpoint is told from a bad agent.
    """
    values: dict[str, Value] = {name: answer_value(name) for name in SCORES}
    for k in range(2, 1 + max((len(record.answers) for record in questions), default=0)):
        values |= {f"pass@{k}": _of_trials(pass_at, k), f"pass^{k}": _of_trials(pass_all, k)}
    return metric_scores(questions, values, resamples=resamples, seed=seed)


def _of_trials(chance: Callable[[int, int, int], float], k: int) -> AskedValue:
    """Pass@k or Pass^k of a task; None where it has fewer trials."""
    return AskedValue(
        answer_value("passed").parts,
        lambda passed: chance(k, round(sum(passed)), len(passed)) if len(passed) >= k else None,
    )


def run_report(
    tasks: TaskSet,
    records: Sequence[TrialRecord],
    questions: Sequence[QuestionRecord],
    *,
    chosen: int,
    published: bool | None,
    agent: str,
    user: str,
    config: Mapping[str, Any],
) -> Report:
    """What the summary says.

    Args:
        tasks: All of the data.
        records: The trials that are done, of the tasks and trials that are asked for.
        questions: The same as `as_questions` gives them.
        chosen: Number of tasks that are run.
        published: Whether they are the published ones, None if nobody knows.
        agent: The model that serves the user, or ``scripted``.
        user: The model that plays the user, or ``scripted``.
        config: The settings.
    """
    scored = [record.scores for record in records if record.scores is not None]
    scores = run_scores(questions, resamples=config["resamples"], seed=config["seed"])
    return Report(
        benchmark="Momento",
        protocol={name: config[name] for name in ("trials", "turns", "rounds", "k", "context_tokens")}
        | {
            "database": config["database"].partition(":")[0],
            "agent": agent,
            "user": user,
            "intervals": "95%, bootstrap over tasks; trials of one task do not count as more",
        },
        data=tasks.description() | {"chosen": chosen, "published": published},
        scores=scores,
        headline=("passed",),
        judged_by={name: JUDGE for name in scores if name.startswith(("passed", "pass@", "pass^", "coverage"))},
        problems=tasks.problems,
        more={
            "mode": "scripted" if agent == SCRIPTED else "answered",
            "trials": {
                "done": len(records),
                "failed": len(records) - len(scored),
                "unfinished_conversations": sum(not record.finished for record in records if record.error is None),
                "calls_of_tools": sum(len(record.actions) for record in records),
                "repeated_calls": sum(record.repeated_calls for record in records),
                "unreadable_calls": sum(record.unreadable_calls for record in records),
                "violations": sum(record.violations for record in records),
                "judged_by_words_after_a_failure": sum(one.judge_error is not None for one in scored),
                "seconds_each": round(sum(record.seconds for record in records) / len(records), 3) if records else None,
            },
        },
    )


def trial_warnings(records: Sequence[TrialRecord], settings: Mapping[str, ModelSettings]) -> Iterator[str]:
    """What a reader must know of the models of users and judges, one sentence each; of agents `run_warnings` tells.

    Args:
        records: The trials.
        settings: Of the models, by `user` and `judge`.
    """
    for part, name in (("user", "the user's model"), ("judge", "the judge")):
        if cut := sum(record.cut.get(part, 0) for record in records):
            calls = sum(getattr(record, f"{part}_cost").calls for record in records)
            limit = f"{part}.max_tokens"
            yield f"{cut:,} of {calls:,} replies of {name} were cut at {limit}={settings[part].max_tokens}; raise {limit}"
    scored = [record.scores for record in records if record.scores is not None]
    if errors := [one.judge_error for one in scored if one.judge_error is not None]:
        yield f"the judge failed in {len(errors):,} of {len(scored):,} trials, whose coverage is that by words: {errors[0]}"


def calls_line(trials: Mapping[str, Any]) -> str:
    """How many tools were called, by the ``trials`` of a summary."""
    unreadable = f", {trials['unreadable_calls']:,} that could not be read" if trials["unreadable_calls"] else ""
    return f"{trials['calls_of_tools']:,} calls of tools, {trials['violations']:,} against a rule{unreadable}"


def trial_costs(records: Sequence[TrialRecord]) -> dict[str, dict[str, Any]]:
    """What the parts of trials that no other benchmark has, and the judge, asked their models for."""
    return {
        part: sum((getattr(record, f"{part}_cost") for record in records), Cost()).model_dump()
        for part in ("recall", "user", "judge")
    }
