"""The store of vectors: what a build writes, survives and refuses, and the stage that fills it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from embeddings_cases import DIM, DigestEmbedder, vector_of
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from training_cases import labelled_session, write_sessions

from deltamem.embedding import load_embedder
from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError
from deltamem.training.config import EmbedderSettings
from deltamem.training.data import Exported, export
from deltamem.training.embedding_service import BatchedEmbedder
from deltamem.training.embedding_store import (
    Built,
    EmbeddingStore,
    build_store,
    embed_data,
    find_rows,
    index_of,
    keys_of,
    memory_texts,
)

MODEL = "digest"
GROWING = ("vectors", "keys", "chunks.jsonl")


class Interrupted(Exception):
    pass


def assert_holds(folder: Path, texts: set[str], kind: str = "documents") -> None:
    store = EmbeddingStore(folder, MODEL)
    found = store.find(sorted(texts), kind)
    assert found.keys() == texts
    for text, vector in found.items():
        np.testing.assert_array_equal(vector, vector_of(text, kind))


texts_of_a_run = st.lists(st.text(max_size=5), max_size=14)
attempts = st.lists(
    st.tuples(
        texts_of_a_run,
        st.sampled_from(["documents", "queries"]),
        st.integers(1, 4),  # texts a chunk
        st.none() | st.integers(0, 3),  # the call in which the process dies
        st.binary(max_size=30),  # what it had begun to write then
        st.sampled_from(GROWING),
    ),
    min_size=1,
    max_size=6,
)


@given(attempts)
@settings(deadline=None, max_examples=40)
def test_any_interrupted_attempts_give_exactly_the_vectors_of_the_embedder(attempts) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted: dict[str, set[str]] = {"documents": set(), "queries": set()}
        embedded: dict[str, list[str]] = {"documents": [], "queries": []}
        for texts, kind, chunk, dies_in, begun, file in attempts:
            calls = 0

            def before(_: list[str], dies_in: int | None = dies_in) -> None:
                nonlocal calls
                if calls == dies_in:
                    raise Interrupted
                calls += 1

            embedder = DigestEmbedder(before)
            wanted[kind] |= set(texts)
            try:
                built = build_store(folder, texts, embedder, kind=kind, chunk=chunk)
                assert built.texts == len(set(texts)) and built.embedded == sum(map(len, embedder.calls))
            except Interrupted:
                with (folder / f"{kind}.{file}").open("ab") as torn:
                    torn.write(begun)
            assert all(len(call) <= chunk for call in embedder.calls)
            embedded[kind] += [text for call in embedder.calls for text in call]
        for kind, texts in wanted.items():
            embedder = DigestEmbedder()
            build_store(folder, texts, embedder, kind=kind)
            embedded[kind] += [text for call in embedder.calls for text in call]
            assert_holds(folder, texts, kind)
            # Finished chunks were kept: nothing was embedded twice.
            assert sorted(embedded[kind]) == sorted(texts)
            assert EmbeddingStore(folder, MODEL).missing([*texts, "unknown to all", "unknown to all"], kind) == [
                "unknown to all"
            ]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), unique=True), st.integers(0, 3))
def test_rows_are_found_by_both_halves_of_a_key(pairs, last) -> None:
    keys = np.array(pairs, dtype=np.uint64).reshape(-1, 2)
    wanted = np.array([(high, low) for high in (*range(3), last) for low in range(4)], dtype=np.uint64)
    expected = [pairs.index(pair) if (pair := tuple(key)) in pairs else -1 for key in wanted.tolist()]
    assert find_rows(index_of(keys), wanted).tolist() == expected


def test_keys_tell_texts_apart_that_look_alike() -> None:
    texts = ["é", "e\u0301", "", " ", "a", "a\n", "\ud800"]
    assert len({tuple(key) for key in keys_of(texts).tolist()}) == len(texts)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from embeddings_cases import DigestEmbedder
from deltamem.training.embedding_store import build_store
calls = []
def before(texts):
    calls.append(texts)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
build_store(Path({folder!r}), [str(number) for number in range(10)], DigestEmbedder(before), chunk=3)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_its_finished_chunks_and_no_lock(tmp_path: Path) -> None:
    script = KILLED.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    with pytest.raises(DeltaMemError, match="no finished embedding store"):
        EmbeddingStore(tmp_path, MODEL)
    for name in GROWING:
        with (tmp_path / f"documents.{name}").open("ab") as torn:
            torn.write(b"half a row")
    assert build_store(tmp_path, map(str, range(10)), DigestEmbedder(), chunk=3) == Built(10, 4, 10)
    assert_holds(tmp_path, {str(number) for number in range(10)})


def test_the_longest_texts_go_first_in_whole_chunks_and_progress_counts_what_was_there(tmp_path: Path) -> None:
    build_store(tmp_path, ["x" * 3], DigestEmbedder())
    embedder, told = DigestEmbedder(), []
    build_store(tmp_path, ["x" * n for n in (1, 5, 3, 2, 4, 5)], embedder, chunk=2, report=lambda *at: told.append(at))
    assert [[len(text) for text in call] for call in embedder.calls] == [[5, 4], [2, 1]]
    assert told == [(1, 5), (3, 5), (5, 5)]


def test_an_open_store_keeps_its_view_while_texts_are_added(tmp_path: Path) -> None:
    build_store(tmp_path, ["a", "b"], DigestEmbedder())
    before = EmbeddingStore(tmp_path, MODEL)
    assert build_store(tmp_path, ["b", "c"], DigestEmbedder()) == Built(2, 1, 3)
    assert before.missing(["a", "b", "c"]) == ["c"]
    np.testing.assert_array_equal(before.find(["a"])["a"], vector_of("a"))
    assert_holds(tmp_path, {"a", "b", "c"})
    sent = pickle.dumps(before)
    assert len(sent) < 500 and pickle.loads(sent).missing(["c"]) == []


def test_runs_that_share_a_folder_take_turns(tmp_path: Path) -> None:
    embedders = [DigestEmbedder() for _ in range(3)]
    texts = [[str(number) for number in range(start, start + 40)] for start in (0, 20, 40)]
    threads = [
        threading.Thread(target=build_store, args=(tmp_path, part, embedder), kwargs={"chunk": 7})
        for part, embedder in zip(texts, embedders, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(call) for embedder in embedders for call in embedder.calls) == 80
    assert_holds(tmp_path, {str(number) for number in range(80)})


def test_vectors_are_read_only_and_not_copied_into_memory(tmp_path: Path) -> None:
    build_store(tmp_path, map(str, range(100)), DigestEmbedder())
    table = EmbeddingStore(tmp_path, MODEL)._tables["documents"]
    base = table.vectors
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap) and not table.vectors.flags.writeable


def test_a_store_of_another_model_is_refused(tmp_path: Path) -> None:
    def dies(_: list[str]) -> None:
        if texts_seen:
            raise Interrupted
        texts_seen.append(1)

    texts_seen: list[int] = []
    with pytest.raises(Interrupted):
        build_store(tmp_path, "abc", DigestEmbedder(dies), chunk=2)
    with pytest.raises(DeltaMemError, match="vectors of 'digest', expected those of 'other'"):
        build_store(tmp_path, "abc", DigestEmbedder(name="other"), kind="queries")
    build_store(tmp_path, "abc", DigestEmbedder())
    with pytest.raises(DeltaMemError, match="vectors of 'digest', expected those of 'other'"):
        EmbeddingStore(tmp_path, "other")
    with pytest.raises(DeltaMemError, match="expected those of 'other'"):
        build_store(tmp_path, [], DigestEmbedder(name="other"))


def test_an_empty_store_knows_nothing(tmp_path: Path) -> None:
    assert build_store(tmp_path, [], DigestEmbedder()) == Built(0, 0, 0)
    assert EmbeddingStore(tmp_path, MODEL).missing(["a", "a", ""]) == ["a", ""]


def test_damage_is_told_and_never_read(tmp_path: Path) -> None:
    build_store(tmp_path, map(str, range(9)), DigestEmbedder(), chunk=3)
    vectors, index = tmp_path / "documents.vectors", tmp_path / "documents.9.index.npy"
    whole = vectors.read_bytes()
    vectors.write_bytes(whole[:50] + b"\xff" + whole[51:])
    with pytest.raises(DeltaMemError, match=r"documents\.vectors: only 0 of 9 rows are intact"):
        build_store(tmp_path, ["new"], DigestEmbedder())
    os.truncate(vectors, len(whole) - 1)
    with pytest.raises(DeltaMemError, match="fewer documents than the 9"):
        EmbeddingStore(tmp_path, MODEL)
    vectors.write_bytes(whole)
    index.write_bytes(b"")
    with pytest.raises(DeltaMemError, match=r"documents\.9\.index\.npy"):
        EmbeddingStore(tmp_path, MODEL)
    index.unlink()
    with pytest.raises(DeltaMemError, match=r"documents\.9\.index\.npy: missing"):
        EmbeddingStore(tmp_path, MODEL)
    meta = tmp_path / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "dtype": "float16"}))
    with pytest.raises(DeltaMemError, match=r"meta\.json: not the description"):
        EmbeddingStore(tmp_path, MODEL)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (np.ones((2, DIM), dtype=np.float32), r"shape \(2, 6\), expected \(1, 6\)"),
        (np.ones((1, DIM + 1), dtype=np.float32), r"shape \(1, 7\), expected \(1, 6\)"),
        (np.full((1, DIM), np.nan, dtype=np.float32), "not finite"),
        (np.zeros((1, 0), dtype=np.float32), "shape"),
    ],
)
def test_an_unusable_answer_is_not_stored(tmp_path: Path, answer: np.ndarray, sentence: str) -> None:
    build_store(tmp_path, ["a"], DigestEmbedder())
    broken = DigestEmbedder()
    broken.documents = lambda texts: answer  # type: ignore[method-assign]
    with pytest.raises(DeltaMemError, match=sentence):
        build_store(tmp_path, ["b"], broken)
    assert build_store(tmp_path, ["b"], DigestEmbedder()) == Built(1, 1, 2)


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
