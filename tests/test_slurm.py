"""The sbatch files, run by bash with scripted programs in the place of Slurm, Ray, vLLM and Python."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamem.sessions import read_sessions

ROOT = Path(__file__).resolve().parents[1]
TRAIN, MULTINODE, EVAL, SYNTH = "train", "train_multinode", "eval", "synth"
RAY_FOLDER = Path(tempfile.gettempdir(), f"deltamem-{os.getpid()}")
slow = pytest.mark.slow

LISTEN = """\
import signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
port = next((int(word[7:]) for word in sys.argv if word.startswith("--port=")), None)
if port:
    listener = socket.create_server(("127.0.0.1", port))
time.sleep(600)
"""

SRUN = """\
tasks=1 output=/dev/stdout
while [[ $1 == --* ]]; do
  case $1 in --ntasks=*) tasks=${1#*=} ;; --output=*) output=${1#*=} ;; esac
  shift
done
echo "$tasks: $*" >>"$FOLDER/steps"
if [[ -e $FOLDER/unshared ]]; then rm -f "$seen"; fi
pids=()
all() { local pid; for pid in "${pids[@]}"; do kill -s "$1" -- "-$pid" 2>/dev/null; done; }
trap 'all USR2' USR2
trap 'all KILL' TERM
for ((i = 0; i < tasks; i++)); do
  SLURM_NODEID=$i SLURM_CPUS_ON_NODE=4 setsid "$@" >"${output//%N/n$i}" 2>&1 &
  pids+=($!)
done
code=0
while ((${#pids[@]} > 0)); do
  for i in "${!pids[@]}"; do
    if kill -0 "${pids[i]}" 2>/dev/null; then continue; fi
    now=0
    wait "${pids[i]}" || now=$?
    unset "pids[i]"
    if ((now != 0)); then code=$now; fi
  done
  if ((code != 0)); then all KILL; fi # again and again: a task that has just been started has no group yet
  sleep 0.05
done
exit $code
"""

SCONTROL = """\
case $1 in
  show) case $2 in hostnames) printf 'n%s\\n' 0 1 ;; node) echo "   NodeAddr=127.0.0.1 NodeHostName=$3" ;; esac ;;
  requeue) echo "requeue $2" >>"$FOLDER/requeued"; [[ ! -e $FOLDER/refuses ]] ;;
esac
"""

HEALTH = """\
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

PYTHON = f"""\
if [[ $1 == -c ]]; then exec {sys.executable} -S -E "$@"; fi
if [[ $1 == -m ]]; then
  echo "$*" >>"$FOLDER/modules"
  source "$FOLDER/module"
else
  printf '%s\\n' "$*" >>"$FOLDER/trained"
  env >"$FOLDER/environment"
  source "$FOLDER/train"
fi
"""

WAITS = """\
trap 'code=75; mkdir -p "$OUT/grpo/checkpoints"; echo 7 >"$OUT/grpo/checkpoints/latest_checkpointed_iteration.txt"' USR1
trap 'code=143' TERM
code=""
touch "$FOLDER/ready"
for ((i = 0; i < 6000; i++)); do
  if [[ -n $code ]]; then exit $code; fi
  sleep 0.1
done
"""
CANCELLED = WAITS.replace("trap 'code=143' TERM", "trap 'sleep 0.3; exit 75' TERM").replace("code=75;", "")
MODEL_SERVER = f"exec {sys.executable} -P {ROOT}/tests/model_server.py --port $port"


class Machine:
    """A job's machines: programs of ours come first in its PATH, and what they note lies in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "run"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RAY_", "MODEL"))}
        self._environment = kept | {"PATH": f"{folder}/bin:{os.environ['PATH']}", "FOLDER": str(folder)}
        self._environment |= {"OUT": str(self.out), "LOGS": f"{folder}/logs"}
        self._environment |= {"PYTHON": "python", "SLURM_JOB_ID": str(os.getpid())}
        for name, text in {"srun": SRUN, "scontrol": SCONTROL, "python": PYTHON}.items():
            self.install(name, text)
        (folder / "listen.py").write_text(LISTEN, "utf-8")
        (folder / "health.py").write_text(HEALTH, "utf-8")
        self.install("ray", f'echo "$$ $*" >>"$FOLDER/started"\nexec {sys.executable} -S -E {folder}/listen.py "$@"')
        self.trains("exit 0")
        self.runs('until (($(wc -l <"$FOLDER/started") > 1)); do sleep 0.05; done')

    def install(self, name: str, text: str) -> None:
        """Put a bash program there."""
        program = self.folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/usr/bin/env bash\n{text}\n", "utf-8")
        program.chmod(0o755)

    def trains(self, text: str) -> None:
        """What ``python train.py`` does, in bash."""
        (self.folder / "train").write_text(f"{text}\n", "utf-8")

    def runs(self, text: str) -> None:
        """What ``python -m ...`` does, in bash: the check of the nodes, an evaluation."""
        (self.folder / "module").write_text(f"{text}\n", "utf-8")

    def serves(self, text: str) -> None:
        """What ``vllm serve MODEL ... --port PORT`` does; it notes its process and its arguments."""
        note = f'echo "$$ $*" >>{self.folder}/started\nwhile [[ $1 != --port ]]; do shift; done\nport=$2\n'
        self.install("vllm", note + text)

    def submit(self, script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start ``slurm/SCRIPT.sbatch``."""
        if script == MULTINODE:
            variables = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[0-1]"} | variables
        if script == SYNTH:  # one shard, written by the real program
            array = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "1"}
            variables = array | {"PYTHON": sys.executable, "MODEL": "scripted", "SLURM_JOB_ID": "71"} | variables
            arguments = (f"out={self.out}", "shape=demanding_tiny", "people=4", "sessions=2", "embedder=null", *arguments)
        return subprocess.Popen(
            ["bash", ROOT / "slurm" / f"{script}.sbatch", *(arguments or (f"deltamem.out={self.out}",))],
            cwd=ROOT,
            env=self._environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A test in the background inherits SIGINT as ignored, and bash cannot trap what it found ignored.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, script: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
        """Exit code, output and errors of a job."""
        return self.ended(self.submit(script, *arguments, **variables))

    def interrupt(
        self, process: subprocess.Popen[str], *numbers: signal.Signals, at: str = "ready", pause: float = 0.0
    ) -> tuple[int, int, str]:
        """Signal a job some seconds after a file is there; exit code, how often it was requeued, and errors."""
        while not (self.folder / at).exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        time.sleep(pause)
        for number in numbers:
            process.send_signal(number)
        code, _, error = self.ended(process)
        return code, len(self.lines("requeued")), error

    def ended(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        out, error = process.communicate(timeout=600)
        return process.returncode, out, error

    def lines(self, name: str) -> list[str]:
        """The lines of a file in the folder."""
        path = self.folder / name
        return path.read_text("utf-8").splitlines() if path.exists() else []

    def started(self) -> list[str]:
        """Arguments of the servers (``started`` has the process id before each)."""
        return [line.partition(" ")[2] for line in self.lines("started")]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    assert not any(Path(f"/proc/{line.partition(' ')[0]}").exists() for line in made.lines("started"))
    assert not RAY_FOLDER.exists()


@slow
@pytest.mark.parametrize(("script", "code"), [(TRAIN, 1), (MULTINODE, 2)])
def test_the_exit_code_is_that_of_train_py_and_a_failure_is_not_repeated(machine: Machine, script: str, code: int) -> None:
    machine.trains(f"exit {code}")
    assert machine.run(script)[0] == code
    assert machine.lines("trained") and machine.lines("requeued") == []


@slow
def test_arguments_task_and_number_of_gpus_reach_train_py(machine: Machine) -> None:
    arguments = ["deltamem.reward.tau=0.{task}", f"deltamem.out={machine.out}{{task}}/{{task}}", "trainer.save_freq=5"]
    variables = {"SLURM_GPUS_ON_NODE": "4", "SLURM_ARRAY_TASK_ID": "3", "RAY_ADDRESS": "elsewhere:1"}
    assert machine.run(TRAIN, *arguments, **variables)[0] == machine.run(TRAIN)[0] == 0
    sent = f"trainer.n_gpus_per_node=4 deltamem.reward.tau=0.3 deltamem.out={machine.out}3/3 trainer.save_freq=5"
    # Without GPUs of Slurm their number is the experiment's.
    assert machine.lines("trained") == [f"train.py {sent}", f"train.py deltamem.out={machine.out}"]
    assert Path(f"{machine.out}3/3/slurm_starts.txt").exists()
    environment = dict(line.partition("=")[::2] for line in machine.lines("environment"))
    assert "RAY_ADDRESS" not in environment and environment["RAY_TMPDIR"] == str(RAY_FOLDER)


@slow
@pytest.mark.parametrize("script", [TRAIN, MULTINODE])
def test_the_warning_before_the_time_limit_saves_and_requeues_the_job(machine: Machine, script: str) -> None:
    machine.trains(WAITS)
    code, requeued, error = machine.interrupt(machine.submit(script), signal.SIGUSR1)
    assert (code, requeued) == (0, 1) and "a checkpoint is saved; back into the queue" in error
    machine.trains("exit 0")
    code, _, error = machine.run(script, SLURM_RESTART_COUNT="1")
    assert code == 0 and "start 1 of the job" in error and "is at step 7" in error


@slow
@pytest.mark.parametrize(
    ("script", "train", "signals", "expected"),
    [
        # The warning comes while Python loads; when training is done anyway; and before a cancellation, which wins.
        (TRAIN, 'touch "$FOLDER/ready"; exec sleep 600', [signal.SIGUSR1], (0, 1)),
        (TRAIN, WAITS.replace("code=75", "code=0"), [signal.SIGUSR1], (0, 0)),
        (TRAIN, CANCELLED, [signal.SIGUSR1, signal.SIGTERM], (75, 0)),
        (TRAIN, WAITS, [signal.SIGTERM], (143, 0)),
        (MULTINODE, WAITS, [signal.SIGTERM], (143, 0)),
    ],
)
def test_signals(machine, script, train, signals, expected):
    machine.trains(train)
    *found, error = machine.interrupt(machine.submit(script), *signals)
    assert tuple(found) == expected, error


@slow
@pytest.mark.parametrize(("left", "expected"), [(1800, (2, 0)), (80000, (0, 1))])
def test_a_job_that_is_shorter_than_the_warning_does_not_go_round_in_circles(machine, left, expected):
    machine.trains(WAITS)
    # The other is preempted as soon as it starts.
    process = machine.submit(TRAIN, SLURM_JOB_END_TIME=str(int(time.time()) + left))
    *found, error = machine.interrupt(process, signal.SIGUSR1)
    assert tuple(found) == expected and ("submit with a longer --time" in error) == (left == 1800), error


@slow
def test_a_job_that_cannot_go_on_is_an_error(machine: Machine) -> None:
    machine.trains("exit 75")
    ends = [machine.run(TRAIN, SLURM_RESTART_COUNT=str(number), MAX_IDLE_STARTS="2") for number in range(3)]
    assert [code for code, _, _ in ends] == [0, 0, 1] and len(machine.lines("trained")) == 2
    assert "error: 2 starts of this job brought no new checkpoint (step 0, 0 stages)" in ends[2][2]
    (machine.folder / "refuses").touch()
    code, _, error = machine.run(TRAIN, SLURM_JOB_ID="1", MAX_IDLE_STARTS="2")
    assert code == 75 and "error: Slurm did not take the job back; the same sbatch command goes on" in error


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.sampled_from(["same", "step", "stage"])), max_size=9))
def test_starts_without_progress_are_counted_from_the_last_progress(history: list[tuple[int, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        out, limit = Path(name), 2
        note, stages = out / "grpo/checkpoints/latest_checkpointed_iteration.txt", out / "stages"
        note.parent.mkdir(parents=True)
        stages.mkdir()
        lines, expected = [f'source slurm/training.bash; out="{out}"'], []
        idle: dict[int, int] = {}
        for number, (job, change) in enumerate(history):
            if change != "same":
                idle.clear()
                lines.append(f'echo {number} >"{note}"' if change == "step" else f'touch "{stages}/{number}.json"')
            lines.append(f"if (SLURM_JOB_ID={job} count_start {limit}) 2>/dev/null; then echo goes; else echo ends; fi")
            expected.append("goes" if idle.get(job, 0) < limit else "ends")
            if expected[-1] == "goes":
                idle[job] = idle.get(job, 0) + 1
        done = subprocess.run(["bash", "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


@slow
@pytest.mark.parametrize(
    ("script", "arguments", "variables", "sentence"),
    [
        (TRAIN, ["+experiment=qwen8b"], {}, "no deltamem.out=FOLDER among the arguments"),
        (TRAIN, ["deltamem.out=a{task}"], {}, "deltamem.out=a{task}: not a task of a job array"),
        (TRAIN, ["deltamem.out=a", "x={task}"], {"SLURM_ARRAY_TASK_ID": "1"}, "the tasks of an array need a folder each"),
        (MULTINODE, ["deltamem.out=a"], {"PYTHON": "/nowhere/python"}, "/nowhere/python: no such program"),
        (EVAL, ["out=a"], {}, "MODEL is not set"),
        (EVAL, ["out=a"], {"MODEL": "m", "SERVER_COMMAND": "/nowhere/vllm"}, "/nowhere/vllm: no such program"),
        (SYNTH, [], {"SLURM_ARRAY_TASK_ID": ""}, "not a task of a job array"),
        (SYNTH, [], {"SLURM_ARRAY_TASK_ID": "3"}, "task 3 of the array is none of 1 shards"),
        (SYNTH, [], {"PYTHON": "/nowhere/python"}, "/nowhere/python: no such program"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(machine, script, arguments, variables, sentence):
    machine.serves(MODEL_SERVER)
    code, _, error = machine.run(script, *arguments, **variables)
    [line] = error.splitlines()
    assert code == 2 and sentence in line
    assert machine.lines("trained") == machine.lines("started") == []


@slow
def test_all_nodes_join_one_ray_and_train_py_is_sent_there(machine: Machine) -> None:
    code, _, error = machine.run(
        MULTINODE, SLURM_GPUS_ON_NODE="8", SLURM_JOB_ID="5", RAY_START_ARGS="--a --b", RAY_TMPDIR=tempfile.gettempdir()
    )
    assert code == 0, error
    port = 20000 + 5 * 3
    worker, head = sorted(machine.started())
    both = f" --block --disable-usage-stats --temp-dir={tempfile.gettempdir()} --dashboard-agent-listen-port={port + 1}"
    both += " --num-cpus=4 --a --b"
    assert worker == f"start --address=127.0.0.1:{port}{both}"
    assert head.startswith("start --head --node-ip-address=127.0.0.1 ") and head.endswith(both)
    assert f" --port={port} " in head and f" --ray-client-server-port={port + 2} " in head
    asked = f"-m deltamem.training.cluster 127.0.0.1:{port} --names=n0,n1 --gpus=16 --seconds=600"
    assert machine.lines("modules") == [asked]
    unset = ("num_cpus", "num_gpus", "object_store_memory")
    init = " ".join(f"++ray_kwargs.ray_init.{pair}" for pair in ("address=auto", *(f"{name}=null" for name in unset)))
    sent = f"train.py trainer.nnodes=2 {init} trainer.n_gpus_per_node=8 deltamem.out={machine.out}"
    assert machine.lines("trained") == [sent]
    environment = dict(line.partition("=")[::2] for line in machine.lines("environment"))
    assert environment["RAY_ADDRESS"] == f"127.0.0.1:{port}"
    assert environment["RAY_AUTH_MODE"] == "token" and len(environment["RAY_AUTH_TOKEN"]) == 64
    assert sorted(path.name for path in (machine.out / "logs").iterdir()) == ["ray_5_0_n0.log", "ray_5_0_n1.log"]


@slow
@pytest.mark.parametrize(
    ("ray", "join", "variables", "sentences"),
    [
        (None, "echo only one of two >&2; exit 1", {}, ["only one of two", "error: not all nodes have joined", "firewall"]),
        ("echo no such option; exit 2", "exec sleep 600", {}, ["error: Ray has ended on a node", "no such option"]),
        (None, "exit 0", {"HEAD_ADDRESS": "no.such.host.invalid"}, ["error: n1 finds no address of n0; set HEAD_ADDRESS"]),
        (None, "exit 0", {"HEALTH_SECONDS": "1"}, ["error: the nodes do not share "]),
    ],
)
def test_a_cluster_that_does_not_come_about_ends_the_job(machine, ray, join, variables, sentences):
    real = (machine.folder / "bin" / "ray").read_text("utf-8").partition("\n")[2]
    machine.install("ray", ray or f'echo "firewall"; {real}')
    machine.runs(join)
    if "HEALTH_SECONDS" in variables:
        (machine.folder / "unshared").touch()
    code, _, error = machine.run(MULTINODE, **variables)
    assert code == 1 and [sentence for sentence in sentences if sentence not in error] == []
    assert machine.lines("trained") == []


@slow
@pytest.mark.parametrize("saved", [False, True])
def test_a_lost_node_ends_the_job_which_goes_on_if_there_is_a_new_checkpoint(machine: Machine, saved: bool) -> None:
    loses = 'kill -KILL "$(sed -n "s/ start --address.*//p" "$FOLDER/started")"; '
    save = 'mkdir -p "$OUT/grpo/checkpoints"; echo 4 >"$OUT/grpo/checkpoints/latest_checkpointed_iteration.txt"; '
    machine.trains((save if saved else "") + loses + WAITS)
    code, _, error = machine.run(MULTINODE)
    assert "error: Ray has ended on a node" in error and "ended by itself with exit code 137" in error
    assert (code, len(machine.lines("requeued"))) == ((0, 1) if saved else (1, 0)), error
    # Slurm kills the tasks of the other nodes, which then cannot clear up themselves.
    assert machine.lines("steps")[-1] == f"2: rm -rf {RAY_FOLDER}"


@slow
def test_the_warning_may_come_while_the_nodes_join(machine: Machine) -> None:
    machine.runs("exec sleep 600")
    code, requeued, error = machine.interrupt(machine.submit(MULTINODE), signal.SIGUSR1, at="modules")
    assert (code, requeued) == (0, 1), error
    assert machine.lines("trained") == []


@slow
def test_a_policy_is_served_and_evaluated_by_the_name_of_its_folder(machine: Machine) -> None:
    machine.serves(f"exec {sys.executable} -S -E {machine.folder}/health.py $port")
    model = machine.folder / "policy"
    model.mkdir()
    machine.runs("[[ $2 != eval.locomo ]] || exit 4; [[ $2 != eval.other ]] || exit 5")
    commands = ["out=a", "--", "eval.locomo", "system=deltamem", "--", "eval.other", "--", "eval.heldout", "out=b", "n=4"]
    code, _, error = machine.run(EVAL, *commands, MODEL=str(model), SERVER_ARGS="--seed 1", SLURM_GPUS_ON_NODE="2")
    assert code == 4, error
    [server] = machine.started()
    form = rf"serve {model} --host 127\.0\.0\.1 --port (\d+) --tensor-parallel-size 2 --seed 1"
    found = re.fullmatch(form, server)
    assert found
    named = (f"{part}.base_url=http://127.0.0.1:{found[1]}/v1 {part}.model={model}" for part in ("endpoint", "manager"))
    policy, manager = named
    wanted = [f"eval.heldout {policy} out=a", f"eval.locomo {manager} system=deltamem", f"eval.other {manager}"]
    assert machine.lines("modules") == [f"-m {line}" for line in [*wanted, f"eval.heldout {policy} out=b n=4"]]


@slow
def test_an_evaluation_ends_with_its_server_and_when_it_is_cancelled(machine: Machine) -> None:
    machine.serves(f"exec {sys.executable} -S -E {machine.folder}/health.py $port")
    machine.runs('touch "$FOLDER/ready"; kill "$(sed "s/ .*//" "$FOLDER/started")"; exec sleep 600')
    code, _, error = machine.run(EVAL, "out=a", "--", "out=b", MODEL="m")
    assert code == 1 and "error: the server ended" in error
    (machine.folder / "ready").unlink()
    machine.runs('touch "$FOLDER/ready"; exec sleep 600')
    assert machine.interrupt(machine.submit(EVAL, "out=a", "--", "out=b", MODEL="m"), signal.SIGTERM)[0] == 143
    assert len(machine.lines("modules")) == 2, "the second command of a job was never reached"


@slow
def test_an_array_of_shards_from_the_server_to_the_data_set(machine: Machine) -> None:
    machine.serves(MODEL_SERVER)
    for task in ("0", "1"):
        code, out, error = machine.run(SYNTH, SLURM_ARRAY_TASK_ID=task, SHARDS="2", SERVER_ARGS="--seed 1 --x")
        assert code == 0, error
        assert f"shard {task}/2 is finished" in out and "the server is healthy after" in error
    form = r"serve scripted --host 127\.0\.0\.1 --port \d+ --tensor-parallel-size 1 --seed 1 --x"
    assert [bool(re.fullmatch(form, line)) for line in machine.started()] == [True, True]
    assert subprocess.run([sys.executable, "-m", "synth", "merge", machine.out], cwd=ROOT, check=False).returncode == 0
    people = {item.session.person_id for item in read_sessions(machine.out / "sessions.jsonl")}
    assert people == {f"p{number:06d}" for number in range(4)}
    code, _, error = machine.run(SYNTH, "people=none")
    assert code == 2 and "config key 'people'" in error, "the exit code is that of synth"


@slow
@pytest.mark.parametrize(
    ("server", "sentences"),
    [
        ("echo no GPU here; exit 3", ["error: the server ended", "no GPU here"]),
        ("exec sleep 600", ["error: the server is not healthy after 2 s"]),
        (
            MODEL_SERVER.replace("exec", "timeout --foreground 4") + " --latency 3; echo out of memory",
            ["error: the server ended", "out of memory"],
        ),
    ],
)
def test_a_server_that_does_not_start_or_dies_ends_the_task(machine: Machine, server: str, sentences: list[str]) -> None:
    machine.serves(server)
    code, _, error = machine.run(SYNTH, HEALTH_SECONDS="2" if server == "exec sleep 600" else "60")
    assert code == 1 and [sentence for sentence in sentences if sentence not in error] == []


@slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_everything_and_nothing_is_queued_again(machine: Machine, number: signal.Signals, code: int) -> None:
    machine.serves(f"{MODEL_SERVER} --latency 5")
    found, requeued, error = machine.interrupt(machine.submit(SYNTH), number, at="run/work/run.json", pause=0.5)
    assert (found, requeued) == (code, 0), error
    assert "the same command goes on from here" in error


@slow
@pytest.mark.parametrize(
    ("server", "at"),
    [
        (f"{MODEL_SERVER} --latency 60", "run/work/run.json"),  # it ends its request before it ends, so it has to be killed
        ("exec sleep 600", "started"),
    ],
)
def test_the_warning_before_the_time_limit_requeues_the_task_which_then_goes_on(machine, server, at):
    machine.serves(server)
    code, _, error = machine.interrupt(machine.submit(SYNTH), signal.SIGUSR1, at=at, pause=0.5)
    assert (code, machine.lines("requeued")) == (0, ["requeue 71"]), error
    machine.serves(MODEL_SERVER)
    code, out, _ = machine.run(SYNTH)
    assert code == 0 and out.endswith(f"written to {machine.out}\n")


def test_shellcheck_finds_nothing() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    files = sorted((ROOT / "slurm").iterdir())
    done = subprocess.run([shellcheck, "-x", *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("script", "warning"), [(TRAIN, "B:USR1@3600"), (MULTINODE, "B:USR1@3600"), (SYNTH, "B:USR1@300"), (EVAL, None)]
)
def test_slurm_reads_the_directives(script: str, warning: str | None) -> None:
    text = (ROOT / "slurm" / f"{script}.sbatch").read_text("utf-8")
    directives = dict(re.findall(r"^#SBATCH (--[a-z-]+)(?:=(\S+))?$", text, re.MULTILINE))
    assert directives.get("--signal") == warning
    assert {"--requeue", "--time", "--open-mode"} <= directives.keys()
    # Slurm stops reading at the first command.
    assert text.partition("\nset -euo pipefail")[0].count("#SBATCH") == len(directives)
