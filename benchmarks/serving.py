"""What the server adds to the library, and mem0's self-hosted server beside it, under load.

    python -m venv LOCUST && LOCUST/bin/pip install locust
    python benchmarks/serving.py --locust LOCUST/bin/locust --stores STORES

With mem0, out of a checkout of github.com/mem0ai/mem0 and in an environment of its own, which brings PostgreSQL:

    python -m venv MEM0 && MEM0/bin/pip install mem0ai==2.2.1 pgserver -r CHECKOUT/server/requirements.txt
    python benchmarks/serving.py ... --mem0-python MEM0/bin/python --mem0-checkout CHECKOUT

First the library's own calls, one after the other in this process, with an embedder that costs next to nothing and a model
that answers at once, so what is measured is ours. Then the server with the same two, over the loopback, with 1, 16 and 64
clients of locust that each wait for their answer before they ask again (``locustfile.py``). Then, as "endpoint", the server
with embedder and model behind an OpenAI-compatible endpoint, and mem0's server at the same endpoint with the same work. Each
request goes to another owner. Requests are bounded by number and time; filled stores are kept in STORES for the next time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
from ingest import FreeEmbedder, Instant
from rich.console import Console
from rich.table import Table
from workload import REMEMBER, random_sentence

from deltamem.bank.store import MemoryStore
from deltamem.edits import Add
from deltamem.embedding import EndpointEmbedder
from deltamem.journal.rows import SCHEMA_VERSION
from deltamem.llm import LLM
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.policy import EndpointPolicy, Policy
from deltamem.sessions import Session, Turn

HERE = Path(__file__).parent
BEGIN = datetime(2026, 6, 1, 20, 1)
KINDS = ("search", "ingest")
Figures = dict[str, Any]


def fill(folder: Path, options: argparse.Namespace) -> None:
    """Write the memories of all owners."""
    rng = random.Random(options.seed)
    with MemoryStore.open(folder, FreeEmbedder()) as store:
        for owner in owners(options):
            store.bank(owner).edit([Add(random_sentence(rng), BEGIN) for _ in range(options.memories)], "benchmark")


def owners(options: argparse.Namespace) -> list[str]:
    """The names of the owners."""
    return [f"owner{number}" for number in range(options.owners)]


def library(folder: Path, options: argparse.Namespace) -> Figures:
    """The library's own calls, one after the other."""
    rng = random.Random(options.seed + 1)
    with MemoryStore.open(folder, FreeEmbedder()) as store, asyncio.Runner() as runner:
        settings = ManagerSettings(person_name="Ann")
        managers = [MemoryManager(store, name, Instant(), settings) for name in owners(options)]

        async def search(number: int) -> None:
            assert await managers[number % len(managers)].search(random_sentence(rng))

        async def ingest(number: int) -> None:
            manager = managers[number % len(managers)]
            turns = (Turn("user", f"Hello! {REMEMBER}{random_sentence(rng)}"),)
            done = await manager.ingest(Session(manager.owner, "Ann", BEGIN, turns, f"library {number}"))
            assert done.changes

        numbers = {"search": options.searches, "ingest": options.sessions}
        return {kind: runner.run(timed(call, numbers[kind])) for kind, call in zip(KINDS, (search, ingest), strict=True)}


async def timed(call: Callable[[int], Awaitable[None]], times: int) -> Figures:
    """Time calls, one after the other."""
    each, begin, used = [], time.perf_counter(), time.process_time()
    for number in range(times):
        began = time.perf_counter()
        await call(number)
        each.append(1e3 * (time.perf_counter() - began))
    per_second = times / (time.perf_counter() - begin)
    cpu_ms = 1e3 * (time.process_time() - used) / times
    p95 = statistics.quantiles(each, n=20)[-1]
    return {"p50": statistics.median(each), "p95": p95, "per_second": per_second, "requests": times, "cpu_ms": cpu_ms}


def load(dialect: str, process: psutil.Process, url: str, options: argparse.Namespace) -> dict[str, dict[int, Figures]]:
    """Let locust ask a server, which opens every owner's memory first, with several numbers of clients."""
    numbers = {"search": options.searches, "ingest": options.sessions}
    warm_up(dialect, url, options)
    figures: dict[str, dict[int, Figures]] = {kind: {} for kind in KINDS}
    for kind in KINDS:
        for clients in options.clients:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "figures.json"
                asked = {"dialect": dialect, "kind": kind, "url": url, "owners": options.owners, "out": str(out)}
                asked |= {"requests": numbers[kind], "seed": options.seed + clients, "label": f"{clients} clients"}
                users = ["--users", str(clients), "--spawn-rate", str(clients), "--run-time", f"{options.seconds}s"]
                command = [options.locust, "-f", HERE / "locustfile.py", "--headless", "--only-summary", *users]
                used = cpu_seconds(process)
                ran = subprocess.run(
                    command, env=os.environ | {"LOAD": json.dumps(asked)}, capture_output=True, text=True, check=False
                )
                if not out.exists():
                    raise SystemExit(f"error: locust wrote nothing; it said:\n{ran.stderr[-3000:]}")
                row = json.loads(out.read_text(encoding="utf-8"))
            row["cpu_ms"] = 1e3 * (cpu_seconds(process) - used) / row["requests"]
            figures[kind][clients] = row
    return figures


def warm_up(dialect: str, url: str, options: argparse.Namespace) -> None:
    """Search once for every owner."""
    with httpx.Client(base_url=url, timeout=300) as http:
        for owner in owners(options):
            if dialect == "mem0":
                answer = http.post("/search", json={"query": "Ann", "filters": {"user_id": owner}})
            else:
                answer = http.post(f"/v1/owners/{owner}/search", json={"queries": ["Ann"]})
            answer.raise_for_status()


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time of a process and what it started: of mem0's server with its database."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system + one.children_user + one.children_system for one in times))


def serve(folder: Path, endpoint: str | None) -> None:
    """Serve the store on a free port, which is printed, until the process is stopped."""
    from deltamem.server.app import create_app
    from deltamem.server.runner import event_loop, listen, run
    from deltamem.server.service import ServerSettings

    embedder: FreeEmbedder | EndpointEmbedder = FreeEmbedder()
    policy: Policy = Instant()
    if endpoint is not None:
        embedder, policy = EndpointEmbedder(endpoint, "scripted"), EndpointPolicy(LLM(endpoint, "scripted"))
        embedder.name = FreeEmbedder.name  # it gives the same vectors, so the index can stay
    listening = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with MemoryStore.open(folder, embedder) as store, asyncio.Runner(loop_factory=event_loop) as runner:
        settings, reading = ServerSettings(rate_limit=None), ManagerSettings(mode="react")
        app = create_app(store, policy, keys=None, settings=settings, manager_settings=reading)
        runner.run(run(app, listening, started=lambda: print(url, flush=True)))


@contextmanager
def running(command: Sequence[str | Path]) -> Iterator[tuple[psutil.Process, str]]:
    """A program that prints an address and runs until its standard input ends, or it is stopped."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes) as process:
        try:
            url = process.stdout.readline().strip() if process.stdout else ""
            if not url:
                raise SystemExit("error: it did not start; its messages are above")
            yield psutil.Process(process.pid), url
        finally:
            if "--serve" in command:
                process.terminate()
            elif process.stdin is not None:
                process.stdin.close()


def filled(name: str, options: argparse.Namespace, scratch: Path, fill_it: Callable[[Path], None]) -> Path:
    """A copy of a filled store, which is filled if it is not there from an earlier run."""
    kept = (options.stores or scratch / "filled") / f"{name}-{options.owners}x{options.memories}-{options.seed}"
    if not kept.exists():
        print(f"filling {kept} ...", file=sys.stderr, flush=True)
        making = kept.with_name(f"{kept.name}.part")
        shutil.rmtree(making, ignore_errors=True)
        making.parent.mkdir(parents=True, exist_ok=True)
        fill_it(making)
        making.rename(kept)
    copy = scratch / f"{name}-{time.monotonic_ns()}"
    shutil.copytree(kept, copy)
    return copy


def measure(options: argparse.Namespace) -> Figures:
    """Fill the stores and measure all."""
    result: Figures = {name: getattr(options, name) for name in ("owners", "memories", "seed")}
    result |= {"load_average_before": os.getloadavg(), "servers": {}}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scratch.chmod(0o711)  # PostgreSQL, which root may not run, must get through

        def deltamem() -> Path:
            return filled(f"deltamem{SCHEMA_VERSION}", options, scratch, lambda folder: fill(folder, options))

        result["library"] = library(deltamem(), options)
        _, model = stack.enter_context(running([sys.executable, HERE / "scripted_model.py"]))
        command: list[str | Path] = [sys.executable, __file__, "--serve"]
        servers = {"server": [*command, deltamem()], "server, endpoint": [*command, deltamem(), "--endpoint", model]}
        if options.mem0_python:
            command = [options.mem0_python, "-W", "ignore", HERE / "mem0_server.py"]
            sizes = [str(options.owners), str(options.memories), str(options.seed)]
            data = filled("mem0", options, scratch, lambda to: run_quietly([*command, "fill", to, *sizes]))
            servers["mem0's server"] = [*command, "serve", data, options.mem0_checkout.resolve(), model]
        for name, command in servers.items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            with running(command) as (process, url):
                result["servers"][name] = load("mem0" if "mem0" in name else "native", process, url, options)
    return result | {"load_average_after": os.getloadavg()}


def run_quietly(command: Sequence[str | Path]) -> None:
    """Run a program to its end."""
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def show(result: Figures) -> None:
    """Print the tables."""
    before, after = (", ".join(f"{one:.1f}" for one in result[f"load_average_{when}"]) for when in ("before", "after"))
    print(f"load average {before} before, {after} after; all times in ms")
    for kind in KINDS:
        table = Table(title=f"{kind}: {result['owners']} owners of {result['memories']} memories")
        for column in ("", "clients", "p50", "p95", "requests/s", "CPU", "requests", "failed", "memories"):
            table.add_column(column, justify="right" if column else "left")
        rows = [("library", "", result["library"][kind])]
        rows += [
            (name, str(clients), row) for name, side in result["servers"].items() for clients, row in side[kind].items()
        ]
        for name, clients, row in rows:
            numbers = [f"{row[key]:.1f}" for key in ("p50", "p95")] + [f"{row['per_second']:.0f}", f"{row['cpu_ms']:.2f}"]
            found = f"{row['found']:.1f}" if "found" in row else ""
            table.add_row(name, clients, *numbers, str(row["requests"]), str(row.get("failures", 0)), found)
        Console(width=110).print(table)
    for name, side in result["servers"].items():
        for kind, by_clients in side.items():
            for clients, row in by_clients.items():
                if row["failures"]:
                    print(f"{name}, {kind}, {clients} clients: first failure: {row['first_failure']}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--locust", default="locust", help="the program")
    parser.add_argument("--stores", type=Path, help="folder in which filled stores are kept")
    parser.add_argument("--mem0-python", help="interpreter of mem0's environment")
    parser.add_argument("--mem0-checkout", type=Path, help="of mem0's repository")
    parser.add_argument("--owners", type=int, default=100)
    parser.add_argument("--memories", type=int, default=1000, help="of each owner")
    parser.add_argument("--searches", type=int, default=2000, help="requests for each number of clients")
    parser.add_argument("--sessions", type=int, default=400, help="requests for each number of clients")
    parser.add_argument("--seconds", type=int, default=12, help="that each number of clients may ask at most")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.endpoint)
        return
    if shutil.which(options.locust) is None:
        parser.error(f"{options.locust}: no such program; install locust in an environment of its own and name it")
    if (options.mem0_python is None) != (options.mem0_checkout is None):
        parser.error("mem0's server needs both --mem0-python and --mem0-checkout")
    result = measure(options)
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
