"""An embedding that costs next to nothing: as many numbers as all-MiniLM-L6-v2 gives, by hashed words. Needs NumPy alone."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DIM = 384


def vectors_of(texts: Sequence[str]) -> NDArray[np.float32]:
    """Unit vectors of texts, float32 of shape ``(len(texts), 384)``."""
    vectors = np.zeros((len(texts), DIM), dtype=np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().split():
            vectors[row, zlib.crc32(word.encode()) % DIM] += 1
    unit: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return unit
