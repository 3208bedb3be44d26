"""The stage that embeds a data set: which texts, and from a served endpoint too."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from embeddings_cases import vector_of
from rich.console import Console
from training_cases import labelled_session, write_sessions

from deltamem.embedding import load_embedder
from deltamem.episode import EpisodeConfig
from deltamem.training.config import EmbedderSettings
from deltamem.training.data import Exported, export
from deltamem.training.embedding_service import BatchedEmbedder
from deltamem.training.embedding_store import Built, EmbeddingStore, embed_data, memory_texts


class Endpoint(BaseHTTPRequestHandler):
    """Answers ``/v1/embeddings`` for the model ``m``."""

    asked: list[list[str]]

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(request["input"])
        data = [{"index": i, "embedding": vector_of(text).tolist()} for i, text in enumerate(request["input"])]
        body = json.dumps({"data": data, "model": request["model"], "object": "list"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def data(tmp_path: Path) -> Exported:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=9, heldout=3)
    everything = {"train_sessions": None, "heldout_sessions": None, "skip_people": 0, "seed": 1}
    return export(sessions, tmp_path / "data", EpisodeConfig(), **everything)


def test_all_memory_texts_of_the_data_are_embedded_once_by_an_endpoint(data: Exported, tmp_path: Path) -> None:
    handler = type("Handler", (Endpoint,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        settings = EmbedderSettings(
            name=f"http://127.0.0.1:{server.server_port}/v1#m", device="cpu", batch_size=8, threads=1, store=tmp_path / "e"
        )
        output = io.StringIO()
        built = [embed_data([data.train, data.heldout], settings, Console(file=output)) for _ in range(2)]
        owner = BatchedEmbedder(load_embedder(settings.name))
        fresh = asyncio.run(owner.documents.get(["Predicted."]))["Predicted."]
    finally:
        server.shutdown()
        server.server_close()
    sessions = [labelled_session(number) for number in range(12)]
    texts = {memory.text for item in sessions for state in (item.prior_state, item.next_state) for memory in state.memories}
    texts |= {operation.text for item in sessions for operation in item.operations}
    assert built == [Built(len(texts), len(texts), len(texts)), Built(len(texts), 0, len(texts))]
    assert f"{len(texts)} texts, 0 of them new" in output.getvalue()
    assert sorted(text for call in handler.asked for text in call) == sorted([*texts, "Predicted."])
    assert max(len(call) for call in handler.asked) == 8
    found = EmbeddingStore(settings.store, settings.name).find(sorted(texts))
    assert found.keys() == texts
    for text, vector in (found | {"Predicted.": fresh}).items():
        np.testing.assert_allclose(vector, vector_of(text) / np.linalg.norm(vector_of(text)), rtol=1e-6)


def test_texts_of_prior_next_and_target(data: Exported) -> None:
    texts = set(memory_texts(data.heldout))
    assert {"Person9 lives in Oslo.", "Person9 likes tea.", "Person9 lives in Perth.", "Person9 has a cat."} <= texts
    assert not any("Person8" in text for text in texts)
