"""The data of a run: both files, the histories that they hold, and the questions that have none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from eval.personamem.histories import Asked, History, Lost, histories, record_key, without_history
from eval.personamem.loader import ContextFile, Question, QuestionFile, load_contexts, load_questions
from eval.personamem.question_types import size_of
from eval.personamem.run import Part
from eval.personamem.settings import PersonaMemConfig

BENCHMARK = "PersonaMem"


@dataclass(frozen=True)
class Benchmark:
    """The data of a run.

    Attributes:
        questions: The questions file.
        contexts: The contexts file.
        histories: One for each context that some question can be asked about.
        selected: The questions that the run accounts for.
        lost: Those of them that cannot be asked, with the reason.
    """

    questions: QuestionFile
    contexts: ContextFile
    histories: tuple[History, ...]
    selected: tuple[Question, ...]
    lost: dict[str, Lost]

    @property
    def asked(self) -> dict[str, Asked]:
        """By key all questions that can be asked."""
        return {asked.key: asked for history in self.histories for asked in history.asked}

    @property
    def parts(self) -> list[Part]:
        """What is asked of each context."""
        keys = {record_key(question) for question in self.selected}
        parts = [Part(history, tuple(asked for asked in history.asked if asked.key in keys)) for history in self.histories]
        return [part for part in parts if part.asked]

    @property
    def size(self) -> str:
        """Which release the questions are of."""
        return size_of(question.type for question in self.questions.questions) or "of unknown size"


def read_benchmark(config: PersonaMemConfig) -> Benchmark:
    """Read both files and lay the contexts out.

    Raises:
        DeltaMemError: If a file is missing or is not what it should be.
    """
    questions_path, contexts_path = config.files()
    questions, contexts = load_questions(questions_path), load_contexts(contexts_path)
    reasons = {question.row: without_history(question, contexts) for question in questions.questions}
    usable = [question for question in questions.questions if reasons[question.row] is None]
    selected: list[Question] = []
    taken: Counter[str] = Counter()
    for question in questions.questions:
        taken[question.persona] += 1
        if config.limit is None or taken[question.persona] <= config.limit:
            selected.append(question)
    return Benchmark(
        questions=questions,
        contexts=contexts,
        histories=tuple(histories(usable, contexts.contexts, keep_system=config.system_messages == "keep")),
        selected=tuple(selected),
        lost={record_key(question): lost for question in selected if (lost := reasons[question.row])},
    )
