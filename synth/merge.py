"""Shards put together: checks that nothing is missing and nothing is there twice, then writes the files of the data set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError
from synth.records import Person
from synth.settings import Shard
from synth.store import JsonLinesStore
from synth.work import PEOPLE_STORE, SHARDS_FOLDER, WORK_FOLDER, Run, is_finished, read_people, read_run

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
    recipe = _recipe(parts)
    _check_shards(out, parts, partial=partial)
    with ExitStack() as stack:
        stores = [stack.enter_context(JsonLinesStore(part.folder / PEOPLE_STORE)) for part in parts]
        order = _order(parts)
        missing = [
            person_id
            for person_id, place in order.items()
            if not is_finished(stores[place], person_id, parts[place].run.people[person_id])
        ]
        missing_shards = sorted(set(range(parts[0].shard.of)) - {part.shard.number for part in parts})
        if missing and not partial:
            raise DeltaMemError(
                f"{out}: {len(missing):,} of {len(order):,} people are not finished ({_listed(missing)}); "
                "run their shards again, or write what is there with --partial"
            )
        if len(missing) == len(order):
            raise DeltaMemError(f"{out}: nobody is finished yet")
        if missing or missing_shards:
            shards = [f"{index}/{parts[0].shard.of}" for index in missing_shards]
            recipe = {**recipe, "partial": {"missing_people": missing, "missing_shards": shards}}

        def people() -> Iterator[Person]:
            lacking = set(missing)
            for person_id, place in order.items():
                if person_id not in lacking:
                    yield from read_people(stores[place], [person_id])

        from synth.output import write_dataset  # half a second of imports that a refused merge does not need

        manifest = write_dataset(
            out, people(), making=recipe, episode=EpisodeConfig(**recipe["episode"]), seed=recipe["seed"]
        )
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


def _recipe(parts: list[_Part]) -> dict[str, Any]:
    """The recipe that all parts agree on."""
    first = parts[0]
    for part in parts[1:]:
        if part.shard.of != first.shard.of:
            raise DeltaMemError(f"{part.folder} is one of {part.shard.of} shards and {first.folder} one of {first.shard.of}")
        if part.run.recipe != first.run.recipe:
            keys = {
                key for key in (*part.run.recipe, *first.run.recipe) if part.run.recipe.get(key) != first.run.recipe.get(key)
            }
            raise DeltaMemError(
                f"{part.folder} and {first.folder} were made differently ({', '.join(sorted(keys))}); run them again alike"
            )
    return first.run.recipe


def _check_shards(out: Path, parts: list[_Part], *, partial: bool) -> None:
    count = parts[0].shard.of
    missing = sorted(set(range(count)) - {part.shard.number for part in parts})
    if missing and not partial:
        named = ", ".join(f"{index}/{count}" for index in missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise DeltaMemError(
            f"{out}: {len(missing)} of {count} shards are missing ({named}); run them, or write what is there with --partial"
        )


def _order(parts: list[_Part]) -> dict[str, int]:
    """Everybody of the parts in the order of an unsharded run, with the place of the part in the list."""
    numbered = sorted(
        (position * part.shard.of + part.shard.number, person_id, place)
        for place, part in enumerate(parts)
        for position, person_id in enumerate(part.run.people)
    )
    found: dict[str, int] = {}
    for _, person_id, place in numbered:
        if person_id in found:
            raise DeltaMemError(f"{person_id} is in {parts[found[person_id]].folder} and in {parts[place].folder}")
        found[person_id] = place
    return found


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
