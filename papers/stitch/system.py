"""STITCH as a system under test: every turn is a step of one trajectory, found by its contextual intent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain, dropwhile, islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from deltamem.config import StrictModel
from deltamem.embedding import Embedder
from deltamem.errors import DeltaMemError
from deltamem.journal.journal import JOURNAL_FILE, Journal
from deltamem.llm import Usage
from deltamem.runs import RecordFile
from eval.config import BenchmarkConfig
from eval.systems.base import DialogueSession, Ingested, Passage, StoreKey, store_folder
from eval.systems.kinds import Calls, SystemContext, SystemKind, session_tokens, turns_shown
from papers.stitch.embedding_labeller import EmbeddingLabeller
from papers.stitch.index import IntentIndex
from papers.stitch.labeller import N_START, GoldStep, IntentLabeller, OracleLabeller, Part
from papers.stitch.llm_labeller import LLMLabeller
from papers.stitch.records import IntentFilter, Step
from papers.stitch.store import IntentLog

SESSIONS_FILE = "sessions.jsonl"


LabellerKind = Literal["llm", "embedding", "oracle"]


class StitchKeys(StrictModel):
    """The keys of ``system=stitch``."""

    labeller: LabellerKind | None = None  # None means `llm` if a manager's model is named, else `embedding`
    without: list[Part] = Field(default=[])  # What is left out


@dataclass(frozen=True, slots=True)
class OracleIntents:
    """The intents of one store, as an `OracleLabeller` takes them."""

    steps: Mapping[str, GoldStep]  # By id of the turn
    queries: Mapping[str, IntentFilter]  # By text of the question


class _LabelledSession(StrictModel):
    """A session whose turns were labelled; one line of ``sessions.jsonl``."""

    session: str
    turns: tuple[str, ...]


class StitchSystem:
    """One intent index a store, kept in a journal; a passage is a turn with its references resolved."""

    name = "stitch"
    per_speaker = False
    ranked = True

    def __init__(
        self,
        labellers: Callable[[StoreKey], IntentLabeller],
        embedder: Embedder,
        folder: Path,
        without: Collection[Part] = (),
    ) -> None:
        """Begin with what the `folder` holds, in which each store gets a folder.

        `labellers` makes the labeller of each store; `without` names the parts that an ablation leaves out.
        """
        self._labellers = labellers
        self._embedder = embedder
        self._folder = folder
        self._without = tuple(dict.fromkeys(without))
        self._labeller_name: str | None = None
        self._prompt_hashes: dict[str, str] = {}

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[StitchMemory]:
        """Open a store, or make it.

        Raises:
            DeltaMemError: If its id cannot name a folder, or its files cannot be read.
            EmbedderUnavailableError: If the embedder is missing.
        """
        folder = store_folder(self._folder, key)
        await asyncio.to_thread(self._embedder.queries, [])  # a missing model is found before work is half done
        labeller = self._labellers(key)
        self._labeller_name = labeller.name
        if isinstance(labeller, LLMLabeller):
            self._prompt_hashes = labeller.prompt_hashes
        folder.mkdir(parents=True, exist_ok=True)
        with (
            Journal.open(folder / JOURNAL_FILE) as journal,
            RecordFile(folder / SESSIONS_FILE, _LabelledSession, lambda record: record.session) as sessions,
        ):
            log = IntentLog(journal.owner(key.owner), "turns")
            index = IntentIndex(labeller, self._embedder, log, without=self._without)
            yield StitchMemory(index, sessions, labeller)

    def facts(self) -> dict[str, Any]:
        """The labeller, the embedder, what was left out, and the prompts of a labeller that has some."""
        said = {"labeller": self._labeller_name, "embedder": self._embedder.name, "without": list(self._without)}
        return said | ({"prompt_hashes": self._prompt_hashes} if self._prompt_hashes else {})


class StitchMemory:
    """The steps of one store."""

    def __init__(self, index: IntentIndex, sessions: RecordFile[_LabelledSession], labeller: IntentLabeller) -> None:
        """Bind an index, the file that says which turns the sessions have, and the labeller, which knows what it cost."""
        self._index = index
        self._labeller = labeller
        self._sessions = sessions
        # A session may be missing because the store was reset since
        whole = (record.session for record in sessions if all(turn in index for turn in record.turns))
        self._known = dict.fromkeys(whole)
        self._expected: Sequence[DialogueSession] = ()

    @property
    def index(self) -> IntentIndex:
        """The index, for diagnostics of labels."""
        return self._index

    @property
    def known(self) -> Collection[str]:
        """Ids of the sessions whose turns are all in the index."""
        return self._known.keys()

    def expect(self, sessions: Sequence[DialogueSession]) -> None:
        """Say what comes next: label spaces are begun with the first steps of a trajectory, over sessions."""
        self._expected = sessions

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Label the turns of a session.

        Raises:
            DeltaMemError: If one could not be labelled; those before it are kept, and the session may be given again.
        """
        before = _usage(self._labeller)
        if session.id not in self._known:
            steps = list(_steps(session))
            ahead: Iterator[Step] = iter(())
            if not self._index.spaces.version:
                later = dropwhile(lambda one: one.id != session.id, self._expected)
                ahead = chain.from_iterable(map(_steps, islice(later, 1, None)))
            await self._index.add(steps, ahead=list(islice(ahead, max(0, N_START - len(steps)))))
            self._sessions.add(_LabelledSession(session=session.id, turns=tuple(step.id for step in steps)))
            self._known[session.id] = None
        after = dict(_usage(self._labeller))
        return Ingested(usage=Usage(**{name: after[name] - count for name, count in before}))

    async def search(self, query: str, k: int) -> list[Passage]:
        """The `k` turns that meet most of what a query asks for; similarities only break ties, so none is told.

        Raises:
            DeltaMemError: If the query could not be labelled.
        """
        hits = (await self._index.search(query, k)).hits
        steps = [(hit.snippet.step, hit.snippet.resolved) for hit in hits]
        return [Passage(f"{step.role}: {resolved}", step.time, (step.id,)) for step, resolved in steps]

    async def reset(self) -> None:
        """Forget everything."""
        await self._index.clear()
        self._known.clear()


def _steps(session: DialogueSession) -> Iterator[Step]:
    for turn in session.turns:
        yield Step(turn.id, turn.speaker or turn.role, turn.text, turn.time or session.time)


def _usage(labeller: IntentLabeller) -> Usage:
    return labeller.usage if isinstance(labeller, LLMLabeller) else Usage()


class StitchKind(SystemKind):
    """STITCH; asks a model if its labeller is one."""

    name = "stitch"
    keys = StitchKeys

    def asks_model(self, config: BenchmarkConfig) -> bool:
        """Whether the labeller is a model."""
        return labelled_by(config) == "llm"

    def run_config(self, config: BenchmarkConfig) -> dict[str, Any]:
        """The labeller that is meant, and what is left out."""
        return {"labeller": labelled_by(config), "without": sorted(config.own(StitchKeys).without)}

    def make(self, context: SystemContext) -> StitchSystem:
        """Raises `DeltaMemError` if ``labeller=oracle`` and the benchmark knows no intents."""
        without = context.config.own(StitchKeys).without
        return StitchSystem(_labellers(context, without), context.embedder, context.folder, without)

    def calls(self, session: DialogueSession, store: StoreKey, config: BenchmarkConfig) -> Iterator[Calls]:
        """For each turn; merges and notes are few."""
        if self.asks_model(config):
            each, prompt, written = 3, 900, 60  # assumed; tokens a call of prompt, labels and earlier turns
            count = each * len(session.turns)
            yield Calls(count, count * prompt + each * session_tokens(session), written)

    def texts(self, session: DialogueSession) -> float:
        """Every turn."""
        return len(session.turns)

    def shown(self, sessions: Sequence[DialogueSession], passages: int) -> float:
        """Turns."""
        return turns_shown(sessions, passages)


STITCH = StitchKind()


def labelled_by(config: BenchmarkConfig) -> LabellerKind:
    """The labeller that is meant."""
    return config.own(StitchKeys).labeller or ("embedding" if config.manager.model is None else "llm")


def _labellers(context: SystemContext, without: Collection[Part]) -> Callable[[StoreKey], IntentLabeller]:
    """Makes the labeller of a store."""
    config, embedder = context.config, context.embedder
    kind = labelled_by(config)
    if kind == "embedding":
        return lambda key: EmbeddingLabeller(embedder, without=without)
    if kind == "llm":
        llm, manager = context.models.manager, config.manager
        assert llm is not None  # as one is named
        options: dict[str, Any] = {
            "temperature": manager.temperature,
            "max_tokens": manager.max_tokens,
            "seed": config.seed,
            "extra_body": manager.extra_body,
        }
        return lambda key: LLMLabeller(llm, embedder, without=without, **options)
    intents: Mapping[str, OracleIntents] | None = context.extra("intents")
    if intents is None:
        raise DeltaMemError("labeller=oracle needs the intents of turns and questions, and this benchmark names none")

    def oracle_of(key: StoreKey) -> OracleLabeller:
        of_store = intents.get(key.id)
        return OracleLabeller({}, {}) if of_store is None else OracleLabeller(of_store.steps, of_store.queries)

    return oracle_of
