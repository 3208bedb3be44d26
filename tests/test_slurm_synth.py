"""``slurm/synth.sbatch`` run by bash, with a scripted server in the place of vLLM and the variables that Slurm sets."""

import re
import signal
import subprocess
import sys

import pytest
from slurm_cases import ROOT, Machine

from deltamem.sessions import read_sessions

pytestmark = pytest.mark.slow
SERVER = f"exec {sys.executable} {ROOT}/tests/model_server.py --port $port"


class Node(Machine):
    """A machine with a program ``vllm`` on it, and one shard to write."""

    def __init__(self, folder):
        task = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "1"}
        super().__init__(folder, PYTHON=sys.executable, MODEL="scripted", LOGS=f"{folder}/logs", SLURM_JOB_ID="71", **task)
        self.out = folder / "data"
        self.asked = self.out / "work" / "run.json"
        self.install("scontrol", 'echo "scontrol $*"')

    def serve(self, text=SERVER):
        """What ``vllm serve MODEL ... --port PORT`` does; notes its process and its arguments."""
        note = f'echo "$$ $*" >>{self.folder}/started\nwhile [[ $1 != --port ]]; do shift; done\nport=$2\n'
        self.install("vllm", note + text)

    def write(self, *arguments, **variables):
        sizes = (f"out={self.out}", "shape=tiny", "people=4", "sessions=2", "embedder=null")
        return self.submit("synth", *sizes, *arguments, **variables)

    def written(self, *arguments, **variables):
        return self.ended(self.write(*arguments, **variables))


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    yield node
    assert node.running() == []


def test_an_array_of_shards_from_the_server_to_the_data_set(node):
    node.serve()
    for task in ("0", "1"):
        code, out, error = node.written(
            SLURM_ARRAY_TASK_ID=task, SLURM_ARRAY_TASK_COUNT="1", SHARDS="2", SERVER_ARGS="--seed 1 --x"
        )
        assert code == 0, error
        assert f"shard {task}/2 is finished" in out
        assert "the server is healthy after" in error
    form = r"serve scripted --host 127\.0\.0\.1 --port \d+ --tensor-parallel-size 1 --seed 1 --x"
    assert [bool(re.fullmatch(form, line)) for line in node.started()] == [True, True]
    merged = subprocess.run([sys.executable, "-m", "synth", "merge", node.out], cwd=ROOT, check=False)
    assert merged.returncode == 0
    people = {item.session.person_id for item in read_sessions(node.out / "sessions.jsonl")}
    assert people == {f"p{number:06d}" for number in range(4)}


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        ("echo no GPU here; exit 3", "error: the server ended"),
        ("exec sleep 600", "error: the server is not healthy after 2 s"),
    ],
)
def test_a_server_that_does_not_start_ends_the_task(node, server, sentence):
    node.serve(server)
    code, _, error = node.written(HEALTH_SECONDS="2")
    assert code == 1 and sentence in error
    assert ("exit" in server) == error.endswith("no GPU here\n")
    assert not node.out.exists()


def test_a_server_that_dies_in_the_middle_ends_the_task(node):
    node.serve(SERVER.replace("exec", "timeout --foreground 4") + " --latency 3; echo out of memory")
    code, _, error = node.written()
    assert code == 1
    assert "error: the server ended" in error and "out of memory" in error


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_everything_and_nothing_is_queued_again(node, number, code):
    node.serve(f"{SERVER} --latency 5")
    found, out, error = node.interrupt(node.write(), number, at=node.asked, pause=0.5)
    assert found == code, error
    assert "the same command goes on from here" in error
    assert "requeue" not in out


def test_the_warning_before_the_time_limit_requeues_the_task_which_then_goes_on(node):
    node.serve(f"{SERVER} --latency 60")  # it ends its request before it ends, so it has to be killed
    code, out, error = node.interrupt(node.write(), signal.SIGUSR1, at=node.asked, pause=0.5)
    assert (code, out) == (0, "scontrol requeue 71\n"), error
    node.serve()
    code, out, _ = node.written()
    assert code == 0 and out.endswith(f"written to {node.out}\n")


def test_the_warning_may_come_while_the_server_starts(node):
    node.serve("exec sleep 600")
    code, out, _ = node.interrupt(node.write(), signal.SIGUSR1, at=node.folder / "started")
    assert (code, out) == (0, "scontrol requeue 71\n")


def test_the_exit_code_is_that_of_synth(node):
    node.serve()
    code, _, error = node.written("people=none")
    assert code == 2 and "config key 'people'" in error


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"SLURM_ARRAY_TASK_ID": ""}, "not a task of a job array"),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "1"}, "task 3 of the array is none of 1 shards"),
        ({"SERVER_COMMAND": "/nowhere/vllm"}, "/nowhere/vllm: no such program"),
        ({"PYTHON": "/nowhere/python"}, "/nowhere/python: no such program"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(node, variables, sentence):
    node.serve()
    code, out, error = node.written(**variables)
    [line] = error.splitlines()
    assert (code, out) == (2, "") and sentence in line
    assert node.started() == []
