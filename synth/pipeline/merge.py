"""Shards put together: checks that nothing is missing and nothing is there twice, then writes the files of the data set."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError
from synth.pipeline.store import JsonLinesStore
from synth.pipeline.work import PEOPLE_STORE, SHARDS_FOLDER, WORK_FOLDER, Run, is_finished, read_people, read_run
from synth.settings import Shard

_SHOWN = 5
"""Missing people that are named."""


class Merged(NamedTuple):
    """What was written, and who is missing from it."""

    manifest: dict[str, Any]
    missing: tuple[str, ...]


class _Part(NamedTuple):
    folder: Path
    run: Run
    shard: Shard


def merge(out: Path, *, partial: bool = False) -> Merged:
    """Write the data set of all shards in ``OUT/shards``, or of the one run in ``OUT/work``.

    The result is byte for byte that of an unsharded run.

    Args:
        out: Folder of the data set.
        partial: Write what is there. The recipe in manifest and data card then says who is missing.

    Raises:
        DeltaMemError: If shards or people are missing and that was not allowed, shards are of different runs or still in
            work, or a person is there twice.
    """
    parts = _parts(out)
    _check_alike(parts)
    _check_nobody_twice(parts)
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
        people = (
            person
            for person_id in everybody
            if person_id in stores
            for person in read_people(stores[person_id], [person_id])
        )
        from synth.output import write_dataset  # half a second of imports that a refused merge does not need

        manifest = write_dataset(out, people, making=recipe, episode=EpisodeConfig(**recipe["episode"]), seed=recipe["seed"])
    return Merged(manifest, tuple(missing))


def _parts(out: Path) -> list[_Part]:
    """The shards by index, or the one unsharded run."""
    folders = sorted((out / SHARDS_FOLDER).glob(f"*-of-*/{WORK_FOLDER}"))
    single = out / WORK_FOLDER
    if folders and single.is_dir():
        raise DeltaMemError(
            f"{out}: holds a run without shards ({WORK_FOLDER}) and shards ({SHARDS_FOLDER}); remove one of them"
        )
    if not folders and not single.is_dir():
        raise DeltaMemError(f"{out}: no shards to merge; python -m synth shard=0/8 out={out} makes the first of eight")
    found = []
    for folder in folders or [single]:
        run = read_run(folder)
        number, _, of = run.shard.partition("/")
        found.append(_Part(folder, run, Shard(int(number), int(of))))
    return sorted(found, key=lambda part: part.shard.number)


def _check_alike(parts: list[_Part]) -> None:
    """All parts must be of the same data set."""
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


def _check_nobody_twice(parts: list[_Part]) -> None:
    found: dict[str, Path] = {}
    for part in parts:
        for person_id in part.run.people:
            if person_id in found:
                raise DeltaMemError(f"{person_id} is in {found[person_id]} and in {part.folder}")
            found[person_id] = part.folder


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
