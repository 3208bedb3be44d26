"""Waiting for the nodes of a Ray cluster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.training import cluster
from deltamem.training.cluster import Present, await_nodes, cluster_address


def node(host: str, gpus: float | None = None, *, alive: bool = True) -> dict[str, Any]:
    """An entry of ``ray.nodes()``, as far as it is read."""
    return {"Alive": alive, "NodeManagerHostname": host, "Resources": {"CPU": 4.0} | ({} if gpus is None else {"GPU": gpus})}


@pytest.mark.parametrize(
    ("given", "variable", "found"),
    [
        *((None, None, None), (None, "", None), (None, "n1:6379", "n1:6379"), (None, "local", None)),
        *(("auto", None, "auto"), ("auto", "n1:6379", "n1:6379")),
        *(("n2:6379", None, "n2:6379"), ("n2:6379", "n1:6379", "n2:6379"), ("local", "n1:6379", None)),
    ],
)
def test_one_function_tells_the_cluster_of_a_run(given: str | None, variable: str | None, found: str | None) -> None:
    assert cluster_address(given, {} if variable is None else {"RAY_ADDRESS": variable}) == found


@pytest.mark.parametrize(
    ("hosts", "gpus", "told"),
    [
        (("other", "another"), 16, None),  # Slurm's names need not be the hosts'
        (("n1",), 8, "1 of 2 nodes and 8 of 16 GPUs have joined; not seen: n2.example.org"),
        (("n1", "n2"), 15, "2 of 2 nodes and 15 of 16 GPUs have joined"),
    ],
)
def test_what_is_missing_is_told(hosts: tuple[str, ...], gpus: int, told: str | None) -> None:
    assert Present(hosts, gpus).lacks(["n1", "n2.example.org"], 16) == told


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 8), st.booleans()), max_size=6), st.integers(0, 20))
def test_nothing_lacks_exactly_when_enough_nodes_and_gpus_are_alive(nodes: list[tuple[str, int, bool]], gpus: int) -> None:
    present = Present.of([node(host, count, alive=alive) for host, count, alive in nodes])
    alive = [count for _, count, is_alive in nodes if is_alive]
    assert (present.lacks(["a", "b"], gpus) is None) == (len(alive) >= 2 and sum(alive) >= gpus)


def test_waiting_ends_when_all_are_there_or_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_POLL_SECONDS", 0.0)
    seen = iter([Present((), 0), Present(("n1",), 8), Present(("n1",), 8), Present(("n1", "n2"), 16)])
    told: list[str] = []
    assert await_nodes(lambda: next(seen), ["n1", "n2"], 16, 60.0, told.append) is None
    assert [line.partition(" nodes")[0] for line in told] == ["0 of 2", "1 of 2"]
    lacking = await_nodes(lambda: Present(("n1",), 8), ["n1", "n2"], 16, 0.05, lambda line: None)
    assert lacking == "1 of 2 nodes and 8 of 16 GPUs have joined; not seen: n2"
