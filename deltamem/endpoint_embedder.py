"""An embedder behind any OpenAI-compatible ``/embeddings`` endpoint (vLLM, Ollama, a hosted service)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import openai

from deltamem.embedding import Vectors
from deltamem.errors import EmbedderUnavailableError


class EndpointEmbedder:
    """Asks a server for vectors and normalises them. Retries are the openai client's own."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        query_prefix: str = "",
        batch_size: int = 128,
        timeout: float = 60.0,
        max_retries: int = 4,
    ) -> None:
        """Describe the endpoint; nothing is sent yet.

        Args:
            base_url: Up to and including ``/v1``.
            model: Name under which the endpoint serves the model.
            api_key_env: Environment variable that holds the key; local servers need none.
            query_prefix: Put before every query, for models that were trained with an instruction; servers do not add it.
            batch_size: Texts a request.
            timeout: Seconds a request may take.
            max_retries: How often a request is repeated.
        """
        self.name = f"{base_url}#{model}"
        self._model = model
        self._query_prefix = query_prefix
        self._batch_size = batch_size
        self._client = openai.OpenAI(
            base_url=base_url, api_key=os.environ.get(api_key_env) or "none", timeout=timeout, max_retries=max_retries
        )

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Embed memory texts; returns float32 of shape ``(len(texts), dim)``.

        Raises:
            EmbedderUnavailableError: If the endpoint does not answer with one vector a text.
        """
        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        starts = range(0, len(texts), self._batch_size)
        rows = np.concatenate([self._ask(texts[start : start + self._batch_size]) for start in starts])
        unit: Vectors = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return unit

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Embed search queries; returns float32 of shape ``(len(texts), dim)``."""
        return self.documents([self._query_prefix + text for text in texts])

    def _ask(self, texts: Sequence[str]) -> Vectors:
        try:
            answer = self._client.embeddings.create(model=self._model, input=list(texts), encoding_format="float")
            # The protocol allows any order; the index says which text a vector belongs to.
            found = sorted(answer.data, key=lambda item: item.index)
            vectors = np.array([item.embedding for item in found], dtype=np.float32)
        except (openai.OpenAIError, TypeError, AttributeError, ValueError) as error:
            raise EmbedderUnavailableError(f"embedder {self.name} gave no vectors: {error}") from error
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise EmbedderUnavailableError(f"embedder {self.name} gave {len(found)} vectors for {len(texts)} texts")
        return vectors
