"""Programs of others against `deltamem serve` and `deltamem mcp`, each from an environment of its own: `make clients`."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from episode_texts import outputs
from proxy_cases import models
from rule_model import answer
from scripted_server import Reply, completion, is_check, serve
from server_cases import ANN, ROOT, Process, ok, process, until

from deltamem.server.keys import KEYS_FILE, Keys, Scope

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).with_name("clients")


def installed(name: str) -> Path:
    """The environment of a client."""
    folder = ROOT / ".clients" / name
    if not (folder / ".installed").exists():
        pytest.skip(f"the environment of {name} is not there; run: make clients")
    return folder


def python(name: str) -> str:
    return str(installed(name) / "bin" / "python")


def run(*command: str | Path, home: Path, folder: Path | None = None, **environment: str) -> str:
    """What a program prints that is run in a folder; it must succeed, and leaves nothing in the real home directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DELTAMEM_", "PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command,
        cwd=folder or home,
        env=kept | {"HOME": str(home)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-20_000:]}"
    return done.stdout


def node(*command: str | Path, name: str, home: Path, **environment: str) -> str:
    """The same for a program of npm's, with the packages of a client."""
    folder, program = installed(name), installed("node") / "bin" / "node"
    return run(program, *command, home=home, NODE_PATH=str(folder / "node_modules"), **environment)


@contextmanager
def served(
    folder: Path, *arguments: str, reader: Callable[[Sequence[Mapping[str, str]]], str] = answer
) -> Iterator[Process]:
    """`deltamem serve` with a model that reads sessions, by default the one that is made of rules."""

    def script(body: Mapping[str, Any]) -> Reply:
        return completion("Hello." if is_check(body) else reader(body["messages"]))

    with (
        serve(script) as model,
        process(folder / "bank", folder / "log", "--base-url", model.url, "--model", "tiny", *arguments) as server,
    ):
        yield server


def key(folder: Path, *owners: str) -> str:
    """The token of a new key, with all scopes."""
    (folder / "bank").mkdir()
    with Keys.open(folder / "bank" / KEYS_FILE) as keys:
        return keys.create("client", owners or None, frozenset(Scope))[1]


def test_schemathesis(tmp_path: Path) -> None:
    """No 5xx, what is answered is as described, and the examples reach what is behind the 404s."""
    program, folder, token = installed("schemathesis") / "bin" / "schemathesis", PROGRAMS / "schemathesis", key(tmp_path)
    with served(tmp_path, "--rate", "off", reader=lambda _: outputs()) as server:
        environment = {"DELTAMEM_URL": server.url, "DELTAMEM_TOKEN": token}
        run(program, "run", f"{server.url}/openapi.json", "--no-color", home=tmp_path, folder=folder, **environment)
        with server.client(token) as http:
            paths = ok(http.get("/openapi.json"))["paths"]
    answered = Counter(re.findall(r" INFO deltamem\.access: (\S+) (\S+) (\d)\d\d ", server.log.read_text()))
    good = {(method, path): answered[method.upper(), path, "2"] for path, methods in paths.items() for method in methods}
    assert len(good) == 24 and min(good.values()) > 0
    assert all(count >= 5 for (_, path), count in good.items() if "{" in path), good
    assert not [one for one in answered if one[2] == "5"]


def test_mem0_of_npm(tmp_path: Path) -> None:
    installed("mem0ai")
    token = key(tmp_path, "ann")
    with served(tmp_path) as server:
        program = PROGRAMS / "mem0ai" / "client.cjs"
        printed = node(program, server.url, token, name="mem0ai", home=tmp_path, MEM0_TELEMETRY="false")
    assert printed.endswith("all of it\n")


def test_litellm_through_the_proxy(tmp_path: Path) -> None:
    program = python("litellm")
    token = key(tmp_path, "ann")
    with (
        models() as upstream,
        served(tmp_path, "--upstream", upstream.url, "--idle", "1") as server,
        server.client(token) as http,
    ):
        ok(http.post(f"{ANN}/memories", json={"memories": [{"text": "Ann has a dog named Rex."}]}), 201)
        command = (program, PROGRAMS / "litellm" / "client.py", f"{server.url}/proxy/v1", token)
        printed = run(*command, home=tmp_path, LITELLM_LOCAL_MODEL_COST_MAP="True")
        assert printed.splitlines() == ["I see."] * 4 + ["refused"]
        assert [asked.last.partition("\n\n<mem")[0] for asked in upstream.asked] == ["My dog's name?"] * 4
        assert all("Ann has a dog named Rex." in asked.last for asked in upstream.asked)
        # Asked four times, it is remembered once.
        until(lambda: ok(http.get(f"{ANN}/jobs", params={"state": "done"}))["jobs"])
        assert http.get(f"{ANN}/export").text.count('"My dog\'s name?"') == 1
