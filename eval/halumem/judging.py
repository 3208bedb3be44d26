"""The judges of the benchmark (PROTOCOLS 2.5), with prompts of our own, and what each of them is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.answering.context import render_all
from eval.answering.judges import CORRECT, QUESTION_LABELS, LLMJudge
from eval.answering.opening import Models, answer_prompt, make_judge
from eval.answering.prompts import Prompt, load_prompt
from eval.answering.protocol import ContextBlock, Judge
from eval.halumem.aggregation import LABELS
from eval.halumem.lines import DATE_FORMAT
from eval.halumem.loader import HalumemSession, MemoryPoint, Question
from eval.halumem.settings import HalumemConfig
from eval.results.records import Verdict

ANSWER_PROMPT = "halumem_answer"
ANSWER_FIELDS = ("context", "question")

POINT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "integrity": ("memories", "point"),
    "accuracy": ("dialogue", "golden", "memory"),
    "update": ("memories", "target", "originals"),
}
"""Fields of the prompts of the judges of points and memories, by the kind of record."""

QA_FIELDS = ("question", "gold", "evidence", "answer")

_FLAGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {"accuracy": {"included": ("true", "false")}}
_NONE = "(none)"


@dataclass(frozen=True)
class Prompts:
    """All prompts of a run.

    Attributes:
        answer: Of the answering model; None if none answers.
        points: By kind of record; empty if nothing is judged.
        answers: Of the judges of answers, by their names; empty if nothing is judged.
    """

    answer: Prompt | None
    points: dict[str, Prompt]
    answers: dict[str, Prompt]

    @property
    def hashes(self) -> dict[str, str]:
        """sha256 by name of the prompt."""
        own = [self.answer, *self.points.values(), *self.answers.values()]
        return {prompt.name: prompt.sha256 for prompt in own if prompt is not None}


@dataclass(frozen=True)
class Judges:
    """The judges of a run, by kind of record and by name; empty if nothing is judged."""

    points: Mapping[str, LLMJudge]
    answers: Mapping[str, LLMJudge]


def load_prompts(config: HalumemConfig) -> Prompts:
    """Load what the run will need, before anything expensive happens.

    Raises:
        DeltaMemError: If a prompt does not exist or does not fit.
    """
    kinds = POINT_FIELDS if config.judged else {}
    names = dict.fromkeys(config.judges) if config.judged else ()
    return Prompts(
        answer=answer_prompt(config, ANSWER_PROMPT, ANSWER_FIELDS),
        points={kind: load_prompt(f"halumem_{kind}", fields) for kind, fields in kinds.items()},
        answers={name: load_prompt(f"halumem_{name}", QA_FIELDS) for name in names},
    )


def make_judges(config: HalumemConfig, models: Models, prompts: Prompts) -> Judges:
    """The judges on the judging model; none if nothing is judged."""
    return Judges(
        points={
            kind: make_judge(config, models, kind, prompt, LABELS[kind], _FLAGS.get(kind))
            for kind, prompt in prompts.points.items()
        },
        answers={name: make_judge(config, models, name, prompt, LABELS["qa"]) for name, prompt in prompts.answers.items()},
    )


def integrity_fields(memories: Sequence[str], point: str) -> dict[str, str]:
    """What the judge of extraction sees: all memories of the session, and one expected point."""
    return {"memories": "\n".join(memories) or _NONE, "point": point}


def accuracy_fields(session: HalumemSession, memory: str) -> dict[str, str]:
    """What the judge of an extracted memory sees: the dialogue, and the session's points without interference."""
    lines = [
        f"[{(turn.time or session.dialogue.time).strftime(DATE_FORMAT)}]{turn.role}: {turn.text}"
        for turn in session.dialogue.turns
    ]
    golden = [point.text for point in session.points if point.source != "interference"]
    return {"dialogue": "\n".join(lines), "golden": "\n".join(golden) or _NONE, "memory": memory}


def update_fields(blocks: Sequence[ContextBlock], point: MemoryPoint, *, with_time: bool) -> dict[str, str]:
    """What the judge of an update sees: what was found, the new text, and the ones that it replaces."""
    return {
        "memories": render_all(blocks, with_time=with_time) or _NONE,
        "target": point.text,
        "originals": "\n".join(point.originals) or _NONE,
    }


def qa_fields(question: Question, answer: str) -> dict[str, str]:
    """What the judges of an answer see."""
    return {
        "question": question.text,
        "gold": question.answer,
        "evidence": "\n".join(question.evidence) or _NONE,
        "answer": answer,
    }


class ProbedJudge:
    """A judge of answers as the probes ask it: they know right and wrong only, and give no facts but the reference.

    Attributes:
        name: Of the judge.
    """

    def __init__(self, judge: Judge) -> None:
        """Wrap a judge."""
        self.name = judge.name
        self._judge = judge

    async def judge(self, fields: Mapping[str, str], scope: str) -> Verdict:
        """Judge a probe; hallucination and omission are both wrong. See `Judge`."""
        verdict = await self._judge.judge({**fields, "evidence": fields["gold"]}, scope)
        if verdict.label is None:
            return verdict
        right, wrong = QUESTION_LABELS
        return verdict.model_copy(update={"label": right if verdict.label == CORRECT else wrong})
