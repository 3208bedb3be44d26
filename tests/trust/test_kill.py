"""``kill -9`` at random moments: nothing acknowledged is lost, nothing is applied twice, the index follows the journal."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from episode_texts import WordEmbedder
from ingest_child import OWNERS, check, expected_sessions
from trust_checks import export_text, replay_journal

from deltamem.bank.store import MemoryStore
from deltamem.journal.jobs import JobState
from deltamem.journal.journal import Journal
from deltamem.journal.records import EntryKind
from deltamem.journal.transfer import import_owner

pytestmark = pytest.mark.slow

CHILD = Path(__file__).with_name("ingest_child.py")
SECONDS = 300


class Child:
    """A child process at work on a store."""

    def __init__(self, job: str, folder: Path, count: int) -> None:
        self._stage = Path(f"{folder}.stage")
        self._stage.unlink(missing_ok=True)
        self._errors = Path(f"{folder}.errors")
        command = [sys.executable, str(CHILD), job, str(folder), str(count)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=errors, stderr=errors, env=environment)

    def stage(self) -> tuple[int, str]:
        """How often something began, and what it is doing now."""
        try:
            count, _, name = self._stage.read_bytes().decode().partition(" ")
            return int(count), "between" if int(count) and name.strip() == "start" else name.strip()
        except (OSError, ValueError):
            return 0, "start"

    def kill_when(self, ready: Callable[[int, str], bool], delay: float) -> str | None:
        """Kill it some seconds after a stage is seen; what it was doing, or None if it had ended before."""
        limit = time.monotonic() + SECONDS
        while self.process.poll() is None and not ready(*self.stage()):
            assert time.monotonic() < limit, "the child hangs"
        time.sleep(delay)
        self.process.send_signal(signal.SIGKILL)
        code = self.process.wait(SECONDS)
        if code == -signal.SIGKILL:
            return self.stage()[1]
        self.finish()
        return None

    def finish(self) -> None:
        """Wait for its good end."""
        code = self.process.wait(SECONDS)
        assert code == 0, f"the child ended with {code}:\n{self._errors.read_text()[-3000:]}"


def acknowledged(folder: Path) -> list[str]:
    """Sessions whose acknowledgement reached the disk; a line that was cut short is none."""
    path = Path(f"{folder}.acks")
    whole = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [line for line in whole if line.startswith("session-")]


def check_journal_on_disk(folder: Path, count: int) -> int:
    """What must hold of the journal after a kill, seen from outside; returns how many sessions are in it."""
    acks = acknowledged(folder)
    if not (folder / "journal.sqlite3").is_file():
        assert not acks
        return 0
    found: list[str] = []
    with Journal.open(folder / "journal.sqlite3") as file:
        assert file.integrity_check() == []
        for owner in OWNERS:
            journal = file.owner(owner)
            assert journal.verify() == []
            assert replay_journal(journal) == dict(journal.state())
            mine = [entry.session_id for entry in journal.entries() if entry.kind is EntryKind.SESSION]
            # In order and without gaps, so none is missing and none is there twice.
            assert mine == [session.id for session in expected_sessions(owner, count)][: len(mine)]
            found += [session_id for session_id in mine if session_id]
    assert set(acks) <= set(found) and len(acks) == len(set(acks)) and len(found) == len(set(found))
    return len(found)


def ingest_with_kills(folder: Path, count: int, kills: int, seed: int) -> Counter[str]:
    """Ingest `count` sessions in child processes of which `kills` are killed; returns what those were doing."""
    rng = random.Random(seed)
    fell: Counter[str] = Counter()
    tries = 0
    while fell.total() < kills:
        tries += 1
        assert tries < 3 * kills + 5, "the sessions ran out before the kills"
        child = Child("ingest", folder, count)
        aim = rng.choice(["time", "open", "rebuild", "commit", "commit", "flush", "flush", "any"])
        # Few steps a life, so that enough sessions are left for all kills.
        least = rng.randrange(1, 3 + 2 * (count - len(acknowledged(folder))) // (kills - fell.total() + 1))
        wanted = {"time": ("start", "open", "commit", "flush"), "rebuild": ("rebuild", "commit"), "any": ("between",)}.get(
            aim, (aim,)
        )
        after = {"commit": 3 + least, "flush": 3, "any": 3 + least}.get(aim, 1)
        delay = rng.random() * {"time": 1.5, "open": 1.0, "commit": 0.004, "flush": 0.03}.get(aim, 0.02)

        def ready(number: int, name: str, after: int = after, wanted: tuple[str, ...] = wanted, aim: str = aim) -> bool:
            return aim == "time" or (number >= after and name in wanted)

        stage = child.kill_when(ready, delay)
        if stage is None:
            break
        fell[stage] += 1
        check_journal_on_disk(folder, count)
    Child("ingest", folder, count).finish()
    assert check_journal_on_disk(folder, count) == count
    with MemoryStore.open(folder, WordEmbedder()) as store:
        for owner in OWNERS:
            check(store, owner)
    print(f"\n{count} sessions survived {fell.total()} kills, during: {dict(fell)}")
    # A session that was committed when the kill came, but not yet acknowledged, is found and not applied again.
    print(f"committed but not acknowledged when the kill came: {count - len(acknowledged(folder))}")
    return fell


def test_two_hundred_ingests_survive_kills(tmp_path: Path) -> None:
    fell = ingest_with_kills(tmp_path / "bank", 200, kills=30, seed=20260405)
    assert fell.total() >= 25 and fell["commit"] and fell["flush"] and fell["open"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with 60 sessions and its export beside it."""
    folder = tmp_path_factory.mktemp("filled") / "bank"
    Child("ingest", folder, 60).finish()
    with Journal.open(folder / "journal.sqlite3", read_only=True) as file:
        folder.with_suffix(".jsonl").write_text(export_text(file.owner(OWNERS[0])), encoding="utf-8")
    return folder


def copied(filled: Path, folder: Path) -> Path:
    subprocess.run(["cp", "-r", str(filled), str(folder)], check=True)
    return folder


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.02])
def test_a_killed_export_leaves_no_half_file(filled: Path, tmp_path: Path, delay: float) -> None:
    folder = copied(filled, tmp_path / "bank")
    stage = Child("export", folder, 0).kill_when(lambda _, name: name == "export", delay)
    print(f"\nkilled during: {stage}")
    if folder.with_suffix(".jsonl").exists():
        with Journal.open(None) as other:
            text = folder.with_suffix(".jsonl").read_text(encoding="utf-8")
            assert import_owner(other.owner(OWNERS[0]), io.StringIO(text)).entries == 30


@pytest.mark.parametrize(
    ("stage", "delay"),
    [("forget", 0.0), ("forget", 0.002), ("purge", 0.0), ("purge", 0.02), ("purge", 0.08)],
)
def test_a_killed_forget_can_be_repeated(filled: Path, tmp_path: Path, stage: str, delay: float) -> None:
    folder = copied(filled, tmp_path / "bank")
    fell = Child("forget", folder, 0).kill_when(lambda _, name: name == stage, delay)
    print(f"\nkilled during: {fell}")
    Child("forget", folder, 0).finish()
    with MemoryStore.open(folder, WordEmbedder()) as store:
        journal = store.bank(OWNERS[0]).journal
        assert "m1" not in journal.state() and len(journal.state()) > 20
        assert all(change.erased for _, change in journal.history("m1"))
        check(store, OWNERS[0])
        assert [entry.kind for entry in journal.entries()].count(EntryKind.FORGET) == 1
    # value0 was said in one session and stored in m1 alone.
    held = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"value1" in held and b"value0." not in held


@pytest.mark.parametrize(
    ("stage", "delay"),
    [("import", 0.0), ("import", 0.004), ("reload", 0.0), ("flush", 0.01)],
)
def test_a_killed_import_is_nothing_or_everything(filled: Path, tmp_path: Path, stage: str, delay: float) -> None:
    folder = tmp_path / "bank"
    folder.with_suffix(".jsonl").write_bytes(filled.with_suffix(".jsonl").read_bytes())
    fell = Child("import", folder, 0).kill_when(lambda _, name: name == stage, delay)
    with Journal.open(folder / "journal.sqlite3", read_only=True) as file:
        journal = file.owner(OWNERS[0])
        entries = journal.head
        assert entries in (0, 30) and (entries == 0) == (not journal.state())
    print(f"\nkilled during: {fell}, {entries} entries were there")
    if not entries:
        Child("import", folder, 0).finish()
    with MemoryStore.open(folder, WordEmbedder()) as store:
        check(store, OWNERS[0])
        assert export_text(store.bank(OWNERS[0]).journal) == folder.with_suffix(".jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_edit_is_nothing_or_everything(filled: Path, tmp_path: Path, seed: int) -> None:
    folder, rng, count = copied(filled, tmp_path / "bank"), random.Random(seed), 40
    Path(f"{folder}.acks").unlink(missing_ok=True)
    least = rng.randrange(2, 20)
    child = Child("edit", folder, count)
    fell = child.kill_when(lambda number, name: number >= least and name in ("commit", "flush"), rng.random() * 0.004)
    acks = Path(f"{folder}.acks").read_text().rpartition("\n")[0].splitlines()
    with Journal.open(folder / "journal.sqlite3") as file:
        journal = file.owner(OWNERS[0])
        assert file.integrity_check() == [] and journal.verify() == []
        edits = [entry for entry in journal.entries() if entry.kind is EntryKind.EDIT]
        assert [len(entry.changes) for entry in edits] == [2] * len(edits)
        written = [change.after and change.after.metadata["n"] for entry in edits for change in entry.changes]
        assert written == [number for number in range(len(edits)) for _ in range(2)]
        assert [line for line in acks if line.startswith("edit-")] == [f"edit-{n}" for n in range(len(edits))][: len(acks)]
        assert len(acks) in (len(edits), len(edits) - 1)
    print(f"\nkilled during: {fell}, {len(edits)} edits were there, {len(acks)} acknowledged")
    Child("edit", folder, count).finish()
    with MemoryStore.open(folder, WordEmbedder()) as store:
        check(store, OWNERS[0])
        assert store.bank(OWNERS[0]).bank.state["m1"].metadata == {"n": count - 1}


def test_jobs_that_were_taken_on_are_applied_once_whenever_the_worker_is_killed(tmp_path: Path) -> None:
    folder, rng, count = tmp_path / "bank", random.Random(7), 120
    fell: Counter[str] = Counter()
    for kill in range(14):
        child = Child("work", folder, count)
        aim = ("claim", "read", "commit", "end")[kill % 4]
        # The first one while sessions are still being taken on.
        stage = child.kill_when(
            lambda number, name, aim=aim, kill=kill: name == aim and number >= 4 if kill else len(acknowledged(folder)) > 30,
            rng.random() * 0.01,
        )
        if stage is None:
            break
        fell[stage] += 1
        with Journal.open(folder / "journal.sqlite3") as file:
            taken = {job.session_id for owner in OWNERS for job in file.owner(owner).jobs()}
            assert set(acknowledged(folder)) <= taken
            for owner in OWNERS:
                journal = file.owner(owner)
                done = {job.session_id for job in journal.jobs(JobState.DONE)}
                mine = [str(entry.session_id) for entry in journal.entries()]
                assert done == set(mine) and journal.verify() == []
                assert mine == [session.id for session in expected_sessions(owner, count)][: len(mine)]
    Child("work", folder, count).finish()
    with MemoryStore.open(folder, WordEmbedder()) as store:
        for owner in OWNERS:
            check(store, owner)
            journal = store.bank(owner).journal
            assert [entry.session_id for entry in journal.entries()] == [s.id for s in expected_sessions(owner, count)]
            assert {job.state for job in journal.jobs()} == {JobState.DONE}
    print(f"\n{count} jobs survived {fell.total()} kills, during: {dict(fell)}")
    assert fell
