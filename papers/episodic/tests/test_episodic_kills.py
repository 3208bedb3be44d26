"""kill -9 at every answer of the model and every entry of the journal: the same call goes on, nothing is lost or twice."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from episode_texts import WordEmbedder
from episodic_cases import Reviewer, answer, booking

from deltamem.bank.store import MemoryStore, UserStore
from deltamem.journal.owner import OwnerJournal
from papers.episodic import EpisodicMemory

pytestmark = pytest.mark.slow
KINDS = {"answer": 5, "append": 6, "commit": 6}


def killed(folder: Path, kind: str, count: int) -> int:
    """Ingest in a process that ends at the given answer, entry, or commit; its exit code."""
    command = [sys.executable, __file__, str(folder), kind, str(count)]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=120).returncode


def ingest(folder: Path, model: Reviewer) -> None:
    with MemoryStore.open(folder, WordEmbedder()) as store:
        asyncio.run(EpisodicMemory(store, "waiter", model).ingest(booking()))


def lessons(folder: Path) -> list[object]:
    with MemoryStore.open(folder, WordEmbedder()) as store:
        agent = EpisodicMemory(store, "waiter", Reviewer())
        assert store.journal.owner(agent.owner).verify() == []
        found = asyncio.run(agent.recall("Order a meal", k=5, episodes=5))
        assert [one for one, _ in found.reflections] == agent.reflections() and len(found.episodes) == 2
        return [agent.memory.journal.head, *agent.memory.state().memories]


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_kills_a_reading_it_goes_on(tmp_path: Path, kind: str) -> None:
    ingest(tmp_path / "whole", Reviewer())
    whole = lessons(tmp_path / "whole")
    for count in range(1, KINDS[kind] + 1):
        folder, rest = tmp_path / str(count), Reviewer()
        assert killed(folder, kind, count) == -signal.SIGKILL
        ingest(folder, rest)
        # What was recorded is not asked for again: after the entry of the turns all that followed them, and so on.
        assert len(rest.asked) == {"answer": 6 - count, "append": max(0, 5 - count), "commit": max(0, 5 - count)}[kind]
        assert lessons(folder) == whole


def _die_at(kind: str, count: int) -> Reviewer:
    left = count

    def passed() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    if kind == "answer":
        return Reviewer(lambda messages: (passed(), answer(messages))[1])
    owner: type = OwnerJournal if kind == "append" else UserStore
    method = getattr(owner, kind)

    def dying(*arguments: object, **named: object) -> object:
        entry = method(*arguments, **named)
        passed()
        return entry

    setattr(owner, kind, dying)
    return Reviewer()


if __name__ == "__main__":
    ingest(Path(sys.argv[1]), _die_at(sys.argv[2], int(sys.argv[3])))
