"""What a run may claim: its headline, the scores that must not be printed, and warnings about the run alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eval.answer import against_cuts
from eval.benchmark import Report
from eval.compare.layout import ALL
from eval.config import BenchmarkConfig
from eval.records import QuestionRecord

SCOPES = ("(all)", "(valid)")
"""Ends of names of scores: every failure counts as wrong, which is meant where a name has no such end; failures left out."""

MOST_FAILURES = 0.01
"""Share of the questions at which the judge or the machinery may fail; above it nobody knows what the score is."""

FEWEST_ITEMS = 5  # Answers of which a judge's share is telling
USUAL_LIMIT = 0.4  # Of the share of wrong answers that a judge may accept, and of right ones that it may reject

MOST_UNJUDGED = 0.1
"""Share of the calibration items at which a judge may fail; above it its errors on the others say little."""


def withheld_scores(
    config: BenchmarkConfig,
    report: Report,
    *,
    sessions: Mapping[str, int],
    probes: Sequence[Mapping[str, Any]],
    partial: Mapping[str, int] | None,
) -> dict[str, str]:
    """Why scores must not be printed, by metric.

    Answers that the answerer itself failed to give, and sessions that the system's model did not understand, withhold
    nothing: they are wrong, and so is what was not remembered.
    """
    reasons: dict[str, str] = {}
    judges = {probe["judge"]: reason for probe in reversed(probes) if (reason := _misjudges(config, probe))}
    for metric, rows in report.scores.items():
        base = without_scope(metric)
        failed, count = _failed(rows)
        if partial is not None:
            reasons[metric] = f"only {partial['done']:,} of {partial['questions']:,} questions are done"
        elif sessions["failed"] > MOST_FAILURES * sessions["total"]:
            reasons[metric] = f"{sessions['failed']:,} of {sessions['total']:,} sessions could not be ingested"
        elif failed > MOST_FAILURES * count:
            share = 100 * failed / count
            reasons[metric] = f"judge or machinery failed at {failed:,} of {count:,} ({share:.1f}%, at most 1% may)"
        elif wrong := [judges[judge] for judge in _judges_of(report, base) if judge in judges]:
            reasons[metric] = wrong[0]
    # A score without failures says nothing about how many there were.
    for metric in report.scores:
        for name in (f"{without_scope(metric)}{SCOPES[0]}", without_scope(metric)):
            if name in reasons:
                reasons.setdefault(metric, reasons[name])
    return reasons


def without_scope(metric: str) -> str:
    """The name without ``(all)`` or ``(valid)``."""
    return next((metric.removesuffix(scope) for scope in SCOPES if metric.endswith(scope)), metric)


def _failed(rows: Mapping[str, Mapping[str, Any] | None]) -> tuple[int, int]:
    """At how many something failed, out of how many: of all categories together, also of those that are not pooled."""
    intervals = [rows[ALL]] if rows.get(ALL) else [of for name, of in rows.items() if name != ALL]
    known = [of for of in intervals if of is not None]
    return sum(of.get("failed", 0) for of in known), sum(of["count"] for of in known)


def _judges_of(report: Report, metric: str) -> Sequence[str]:
    judges = report.judged_by.get(metric, metric)
    return (judges,) if isinstance(judges, str) else judges


def _misjudges(config: BenchmarkConfig, probe: Mapping[str, Any]) -> str | None:
    """Why a judge's scores say nothing, if so: by the calibration items, or by answers to other questions of the run."""
    for kind, said in (
        ("false_accept", "accepts {} of the wrong answers"),
        ("false_reject", "rejects {} of the right ones"),
    ):
        if kind not in probe:
            continue
        share, limit = probe[kind], getattr(config.judge, f"max_{kind}")
        if share is None or probe["errors"] > MOST_UNJUDGED * (share["count"] + probe["errors"]):
            return f"the {probe['judge']} judge could not be calibrated: {probe.get('first_error')}"
        if share["estimate"] > limit and share["count"] >= FEWEST_ITEMS:
            items = "of the calibration" if "false_reject" in probe else "to questions of this run"
            shown = said.format(f"{100 * share['estimate']:.0f}%")
            return f"the {probe['judge']} judge {shown} {items} (judge.max_{kind}={limit:g})"
    return None


def answer_scores(report: Report) -> dict[str, Any]:
    """Of the metrics that may be the headline, those of answers, over all questions."""
    retrieval = ("recall@", "session_recall@")
    kept = [name for name in report.headline if not name.startswith(retrieval)]
    return {name: report.scores[name][ALL] for name in kept if report.scores.get(name, {}).get(ALL) is not None}


def headline(
    report: Report,
    questions: Sequence[QuestionRecord],
    *,
    total: int,
    context_tokens: Mapping[str, float] | None,
    probes: Sequence[Mapping[str, Any]],
    withheld: Mapping[str, str],
) -> dict[str, Any]:
    """The one score of a run, with all that it takes to read it."""
    metric = next((name for name in report.headline if report.scores.get(name, {}).get(ALL) is not None), None)
    score = None if metric is None else report.scores[metric][ALL]
    judges = () if metric is None else _judges_of(report, without_scope(metric))
    probe = next((one for one in probes if one["judge"] in judges), None)
    return {
        "metric": metric,
        "score": score,
        "withheld": None if metric is None else withheld.get(metric),
        "n": 0 if score is None else score["count"],
        "of": total,
        "failures": 0 if score is None else score.get("failed", 0),
        "silent": sum(any(answer.silent for answer in record.answers) for record in questions),
        "context_tokens": None if context_tokens is None else context_tokens["mean"],
        "judge_error": None if probe is None else {kind: probe[kind] for kind in ("false_accept", "false_reject")},
        "judge_runs": _by_judge_run(questions, judges),
    }


def _by_judge_run(questions: Sequence[QuestionRecord], judges: Sequence[str]) -> list[float] | None:
    """The share of answers that each run of the judges found right; None if there is one run, or they judge item by item."""
    runs: dict[str, list[float]] = {}
    for answer in (answer for record in questions for answer in record.answers):
        for name, verdict in answer.verdicts.items():
            judge, _, run = name.partition("#")
            if judge in judges:
                runs.setdefault(run, []).append(verdict.worth or 0.0)
    return [sum(worths) / len(worths) for worths in runs.values()] if len(runs) > 1 else None


def run_warnings(
    config: BenchmarkConfig, report: Report, questions: Sequence[QuestionRecord], system_facts: Mapping[str, Any]
) -> Iterator[str]:
    """What a reader of this run must know, one sentence each."""
    total = report.data.get("questions", len(questions))
    if len(questions) < total:
        yield f"a sample: {len(questions):,} of the {total:,} questions of the data"
    if report.data.get("published") is False:
        yield "the data is not the published file; its scores do not belong beside published ones"
    if config.judged:
        answer, judge = config.answer, config.judge
        if (answer.base_url, answer.model) == (judge.base_url, judge.model):
            yield f"the judge is the answerer ({answer.model}): it grades itself; name another with judge.model=..."
        if not config.judge.probes:
            yield "the judge was not calibrated (judge.probes=false): nobody knows how often it is wrong"
        for kind in ("false_accept", "false_reject"):
            if (limit := getattr(judge, f"max_{kind}")) > USUAL_LIMIT:
                yield f"judge.max_{kind}={limit:g} is above the usual {USUAL_LIMIT:g}: judges that err more often count here"
    answers = [answer for record in questions for answer in record.answers]
    if cut := sum(answer.cut for answer in answers):
        thinking = sum(answer.cut and answer.silent for answer in answers)
        yield (
            f"{cut:,} of {len(answers):,} answers were cut at answer.max_tokens={config.answer.max_tokens}"
            + (f", {thinking:,} of them before the model had said a word" if thinking else "")
            + f"; {against_cuts('answer') if thinking else 'raise answer.max_tokens'}"
        )
    if silent := sum(answer.silent for answer in answers):
        yield f"{silent:,} of {len(answers):,} answers are empty and count as wrong"
    if unasked := sum(record.error is not None and not record.answers for record in questions):
        yield f"{unasked:,} of {len(questions):,} questions could not be asked and are in no score of answers"
    yield from system_facts.get("warnings", ())
