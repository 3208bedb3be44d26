"""What a trial is worth: state of the service, what the user was told, tool calls over alternative DAGs; and its record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import comb
from typing import Any

from pydantic import Field

from deltamem.config import StrictModel
from deltamem.window import estimate_tokens
from eval.compare.layout import ALL, Variant, columns_of
from eval.compare.layout import Table as PaperTable
from eval.records import AnswerRecord, Cost, QuestionRecord
from eval.scores import AskedValue, Value, answer_value, metric_scores
from papers.momento.tasks import PUBLISHED_TASKS, ActionNode, ExpectedInformation, MomentoTask, sorted_nodes
from papers.momento.tools import VIOLATION, failed
from papers.momento.world import HASHES

FREE_TEXT = frozenset({"special_requests", "special_instructions", "notes", "delivery_address", "created_at", "updated_at"})
"""Keys that may differ between the expected action and the actual one."""


class Action(StrictModel):
    """A call that an agent made, with what came of it."""

    name: str
    arguments: dict[str, Any]
    result: str

    @property
    def failed(self) -> bool:
        """Whether it changed nothing because it was wrong or not allowed."""
        return failed(self.result)


def matching_hashes(expected: Mapping[str, str], actual: Mapping[str, str]) -> dict[str, bool]:
    """By name whether a table is as it should be; what has no expected hash always is."""
    return {name: not expected.get(name) or expected[name] == actual[name] for name in HASHES}


def _without_free_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_free_text(of) for key, of in value.items() if key not in FREE_TEXT}
    return [_without_free_text(of) for of in value] if isinstance(value, list) else value


def is_part(part: Any, whole: Any) -> bool:
    """Whether JSON is part of other JSON: keys of objects, elements of lists whatever their order, equal values."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and is_part(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return all(any(is_part(one, other) for other in whole) for one in part)
    return bool(part == whole)


def matches(node: ActionNode, action: Action) -> bool:
    """Whether an action is the one that is expected, by its arguments or by its result.

    As in the benchmark a call that failed can match by its arguments, and they decide where no result is expected.
    """
    if node.tool != action.name:
        return False
    if node.evaluation_type == "results" and node.expected_result is not None:
        try:
            actual = _without_free_text(json.loads(action.result))
        except ValueError:
            return False
        expected = _without_free_text(node.expected_result)
        return is_part(expected, actual) if node.is_subset else is_part(actual, expected)
    actual = _without_free_text(action.arguments)
    for key, value in _without_free_text(node.arguments).items():
        given = actual.get(key)
        if isinstance(value, list) and isinstance(given, list):
            if not (is_part(value, given) and is_part(given, value)):
                return False
        elif str(given) != str(value):
            return False
    return True


def done_nodes(dag: Sequence[ActionNode], actions: Sequence[Action], *, ordered: bool = False) -> dict[str, int]:
    """The number of the action of each node that was done; one whose predecessors were not never was.

    Each action counts once, the earliest that fits. With `ordered` it must come after those of the predecessors, which
    the benchmark does not ask for.
    """
    done: dict[str, int] = {}
    for node in sorted_nodes(dag):
        if not all(name in done for name in node.predecessors):
            continue
        first = max((done[name] for name in node.predecessors), default=-1) + 1 if ordered else 0
        used = set(done.values())
        for number in range(first, len(actions)):
            if number not in used and matches(node, actions[number]):
                done[node.id] = number
                break
    return done


def dag_recall(dag: Sequence[ActionNode], actions: Sequence[Action], *, ordered: bool = False) -> float:
    """Share of the nodes that were done; see `done_nodes`."""
    return len(done_nodes(dag, actions, ordered=ordered)) / len(dag) if dag else 1.0


def tool_recall(dags: Sequence[Sequence[ActionNode]], actions: Sequence[Action], *, ordered: bool = False) -> float:
    """That of the best of the alternatives; 1 if nothing is expected."""
    return max((dag_recall(dag, actions, ordered=ordered) for dag in dags), default=1.0)


def said(expected: Sequence[ExpectedInformation], replies: Iterable[str]) -> list[bool]:
    """Whether the reference answers occur word for word in what the agent said; one that is empty never does."""
    text = "\n".join(replies).lower()
    return [bool(item.reference_answer) and item.reference_answer.lower() in text for item in expected]


class TrialScores(StrictModel):
    """What a trial is worth."""

    tables: dict[str, bool]  # By name of the hash whether the state is right
    covered_by_words: tuple[bool, ...]  # For each expected information, by `said`
    covered_by_judge: tuple[bool, ...] | None = None  # None if no judge was asked, or it failed
    judge_error: str | None = None  # Why the judge said nothing
    tool_recall: float
    tool_recall_ordered: float

    @property
    def state(self) -> bool:
        """Whether all four tables are right."""
        return all(self.tables.values())

    @property
    def coverage(self) -> float:
        """Share of the information that was conveyed: by the judge, else by the words; 1 if none is expected."""
        return _share(self.covered_by_words if self.covered_by_judge is None else self.covered_by_judge)

    @property
    def word_coverage(self) -> float:
        """The same by the words."""
        return _share(self.covered_by_words)

    @property
    def passed(self) -> bool:
        """Everything right."""
        return self.state and self.coverage == 1 and self.tool_recall == 1


def _share(covered: Sequence[bool]) -> float:
    return sum(covered) / len(covered) if covered else 1.0


def score_trial(
    task: MomentoTask,
    hashes: Mapping[str, str],
    actions: Sequence[Action],
    replies: Sequence[str],
    *,
    judged: Sequence[bool] | None = None,
    judge_error: str | None = None,
) -> TrialScores:
    """Score what a trial left behind: the hashes of its state, the agent's calls and replies, and the judge's verdicts."""
    return TrialScores(
        tables=matching_hashes(task.expected_hashes, hashes),
        covered_by_words=tuple(said(task.expected_information, replies)),
        covered_by_judge=None if judged is None else tuple(judged),
        judge_error=judge_error,
        tool_recall=tool_recall(task.action_dags, actions),
        tool_recall_ordered=tool_recall(task.action_dags, actions, ordered=True),
    )


def pass_at(k: int, passed: int, trials: int) -> float:
    """Pass@k: the chance that of k trials, drawn from all, at least one passed."""
    return 1 - comb(trials - passed, k) / comb(trials, k)


def pass_all(k: int, passed: int, trials: int) -> float:
    """Pass^k: the chance that of k trials, drawn from all, every one passed."""
    return comb(passed, k) / comb(trials, k)


class RecallRecord(StrictModel):
    """What was recalled for a message."""

    texts: tuple[str, ...] = ()  # Oldest first, as the agent is shown them
    how: str = "search"  # Of the memory system; else `query`, which a model wrote, or `nearest`
    query: str = ""  # What the model wrote
    refused: str = ""  # Why its query was not used


class ExchangeRecord(StrictModel):
    """A message and the reply to it."""

    message: str
    recalled: RecallRecord
    reply: str
    actions: int  # How many calls had been made after it


class TrialRecord(StrictModel):
    """What happened in one trial; the ``details`` of an answer in ``questions.jsonl``."""

    turns: tuple[ExchangeRecord, ...] = ()
    actions: tuple[Action, ...] = ()
    repeated_calls: int = 0  # Answered from the cache of their round
    unreadable_calls: int = 0  # No actions, because their arguments were no JSON object
    finished: bool = False  # Whether the user was done before the turns were used up
    changes: dict[str, list[str]] = Field(default={})  # By table the rows of the user that came (+) and went (-)
    hashes: dict[str, str] = Field(default={})
    scores: TrialScores | None = None  # None if the trial failed
    error: str | None = None  # Why it did
    costs: dict[str, Cost] = Field(default={})  # Of calls of models: `answer`, `recall`, `user`, `judge`
    cut: dict[str, int] = Field(default={})  # By model, how many of its replies were stopped by the limit of tokens
    seconds: float = 0.0

    @property
    def violations(self) -> int:
        """How many calls broke a rule."""
        return sum(action.result.startswith(VIOLATION) for action in self.actions)


SCORES = ("passed", "state", "coverage", "word_coverage", "tool_recall", "tool_recall_ordered")


def answer_of(trial: TrialRecord, made: str) -> AnswerRecord:
    """A trial as an answer to its task."""
    scores = trial.scores
    return AnswerRecord(
        text=None if scores is None else "\n".join(turn.reply for turn in trial.turns),
        scores={name: 0.0 if scores is None else float(getattr(scores, name)) for name in SCORES},
        error=trial.error,
        # What broke is not the agent's doing, also where it had said nothing before.
        silent=trial.error is None and bool(trial.turns) and not any(turn.reply for turn in trial.turns),
        cut=trial.cut.get("answer", 0) > 0,
        cost=trial.costs.get("answer", Cost()),
        details=trial.model_dump(mode="json"),
        made=made,
    )


def recalled_tokens(trials: Sequence[TrialRecord]) -> int:
    """Estimated tokens of what was recalled for a message, on average."""
    shown = [estimate_tokens("\n".join(turn.recalled.texts)) for trial in trials for turn in trial.turns]
    return round(sum(shown) / len(shown)) if shown else 0


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


TABLE_1 = {
    "state": "DB state",
    "coverage": "output",
    "tool_recall": "tool recall",
    "pass@3": "Pass@3",
    "pass^3": "Pass^3",
}
LAYOUTS = (
    PaperTable(
        "as in Table 1 of the Momento paper",
        columns_of({ALL: PUBLISHED_TASKS}, TABLE_1),
        (Variant("", {name: name for name in TABLE_1}),),
        id="momento",
        note=f"A file of {PUBLISHED_TASKS} tasks is taken for the published one, whose sum is not known here. The paper's "
        "agent is system=given_summaries; its customer was Qwen3.6-35B-A3B in all rows.",
    ),
)
"""As the paper has it."""

METRICS = ("state", "coverage", "tool_recall")
"""What a trial must have right to pass."""


def failure_counts(trials: Iterable[tuple[MomentoTask, TrialRecord]]) -> dict[str, Any]:
    """Where trials fail, by metric and by tool (figures 2 and 3 of the paper); trials that broke are left out.

    Returns:
        ``trials`` and ``not_passed``; ``by_metric`` how many fell short in each of `METRICS`, more than one perhaps; and
        ``by_tool``, most missed first, how many calls were ``expected`` by the alternative that was followed best,
        ``missed`` of them, and ``uncalled`` of these because the tool was not called at all.
    """
    count = not_passed = 0
    by_metric = Counter(dict.fromkeys(METRICS, 0))
    expected, missed, uncalled = Counter[str](), Counter[str](), Counter[str]()
    for task, trial in trials:
        if trial.scores is None:
            continue
        count, not_passed = count + 1, not_passed + (not trial.scores.passed)
        by_metric.update(name for name in METRICS if getattr(trial.scores, name) < 1)
        followed = max(task.action_dags, key=lambda dag: dag_recall(dag, trial.actions), default=())
        done, called = done_nodes(followed, trial.actions), {action.name for action in trial.actions}
        expected.update(node.tool for node in followed)
        missed.update(node.tool for node in followed if node.id not in done)
        uncalled.update(node.tool for node in followed if node.tool not in called)
    by_tool = sorted(expected, key=lambda tool: (-missed[tool], tool))
    return {
        "trials": count,
        "not_passed": not_passed,
        "by_metric": dict(by_metric),
        "by_tool": {
            tool: {"expected": expected[tool], "missed": missed[tool], "uncalled": uncalled[tool]} for tool in by_tool
        },
    }


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


def trial_warnings(trials: Sequence[TrialRecord], limits: Mapping[str, int | None]) -> Iterator[str]:
    """What a reader must know of the models of users and judges, whose `limits` of tokens are given; one sentence each."""
    for part, name in (("user", "the user's model"), ("judge", "the judge")):
        if cut := sum(trial.cut.get(part, 0) for trial in trials):
            calls, limit = sum(trial.costs[part].calls for trial in trials if part in trial.costs), f"{part}.max_tokens"
            yield f"{cut:,} of {calls:,} replies of {name} were cut at {limit}={limits[part]}; raise {limit}"
    scored = [trial.scores for trial in trials if trial.scores is not None]
    if errors := [scores.judge_error for scores in scored if scores.judge_error is not None]:
        yield f"the judge failed in {len(errors):,} of {len(scored):,} trials, whose coverage is that by words: {errors[0]}"
