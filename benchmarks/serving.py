"""What the server adds to the library: ``python benchmarks/serving.py [--owners 100] [--memories 1000] [--json F]``.

One store on disk, an embedder that costs nothing and a model that answers at once, so what is measured is ours. First the
library's own calls, one after the other in a process of their own; then `deltamem.server` over the loopback, with 1, 16 and
64 clients that each wait for their answer before they ask again. Each request goes to another owner. The number of requests
is bounded. Server and clients share the machine, so many clients measure both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from ingest import FreeEmbedder, Instant
from rich.console import Console
from rich.table import Table
from workload import REMEMBER

from deltamem.bank.store import MemoryStore
from deltamem.edits import Add
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.sessions import Session, Turn

BEGIN = datetime(2026, 6, 1, 20, 1)
WORDS = [
    f"{first}{second}" for first in ("bar", "lom", "ket", "sor", "vin", "dul", "pra") for second in ("ton", "rik", "mas")
]


def sentence(rng: random.Random, words: int = 9) -> str:
    """A sentence about nobody."""
    return f"Ann {' '.join(rng.choices(WORDS, k=words))} {rng.randrange(10**6)}."


def fill(folder: Path, options: argparse.Namespace) -> None:
    """Write the memories of all owners."""
    rng = random.Random(options.seed)
    with MemoryStore.open(folder, FreeEmbedder()) as store:
        for owner in owners(options):
            store.bank(owner).edit([Add(sentence(rng), BEGIN) for _ in range(options.memories)], "benchmark")


def owners(options: argparse.Namespace) -> list[str]:
    """The names of the owners."""
    return [f"owner{number}" for number in range(options.owners)]


Call = Callable[[str, int], Awaitable[Any]]


async def timed(call: Call, names: Sequence[str], clients: int, requests: int) -> dict[str, float]:
    """Time calls, of which as many as there are clients run at once; each is given an owner and its number."""
    numbers, each = iter(range(requests)), []

    async def client() -> None:
        for number in numbers:
            begin = time.perf_counter()
            await call(names[number % len(names)], number)
            each.append(1e3 * (time.perf_counter() - begin))

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - begin
    p95 = statistics.quantiles(each, n=20)[-1]
    return {"p50": statistics.median(each), "p95": p95, "per_second": requests / seconds, "requests": requests}


def said(rng: random.Random) -> str:
    """What the user says in a session: one new fact."""
    return f"Hello! {REMEMBER}{sentence(rng)}"


async def library(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The library's own calls, one after the other."""
    rng = random.Random(options.seed + 1)
    with MemoryStore.open(folder, FreeEmbedder()) as store:
        settings = ManagerSettings(person_name="Ann")
        managers = {name: MemoryManager(store, name, Instant(), settings) for name in owners(options)}

        async def search(owner: str, _: int) -> None:
            assert await managers[owner].search(sentence(rng))

        async def ingest(owner: str, number: int) -> None:
            turns = (Turn("user", said(rng)),)
            done = await managers[owner].ingest(Session(owner, "Ann", BEGIN, turns, f"library {number}"))
            assert done.changes

        names = owners(options)
        return {
            "search": await timed(search, names, 1, options.searches),
            "ingest": await timed(ingest, names, 1, options.sessions),
        }


async def server(url: str, options: argparse.Namespace) -> dict[str, dict[int, dict[str, float]]]:
    """The same over HTTP, with several numbers of clients."""
    rng = random.Random(options.seed + 2)
    figures: dict[str, dict[int, dict[str, float]]] = {"search": {}, "ingest": {}}
    limits = httpx.Limits(max_connections=max(options.clients))
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:

        async def search(owner: str, _: int) -> None:
            answer = await http.post(f"/v1/owners/{owner}/search", json={"queries": [sentence(rng)]})
            assert answer.status_code == 200 and answer.json()["results"][0]["memories"]

        async def ingest(owner: str, number: int) -> None:
            turns = [{"role": "user", "content": said(rng)}]
            body = {"id": f"{clients} {number}", "time": BEGIN.isoformat(), "turns": turns, "person": "Ann", "wait": 300}
            answer = await http.post(f"/v1/owners/{owner}/sessions", json=body)
            assert answer.status_code == 200 and answer.json()["changes"], answer.text

        names = owners(options)
        await timed(search, names, 1, max(2, len(names)))  # opens every bank once, as the library's managers did
        for clients in options.clients:
            figures["search"][clients] = await timed(search, names, clients, options.searches)
            figures["ingest"][clients] = await timed(ingest, names, clients, options.sessions)
    return figures


def serve(folder: Path) -> None:
    """Serve the store on a free port, which is printed, until the process is stopped."""
    from deltamem.server.app import create_app
    from deltamem.server.runner import listen, run
    from deltamem.server.service import ServerSettings

    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    with MemoryStore.open(folder, FreeEmbedder()) as store:
        app = create_app(store, Instant(), keys=None, settings=ServerSettings(rate_limit=None))
        asyncio.run(run(app, listening, started=lambda: print(f"http://127.0.0.1:{port}", flush=True)))


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Fill a store and measure both."""
    fill(folder, options)
    alone = asyncio.run(library(folder, options))
    command = [sys.executable, __file__, "--serve", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            served = asyncio.run(server(process.stdout.readline().strip(), options))
        finally:
            process.terminate()
    return {"owners": options.owners, "memories": options.memories, "library": alone, "server": served}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--owners", type=int, default=100)
    parser.add_argument("--memories", type=int, default=1000, help="of each owner")
    parser.add_argument("--searches", type=int, default=2000, help="requests for each number of clients")
    parser.add_argument("--sessions", type=int, default=400, help="requests for each number of clients")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options)
    table = Table(title=f"{options.owners} owners of {options.memories} memories")
    for column in ("", "clients", "p50 ms", "p95 ms", "requests/s", "p50 beside the library's"):
        table.add_column(column, justify="left" if not column else "right")
    for kind in ("search", "ingest"):
        alone = figures["library"][kind]
        rows = [("library", alone), *((str(clients), row) for clients, row in figures["server"][kind].items())]
        for clients, row in rows:
            cells = (
                f"{row['p50']:.1f}",
                f"{row['p95']:.1f}",
                f"{row['per_second']:.0f}",
                f"{row['p50'] / alone['p50']:.2f}",
            )
            table.add_row(kind, clients, *cells)
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
