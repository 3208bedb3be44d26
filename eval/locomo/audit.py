"""The list of wrong gold answers: checked against the benchmark, applied on request, and the ceiling that it implies.

The list (``errors.json`` of the GitHub repository dial481/locomo-audit) covers categories 1 to 4. Its entries name questions
by the position of conversation and question. Those of type ``WRONG_CITATION`` only correct the evidence; all others say that
the gold answer itself is wrong, 99 of 1,540.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, TypeAdapter, ValidationError

from deltamem.errors import DeltaMemError
from deltamem.provenance import file_sha256
from eval.locomo.loader import Conversation, Question

ANSWER_IS_RIGHT = "WRONG_CITATION"
ADVERSARIAL = 5
_QUESTION_ID = re.compile(r"locomo_(\d+)_qa(\d+)")


class _Entry(BaseModel):
    question_id: str
    question: str
    error_type: str
    correct_answer: str
    correct_evidence: list[str]


_ENTRIES = TypeAdapter(list[_Entry])


@dataclass(frozen=True, slots=True)
class Correction:
    """What the audit says about one question.

    Attributes:
        kind: Type of the error.
        answer: The right answer; None if that of the file is right.
        evidence: Turns of the conversation that hold the answer; empty if the audit names none that exist.
    """

    kind: str
    answer: str | None
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Audit:
    """An audit that fits the benchmark.

    Attributes:
        file: Name of the file.
        sha256: Of the file.
        corrections: By id of the conversation and index of the question.
    """

    file: str
    sha256: str
    corrections: dict[tuple[str, int], Correction]

    def gold_is_right(self, conversation: str, question: Question) -> bool | None:
        """Whether the file's own answer is right; None for category 5, which was not audited."""
        if question.category == ADVERSARIAL:
            return None
        correction = self.corrections.get((conversation, question.index))
        return correction is None or correction.answer is None

    def apply(self, conversation: Conversation) -> Conversation:
        """Replace wrong answers and wrong evidence."""
        questions = tuple(self._corrected(conversation.id, question) for question in conversation.questions)
        return replace(conversation, questions=questions)

    def _corrected(self, conversation: str, question: Question) -> Question:
        correction = self.corrections.get((conversation, question.index))
        if correction is None:
            return question
        return replace(
            question,
            answer=question.answer if correction.answer is None else correction.answer,
            evidence=correction.evidence or question.evidence,
        )


def load_audit(path: Path, conversations: Sequence[Conversation]) -> Audit:
    """Read an audit and make sure that it is one of this benchmark file.

    Args:
        path: ``errors.json``.
        conversations: The benchmark, unchanged and in file order.

    Raises:
        DeltaMemError: If the file cannot be read, has another shape, or names other questions; says where.
    """
    try:
        entries = _ENTRIES.validate_json(path.read_bytes())
    except OSError as error:
        raise DeltaMemError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DeltaMemError(f"{path}: {where + ': ' if where else ''}{first['msg']}") from error
    corrections: dict[tuple[str, int], Correction] = {}
    for entry in entries:
        conversation, question = _named(path, entry, conversations)
        key = conversation.id, question.index
        if key in corrections:
            raise DeltaMemError(f"{path}: {entry.question_id} occurs twice")
        known = {turn.id for turn in conversation.turns}
        evidence = tuple(dict.fromkeys(entry.correct_evidence))
        corrections[key] = Correction(
            kind=entry.error_type,
            answer=None if entry.error_type == ANSWER_IS_RIGHT else entry.correct_answer,
            evidence=evidence if known.issuperset(evidence) else (),
        )
    return Audit(path.name, file_sha256(path), corrections)


def _named(path: Path, entry: _Entry, conversations: Sequence[Conversation]) -> tuple[Conversation, Question]:
    """The question that an entry names; the text must be the same."""
    match = _QUESTION_ID.fullmatch(entry.question_id)
    if match is None:
        raise DeltaMemError(f"{path}: question_id {entry.question_id!r} is not like 'locomo_0_qa17'")
    conversation_index, index = int(match[1]), int(match[2])
    if conversation_index < len(conversations) and index < len(conversations[conversation_index].questions):
        conversation = conversations[conversation_index]
        question = conversation.questions[index]
        if question.text == entry.question and question.category != ADVERSARIAL:
            return conversation, question
    raise DeltaMemError(
        f"{path}: {entry.question_id} is another question in the benchmark file, so the audit is not one of it"
    )
