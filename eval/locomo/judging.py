"""The judges and prompts of a run."""

from __future__ import annotations

from dataclasses import dataclass

from eval.answering.judges import ABSTENTION_FIELDS, ABSTENTION_LABELS, QUESTION_FIELDS, QUESTION_LABELS, LLMJudge
from eval.answering.opening import Models, answer_prompt, make_judge
from eval.answering.prompts import Prompt, load_prompt
from eval.locomo.scoring import ABSTENTION_JUDGE
from eval.locomo.settings import LocomoConfig

ANSWER_PROMPT = "answer_locomo"
ANSWER_FIELDS = ("context", "question")


@dataclass(frozen=True)
class Prompts:
    """All prompts of a run.

    Attributes:
        answer: Of the answering model; None if none answers.
        judges: By name of the judge; empty if nothing is judged.
        abstention: Of the judge of category 5; None if nothing of it is judged.
    """

    answer: Prompt | None
    judges: dict[str, Prompt]
    abstention: Prompt | None

    @property
    def hashes(self) -> dict[str, str]:
        """sha256 by name of the prompt."""
        own = [self.answer, *self.judges.values(), self.abstention]
        return {prompt.name: prompt.sha256 for prompt in own if prompt is not None}


def load_prompts(config: LocomoConfig) -> Prompts:
    """Load what the run will need, before anything expensive happens.

    Raises:
        DeltaMemError: If a prompt does not exist or does not fit.
    """
    names = dict.fromkeys(config.judges) if config.judged else ()
    return Prompts(
        answer=answer_prompt(config, ANSWER_PROMPT, ANSWER_FIELDS),
        judges={name: load_prompt(f"judge_{name}", QUESTION_FIELDS) for name in names},
        abstention=load_prompt("judge_abstention", ABSTENTION_FIELDS) if config.judged else None,
    )


@dataclass(frozen=True)
class Judges:
    """The judges of a run.

    Attributes:
        graded: Of answers to questions that have a gold answer.
        abstention: Of category 5; None if nothing is judged.
    """

    graded: tuple[LLMJudge, ...]
    abstention: LLMJudge | None


def make_judges(config: LocomoConfig, models: Models, prompts: Prompts) -> Judges:
    """The judges on the judging model; none if nothing is judged."""
    graded = tuple(make_judge(config, models, name, prompt, QUESTION_LABELS) for name, prompt in prompts.judges.items())
    if prompts.abstention is None:
        return Judges(graded, None)
    return Judges(graded, make_judge(config, models, ABSTENTION_JUDGE, prompts.abstention, ABSTENTION_LABELS))
