"""What synthesis costs: throughput against a slow endpoint, and the offline writer at the paper's scale.

    python benchmarks/synthesis.py endpoint                   # 50 people x 25 events, 300 ms an answer, 64 slots
    python benchmarks/synthesis.py offline [SHAPE]            # 300 people x 25 sessions, no model, one core
    python benchmarks/synthesis.py against CHECKOUT [SHAPE]   # what a person costs here and in another checkout

All run the public command in a process of its own. ``endpoint`` compares with the ideal: every slot busy from the first
request to the last answer. Its server shares the machine's cores with the client. ``against`` compares processor time, which
a busy machine disturbs least, and says whether both have written the same bytes.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

LATENCY, SLOTS = 0.3, 64
CLIENT_SLOTS = (80, 64)
"""Requests in flight: with a few more than the server has slots, the server never waits for the client."""
PEOPLE = (10, 50)
"""The difference is what people cost; imports, charts and probes cost the same for any number."""


class Cost(NamedTuple):
    """What a command took.

    Attributes:
        seconds: From start to end.
        busy: Of processor time.
        memory: Largest resident memory in MiB.
    """

    seconds: float
    busy: float
    memory: float


def run(out: Path, *arguments: str, root: Path = ROOT, one_core: bool = False) -> Cost:
    """Run the command of a checkout."""
    started = time.monotonic()
    command = [sys.executable, "-m", "synth", *arguments, f"out={out}", "progress_seconds=600"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    cores = os.sched_getaffinity(0)
    if one_core:
        os.sched_setaffinity(0, {min(cores)})
    try:
        process = subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.DEVNULL)
    finally:
        os.sched_setaffinity(0, cores)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the command ended with exit code {process.returncode}")
    return Cost(time.monotonic() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def endpoint() -> None:
    from model_server import MODEL, model_server, stats

    for slots in CLIENT_SLOTS:
        with tempfile.TemporaryDirectory() as folder, model_server(latency=LATENCY, slots=SLOTS) as url:
            model = (f"llm.base_urls=[{url}]", f"llm.model={MODEL}", f"llm.slots={slots}")
            sizes = ("people=50", "sessions=25", "shape=paper", "embedder=null")
            seconds, _, memory = run(Path(folder) / "out", "writer=llm", *model, *sizes)
            served = stats(url)
        ideal, asking = served["answers"] * LATENCY / SLOTS, served["seconds"]
        print(f"llm.slots={slots}: {served['answers']:,} answers, asked twice {served['repeated']}")
        print(f"ideal {ideal:.1f} s; first request to last answer {asking:.1f} s: {ideal / asking:.1%} of the ideal")
        print(f"whole command, start and files included, {seconds:.1f} s: {ideal / seconds:.1%}; {memory:,.0f} MiB")


def offline(shape: str = "demanding") -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        cost = run(out, "people=300", "sessions=25", f"shape={shape}", "writer=offline", "embedder=null", one_core=True)
        manifest = json.loads((out / "dataset.json").read_text(encoding="utf-8"))
        size = (out / "sessions.jsonl").stat().st_size / 2**20
    print(f"{shape}, 300 people x 25 sessions: {cost.seconds:.0f} s, {cost.busy:.0f} s of one core")
    print(f"{cost.memory:,.0f} MiB resident at most, sessions.jsonl {size:,.0f} MiB")
    print(json.dumps(manifest["counts"], indent=1))


def against(checkout: str, shape: str = "demanding") -> None:
    found: dict[tuple[str, int], Cost] = {}
    same = True
    roots = {"here": ROOT, "there": Path(checkout).resolve()}
    with tempfile.TemporaryDirectory() as folder:
        for number, people in enumerate(PEOPLE):
            for name in sorted(roots, reverse=bool(number % 2)):
                sizes = (f"people={people}", "sessions=25", f"shape={shape}", "writer=offline", "embedder=null", "seed=3")
                found[name, people] = run(Path(folder) / f"{name}{people}", *sizes, root=roots[name], one_core=True)
            for file in ("people.jsonl", "sessions.jsonl"):
                same &= filecmp.cmp(Path(folder) / f"here{people}" / file, Path(folder) / f"there{people}" / file, False)
    few, many = PEOPLE
    for name in roots:
        per_person = (found[name, many].busy - found[name, few].busy) / (many - few)
        whole = found[name, many].busy + (300 - many) * per_person
        print(
            f"{name:5}: {found[name, few].busy:.1f} s for {few} people, {found[name, many].busy:.1f} s for {many}; "
            f"{1000 * per_person:.0f} ms a person, so {whole:.0f} s for 300"
        )
    print("the same bytes" if same else "other bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["endpoint", "offline", "against"])
    parser.add_argument("rest", nargs="*", metavar="[CHECKOUT] [SHAPE]")
    options = parser.parse_args()
    {"endpoint": endpoint, "offline": offline, "against": against}[options.mode](*options.rest)
