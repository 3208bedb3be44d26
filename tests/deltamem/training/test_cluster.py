"""Waiting for the nodes of a Ray cluster, and what they would run."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.errors import DeltaMemError
from deltamem.training import cluster
from deltamem.training.cluster import await_nodes, cluster_address, installed_here, lacking

ROOT = Path(__file__).resolve().parents[3]


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
    ("nodes", "sentence"),
    [
        ([node("other", 8), node("another", 8)], None),  # Slurm's names need not be the hosts'
        ([node("n1", 8)], "1 of 2 nodes and 8 of 16 GPUs have joined; not seen: n2.example.org"),
        ([node("n1.local", 8), node("n2", 7)], "2 of 2 nodes and 15 of 16 GPUs have joined"),
    ],
)
def test_what_is_missing_is_named(nodes: list[dict[str, Any]], sentence: str | None) -> None:
    assert lacking(nodes, ["n1", "n2.example.org"], 16) == sentence


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 8), st.booleans()), max_size=6), st.integers(0, 20))
def test_nothing_lacks_exactly_when_enough_nodes_and_gpus_are_alive(nodes: list[tuple[str, int, bool]], gpus: int) -> None:
    answer = [node(host, count, alive=alive) for host, count, alive in nodes]
    alive = [count for _, count, is_alive in nodes if is_alive]
    assert (lacking(answer, ["a", "b"], gpus) is None) == (len(alive) >= 2 and sum(alive) >= gpus)


def test_waiting_ends_when_all_are_there_or_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_POLL_SECONDS", 0.0)
    seen, lines = iter(["all", "one", "one", None]), list[str]()
    assert await_nodes(lambda: next(seen), 60.0, lines.append) is None
    assert lines == ["all", "one"]
    assert await_nodes(lambda: "one", 0.05, lines.append) == "one"


def test_a_node_that_would_run_something_else_is_named() -> None:
    here = {"python": "3.12.4", "deltamem": "code 0123", "torch": "2.11.0", "vllm": "0.24.0"}
    nodes = {"n1": dict(here), "n3": here | {"deltamem": "code 4567"}, "n2": here | {"torch": "2.10.0", "vllm": "missing"}}
    assert list(cluster.other_nodes(here, nodes)) == [
        "node n2 has torch 2.10.0 (here 2.11.0), vllm missing (here 0.24.0)",
        "node n3 has deltamem code 4567 (here code 0123)",
    ]
    assert list(cluster.other_nodes(here, {"n1": here})) == []


def test_a_changed_line_of_our_code_is_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = shutil.copytree(ROOT / "rewards", tmp_path / "rewards", ignore=shutil.ignore_patterns("__pycache__"))
    before = installed_here()
    assert before["deltamem"].startswith("code ") and before["torch"] == importlib.metadata.version("torch")

    def found(name: str, *more: object) -> Any:
        return SimpleNamespace(submodule_search_locations=[str(tmp_path / name)]) if name == "rewards" else None

    monkeypatch.setattr(cluster.importlib.util, "find_spec", found)
    same = installed_here()
    assert (same["rewards"], same["deltamem"]) == (before["rewards"], "missing")
    (copied / "__pycache__").mkdir()
    (copied / "__pycache__" / "reward.pyc").write_bytes(b"x")
    assert installed_here() == same
    (copied / "reward.py").write_text((copied / "reward.py").read_text() + "# changed\n")
    assert installed_here()["rewards"] not in (before["rewards"], "missing")


def test_a_cluster_that_says_nothing_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_NODE_SECONDS", 0.01)
    with pytest.raises(DeltaMemError, match=r"^n1:6379: the nodes have not said within 0\.01 s what they have$"):
        cluster.installed_on_nodes("n1:6379")


@pytest.mark.slow
def test_each_node_of_a_cluster_says_what_it_has() -> None:
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes.add_node(num_cpus=1)
        found = cluster.installed_on_nodes(nodes.address)
    finally:
        nodes.shutdown()
    assert len(found) == 2 and list(found.values()) == [installed_here()] * 2
