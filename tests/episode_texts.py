"""What assistants write in episodes, and an embedder that needs no model: shared by tests of several packages."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence

import numpy as np

from deltamem.embedding import Vectors
from deltamem.memory import Event, Operation


class WordEmbedder:
    """Unit vectors of word counts: texts with the same words are close, others are not."""

    name = "words"
    dim = 256

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def documents(self, texts: Sequence[str]) -> Vectors:
        self.calls.append(list(texts))
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                vectors[row, zlib.crc32(word.encode()) % self.dim] += 1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)

    queries = documents


def add(text: str, *keywords: str) -> Operation:
    return Operation(Event.ADD, text, None, keywords)


def update(target: str, text: str, *keywords: str) -> Operation:
    return Operation(Event.UPDATE, text, target, keywords)


def none(target: str, text: str) -> Operation:
    return Operation(Event.NONE, text, target)


def outputs(*operations: Operation) -> str:
    """An assistant text that answers with operations."""
    listed = [
        {"text": operation.text, "event": operation.event.value}
        | ({"target_memory_id": operation.target_memory_id} if operation.target_memory_id else {})
        for operation in operations
    ]
    return f"<think>That is all.</think><outputs>{json.dumps({'operations': listed})}</outputs>"


def search(*queries: str) -> str:
    """An assistant text that searches."""
    call = {"name": "search_memory", "arguments": {"query_list": list(queries)}}
    return f"<think>What is known?</think><tool_call>{json.dumps(call)}</tool_call>"
