"""The store of vectors: what a build writes, survives and refuses, and the stage that fills it."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embeddings_cases import DIM, DigestEmbedder, Interrupted, vector_of
from hypothesis import given
from hypothesis import strategies as st
from lazy import names
from rich.console import Console
from scripted_server import Reply, serve
from training_cases import labelled_session, write_sessions

from deltamem.embedding import load_embedder
from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError
from deltamem.training.config import StoredEmbedderSettings
from deltamem.training.data import export
from deltamem.training.embedding_store import Built, EmbeddingStore, build_store, embed_data, keys_of

BatchedEmbedder = names("deltamem.training.embedding_service", "BatchedEmbedder")

MODEL = "digest"


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
    ),
    min_size=1,
    max_size=6,
)


@given(attempts)
def test_any_interrupted_attempts_give_exactly_the_vectors_of_the_embedder(attempts) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted: dict[str, set[str]] = {"documents": set(), "queries": set()}
        embedded: dict[str, list[str]] = {"documents": [], "queries": []}
        for texts, kind, chunk, dies_in in attempts:
            embedder = DigestEmbedder(dies_in=dies_in)
            wanted[kind] |= set(texts)
            try:
                built = build_store(folder, texts, embedder, kind=kind, chunk=chunk)
                assert built.texts == len(set(texts)) and built.embedded == sum(map(len, embedder.calls))
            except Interrupted:
                (folder / f".{kind}.000000.npy.partial").write_bytes(b"begun")
            assert all(len(call) <= chunk for call in embedder.calls)
            embedded[kind] += [text for call in embedder.calls for text in call]
        for kind, texts in wanted.items():
            embedder = DigestEmbedder()
            build_store(folder, texts, embedder, kind=kind)
            embedded[kind] += [text for call in embedder.calls for text in call]
            assert_holds(folder, texts, kind)
            # Finished chunks were kept: nothing was embedded twice.
            assert sorted(embedded[kind]) == sorted(texts)
            assert EmbeddingStore(folder, MODEL).find(["unknown to all"], kind) == {}


def test_keys_tell_texts_apart_that_look_alike() -> None:
    texts = ["é", "e\u0301", "", " ", "a", "a\n", "\ud800"]
    assert len(set(keys_of(texts).tolist())) == len(texts)


KILLED = """
import os, signal, sys
from pathlib import Path
from embeddings_cases import DigestEmbedder
from deltamem.training.embedding_store import build_store
embedder = DigestEmbedder(lambda texts: len(embedder.calls) == 2 and os.kill(os.getpid(), signal.SIGKILL))
build_store(Path(sys.argv[1]), [str(number) for number in range(10)], embedder, chunk=3)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_its_finished_chunks_and_no_lock(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=env, check=False)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(DeltaMemError, match="no finished embedding store"):
        EmbeddingStore(tmp_path, MODEL)
    assert build_store(tmp_path, map(str, range(10)), DigestEmbedder(), chunk=3) == Built(10, 4, 10)
    assert_holds(tmp_path, {str(number) for number in range(10)})


def test_a_build_removes_what_killed_builds_left(tmp_path: Path) -> None:
    build_store(tmp_path, ["a", "b"], DigestEmbedder())
    whole = sorted(tmp_path.iterdir())
    for name in (".documents.000001.npy.partial", ".meta.json.partial"):
        (tmp_path / name).write_bytes(b"half")
    assert build_store(tmp_path, ["a", "b"], DigestEmbedder()) == Built(2, 0, 2)
    assert sorted(tmp_path.iterdir()) == whole
    assert_holds(tmp_path, {"a", "b"})


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
    assert before.find(["a", "b", "c"]).keys() == {"a", "b"}
    np.testing.assert_array_equal(before.find(["a"])["a"], vector_of("a"))
    assert_holds(tmp_path, {"a", "b", "c"})
    sent = pickle.dumps(before)
    assert len(sent) < 500, "the vectors stay on the disk"
    assert pickle.loads(sent).find(["c"]).keys() == {"c"}


def test_runs_that_share_a_folder_take_turns(tmp_path: Path) -> None:
    embedders = [DigestEmbedder() for _ in range(3)]
    parts = [map(str, range(start, start + 40)) for start in (0, 20, 40)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(partial(build_store, tmp_path, chunk=7), parts, embedders))
    assert sum(len(call) for embedder in embedders for call in embedder.calls) == 80
    assert_holds(tmp_path, {str(number) for number in range(80)})


def test_a_store_of_another_model_is_refused_even_if_it_was_never_finished(tmp_path: Path) -> None:
    refused = pytest.raises(DeltaMemError, match="vectors of 'digest', expected those of 'other'")
    with pytest.raises(Interrupted):
        build_store(tmp_path, "abc", DigestEmbedder(dies_in=1), chunk=2)
    with refused:
        build_store(tmp_path, "abc", DigestEmbedder(name="other"), kind="queries")
    build_store(tmp_path, "abc", DigestEmbedder())
    with refused:
        EmbeddingStore(tmp_path, "other")
    with refused:
        build_store(tmp_path, [], DigestEmbedder(name="other"))


@pytest.mark.parametrize(
    ("file", "kept", "said"),
    [
        ("documents.000001.npy", -1, r"documents\.000001\.npy: not a file of an embedding store"),
        ("documents.000001.npy", 0, r"documents\.000001\.npy"),
        ("meta.json", -3, r"meta\.json: not the description"),
    ],
)
def test_damage_is_told_and_never_read(tmp_path: Path, file: str, kept: int, said: str) -> None:
    build_store(tmp_path, map(str, range(9)), DigestEmbedder(), chunk=3)
    path = tmp_path / file
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DeltaMemError, match=said):
        EmbeddingStore(tmp_path, MODEL)
    with pytest.raises(DeltaMemError, match=said):
        build_store(tmp_path, ["new"], DigestEmbedder())


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


def embeddings(body: dict[str, Any]) -> Reply:
    """What an endpoint answers to ``/v1/embeddings``."""
    data = [{"index": place, "embedding": vector_of(text).tolist()} for place, text in enumerate(body["input"])]
    return Reply({"data": data, "model": body["model"], "object": "list"})


@pytest.mark.slow
def test_with_a_gpu_the_texts_are_embedded_in_a_process_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(StoredEmbedderSettings, "lazy", lambda *_, **__: pytest.fail("CUDA would stay in this process"))
    settings = StoredEmbedderSettings(
        name="all-MiniLM-L6-v2", device="cuda:9", batch_size=8, threads=1, store=tmp_path / "e"
    )
    source = write_sessions(tmp_path / "sessions.jsonl", train=1, heldout=1)
    data = export(
        source, tmp_path / "data", EpisodeConfig(), train_sessions=None, heldout_sessions=None, skip_people=0, seed=1
    )
    with pytest.raises(DeltaMemError, match="cannot be put on device 'cuda:9'"):
        embed_data([data.train], settings, Console(file=io.StringIO()))


def test_all_memory_texts_of_the_data_are_embedded_once_by_an_endpoint(tmp_path: Path) -> None:
    source = write_sessions(tmp_path / "sessions.jsonl", train=9, heldout=3)
    data = export(
        source, tmp_path / "data", EpisodeConfig(), train_sessions=None, heldout_sessions=None, skip_people=0, seed=1
    )
    with serve(embeddings) as server:
        settings = StoredEmbedderSettings(
            name=f"{server.url}#m", device="cpu", batch_size=8, threads=1, store=tmp_path / "e"
        )
        output = io.StringIO()
        built = [embed_data([data.train, data.heldout], settings, Console(file=output)) for _ in range(2)]
        owner = BatchedEmbedder(load_embedder(settings.name))
        fresh = asyncio.run(owner.documents.get(["Predicted."]))["Predicted."]
    texts = set()
    for item in map(labelled_session, range(12)):
        texts |= {memory.text for state in (item.prior_state, item.next_state) for memory in state.memories}
        texts |= {operation.text for operation in item.operations}
    assert built == [Built(len(texts), len(texts), len(texts)), Built(len(texts), 0, len(texts))]
    assert f"{len(texts)} texts, 0 of them new" in output.getvalue()
    asked = [request["input"] for request in server.requests]
    assert sorted(text for call in asked for text in call) == sorted([*texts, "Predicted."])
    assert max(len(call) for call in asked) == 8
    found = EmbeddingStore(settings.store, settings.name).find(sorted(texts))
    assert found.keys() == texts
    for text, vector in (found | {"Predicted.": fresh}).items():
        np.testing.assert_allclose(vector, vector_of(text) / np.linalg.norm(vector_of(text)), rtol=1e-6)
