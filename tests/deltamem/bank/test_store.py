"""Stores: one process, several owners, an index in a Chroma server."""

from datetime import datetime
from pathlib import Path

import pytest
from episode_texts import WordEmbedder
from rule_model import RulePolicy

from deltamem.bank.store import MemoryStore
from deltamem.errors import DeltaMemError
from deltamem.ingest import Outcome
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.sessions import Turn

TIME = datetime(2026, 4, 5, 20, 1)


async def ingest(store: MemoryStore, session_id: str, said: str) -> MemoryManager:
    memory = MemoryManager(store, "ann", RulePolicy(), ManagerSettings(person_name="Ann"))
    done = await memory.ingest(memory.session(session_id, TIME, [Turn("user", said)]))
    assert done.outcome is Outcome.APPLIED
    return memory


@pytest.mark.slow
async def test_two_stores_of_one_owner_share_a_server_and_nothing_else(tmp_path: Path, chroma_url: str) -> None:
    folders = {"Boston": tmp_path / "first", "Denver": tmp_path / "second"}
    for city, folder in folders.items():
        with MemoryStore.open(folder, WordEmbedder(), index_url=chroma_url) as store:
            await ingest(store, "s1", f"My city is {city}.")
    for city, folder in folders.items():
        embedder = WordEmbedder()
        with MemoryStore.open(folder, embedder, index_url=chroma_url) as store:
            hits = await MemoryManager(store, "ann", RulePolicy()).search("Ann's city", 5)
        assert [hit.memory.text for hit in hits] == [f"Ann's city is {city}."]
        assert embedder.calls == [["Ann's city"]]  # the index was in step: no memory was embedded again
        assert not (folder / "index").exists()
    with MemoryStore.open(folders["Boston"], WordEmbedder(), index_url=chroma_url) as store:
        await MemoryManager(store, "ann", RulePolicy()).forget_owner()
    with MemoryStore.open(folders["Denver"], WordEmbedder(), index_url=chroma_url) as store:
        assert [hit.memory.id for hit in await MemoryManager(store, "ann", RulePolicy()).search("city")] == ["m1"]
        await MemoryManager(store, "ann", RulePolicy()).forget_owner()


def test_a_store_is_open_once(tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path, WordEmbedder()), pytest.raises(DeltaMemError, match="in use by this process"):
        MemoryStore.open(tmp_path, WordEmbedder())
    MemoryStore.open(tmp_path, WordEmbedder()).close()


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DeltaMemError, match="not a directory"):
        MemoryStore.open(tmp_path / "file", WordEmbedder())
