"""No owner sees another's memory: ten owners with tricky names and a canary each, in one store, all at once."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path

import pytest
from episode_texts import WordEmbedder
from rule_model import RulePolicy
from trust_checks import check_journal

from deltamem import manager as managers
from deltamem.bank import base, store
from deltamem.bank.store import MemoryStore
from deltamem.episode import Message
from deltamem.errors import DeltaMemError
from deltamem.journal import journal
from deltamem.manager import ManagerSettings, MemoryManager, SyncMemoryManager
from deltamem.policy import Completion
from deltamem.sessions import Session, Turn

START = datetime(2026, 4, 5, 20, 1)
NAMES = ("a", "a ", "A", "a/b", "..", "ann\n", "名", "o'b\"n; --", hashlib.sha256(b"a").hexdigest(), "x" * 5_000)
CANARIES = {name: "canary" + hashlib.sha256(name.encode()).hexdigest()[:12] for name in NAMES}
SETTINGS = ManagerSettings(person_name="Ann")


class Watched(RulePolicy):
    """The rules; keeps everything that they were shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    async def complete(self, messages: Sequence[Message]) -> Completion:
        self.shown += [message["content"] for message in messages]
        await asyncio.sleep(0)  # let others in between
        return await super().complete(messages)


def foreign(owner: str, *things: object) -> list[str]:
    """Canaries of others in whatever was returned."""
    text = "\n".join(map(repr, things))
    return [canary for other, canary in CANARIES.items() if other != owner and canary in text]


def a_session(owner: str, number: int) -> Session:
    canary = CANARIES[owner]
    texts = [f"My thing {number} is {canary} of old.", f"My mood is {canary} {number}."]
    return Session(owner, "Ann", START + timedelta(hours=number), tuple(Turn("user", text) for text in texts), f"s{number}")


def exported(memory: MemoryManager | SyncMemoryManager) -> str:
    stream = io.StringIO()
    memory.export(stream)
    return stream.getvalue()


async def one_task(memory: MemoryManager, number: int) -> int:
    """What one caller does; returns how many things it looked at."""
    owner = memory.owner
    seen: list[object] = [await memory.ingest(a_session(owner, number))]
    others = [canary for other, canary in CANARIES.items() if other != owner]
    for hits in await memory.search_many(["Ann's thing is of old", "Ann's mood", *others], 20):
        seen.append(hits)
    state = memory.state()
    seen += [state, memory.diff(0)]
    for memory_id in list(state)[:3]:
        seen.append(memory.history(memory_id))
        with suppress(DeltaMemError):  # another task may have rolled back meanwhile
            seen.append(memory.blame(memory_id))
    if number == 2 and owner in (NAMES[0], NAMES[3]):
        seen.append(await memory.forget(next(iter(memory.state()))))
    if number == 3 and owner in (NAMES[1], NAMES[4]):
        seen += [await memory.rollback(1), await memory.ingest(a_session(owner, number + 10))]
    seen.append(exported(memory))
    assert foreign(owner, *seen) == []
    return len(seen)


async def fifty_tasks(store: MemoryStore) -> None:
    policies = {name: Watched() for name in NAMES}
    managers = {name: MemoryManager(store, name, policies[name], SETTINGS) for name in NAMES}
    looked = await asyncio.gather(*(one_task(managers[name], number) for number in range(5) for name in NAMES))
    assert len(looked) == 50 and min(looked) > 10
    for name, memory in managers.items():
        # The canary must be there where it belongs, or its absence elsewhere shows nothing.
        own = CANARIES[name]
        assert any(own in known.text for known in memory.state().memories) and own in exported(memory)
        assert any(own in hit.memory.text for hit in await memory.search("Ann's mood"))
        assert foreign(name, *policies[name].shown) == [] and any(own in text for text in policies[name].shown)
        check_journal(memory.owned.journal, memory.state())
        with pytest.raises(Exception, match="belongs to"):
            await memory.ingest(a_session(next(other for other in NAMES if other != name), 99))
    assert store.owners() == sorted(NAMES)
    gone = NAMES[6]
    await managers[gone].forget_owner()
    assert store.owners() == sorted(set(NAMES) - {gone})
    for name, memory in managers.items():
        if name != gone:
            assert memory.state() and CANARIES[gone] not in exported(memory)


async def test_fifty_tasks_of_ten_owners_on_disk(tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path, WordEmbedder()) as store:
        await fifty_tasks(store)
    check_files(tmp_path, len(NAMES) - 1)
    with MemoryStore.open(tmp_path, WordEmbedder()) as store:  # once more, from what is on the disk
        for name in set(NAMES) - {NAMES[6]}:
            memory = MemoryManager(store, name, Watched(), SETTINGS)
            hits = await memory.search(" ".join(CANARIES.values()), 50)
            assert hits and foreign(name, hits, memory.state(), exported(memory)) == []


def check_files(folder: Path, owners: int) -> None:
    """The index holds one collection an owner, no text, and no owner's name; the erased owner's canary is nowhere."""
    index = {path.relative_to(folder): path.read_bytes() for path in (folder / "index").rglob("*") if path.is_file()}
    assert not [(path, canary) for path, held in index.items() for canary in CANARIES.values() if canary.encode() in held]
    assert not [path for path, held in index.items() if NAMES[-1][:100].encode() in held]
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert CANARIES[NAMES[6]].encode() not in everything and CANARIES[NAMES[0]].encode() in everything
    from deltamem.bank.chroma import ChromaIndex

    opened = ChromaIndex.open(folder / "index")
    assert len(opened.collections()) == owners
    for name in opened.collections():
        with opened.use(name) as collection:
            held = collection.get(include=["documents", "metadatas"])
            assert held["ids"] and not any(held["documents"] or []) and not any(held["metadatas"] or [])
    opened.close()


def test_threads_with_the_sync_manager() -> None:
    failures: list[BaseException] = []
    policies = {name: Watched() for name in NAMES[:4]}

    def work(store: MemoryStore, owner: str) -> None:
        try:
            with SyncMemoryManager(lambda: MemoryManager(store, owner, policies[owner], SETTINGS)) as memory:
                for number in range(6):
                    seen: list[object] = [memory.ingest(a_session(owner, number)), memory.search("mood of old", 20)]
                    seen += [memory.state(), memory.history("m1"), memory.blame("m1"), memory.diff(0), exported(memory)]
                    if number == 5:
                        seen += [memory.rollback("s1"), memory.forget("m3")]
                    assert foreign(owner, *seen, *policies[owner].shown) == []
                assert any(CANARIES[owner] in known.text for known in memory.state().memories)
        except BaseException as error:
            failures.append(error)

    with MemoryStore.in_memory(WordEmbedder()) as store:
        threads = [threading.Thread(target=work, args=(store, owner)) for owner in policies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not failures and not any(thread.is_alive() for thread in threads)
        for owner in policies:
            opened = store.bank(owner)
            check_journal(opened.journal, opened.bank.state)


def _methods(kind: type) -> Iterator[tuple[str, Callable[..., object]]]:
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            yield f"{kind.__name__}.{name}", method


@pytest.mark.parametrize(
    ("kind", "binding"),
    [
        (MemoryManager, "owner"),
        (SyncMemoryManager, "make"),
        (store.UserStore, "bank"),
        (journal.OwnerJournal, "name"),
        (base.SnapshotBank, "owner"),
        (base.OverlayBank, "base"),
        ("ChromaBank", "committed"),
        ("ChromaCollection", "owner"),
    ],
)
def test_what_is_bound_to_an_owner_takes_no_other(kind: type | str, binding: str) -> None:
    kind = getattr(import_module("deltamem.bank.chroma"), kind) if isinstance(kind, str) else kind
    made = inspect.signature(kind.__init__).parameters
    assert made[binding].default is inspect.Parameter.empty, f"{kind.__name__} can be made without an owner"
    methods = dict(_methods(kind))
    assert methods
    for name, method in methods.items():
        parameters = set(inspect.signature(method).parameters)
        # `session` makes a session of the manager's own owner; `ingest` refuses one of another, as tested above.
        assert not parameters & {"owner", "owners", "name", "person", "person_id", "user", "user_id"}, name


def test_nothing_searches_without_an_owner() -> None:
    """Whatever has a `search` or a `state` in these modules is one of the kinds above, all of them bound to an owner."""
    bound = {"MemoryManager", "SyncMemoryManager", "MemoryBank", "ReadableBank", "SnapshotBank", "OverlayBank", "UserStore"}
    bound |= {"ChromaBank", "ChromaCollection", "OwnerJournal", "Searcher"}  # a searcher is made for one `UserStore`
    modules = [managers, base, import_module("deltamem.bank.chroma"), store, journal]
    questions = {"search", "search_many", "state", "history", "blame", "vectors", "entries", "dialogue", "dialogues"}
    found = {
        kind.__name__
        for module in modules
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__.startswith("deltamem.") and {name.partition(".")[2] for name, _ in _methods(kind)} & questions
    }
    assert {"MemoryManager", "SnapshotBank", "ChromaBank", "OwnerJournal"} <= found <= bound
    # Of the store and the journal, which know all owners, only what hands out or erases one of them takes a name; what looks
    # over all owners says who they are, or that they have jobs, and nothing that was said.
    assert set(inspect.signature(store.MemoryStore.bank).parameters) == {"self", "owner"}
    public = dict(method for kind in (store.MemoryStore, journal.Journal) for method in _methods(kind))
    names = {name.partition(".")[2] for name in public}
    over_all = {"knows", "owners", "owner_of_job", "owners_of_memory", "remembered_owners"}
    assert names - over_all == {
        *("bank", "beside", "close", "erase_owner", "erasures", "integrity_check", "owner", "stores_to_erase")
    }
    told = {
        inspect.signature(method).return_annotation for name, method in public.items() if name.partition(".")[2] in over_all
    }
    assert told == {"bool", "list[str]", "str | None"}
