"""``python -m eval.longmemeval``: a memory system on LongMemEval (S, M or oracle), offline or with models.

Exit code 0; 1 if something broke or was missing in the data (it is counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

from collections.abc import Mapping

from eval import runner
from eval.benchmark import Benchmark, JudgeSpec, Report, Results, Timeline, TimelineStep
from eval.evidence import EvidenceFinder
from eval.judge import QUESTION_FIELDS, QUESTION_LABELS
from eval.longmemeval import scores
from eval.longmemeval.data import BATCH_TURNS, TYPES, LongMemEvalConfig, is_abstention, read_data
from eval.metrics import set_f1
from eval.records import QuestionRecord
from eval.systems.base import StoreKey, System

GENERIC, UNANSWERABLE = "generic", "unanswerable"
JUDGES = {"temporal-reasoning": "temporal", "knowledge-update": "update", "single-session-preference": "preference"}
"""The judges of types that have rules of their own; the others have the generic one."""


class LongMemEval(Benchmark[LongMemEvalConfig]):
    """A timeline for each question: one store, its haystack, then the question."""

    name = "LongMemEval"
    config_type = LongMemEvalConfig
    search_state = "latest"
    answer_prompt = "answer_longmemeval"
    answer_fields = ("context", "date", "question")
    tables = (scores.table,)
    layouts = scores.LAYOUTS
    values = scores.VALUES

    def __init__(self, config: LongMemEvalConfig) -> None:
        """Read the questions; their haystacks stay in the file."""
        self.config = config
        self.data = read_data(config)
        self.k = config.k
        self._questions = {question.record.key: question for question in self.data.asked}

    @classmethod
    def judges(cls, config: LongMemEvalConfig) -> Mapping[str, JudgeSpec]:
        """One for each of the official rules; the generic one is measured on the calibration items."""
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
        """The judge of the question's type."""
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
                "judges": "one by type of question, by the official rules in our own words",
                "evidence": "turns of the user that hold the answer, the assistant's if only it has it; none of abstention "
                "questions. The official retrieval scores rank the user's turns alone and leave out questions without one",
                "intervals": "95%, bootstrap over questions",
            },
            data=data.description(),
            scores=scores.run_scores(results.questions, config),
            headline=(scores.ACCURACY, f"session_recall@{max(config.cutoffs)}"),
            judged_by=dict.fromkeys((scores.ACCURACY, scores.TASKS, scores.ABSTENTION), tuple(self.judges(config))),
            problems=data.problems,
            order=tuple(TYPES),
        )


if __name__ == "__main__":
    runner.command(LongMemEval, "longmemeval")
