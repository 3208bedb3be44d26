"""DeltaMem's side of the comparison with mem0: a persistent bank, and the scripted model behind the endpoint policy."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from side import Calls, Side, run
from workload import OWNER

from deltamem.bank.store import MemoryStore
from deltamem.embedding import SentenceTransformerEmbedder, load_embedder
from deltamem.episode import Message
from deltamem.ingest import Outcome
from deltamem.llm import LLM
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.policy import Completion, EndpointPolicy
from deltamem.sessions import Turn

_BEGIN = datetime(2026, 1, 1, 20, 1)
_PRELOAD_TOGETHER = 200


class _Adding:
    """A policy that adds given texts, whatever the session says."""

    name = "preload"

    def __init__(self, texts: Sequence[str]) -> None:
        self._text = json.dumps({"operations": [{"text": text, "event": "ADD"} for text in texts]})

    async def complete(self, messages: Sequence[Message]) -> Completion:
        return Completion(f"<think>Add them.</think><outputs>{self._text}</outputs>", truncated=False, tokens=1)


class DeltaMemSide:
    """DeltaMem, for one owner."""

    def __init__(self, store: MemoryStore, model_url: str, runner: asyncio.Runner) -> None:
        self._store = store
        self._runner = runner
        settings = ManagerSettings(person_name="Ann", mode="react")
        self._settings = settings
        self._manager = MemoryManager(store, OWNER, EndpointPolicy(LLM(model_url, "scripted")), settings)

    def preload(self, memories: list[str]) -> None:
        """Ingest sessions whose answer is made up of the memories."""
        for start in range(0, len(memories), _PRELOAD_TOGETHER):
            policy = _Adding(memories[start : start + _PRELOAD_TOGETHER])
            manager = MemoryManager(self._store, OWNER, policy, self._settings)
            self._apply(manager, f"preload {start}", _BEGIN, [Turn("user", "Hello.")])

    def search(self, query: str, k: int) -> list[str]:
        """Through the manager."""
        return [hit.memory.text for hit in self._runner.run(self._manager.search(query, k))]

    def ingest(self, number: int, turns: list[dict[str, str]]) -> None:
        """Sessions are a day apart."""
        dialogue = [Turn("user" if turn["role"] == "user" else "assistant", turn["content"]) for turn in turns]
        self._apply(self._manager, f"session {number}", _BEGIN + timedelta(days=1 + number), dialogue)

    def memories(self) -> list[str]:
        """The texts of the state."""
        return [memory.text for memory in self._manager.state().memories]

    def _apply(self, manager: MemoryManager, session_id: str, time: datetime, dialogue: Sequence[Turn]) -> None:
        transition = self._runner.run(manager.ingest(manager.session(session_id, time, dialogue)))
        if transition.outcome is not Outcome.APPLIED or transition.violations:
            raise RuntimeError(f"{session_id}: {transition.outcome}, {dict(transition.violations)}")


@contextmanager
def open_deltamem(folder: Path, model_url: str) -> Iterator[Side]:
    """Make a store in a folder."""
    with MemoryStore.open(folder, load_embedder()) as store, asyncio.Runner() as runner:
        yield DeltaMemSide(store, model_url, runner)


def watch(calls: Calls) -> None:
    """Count what both sides have: embedding and Chroma."""
    from chromadb.api.models.Collection import Collection

    calls.watch("embedding", SentenceTransformerEmbedder, "documents", "queries")
    calls.watch("store", Collection, "query", "get", "add", "upsert", "update", "delete", "modify", "count")


def main() -> None:
    """Serve requests of the parent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="empty folder for the stores")
    parser.add_argument("model_url", help="base URL of the scripted model")
    arguments = parser.parse_args()
    run(lambda: open_deltamem(arguments.folder, arguments.model_url), watch)


if __name__ == "__main__":
    main()
