"""From settings to a folder of finished people: several at once, in shards, stopped and resumed, merged."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError, EmbedderUnavailableError, LLMError
from deltamem.runs import JsonLinesStore, atomic_writer, config_hash, faster_loop
from synth.backend import Backend, backend_of
from synth.cards import load_cards
from synth.config import Shard, SynthSettings
from synth.estimate import expected_units
from synth.everyday.person import write_life
from synth.names import InventedNames, NameSource, RealNames
from synth.output.files import PEOPLE_STORE, SHARDS_FOLDER, WORK_FOLDER
from synth.person import write_person
from synth.personas import draw_personas
from synth.progress import Progress, Totals
from synth.records import Person, Persona
from synth.tasks import Observer, Unit, UnitResult

ANSWERS_STORE, ERRORS_FILE = "answers.jsonl", "errors.jsonl"
RUN_FILE = "run.json"
"""What a work folder is for: the recipe, and the fingerprint of every person who belongs into it."""

_NOT_IN_FINGERPRINTS = {
    "__main__.py", "backend.py", "contamination.py", "estimate.py", "output", "personas.py", "personas.yaml", "pipeline.py",
    "progress.py",
}  # fmt: skip
"""Parts of this package that records do not follow from; of `personas`, they follow from the result alone."""


class WorkFolder(NamedTuple):
    """What a work folder is for: shard ``i/n``, recipe, ids of everybody in the data set, fingerprints of this shard."""

    shard: str
    recipe: dict[str, Any]
    everybody: list[str]
    people: dict[str, str]


class Work(NamedTuple):
    """What is to do: the persona, the number in the whole data set, and the fingerprint."""

    number: int
    persona: Persona
    fingerprint: str


def work_folder(settings: SynthSettings) -> Path:
    """Where a run keeps what is finished."""
    if settings.shard.of == 1:
        return settings.out / WORK_FOLDER
    return settings.out / SHARDS_FOLDER / settings.shard.folder / WORK_FOLDER


def code_hash(package: Path = Path(__file__).parent) -> str:
    """Hash of the source files and templates that records follow from."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in ("*.py", "*.yaml") for path in package.rglob(pattern)):
        name = path.relative_to(package)
        if name.parts[0] not in _NOT_IN_FINGERPRINTS:
            found.update(f"{name.as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def plan(settings: SynthSettings, personas: Sequence[Persona], making: Mapping[str, Any]) -> tuple[WorkFolder, list[Work]]:
    """What this run's shard has to do."""
    # As it is read back from the run's file, so that a merge writes the same bytes.
    recipe = json.loads(json.dumps({**settings.recipe(), "making": dict(making), "code": code_hash()}))
    of_all = {"people", "heldout_share", "personas", "episode"}
    base = config_hash({key: value for key, value in recipe.items() if key not in of_all})
    shard = settings.shard
    work = [
        Work(number, persona, hashlib.sha256(f"{base} {number} {persona.model_dump_json()}".encode()).hexdigest())
        for number, persona in enumerate(personas)
        if number % shard.of == shard.number
    ]
    everybody = [persona.person_id for persona in personas]
    return WorkFolder(str(shard), recipe, everybody, {item.persona.person_id: item.fingerprint for item in work}), work


def read_run(folder: Path) -> WorkFolder:
    """What a work folder is for. Raises `DeltaMemError` if it does not say so."""
    path = folder / RUN_FILE
    try:
        return WorkFolder(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        raise DeltaMemError(f"{path}: no such file; python -m synth writes it when it starts") from None
    except (ValueError, TypeError):
        raise DeltaMemError(f"{path}: not a run description of python -m synth; run it again to renew it") from None


def is_finished(store: JsonLinesStore, person_id: str, fingerprint: str) -> bool:
    """Whether a person is there, written from what the fingerprint stands for."""
    value = store.get(person_id)
    return value is not None and value["fingerprint"] == fingerprint


def read_people(store: JsonLinesStore, person_ids: Iterable[str]) -> Iterator[Person]:
    """Finished people, one at a time, in the order given."""
    for person_id in person_ids:
        if (value := store.get(person_id)) is not None:
            yield Person.model_validate(value["person"])


_DEAD_ENDPOINT = 3
"""People in a row that end in an endpoint's error, without one answer between them, before the run is given up."""
_SHOWN_ERRORS = 3
_COLLECT_AFTER = 100_000
"""New objects until garbage is looked for: records hold no cycles, and Python's 700 makes it look at them all the time."""


class _GivenUp(Exception):
    """No endpoint answers any more."""


def generate(settings: SynthSettings) -> int:
    """Write the people of this shard who are not finished yet and, without shards, the files of the data set.

    Shows its progress on stderr and a summary on stdout. SIGINT and SIGTERM end it at once; what is finished stays. Returns
    the exit code: 0; 1 if people failed or no endpoint answers any more; 130 or 143 after a signal. Raises `DeltaMemError`
    if the settings ask for something that is not there, `OSError` if a file cannot be written.
    """
    folder = work_folder(settings)
    collecting = gc.get_threshold()
    with _signals() as stop:
        try:
            personas = draw_personas(
                settings.personas, people=settings.people, heldout_share=settings.heldout_share, seed=settings.seed
            )
            with JsonLinesStore(folder / PEOPLE_STORE) as store:
                generation = _Generation(settings, folder, store)
                gc.set_threshold(_COLLECT_AFTER)
                with asyncio.Runner(loop_factory=faster_loop()) as runner:
                    runner.run(generation.work(personas, stop))
                if stop.received is None:
                    return generation.finish()
        except (asyncio.CancelledError, _Stopped):
            pass
        finally:
            gc.set_threshold(*collecting)
    number = stop.received or signal.SIGINT
    print(f"stopped by {signal.Signals(number).name}; the same command goes on from here", file=sys.stderr)
    return 128 + number


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


class _Generation:
    def __init__(self, settings: SynthSettings, folder: Path, store: JsonLinesStore) -> None:
        self._settings, self._folder, self._store = settings, folder, store
        self._started = time.monotonic()
        self._finished: set[str] = set()
        self._errors: dict[str, str] = {}
        self._failures_in_a_row = 0
        self._given_up: str | None = None

    async def work(self, personas: Sequence[Persona], stop: _Stop) -> None:
        """Write the people who are not finished."""
        stop.task = asyncio.current_task()
        try:
            async with backend_of(self._settings, self._folder / ANSWERS_STORE) as backend:
                await self._write(personas, backend)
        finally:
            stop.task = None

    async def _write(self, personas: Sequence[Persona], backend: Backend) -> None:
        settings = self._settings
        self._run, work = plan(settings, personas, backend.writer.making)
        with atomic_writer(self._folder / RUN_FILE) as file:
            json.dump(self._run._asdict(), file, ensure_ascii=False)
        (self._folder / ERRORS_FILE).unlink(missing_ok=True)
        todo = [item for item in work if not is_finished(self._store, item.persona.person_id, item.fingerprint)]
        self._finished = self._run.people.keys() - {item.persona.person_id for item in todo}
        expected = expected_units(settings.shape, settings.sessions, settings.llm if settings.writer == "llm" else None)
        if not todo:
            return
        if backend.pool is not None:
            await backend.pool.check()
        queue = iter(todo)
        at_once = min(settings.people_at_once or settings.slots, len(todo))
        with Progress(len(todo), expected, seconds=settings.progress_seconds, pool=backend.pool) as progress:
            watching = asyncio.create_task(progress.watch())
            workers = [asyncio.create_task(self._worker(queue, backend, progress)) for _ in range(at_once)]
            try:
                done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
                for worker in done:
                    worker.result()
            except _GivenUp as error:
                self._given_up = str(error)
            finally:
                for task in (watching, *workers):
                    task.cancel()
                await asyncio.gather(watching, *workers, return_exceptions=True)

    async def _worker(self, queue: Iterator[Work], backend: Backend, progress: Progress) -> None:
        settings = self._settings

        def observe(unit: Unit, written: UnitResult[Any]) -> None:
            if written.spent_tokens:
                self._failures_in_a_row = 0
            progress.observe(unit, written)

        syllables = settings.shape.profile.name_syllables
        names = RealNames(settings.seed) if settings.real_names else InventedNames(settings.seed, syllables)
        for item in queue:
            try:
                person = await self._person(item, backend, names, observe)
            except EmbedderUnavailableError:
                raise
            except DeltaMemError as error:
                progress.advance("people", failed=True)
                self._failed(item.persona.person_id, error)
            else:
                value = {"fingerprint": item.fingerprint, "person": person.model_dump(mode="json")}
                self._store.put(item.persona.person_id, value)
                self._finished.add(item.persona.person_id)
                progress.advance("people")
            await asyncio.sleep(0)  # the offline writer never waits, so nothing else would get its turn

    async def _person(self, item: Work, backend: Backend, names: NameSource, observer: Observer) -> Person:
        settings = self._settings
        size: dict[str, int] = {"sessions": settings.sessions, "seed": settings.seed}
        if settings.writer == "offline" and settings.shape.everyday is not None:
            return write_life(item.number, item.persona, settings.shape, names, **size)
        return await write_person(
            item.number,
            item.persona,
            backend.writer,
            settings.asked_shape,
            names,
            **size,
            similarity=backend.similarity,
            observer=observer,
            cards=load_cards() if settings.draws_cards else None,
        )

    def _failed(self, person_id: str, error: DeltaMemError) -> None:
        self._errors[person_id] = str(error)
        with (self._folder / ERRORS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"person_id": person_id, "error": str(error)}, ensure_ascii=False) + "\n")
        self._failures_in_a_row = self._failures_in_a_row + 1 if isinstance(error, LLMError) else 0
        if self._failures_in_a_row >= _DEAD_ENDPOINT:
            raise _GivenUp(str(error))

    def finish(self) -> int:
        """Write the data set if it is whole, and say how it went; returns the exit code."""
        settings, run = self._settings, self._run
        finished = [person_id for person_id in run.people if person_id in self._finished]
        totals = Totals()
        people = totals.counting(read_people(self._store, finished))
        missing = len(run.people) - len(finished)
        if not missing and settings.shard.of == 1:
            from synth.output.dataset import write_dataset

            episode = EpisodeConfig(**settings.episode.model_dump())
            write_dataset(settings.out, people, making=run.recipe, episode=episode, seed=settings.seed)
        else:
            for _ in people:
                pass
        print(totals.summary(time.monotonic() - self._started))
        if missing:
            for person_id, error in list(self._errors.items())[:_SHOWN_ERRORS]:
                print(f"{person_id}: {error}", file=sys.stderr)
            why = f"given up after {_DEAD_ENDPOINT} people in a row: {self._given_up}" if self._given_up else "see above"
            print(
                f"error: {missing:,} of {len(run.people):,} people are missing ({why}); all errors are in "
                f"{self._folder / ERRORS_FILE}; the same command tries again",
                file=sys.stderr,
            )
        elif settings.shard.of == 1:
            print(f"written to {settings.out}")
        else:
            print(f"shard {settings.shard} is finished; when all are: python -m synth merge {settings.out}")
        return int(missing > 0)


_SHOWN = 5
"""Missing people that are named."""


class _FilePart(NamedTuple):
    folder: Path
    run: WorkFolder
    shard: Shard


def merge(out: Path, *, partial: bool = False) -> dict[str, Any]:
    """Write the data set of all shards in ``OUT/shards``, or of the one run in ``OUT/work``; `partial`: of what is there.

    The result is byte for byte that of an unsharded run. Returns the manifest, whose making says who is missing. Raises
    `DeltaMemError` if shards or people are missing and that was not allowed, shards are of different runs or still in work,
    or a person is there twice.
    """
    parts = _parts(out)
    _check_alike(parts)
    of, everybody, recipe = parts[0].shard.of, parts[0].run.everybody, parts[0].run.recipe
    missing_shards = [f"{number}/{of}" for number in range(of) if number not in {part.shard.number for part in parts}]
    if missing_shards and not partial:
        raise DeltaMemError(
            f"{out}: {len(missing_shards)} of {of} shards are missing ({_listed(missing_shards)}); run them, or write what "
            "is there with --partial"
        )
    with ExitStack() as stack:
        stores: dict[str, JsonLinesStore] = {}
        for part in parts:
            store = stack.enter_context(JsonLinesStore(part.folder / PEOPLE_STORE))
            stores |= {name: store for name, wanted in part.run.people.items() if is_finished(store, name, wanted)}
        missing = [person_id for person_id in everybody if person_id not in stores]
        if missing and not partial:
            raise DeltaMemError(
                f"{out}: {len(missing):,} of {len(everybody):,} people are not finished ({_listed(missing)}); run their "
                "shards again, or write what is there with --partial"
            )
        if not stores:
            raise DeltaMemError(f"{out}: nobody is finished yet")
        if missing:
            recipe = {**recipe, "partial": {"missing_people": missing, "missing_shards": missing_shards}}
        there = [person_id for person_id in everybody if person_id in stores]
        people = (person for person_id in there for person in read_people(stores[person_id], [person_id]))
        from synth.output.dataset import write_dataset  # half a second of imports that a refused merge does not need

        return write_dataset(out, people, making=recipe, episode=EpisodeConfig(**recipe["episode"]), seed=recipe["seed"])


def _parts(out: Path) -> list[_FilePart]:
    """The shards by index, or the one unsharded run."""
    folders = sorted((out / SHARDS_FOLDER).glob(f"*-of-*/{WORK_FOLDER}"))
    single = out / WORK_FOLDER
    if folders and single.is_dir():
        raise DeltaMemError(
            f"{out}: holds a run without shards ({WORK_FOLDER}) and shards ({SHARDS_FOLDER}); remove one of them"
        )
    if not folders and not single.is_dir():
        raise DeltaMemError(f"{out}: no shards to merge; python -m synth shard=0/8 out={out} makes the first of eight")
    runs = [(folder, read_run(folder)) for folder in folders or [single]]
    parts = [_FilePart(folder, run, Shard(*map(int, run.shard.split("/")))) for folder, run in runs]
    return sorted(parts, key=lambda part: part.shard.number)


def _check_alike(parts: list[_FilePart]) -> None:
    """All parts must be of the same data set, and nobody in two of them."""
    first = parts[0]
    for part in parts[1:]:
        if part.shard.of != first.shard.of:
            raise DeltaMemError(f"{part.folder} is one of {part.shard.of} shards and {first.folder} one of {first.shard.of}")
        found, expected = part.run.recipe, first.run.recipe
        different = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
        if not different and part.run.everybody != first.run.everybody:
            different = ["everybody"]
        if different:
            raise DeltaMemError(
                f"{part.folder} and {first.folder} were made differently ({', '.join(different)}); run them again alike"
            )
    seen: dict[str, Path] = {}
    for part in parts:
        for person_id in part.run.people:
            if seen.setdefault(person_id, part.folder) != part.folder:
                raise DeltaMemError(f"{person_id} is in {seen[person_id]} and in {part.folder}")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
