"""What synthesis costs: throughput against a slow endpoint, and the offline writer at the paper's scale.

    python benchmarks/synthesis.py endpoint      # 50 people x 25 events, 300 ms an answer, 64 slots
    python benchmarks/synthesis.py offline       # 300 people x 25 sessions, no model

Both run the public command in a process of its own. ``endpoint`` compares with the ideal: every slot busy from the first
request to the last answer. Its server shares the machine's cores with the client.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

LATENCY, SLOTS = 0.3, 64
CLIENT_SLOTS = (80, 64)
"""Requests in flight: with a few more than the server has slots, the server never waits for the client."""


def run(out: Path, *arguments: str) -> tuple[float, float]:
    """Run the command; returns its seconds and its largest resident memory in MiB."""
    started = time.monotonic()
    command = [sys.executable, "-m", "synth", *arguments, f"out={out}", "progress_seconds=600"]
    process = subprocess.Popen(command, cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the command ended with exit code {process.returncode}")
    return time.monotonic() - started, usage.ru_maxrss / 1024


def endpoint() -> None:
    from model_server import MODEL, model_server, stats

    for slots in CLIENT_SLOTS:
        with tempfile.TemporaryDirectory() as folder, model_server(latency=LATENCY, slots=SLOTS) as url:
            model = (f"llm.base_urls=[{url}]", f"llm.model={MODEL}", f"llm.slots={slots}")
            sizes = ("people=50", "sessions=25", "shape=paper", "embedder=null")
            seconds, memory = run(Path(folder) / "out", "writer=llm", *model, *sizes)
            served = stats(url)
        ideal, asking = served["answers"] * LATENCY / SLOTS, served["seconds"]
        print(f"llm.slots={slots}: {served['answers']:,} answers, asked twice {served['repeated']}")
        print(f"ideal {ideal:.1f} s; first request to last answer {asking:.1f} s: {ideal / asking:.1%} of the ideal")
        print(f"whole command, start and files included, {seconds:.1f} s: {ideal / seconds:.1%}; {memory:,.0f} MiB")


def offline() -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        seconds, memory = run(out, "people=300", "sessions=25", "shape=paper", "writer=offline")
        manifest = json.loads((out / "dataset.json").read_text(encoding="utf-8"))
        size = (out / "sessions.jsonl").stat().st_size / 2**20
    print(f"300 people x 25 sessions: {seconds:.0f} s, {memory:,.0f} MiB resident at most, sessions.jsonl {size:,.0f} MiB")
    print(json.dumps(manifest["counts"], indent=1))


if __name__ == "__main__":
    {"endpoint": endpoint, "offline": offline}[sys.argv[1] if len(sys.argv) > 1 else "endpoint"]()
