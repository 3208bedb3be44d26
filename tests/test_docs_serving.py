"""The examples of docs/serving.md, run as they stand but for addresses and names."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from inspect import iscoroutine
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder, add, outputs, search, update
from proxy_cases import models
from rule_model import RulePolicy
from scripted_server import Reply, completion, is_check, serve
from server_cases import ANN, CHEAP, Process, launched, ok

from deltamem import Add, MemoryManager
from deltamem.bank.store import MemoryStore
from deltamem.server.keys import KEYS_FILE, Keys, Scope

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "serving.md").read_text(encoding="utf-8")
CITIES = {"I live in Boston.": "Boston", "I moved to Denver.": "Denver", "it was Boulder": "Boulder"}


def block(language: str, containing: str) -> str:
    """The only block of a language that contains a text."""
    (found,) = (code for code in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if containing in code)
    assert isinstance(found, str)
    return found


def model(body: dict[str, Any]) -> Reply:
    """Searches once, then adds where Ann lives or updates the memory that was found."""
    messages = body["messages"]
    if is_check(body):
        return completion("Hello.")
    city = next(city for said, city in CITIES.items() if said in messages[1]["content"])
    if len(messages) == 2:
        return completion(search("Where does Ann live?"))
    known = re.search(r'"id": "(m\d+)"', messages[-1]["content"])
    text = f"Ann lives in {city}."
    return completion(outputs(update(known[1], text) if known else add(text)))


def test_the_example_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = re.search(r"it prints.*?```\n(.*?)```", PAGE, re.DOTALL)
    assert printed is not None
    monkeypatch.chdir(tmp_path)
    with serve(model) as server:
        program = block("python", "SAID = ").replace("http://localhost:8000/v1", server.url)
        exec(compile(program, "the page", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == printed[1]


def started(code: str, folder: Path, replaced: Mapping[str, str]) -> AbstractContextManager[Process]:
    """Run the line of a block that serves; `deltamem` is the command with an embedder that needs no model."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "deltamem"
    program.write_text(f"#!{sys.executable}\n{CHEAP}")
    program.chmod(0o755)
    (line,) = (line for line in code.splitlines() if "deltamem serve" in line)
    for old, new in replaced.items():
        assert old in line
        line = line.replace(old, new)
    # In its place, so that ending it does not leave it behind.
    command = ["bash", "-c", line.replace("deltamem serve", 'exec "$0" serve'), str(program)]
    return launched(command, folder / "log", {"DELTAMEM_PORT": "0", "DELTAMEM_MODEL": "tiny"}, folder)


def values(text: str) -> Iterator[Any]:
    """JSON values that were printed one after the other."""
    while text:
        value, end = json.JSONDecoder().raw_decode(text)
        text = text[end:].lstrip()
        yield value


def test_the_server_and_what_curl_asks_it(tmp_path: Path) -> None:
    line = block("bash", "serve --bank bank --base-url")
    with serve(model) as reader, started(line, tmp_path, {"http://localhost:8000/v1": reader.url}) as server:
        program = block("bash", "curl $A/search").replace("http://127.0.0.1:8377", server.url)
        done = subprocess.run(["bash", "-ec", program], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    session, found, blame = values(done.stdout)
    assert session["outcome"] == "applied" and session["changes"][0]["after"] == "Ann lives in Denver."
    assert [memory["id"] for memory in found["results"][0]["memories"]] == ["m1"]
    assert blame["origins"][0]["turns"][0]["content"] == "I moved to Denver."


def test_the_proxy_and_the_client_before_it(tmp_path: Path) -> None:
    (tmp_path / "bank").mkdir()
    with Keys.open(tmp_path / "bank" / KEYS_FILE) as keys:
        token = keys.create("test", ["ann"], frozenset({Scope.READ, Scope.WRITE}))[1]
    with models() as upstream, serve(model) as reader:
        replaced = {"https://HOST/v1": upstream.url, "http://localhost:8000/v1": reader.url, "KEY=...": "KEY=secret"}
        with started(block("bash", "--upstream"), tmp_path, replaced) as server, server.client(token) as http:
            ok(http.post(f"{ANN}/memories", json={"memories": [{"text": "Ann has a dog called Rex."}]}), 201)
            program = block("python", "from openai import OpenAI")
            program = program.replace("http://localhost:8377", server.url).replace("TOKEN", token)
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "I see.\n", done.stderr
    (asked,) = upstream.asked
    assert "Ann has a dog called Rex." in asked.last and asked.headers["authorization"] == "Bearer secret"


async def test_what_is_written_without_a_model() -> None:
    with MemoryStore.in_memory(WordEmbedder()) as store:
        memory = MemoryManager(store, "Ann", RulePolicy())
        now = datetime(2026, 4, 1)
        await memory.write([Add("Ann lives in Boston.", now), Add("Ann has a cat.", now)], actor="test")
        names: dict[str, Any] = {"memory": memory}
        code = block("python", "Retract(")
        running = eval(compile(code, "the page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        assert iscoroutine(running)
        await running
        said = re.search(r'memory_id  # "(.*)"', code)
        assert said is not None and names["entry"].changes[0].memory_id == said[1]
        assert {one.text for one in memory.state().memories} == {"Ann has a dog.", "Ann lives in Reno."}
