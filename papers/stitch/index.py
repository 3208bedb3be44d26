"""The intent index of one trajectory: steps are labelled in order as they come, and found by what a query asks for."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from deltamem.embedding import Embedder
from deltamem.errors import ConflictError
from deltamem.journal.journal import Journal
from papers.stitch.labeller import IntentLabeller, Labelled, Part, without_parts
from papers.stitch.labels import Facet, LabelChange, LabelSpaces
from papers.stitch.records import IntentFilter, Snippet, Stamp, Step
from papers.stitch.retrieval import (
    CONTEXT_TOKENS,
    K_RETRIEVE,
    IntentHit,
    LabelRows,
    VectorRows,
    densest,
    met,
    within_budget,
)
from papers.stitch.store import IntentLog, LabelVersion, StaleIntentsError

_AT_ONCE = 128  # Texts a call of the embedder


@dataclass(frozen=True, slots=True)
class IntentHits:
    """What a query found."""

    wanted: IntentFilter  # What it asked for, in the labels of the inventories
    hits: tuple[IntentHit, ...]  # Best first

    def context(self, tokens: int = CONTEXT_TOKENS) -> str:
        """The hits as a model is shown them, one a line, as many as fit a budget of estimated tokens."""
        found = (hit.snippet for hit in self.hits)
        lines = (f"[{one.step.time:%Y/%m/%d %H:%M}] {one.step.role}: {one.resolved}" for one in found)
        return "\n".join(within_budget(lines, tokens))


class IntentIndex:
    """Labels steps, keeps their snippets in a journal, and finds them. Used from one event loop."""

    def __init__(
        self,
        labeller: IntentLabeller,
        embedder: Embedder,
        log: IntentLog | None = None,
        *,
        without: Collection[Part] = (),
    ) -> None:
        """Begin with what is there.

        Args:
            labeller: Labels steps and queries.
            embedder: Embeds summaries and queries.
            log: Where the steps are kept, see `papers.stitch.store.IntentLog`; None keeps them in memory.
            without: Parts of the method that are left out.

        Raises:
            ConflictError: If another labeller labelled what is there.
        """
        self._labeller = labeller
        self._embedder = embedder
        self._log = IntentLog(Journal.open(None).owner("trajectory"), "steps") if log is None else log
        self._without = frozenset(without)
        self._name = "-".join([labeller.name, *sorted(self._without)])
        self._writing = asyncio.Lock()
        self._embedding = asyncio.Lock()
        self._load()

    def _load(self) -> None:
        records = self._log.load()
        if records is not None and records.labeller != self._name:
            made_by = f"{self._log.collection!r} is labelled by {records.labeller!r}"
            raise ConflictError(f"{made_by}, not by {self._name!r}; clear it to label it again")
        self.spaces = LabelSpaces() if records is None else LabelSpaces(one.change for one in records.versions)
        if records is not None and records.versions:
            self.spaces.version = records.versions[-1].version
        self.stamp = None if records is None else records.stamp
        self._drafts = {} if records is None else records.drafts
        self._numbers: list[int] = []
        self._snippets: list[Snippet] = []  # With the labels of today; the journal keeps those that they were given
        self._row: dict[str, int] = {}  # By id of the step
        self._rows = LabelRows()
        self._notes: defaultdict[str, list[str]] = defaultdict(list)
        self._vectors = VectorRows()
        if records is not None:
            for number, snippet in zip(records.numbers, records.snippets, strict=True):
                self._take(number, snippet)
            for note in records.notes:
                self._notes[self.spaces.current(Facet.SCOPE, note.scope) or note.scope].append(note.text)
            self._take_vectors()

    def _take_vectors(self) -> None:
        """The vectors that are kept, as far as none is missing between them."""
        kept = self._log.vectors(self._embedder.name)
        known = []
        for number in self._numbers:
            if number not in kept:
                break
            known.append(kept[number])
        if known:
            self._vectors.extend(np.frombuffer(b"".join(known), dtype="<f4").reshape(len(known), -1))

    async def clear(self) -> None:
        """Erase everything for good."""
        async with self._writing:
            await asyncio.to_thread(self._log.clear)
            self._load()

    def __len__(self) -> int:
        """How many steps there are."""
        return len(self._snippets)

    def __contains__(self, step_id: object) -> bool:
        """Whether a step is in the index."""
        return step_id in self._row

    @property
    def ids(self) -> AbstractSet[str]:
        """The ids of the steps."""
        return self._row.keys()

    def snippet(self, row: int) -> Snippet:
        """A step in the order of their arrival, with the labels of today's inventories."""
        return self._snippets[row]

    def latest(self, count: int) -> list[Snippet]:
        """The last `count` steps, in order."""
        return [self.snippet(row) for row in range(max(0, len(self) - count), len(self))]

    def labelled(self, facet: Facet, label: str, count: int) -> list[Snippet]:
        """The last `count` steps that have a label, in order."""
        return [self.snippet(int(row)) for row in self._rows.of(facet, label, count)]

    def aligned(self, scope: str, event: str, count: int) -> list[Snippet]:
        """The last `count` steps that share the scope or the event, in order; those of the scope come before others."""
        chosen = set(map(int, self._rows.of(Facet.SCOPE, scope, count)))
        for row in self._rows.of(Facet.EVENT, event, count)[::-1]:
            if len(chosen) == count:
                break
            chosen.add(int(row))
        return [self.snippet(row) for row in sorted(chosen)]

    def notes(self, scope: str) -> Sequence[str]:
        """What was noted of a scope, in order."""
        return tuple(self._notes.get(scope, ()))

    def draft(self, name: str) -> str | None:
        """What `keep_draft` kept for the step that is being labelled; None if there is nothing of this name."""
        return self._drafts.get(name)

    async def keep_draft(self, name: str, answer: str, stamp: Stamp | None) -> None:
        """Keep an answer until the step is labelled; refused if something was erased since the index had the `stamp`."""
        await asyncio.to_thread(self._log.keep_draft, name, answer, after=stamp)
        self._drafts[name] = answer

    async def begin(self) -> Stamp | None:
        """Make sure that the collection is there, so that whatever is erased from now on changes the stamp.

        Returns:
            The stamp.

        Raises:
            ConflictError: If another labeller labelled what is there.
        """
        self.refresh()
        if self.stamp is None:
            await asyncio.to_thread(self._log.begin, self._name)
            self.refresh()
        return self.stamp

    async def add(self, steps: Sequence[Step], *, ahead: Sequence[Step] = (), since: Stamp | None = None) -> int:
        """Label steps in order; those that are known already, by id, are left out. Each is kept before the next is labelled.

        Args:
            steps: The steps.
            ahead: Steps that will be added after them; label spaces may be begun with them.
            since: What `begin` returned before they were made of something that may be forgotten meanwhile.

        Returns:
            How many were new.

        Raises:
            ConflictError: If a step has the id of another one, or everything was erased meanwhile.
            StaleIntentsError: If something was erased since `since`: the steps have to be made again.
            DeltaMemError: If one cannot be labelled; those before it are kept.
        """
        self.refresh()
        async with self._writing:
            new = self._new(steps)
            if new and self.stamp is None:
                await asyncio.to_thread(self._log.begin, self._name)
                self._load()
            for number, step in enumerate(new):
                while step.id not in self:
                    if since is not None and self.stamp != since:
                        raise StaleIntentsError(f"something of {self._log.collection!r} was forgotten meanwhile")
                    stamp = self.stamp
                    try:
                        labelled = await self._labeller.label(step, self, [*new[number + 1 :], *ahead])
                        await self._write(without_parts(labelled, self._without), stamp)
                    except StaleIntentsError as error:
                        # Label it again, after what was written and without what was erased meanwhile
                        self._load()
                        if self.stamp is None:
                            raise ConflictError(f"{self._log.collection!r} was erased meanwhile") from error
            return len(new)

    def _new(self, steps: Sequence[Step]) -> list[Step]:
        new: dict[str, Step] = {}
        for step in steps:
            known = new.get(step.id) or (self.snippet(self._row[step.id]).step if step.id in self else None)
            if known is not None and known.text != step.text:
                raise ConflictError(f"step {step.id!r} was given with another text before")
            if known is None:
                new[step.id] = step
        return list(new.values())

    async def search(self, query: str, k: int = K_RETRIEVE, among: AbstractSet[str] | None = None) -> IntentHits:
        """Find the steps that meet most of what a query asks for; among equals the most similar come first.

        Args:
            query: What to look for.
            k: How many steps at most.
            among: Ids of the only steps that may be found; None for all.

        Raises:
            DeltaMemError: If the query cannot be labelled.
        """
        self.refresh()
        if not len(self) or k < 1:
            return IntentHits(IntentFilter(), ())
        asked = await self._labeller.filter(query, self.spaces)
        (vector,) = await asyncio.to_thread(self._embedder.queries, [query])
        self.refresh()
        matrix = (await self._embedded()).matrix
        # From here on nobody else is waited for: labels, rows and vectors are of one reading
        wanted = self._asked(asked)
        rows = None
        if among is not None and not self._row.keys() <= among:
            rows = np.array(sorted(self._row[id] for id in among if id in self._row), dtype=np.intp)
            rows = rows[rows < len(matrix)]
        found = densest(self._rows.density(wanted, len(self))[: len(matrix)], matrix, vector, k, rows)
        snippets = [(self.snippet(row), similarity) for row, similarity in found]
        return IntentHits(wanted, tuple(IntentHit(one, similarity, met(one.intent, wanted)) for one, similarity in snippets))

    def refresh(self) -> None:
        """Read again what is there if somebody else wrote meanwhile, or erased something.

        Raises:
            ConflictError: If another labeller labelled what is there now.
        """
        place = self._log.place
        # While a step is written the journal is ahead for a moment
        if place[0] != self.stamp or (place[1] != self._last and not self._writing.locked()):
            self._load()

    @property
    def _last(self) -> int:
        return self._numbers[-1] if self._numbers else 0

    def _asked(self, wanted: IntentFilter) -> IntentFilter:
        known = self.spaces.known(wanted)
        return IntentFilter(
            () if Part.SCOPE in self._without else known.scopes,
            () if Part.EVENT in self._without else known.events,
            () if Part.ENTITY in self._without else known.entity_types,
        )

    async def _write(self, labelled: Labelled, stamp: Stamp | None) -> None:
        snippet, notes = labelled.snippet, labelled.notes
        first, version, after = len(self), self.spaces.version, (stamp, self._last)
        try:
            if self.stamp != stamp:
                raise StaleIntentsError(f"something of {self._log.collection!r} was erased meanwhile")
            changes = list(labelled.changes)
            for change in changes:
                self._change(change)
            for change in self.spaces.unknown(snippet.intent):
                self._change(change)
                changes.append(change)
            versions = [LabelVersion(version + place, first, *change) for place, change in enumerate(changes, start=1)]
            number = await asyncio.to_thread(self._log.append, snippet, versions, notes, after=after)
        except BaseException:
            self._load()  # the label spaces as they are kept
            raise
        if self.stamp != stamp:  # read again before this was known to be written
            self._load()
            return
        self._take(number, snippet)
        for note in notes:
            self._notes[self.spaces.current(Facet.SCOPE, note.scope) or note.scope].append(note.text)
        self._drafts = {}

    def _take(self, number: int, snippet: Snippet) -> None:
        row = len(self._snippets)
        self._numbers.append(number)
        intent = self.spaces.relabelled(snippet.intent)
        self._snippets.append(replace(snippet, step=replace(snippet.step, context=""), intent=intent))
        self._row[snippet.step.id] = row
        self._rows.add(row, intent)

    def _change(self, change: LabelChange) -> None:
        old = self.spaces.current(change.facet, change.label)
        self.spaces.apply(change)
        if change.into is not None and old is not None:
            new = self.spaces.current(change.facet, change.into)
            assert new is not None  # or the change would have been refused
            for row in self._rows.of(change.facet, old):
                kept = self._snippets[row]
                self._snippets[row] = replace(kept, intent=self.spaces.relabelled(kept.intent))
            self._rows.merge(change.facet, old, new)
            if change.facet is Facet.SCOPE and old in self._notes:
                self._notes[new] += self._notes.pop(old)

    async def _embedded(self) -> VectorRows:
        """The vectors of all summaries; those that are missing are made, and kept."""
        async with self._embedding:
            vectors = self._vectors
            while (known := len(vectors)) < len(self):
                end = known + _AT_ONCE
                texts, numbers = [one.summary for one in self._snippets[known:end]], self._numbers[known:end]
                fresh = await asyncio.to_thread(self._embedder.documents, texts)
                kept = {number: vector.astype("<f4").tobytes() for number, vector in zip(numbers, fresh, strict=True)}
                await asyncio.to_thread(self._log.keep_vectors, self._embedder.name, kept)
                if vectors is self._vectors:
                    vectors.extend(fresh)
                else:  # read again meanwhile
                    vectors = self._vectors
            return vectors
