"""One number that stands for a set of named byte strings and follows its changes."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from deltamem.embedding import Vectors
from deltamem.memory import Memory

EMPTY = "0" * 32
"""Fingerprint of nothing."""


def fingerprint(items: Iterable[tuple[str, bytes | Vectors]]) -> str:
    """Hash a set of (id, content) pairs; their order does not matter.

    It notices damage and mix-ups, and is no protection against somebody who constructs a collision.

    Args:
        items: Ids and contents, no pair twice.

    Returns:
        32 hexadecimal digits: the exclusive or of the pairs' hashes.
    """
    total = 0
    for name, content in items:
        data = content if isinstance(content, bytes) else content.tobytes()
        total ^= int.from_bytes(blake2b(name.encode() + b"\0" + data, digest_size=16).digest(), "big")
    return f"{total:032x}"


def combine(*fingerprints: str) -> str:
    """Join the fingerprints of disjoint sets; combining with a part once more takes that part out again."""
    total = 0
    for value in fingerprints:
        total ^= int(value, 16)
    return f"{total:032x}"


def of_texts(memories: Iterable[Memory]) -> str:
    """The fingerprint of memories' ids and texts."""
    return fingerprint((memory.id, memory.text.encode()) for memory in memories)
