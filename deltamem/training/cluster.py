"""The Ray cluster of a run: where it is, waiting until the nodes of a batch job have joined it, and what they would run.

    python -m deltamem.training.cluster HOST:PORT --names node1,node2 --gpus 16 --seconds 600
    python -m deltamem.training.cluster HOST:PORT --installed

The first ends with exit code 0 when all nodes and GPUs are there, the second prints as JSON what each node has; else both
end with 1 and one sentence as the last line on stderr. They run on a node of the cluster: Ray lets only such a node connect.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError

_POLL_SECONDS = 1.0


def cluster_address(given: str | None, variables: Mapping[str, str]) -> str | None:
    """Which Ray cluster a run will connect to, as `ray.init` decides it; None if the run starts its own.

    `given` is ``ray_kwargs.ray_init.address``; RAY_ADDRESS of the environment counts where that is null or "auto".
    """
    if given in (None, "auto"):
        given = variables.get("RAY_ADDRESS") or given
    return None if given == "local" else given


def lacking(nodes: Sequence[Mapping[str, Any]], names: Sequence[str], gpus: int) -> str | None:
    """What is missing of a cluster of so many `gpus`, for people, from the answer of ``ray.nodes()``; None if nothing is.

    Nodes are counted, because Slurm's name of a node need not be its host name; `names` serve as a hint.
    """
    alive = [node for node in nodes if node["Alive"]]
    hosts = {str(node["NodeManagerHostname"]).partition(".")[0] for node in alive}
    there = int(sum(node["Resources"].get("GPU", 0) for node in alive))
    if len(alive) >= len(names) and there >= gpus:
        return None
    missing = [name for name in names if name.partition(".")[0] not in hosts]
    hint = f"; not seen: {', '.join(missing)}" if missing and len(alive) < len(names) else ""
    return f"{len(alive)} of {len(names)} nodes and {there} of {gpus} GPUs have joined{hint}"


def await_nodes(look: Callable[[], str | None], seconds: float, report: Callable[[str], None]) -> str | None:
    """Call `look` once a second until nothing is missing or the time is over; returns what is missing still.

    `report` gets a line for every change.
    """
    deadline = time.monotonic() + seconds
    reported = None
    while True:
        missing = look()
        if missing is None or time.monotonic() >= deadline:
            return missing
        if missing != reported:
            report(missing)
            reported = missing
        time.sleep(_POLL_SECONDS)


_PACKAGES = ("verl", "torch", "vllm", "transformers", "flash-attn", "ray", "tensordict", "numpy")
_OURS = ("deltamem", "rewards")
_ROOT = Path(__file__).resolve().parents[2]
_NODE_SECONDS = 120.0

Installed = Mapping[str, str]
"""Versions of packages, and hashes of our own; "missing" for what is not there."""


def installed_here() -> dict[str, str]:
    """What a process of this node would run."""
    found = {"python": platform.python_version()}
    for name in _OURS:
        spec = importlib.util.find_spec(name)
        folders = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
        digest = hashlib.sha256()
        # All files but what Python makes of them.
        for folder in folders:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
                    digest.update(path.read_bytes())
        found[name] = f"code {digest.hexdigest()[:12]}" if folders else "missing"
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def worker_path(variables: Mapping[str, str]) -> str:
    """``PYTHONPATH`` of all processes of a run: they must find this package and the scorer's, wherever Ray starts them."""
    return os.pathsep.join([str(_ROOT), *filter(None, [variables.get("PYTHONPATH")])])


def installed_on_nodes(address: str) -> dict[str, dict[str, str]]:
    """What a worker on each node of a cluster would run, by name and address of the node.

    A process of its own asks: `ray.init` sets signal handlers, and the trainer connects by itself later.
    """
    command = [sys.executable, "-m", "deltamem.training.cluster", address, "--installed"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_NODE_SECONDS, check=False, cwd=_ROOT)
    except subprocess.TimeoutExpired:
        raise DeltaMemError(f"{address}: the nodes have not said within {_NODE_SECONDS:g} s what they have") from None
    if done.returncode != 0:
        raise DeltaMemError((done.stderr.strip().splitlines() or [f"{address}: no word"])[-1].removeprefix("error: "))
    found: dict[str, dict[str, str]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def other_nodes(here: Installed, nodes: Mapping[str, Installed]) -> Iterator[str]:
    """A sentence for each node that would not run what this one does."""
    for node, there in sorted(nodes.items()):
        names = [name for name in here if there.get(name) != here[name]]
        if names:
            yield f"node {node} has {', '.join(f'{name} {there.get(name)} (here {here[name]})' for name in names)}"


def _ask_nodes() -> dict[str, dict[str, str]]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # A node with other code of ours must not answer with that: the functions travel by their text.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    nodes = [node for node in ray.nodes() if node["Alive"]]
    asked = ray.remote(num_cpus=0)(installed_here)
    answers = [
        asked.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in nodes
    ]
    names = [f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}:{node['NodeManagerPort']})" for node in nodes]
    return dict(zip(names, ray.get(answers, timeout=_NODE_SECONDS / 2), strict=True))


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m deltamem.training.cluster", description="wait for all nodes")
    parser.add_argument("address", help="HOST:PORT of the head")
    parser.add_argument("--names", default="", help="the nodes' names, separated by commas")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of all nodes together")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to wait")
    parser.add_argument("--installed", action="store_true", help="print what each node has, instead of waiting")
    given = parser.parse_args(arguments)

    import ray

    # As `deltamem.training.launch` sets it for the workers of a run.
    own = {"runtime_env": {"env_vars": {"PYTHONPATH": worker_path(os.environ)}}} if given.installed else {}
    try:
        ray.init(address=given.address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, RuntimeError) as error:
        print(f"error: no Ray cluster answers at {given.address}: {error}", file=sys.stderr)
        return 1
    try:
        if given.installed:
            print(json.dumps(_ask_nodes()))
            return 0
        names = given.names.split(",")
        missing = await_nodes(
            lambda: lacking(ray.nodes(), names, given.gpus),
            given.seconds,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    finally:
        ray.shutdown()
    if missing is not None:
        print(f"error: after {given.seconds:g} s only {missing}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
