"""From settings to a folder of finished people: asyncio over people, stopping and going on.

What is kept, and when it is found again, is told in `synth.pipeline.work`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from deltamem.embedding import LazyEmbedder, load_embedder
from deltamem.errors import DeltaMemError, EmbedderUnavailableError, LLMError
from deltamem.event_loop import faster_loop
from synth.estimate import expected_units
from synth.offline import OfflineWriter
from synth.person import write_person
from synth.personas import draw_personas
from synth.pipeline.progress import Progress, Totals
from synth.pipeline.store import JsonLinesStore
from synth.pipeline.work import (
    ANSWERS_STORE,
    ERRORS_FILE,
    PEOPLE_STORE,
    Work,
    is_finished,
    plan,
    read_people,
    work_folder,
    write_run,
)
from synth.planning.names import InventedNames, NameSource, RealNames
from synth.records import Persona
from synth.rules.similarity import EmbedderSimilarity
from synth.settings import SynthSettings
from synth.tasks import Unit
from synth.writing import Writer, Written

if TYPE_CHECKING:
    from synth.llm.pool import EndpointPool

_DEAD_ENDPOINT = 3
"""People in a row that end in an endpoint's error, without one answer between them, before the run is given up."""

_SHOWN_ERRORS = 3

_REMEMBERED_TEXTS = 20_000
"""Texts come back within one person only, and memory shall stay flat over hundreds of them."""

_COLLECT_AFTER = 100_000
"""New objects until garbage is looked for: records hold no cycles, and Python's 700 makes it look at them all the time."""


class _GivenUp(Exception):
    """No endpoint answers any more."""


class _Studio(NamedTuple):
    """Who writes.

    Attributes:
        writer: Answers the units, and has its own means to judge them.
        similarity: Finds facts that say the same in other words, as language models write them; the offline writer does not.
        pool: The endpoints of a language model.
    """

    writer: Writer
    similarity: EmbedderSimilarity | None = None
    pool: EndpointPool | None = None


def generate(settings: SynthSettings) -> int:
    """Write the people of this shard who are not finished yet and, without shards, the files of the data set.

    Shows its progress on stderr and a summary on stdout. SIGINT and SIGTERM end it at once; what is finished stays.

    Returns:
        Exit code: 0; 1 if people failed or no endpoint answers any more; 130 or 143 after a signal.

    Raises:
        DeltaMemError: If the settings ask for something that is not there.
        OSError: If a file cannot be written.
    """
    folder = work_folder(settings)
    with _signals() as stop:
        try:
            personas = draw_personas(
                settings.personas, people=settings.people, heldout_share=settings.heldout_share, seed=settings.seed
            )
            with JsonLinesStore(folder / PEOPLE_STORE) as store:
                shift = _Shift(settings, folder, store)
                with _seldom_collecting(), asyncio.Runner(loop_factory=faster_loop()) as runner:
                    runner.run(shift.work(personas, stop))
                if stop.received is None:
                    return shift.finish()
        except (asyncio.CancelledError, _Stopped):
            pass
    number = stop.received or signal.SIGINT
    print(f"stopped by {signal.Signals(number).name}; the same command goes on from here", file=sys.stderr)
    return 128 + number


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Stopped(BaseException):
    """A signal came while no event loop ran."""


class _Stop:
    """What signals do: cancel the task if there is one, otherwise raise `_Stopped`; a second one ends the process."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.task: asyncio.Task[Any] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = number
        if self.task is None:
            raise _Stopped
        self.task.get_loop().call_soon_threadsafe(self.task.cancel)


@contextmanager
def _signals() -> Iterator[_Stop]:
    stop = _Stop()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@asynccontextmanager
async def _studio(settings: SynthSettings, folder: Path) -> AsyncIterator[_Studio]:
    if settings.writer == "offline" or settings.llm is None:
        similarity = None if settings.embedder is None else EmbedderSimilarity(LazyEmbedder(settings.embedder))
        yield _Studio(OfflineWriter(settings.seed, similarity))
        return
    # A language model's texts need it for certain: what is missing is told before anything is paid for.
    similarity = (
        None
        if settings.embedder is None
        else EmbedderSimilarity(load_embedder(settings.embedder, max_texts=_REMEMBERED_TEXTS))
    )
    from synth.llm.pool import EndpointPool  # the openai client takes half a second that the offline writer saves
    from synth.llm.writer import LLMWriter

    pool = EndpointPool(settings.llm)
    try:
        with JsonLinesStore(folder / ANSWERS_STORE) as answers:
            writer = LLMWriter(settings.llm, pool, answers, seed=settings.seed, similarity=similarity)
            yield _Studio(writer, similarity, pool)
    finally:
        await pool.close()


class _Shift:
    """One run over the people of one shard."""

    def __init__(self, settings: SynthSettings, folder: Path, store: JsonLinesStore) -> None:
        self._settings = settings
        self._folder = folder
        self._store = store
        self._names: NameSource = RealNames(settings.seed) if settings.real_names else InventedNames(settings.seed)
        self._errors: dict[str, str] = {}
        self._failures_in_a_row = 0
        self._given_up: str | None = None

    async def work(self, personas: Sequence[Persona], stop: _Stop) -> None:
        """Write the people who are not finished."""
        stop.task = asyncio.current_task()
        try:
            async with _studio(self._settings, self._folder) as studio:
                await self._write(personas, studio)
        finally:
            stop.task = None

    async def _write(self, personas: Sequence[Persona], studio: _Studio) -> None:
        settings = self._settings
        self._run, work = plan(settings, personas, studio.writer.making)
        write_run(self._folder, self._run)
        (self._folder / ERRORS_FILE).unlink(missing_ok=True)
        todo = [item for item in work if not is_finished(self._store, item.persona.person_id, item.fingerprint)]
        self._progress = Progress(
            people=len(work),
            found=len(work) - len(todo),
            expected=expected_units(settings.shape, settings.sessions),
            pool=studio.pool,
        )
        if not todo:
            return
        if studio.pool is not None:
            await studio.pool.check()
        queue = iter(todo)
        at_once = min(settings.people_at_once or settings.slots, len(todo))
        async with self._progress.shown(settings.progress_seconds):
            workers = [asyncio.create_task(self._worker(queue, studio)) for _ in range(at_once)]
            try:
                done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
                for worker in done:
                    worker.result()
            except _GivenUp as error:
                self._given_up = str(error)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def _worker(self, queue: Iterator[Work], studio: _Studio) -> None:
        for item in queue:
            self._progress.begin()
            try:
                person = await write_person(
                    item.number,
                    item.persona,
                    studio.writer,
                    self._settings.shape,
                    self._names,
                    sessions=self._settings.sessions,
                    seed=self._settings.seed,
                    similarity=studio.similarity,
                    observer=self._observe,
                )
            except EmbedderUnavailableError:
                raise
            except DeltaMemError as error:
                self._failed(item.persona.person_id, error)
            else:
                value = {"fingerprint": item.fingerprint, "person": person.model_dump(mode="json")}
                self._store.put(item.persona.person_id, value)
                self._progress.end()
            await asyncio.sleep(0)  # the offline writer never waits, so nothing else would get its turn

    def _observe(self, unit: Unit, written: Written[Any]) -> None:
        if written.spent_tokens:
            self._failures_in_a_row = 0
        self._progress.observe(unit, written)

    def _failed(self, person_id: str, error: DeltaMemError) -> None:
        self._errors[person_id] = str(error)
        with (self._folder / ERRORS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"person_id": person_id, "error": str(error)}, ensure_ascii=False) + "\n")
        self._progress.end(failed=True)
        self._failures_in_a_row = self._failures_in_a_row + 1 if isinstance(error, LLMError) else 0
        if self._failures_in_a_row >= _DEAD_ENDPOINT:
            raise _GivenUp(str(error))

    def finish(self) -> int:
        """Write the data set if it is whole, and say how it went; returns the exit code."""
        settings, run = self._settings, self._run
        finished = [name for name, fingerprint in run.people.items() if is_finished(self._store, name, fingerprint)]
        totals = Totals()
        people = totals.counting(read_people(self._store, finished))
        whole = len(finished) == len(run.people)
        if whole and settings.shard.of == 1:
            from synth.output import write_dataset

            episode = settings.episode.config()
            write_dataset(settings.out, people, making=run.recipe, episode=episode, seed=settings.seed)
        else:
            for _ in people:
                pass
        print(totals.summary(self._progress.seconds))
        if not whole:
            return self._fail(len(run.people) - len(finished))
        if settings.shard.of == 1:
            print(f"written to {settings.out}")
        else:
            print(f"shard {settings.shard} is finished; when all are: python -m synth merge {settings.out}")
        return 0

    def _fail(self, missing: int) -> int:
        for person_id, error in list(self._errors.items())[:_SHOWN_ERRORS]:
            print(f"{person_id}: {error}", file=sys.stderr)
        why = f"given up after {_DEAD_ENDPOINT} people in a row: {self._given_up}" if self._given_up else "see above"
        print(
            f"error: {missing:,} of {len(self._run.people):,} people are missing ({why}); all errors are in "
            f"{self._folder / ERRORS_FILE}; the same command tries again",
            file=sys.stderr,
        )
        return 1
