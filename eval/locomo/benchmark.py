"""The benchmark as a run needs it: which questions are asked, what is right, and where every other question went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError
from deltamem.provenance import file_sha256
from eval.data import LOCOMO, LOCOMO_AUDIT, find, missing, require
from eval.locomo.audit import Audit, load_audit
from eval.locomo.loader import CATEGORIES, Conversation, Question, load_locomo, version_name
from eval.locomo.settings import LocomoConfig
from eval.results.records import QuestionRecord

COLUMNS = ("single-hop", "multi-hop", "open-domain", "temporal")
"""Categories that are pooled, in the order of the paper's table."""

ADVERSARIAL = CATEGORIES[5]


@dataclass(frozen=True)
class Asked:
    """A question that is asked.

    Attributes:
        conversation: The conversation that it is about.
        question: The question, with its gold answer as configured.
    """

    conversation: Conversation
    question: Question

    @property
    def key(self) -> str:
        """Unique in the run. By position, because some questions occur twice."""
        return f"{self.conversation.id}/{self.question.index}"

    def record(self) -> QuestionRecord:
        """The record before anything was searched for."""
        question = self.question
        notes = [f"evidence {text!r} was repaired" for text in question.repaired]
        notes += [f"evidence {text!r} names no turn" for text in question.unusable]
        if not question.evidence:
            notes.append("no usable evidence")
        if CATEGORIES[question.category] == ADVERSARIAL:
            notes.append(f"suggests the wrong answer {question.adversarial_answer!r}")
        elif question.answer is None:
            notes.append("no gold answer")
        return QuestionRecord(
            key=self.key,
            group=self.conversation.id,
            category=CATEGORIES[question.category],
            question=question.text,
            gold=question.answer,
            evidence=question.evidence,
            notes=tuple(notes),
        )


@dataclass(frozen=True)
class Benchmark:
    """What was read.

    Attributes:
        file: Name of the benchmark file.
        sha256: Of the file.
        conversations: With the gold answers as configured.
        released: As the file has them.
        audit: The audit, if there is one.
        audited: Whether it was applied.
        asked: The questions that are asked, in file order.
        not_asked: How many are not, by reason.
    """

    file: str
    sha256: str
    conversations: tuple[Conversation, ...]
    released: tuple[Conversation, ...]
    audit: Audit | None
    audited: bool
    asked: tuple[Asked, ...]
    not_asked: Mapping[str, int]

    @property
    def total(self) -> int:
        """Questions in the file."""
        return sum(len(conversation.questions) for conversation in self.released)

    def ceiling(self) -> dict[str, float] | None:
        """Share of the asked questions whose answer in the file is right, by category and in all; None without an audit."""
        if self.audit is None:
            return None
        right: Counter[str] = Counter()
        count: Counter[str] = Counter()
        for asked in self.asked:
            is_right = self.audit.gold_is_right(asked.conversation.id, asked.question)
            if is_right is not None:
                for name in (CATEGORIES[asked.question.category], "all"):
                    count[name] += 1
                    right[name] += is_right
        return {name: right[name] / count[name] for name in (*COLUMNS, "all") if count[name]}

    def description(self) -> dict[str, Any]:
        """What the summary says about the data."""
        questions = [question for conversation in self.released for question in conversation.questions]
        turns = [turn for conversation in self.released for turn in conversation.turns]
        described: dict[str, Any] = {
            "file": self.file,
            "sha256": self.sha256,
            "conversations": len(self.released),
            "sessions": sum(len(conversation.sessions) for conversation in self.released),
            "turns": len(turns),
            "captions": sum(turn.caption is not None for turn in turns),
            "captions_with_url": sum(turn.caption is not None and turn.has_url for turn in turns),
            "questions": len(questions),
            "by_category": {
                name: sum(CATEGORIES[question.category] == name for question in questions)
                for name in (*COLUMNS, ADVERSARIAL)
            },
            "evidence_strings_repaired": sum(len(question.repaired) for question in questions),
            "evidence_strings_unusable": sum(len(question.unusable) for question in questions),
            "questions_without_usable_evidence": sum(not question.evidence for question in questions),
            "questions_that_occur_again": sum(_again(conversation) for conversation in self.released),
        }
        if self.audit is not None:
            kinds = Counter(correction.kind for correction in self.audit.corrections.values())
            described["audit"] = {
                "file": self.audit.file,
                "sha256": self.audit.sha256,
                "applied": self.audited,
                "wrong_answers": sum(correction.answer is not None for correction in self.audit.corrections.values()),
                "by_kind": dict(kinds.most_common()),
            }
        return described

    @property
    def version(self) -> str:
        """Name of the version of the benchmark."""
        return version_name(self.released, self.sha256)


def _again(conversation: Conversation) -> int:
    seen = Counter((question.text, question.answer, question.category) for question in conversation.questions)
    return sum(count - 1 for count in seen.values())


def read_benchmark(config: LocomoConfig) -> Benchmark:
    """Read the benchmark and the audit and choose the questions.

    Raises:
        DeltaMemError: If a file that is needed is missing or wrong.
    """
    path = config.data or require(LOCOMO)
    released = tuple(load_locomo(path))
    sha256 = file_sha256(path)
    audit = _audit(config, released, known=version_name(released, sha256))
    audited = config.gold == "audited" and audit is not None
    conversations = tuple(audit.apply(conversation) for conversation in released) if audited and audit else released
    asked, not_asked = _choose(conversations, config.categories, config.limit)
    if not asked:
        raise DeltaMemError(f"{path}: has no question of the categories {sorted(set(config.categories))}")
    return Benchmark(path.name, sha256, conversations, released, audit, audited, asked, not_asked)


def _audit(config: LocomoConfig, released: Sequence[Conversation], known: str) -> Audit | None:
    if config.audit is None and config.gold == "original" and known.startswith("unknown"):
        return None  # the list that happens to lie there is of the released file
    path: Path | None = config.audit or find(LOCOMO_AUDIT)
    if path is not None:
        return load_audit(path, released)
    if config.gold == "audited":
        raise DeltaMemError(missing(LOCOMO_AUDIT))
    return None


def _choose(
    conversations: Sequence[Conversation], categories: Sequence[int], limit: int | None
) -> tuple[tuple[Asked, ...], dict[str, int]]:
    asked: list[Asked] = []
    not_asked = {"category": 0, "limit": 0}
    for conversation in conversations:
        chosen = [question for question in conversation.questions if question.category in categories]
        not_asked["category"] += len(conversation.questions) - len(chosen)
        not_asked["limit"] += len(chosen) - len(chosen[:limit])
        asked += [Asked(conversation, question) for question in chosen[:limit]]
    return tuple(asked), not_asked
