"""What a run says: scores over tasks and trials, what else must be known of it, and a page with every trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from deltamem.intervals import percent_text
from eval.benchmark import Report
from eval.compare.layout import ALL
from eval.html import render_page
from eval.records import Cost, QuestionRecord
from eval.scores import AskedValue, Value, answer_value, metric_scores
from eval.summary import Summary, counted, score_cells, score_table
from papers.momento.judge import JUDGE
from papers.momento.scores import pass_all, pass_at
from papers.momento.trial import SCORES, TrialRecord


def trials_of(questions: Sequence[QuestionRecord]) -> Iterator[tuple[QuestionRecord, int, TrialRecord]]:
    """Every trial that was run, with its task and its number from 1."""
    for question in questions:
        for number, answer in enumerate(question.answers, start=1):
            if answer.details:
                yield question, number, TrialRecord.model_validate(answer.details)


def run_scores(questions: Sequence[QuestionRecord], *, resamples: int, seed: int) -> dict[str, Any]:
    """Every score by kind of task and over all, with its interval over tasks; see `eval.summary.metric_scores`.

    Tasks weigh the same. A trial that failed counts as nothing; ``passed(valid)`` and its like leave such trials out, so
    that a broken endpoint is told from a bad agent.
    """
    values: dict[str, Value] = {name: answer_value(name) for name in SCORES}
    for k in range(2, 1 + max((len(record.answers) for record in questions), default=0)):
        values |= {f"pass@{k}": _over_trials(pass_at, k), f"pass^{k}": _over_trials(pass_all, k)}
    return metric_scores(questions, values, resamples=resamples, seed=seed)


def _over_trials(chance: Callable[[int, int, int], float], k: int) -> AskedValue:
    """Pass@k or Pass^k of a task; None where it has fewer trials."""
    return AskedValue(
        answer_value("passed").parts,
        lambda passed: chance(k, round(sum(passed)), len(passed)) if len(passed) >= k else None,
    )


def judged_by(scores: Mapping[str, Any]) -> dict[str, str]:
    """The scores that stand and fall with the judge of what the user was told."""
    return {name: JUDGE for name in scores if name.startswith(("passed", "pass@", "pass^", "coverage"))}


def trial_counts(trials: Sequence[TrialRecord]) -> dict[str, Any]:
    """What the summary says of trials."""
    scored = [trial.scores for trial in trials if trial.scores is not None]
    return {
        "done": len(trials),
        "failed": len(trials) - len(scored),
        "unfinished_conversations": sum(not trial.finished for trial in trials if trial.error is None),
        "calls_of_tools": sum(len(trial.actions) for trial in trials),
        "repeated_calls": sum(trial.repeated_calls for trial in trials),
        "unreadable_calls": sum(trial.unreadable_calls for trial in trials),
        "violations": sum(trial.violations for trial in trials),
        "judged_by_words_after_a_failure": sum(scores.judge_error is not None for scores in scored),
        "seconds_each": round(sum(trial.seconds for trial in trials) / len(trials), 3) if trials else None,
    }


def trial_line(counts: Mapping[str, Any]) -> str:
    """The same in a line."""
    unreadable = f", {counts['unreadable_calls']:,} that could not be read" if counts["unreadable_calls"] else ""
    return (
        f"{counts['done']:,} trials, {counts['failed']:,} failed; {counts['calls_of_tools']:,} calls of tools, "
        f"{counts['violations']:,} against a rule{unreadable}"
    )


def further_costs(trials: Sequence[TrialRecord]) -> dict[str, Cost]:
    """What the parts of trials that no other benchmark has, and the judge, asked their models for."""
    parts = ("recall", "user", "judge")
    return {part: sum((trial.costs.get(part, Cost()) for trial in trials), Cost()) for part in parts}


def trial_warnings(trials: Sequence[TrialRecord], limits: Mapping[str, int | None]) -> Iterator[str]:
    """What a reader must know of the models of users and judges, whose `limits` of tokens are given; one sentence each."""
    for part, name in (("user", "the user's model"), ("judge", "the judge")):
        if cut := sum(trial.cut.get(part, 0) for trial in trials):
            calls, limit = sum(trial.costs[part].calls for trial in trials if part in trial.costs), f"{part}.max_tokens"
            yield f"{cut:,} of {calls:,} replies of {name} were cut at {limit}={limits[part]}; raise {limit}"
    scored = [trial.scores for trial in trials if trial.scores is not None]
    if errors := [scores.judge_error for scores in scored if scores.judge_error is not None]:
        yield f"the judge failed in {len(errors):,} of {len(scored):,} trials, whose coverage is that by words: {errors[0]}"


def table(summary: Summary) -> Table:
    """The scores of each kind of task; those by words and by order are on the page."""
    scores = [name for name in summary.scores if name not in ("word_coverage", "tool_recall_ordered")]
    caption = "coverage is the judge's where one was asked, else by words; 95% intervals over tasks"
    view = score_table(f"Momento, {summary.system}: %", caption, ["tasks", *(name.replace("_", " ") for name in scores)])
    counts = counted(summary)
    cells = [score_cells(summary, name, counts) for name in scores]
    for kind, count, *row in zip(counts, counts.values(), *cells, strict=True):
        view.add_row(kind, f"{count:,}", *row)
    return view


def page(system: str, report: Report, questions: Sequence[QuestionRecord]) -> str:
    """Scores, and every trial with what was said, recalled, called and changed."""
    kinds = [ALL, *dict.fromkeys(question.category for question in questions)]
    template = Path(__file__).with_name("report.html.j2")
    rows = {
        kind: [percent_text(report.scores[metric].get(kind), brackets=True) for metric in report.scores] for kind in kinds
    }
    return render_page(template, system=system, report=report, rows=rows, trials=list(trials_of(questions)))
