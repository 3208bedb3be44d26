"""``python -m eval.longmemeval``: a memory system on LongMemEval (S, M or oracle), offline or with models.

Exit code 0; 1 if something broke or was missing in the data (it is counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from eval import runner
from eval.benchmark import Benchmark, JudgeSpec, Report, Results, Step, Store, Timeline
from eval.evidence import EvidenceFinder
from eval.longmemeval import scores
from eval.longmemeval.data import BATCH_TURNS, TYPES, LongMemEvalConfig, read_data
from eval.records import QuestionRecord
from eval.systems.base import Passage, StoreKey, System


class LongMemEval(Benchmark[LongMemEvalConfig]):
    """A timeline for each question: one store, its haystack, then the question."""

    name = "LongMemEval"
    config_type = LongMemEvalConfig
    search_state = "latest"
    answer_prompt = "answer_longmemeval"
    answer_fields = ("context", "date", "question")

    def __init__(self, config: LongMemEvalConfig) -> None:
        """Read the questions; their haystacks stay in the file."""
        self.config = config
        self.data = read_data(config)
        self.k = config.k
        self._questions = {question.record.key: question for question in self.data.asked}

    @classmethod
    def judges(cls, config: LongMemEvalConfig) -> Mapping[str, JudgeSpec]:
        """By the official rules for types of questions."""
        return scores.judge_specs()

    def data_hashes(self) -> dict[str, str | None]:
        """Of the file."""
        return {"data_sha256": self.data.sha256}

    def timelines(self, system: System) -> list[Timeline]:
        """One for each question that is asked; nothing else is ingested."""
        return [
            Timeline((Store(StoreKey(name, "the user", BATCH_TURNS)),), (Step((question.sessions,), (question.record,)),))
            for name, question in self._questions.items()
        ]

    def evidence(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """All turns that hold the answer, those of the assistant and of abstention questions too."""
        return {name: {question.record.question: question.answers} for name, question in self._questions.items()}

    def ranks(self, question: QuestionRecord, passages: Sequence[Passage]) -> tuple[int | None, ...]:
        """Of each turn that holds the answer, by the text of the passages."""
        if not question.evidence:
            return ()
        finder = EvidenceFinder.of(self._questions[question.key].sessions)
        return finder.ranks(question.evidence, passages)

    def score(self, question: QuestionRecord, answer: str) -> dict[str, float]:
        """Word overlap with the gold answer."""
        return scores.lexical_scores(self._questions[question.key], answer)

    def judge_fields(self, question: QuestionRecord, answer: str) -> dict[str, dict[str, str]]:
        """The judge of the question's type."""
        return scores.judge_fields(self._questions[question.key], answer)

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
            judged_by=dict.fromkeys((scores.ACCURACY, scores.TASKS, scores.ABSTENTION), tuple(scores.judge_specs())),
            problems=data.problems,
            order=tuple(TYPES),
        )

    @classmethod
    def tables(cls, summary: Mapping[str, Any]) -> Iterable[RenderableType | None]:
        """One table."""
        return (scores.table(summary),)


if __name__ == "__main__":
    runner.command(LongMemEval, "longmemeval")
