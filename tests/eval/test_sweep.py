"""``python -m eval sweep``: what the paper varies, from policies that are served here to the table and its charts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from benchmark_cases import LOCOMO, ROOT, Done, prepare
from compare_cases import edited, records, write_run
from scripted_server import is_check, reserved_port, serve

from deltamem import plugins
from eval.compare.layout import published_tables
from eval.sweep.result import PAPER
from eval.sweep.study import studies

Command = Callable[..., Done]

VLLM = f"""#!{sys.executable}
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SAID = '<think>A dog.</think>\\n<outputs>{{"operations": [{{"event": "ADD", "text": "There is a dog."}}]}}</outputs>'

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        served = {{"id": sys.argv[2], "root": sys.argv[2], "object": "model", "max_model_len": 16384}}
        self.say({{"object": "list", "data": [served]}})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {{"index": 0, "finish_reason": "stop", "message": {{"role": "assistant", "content": SAID}}}}
        usage = {{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        self.say({{"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}})

    def say(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *arguments):
        pass

print("serving", *sys.argv[1:], flush=True)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def program(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def free_port() -> int:
    with reserved_port() as held:
        return int(held.getsockname()[1])


@pytest.fixture
def sweep(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    prepare(monkeypatch, LOCOMO)
    monkeypatch.setattr("eval.compare.page.charts", lambda *_: [])
    return lambda *arguments: command("sweep", *arguments)


def table(path: Path) -> dict[str, list[str]]:
    """The cells of each row of the Markdown table."""
    rows = [line.split("|")[1:-1] for line in path.read_text("utf-8").splitlines() if line.startswith("|")]
    return {row[0].split()[0]: [cell.strip() for cell in row[1:]] for row in rows}


def test_a_policy_is_served_with_its_prompts_and_what_is_not_trained_says_how(sweep: Command, tmp_path: Path) -> None:
    policy = tmp_path / "runs" / "qwen8b" / "policy"  # what was trained with the paper's threshold is the point .75
    policy.mkdir(parents=True)
    (policy / "config.json").write_text("{}")
    (policy / "model.safetensors").write_bytes(b"trained")
    (policy / "episode.json").write_text(json.dumps({"k": 3, "memory_fields": ["text", "id"], "turn_tokens": 2900}))
    vllm, port = program(tmp_path / "vllm", VLLM), free_port()
    with serve(LOCOMO.script) as server:
        (kept := tmp_path / "runs" / "table4" / "tau_0.75").mkdir(parents=True)
        (kept / "summary.json").write_text("{}")  # of another version: no result, and no reason to stop
        chosen = ("points=[tau_0.75,tau_0.50]", f"serve={vllm}", f"port={port}", "serve_args=[--dtype,auto]")
        models = (
            f"base_url={server.url}",
            "answer.model=tiny",
            "judge.model=tiny",
            "judge.probes=false",
            "resamples=20",
            "conversations=[conv-2]",
        )
        arguments = ("table4", *chosen, *models, *LOCOMO.write(tmp_path))
        first = sweep(*arguments)
        asked = len(server.requests)
        again = sweep(*arguments)
        (policy / "model.safetensors").write_bytes(b"trained anew")
        anew = sweep(*arguments)
    assert anew.code == 1 and "runs/qwen8b/policy has been trained anew since; remove runs/table4/tau_0.75" in " ".join(
        anew.out.split()
    )
    assert first.code == again.code == 1, first.err  # as one point is missing
    wanted = "tau_0.50 has to be trained first: python train.py +experiment=qwen8b +ablation=tau deltamem.reward.tau=0.5"
    assert wanted in first.out and "tau_0.75 (1 of 1): runs/qwen8b/policy" in first.out
    out = tmp_path / "runs" / "table4"
    summary = json.loads((out / "tau_0.75" / "summary.json").read_text("utf-8"))
    assert summary["system"] == "deltamem" and summary["memories"]["written"] > 0 and not summary["failures"]["count"]
    config = summary["making"]["config"]
    assert (config["protocol"], config["embedder"]["name"]) == ("paper", "Qwen/Qwen3-Embedding-0.6B")
    assert config["manager"]["max_tokens"] == 2900, "as trained"
    episode = json.loads((out / "tau_0.75" / "manifest.json").read_text("utf-8"))["episode"]
    assert (episode["k"], episode["memory_fields"]) == (3, ["text", "id"])
    log = (out / "tau_0.75.server.log").read_text("utf-8")
    served = f"serving serve runs/qwen8b/policy --host 127.0.0.1 --port {port} --dtype auto\n"
    assert log == served, "and not again for what is done"
    assert len(server.requests) == asked
    rows = table(out / "table4.md")
    assert rows["point"] == ["Overall B1", "Overall F1"], "this is not the paper's data: its numbers are not beside ours"
    assert rows["tau_0.75"][0] and rows["tau_0.50"][0] == rows["tau_0.00"][0] == "not run"
    assert {path.name for path in out.glob("*.svg")} == {"table4_bleu1.svg", "table4_f1.svg"}
    assert (out / "report.html").is_file()


def test_threshold_and_searches_stand_beside_the_papers_numbers(sweep: Command, tmp_path: Path) -> None:
    for label, right in (("tau_0.50", 4), ("tau_0.80", 16)):
        write_run(tmp_path / "out" / label, records(range(right)), config={"system": "deltamem"})
    done = sweep("table4", "out=out", "draw=true")
    assert done.code == 1 and "Threshold tau, Table 4" in done.out
    rows = table(tmp_path / "out" / "table4.md")
    assert rows["point"] == ["Overall B1", "Overall F1", "Overall B1, paper", "Overall F1, paper"]
    assert rows["tau_0.80"][1].startswith("50.00 (") and rows["tau_0.80"][2:] == ["39.74", "50.78"]
    assert rows["tau_0.60"] == ["not run", "", "38.35", "48.75"]
    drawn = (tmp_path / "out" / "table4_f1.svg").read_text("utf-8")
    assert drawn.startswith("<svg") and "threshold tau" in drawn and ">paper<" in drawn
    for label, searches in (("Mem0", 1.0), ("DeltaMem-8B-RL", 0.25)):
        edited(write_run(tmp_path / "seven" / label, records()), queries_per_memory=searches, system=label)
    assert sweep("table7", "out=seven", "draw=true", "points=[Mem0,DeltaMem-8B-RL]").code == 0
    rows = table(tmp_path / "seven" / "table7.md")
    assert rows["DeltaMem-8B-RL"][0] == "0.25" and rows["DeltaMem-8B-RL"][2:] == ["0.13", "75.13"]
    assert rows["Mem0"][2:] == ["1.00", "58.11"]


def test_accuracy_over_sessions_is_one_chart_and_one_for_each_point(sweep: Command, tmp_path: Path) -> None:
    for label, falls in (("LightMem", 0.02), ("DeltaMem-8B-RL", 0.005)):
        curve = [
            {"session": at, "mean": 0.8 - at * falls, "low": 0.7 - at * falls, "high": 0.9 - at * falls, "users": 20}
            for at in range(25)
        ]
        write_run(tmp_path / "out" / label, records(), benchmark="HaluMem-Medium", more={"cumulative": curve})
    done = sweep("figure4", "out=out", "draw=true")
    rows = table(tmp_path / "out" / "figure4.md")
    assert rows["point"][0] == "1 session" and rows["point"][-1] == "25 sessions"
    assert rows["LightMem"][0] == "80.00 (70.0\u201390.0)" and rows["LightMem"][-1].startswith("32.00")
    assert rows["DeltaMem-4o"] == ["not run", "", "", "", "", ""]
    names = {"figure4.svg", "figure4_LightMem.svg", "figure4_DeltaMem-8B-RL.svg"}
    assert {path.name for path in (tmp_path / "out").glob("*.svg")} == names and "first 25 sessions" in done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table9"], "there is no sweep 'table9'; there are: table4, figure3, figure4, table7"),
        (["table4", "points=[tau_0.55]"], "table4 has no point 'tau_0.55'; it has: tau_0.00, "),
        (["table4", "system=mem0"], "system is what the points of table4 differ in"),
        (["table4", "port=many"], "config key port: "),
        (["table4", "draw=true"], "runs/table4 has no result of any point yet"),
        (["table7", "points=[DeltaMem-8B]", "colour=red"], "colour"),
        (
            ["table7", "points=[DeltaMem-8B]", "alone"],
            "table7 is of a model's answers: it needs answer.model and judge.model",
        ),
        (["table7", "points=[DeltaMem-8B]", "serve=no-such-program"], "serve=no-such-program cannot be run"),
        # Found before a model is served, which takes minutes
        (
            ["table7", "points=[DeltaMem-8B]", "serve=no-such-program", "judge.prompt=no.py"],
            "error: prompt no.py cannot be read",
        ),
        (
            ["table7", "points=[DeltaMem-8B]", f"serve={sys.executable}"],  # which has no program called serve
            "ended with exit code 2; see runs/table7/DeltaMem-8B.server.log",
        ),
    ],
)
def test_what_is_wrong_is_a_sentence(sweep: Command, tmp_path: Path, arguments: list[str], said: str) -> None:
    port = [] if "draw=true" in arguments or "port=many" in arguments else [f"port={free_port()}"]
    models = [
        "base_url=http://127.0.0.1:1/v1",
        *(f"{part}.model=tiny" for part in ("answer", "judge") if "alone" not in arguments),
    ]
    data = [] if "draw=true" in arguments else [*LOCOMO.write(tmp_path), *models]
    arguments = [one for one in arguments if one != "alone"]
    done = sweep(*arguments, *port, *data)
    assert done.code == 2 and done.err.startswith("error: ") and done.err.count("\n") == 1
    assert said in " ".join((done.out + done.err).split())


def test_a_taken_port_is_never_taken_for_the_server(sweep: Command, tmp_path: Path) -> None:
    with serve(LOCOMO.script) as other:
        port = other.url.split(":")[2].partition("/")[0]
        models = (f"base_url={other.url}", "answer.model=tiny", "judge.model=tiny")
        done = sweep("table7", "points=[DeltaMem-8B]", f"port={port}", *models, *LOCOMO.write(tmp_path))
        assert not other.requests
    assert done.code == 2 and f"port {port} is taken" in done.out


def test_a_server_that_ends_ends_its_point_before_a_question_is_answered(sweep: Command, tmp_path: Path) -> None:
    dying = VLLM.replace(
        "        self.rfile.read",
        "        if self.rfile.peek().find(b'lighthouse') < 0:\n            import os; os._exit(3)\n        self.rfile.read",
    )
    vllm = program(tmp_path / "vllm", dying)
    with serve(LOCOMO.script) as server:
        models = (f"base_url={server.url}", "answer.model=tiny", "judge.model=tiny", "judge.probes=false", "resamples=20")
        done = sweep(
            "table7", "points=[DeltaMem-8B]", f"serve={vllm}", f"port={free_port()}", *models, *LOCOMO.write(tmp_path)
        )
        assert all(map(is_check, server.requests))
    assert done.code == 1 and "DeltaMem-8B (partial" in done.out
    assert "the server of Qwen/Qwen3-8B ended with exit code 3" in " ".join(done.out.split())


def test_a_sweep_that_is_ended_ends_its_server(tmp_path: Path) -> None:
    vllm = program(tmp_path / "vllm", VLLM)
    settings = f"SweepSettings(out=Path('out'), serve='{vllm}', port={free_port()})"
    code = (
        "import time\nfrom pathlib import Path\nfrom eval.sweep.serving import served\n"
        f"from eval.sweep.study import SweepSettings\nwith served('m', {settings}, Path('log')):\n"
        "    print('ready', flush=True)\n    time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    (server,) = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    _, alive = psutil.wait_procs([server], timeout=0)
    assert not alive


def test_every_point_names_a_row_of_the_paper_and_can_be_made() -> None:
    for name, study in studies().items():
        kind = plugins.load("benchmarks", study.benchmark)
        tables = [one for one in published_tables(kind.published_file()) if one.table == study.layout]
        rows = {row for one in tables if one.source.startswith(PAPER) for row in one.rows}
        layout = next((one for one in kind.layouts if one.id == study.layout), None)
        assert (layout is None) == (study.chart == "curves"), name
        assert set(study.columns) <= {column.key for column in layout.columns} if layout else not study.columns
        for label, point in study.points.items():
            assert point.published is None or point.published in rows, label
            assert bool(point.policies) == bool(point.train) == (point.model is None), label
            assert (point.x is not None) == (study.chart == "line"), label
