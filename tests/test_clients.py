"""Programs of others against `deltamem serve` and `deltamem mcp`, each from an environment of its own: `make clients`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from episode_texts import outputs
from process_cases import CHEAP, ROOT
from rule_model import rules
from scripted_server import Script, completion, replies, serve
from server_cases import ANN, Process, ok, process, until

from deltamem.server.keys import KEYS_FILE, Keys, Scope

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "serving.md"
PROGRAMS = Path(__file__).with_name("clients")


def installed(name: str) -> Path:
    """The environment of a client."""
    folder = ROOT / ".clients" / name
    if not (folder / ".installed").exists():
        pytest.skip(f"the environment of {name} is not there; run: make clients")
    return folder


def python(name: str) -> str:
    return str(installed(name) / "bin" / "python")


def run(
    *command: str | Path, home: Path, folder: Path | None = None, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder until it ends with a code; it leaves nothing in the real home directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DELTAMEM_", "PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command,
        cwd=folder or home,
        env=kept | {"HOME": str(home)} | environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == code, f"{done.stdout[-20_000:]}\n{done.stderr[-20_000:]}"
    return done


def node(*command: str | Path, home: Path, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same for a program of Node.js."""
    return run(installed("node") / "bin" / "node", *command, home=home, code=code, **environment)


@contextmanager
def served(folder: Path, *arguments: str, script: Script = rules) -> Iterator[Process]:
    """`deltamem serve` with a model that reads sessions, by default the one that is made of rules."""
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
    with served(tmp_path, "--rate", "off", script=replies(completion(outputs()))) as server:
        environment = {"DELTAMEM_URL": server.url, "DELTAMEM_TOKEN": token}
        run(program, "run", f"{server.url}/openapi.json", "--no-color", home=tmp_path, folder=folder, **environment)
        with server.client(token) as http:
            paths = ok(http.get("/openapi.json"))["paths"]
    answered = Counter(re.findall(r" INFO deltamem\.access: (\S+) (\S+) (\d)\d\d ", server.log.read_text()))
    good = {(method, path): answered[method.upper(), path, "2"] for path, methods in paths.items() for method in methods}
    assert len(good) == 29 and min(good.values()) > 0
    assert all(count >= 5 for (_, path), count in good.items() if "{" in path), good
    assert not [one for one in answered if one[2] == "5"]


def test_mem0_of_npm(tmp_path: Path) -> None:
    pytest.importorskip("integrations.mem0.routes")
    environment = {"NODE_PATH": str(installed("mem0ai") / "node_modules"), "MEM0_TELEMETRY": "false"}
    token = key(tmp_path, "ann")
    with served(tmp_path) as server:
        done = node(PROGRAMS / "mem0ai" / "client.cjs", server.url, token, home=tmp_path, **environment)
    assert done.stdout.endswith("all of it\n")


def test_litellm_through_the_proxy(tmp_path: Path) -> None:
    models = pytest.importorskip("proxy_cases").models
    program = python("litellm")
    token = key(tmp_path, "ann")
    with (
        models() as upstream,
        served(tmp_path, "--upstream", upstream.url, "--idle", "1") as server,
        server.client(token) as http,
    ):
        ok(http.post(f"{ANN}/memories", json={"memories": [{"text": "Ann has a dog named Rex."}]}), 201)
        command = (program, PROGRAMS / "litellm" / "client.py", f"{server.url}/proxy/v1", token)
        done = run(*command, home=tmp_path, LITELLM_LOCAL_MODEL_COST_MAP="True")
        assert done.stdout.splitlines() == ["I see."] * 4 + ["refused"]
        assert [asked.last.partition("\n\n<mem")[0] for asked in upstream.asked] == ["My dog's name?"] * 4
        assert all("Ann has a dog named Rex." in asked.last for asked in upstream.asked)
        # Asked four times, it is remembered once.
        until(lambda: ok(http.get(f"{ANN}/jobs", params={"state": "done"}))["jobs"])
        assert http.get(f"{ANN}/export").text.count('"My dog\'s name?"') == 1


def as_documented(key: str, **replaced: str) -> dict[str, Any]:
    """The configuration of MCP's clients that the page has for a command or for a URL."""
    for block in re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for old, new in replaced.items():
            block = block.replace(old, new)
        server: dict[str, Any] = json.loads(block)["mcpServers"]["memory"]
        if key in server:
            return server
    raise AssertionError(f"the page configures no {key}")


def over_stdio(bank: Path) -> dict[str, Any]:
    """`deltamem mcp` for Ann as documented, with an embedder that needs no model."""
    server = as_documented("command", **{"/path/to/bank": str(bank)})
    assert server["command"] == "deltamem"
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    return {"command": sys.executable, "args": ["-c", CHEAP, *server["args"]], "env": environment}


def over_http(server: Process, token: str) -> dict[str, Any]:
    """``/mcp`` as documented."""
    return as_documented("url", **{"http://127.0.0.1:8377": server.url, "TOKEN": token})


@pytest.mark.parametrize("transport", ["stdio", "streamable_http"])
def test_langchain_mcp_adapters(tmp_path: Path, transport: str) -> None:
    command = (python("langchain"), PROGRAMS / "langchain" / "client.py")
    if transport == "stdio":
        done = run(*command, json.dumps(over_stdio(tmp_path / "bank") | {"transport": transport}), home=tmp_path)
    else:
        token = key(tmp_path, "ann")
        with process(tmp_path / "bank", tmp_path / "log") as server:
            connection = over_http(server, token)
            connection["transport"] = {"http": transport}[connection.pop("type")]
            done = run(*command, json.dumps(connection), home=tmp_path)
    report = json.loads(done.stdout)
    assert len(report["tools"]) == 9 and {"add_memory", "rollback_memories"} <= set(report["tools"])
    assert report["found"] == ["Ann has a dog named Rex."] and report["history"] == ["ADD", "UPDATE"]
    assert report["state"] == ["Ann has a cat named Tom."] and "- Ann has a cat named Tom. (2026-03-02" in report["prompt"]
    (erasing, unknown) = report["refused"]
    assert erasing[0] == "error" and "ask the person first" in erasing[1]
    assert unknown[0] == "error" and "there is no memory 'm99'" in unknown[1]
    assert report["left"] == []


def configured(server: dict[str, Any], folder: Path) -> Path:
    """A file of servers as MCP's clients read it."""
    (file := folder / "mcp.json").write_text(json.dumps({"mcpServers": {"memory": server}}))
    return file


def inspected(config: Path, method: str, *options: str, code: int = 0) -> tuple[Any, str]:
    """What the inspector prints as JSON, and what it complains about."""
    program, home = installed("inspector") / "node_modules" / ".bin" / "mcp-inspector", config.parent
    command = (program, "--cli", "--config", config, "--server", "memory", "--connect-timeout", "0", "--method", method)
    done = node(*command, *options, home=home, code=code, MCP_INSPECTOR_SECRET_STORE="memory")
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_of_mcp_over_http(tmp_path: Path, era: str) -> None:
    token = key(tmp_path, "ann")
    with process(tmp_path / "bank", tmp_path / "log") as server:
        config = configured(over_http(server, token), tmp_path)

        def ask(method: str, *options: str, code: int = 0) -> Any:
            return inspected(config, method, "--protocol-era", era, *options, code=code)[0]

        listed, complaints = inspected(config, "tools/list", "--protocol-era", era, "--strict")
        assert len(listed["tools"]) == 9 and "Warning" not in complaints
        call = ("tools/call", "--tool-name")
        added = ask(*call, "add_memory", "--tool-arg", "text=Ann has a dog named Rex.")
        (change,) = added["structuredContent"]["changes"]
        assert change["after"] == "Ann has a dog named Rex."
        assert ask("resources/read", "--uri", "memory://state")["contents"][0]["mimeType"] == "application/json"
        prompt = ask("prompts/get", "--prompt-name", "recall", "--prompt-args", "topic=dog")
        assert "Rex" in prompt["messages"][0]["content"]["text"]
        refused = ask(*call, "delete_all_memories", code=5)
        assert refused["isError"] and "nothing was changed" in refused["content"][0]["text"]
        found = ask(*call, "search_memories", "--tool-arg", "query=dog")["structuredContent"]["memories"]
        assert found[0]["id"] == change["id"]


def test_the_inspector_of_mcp_over_standard_input_and_output(tmp_path: Path) -> None:
    config = configured(over_stdio(tmp_path / "bank"), tmp_path)
    listed, _ = inspected(config, "tools/list", "--strict")
    assert len(listed["tools"]) == 9
    call = ("tools/call", "--tool-name")
    inspected(config, *call, "add_memory", "--tool-arg", "text=Ann has a dog named Rex.")
    found, _ = inspected(config, *call, "search_memories", "--tool-arg", "query=dog", "k=1")
    assert [one["text"] for one in found["structuredContent"]["memories"]] == ["Ann has a dog named Rex."]
