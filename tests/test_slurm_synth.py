"""``slurm/synth.sbatch`` run by bash, with a scripted server in the place of vLLM and the variables that Slurm sets."""

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from deltamem.sessions import read_sessions

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "slurm" / "synth.sbatch"
SERVER = f"exec {sys.executable} {ROOT}/tests/model_server.py --port $port"
SIZES = ("shape=tiny", "people=4", "sessions=2", "embedder=null")


class Node:
    """A machine with a program ``vllm`` on it."""

    def __init__(self, folder: Path) -> None:
        self.out, self.logs, self._programs = folder / "data", folder / "logs", folder / "bin"
        self._programs.mkdir()

    def install(self, name: str, text: str) -> None:
        program = self._programs / name
        program.write_text(f"#!/usr/bin/env bash\n{text}\n", "utf-8")
        program.chmod(0o755)

    def serve(self, text: str = SERVER) -> None:
        """What ``vllm serve MODEL ... --port PORT`` does; notes its arguments and its process."""
        note = f'echo "$$ $*" >>{self._programs}/started\nwhile [[ $1 != --port ]]; do shift; done\nport=$2\n'
        self.install("vllm", note + text)

    def submit(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        environment |= {"PATH": f"{self._programs}:{environment['PATH']}", "PYTHON": sys.executable, "MODEL": "scripted"}
        environment |= {"LOGS": str(self.logs), "SLURM_JOB_ID": "71", "SLURM_ARRAY_JOB_ID": "70"}
        environment |= {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "1"} | variables
        return subprocess.Popen(
            ["bash", SCRIPT, f"out={self.out}", *SIZES, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A test in the background inherits SIGINT as ignored, and bash cannot trap what it found ignored.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        process = self.submit(*arguments, **variables)
        out, error = process.communicate(timeout=120)
        return process.returncode, out, error

    def started(self) -> list[str]:
        """The servers' command lines."""
        path = self._programs / "started"
        return [line.partition(" ")[2] for line in path.read_text("utf-8").splitlines()] if path.exists() else []

    def running(self) -> list[int]:
        """The servers that are still there."""
        pids = [int(line.partition(" ")[0]) for line in (self._programs / "started").read_text("utf-8").splitlines()]
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_an_array_of_shards_from_the_server_to_the_data_set(node):
    node.serve()
    for task in ("0", "1"):
        code, out, error = node.run(SLURM_ARRAY_TASK_ID=task, SLURM_ARRAY_TASK_COUNT="2", SERVER_ARGS="--seed 1 --x")
        assert code == 0, error
        assert f"shard {task}/2 is finished" in out
        assert "the server is healthy after" in error
    first, second = node.started()
    form = r"serve scripted --host 127\.0\.0\.1 --port \d+ --tensor-parallel-size 1 --seed 1 --x"
    assert re.fullmatch(form, first) and re.fullmatch(form, second)
    assert node.running() == []
    merged = subprocess.run([sys.executable, "-m", "synth", "merge", node.out], cwd=ROOT, check=False)
    assert merged.returncode == 0
    people = {item.session.person_id for item in read_sessions(node.out / "sessions.jsonl")}
    assert people == {f"p{number:06d}" for number in range(4)}


def test_a_server_that_does_not_start_is_told_with_its_last_words(node):
    node.serve("echo no GPU here; exit 3")
    code, _, error = node.run()
    assert code == 1
    assert "error: the server ended" in error and error.endswith("no GPU here\n")
    assert not node.out.exists()


def test_a_server_that_is_never_healthy_is_shut_down(node):
    node.serve("exec sleep 600")
    code, _, error = node.run(HEALTH_SECONDS="1")
    assert code == 1
    assert "error: the server is not healthy after 1 s" in error
    assert node.running() == []


def test_a_server_that_dies_in_the_middle_ends_the_task(node):
    node.serve(SERVER.replace("exec", "timeout --foreground 4") + " --latency 3; echo out of memory")
    begin = time.monotonic()
    code, _, error = node.run()
    assert code == 1
    assert "error: the server ended" in error and "out of memory" in error
    assert time.monotonic() - begin < 30
    assert node.running() == []


def wait_for_run(node, process):
    """Wait until synth asks the server."""
    run = node.out / "work" / "run.json"
    for _ in range(600):
        if run.exists():
            time.sleep(0.5)
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError("synth has not begun")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_everything_and_nothing_is_queued_again(node, number, code):
    node.serve(f"{SERVER} --latency 5")
    node.install("scontrol", "echo queued again")
    process = node.submit()
    wait_for_run(node, process)
    process.send_signal(number)
    out, error = process.communicate(timeout=30)
    assert process.returncode == code
    assert "stopped by SIGTERM; the same command goes on from here" in error
    assert "queued again" not in out
    assert node.running() == []


def test_the_warning_before_the_time_limit_puts_the_task_back_into_the_queue_and_it_goes_on(node):
    node.serve(f"{SERVER} --latency 60")  # it ends its request before it ends, so it has to be killed
    node.install("scontrol", 'echo "scontrol $*"')
    process = node.submit()
    wait_for_run(node, process)
    process.send_signal(signal.SIGUSR1)
    out, error = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out == "scontrol requeue 71\n"
    assert "back into the queue" in error
    assert node.running() == []
    node.serve()
    code, out, _ = node.run()
    assert code == 0 and out.endswith(f"written to {node.out}\n")


def test_the_warning_may_come_while_the_server_starts(node):
    node.serve("exec sleep 600")
    node.install("scontrol", 'echo "scontrol $*"')
    process = node.submit()
    while not node.started():
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "scontrol requeue 71\n")
    assert node.running() == []


def test_the_exit_code_is_that_of_synth(node):
    node.serve()
    code, _, error = node.run("people=none")
    assert code == 2
    assert "config key 'people'" in error
    assert node.running() == []


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"SLURM_ARRAY_TASK_ID": ""}, "not a task of a job array"),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "1"}, "task 3 of the array is none of 1 shards"),
        ({"SERVER_COMMAND": "/nowhere/vllm"}, "/nowhere/vllm: no such program"),
        ({"PYTHON": "/nowhere/python"}, "/nowhere/python: no such program"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(node, variables, told):
    node.serve()
    code, out, error = node.run(**variables)
    assert (code, out) == (2, "")
    [line] = error.splitlines()
    assert told in line
    assert node.started() == []


def test_one_shard_of_an_array_can_be_run_alone(node):
    node.serve()
    code, out, error = node.run(SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_TASK_COUNT="1", SHARDS="4")
    assert code == 0, error
    assert "shard 3/4 is finished" in out


def test_shellcheck_finds_nothing():
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, "-x", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_slurm_reads_its_directives():
    directives = re.findall(r"^#SBATCH (--[a-z-]+)(?:=(\S+))?$", SCRIPT.read_text("utf-8"), re.MULTILINE)
    assert dict(directives)["--signal"] == "B:USR1@300"
    assert {"--requeue", "--array", "--time", "--open-mode"} <= dict(directives).keys()
    # Slurm stops reading at the first command.
    before = SCRIPT.read_text("utf-8").partition("\nset -euo pipefail")[0]
    assert before.count("#SBATCH") == len(directives)
