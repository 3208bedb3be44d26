"""The command against a model's server: killed and resumed, with faults, over several endpoints, interrupted."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from model_server import ANSWER_FAULTS, MODEL, TRANSPORT_FAULTS, model_server, stats
from synth_runs import ROOT, files, synth

from synth.output.files import FILES
from synth.tasks import Unit

pytestmark = pytest.mark.slow

ARGUMENTS = ("shape=paper", "writer=llm", f"llm.model={MODEL}")
NO_EMBEDDER = "embedder=null"
"""Spares the model's loading, ten seconds in every process."""

OF_A_SESSION = {Unit.FILLING, Unit.DIALOGUE}
"""If one of these is rejected, its session is."""


def arguments(out: Path, url: str, *overrides: str) -> list[str]:
    return [*ARGUMENTS, f"llm.base_urls=[{url}]", f"out={out}", *overrides]


def start(out: Path, url: str, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "synth", *arguments(out, url, *overrides)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(out: Path, url: str, *overrides: str) -> str:
    """Run the command to its good end; returns what it printed."""
    done = synth(*arguments(out, url, *overrides), timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_until(process: subprocess.Popen[str], happened: Callable[[], bool]) -> bool:
    """Whether it happened while the process was running."""
    end = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < end:
        if happened():
            return True
        time.sleep(0.02)
    return False


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_killed_at_random_moments_and_resumed_the_files_are_those_of_one_run(tmp_path):
    slots, kills = 4, 3
    given = ("people=6", "sessions=8", f"llm.slots={slots}", NO_EMBEDDER)
    server = {"latency": 0.02, "slots": slots, "faults": 0.08, "hang": 0.5}
    with model_server(**server) as url:
        run(tmp_path / "whole", url, *given)
        whole = stats(url)
    out = tmp_path / "killed"
    rng = random.Random(7)
    with model_server(**server) as url:
        for kill in range(kills + 1):
            process = start(out, url, *given)
            target = stats(url)["answers"] + rng.randint(1, whole["answers"] // (kills + 1))
            if kill < kills:
                assert wait_until(process, lambda target=target: stats(url)["answers"] >= target)
            else:
                # The last one falls among the final files.
                wait_until(process, (out / "people.jsonl").exists)
            time.sleep(rng.uniform(0, 0.1))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        run(out, url, *given)
        served = stats(url)
        assert files(out) == files(tmp_path / "whole")
        assert files(out).keys() == set(FILES)
        assert lines(out / "sessions.jsonl")
        # Nothing is asked that one run does not ask, and only what was in flight at a kill is asked again.
        assert served["distinct"] == whole["distinct"]
        assert served["repeated"] - whole["repeated"] <= slots * kills
        run(out, url, *given)
        assert stats(url)["calls"] == served["calls"]
    assert files(out) == files(tmp_path / "whole")


@pytest.mark.parametrize("given", [("llm.repairs=0", NO_EMBEDDER), ()], ids=["without-repairs", "with-repairs-and-embedder"])
def test_no_person_is_lost_to_faults_and_what_is_rejected_is_named(given, tmp_path):
    people, sessions = 10, 6
    out = tmp_path / "out"
    with model_server(latency=0.02, slots=16, faults=0.2, hang=3) as url:
        run(out, url, f"people={people}", f"sessions={sessions}", "llm.slots=16", "llm.timeout=2", *given)
        served = stats(url)
    assert all(served[fault] for fault in (*TRANSPORT_FAULTS, *ANSWER_FAULTS)), served
    rules = json.loads((out / "dataset.json").read_text("utf-8"))["statistics"]["rules"]
    broken = {rule for rule, counts in rules.items() if counts["violated"]}
    assert {rule.startswith("format.") for rule in broken} == {True, False}

    rejected = lines(out / "rejected.jsonl")
    assert all(item["rules"] and item["reasons"] for item in rejected)
    named = {(item["person_id"], item["session_index"]) for item in rejected if item["unit"] in OF_A_SESSION}
    people_written = lines(out / "people.jsonl")
    without_life = {item["persona"]["person_id"] for item in people_written if not item["events"]}
    assert without_life <= {item["person_id"] for item in rejected if item["unit"] not in OF_A_SESSION}
    written = {(item["person_id"], item["session_index"]) for item in lines(out / "sessions.jsonl")}
    everybody = {f"p{number:06d}" for number in range(people)}
    assert {item["persona"]["person_id"] for item in people_written} == everybody
    expected = {(person, index) for person in everybody - without_life for index in range(sessions)}
    assert written | (named & expected) == expected
    assert not written & named
    if given:
        assert named & expected and without_life
    else:
        assert len(rejected) <= 4  # an answer is wrong one time in ten, and may be mended twice
