"""Vectors for rollouts: batching, failures, the store first, the owner as a thread and as a ray actor."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embeddings_cases import DigestEmbedder, vector_of
from lazy import lazy, names

from deltamem.embedding import OFFLINE_MODEL, Vectors, load_embedder
from deltamem.training.embedding_store import EmbeddingStore, build_store

ray = lazy("ray")
BatchedEmbedder, EmbeddingClient, Lookup, OwnerHandle, TextVectors, connect, find_owner = names(
    "deltamem.training.embedding_service",
    "BatchedEmbedder EmbeddingClient Lookup OwnerHandle TextVectors connect find_owner",
)


class Owner:
    """Counts what it is asked; fails for texts that begin with a question mark; can be held."""

    def __init__(self, kind: str = "documents") -> None:
        self.kind = kind
        self.calls: list[list[str]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.at_once = self.most_at_once = 0

    async def __call__(self, texts: list[str]) -> Vectors:
        self.calls.append(texts)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.open.wait()
        self.at_once -= 1
        if any(text.startswith("?") for text in texts):
            raise ValueError("no vector for a question")
        return np.stack([vector_of(text, self.kind) for text in texts])

    def held(self) -> Owner:
        """Answers nobody until `open` is set."""
        self.open.clear()
        return self


def assert_vectors(found: Mapping[str, Vectors], texts: Iterable[str]) -> None:
    assert found.keys() == set(texts)
    for text, vector in found.items():
        np.testing.assert_array_equal(vector, vector_of(text))


async def ask(source: TextVectors, *requests: list[str]) -> list[asyncio.Task[dict[str, Vectors]]]:
    """Requests that have reached the source."""
    tasks = [asyncio.create_task(source.get(texts)) for texts in requests]
    await asyncio.sleep(0.01)
    return tasks


async def test_what_is_asked_together_is_one_call_and_is_asked_once() -> None:
    owner = Owner()
    source = TextVectors(owner)
    answers = await asyncio.gather(*(source.get(["all", f"{number % 10}", "all"]) for number in range(40)))
    for number, found in enumerate(answers):
        assert_vectors(found, ["all", f"{number % 10}"])
    assert [sorted(call) for call in owner.calls] == [sorted(["all", *map(str, range(10))])]
    assert_vectors(await source.get(["all", "3"]), ["all", "3"])
    assert (len(owner.calls), source.calls, source.texts) == (1, 1, 11)


async def test_what_arrives_during_a_call_is_the_next_call() -> None:
    owner = Owner().held()
    source = TextVectors(owner)
    first = await ask(source, ["a"])
    later = await ask(source, *(["a", f"{number}"] for number in range(5)))
    assert owner.calls == [["a"]]
    owner.open.set()
    for found, texts in zip(await asyncio.gather(*first, *later), ["a", "a0", "a1", "a2", "a3", "a4"], strict=True):
        assert_vectors(found, texts)
    assert owner.calls == [["a"], list("01234")] and owner.most_at_once == 1


async def test_limits_of_a_call_and_of_calls_at_a_time() -> None:
    owner = Owner().held()
    asked = await ask(TextVectors(owner, max_batch=3, max_calls=2), *([f"{n}", f"{n + 10}"] for n in range(10)))
    assert len(owner.calls) == 2
    owner.open.set()
    for number, found in enumerate(await asyncio.gather(*asked)):
        assert_vectors(found, [f"{number}", f"{number + 10}"])
    assert [len(call) for call in owner.calls] == [3] * 6 + [2]
    assert owner.most_at_once == 2


async def test_memory_is_bounded_and_an_answer_does_not_depend_on_it() -> None:
    owner = Owner()
    source = TextVectors(owner, max_bytes=4 * vector_of("0").nbytes + 1)
    texts = [str(number) for number in range(9)]
    assert_vectors(await source.get(texts), texts)
    await source.get(texts[-4:])
    assert len(owner.calls) == 1, "the last four are remembered"
    assert_vectors(await source.get(["8", "0"]), ["8", "0"])
    assert owner.calls[1:] == [["0"]]


async def test_a_failing_call_reaches_those_who_wait_for_it_and_work_goes_on() -> None:
    owner = Owner().held()
    source = TextVectors(owner)
    (fine,) = await ask(source, ["a"])
    *broken, given_up = await ask(source, ["?"], ["b"], ["a", "b"], ["b", "c"])
    given_up.cancel()
    owner.open.set()
    assert_vectors(await fine, "a")
    for task in broken:
        with pytest.raises(ValueError, match="no vector for a question"):
            await task
    assert_vectors(await source.get(["a", "b", "c"]), "abc")


async def test_one_who_gives_up_does_not_take_the_vectors_from_the_others() -> None:
    owner = Owner().held()
    leaving, staying = await ask(TextVectors(owner), ["a"], ["a"])
    leaving.cancel()
    await asyncio.sleep(0.01)
    owner.open.set()
    assert_vectors(await staying, "a")


async def test_a_call_with_too_few_vectors_is_an_error() -> None:
    async def short(texts: list[str]) -> Vectors:
        return np.zeros((len(texts) - 1, 4), dtype=np.float32)

    with pytest.raises(ValueError, match="shorter"):
        await asyncio.wait_for(TextVectors(short).get(["a", "b"]), 60)


async def test_the_client_asks_the_store_first(tmp_path: Path) -> None:
    documents, queries = Owner(), Owner("queries")

    def client() -> EmbeddingClient:
        store = EmbeddingStore(tmp_path, "digest")
        return EmbeddingClient(documents=TextVectors(documents), queries=TextVectors(queries), store=store)

    build_store(tmp_path, ["a", "b"], DigestEmbedder())
    first = client()
    assert_vectors(await first.documents(["a", "b", "a"]), "ab")
    assert not documents.calls
    assert_vectors(await first.documents(["c", "a", "d"]), "acd")
    assert documents.calls == [["c", "d"]]
    # A query is not a document, not even one of the same text.
    found = await first.queries(["b", "a", "b"])
    np.testing.assert_array_equal(found, np.stack([vector_of(text, "queries") for text in "bab"]))
    assert queries.calls == [["b", "a"]]
    build_store(tmp_path, ["b"], DigestEmbedder(), kind="queries")
    np.testing.assert_array_equal(await client().queries(["b"]), vector_of("b", "queries")[None])
    assert len(queries.calls) == 1


async def test_the_owner_computes_in_a_thread_and_joins_what_arrives_meanwhile() -> None:
    threads, prepared = set(), []

    def slow(texts: list[str]) -> None:
        threads.add(threading.current_thread().name)
        time.sleep(0.05)
        if "?" in texts:
            raise ValueError("broken")

    embedder = DigestEmbedder(slow)
    owner = BatchedEmbedder(embedder, initializer=lambda: prepared.append(threading.current_thread().name))
    tasks = await ask(owner.documents, ["a"])
    tasks += await ask(owner.documents, *(["a", str(number)] for number in range(20)))
    for found, texts in zip(await asyncio.gather(*tasks), [["a"], *(["a", str(n)] for n in range(20))], strict=True):
        assert_vectors(found, texts)
    with pytest.raises(ValueError, match="broken"):
        await owner.queries.get(["?"])
    np.testing.assert_array_equal((await owner.queries.get(["a"]))["a"], vector_of("a", "queries"))
    assert [len(call) for call in embedder.calls] == [1, 20, 1]
    assert threads == set(prepared) and len(prepared) == 1 and threading.current_thread().name not in threads


class Handle:
    """Of an actor that lives or has died."""

    def __init__(self, alive: bool) -> None:
        self.alive = alive
        self.documents = self

    async def remote(self, texts: list[str]) -> Vectors:
        if not self.alive:
            raise ray.exceptions.ActorDiedError
        vectors = np.stack([vector_of(text) for text in texts])
        vectors.flags.writeable = False
        return vectors


async def test_an_owner_that_is_gone_is_found_anew() -> None:
    handles = [Handle(alive=False), Handle(alive=True)]
    vectors = await OwnerHandle(lambda: handles.pop(0)).ask("documents", ["a", "b"])
    np.testing.assert_array_equal(vectors, np.stack([vector_of("a"), vector_of("b")]))
    assert vectors.flags.owndata, "it must not stay in ray's object store"
    with pytest.raises(ray.exceptions.ActorDiedError):
        await OwnerHandle(lambda: Handle(alive=False)).ask("documents", ["a"])


def test_lookup_keeps_order_and_repetitions() -> None:
    lookup = Lookup({"a": np.ones(2, dtype=np.float32), "b": np.zeros(2, dtype=np.float32)})
    assert lookup(["b", "a", "b"]).tolist() == [[0, 0], [1, 1], [0, 0]]
    assert lookup([]).shape == (0, 0)
    with pytest.raises(KeyError):
        lookup(["c"])


SETTINGS: dict[str, Any] = {"device": "cpu", "batch_size": 32, "threads": 1}
WORKERS, ROLLOUTS = 3, 30


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("RAY_worker_niceness", "0")
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_workers_share_one_owner_and_every_new_text_is_embedded_once(cluster: None, tmp_path: Path) -> None:
    known = [f"Ann keeps {number} bicycles." for number in range(40)]
    new = [f"Ruth sold {number} lamps at the harbour." for number in range(60)]
    embedder = load_embedder(OFFLINE_MODEL)
    build_store(tmp_path, known, embedder)

    class Worker:
        """Asks like the rollouts of an agent loop worker: all at once, for texts that the others ask for too."""

        def __init__(self) -> None:
            self.client = connect(OFFLINE_MODEL, store=str(tmp_path), **SETTINGS)

        async def ask(self, worker: int) -> tuple[dict[str, Any], Any]:
            import asyncio

            client = self.client
            parts = [known[::2] + [new[(worker + step * number) % 60] for step in range(9)] for number in range(ROLLOUTS)]
            found = await asyncio.gather(*map(client.documents, parts))
            queries = await asyncio.gather(*(client.queries([f"bicycles {number % 5}"]) for number in range(ROLLOUTS)))
            return {text: vector for part in found for text, vector in part.items()}, queries

    workers = [ray.remote(Worker).options(num_cpus=0.1).remote() for _ in range(WORKERS)]
    answers = ray.get([worker.ask.remote(number) for number, worker in enumerate(workers)])

    asked: set[str] = set()
    for vectors, queries in answers:
        np.testing.assert_allclose(np.stack(list(vectors.values())), embedder.documents(list(vectors)), atol=1e-5)
        for number, query in enumerate(queries):
            np.testing.assert_allclose(query, embedder.queries([f"bicycles {number % 5}"]), atol=1e-5)
        asked |= vectors.keys() - set(known)
    owner = find_owner(OFFLINE_MODEL, **SETTINGS)
    figures = ray.get(owner.figures.remote())
    assert figures["documents"][1] == len(asked) > 50, "texts of the store were not embedded again"
    assert figures["queries"][1] == 5
    assert max(batches for batches, _ in figures.values()) <= 2 * WORKERS
    assert len(ray.util.list_named_actors()) == 1
