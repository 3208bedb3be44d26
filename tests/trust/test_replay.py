"""The journal is the truth: whatever is rolled back, exported, damaged or raced over, the same memories come out of it."""

from __future__ import annotations

import asyncio
import io
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from episode_texts import WordEmbedder
from rule_model import RulePolicy
from trust_checks import check_journal, export_text

from deltamem.bank.base import Hit
from deltamem.bank.store import MemoryStore
from deltamem.errors import DeltaMemError
from deltamem.ingest import Outcome
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.sessions import Session, Turn

START = datetime(2026, 4, 5, 20, 1)
QUERIES = ("Ann's thing 3 is", "Ann's other 1", "value12 value13", "nothing like it", "Ann")


def sessions(count: int) -> Iterator[Session]:
    """Facts of which later ones rewrite or repeat earlier ones."""
    for number in range(count):
        facts = [f"My thing{number % 11} is value{number}.", f"My other{number % 5} is same{number % 10}."]
        turns = [Turn("user", fact) for fact in facts]
        yield Session("ann", "Ann", START + timedelta(hours=number), tuple(turns), f"s{number}")


def opened(folder: Path) -> tuple[MemoryStore, MemoryManager]:
    store = MemoryStore.open(folder, WordEmbedder())
    return store, MemoryManager(store, "ann", RulePolicy(), ManagerSettings(person_name="Ann"))


async def found(memory: MemoryManager) -> list[list[tuple[str, float]]]:
    """What some searches return, by id and similarity; equal similarities in order of the id."""

    def comparable(hits: list[Hit]) -> list[tuple[str, float]]:
        return sorted(((hit.memory.id, round(hit.similarity, 4)) for hit in hits), key=lambda pair: (-pair[1], pair[0]))

    # More than there are memories, so that ties at the end of a list do not matter.
    return [comparable(hits) for hits in await memory.search_many(QUERIES, 50)]


async def test_rollback_then_replay_and_export_then_import_give_the_same_state_and_searches(tmp_path: Path) -> None:
    store, memory = opened(tmp_path / "bank")
    with store:
        for session in sessions(25):
            assert (await memory.ingest(session)).outcome is Outcome.APPLIED
        state, results = memory.state(), await found(memory)
        assert len(state) == 16 and all(len(hits) == 16 for hits in results)
        await memory.rollback("s9")
        assert memory.state() == memory.state(10) and await found(memory) != results
        outcomes = [(await memory.ingest(session)).outcome for session in sessions(25)]
        assert outcomes == [Outcome.KNOWN] * 10 + [Outcome.APPLIED] * 15
        assert memory.state() == state and await found(memory) == results
    store, memory = opened(tmp_path / "bank")
    with store:
        assert memory.state() == state and await found(memory) == results
        check_journal(memory.owned.journal, state)
        await memory.rollback("s11")
        await memory.forget("m2")
        state, results, written = memory.state(), await found(memory), export_text(memory.owned.journal)
    store, copy = opened(tmp_path / "two")
    with store:
        await copy.import_from(io.StringIO(written))
        assert copy.state() == state and await found(copy) == results
        assert export_text(copy.owned.journal) == written
        assert (await copy.ingest(next(sessions(1)))).outcome is Outcome.KNOWN
    store, copy = opened(tmp_path / "two")
    with store:
        assert copy.state() == state and await found(copy) == results


def _garbled(index: Path) -> None:
    rng = random.Random(3)
    for path in sorted(path for path in index.rglob("*") if path.is_file()):
        data = bytearray(path.read_bytes())
        for _ in range(len(data) // 50 + 1):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)


async def test_a_damaged_index_is_noticed_and_built_anew(tmp_path: Path) -> None:
    store, memory = opened(tmp_path / "bank")
    with store:
        for session in sessions(12):
            await memory.ingest(session)
        state, results = memory.state(), await found(memory)
    for damage in (_garbled, shutil.rmtree, lambda index: None):
        damage(tmp_path / "bank" / "index")
        store, memory = opened(tmp_path / "bank")
        with store:
            assert memory.state() == state and await found(memory) == results


HOLDER = """
import sys
from pathlib import Path
from deltamem.bank.store import lock_folder
lock = lock_folder(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_told_who_holds_the_store(tmp_path: Path) -> None:
    (tmp_path / "bank").mkdir()
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "bank")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "open\n"
    try:
        with pytest.raises(DeltaMemError, match=rf"in use by process {holder.pid}\b") as raised:
            MemoryStore.open(tmp_path / "bank", WordEmbedder())
        assert "\n" not in str(raised.value)
    finally:
        holder.kill()
        holder.communicate()
    MemoryStore.open(tmp_path / "bank", WordEmbedder()).close()  # a lock does not outlive its process


class Slow(RulePolicy):
    """Gives the other loop time to come in between reading and recording."""

    async def complete(self, messages):  # type: ignore[no-untyped-def]
        await asyncio.sleep(0.002)
        return await super().complete(messages)


def test_two_managers_of_one_owner_in_two_loops_lose_nothing(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def work(store: MemoryStore, mine: list[Session]) -> None:
        async def ingest() -> None:
            memory = MemoryManager(store, "ann", Slow(), ManagerSettings(person_name="Ann"))
            done = await asyncio.gather(*(memory.ingest(session) for session in mine))
            assert {step.outcome for step in done} <= {Outcome.APPLIED, Outcome.KNOWN}

        try:
            asyncio.run(ingest())
        except BaseException as error:
            failures.append(error)

    everything = list(sessions(24))
    with MemoryStore.open(tmp_path, WordEmbedder()) as store:
        # Eight sessions are given to both.
        parts = (everything[:16], everything[8:])
        threads = [threading.Thread(target=work, args=(store, part)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not failures and not any(thread.is_alive() for thread in threads)
        journal = store.bank("ann").journal
        applied = [entry.session_id for entry in journal.entries()]
        assert sorted(map(str, applied)) == sorted(session.id for session in everything)
        check_journal(journal, store.bank("ann").bank.state)
        assert len(journal.state()) == 16
