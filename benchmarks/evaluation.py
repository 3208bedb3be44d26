"""How close a judged LoCoMo run comes to what its endpoint can give, and what a kill costs.

    python benchmarks/evaluation.py              # 1,540 questions, answer and two judges, 200 ms an answer, 64 slots
    python benchmarks/evaluation.py --kill       # the same, killed with SIGKILL half-way and started again

The public command runs in a process of its own, and so does the server, which shares the machine's cores with it. The system
is `oracle`, because it needs neither model nor embedder: what is measured is asking. The ideal: every slot busy from the
first request to the last answer. Needs the LoCoMo file (see the README).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from model_server import MODEL, model_server, stats  # noqa: E402

LATENCY, SLOTS = 0.2, 64


def command(out: Path, url: str, slots: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "eval.locomo",
        "system=oracle",
        "categories=[1,2,3,4]",
        f"out={out}",
        f"base_url={url}",
        f"answer.model={MODEL}",
        f"answer.slots={slots}",
        f"judge.slots={slots}",
        "judge.probes=false",
    ]


def run(arguments: list[str]) -> float:
    started = time.monotonic()
    done = subprocess.run(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"the command ended with exit code {done.returncode}")
    return time.monotonic() - started


def kill_half_way(arguments: list[str], url: str, answers: int) -> None:
    process = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    while process.poll() is None and stats(url)["answers"] < answers:
        time.sleep(0.05)
    process.kill()
    process.wait()


def report(out: Path, served: dict[str, Any]) -> None:
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    cost = summary["cost"]
    calls = cost["answer"]["calls"] + cost["judge"]["calls"]
    tokens = sum(cost[part][kind] for part in ("answer", "judge") for kind in ("prompt_tokens", "completion_tokens"))
    print(f"reported: {calls:,} answers, {tokens:,} tokens; server's log: {served['answers']:,}, {served['tokens']:,}")
    print(f"asked twice: {served['repeated']}; questions: {summary['questions']}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", action="store_true", help="kill the run half-way and go on")
    parser.add_argument("--slots", type=int, default=SLOTS, help="requests in flight of each model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, model_server(latency=LATENCY, slots=SLOTS, brain="benchmark") as url:
        out = Path(folder) / "out"
        arguments = command(out, url, options.slots)
        if options.kill:
            kill_half_way(arguments, url, answers=2310)
            before = stats(url)
            print(f"killed after {before['answers']:,} answers")
        seconds = run(arguments)
        served = stats(url)
        if not options.kill:
            ideal = served["answers"] * LATENCY / SLOTS
            asking = served["seconds"]
            print(f"ideal {ideal:.1f} s; first request to last answer {asking:.1f} s: {ideal / asking:.1%}")
            print(f"whole command, start and files included, {seconds:.1f} s: {ideal / seconds:.1%}")
        report(out, served)
        again = run(arguments)
        print(f"the same command again: {again:.1f} s, {stats(url)['answers'] - served['answers']} answers asked for")


if __name__ == "__main__":
    main()
