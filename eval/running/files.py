"""The records in the output folder of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deltamem.errors import DeltaMemError
from eval.results.record_file import RecordFile
from eval.results.records import Found, IngestRecord, PassageRecord, QuestionRecord
from eval.systems.protocol import Passage


@dataclass(frozen=True)
class RunFiles:
    """What is done, and where the rest is written.

    Attributes:
        sessions: One for each store and session.
        passages: Each passage that was found for something.
        retrieved: Questions as they were searched for, without answers.
        questions: Questions with answers and verdicts.
    """

    sessions: RecordFile[IngestRecord]
    passages: RecordFile[PassageRecord]
    retrieved: RecordFile[QuestionRecord]
    questions: RecordFile[QuestionRecord]

    def keep(self, passages: Iterable[Passage], store: str) -> tuple[Found, ...]:
        """Keep passages that were found, each once, and name them."""
        found = []
        for passage in passages:
            kept = PassageRecord.of(passage, store)
            if kept.id not in self.passages:
                self.passages.add(kept)
            found.append(Found(passage=kept.id, similarity=passage.similarity))
        return tuple(found)

    def found(self, named: Iterable[Found]) -> tuple[Passage, ...]:
        """The passages that `keep` named.

        Raises:
            DeltaMemError: If one is not there.
        """
        kept = ((self._kept(found), found.similarity) for found in named)
        return tuple(Passage(record.text, record.time, record.sources, similarity) for record, similarity in kept)

    def store_of(self, found: Found) -> str:
        """The store that a passage comes from.

        Raises:
            DeltaMemError: If the passage is not there.
        """
        return self._kept(found).store

    def _kept(self, found: Found) -> PassageRecord:
        kept = self.passages.get(found.passage)
        if kept is None:
            raise DeltaMemError(f"{self.passages.path} does not hold the passage {found.passage}")
        return kept


@contextmanager
def open_files(folder: Path) -> Iterator[RunFiles]:
    """Open the records of an output folder, or begin them.

    Raises:
        DeltaMemError: If a line of a file is not a record.
        OSError: If a file cannot be read or written.
    """
    with ExitStack() as stack:
        yield RunFiles(
            stack.enter_context(RecordFile(folder / "sessions.jsonl", IngestRecord, lambda record: record.key)),
            stack.enter_context(RecordFile(folder / "passages.jsonl", PassageRecord, lambda record: record.id)),
            stack.enter_context(RecordFile(folder / "retrieved.jsonl", QuestionRecord, lambda record: record.key)),
            stack.enter_context(RecordFile(folder / "questions.jsonl", QuestionRecord, lambda record: record.key)),
        )
