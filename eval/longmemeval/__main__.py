"""``python -m eval.longmemeval``: a memory system on LongMemEval (S, M or oracle), offline or with models.

Exit code 0; 1 if something broke or was missing in the data (it is counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from deltamem.intervals import group_interval
from eval import runner
from eval.benchmark import Benchmark, JudgeSpec, Report, Results, Timeline, TimelineStep
from eval.compare.layout import ALL, Variant, columns_of
from eval.compare.layout import Table as PaperTable
from eval.evidence import EvidenceFinder
from eval.headline import SCOPES
from eval.judge import QUESTION_FIELDS, QUESTION_LABELS
from eval.longmemeval.data import BATCH_TURNS, STITCH, TYPES, LongMemEvalConfig, is_abstention, read_data, session_of
from eval.metrics import recall_at, set_f1
from eval.records import QuestionRecord
from eval.scores import AskedValue, Value, answer_value, metric_scores, retrieval_values, verdict_value
from eval.summary import Summary, category_table
from eval.systems.base import StoreKey, System

GENERIC, UNANSWERABLE, LENIENT = "generic", "unanswerable", "lenient"
JUDGES = {"temporal-reasoning": "temporal", "knowledge-update": "update", "single-session-preference": "preference"}
"""The judges of types that have rules of their own; the others have the generic one."""


ACCURACY = "accuracy"
ABSTENTION = "abstention_accuracy"
TASKS = "task_average"


def run_scores(questions: Sequence[QuestionRecord], config: LongMemEvalConfig) -> dict[str, dict[str, Any]]:
    """All scores by metric and type of question.

    ``accuracy`` (of the judges; abstention questions count for their type, as officially), ``task_average`` (the mean of
    the types), ``abstention_accuracy``, ``set_f1``; ``recall@k`` (share of the answer turns), ``session_recall@k`` (share of
    the sessions with an answer turn) and ``all_sessions@k`` (whether all were found), each among the first k passages.
    """
    values: dict[str, Value] = {**VALUES, "set_f1": answer_value("set_f1"), **retrieval_values(config.cutoffs)}
    for k in sorted(set(config.cutoffs)):
        values[f"session_recall@{k}"] = _sessions_value(lambda ranks, k=k: recall_at(ranks, k))  # type: ignore[misc]
        values[f"all_sessions@{k}"] = _sessions_value(lambda ranks, k=k: float(recall_at(ranks, k) == 1))  # type: ignore[misc]
    draws = {"resamples": config.resamples, "seed": config.seed}
    scores = metric_scores(questions, values, order=tuple(TYPES), **draws)
    for scope, value in (("", VALUES[ACCURACY]), (SCOPES[1], VALUES[ACCURACY].valid)):
        if (accuracy := scores.get(f"{ACCURACY}{scope}")) is not None:
            average = _task_average(questions, value, **draws)
            scores[f"{TASKS}{scope}"] = {ALL: accuracy[ALL] | average}  # which fails where the accuracy does
    return scores


def _abstained(record: QuestionRecord) -> Sequence[tuple[float | None, bool]]:
    return verdict_value().parts(record) if is_abstention(record.key) else ()


VALUES: Mapping[str, AskedValue] = {ACCURACY: verdict_value(), ABSTENTION: AskedValue(_abstained)}
"""What a question is worth by the scores of the judges."""


def _task_average(questions: Sequence[QuestionRecord], value: Value, *, resamples: int, seed: int) -> dict[str, float | int]:
    """Each type has the same weight: a mean in which a question weighs one over the questions of its type."""
    valued = [(record, worth) for record in questions if (worth := value(record)) is not None]
    counts = Counter(record.category for record, _ in valued)
    weights = [1 / counts[record.category] for record, _ in valued]
    worths = [worth * weight for weight, (_, worth) in zip(weights, valued, strict=True)]
    interval = group_interval(worths, [one.group for one, _ in valued], weights, resamples=resamples, seed=seed)
    assert interval is not None  # there is an accuracy
    return interval.bounds()


def _sessions_value(worth: Callable[[Sequence[int | None]], float]) -> AskedValue:
    """Of the rank of each session with an answer turn: that of its first turn that was found."""

    def parts(record: QuestionRecord) -> list[tuple[float | None, bool]]:
        if not record.ranks:
            return []
        found: dict[str, list[int]] = {session_of(turn): [] for turn in record.evidence}
        for turn, rank in zip(record.evidence, record.ranks, strict=True):
            if rank is not None:
                found[session_of(turn)].append(rank)
        ranks = [min(own, default=None) for own in found.values()]
        return [(None if record.error is not None else worth(ranks), False)]

    return AskedValue(parts)


def table(summary: Summary) -> Table:
    """Scores by type of question."""
    caption = "95% intervals: bootstrap over questions. Recall: whether the text of a passage still holds what was said."
    return category_table(summary, caption, lambda name: name.replace("-", "-\n"))


LAYOUTS = (
    PaperTable(
        "as in Table 3 of the Zep paper",
        columns_of(TYPES | {ALL: sum(TYPES.values())}, {"accuracy": ""}),
        (Variant("", {"accuracy": "accuracy"}),),
        id="longmemeval",
        note="Published rows are of the file before its histories were cleaned in September 2025, or do not say of which; "
        "compare those of the STITCH paper with runs of one version under protocol=stitch.",
    ),
)
"""As papers have them."""


class LongMemEval(Benchmark[LongMemEvalConfig]):
    """A timeline for each question: one store, its haystack, then the question."""

    name = "LongMemEval"
    config_type = LongMemEvalConfig
    search_state = "latest"
    answer_prompt = "answer_longmemeval"
    answer_fields = ("context", "date", "question")
    tables = (table,)
    layouts = LAYOUTS
    values = VALUES

    def __init__(self, config: LongMemEvalConfig) -> None:
        """Read the questions; their haystacks stay in the file."""
        self.config = config
        self.data = read_data(config)
        self.k = config.k
        self._questions = {question.record.key: question for question in self.data.asked}

    @classmethod
    def judges(cls, config: LongMemEvalConfig) -> Mapping[str, JudgeSpec]:
        """One for each of the official rules, of which the generic one is measured on the calibration items.

        Under ``protocol=stitch`` one generous judge of all questions, as in that paper (listing 11).
        """
        if config.protocol == STITCH:
            return {LENIENT: JudgeSpec(f"judge_{LENIENT}", QUESTION_FIELDS, QUESTION_LABELS)}
        return {
            name: JudgeSpec(f"judge_longmemeval_{name}", QUESTION_FIELDS, QUESTION_LABELS, calibrated=name == GENERIC)
            for name in (GENERIC, *JUDGES.values(), UNANSWERABLE)
        }

    def data_hashes(self) -> dict[str, str | None]:
        """Of the file."""
        return {"data_sha256": self.data.sha256}

    def timelines(self, system: System) -> list[Timeline]:
        """One for each question that is asked; nothing else is ingested."""
        return [
            Timeline((StoreKey(name, "the user", BATCH_TURNS),), (TimelineStep((question.sessions,), (question.record,)),))
            for name, question in self._questions.items()
        ]

    def evidence(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """All turns that hold the answer, those of the assistant and of abstention questions too."""
        return {name: {question.record.question: question.answers} for name, question in self._questions.items()}

    def finder(self, question: QuestionRecord) -> EvidenceFinder:
        """Of the haystack, which is read anew."""
        return EvidenceFinder.of(self._questions[question.key].sessions)

    def score(self, question: QuestionRecord, answer: str) -> dict[str, float]:
        """Word overlap, where the gold answer is an answer; LongMemEval itself has no such score."""
        if is_abstention(question.key) or question.category == "single-session-preference":
            return {}
        return {"set_f1": set_f1(answer, question.gold or "")}

    def judge_fields(self, question: QuestionRecord, answer: str) -> dict[str, dict[str, str]]:
        """The judge of the question's type, or the one of all."""
        if self.config.protocol == STITCH:
            return {LENIENT: {"question": question.question, "gold": question.gold or "", "answer": answer}}
        judge = UNANSWERABLE if is_abstention(question.key) else JUDGES.get(question.category, GENERIC)
        return {judge: {"question": question.question, "gold": question.gold or "", "answer": answer}}

    def report(self, results: Results) -> Report:
        """Scores by type of question."""
        config, data = self.config, self.data
        return Report(
            benchmark=f"{self.name}-{(data.variant or config.version).upper()}",
            protocol={
                "k": config.k,
                "stores": "one a question, which holds the haystack of this question alone",
                "cutoffs": sorted(set(config.cutoffs)),
                "batch_turns": BATCH_TURNS,
                "question_date": "shown to the answerer, not searched for",
                "judges": "one of all questions, in our own words"
                if config.protocol == STITCH
                else "one by type of question, by the official rules in our own words",
                "evidence": "turns of the user that hold the answer, the assistant's if only it has it; none of abstention "
                "questions. The official retrieval scores rank the user's turns alone and leave out questions without one",
                "intervals": "95%, bootstrap over questions",
            },
            data=data.description(),
            scores=run_scores(results.questions, config),
            headline=(ACCURACY, f"session_recall@{max(config.cutoffs)}"),
            judged_by=dict.fromkeys((ACCURACY, TASKS, ABSTENTION), tuple(self.judges(config))),
            problems=data.problems,
            order=tuple(TYPES),
        )


if __name__ == "__main__":
    runner.command(LongMemEval, "longmemeval")
