"""An embedder behind a real local HTTP server."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from deltamem.embedding import EndpointEmbedder, load_embedder
from deltamem.errors import EmbedderUnavailableError


@contextmanager
def embeddings(answer: Any = None) -> Iterator[tuple[str, list[list[str]]]]:
    """Serve vectors (length of the text, 1) in reversed order, or a fixed answer."""
    seen: list[list[str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            seen.append(texts)
            data = [
                {"object": "embedding", "index": index, "embedding": [float(len(text)), 1.0]}
                for index, text in enumerate(texts)
            ]
            payload = {"object": "list", "model": "e", "data": data[::-1]} if answer is None else answer
            body = json.dumps(payload).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_vectors_are_normalised_batched_and_in_the_order_of_the_texts() -> None:
    with embeddings() as (url, seen):
        embedder = EndpointEmbedder(url, "e", batch_size=2, query_prefix="Q: ")
        vectors = embedder.documents(["a", "bbb", "cc"])
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors[:, 0] / vectors[:, 1], [1, 3, 2], rtol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
        assert seen == [["a", "bbb"], ["cc"]]
        embedder.queries(["x"])
        assert seen[-1] == ["Q: x"]
        assert embedder.documents([]).shape[0] == 0 and len(seen) == 3


def test_it_is_loaded_by_its_address() -> None:
    with embeddings() as (url, seen):
        embedder = load_embedder(f"{url}#e")
        embedder.documents(["a"])
        embedder.documents(["a"])
        assert seen == [["a"]] and embedder.name == f"{url}#e"
    with pytest.raises(EmbedderUnavailableError, match="names no model"):
        load_embedder("http://localhost:1/v1")


@pytest.mark.parametrize("answer", [{"data": []}, {"data": [{"index": 0, "embedding": "x"}]}, {"error": "no"}, [1]])
def test_an_answer_without_the_vectors_is_told(answer: Any) -> None:
    with embeddings(answer) as (url, _), pytest.raises(EmbedderUnavailableError, match="gave"):
        EndpointEmbedder(url, "e", max_retries=0).documents(["a"])


def test_an_unreachable_endpoint_is_told() -> None:
    with pytest.raises(EmbedderUnavailableError, match="localhost:1"):
        EndpointEmbedder("http://localhost:1/v1", "e", max_retries=0).documents(["a"])
