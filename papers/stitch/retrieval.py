"""Retrieval by intent: how many constraints of a query a step meets decides, then how similar its summary is."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltamem.bank.base import best_rows
from deltamem.embedding import Vectors
from deltamem.window import BYTES_PER_TOKEN, whole_sentences
from papers.stitch.labels import Facet, by_facet
from papers.stitch.records import Intent, IntentFilter, Snippet

K_RETRIEVE = 40
"""Steps that a query returns; section 4 of the paper, as is the next one."""

CONTEXT_TOKENS = 4_096
"""What a model is shown of them, in estimated tokens."""

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class IntentHit:
    """A step that a query found."""

    snippet: Snippet  # With the labels of today's inventories
    similarity: float  # Cosine of query and summary
    met: IntentFilter  # The constraints of the query that it meets

    @property
    def density(self) -> int:
        """How many constraints it meets."""
        return sum(map(len, by_facet(self.met).values()))

    def explanation(self, wanted: IntentFilter) -> str:
        """Why it was found, in one line: the constraints of the query that it meets, out of how many."""
        asked = sum(map(len, by_facet(wanted).values()))
        if not asked:
            return f"similarity {self.similarity:.2f}; the query asks for no label"
        met = "; ".join(f"{facet} {', '.join(labels)}" for facet, labels in by_facet(self.met).items() if labels)
        return f"{self.density} of {asked} labels{f': {met}' if met else ''}; similarity {self.similarity:.2f}"


class LabelRows:
    """Which rows of an index have which label, as lists that grow with it."""

    def __init__(self) -> None:
        self._rows: defaultdict[tuple[Facet, str], array[int]] = defaultdict(lambda: array("q"))

    def add(self, row: int, intent: Intent) -> None:
        """Note the labels of the next row."""
        for facet, labels in by_facet(intent).items():
            for label in labels:
                self._rows[facet, label].append(row)

    def merge(self, facet: Facet, old: str, new: str) -> None:
        """Give all rows of one label to another; rows that have both have it once."""
        if (gone := self._rows.pop((facet, old), None)) is not None:
            self._rows[facet, new] = array("q", sorted({*gone, *self._rows[facet, new]}))

    def of(self, facet: Facet, label: str, count: int | None = None) -> Rows:
        """The rows of a label, rising: all, or the last `count`."""
        rows = self._rows.get((facet, label), array("q"))
        return np.array(rows if count is None else rows[max(0, len(rows) - count) :], dtype=np.intp)

    def density(self, wanted: IntentFilter, rows: int) -> npt.NDArray[np.int32]:
        """How many constraints each of the first `rows` rows meets."""
        counts = np.zeros(rows, dtype=np.int32)
        for facet, labels in by_facet(wanted).items():
            for label in labels:
                counts[self.of(facet, label)] += 1
        return counts


class VectorRows:
    """Unit vectors in the order of the rows, in one matrix that has room to grow."""

    def __init__(self) -> None:
        self._matrix: Vectors = np.zeros((0, 0), dtype=np.float32)
        self._count = 0

    def __len__(self) -> int:
        """How many there are."""
        return self._count

    @property
    def matrix(self) -> Vectors:
        """All of them, shape ``(rows, dim)``."""
        return self._matrix[: self._count]

    def extend(self, vectors: Vectors) -> None:
        """Add the next ones."""
        needed = self._count + len(vectors)
        if needed > len(self._matrix):
            grown = np.empty((max(needed, 2 * len(self._matrix)), vectors.shape[1]), dtype=np.float32)
            grown[: self._count] = self._matrix[: self._count] if self._count else 0
            self._matrix = grown
        self._matrix[self._count : needed] = vectors
        self._count = needed


def densest(
    density: npt.NDArray[np.int32], vectors: Vectors, query: Vectors, k: int, among: Rows | None = None
) -> list[tuple[int, float]]:
    """The best `k` rows with their similarity, by falling density, equal ones by falling similarity, then in their order.

    Similarities are computed only of rows that can be among them.

    Args:
        density: Of each row.
        vectors: Unit vectors of the summaries, shape ``(rows, dim)``.
        query: Unit vector, shape ``(dim,)``.
        k: How many rows at most.
        among: The only rows that count, rising; None for all.
    """
    rows = np.arange(len(density)) if among is None else among
    if k < 1 or not len(rows):
        return []
    # The least density that the best k rows can have
    at_least = np.cumsum(np.bincount(density[rows])[::-1])[::-1]
    least = int(np.flatnonzero(at_least >= min(k, len(rows)))[-1])
    above, level = rows[density[rows] > least], rows[density[rows] == least]

    def similarity(of: Rows) -> Vectors:
        # Sums of float32 differ in the seventh decimal by where a row stands in the matrix, which would break ties.
        return np.round((vectors if len(of) == len(vectors) else vectors[of]) @ query, 6)

    near = similarity(level)
    best = best_rows(near, k - len(above))
    rows, near = np.concatenate([above, level[best]]), np.concatenate([similarity(above), near[best]])
    order = np.lexsort((-near, -density[rows]))  # stable
    return [(int(rows[place]), float(near[place])) for place in order]


def met(intent: Intent, wanted: IntentFilter) -> IntentFilter:
    """The constraints of a query that an intent meets, in the order of the query."""
    return IntentFilter(
        tuple(scope for scope in wanted.scopes if scope == intent.scope),
        tuple(event for event in wanted.events if event == intent.event),
        tuple(entity for entity in wanted.entity_types if entity in intent.entity_types),
    )


def within_budget(texts: Iterable[str], tokens: int = CONTEXT_TOKENS) -> list[str]:
    """The first of some texts that fit a budget of estimated tokens; the last is cut after its last sentence that fits.

    A text whose first sentence alone is longer than the whole budget is left out. Tokens are estimated as
    `deltamem.window.estimate_tokens` does, with one byte between two texts.
    """
    whole = left = tokens * BYTES_PER_TOKEN
    shown: list[str] = []
    for text in texts:
        size = _size(text)
        if size > left:
            if kept := whole_sentences(text, _size, left):
                shown.append(kept)
            elif size > whole and not whole_sentences(text, _size, whole):
                continue
            break
        shown.append(text)
        left -= size + 1
    return shown


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
