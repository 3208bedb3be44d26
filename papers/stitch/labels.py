"""Label spaces of an intent index: what scopes, events and entity types there are, as a log of changes.

The inventories are a replay of their changes, as a memory state is one of its journal: version n is what the first n changes
made. A label is never rewritten where it was assigned; merging two adds a change, and what was labelled with the old one is
read with the new one from then on.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from deltamem.errors import DeltaMemError
from papers.stitch.records import Intent, IntentFilter


class Facet(StrEnum):
    """The three parts of a contextual intent; each has a label space of its own."""

    SCOPE = "scope"
    EVENT = "event"
    ENTITY = "entity"


class LabelChange(NamedTuple):
    """A label that is new, or that another one replaces."""

    facet: Facet
    label: str
    into: str | None = None  # What replaces it, a label of the same space; None if it is new


LABEL_LENGTH = 80
"""Characters of a label that a labeller makes up, at most."""


def tidy(label: str) -> str:
    """A label as it is kept: one line, single spaces, nothing that cannot be seen."""
    if not label.isprintable():
        seen = (character for character in label if unicodedata.category(character) != "Cf")
        label = "".join(character if character.isprintable() else " " for character in seen)
    return " ".join(label.split())


def new_label(text: str) -> str:
    """A label of somebody's making, tidied and not too long."""
    return tidy(text)[:LABEL_LENGTH].rstrip()


def _folded(label: str) -> str:
    """The form in which two labels are the same."""
    folded = tidy(label).casefold()
    return folded if folded.isascii() else unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", folded).casefold())


class LabelSpaces:
    """The label spaces of one index."""

    def __init__(self, changes: Iterable[LabelChange] = ()) -> None:
        """Replay changes."""
        self.version = 0
        self._labels: dict[Facet, dict[str, None]] = {facet: {} for facet in Facet}  # Current ones, oldest first
        self._current: dict[Facet, dict[str, str]] = {facet: {} for facet in Facet}  # By folded label, merged ones too
        for change in changes:
            self.apply(change)

    def labels(self, facet: Facet) -> tuple[str, ...]:
        """The inventory: labels that were not merged into others, in the order of their arrival."""
        return tuple(self._labels[facet])

    def current(self, facet: Facet, label: str) -> str | None:
        """The label of the inventory that a label means: itself in any case, or what replaced it; None if it is unknown."""
        return self._current[facet].get(_folded(label))

    def apply(self, change: LabelChange) -> None:
        """Make a change.

        Raises:
            DeltaMemError: If the label is empty or known already, or what should replace it is not another known one.
        """
        facet, label = change.facet, tidy(change.label)
        known, labels = self._current[facet], self._labels[facet]
        if change.into is None:
            if not label or _folded(label) in known:
                raise DeltaMemError(f"{facet} label {change.label!r} is {'known already' if label else 'empty'}")
            known[_folded(label)] = label
            labels[label] = None
        else:
            old, new = self.current(facet, label), self.current(facet, change.into)
            if old is None or new is None or old == new:
                raise DeltaMemError(f"{facet} label {change.label!r} cannot be merged into {change.into!r}")
            del labels[old]
            for folded, meant in known.items():
                if meant == old:
                    known[folded] = new
        self.version += 1

    def relabelled(self, intent: Intent) -> Intent:
        """An intent with the labels of the inventory in place of those that were merged; unknown ones are left out."""
        entities = (self.current(Facet.ENTITY, label) for label in intent.entity_types)
        return Intent(
            self.current(Facet.SCOPE, intent.scope) or "",
            self.current(Facet.EVENT, intent.event) or "",
            tuple(dict.fromkeys(label for label in entities if label is not None)),
        )

    def unknown(self, intent: Intent) -> list[LabelChange]:
        """The additions that an intent needs; an empty label is none."""
        found: dict[tuple[Facet, str], LabelChange] = {}
        for facet, labels in by_facet(intent).items():
            for label in map(tidy, labels):
                if label and self.current(facet, label) is None:
                    found.setdefault((facet, _folded(label)), LabelChange(facet, label))
        return list(found.values())

    def known(self, wanted: IntentFilter) -> IntentFilter:
        """A filter in the labels of the inventory, each once; unknown ones are left out."""
        kept: dict[Facet, list[str]] = {}
        for facet, labels in by_facet(wanted).items():
            current = dict.fromkeys(self.current(facet, label) for label in labels)
            kept[facet] = [label for label in current if label is not None]
        return IntentFilter(*(tuple(kept[facet]) for facet in (Facet.SCOPE, Facet.EVENT, Facet.ENTITY)))


def by_facet(labelled: Intent | IntentFilter) -> Mapping[Facet, tuple[str, ...]]:
    """The labels of an intent or a filter by facet."""
    if isinstance(labelled, Intent):
        scopes, events = tuple(filter(None, (labelled.scope,))), tuple(filter(None, (labelled.event,)))
    else:
        scopes, events = labelled.scopes, labelled.events
    return {Facet.SCOPE: scopes, Facet.EVENT: events, Facet.ENTITY: labelled.entity_types}
