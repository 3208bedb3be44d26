"""The command `doctor`: what is installed, what can be reached, and whether the bank is sound. Repairs nothing."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from deltamem.cli.options import Options
from deltamem.cli.output import Output, visible
from deltamem.errors import DeltaMemError
from deltamem.journal.journal import JOURNAL_FILE, Journal

if TYPE_CHECKING:
    from deltamem.assisted import AssistedConfig
    from deltamem.bank.base import Hit
    from deltamem.bank.chroma import ChromaIndex
    from deltamem.endpoint import ObjectWay
    from deltamem.episode import EpisodeConfig
    from deltamem.journal.owner import OwnerJournal
    from deltamem.policy import Policy
    from deltamem.sessions import Role

_PACKAGES = ("chromadb", "openai", "sentence-transformers", "torch", "numpy", "typer", "rich")
_LITTLE_SPACE = 2**30
"""Bytes. Erasing rewrites whole files, so a nearly full disk is a warning."""


class Status(StrEnum):
    """How a check went; only ``fail`` makes the command fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}


class Checkup(NamedTuple):
    """One check; the detail is one sentence."""

    name: str
    status: Status
    detail: str


def doctor(options: Options) -> int:
    """Check what is installed, which models can be reached, and whether the bank is sound."""
    checks = []
    output = Output()
    for check in _checks(options):
        checks.append(check)
        if not options.as_json:
            status = str(check.status).ljust(6), _STYLES[check.status]
            output.lines([(status, (visible(check.name).ljust(22), "cyan"), (f"  {check.detail}", ""))])
    failed = any(check.status is Status.FAIL for check in checks)
    if options.as_json:
        output.json({"ok": not failed, "checks": [check._asdict() for check in checks]})
    return 1 if failed else 0


def _checks(options: Options) -> Iterator[Checkup]:
    from deltamem.embedding import load_embedder
    from deltamem.runs import versions

    found = versions(_PACKAGES)
    installed = [name for name in ("python", "deltamem", *_PACKAGES) if name in found]
    yield from (Checkup(name, Status.OK, found[name]) for name in installed)
    yield from (Checkup(name, Status.WARN, "not installed") for name in _PACKAGES if name not in found)
    try:
        dimension = load_embedder(options.embedder).documents(["What is known?"]).shape[1]
        yield Checkup("embedder", Status.OK, f"{options.embedder} works, {dimension} dimensions")
    except DeltaMemError as error:
        yield Checkup("embedder", Status.FAIL, str(error))
    try:
        yield from _model(options)
    except DeltaMemError as error:
        yield Checkup("model", Status.FAIL, str(error))
    folder = options.bank.absolute()
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    yield Checkup("disk space", Status.OK if free >= _LITTLE_SPACE else Status.WARN, f"{free / 2**30:.1f} GiB free")
    yield from _bank(options)


def _model(options: Options) -> Iterator[Checkup]:
    from deltamem.cli.model import connect, episode_of, load
    from deltamem.manager import ManagerSettings
    from deltamem.policy import choose_mode

    if options.base_url is None and options.checkpoint is None:
        yield Checkup(
            "model", Status.WARN, "not checked; `add` needs an endpoint (--base-url) or a checkpoint (--checkpoint)"
        )
        return
    policy: Policy
    if options.base_url is None and options.checkpoint is not None:
        policy = loaded = load(options, options.checkpoint)
        window = f"window of {loaded.window} tokens"
        yield Checkup("model", Status.OK, f"{policy.name} loads, to run in this process; {window}")
    else:
        endpoint = asyncio.run(connect(options, thinking=episode_of(options.checkpoint).thinking))
        policy, served = endpoint.policy, endpoint.served
        window = f"window of {endpoint.window} tokens" if endpoint.window else "window not known; give it with --window"
        if served is not None and endpoint.policy.llm.model not in served:
            yield Checkup("model", Status.WARN, f"{policy.name} answers, but is not in the list of models; {window}")
        else:
            yield Checkup("model", Status.OK, f"{policy.name} answers; {window}")
    mode, reason = choose_mode(options.mode, policy)
    yield Checkup("mode", Status.OK, f"{mode}: {reason}")
    settings = ManagerSettings(episode=episode_of(options.checkpoint), mode=options.mode)
    yield from asyncio.run(_one_session(policy, settings.episode_in(mode)))


_TRIAL: tuple[tuple[Role, str], ...] = (
    ("user", "I moved to Porto in May, and my cat Miso came along."),
    ("assistant", "That sounds like a big change! There are lovely cafés by the river."),
)
"""A chat of an invented person."""

_WAYS: dict[ObjectWay, str] = {
    "json_schema": "kept to a JSON schema",
    "plain_schema": "kept to a JSON schema less its bounds",
    "json_object": "kept to be JSON; the schema is told in words",
    "tools": "kept to the schema of a function",
    "text": "not kept to a schema, which is told in words",
}


async def _one_session(policy: Policy, config: EpisodeConfig | AssistedConfig) -> list[Checkup]:
    """Have the model read a session for a person of whom nothing is known; nothing is stored."""
    from deltamem.assisted import AssistedConfig, begin_episode
    from deltamem.endpoint import endpoint_traits
    from deltamem.policy import EndpointPolicy, MeteredPolicy, drive
    from deltamem.sessions import Session, Turn

    turns = tuple(Turn(role, text) for role, text in _TRIAL)
    episode = begin_episode(Session("trial", "Nora", datetime(2026, 6, 1, 18, 30), turns, "trial"), (), config)
    metered, begin = MeteredPolicy(policy), time.perf_counter()

    async def nothing(queries: Sequence[str]) -> list[list[Hit]]:
        return [[] for _ in queries]

    assisted = isinstance(config, AssistedConfig)
    checks = []
    try:
        await drive(episode, metered, nothing)
    except DeltaMemError as error:
        return [Checkup("one session", Status.FAIL, str(error))]
    finally:
        if isinstance(policy, EndpointPolicy):
            await policy.llm.close()
    if assisted and isinstance(policy, EndpointPolicy):
        way = endpoint_traits(policy.llm.base_url, policy.llm.model).object_way.known
        if way is not None:
            checks.append(Checkup("answers", Status.OK, f"{_WAYS[way]} ({way})"))
    cost = f"{metered.usage.calls} calls, {time.perf_counter() - begin:.1f} s"
    trajectory = episode.trajectory
    hint = "a larger model may do better" if assisted else "--mode assisted asks for one JSON object instead"
    if trajectory.operations is None:
        first = str(trajectory.violations[0]) if trajectory.violations else "no answer"
        checks.append(Checkup("one session", Status.WARN, f"could not be read: {first} ({cost}); {hint}"))
    elif not trajectory.operations:
        checks.append(Checkup("one session", Status.WARN, f"read, but of two facts none was kept ({cost}); {hint}"))
    else:
        checks.append(Checkup("one session", Status.OK, f"read, {len(trajectory.operations)} facts ({cost})"))
    return checks


def _bank(options: Options) -> Iterator[Checkup]:
    path = options.bank / JOURNAL_FILE
    if not path.is_file():
        yield Checkup("bank", Status.WARN, f"{options.bank}: none there yet; `deltamem add` or `remember` makes one")
        return
    try:
        with Journal.open(path, read_only=True) as journal:
            yield from _journal(journal, options.owner)
            yield from _index(options, journal)
    except DeltaMemError as error:
        yield Checkup("journal", Status.FAIL, str(error))


def _journal(journal: Journal, owner: str | None) -> Iterator[Checkup]:
    problems = journal.integrity_check()
    if problems:
        yield Checkup("journal", Status.FAIL, f"{journal.path}: {'; '.join(problems)}")
        return
    yield Checkup("journal", Status.OK, f"{journal.path} is sound, {len(journal.owners())} owners")
    for name in _owners(journal, owner):
        owned = journal.owner(name)
        problems = owned.verify()
        counts = f"{owned.head} entries, {len(owned.state())} memories"
        found = f"{len(problems)} problems, the first: {problems[0]}" if problems else f"replays cleanly, {counts}"
        yield Checkup(f"journal of {name}", Status.FAIL if problems else Status.OK, found)
    if journal.purge_pending:
        yield Checkup(
            "erasure", Status.WARN, "erased texts may still be in the files; the next writing command removes them"
        )


def _owners(journal: Journal, owner: str | None) -> list[str]:
    return journal.owners() if owner is None else [name for name in journal.owners() if name == owner]


def _index(options: Options, journal: Journal) -> Iterator[Checkup]:
    from deltamem.bank.store import lock_folder

    try:
        lock = lock_folder(options.bank)
    except DeltaMemError as error:
        yield Checkup("lock", Status.WARN, f"{error}; the index was not checked")
        return
    try:
        yield Checkup("lock", Status.OK, "free")
        yield from _index_files(options, journal)
    finally:
        lock.release()


def _index_files(options: Options, journal: Journal) -> Iterator[Checkup]:
    from deltamem.bank import chroma_files
    from deltamem.bank.chroma import ChromaIndex
    from deltamem.bank.store import INDEX_FOLDER

    folder = options.bank / INDEX_FOLDER
    if options.index_url is None:
        if not folder.is_dir():
            yield Checkup("index", Status.WARN, "none yet; it is built when the bank is opened")
            return
        # Opening throws damaged parts away; what only looks must not.
        if not chroma_files.is_sound(folder):
            yield Checkup("index", Status.WARN, "damaged; it is rebuilt when the bank is opened")
            return
    try:
        index = ChromaIndex.open(None if options.index_url else folder, options.index_url, journal.store_id)
    except DeltaMemError as error:
        yield Checkup("index", Status.FAIL, str(error))
        return
    with closing(index):
        for name in _owners(journal, options.owner):
            yield _in_step(index, journal.owner(name), options.embedder)


def _in_step(index: ChromaIndex, journal: OwnerJournal, embedder: str) -> Checkup:
    name = f"index of {journal.name}"
    status, head, memories = index.status(journal.name), journal.head, len(journal.state())
    if status is None:
        return Checkup(name, Status.WARN, "none yet; it is built when the memory is opened")
    if status.embedder != embedder:
        return Checkup(name, Status.WARN, f"made with {status.embedder}, not with {embedder}; it would be rebuilt")
    if (status.position, status.memories) != (head, memories):
        found = f"at @{status.position} with {status.memories} memories, the journal at @{head} with {memories}"
        return Checkup(name, Status.WARN, f"{found}; it is brought in step when the memory is opened")
    return Checkup(name, Status.OK, f"in step with the journal, @{head}, {memories} memories")
