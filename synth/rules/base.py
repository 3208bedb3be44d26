"""What a rule is: a name, a sentence for the model and the report, and a check that says what is wrong.

A rule judges one *case*: the answer of a unit against its task, or a finished whole (a life, a labelled session). It yields
one sentence a violation, worded so that a model can mend it: which item, what was found, what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from synth.tasks import Unit

TaskT = TypeVar("TaskT", covariant=True)
SubjectT = TypeVar("SubjectT", covariant=True)


class Similarity(Protocol):
    """Cosine similarities of texts; the embedding model behind it is the caller's choice."""

    def between(self, texts: list[str], others: list[str]) -> list[list[float]]:
        """A row for each of `texts` with its similarity, -1 to 1, to each of `others`."""
        ...


@dataclass(frozen=True, slots=True)
class Case(Generic[TaskT, SubjectT]):
    """What a rule judges.

    Attributes:
        task: What the writer was told; the `Shape` for a whole life, None for a labelled session.
        answer: What it answered, or the finished whole.
        similarity: None where no embedding model is at hand; rules that need one are then not checked.
    """

    task: TaskT
    answer: SubjectT
    similarity: Similarity | None = None


Check = Callable[[Case[Any, Any]], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A named check.

    Attributes:
        name: ``<subject>.<what is demanded>``, for example ``events.previous_text_exact``.
        says: The rule in one sentence.
        check: Yields a sentence a violation.
        needs_similarity: Whether it is left out without an embedding model.
    """

    name: str
    says: str
    check: Check
    needs_similarity: bool = False


class Violation(NamedTuple):
    """A broken rule and what exactly is wrong."""

    rule: str
    message: str


class Verdict(NamedTuple):
    """What the rules say of one case: which were checked, and what is wrong."""

    checked: tuple[str, ...]
    violations: tuple[Violation, ...]


def rule(subject: Unit | str, says: str, *, needs_similarity: bool = False) -> Callable[[Check], Rule]:
    """Make a rule of a check; it is named after the function.

    Args:
        subject: What it judges: a unit, ``life`` or ``session``.
        says: The rule in one sentence.
        needs_similarity: Whether it is left out without an embedding model.
    """
    return lambda check: Rule(f"{subject}.{check.__name__}", says, check, needs_similarity)


def judge(rules: Iterable[Rule], case: Case[Any, Any]) -> Verdict:
    """Check a case against rules, in their order."""
    applied = [rule for rule in rules if case.similarity is not None or not rule.needs_similarity]
    violations = tuple(Violation(rule.name, message) for rule in applied for message in rule.check(case))
    return Verdict(tuple(rule.name for rule in applied), violations)
