"""The sbatch files of training and evaluation, run by bash with scripted programs in the place of Slurm, Ray and Python."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slurm_cases import ROOT, Machine

TRAIN, MULTINODE, EVAL = "train", "train_multinode", "eval"
slow = pytest.mark.slow

LISTEN = """\
import signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
port = next((int(word[7:]) for word in sys.argv if word.startswith("--port=")), None)
if port:
    door = socket.create_server(("127.0.0.1", port))
time.sleep(60)
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
    if ((now != 0)); then code=$now; all KILL; fi
  done
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
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
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
for ((i = 0; i < 600; i++)); do
  if [[ -n $code ]]; then exit $code; fi
  sleep 0.1
done
"""
CANCELLED = WAITS.replace("trap 'code=143' TERM", "trap 'sleep 0.3; exit 75' TERM").replace("code=75;", "")


class Cluster(Machine):
    """Machines with Slurm, as a job's script sees them."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "run"
        super().__init__(folder, OUT=str(self.out), PYTHON="python", SLURM_JOB_ID=str(os.getpid()))
        for name, text in {"srun": SRUN, "scontrol": SCONTROL, "python": PYTHON}.items():
            self.install(name, text)
        (folder / "listen.py").write_text(LISTEN, "utf-8")
        self.install("ray", f'echo "$$ $*" >>"$FOLDER/started"\nexec {sys.executable} -S -E {folder}/listen.py "$@"')
        self.trains("exit 0")
        self.joins('until (($(wc -l <"$FOLDER/started") > 1)); do sleep 0.05; done')

    def trains(self, text: str) -> None:
        """What ``python train.py`` does, in bash."""
        (self.folder / "train").write_text(f"{text}\n", "utf-8")

    def joins(self, text: str) -> None:
        """What ``python -m ...`` does, in bash: the check of the nodes."""
        (self.folder / "module").write_text(f"{text}\n", "utf-8")

    def submit(self, script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        nodes = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[0-1]"} if script == MULTINODE else {}
        return super().submit(script, *(arguments or (f"deltamem.out={self.out}",)), **nodes | variables)

    def outcome(self, script: str, *arguments: str, **variables: str) -> tuple[int, str]:
        """Exit code and errors of a job."""
        code, _, error = self.run(script, *arguments, **variables)
        return code, error

    def signalled(self, script: str, *numbers: signal.Signals, ready: str = "ready") -> tuple[int, int, str]:
        """Exit code, how often the job was put back into the queue, and errors of a job that gets signals."""
        code, _, error = self.interrupt(self.submit(script), *numbers, at=self.folder / ready)
        return code, len(self.lines("requeued")), error


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    assert made.running() == []
    assert not Path(tempfile.gettempdir(), f"deltamem-{os.getpid()}").exists()


@slow
@pytest.mark.parametrize(("script", "code"), [(TRAIN, 0), (TRAIN, 1), (MULTINODE, 2)])
def test_the_exit_code_is_that_of_train_py_and_a_failure_is_not_repeated(cluster: Cluster, script: str, code: int) -> None:
    cluster.trains(f"exit {code}")
    assert cluster.outcome(script)[0] == code
    assert cluster.lines("trained") and cluster.lines("requeued") == []


@slow
def test_arguments_task_and_number_of_gpus_reach_train_py(cluster: Cluster) -> None:
    arguments = ["deltamem.reward.tau=0.{task}", f"deltamem.out={cluster.out}{{task}}/{{task}}", "trainer.save_freq=5"]
    variables = {"SLURM_GPUS_ON_NODE": "4", "SLURM_ARRAY_TASK_ID": "3", "RAY_ADDRESS": "elsewhere:1"}
    assert cluster.outcome(TRAIN, *arguments, **variables)[0] == 0
    assert cluster.outcome(TRAIN)[0] == 0
    sent = f"trainer.n_gpus_per_node=4 deltamem.reward.tau=0.3 deltamem.out={cluster.out}3/3 trainer.save_freq=5"
    # Without GPUs of Slurm their number is the experiment's.
    assert cluster.lines("trained") == [f"train.py {sent}", f"train.py deltamem.out={cluster.out}"]
    assert Path(f"{cluster.out}3/3/slurm_starts.txt").exists()
    environment = dict(line.partition("=")[::2] for line in cluster.lines("environment"))
    assert "RAY_ADDRESS" not in environment
    assert environment["RAY_TMPDIR"] == f"{tempfile.gettempdir()}/deltamem-{os.getpid()}"


@slow
@pytest.mark.parametrize("script", [TRAIN, MULTINODE])
def test_the_warning_before_the_time_limit_saves_and_requeues_the_job(cluster: Cluster, script: str) -> None:
    cluster.trains(WAITS)
    code, requeued, error = cluster.signalled(script, signal.SIGUSR1)
    assert (code, requeued) == (0, 1) and "a checkpoint is saved; back into the queue" in error
    cluster.trains("exit 0")
    code, error = cluster.outcome(script, SLURM_RESTART_COUNT="1")
    assert code == 0 and "start 1 of the job" in error and "is at step 7" in error


@slow
@pytest.mark.parametrize(
    ("script", "train", "signals", "expected"),
    [
        # The warning comes while Python loads; when training is done anyway; and before a cancellation, which wins.
        (TRAIN, 'touch "$FOLDER/ready"; exec sleep 60', [signal.SIGUSR1], (0, 1)),
        (TRAIN, WAITS.replace("code=75", "code=0"), [signal.SIGUSR1], (0, 0)),
        (TRAIN, CANCELLED, [signal.SIGUSR1, signal.SIGTERM], (75, 0)),
        (TRAIN, WAITS, [signal.SIGTERM], (143, 0)),
        (MULTINODE, WAITS, [signal.SIGTERM], (143, 0)),
    ],
)
def test_signals(
    cluster: Cluster, script: str, train: str, signals: list[signal.Signals], expected: tuple[int, int]
) -> None:
    cluster.trains(train)
    code, requeued, error = cluster.signalled(script, *signals)
    assert (code, requeued) == expected, error


@slow
def test_a_queue_that_refuses_the_job_is_an_error(cluster: Cluster) -> None:
    cluster.trains("exit 75")
    (cluster.folder / "refuses").touch()
    code, error = cluster.outcome(TRAIN)
    assert code == 75
    assert "error: Slurm did not take the job back; the same sbatch command goes on" in error


@slow
def test_a_job_that_makes_no_checkpoint_is_not_started_for_ever(cluster: Cluster) -> None:
    cluster.trains("exit 75")
    ends = [cluster.outcome(TRAIN, SLURM_RESTART_COUNT=str(number), MAX_IDLE_STARTS="2") for number in range(3)]
    assert [code for code, _ in ends] == [0, 0, 1]
    assert "error: 2 starts of this job brought no new checkpoint (step 0, 0 stages)" in ends[2][1]
    assert len(cluster.lines("trained")) == 2
    assert cluster.outcome(TRAIN, SLURM_JOB_ID="1", MAX_IDLE_STARTS="2")[0] == 0


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.sampled_from(["same", "step", "stage"])), max_size=9))
def test_starts_without_progress_are_counted_from_the_last_progress(history: list[tuple[int, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        out, limit = Path(name), 2
        note, stages = out / "grpo/checkpoints/latest_checkpointed_iteration.txt", out / "stages"
        note.parent.mkdir(parents=True)
        stages.mkdir()
        lines, expected, step, made = [f'source slurm/training.bash; out="{out}"'], [], 0, 0
        idle: dict[int, int] = {}
        for job, change in history:
            if change == "step":
                step += 5
                lines.append(f'echo {step} >"{note}"')
            elif change == "stage":
                made += 1
                lines.append(f'touch "{stages}/{made}.json"')
            if change != "same":
                idle.clear()
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
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    cluster: Cluster, script: str, arguments: list[str], variables: dict[str, str], sentence: str
) -> None:
    code, error = cluster.outcome(script, *arguments, **variables)
    [line] = error.splitlines()
    assert code == 2 and sentence in line
    assert cluster.lines("trained") == cluster.lines("started") == []


@slow
def test_all_nodes_join_one_ray_and_train_py_is_sent_there(cluster: Cluster) -> None:
    code, error = cluster.outcome(
        MULTINODE, SLURM_GPUS_ON_NODE="8", SLURM_JOB_ID="5", RAY_START_ARGS="--a --b", RAY_TMPDIR=tempfile.gettempdir()
    )
    assert code == 0, error
    port = 20000 + 5 * 3
    started = sorted(line.partition(" ")[2] for line in cluster.lines("started"))
    both = f" --block --disable-usage-stats --temp-dir={tempfile.gettempdir()} --dashboard-agent-listen-port={port + 1}"
    both += " --num-cpus=4 --a --b"
    assert started[0] == f"start --address=127.0.0.1:{port}{both}"
    assert started[1].startswith("start --head --node-ip-address=127.0.0.1 ") and started[1].endswith(both)
    assert f" --port={port} " in started[1] and f" --ray-client-server-port={port + 2} " in started[1]
    [asked] = cluster.lines("modules")
    assert asked == f"-m deltamem.training.cluster 127.0.0.1:{port} --names=n0,n1 --gpus=16 --seconds=600"
    init = " ".join(
        f"++ray_kwargs.ray_init.{pair}"
        for pair in ("address=auto", "num_cpus=null", "num_gpus=null", "object_store_memory=null")
    )
    sent = f"train.py trainer.nnodes=2 {init} trainer.n_gpus_per_node=8 deltamem.out={cluster.out}"
    assert cluster.lines("trained") == [sent]
    environment = dict(line.partition("=")[::2] for line in cluster.lines("environment"))
    assert environment["RAY_ADDRESS"] == f"127.0.0.1:{port}"
    assert environment["RAY_AUTH_MODE"] == "token" and len(environment["RAY_AUTH_TOKEN"]) == 64
    assert sorted(path.name for path in (cluster.out / "logs").iterdir()) == ["ray_5_0_n0.log", "ray_5_0_n1.log"]


@slow
@pytest.mark.parametrize(
    ("ray", "join", "variables", "sentences"),
    [
        (None, "echo only one of two >&2; exit 1", {}, ["only one of two", "error: not all nodes have joined", "firewall"]),
        ("echo no such option; exit 2", "exec sleep 60", {}, ["error: Ray has ended on a node", "no such option"]),
        (None, "exit 0", {"HEAD_ADDRESS": "no.such.host.invalid"}, ["error: n1 finds no address of n0; set HEAD_ADDRESS"]),
        (None, "exit 0", {"HEALTH_SECONDS": "1"}, ["error: the nodes do not share "]),
    ],
)
def test_a_cluster_that_does_not_come_about_ends_the_job(
    cluster: Cluster, ray: str | None, join: str, variables: dict[str, str], sentences: list[str]
) -> None:
    cluster.install(
        "ray", ray or 'echo "firewall"; ' + (cluster.folder / "bin" / "ray").read_text("utf-8").partition("\n")[2]
    )
    cluster.joins(join)
    if "HEALTH_SECONDS" in variables:
        (cluster.folder / "unshared").touch()
    code, error = cluster.outcome(MULTINODE, **variables)
    assert code == 1 and [sentence for sentence in sentences if sentence not in error] == []
    assert cluster.lines("trained") == []


@slow
@pytest.mark.parametrize("saved", [False, True])
def test_a_lost_node_ends_the_job_which_goes_on_if_there_is_a_new_checkpoint(cluster: Cluster, saved: bool) -> None:
    loses = 'kill -KILL "$(sed -n "s/ start --address.*//p" "$FOLDER/started")"; '
    save = 'mkdir -p "$OUT/grpo/checkpoints"; echo 4 >"$OUT/grpo/checkpoints/latest_checkpointed_iteration.txt"; '
    cluster.trains((save if saved else "") + loses + WAITS)
    code, error = cluster.outcome(MULTINODE)
    assert "error: Ray has ended on a node" in error and "ended by itself with exit code 137" in error
    assert (code, len(cluster.lines("requeued"))) == ((0, 1) if saved else (1, 0)), error
    # Slurm kills the tasks of the other nodes, which then cannot clear up themselves.
    assert cluster.lines("steps")[-1] == f"2: rm -rf {tempfile.gettempdir()}/deltamem-{os.getpid()}"
    assert ("there is a new checkpoint or a finished stage; back into the queue" if saved else "no new checkpoint") in error


@slow
def test_the_warning_may_come_while_the_nodes_join(cluster: Cluster) -> None:
    cluster.joins("exec sleep 60")
    code, requeued, error = cluster.signalled(MULTINODE, signal.SIGUSR1, ready="modules")
    assert (code, requeued) == (0, 1), error
    assert cluster.lines("trained") == []


@pytest.fixture
def served(cluster: Cluster) -> Cluster:
    (cluster.folder / "health.py").write_text(HEALTH, "utf-8")
    cluster.install("vllm", f'echo "$$ $*" >>"$FOLDER/started"\nexec {sys.executable} -S -E {cluster.folder}/health.py "$@"')
    cluster.joins("exit 0")
    return cluster


@slow
def test_a_policy_is_served_and_evaluated_with_its_own_prompts(served: Cluster) -> None:
    model = served.folder / "policy"
    model.mkdir()
    (model / "episode.json").write_text('{"system_prompt": "manager", "k": 5, "thinking": null, "memory_fields": ["id"]}')
    served.joins("[[ $2 != eval.locomo ]] || exit 4; [[ $2 != eval.other ]] || exit 5")
    commands = ["out=a", "--", "eval.locomo", "system=deltamem", "--", "eval.other", "--", "eval.heldout", "out=b", "n=4"]
    served_with = {
        "MODEL": str(model),
        "SERVER_ARGS": "--seed 1",
        "SLURM_GPUS_ON_NODE": "2",
        "LOGS": f"{served.folder}/logs",
    }
    code, error = served.outcome(EVAL, *commands, **served_with)
    assert code == 4, error
    [server] = served.lines("started")
    form = rf"\d+ serve {model} --host 127\.0\.0\.1 --port (\d+) --tensor-parallel-size 2 --seed 1"
    found = re.fullmatch(form, server)
    assert found
    prompts = 'episode.system_prompt="manager" episode.k=5 episode.memory_fields=["id"]'
    policy, manager = (
        f"{part}.base_url=http://127.0.0.1:{found[1]}/v1 {part}.model={model} {prompts}" for part in ("endpoint", "manager")
    )
    wanted = [f"eval.heldout {policy} out=a", f"eval.locomo {manager} system=deltamem", f"eval.other {manager}"]
    assert served.lines("modules") == [f"-m {line}" for line in [*wanted, f"eval.heldout {policy} out=b n=4"]]


@slow
def test_an_evaluation_ends_with_its_server_and_when_it_is_cancelled(served: Cluster) -> None:
    served.joins('touch "$FOLDER/ready"; kill "$(sed "s/ .*//" "$FOLDER/started")"; exec sleep 60')
    commands, variables = ["out=a", "--", "out=b"], {"MODEL": "m", "LOGS": f"{served.folder}/logs"}
    code, error = served.outcome(EVAL, *commands, **variables)
    assert code == 1 and "error: the server ended" in error
    (served.folder / "ready").unlink()
    served.joins('touch "$FOLDER/ready"; exec sleep 60')
    process = served.submit(EVAL, *commands, **variables)
    assert served.interrupt(process, signal.SIGTERM, at=served.folder / "ready")[0] == 143
    assert len(served.lines("modules")) == 2, "the second command of a job was never reached"


def test_shellcheck_finds_nothing() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    files = sorted((ROOT / "slurm").iterdir())
    done = subprocess.run([shellcheck, "-x", *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("script", "warning"), [(TRAIN, "B:USR1@1800"), (MULTINODE, "B:USR1@1800"), ("synth", "B:USR1@300"), (EVAL, None)]
)
def test_slurm_reads_the_directives(script: str, warning: str | None) -> None:
    text = (ROOT / "slurm" / f"{script}.sbatch").read_text("utf-8")
    directives = dict(re.findall(r"^#SBATCH (--[a-z-]+)(?:=(\S+))?$", text, re.MULTILINE))
    assert directives.get("--signal") == warning
    assert {"--requeue", "--time", "--open-mode"} <= directives.keys()
    # Slurm stops reading at the first command.
    assert text.partition("\nset -euo pipefail")[0].count("#SBATCH") == len(directives)
