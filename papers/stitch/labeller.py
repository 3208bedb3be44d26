"""What labels steps and questions, and the oracle that knows the labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, runtime_checkable

from deltamem.errors import DeltaMemError
from papers.stitch.labels import Facet, LabelChange, LabelSpaces
from papers.stitch.records import Intent, IntentFilter, ScopeNote, Snippet, Stamp, Step

N_START = 50
"""Steps from which the label spaces are begun; section 4 of the paper, as are the next three."""

K_UPDATE = 50
"""Steps between two merges of near-synonymous labels."""

K_EVENT = 5
"""Event labels, the nearest ones, among which a step's is chosen."""

H_SCOPE = 20
"""Earlier steps that the scope of a step is told from; appendix E.1."""


class Part(StrEnum):
    """A part of the method that an ablation leaves out."""

    SCOPE = "scope"
    EVENT = "event"
    ENTITY = "entity"
    COREFERENCE = "coreference"


class History(Protocol):
    """What a labeller sees of the index: the steps so far, with today's labels."""

    @property
    def spaces(self) -> LabelSpaces:
        """The label spaces; only the index changes them."""
        ...

    @property
    def stamp(self) -> Stamp | None:
        """Changes when steps were erased: what was derived from the history before counts no longer."""
        ...

    def __len__(self) -> int:
        """How many steps there are."""
        ...

    def latest(self, count: int) -> Sequence[Snippet]:
        """The last `count` steps, in order."""
        ...

    def aligned(self, scope: str, event: str, count: int) -> Sequence[Snippet]:
        """The last `count` steps that share the scope or the event, in order; those of the scope come before others."""
        ...

    def labelled(self, facet: Facet, label: str, count: int) -> Sequence[Snippet]:
        """The last `count` steps that have a label, in order."""
        ...

    def notes(self, scope: str) -> Sequence[str]:
        """What was noted of a scope, in order."""
        ...

    def draft(self, name: str) -> str | None:
        """What `keep_draft` kept for the step that is being labelled; None if there is nothing of this name."""
        ...

    async def keep_draft(self, name: str, answer: str, stamp: Stamp | None) -> None:
        """Keep an answer until the step is labelled. It outlasts the process: no model need be asked twice.

        Args:
            name: Of the answer.
            answer: In any form.
            stamp: The one of the history that the question was made of.

        Raises:
            StaleIntentsError: If something was erased since, which the answer may repeat.
        """
        ...


@dataclass(frozen=True, slots=True)
class Labelled:
    """What labelling a step gave. The index writes all of it, or nothing."""

    snippet: Snippet
    # Of the label spaces, before the step; labels of the snippet that are still unknown then are added by the index
    changes: tuple[LabelChange, ...] = ()
    notes: tuple[ScopeNote, ...] = ()


class IntentLabeller(Protocol):
    """Labels steps, one after the other, and turns questions into labels of the same spaces."""

    name: str

    async def label(self, step: Step, history: History, upcoming: Sequence[Step]) -> Labelled:
        """Label the next step.

        Args:
            step: The step.
            history: The steps before it.
            upcoming: Steps after it that are there already; label spaces may be begun with them, and work done for several
                at once.

        Raises:
            DeltaMemError: If the step cannot be labelled; nothing is written then, and it may be given again.
        """
        ...

    async def filter(self, question: str, spaces: LabelSpaces) -> IntentFilter:
        """The labels of the inventories that what a question asks for was labelled with; none where it does not say.

        Raises:
            DeltaMemError: If the question cannot be labelled.
        """
        ...


@runtime_checkable
class CachingLabeller(IntentLabeller, Protocol):
    """A labeller whose answers may be kept in a cache, where they repeat what was said."""

    def forget_answers(self) -> None:
        """Remove them."""
        ...


def without_parts(labelled: Labelled, left_out: Collection[Part]) -> Labelled:
    """What labelling a step gave, as an ablation keeps it.

    Without coreference a step whose references were resolved is kept as it was said, and so is its summary, which was made
    of the resolved text.
    """
    if not left_out:
        return labelled
    snippet, intent = labelled.snippet, labelled.snippet.intent
    kept = Intent(
        "" if Part.SCOPE in left_out else intent.scope,
        "" if Part.EVENT in left_out else intent.event,
        () if Part.ENTITY in left_out else intent.entity_types,
    )
    resolved, summary = snippet.resolved, snippet.summary
    if Part.COREFERENCE in left_out and resolved != snippet.step.text:
        resolved = summary = snippet.step.text
    gone = {Facet(part) for part in left_out if part is not Part.COREFERENCE}
    return Labelled(
        replace(snippet, intent=kept, resolved=resolved, summary=summary),
        tuple(change for change in labelled.changes if change.facet not in gone),
        () if Part.SCOPE in left_out else labelled.notes,
    )


@dataclass(frozen=True, slots=True)
class GoldStep:
    """What a step was made from."""

    intent: Intent
    resolved: str  # Its text with every reference resolved
    summary: str


class OracleLabeller:
    """Knows the labels, from the log that a trajectory was made from: what retrieval is worth if labelling is perfect."""

    name = "oracle"

    def __init__(self, steps: Mapping[str, GoldStep], queries: Mapping[str, IntentFilter]) -> None:
        """Take the labels of the steps by id, and those of the questions by their text."""
        self._steps = steps
        self._queries = queries

    async def label(self, step: Step, history: History, upcoming: Sequence[Step]) -> Labelled:
        """Look a step up.

        Raises:
            DeltaMemError: If it is not there.
        """
        gold = self._steps.get(step.id)
        if gold is None:
            raise DeltaMemError(f"the oracle has no labels of step {step.id!r}")
        return Labelled(Snippet(step, gold.intent, gold.resolved, gold.summary))

    async def filter(self, question: str, spaces: LabelSpaces) -> IntentFilter:
        """Look a question up; labels that no step has yet are left out.

        Raises:
            DeltaMemError: If it is not there.
        """
        wanted = self._queries.get(question)
        if wanted is None:
            raise DeltaMemError(f"the oracle has no labels of the question {question!r}")
        return spaces.known(wanted)
