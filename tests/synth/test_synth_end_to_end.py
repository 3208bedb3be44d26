"""The command against a model's server: killed and resumed, with faults, over several endpoints."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from model_server import MODEL, model_server, stats

pytestmark = pytest.mark.slow

FILES = ("people.jsonl", "sessions.jsonl", "rejected.jsonl", "README.md", "report.html", "dataset.json")


def command(out: Path, url: str, *overrides: str, people: int = 6, sessions: int = 8) -> list[str]:
    arguments = [f"people={people}", f"sessions={sessions}", "shape=paper", "writer=llm", f"llm.base_urls=[{url}]"]
    arguments += [f"llm.model={MODEL}", "llm.slots=16", f"out={out}", *overrides]
    return [sys.executable, "-m", "synth", *arguments]


def run(out: Path, url: str, *overrides: str, **sizes: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(out, url, *overrides, **sizes), capture_output=True, text=True, timeout=300)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_killed_at_random_moments_and_resumed_the_files_are_those_of_one_run(tmp_path, record_property):
    with model_server(latency=0.05, slots=16, faults=0.05) as url:
        whole = run(tmp_path / "whole", url, "llm.timeout=2")
    assert whole.returncode == 0, whole.stderr
    rng = random.Random(7)
    kills = 0
    with model_server(latency=0.05, slots=16, faults=0.05) as url:
        while True:
            process = subprocess.Popen(command(tmp_path / "killed", url, "llm.timeout=2"), stderr=subprocess.DEVNULL)
            try:
                # The first seconds go to imports.
                process.wait(timeout=rng.uniform(2.5, 5.5) if kills < 6 else 300)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
                continue
            break
        served = stats(url)
    assert process.returncode == 0
    assert kills >= 2
    record_property("kills", kills)
    for name in FILES:
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    # Only what was in flight at a kill may be asked again.
    assert served["repeated"] <= 16 * kills
    asked = served["calls"]
    with model_server(latency=0.05, slots=16) as url:
        again = run(tmp_path / "killed", url, "llm.timeout=2")
        assert again.returncode == 0, again.stderr
        assert stats(url)["answers"] == 0
    assert asked > 100


def test_no_person_is_lost_to_faults_and_what_is_rejected_is_named(tmp_path, record_property):
    with model_server(latency=0.02, slots=16, faults=0.1, hang=3) as url:
        done = run(tmp_path / "out", url, "llm.timeout=1", people=12, sessions=10)
        served = stats(url)
    assert done.returncode == 0, done.stderr
    assert all(served[fault] for fault in ("500", "429", "hang", "json", "rule")), served
    people, sessions, rejected = (lines(tmp_path / "out" / f"{name}.jsonl") for name in ("people", "sessions", "rejected"))
    record_property("served", json.dumps(served))
    named = {(item["person_id"], item["session_index"]) for item in rejected}
    assert all(item["rules"] and item["reasons"] for item in rejected)
    found = {(item["person_id"], item["session_index"]) for item in sessions}
    for number in range(12):
        person = f"p{number:06d}"
        assert person in {item["persona"]["person_id"] for item in people} or (person, None) in named
        if (person, None) not in named:
            assert {(person, index) for index in range(10)} <= found | named


def test_two_endpoints_share_the_work_and_one_may_be_dead(tmp_path):
    with model_server(latency=0.05, slots=8) as first, model_server(latency=0.05, slots=8) as second:
        urls = f"{first},{second},http://127.0.0.1:9/v1"
        done = run(tmp_path / "out", urls, people=3, sessions=5)
        assert done.returncode == 0, done.stderr
        assert min(stats(first)["answers"], stats(second)["answers"]) > 20


def test_an_interrupt_keeps_everything_and_says_how_to_go_on(tmp_path):
    with model_server(latency=0.2, slots=4) as url:
        process = subprocess.Popen(command(tmp_path / "out", url), stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 60
        while stats(url).get("answers", 0) < 20 and time.monotonic() < end:
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in stderr
        asked = stats(url)["answers"]
        assert run(tmp_path / "out", url).returncode == 0
        served = stats(url)
    assert served["repeated"] <= 16
    assert served["answers"] > asked
