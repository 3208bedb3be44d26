"""The Ray cluster of a run: where it is, and waiting until the nodes of a batch job have joined it.

    python -m deltamem.training.cluster HOST:PORT --names node1,node2 --gpus 16 --seconds 600

Exit code 0 when all nodes and GPUs are there, else 1 with one sentence as the last line on stderr. Runs on a node of the
cluster, because Ray lets only such a node connect.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_POLL_SECONDS = 1.0


def cluster_address(given: str | None, variables: Mapping[str, str]) -> str | None:
    """Which Ray cluster a run will connect to, as `ray.init` decides it.

    Args:
        given: ``ray_kwargs.ray_init.address``.
        variables: The environment, whose ``RAY_ADDRESS`` counts where the address is null or "auto".

    Returns:
        The address; "auto" for one of this machine that Ray has to find; None if the run starts its own.
    """
    if given in (None, "auto"):
        given = variables.get("RAY_ADDRESS") or given
    return None if given == "local" else given


@dataclass(frozen=True)
class Present:
    """What has joined a cluster."""

    hosts: tuple[str, ...]  # live nodes, without domains
    gpus: int

    @classmethod
    def of(cls, nodes: Sequence[Mapping[str, Any]]) -> Present:
        """Read the answer of ``ray.nodes()``."""
        alive = [node for node in nodes if node["Alive"]]
        hosts = sorted(str(node["NodeManagerHostname"]).partition(".")[0] for node in alive)
        return cls(tuple(hosts), int(sum(node["Resources"].get("GPU", 0) for node in alive)))

    def lacks(self, names: Sequence[str], gpus: int) -> str | None:
        """What is missing, for people; None if nothing is.

        Nodes are counted, because Slurm's name of a node need not be its host name; `names` serve as a hint.
        """
        if len(self.hosts) >= len(names) and self.gpus >= gpus:
            return None
        missing = [name for name in names if name.partition(".")[0] not in self.hosts]
        lacking = len(self.hosts) < len(names) and missing
        hint = f"; not seen: {', '.join(missing)}" if lacking else ""
        return f"{len(self.hosts)} of {len(names)} nodes and {self.gpus} of {gpus} GPUs have joined{hint}"


def await_nodes(
    look: Callable[[], Present], names: Sequence[str], gpus: int, seconds: float, report: Callable[[str], None]
) -> str | None:
    """Call `look` once a second until nothing is missing or the time is over.

    `report` gets a line for every change.

    Returns:
        None, or what is missing.
    """
    deadline = time.monotonic() + seconds
    reported = None
    while True:
        lacking = look().lacks(names, gpus)
        if lacking is None or time.monotonic() >= deadline:
            return lacking
        if lacking != reported:
            report(lacking)
            reported = lacking
        time.sleep(_POLL_SECONDS)


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m deltamem.training.cluster", description="wait for all nodes")
    parser.add_argument("address", help="HOST:PORT of the head")
    parser.add_argument("--names", required=True, help="the nodes' names, separated by commas")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of all nodes together")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to wait")
    given = parser.parse_args(arguments)

    import ray

    try:
        ray.init(address=given.address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError) as error:
        print(f"error: no Ray cluster answers at {given.address}: {error}", file=sys.stderr)
        return 1
    try:
        lacking = await_nodes(
            lambda: Present.of(ray.nodes()),
            given.names.split(","),
            given.gpus,
            given.seconds,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    finally:
        ray.shutdown()
    if lacking is not None:
        print(f"error: after {given.seconds:g} s only {lacking}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
