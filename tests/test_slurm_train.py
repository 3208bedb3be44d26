"""The sbatch files of training and evaluation, run by bash with scripted programs in the place of Slurm, Ray and Python."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]
TRAIN, MULTINODE, EVAL = (ROOT / "slurm" / f"{name}.sbatch" for name in ("train", "train_multinode", "eval"))

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


class Cluster:
    """Machines with Slurm, as a job's script sees them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "run"
        for name, text in {"srun": SRUN, "scontrol": SCONTROL, "python": PYTHON}.items():
            self.install(name, text)
        (folder / "listen.py").write_text(LISTEN, "utf-8")
        self.install("ray", f'echo "$$ $*" >>"$FOLDER/started"\nexec {sys.executable} -S -E {folder}/listen.py "$@"')
        self.trains("exit 0")
        self.joins('until (($(wc -l <"$FOLDER/started") > 1)); do sleep 0.05; done')

    def install(self, name: str, text: str) -> None:
        program = self.folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/usr/bin/env bash\n{text}\n", "utf-8")
        program.chmod(0o755)

    def trains(self, text: str) -> None:
        """What ``python train.py`` does, in bash."""
        (self.folder / "train").write_text(f"{text}\n", "utf-8")

    def joins(self, text: str) -> None:
        """What the check of the nodes does, in bash."""
        (self.folder / "module").write_text(f"{text}\n", "utf-8")

    def submit(self, script: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RAY_")) and name != "MODEL"
        }
        environment |= {
            "PATH": f"{self.folder}/bin:{environment['PATH']}",
            "PYTHON": "python",
            "SLURM_JOB_ID": str(os.getpid()),
        }
        environment |= {"FOLDER": str(self.folder), "OUT": str(self.out)}
        if script == MULTINODE:
            environment |= {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[0-1]"}
        return subprocess.Popen(
            ["bash", script, *(arguments or (f"deltamem.out={self.out}",))],
            cwd=ROOT,
            env=environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: Path, *arguments: str, **variables: str) -> tuple[int, str]:
        """Exit code and what was said."""
        process = self.submit(script, *arguments, **variables)
        error = process.communicate(timeout=60)[1]
        return process.returncode, error

    def interrupt(self, process: subprocess.Popen[str], *numbers: signal.Signals, ready: str = "ready") -> tuple[int, str]:
        """Signal a job once a file is there; exit code and what was said."""
        while not (self.folder / ready).exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        for number in numbers:
            process.send_signal(number)
        error = process.communicate(timeout=60)[1]
        return process.returncode, error

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text("utf-8").splitlines() if path.exists() else []

    def running(self) -> list[str]:
        """Command lines of Ray that have not ended."""
        return [line for line in self.lines("started") if Path(f"/proc/{line.partition(' ')[0]}").exists()]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    assert made.running() == []
    assert not Path(tempfile.gettempdir(), f"deltamem-{os.getpid()}").exists()


@pytest.mark.parametrize(("script", "code"), [(TRAIN, 0), (TRAIN, 1), (TRAIN, 2), (MULTINODE, 0), (MULTINODE, 2)])
def test_the_exit_code_is_that_of_train_py_and_a_failure_is_not_repeated(cluster: Cluster, script: Path, code: int) -> None:
    cluster.trains(f"exit {code}")
    assert cluster.run(script)[0] == code
    assert len(cluster.lines("trained")) == 1
    assert cluster.lines("requeued") == []


def test_arguments_and_the_number_of_gpus_reach_train_py(cluster: Cluster) -> None:
    arguments = ["+experiment=qwen8b", f"deltamem.out={cluster.out}", "trainer.save_freq=5"]
    code, error = cluster.run(TRAIN, *arguments, SLURM_GPUS_ON_NODE="4", RAY_ADDRESS="elsewhere:1")
    assert code == 0, error
    assert cluster.lines("trained") == ["train.py trainer.n_gpus_per_node=4 " + " ".join(arguments)]
    environment = dict(line.partition("=")[::2] for line in cluster.lines("environment"))
    assert "RAY_ADDRESS" not in environment
    assert environment["RAY_TMPDIR"] == f"{tempfile.gettempdir()}/deltamem-{os.getpid()}"


def test_without_gpus_of_slurm_the_number_is_the_experiments(cluster: Cluster) -> None:
    cluster.run(TRAIN)
    assert cluster.lines("trained") == [f"train.py deltamem.out={cluster.out}"]


def test_the_tasks_of_an_array_fill_in_their_number(cluster: Cluster) -> None:
    arguments = ["deltamem.reward.tau=0.{task}", f"deltamem.out={cluster.out}{{task}}/{{task}}"]
    assert cluster.run(TRAIN, *arguments, SLURM_ARRAY_TASK_ID="3")[0] == 0
    assert cluster.lines("trained") == [f"train.py deltamem.reward.tau=0.3 deltamem.out={cluster.out}3/3"]
    assert Path(f"{cluster.out}3/3/slurm_starts.txt").exists()


@pytest.mark.parametrize("script", [TRAIN, MULTINODE])
def test_the_warning_before_the_time_limit_saves_and_puts_the_job_back(cluster: Cluster, script: Path) -> None:
    cluster.trains(WAITS)
    code, error = cluster.interrupt(cluster.submit(script), signal.SIGUSR1)
    assert (code, cluster.lines("requeued")) == (0, [f"requeue {os.getpid()}"]), error
    assert "a checkpoint is saved; back into the queue" in error
    cluster.trains("exit 0")
    code, error = cluster.run(script, SLURM_RESTART_COUNT="1")
    assert code == 0 and "start 1 of the job" in error and "is at step 7" in error


def test_a_warning_that_comes_while_python_loads_puts_the_job_back(cluster: Cluster) -> None:
    cluster.trains('touch "$FOLDER/ready"; exec sleep 60')
    code, error = cluster.interrupt(cluster.submit(TRAIN), signal.SIGUSR1)
    assert (code, len(cluster.lines("requeued"))) == (0, 1), error
    assert "training had not begun" in error


def test_a_checkpoint_that_somebody_else_asked_for_puts_the_job_back(cluster: Cluster) -> None:
    cluster.trains("exit 75")
    assert cluster.run(TRAIN)[0] == 0
    assert len(cluster.lines("requeued")) == 1


def test_training_that_is_finished_after_the_warning_is_finished(cluster: Cluster) -> None:
    cluster.trains(WAITS.replace("code=75", "code=0"))
    code, _ = cluster.interrupt(cluster.submit(TRAIN), signal.SIGUSR1)
    assert (code, cluster.lines("requeued")) == (0, [])


@pytest.mark.parametrize("script", [TRAIN, MULTINODE])
def test_a_job_that_is_cancelled_ends_and_is_not_queued_again(cluster: Cluster, script: Path) -> None:
    cluster.trains(WAITS)
    code, _ = cluster.interrupt(cluster.submit(script), signal.SIGTERM)
    assert (code, cluster.lines("requeued")) == (143, [])


def test_a_cancel_after_the_warning_wins(cluster: Cluster) -> None:
    cluster.trains(WAITS.replace("trap 'code=143' TERM", "trap 'sleep 0.3; exit 75' TERM").replace("code=75;", ""))
    code, _ = cluster.interrupt(cluster.submit(TRAIN), signal.SIGUSR1, signal.SIGTERM)
    assert (code, cluster.lines("requeued")) == (75, [])


def test_a_queue_that_does_not_take_the_job_back_is_told(cluster: Cluster) -> None:
    cluster.trains("exit 75")
    (cluster.folder / "refuses").touch()
    code, error = cluster.run(TRAIN)
    assert code == 75
    assert "error: Slurm did not take the job back; the same sbatch command goes on" in error


def test_a_job_that_makes_no_checkpoint_is_not_started_for_ever(cluster: Cluster) -> None:
    cluster.trains("exit 75")
    codes = [cluster.run(TRAIN, SLURM_RESTART_COUNT=str(number), MAX_IDLE_STARTS="2") for number in range(3)]
    assert [code for code, _ in codes] == [0, 0, 1]
    assert "error: 2 starts of this job brought no new checkpoint (step 0, 0 stages)" in codes[2][1]
    assert len(cluster.lines("trained")) == 2
    assert cluster.run(TRAIN, SLURM_JOB_ID="1", MAX_IDLE_STARTS="2")[0] == 0


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


@pytest.mark.parametrize("script", [TRAIN, MULTINODE])
@pytest.mark.parametrize(
    ("arguments", "variables", "told"),
    [
        (["+experiment=qwen8b"], {}, "no deltamem.out=FOLDER among the arguments"),
        (["deltamem.out=a{task}"], {}, "deltamem.out=a{task}: not a task of a job array"),
        (
            ["deltamem.out=a", "x={task}"],
            {"SLURM_ARRAY_TASK_ID": "1"},
            "deltamem.out=a: the tasks of an array need a folder each",
        ),
        (["deltamem.out=a"], {"PYTHON": "/nowhere/python"}, "/nowhere/python: no such program"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    cluster: Cluster, script: Path, arguments: list[str], variables: dict[str, str], told: str
) -> None:
    code, error = cluster.run(script, *arguments, **variables)
    [line] = error.splitlines()
    assert code == 2 and told in line
    assert cluster.lines("trained") == []


def test_all_nodes_join_one_ray_and_train_py_is_sent_there(cluster: Cluster) -> None:
    code, error = cluster.run(
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
    told = f"train.py trainer.nnodes=2 {init} trainer.n_gpus_per_node=8 deltamem.out={cluster.out}"
    assert cluster.lines("trained") == [told]
    environment = dict(line.partition("=")[::2] for line in cluster.lines("environment"))
    assert environment["RAY_ADDRESS"] == f"127.0.0.1:{port}"
    assert environment["RAY_AUTH_MODE"] == "token" and len(environment["RAY_AUTH_TOKEN"]) == 64
    assert sorted(path.name for path in (cluster.out / "logs").iterdir()) == ["ray_5_0_n0.log", "ray_5_0_n1.log"]


def test_nodes_that_do_not_join_are_told_with_the_words_of_ray(cluster: Cluster) -> None:
    cluster.joins("echo only one of two >&2; exit 1")
    cluster.install("ray", 'echo "firewall"; ' + (cluster.folder / "bin" / "ray").read_text("utf-8").partition("\n")[2])
    code, error = cluster.run(MULTINODE)
    assert code == 1
    assert "only one of two" in error and "error: not all nodes have joined" in error and "firewall" in error
    assert cluster.lines("trained") == []


def test_a_ray_that_does_not_start_ends_the_job(cluster: Cluster) -> None:
    cluster.install("ray", "echo no such option; exit 2")
    cluster.joins("exec sleep 60")
    code, error = cluster.run(MULTINODE)
    assert code == 1
    assert "error: Ray has ended on a node" in error and "no such option" in error
    assert cluster.lines("trained") == []


@pytest.mark.parametrize("saved", [False, True])
def test_a_lost_node_ends_the_job_which_goes_on_if_there_is_a_new_checkpoint(cluster: Cluster, saved: bool) -> None:
    loses = 'kill -KILL "$(sed -n "s/ start --address.*//p" "$FOLDER/started")"; '
    save = 'mkdir -p "$OUT/grpo/checkpoints"; echo 4 >"$OUT/grpo/checkpoints/latest_checkpointed_iteration.txt"; '
    cluster.trains((save if saved else "") + loses + WAITS)
    code, error = cluster.run(MULTINODE)
    assert "error: Ray has ended on a node" in error and "ended by itself with exit code 137" in error
    assert (code, len(cluster.lines("requeued"))) == ((0, 1) if saved else (1, 0)), error
    # Slurm kills the tasks of the other nodes, which then cannot clear up themselves.
    assert cluster.lines("steps")[-1] == f"2: rm -rf {tempfile.gettempdir()}/deltamem-{os.getpid()}"
    assert ("there is a new checkpoint or a finished stage; back into the queue" if saved else "no new checkpoint") in error


def test_the_warning_may_come_while_the_nodes_join(cluster: Cluster) -> None:
    cluster.joins("exec sleep 60")
    code, error = cluster.interrupt(cluster.submit(MULTINODE), signal.SIGUSR1, ready="modules")
    assert (code, len(cluster.lines("requeued"))) == (0, 1), error
    assert cluster.lines("trained") == []


def test_nodes_without_a_shared_file_system_are_refused(cluster: Cluster) -> None:
    (cluster.folder / "unshared").touch()
    code, error = cluster.run(MULTINODE, HEALTH_SECONDS="1")
    assert code == 1
    assert f"error: the nodes do not share {cluster.out} and the checkout" in error
    assert cluster.lines("started") == []


@pytest.fixture
def served(cluster: Cluster) -> Cluster:
    (cluster.folder / "health.py").write_text(HEALTH, "utf-8")
    cluster.install("vllm", f'echo "$$ $*" >>"$FOLDER/started"\nexec {sys.executable} -S -E {cluster.folder}/health.py "$@"')
    cluster.joins("exit 0")
    return cluster


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
    code, error = served.run(EVAL, *commands, **served_with)
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


def test_a_server_that_dies_ends_the_evaluation(served: Cluster) -> None:
    served.joins('touch "$FOLDER/ready"; kill "$(sed "s/ .*//" "$FOLDER/started")"; exec sleep 60')
    code, error = served.run(EVAL, "out=a", "--", "out=b", MODEL="m", LOGS=f"{served.folder}/logs")
    assert code == 1
    assert "error: the server ended" in error
    assert len(served.lines("modules")) == 1


def test_an_evaluation_that_is_cancelled_leaves_nothing(served: Cluster) -> None:
    served.joins('touch "$FOLDER/ready"; exec sleep 60')
    process = served.submit(EVAL, "out=a", "--", "out=b", MODEL="m", LOGS=f"{served.folder}/logs")
    assert served.interrupt(process, signal.SIGTERM)[0] == 143
    assert len(served.lines("modules")) == 1


@pytest.mark.parametrize(
    ("variables", "told"),
    [({}, "MODEL is not set"), ({"MODEL": "m", "SERVER_COMMAND": "/nowhere/vllm"}, "/nowhere/vllm: no such program")],
)
def test_an_evaluation_without_a_model_or_a_server_is_one_line(
    served: Cluster, variables: dict[str, str], told: str
) -> None:
    code, error = served.run(EVAL, "out=a", **variables)
    [line] = error.splitlines()
    assert code == 2 and told in line
    assert served.lines("started") == []


def test_a_head_without_an_address_is_told(cluster: Cluster) -> None:
    code, error = cluster.run(MULTINODE, HEAD_ADDRESS="no.such.host.invalid")
    assert code == 1
    assert "error: n1 finds no address of n0; set HEAD_ADDRESS" in error
    assert cluster.lines("started") == []


def test_shellcheck_finds_nothing() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    files = sorted((ROOT / "slurm").iterdir())
    done = subprocess.run([shellcheck, "-x", *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", [TRAIN, MULTINODE, EVAL])
def test_slurm_reads_the_directives(script: Path) -> None:
    text = script.read_text("utf-8")
    directives = dict(re.findall(r"^#SBATCH (--[a-z-]+)(?:=(\S+))?$", text, re.MULTILINE))
    if script != EVAL:
        assert directives["--signal"] == "B:USR1@1800"
    assert {"--requeue", "--time", "--open-mode"} <= directives.keys()
    # Slurm stops reading at the first command.
    assert text.partition("\nset -euo pipefail")[0].count("#SBATCH") == len(directives)
